"""A few questions to a server, asked blocking with an end: for start-up and administration, never in the message path."""

import socket
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import hiredis

READ_BYTES_MAX = 1 << 16


class BlockingConnection:
    """One connection over a Unix socket; every call ends within ``timeout_s`` or raises TimeoutError (an OSError)."""

    def __init__(self, path: Path, *, timeout_s: float) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._reader = hiredis.Reader()
        try:
            self._socket.settimeout(timeout_s)
            self._socket.connect(str(path))
        except BaseException:
            self._socket.close()
            raise

    def ask(self, *command: bytes | int) -> Any:
        """The reply; an error the server answers comes as a hiredis.ReplyError value. Raises OSError."""
        packed = hiredis.pack_command(command)  # type: ignore[arg-type]
        self._socket.sendall(packed)
        while (reply := self._reader.gets()) is False:
            data = self._socket.recv(READ_BYTES_MAX)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            self._reader.feed(data)
        return reply

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> "BlockingConnection":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def parse_info(text: bytes) -> Mapping[str, str]:
    """The fields of an INFO reply."""
    lines = text.decode("utf-8", "replace").splitlines()
    fields = (line.partition(":") for line in lines if ":" in line and not line.startswith("#"))
    return {name: value for name, _, value in fields}
