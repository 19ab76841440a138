"""A real server beside the simulated keyspace: raw replies and everything it holds."""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hiredis

READ_BYTES_MAX = 1 << 16


class RealServer:
    """One blocking connection; errors come back as hiredis.ReplyError values."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._reader = hiredis.Reader()

    def ask(self, *command: bytes | int | str | float) -> object:
        packed = hiredis.pack_command(command)  # type: ignore[arg-type]
        self._socket.sendall(packed)
        while (reply := self._reader.gets()) is False:
            data = self._socket.recv(READ_BYTES_MAX)
            assert data, f"the server is gone after {command[:3]!r}"
            self._reader.feed(data)
        return reply

    def close(self) -> None:
        self._socket.close()

    def dump(self) -> dict[bytes, tuple[str, object]]:
        """What Keyspace.dump would say of the same contents."""
        keys = self.ask(b"KEYS", b"*")
        assert isinstance(keys, list)
        return {key: self._content(key) for key in sorted(keys)}

    def _content(self, key: bytes) -> tuple[str, object]:
        kind = self.ask(b"TYPE", key)
        match kind:
            case b"string":
                return "string", self.ask(b"GET", key)
            case b"hash":
                flat = self.ask(b"HGETALL", key)
                assert isinstance(flat, list)
                return "hash", tuple(sorted(zip(flat[::2], flat[1::2], strict=True)))
            case b"zset":
                members = self.ask(b"ZRANGE", key, 0, -1)
                assert isinstance(members, list)
                return "zset", tuple(members)
            case b"set":
                members = self.ask(b"SMEMBERS", key)
                assert isinstance(members, list)
                return "set", tuple(sorted(members))
            case _:
                raise AssertionError(kind)


@contextmanager
def real_server(directory: Path, program: Path) -> Iterator[RealServer]:
    """A server over a Unix socket in ``directory``, gone at the end."""
    path = directory / "s"
    ready, told = os.pipe()
    process = subprocess.Popen(
        [str(program), "--port", "0", "--unixsocket", str(path), "--save", "",
         "--dir", str(directory), "--daemonize", "no"],
        env={**os.environ, "LC_ALL": "C"}, stdout=told, stderr=told,
    )  # fmt: skip
    os.close(told)
    try:
        with open(ready, "rb") as log:
            for line in log:
                if b"ready to accept connections" in line.lower():
                    break
            server = RealServer(path)
            yield server
            server.close()
    finally:
        process.kill()
        process.wait()
