"""Long polls before brokers that a test plays: sessions, leaders that move, windows, what can't be read."""

import asyncio
from typing import Any

import pytest

from qim.adapters.kafka.cluster import Leader
from qim.adapters.kafka.consumer import Consumer
from qim.adapters.kafka.fetch_wire import AskFetch, FetchedPart, FetchResponse
from qim.adapters.kafka.wire import AskOffsets
from qim.core.ports.completion import Failed, FailReason
from qim.core.ports.log import Fetched, OutOfRange
from tests.adapters.log.batches import batch, sealed
from tests.adapters.log.played_cluster import TOPIC_ID
from tests.adapters.log.stage import KEY, OUT_OF_RANGE, Stage


def seated(stage: Stage) -> None:
    """A fetch that waits at offset 1 in a session."""
    stage.fetch(0)
    stage.fetched(batch(b"a"), end=1)
    assert isinstance(stage.told.pop(), Fetched)
    stage.fetch(1)
    assert stage.asked(AskFetch).wait_ms > 0


def test_a_poll_brings_what_comes_and_goes_on_behind_it(stage: Stage) -> None:
    seated(stage)
    stage.fetched(batch(b"b", first=1), end=2, session=8)
    assert [one.offset for one in stage.told[0].records] == [1]
    poll = stage.asked(AskFetch)
    assert (poll.session_id, poll.session_epoch) == (8, 1)
    assert [one.offset for one in poll.parts] == [2]


def test_a_poll_out_of_range_is_settled_by_a_read(stage: Stage) -> None:
    seated(stage)
    stage.fetched(error=OUT_OF_RANGE, session=8)
    assert stage.told == []
    stage.fetched(error=OUT_OF_RANGE)
    stage.ends(5, 9)
    (told,) = stage.told
    assert isinstance(told, OutOfRange)
    assert (told.start, told.end) == (5, 9)


def test_a_session_the_broker_dropped_is_begun_anew(stage: Stage) -> None:
    seated(stage)
    stage.fetched(end=1, session=8)
    assert stage.asked(AskFetch).parts == [], "nothing changed"
    stage.answer(FetchResponse(error=70, session_id=0, parts=[]))
    poll = stage.asked(AskFetch)
    assert (poll.session_id, poll.session_epoch, len(poll.parts)) == (0, 0, 1)


def test_a_leader_that_moved_is_polled_where_it_is(stage: Stage) -> None:
    seated(stage)
    stage.cluster.led = Leader(2, 1, 3)
    for listener in stage.cluster.on_refreshed:
        listener()
    stage.run(asyncio.sleep(0.01))
    assert [one.parts[0].leader_epoch for one, _ in stage.cluster.requests] == [0, 1]


def test_an_answer_for_another_offset_is_dropped(stage: Stage) -> None:
    seated(stage)
    stage.consumer._tails[KEY].next = 4
    stage.fetched(batch(b"x", b"y"), end=9, session=8)
    assert stage.told == []
    assert stage.consumer.answers_dropped == 1


def test_a_wait_that_no_broker_confirmed_is_failed(stage: Stage) -> None:
    seated(stage)
    stage.consumer._heard[1] = -1e9
    stage.fetch(1, wait_ms=5)
    stage.until(1)
    assert stage.told == [Failed(op=1, why=FailReason.UNREACHABLE)]


def test_a_window_is_bounded_and_a_slow_reader_is_not_read_ahead_for_ever() -> None:
    stage = Stage(read_ahead_bytes=10)
    stage.fetch(0)
    stage.fetched(batch(*(b"%d" % n * 20 for n in range(4))), end=99)
    assert len(stage.told) == 1
    stage.run(asyncio.sleep(0.02))
    assert not stage.cluster.requests, "the window is full until something is asked for"
    assert stage.consumer.bytes_ahead == 4 * 21
    stage.close()


def test_a_fault_of_ours_before_a_poll_does_not_end_the_polling(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, faults = Consumer._wanted, [RuntimeError("a bug")]

    def faulty(consumer: Consumer, node: int) -> Any:
        if faults:
            raise faults.pop()
        return wanted(consumer, node)

    monkeypatch.setattr(Consumer, "_wanted", faulty)
    seated(stage)
    assert not faults
    stage.fetched(batch(b"a", b"b"), end=2, session=8)
    stage.until(1)
    assert isinstance(stage.told[0], Fetched)


def parts(*data: bytes, end: int) -> FetchResponse:
    """Of partitions 0, 1, …"""
    told = [
        FetchedPart(
            topic=TOPIC_ID, partition=number, error=0, high_watermark=end, log_start=0, data=one
        )
        for number, one in enumerate(data)
    ]
    return FetchResponse(error=0, session_id=8, parts=told)


def test_what_can_t_be_unpacked_holds_up_its_own_partition_alone(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (0, 1):
        stage.fetch(0, partition=number)
    stage.answer(parts(batch(b"a"), batch(b"a"), end=1))
    for number in (0, 1):
        stage.fetch(1, partition=number)
    stage.told.clear()
    assert [part.partition for part in stage.asked(AskFetch).parts] == [0, 1]
    packed = sealed(batch(b"abc", first=1), 3)
    stage.answer(parts(packed, batch(b"b", first=1), end=2))
    (fetched,) = stage.told
    assert [one.value for one in fetched.records] == [b"b"]
    assert stage.consumer.waiting == 1, "the other one waits on"
    assert stage.consumer.lags() == [("outbox", 0, 1), ("outbox", 1, 1)]
    assert "needs the Python package cramjam" in caplog.text
    poll = stage.asked(AskFetch)
    assert [part.partition for part in (*poll.parts, *poll.forgotten)] == [1], "after a pause"


def test_the_watchdog_leaves_alone_what_can_t_be_read() -> None:
    """A new connection brings the same bytes, and cuts everybody else's."""
    stage = Stage(stall_ms=4)
    seated(stage)
    stage.fetched(sealed(batch(b"abc", first=1), 3), end=2, session=8)
    asked = 0
    stage.consumer.start()
    for _ in range(40):
        stage.run(asyncio.sleep(0.001))
        asked += sum(isinstance(one, AskOffsets) for one, _ in stage.cluster.requests)
    assert (asked, stage.consumer.recreated) == (0, 0)
    stage.close()
