"""A log that lost its tail and grew again, before played brokers: whoever read the old one is told, whoever didn't reads on."""

import pytest

from qim.adapters.kafka.cluster import BrokerGone, Leader
from qim.adapters.kafka.ends import Ends
from qim.adapters.kafka.fetch_wire import AskFetch
from qim.adapters.kafka.reader import Outside, Span
from qim.core.ports.log import Fetched, OutOfRange
from tests.adapters.log.batches import batch, digest
from tests.adapters.log.played_cluster import TOPIC_ID
from tests.adapters.log.stage import OUT_OF_RANGE, Stage

FENCED = 74
OLD = (b"r0", b"r1", b"r2", b"r3")
"""What was read."""
NEW = (b"r0", b"r1", b"n2", b"n3", b"n4")
"""What stands there since."""


def offsets_asked(stage: Stage) -> list[int]:
    return [part.offset for part in stage.asked(AskFetch).parts]


# ------------------------------------------------------------ reads


def test_a_read_shows_the_record_before_it_and_what_follows_in_one_answer(stage: Stage) -> None:
    stage.read(2, digest(1, b"r1"))
    assert offsets_asked(stage) == [1]
    stage.fetched(batch(*OLD), end=4)
    (span,) = stage.told
    assert isinstance(span, Span)
    assert [one.value for one in span.records] == [b"r2", b"r3"]
    assert (span.next, span.epoch) == (4, 0)


def test_another_record_before_it_is_told(stage: Stage) -> None:
    stage.read(4, digest(3, b"r3"))
    stage.fetched(batch(*NEW), end=5)
    ends = Ends(topic_id=TOPIC_ID, start=0, end=5)
    assert stage.told == [Outside(ends=ends, other_record=True)]
    assert stage.reader.positions_refused == 1


def test_the_record_before_alone_is_an_answer_at_the_end(stage: Stage) -> None:
    stage.read(4, digest(3, b"r3"))
    stage.fetched(batch(b"r3", first=3), end=4)
    (span,) = stage.told
    assert (span.records, span.next) == ([], 4)


def test_what_had_no_room_behind_it_is_asked_for_without_it(stage: Stage) -> None:
    stage.read(4, digest(3, b"r3"))
    stage.fetched(batch(*OLD), end=9)
    assert offsets_asked(stage) == [4], "compared under this leadership"
    stage.fetched(batch(b"r4", first=4), end=9)
    assert [one.offset for one in stage.told[0].records] == [4]


def test_what_was_compared_under_another_leadership_is_compared_again(stage: Stage) -> None:
    stage.read(4, digest(3, b"r3"))
    stage.fetched(batch(*OLD), end=9)
    stage.asked(AskFetch)
    stage.cluster.led = Leader(1, 2, 3)
    stage.fetched(error=FENCED, end=-1)
    assert offsets_asked(stage) == [3]
    stage.fetched(batch(*NEW), end=5)
    assert stage.told[0].other_record


def test_an_end_below_it_is_looked_at_twice(stage: Stage) -> None:
    stage.read(4, digest(3, b"r3"))
    for refreshes in (0, 0, 1):
        assert stage.told == []
        stage.cluster.refreshes = refreshes
        stage.fetched(end=3)
        stage.ends(0, 3)
    assert stage.told == [Outside(ends=Ends(topic_id=TOPIC_ID, start=0, end=3))]


def test_a_new_leader_that_lags_behind_its_own_past_is_waited_for(stage: Stage) -> None:
    stage.read(4, digest(3, b"r3"))
    stage.fetched(end=3)
    stage.ends(0, 4)
    assert stage.told == []
    stage.fetched(batch(*OLD), end=4)
    assert isinstance(stage.told[0], Span)


def test_what_retention_took_can_t_be_compared(stage: Stage) -> None:
    stage.read(4, digest(3, b"r3"))
    stage.fetched(error=OUT_OF_RANGE)
    stage.ends(4, 6)
    assert offsets_asked(stage) == [4]
    stage.fetched(batch(b"r4", b"r5", first=4), end=6, start=4)
    assert [one.offset for one in stage.told[0].records] == [4, 5]


def test_what_compaction_took_can_t_either(stage: Stage) -> None:
    stage.read(4, digest(3, b"r3"))
    stage.fetched(batch(b"r5", first=5), end=6)
    assert [one.offset for one in stage.told[0].records] == [5]


# ------------------------------------------------------------ long polls


def waiting(stage: Stage, *, copies: int = 3) -> None:
    """A reader has read all four and waits for a fifth."""
    stage.cluster.led = Leader(1, 0, copies)
    stage.fetch(0)
    stage.fetched(batch(*OLD), end=4)
    assert isinstance(stage.told.pop(), Fetched)
    stage.fetch(4, before=digest(3, b"r3"))
    assert stage.asked(AskFetch).wait_ms > 0


def found_out(stage: Stage) -> None:
    """The next read is of the record before the position, and another one stands there."""
    read = stage.asked(AskFetch)
    assert (read.wait_ms, [part.offset for part in read.parts]) == (0, [3])
    stage.fetched(batch(*NEW), end=5)
    (told,) = stage.told
    assert isinstance(told, OutOfRange)
    assert (told.other_record, told.start, told.end) == (True, 0, 5)


def test_a_connection_that_was_lost_has_the_position_compared(stage: Stage) -> None:
    waiting(stage, copies=1)
    stage.answer(BrokerGone("cut", sent=True))
    found_out(stage)


@pytest.mark.parametrize("node", [1, 2])
def test_a_leader_elected_anew_has_the_position_compared(stage: Stage, node: int) -> None:
    waiting(stage)
    stage.cluster.led = Leader(node, 2, 3)
    stage.fetched(error=FENCED, end=-1, session=8)
    stage.cluster.refreshed()
    found_out(stage)


def test_an_answer_under_the_leadership_before_is_not_taken(stage: Stage) -> None:
    waiting(stage)
    stage.cluster.led = Leader(2, 2, 3)
    stage.cluster.refreshed()
    assert offsets_asked(stage) == [4], "the poll of before"
    stage.fetched(batch(b"n4", first=4), end=5)
    assert stage.told == []
    found_out(stage)


def test_read_ahead_that_heard_of_another_end_leaves_nothing_to_be_believed(stage: Stage) -> None:
    stage.fetch(0)
    stage.fetched(batch(*OLD), end=4)
    stage.told.clear()
    stage.fetched(error=OUT_OF_RANGE, session=8)  # read ahead, while no fetch waits
    stage.fetch(4, before=digest(3, b"r3"))
    found_out(stage)


def test_a_window_read_anew_is_no_answer_for_who_read_the_old_one(stage: Stage) -> None:
    """Another reader of the partition, below the cut, has the window at what stands there now."""
    stage.fetch(2, before=digest(1, b"r1"))
    stage.fetched(batch(*NEW), end=5)
    assert [one.value for one in stage.told.pop().records] == [b"n2", b"n3", b"n4"]
    stage.fetch(4, before=digest(3, b"r3"))
    poll, _ = stage.cluster.requests[0]
    assert poll.wait_ms > 0
    stage.fetched(end=5, session=8)
    found_out(stage)


def test_a_position_that_still_stands_is_read_on_from(stage: Stage) -> None:
    waiting(stage)
    stage.answer(BrokerGone("cut", sent=True))
    stage.fetched(batch(*OLD), end=4)
    assert stage.told == []
    assert offsets_asked(stage) == [4]
    stage.fetched(batch(b"r4", first=4), end=5, session=9)
    assert [one.value for one in stage.told[0].records] == [b"r4"]
