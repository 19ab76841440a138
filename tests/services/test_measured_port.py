"""Every answer passes unchanged and once, and leaves a duration behind."""

from collections.abc import Callable
from typing import Any

import pytest

from qim.core.ports.completion import Failed, FailReason
from qim.core.ports.log import EndsRead, Fetch, Fetched, ReadEnds, StoredRecord, Topic
from qim.services import measured_port
from qim.services.measured_port import MeasuredPort

ENDS = ReadEnds(op=1, topic=Topic.OUTBOX, partition=0)
FETCH = Fetch(
    op=2, topic=Topic.DISPATCH, partition=3, offset=5, limit=9, bytes_max=9, wait_ms=1_000
)


class Held:
    """A port that answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, Callable[[Any], None]]] = []

    def submit(self, request: Any, answer: Callable[[Any], None]) -> None:
        self.asked.append((request, answer))


class Bench:
    def __init__(self) -> None:
        self.port = Held()
        self.taken: list[tuple[str, str, float]] = []
        self.answers: list[Any] = []
        self.measured = MeasuredPort(
            self.port,
            lambda name, label: lambda seconds: self.taken.append((name, label, seconds)),
        )

    def ask(self, request: Any, reply: Any) -> None:
        self.measured.submit(request, self.answers.append)
        asked, answer = self.port.asked.pop()
        assert asked is request
        answer(reply)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    ticks = iter([10.0, 10.25, 20.0, 20.5])
    monkeypatch.setattr(measured_port, "perf_counter", lambda: next(ticks))
    monkeypatch.setattr(measured_port, "time", lambda: 1_000.5)
    return Bench()


def test_an_answer_is_timed_by_the_kind_of_its_request(bench: Bench) -> None:
    replies = [
        EndsRead(op=1, topic_id=b"t" * 16, start=0, end=4),
        Failed(op=1, why=FailReason.UNREACHABLE),
    ]
    for reply in replies:
        bench.ask(ENDS, reply)
    assert bench.answers == replies
    assert bench.taken == [("port_seconds", "ReadEnds", 0.25), ("port_seconds", "ReadEnds", 0.5)]


def test_a_fetch_tells_how_old_its_first_record_is_and_never_how_long_it_was_parked(
    bench: Bench,
) -> None:
    record = StoredRecord(offset=5, append_time=1_000_000, key=b"", value=b"v")
    replies = [
        Fetched(op=2, topic_id=b"t" * 16, start=0, end=6, records=(record,)),
        Fetched(op=2, topic_id=b"t" * 16, start=0, end=6, records=()),
        Failed(op=2, why=FailReason.UNREACHABLE),
    ]
    for reply in replies:
        bench.ask(FETCH, reply)
    assert bench.answers == replies
    assert bench.taken == [("log_transit_seconds", "dispatch", 0.5)]
