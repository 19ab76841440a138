"""What a running partition stops with: another topic, an offset out of the log, a shorter log, a hole where none may be."""

import pytest

from qim.core.ports.log import Fetched, OutOfRange, StoredRecord
from qim.core.position import why_strange

TOPIC = b"the topic's name"


def fetched(*offsets: int, topic_id: bytes = TOPIC, end: int = 9) -> Fetched:
    records = tuple(
        StoredRecord(offset=offset, key=b"", value=b"", append_time=0) for offset in offsets
    )
    return Fetched(op=1, topic_id=topic_id, start=0, end=end, records=records)


def out(start: int, end: int, *, other_record: bool = False, topic_id: bytes = TOPIC) -> OutOfRange:
    return OutOfRange(op=1, topic_id=topic_id, start=start, end=end, other_record=other_record)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (fetched(topic_id=b"another"), "the topic was created anew"),
        (out(0, 9, topic_id=b"another"), "the topic was created anew"),
        (out(6, 9), "offset 5 is outside 6..9"),
        (out(0, 4), "offset 5 is outside 0..4"),
        (
            out(0, 9, other_record=True),
            "OTHER_RECORD: another record stands before 5 than was read",
        ),
        (fetched(end=4), "the log ends at 4, and was read up to 5"),
        (fetched(6), "the log has 6 where 5 was asked for"),
        (fetched(5, 6, 8), "the log has 8 where 7 was asked for"),
    ],
)
def test_what_stops_a_partition(answer: Fetched | OutOfRange, why: str) -> None:
    assert why_strange(TOPIC, 5, answer) == why


@pytest.mark.parametrize("answer", [fetched(), fetched(end=5), fetched(5, 6, 7)])
def test_what_it_goes_on_with(answer: Fetched) -> None:
    assert why_strange(TOPIC, 5, answer) is None


def test_compaction_leaves_holes_and_nothing_else() -> None:
    assert why_strange(TOPIC, 5, fetched(6, 8), compacted=True) is None
    assert why_strange(TOPIC, 5, fetched(end=4), compacted=True) is not None
    assert why_strange(TOPIC, 5, out(6, 9), compacted=True) is not None
