"""Reads before brokers that a test plays: stale leaders, lagging high watermarks, batches that are damaged or can't be unpacked."""

import pytest

from qim.adapters.kafka.cluster import BrokerGone, Leader
from qim.adapters.kafka.ends import Ends
from qim.adapters.kafka.fetch_wire import AskFetch, FetchResponse
from qim.adapters.kafka.reader import Outside, Span
from qim.core.ports.completion import FailReason
from tests.adapters.log.batches import batch, sealed
from tests.adapters.log.played_cluster import TOPIC_ID
from tests.adapters.log.stage import KEY, NOT_LEADER, OUT_OF_RANGE, UNAUTHORISED, Stage


def test_a_position_beyond_a_stale_leader_s_end_is_looked_at_twice(stage: Stage) -> None:
    stage.read(10)
    stage.fetched(error=OUT_OF_RANGE)
    stage.ends(0, 4)
    assert stage.told == []
    assert stage.cluster.doubted == [1]
    stage.fetched(end=10)
    (span,) = stage.told
    assert isinstance(span, Span), "the second look found a leader that has it"


def test_a_position_that_is_beyond_twice_is_outside(stage: Stage) -> None:
    stage.read(10)
    for refreshes in (0, 0, 1):
        assert stage.told == [], "not before the cluster was looked at again"
        stage.cluster.refreshes = refreshes
        stage.fetched(error=OUT_OF_RANGE)
        stage.ends(0, 4)
    assert stage.told == [Outside(ends=Ends(topic_id=TOPIC_ID, start=0, end=4))]


def test_below_the_start_is_outside_at_once(stage: Stage) -> None:
    stage.read(1)
    stage.fetched(error=OUT_OF_RANGE)
    stage.ends(3, 4)
    assert stage.told == [Outside(ends=Ends(topic_id=TOPIC_ID, start=3, end=4))]
    assert stage.reader.positions_refused == 1


def test_a_single_copy_has_no_stale_leader(stage: Stage) -> None:
    stage.cluster.led = Leader(1, 0, 1)
    stage.read(10)
    stage.fetched(error=OUT_OF_RANGE)
    stage.ends(0, 4)
    assert len(stage.told) == 1


def test_a_high_watermark_that_lags_is_no_lost_position(stage: Stage) -> None:
    stage.read(10)
    stage.fetched(end=7)
    (span,) = stage.told
    assert (span.ends.end, span.records, span.next) == (10, [], 10)


@pytest.mark.parametrize("error", [NOT_LEADER, 3, 5, 56, 74, 75, 76, 100, -1])
def test_anything_else_is_asked_again(stage: Stage, error: int) -> None:
    stage.read(0)
    stage.fetched(error=error, end=-1)
    stage.answer(BrokerGone("cut", sent=True))
    stage.answer(FetchResponse(error=0, session_id=0, parts=[]))
    stage.fetched(batch(b"a"), end=1)
    assert [one.value for one in stage.told[0].records] == [b"a"]


def test_who_may_not_read_is_told_so(stage: Stage) -> None:
    stage.read(0)
    stage.fetched(error=UNAUTHORISED)
    assert stage.told == [FailReason.UNAUTHORISED]


def test_a_damaged_batch_is_counted_and_fetched_again(stage: Stage) -> None:
    stage.read(0)
    data = bytearray(batch(b"abc"))
    data[-3] ^= 1
    stage.fetched(bytes(data), end=1)
    assert stage.told == []
    stage.fetched(batch(b"abc"), end=1)
    assert stage.told[0].records[0].value == b"abc"
    assert stage.reader.unread.count == 1


def test_what_can_t_be_unpacked_is_unreachable_and_told_once_a_place(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """Another producer may compress as it likes, and a broker may be told to compress ours anew."""
    for _ in range(2):
        stage.read(0)
        stage.fetched(sealed(batch(b"abc"), 4), end=1)
    assert stage.told == [FailReason.UNREACHABLE] * 2
    assert stage.reader.unread.count == 2
    (line,) = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert line.startswith("outbox/0 is not read beyond 0: ")
    assert line.endswith("needs the Python package cramjam")


def test_a_batch_that_had_no_room_is_asked_for_with_more(stage: Stage) -> None:
    stage.read(0)
    first = stage.asked(AskFetch).parts[0].bytes_max
    stage.fetched(batch(b"abc")[:-4], end=1)
    assert stage.asked(AskFetch).parts[0].bytes_max > first
    stage.fetched(batch(b"abc"), end=1)
    assert len(stage.told[0].records) == 1


def test_nobody_leads_and_patience_ends() -> None:
    stage = Stage(fetch_patience_ms=20)
    stage.cluster.led = None
    stage.read(0)
    stage.asker.ask(KEY, stage.told.append)
    try:
        stage.until(2)
        assert stage.told == [FailReason.UNREACHABLE] * 2
    finally:
        stage.close()


def test_closing_answers_what_waits() -> None:
    stage = Stage()
    stage.read(0)
    stage.asked(AskFetch)
    stage.read(1)
    stage.asker.ask(KEY, stage.told.append)
    stage.close()
    assert stage.told == [FailReason.CANCELLED] * 3
