"""Structured log lines of one process, written by a thread of their own (seed 002: QIM_LOG_FORMAT=json|text)."""

import json
import os
from asyncio import AbstractEventLoop
from datetime import UTC, datetime
from queue import SimpleQueue
from threading import Thread
from typing import Final

LOG_BUFFER_BYTES_MAX: Final = 1 << 20
LOG_FLUSH_SECONDS: Final = 0.05
LOG_CLOSE_SECONDS: Final = 2.0


class LogSink:
    """Lines gathered and handed to a writing thread every 50 ms: logging must not cost more than the work it tells of.

    The thread is there because a pipe whose reader lags would block the event loop. Bounded: what is gathered and not
    yet written never exceeds ``LOG_BUFFER_BYTES_MAX`` by more than a line; beyond it lines are dropped and counted.
    """

    def __init__(self, loop: AbstractEventLoop, descriptor: int, *, as_json: bool) -> None:
        self._loop = loop
        self._descriptor = descriptor
        self.as_json = as_json
        self._lines: list[str] = []
        self._bytes = 0
        self._armed = False
        self._dropped = 0
        self._handed = 0
        self._done = 0
        """Bytes the thread has dealt with; only the thread changes it, as only the loop changes ``_handed``."""
        self._lost = 0
        self._chunks: SimpleQueue[tuple[int, bytes] | None] = SimpleQueue()
        self._thread: Thread | None = None

    @property
    def dropped(self) -> int:
        """Lines that nobody will read (metric)."""
        return self._dropped + self._lost

    def line(self, level: str, service: str, text: str, fields: dict[str, object]) -> None:
        """One event; values must already be redacted (contract/redact.py)."""
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
        if self.as_json:
            record = {"time": stamp, "level": level, "service": service, "event": text, **fields}
            line = json.dumps(record, default=str)
        else:
            told = " ".join(f"{key}={value}" for key, value in fields.items())
            line = f"{stamp} {level:5} {service}: {text} {told}"
        self.raw(line)

    def raw(self, line: str) -> None:
        """A line already formatted (the hot path of stages); line breaks in it would forge other lines."""
        if self._bytes + self._handed - self._done > LOG_BUFFER_BYTES_MAX:
            self._dropped += 1
            return
        if "\n" in line or "\r" in line:
            line = line.replace("\r", "\\r").replace("\n", "\\n")
        self._lines.append(line)
        self._bytes += len(line) + 1
        if not self._armed:
            self._armed = True
            self._loop.call_later(LOG_FLUSH_SECONDS, self.flush)

    def flush(self) -> None:
        """Hand over what has gathered; it is written soon."""
        self._armed = False
        lines, self._lines, self._bytes = self._lines, [], 0
        if not lines:
            return
        if self._thread is None:
            self._thread = Thread(target=self._write_all, name="qim-log-sink", daemon=True)
            self._thread.start()
        data = ("\n".join(lines) + "\n").encode("utf-8", "backslashreplace")
        self._handed += len(data)
        self._chunks.put((len(lines), data))

    def close(self) -> None:
        """Write what has gathered, waiting at most ``LOG_CLOSE_SECONDS`` for a reader that lags."""
        self.flush()
        if self._thread is not None:
            self._chunks.put(None)
            self._thread.join(LOG_CLOSE_SECONDS)

    def _write_all(self) -> None:
        while (chunk := self._chunks.get()) is not None:
            lines, data = chunk
            size = len(data)
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except OSError:
                self._lost += lines
            self._done += size
