"""Who reads a service's output finds its ready line whole, also where the log goes to the same file."""

import io
import sys

import pytest

from qim.services.ready_line import say_ready


class Writes(io.RawIOBase):
    """What each write brought."""

    def __init__(self) -> None:
        self.each: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        self.each.append(bytes(data))  # type: ignore[call-overload]
        return len(self.each[-1])


def test_an_unbuffered_python_writes_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Writes()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(seen, write_through=True))  # type: ignore[type-var]
    say_ready({"ready": True, "pid": 7})
    assert seen.each == [b'{"ready": true, "pid": 7}\n']
