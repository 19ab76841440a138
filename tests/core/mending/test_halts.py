"""Where a consumer stands before a newer format, asked of a store and a log that are plain data."""

from typing import Any

import pytest

from qim.core.contract.logvalue import barrier_value
from qim.core.mending.asking import NotMended
from qim.core.mending.halts import Halt, halts
from qim.core.ports.completion import Failed, FailReason
from qim.core.ports.log import Fetch, Fetched, OutOfRange, StoredRecord, Topic
from qim.core.ports.store_mailbox import ReadShardState, ShardStateRead
from tests.core.newer_format import LATER_VERSION, NEWER


def asked(base: int, records: dict[int, bytes]) -> Any:
    """The answer for mailbox shard 0, whose W stands before the records' first one."""
    procedure = halts((), (0,), tiered=False)
    request = next(procedure)
    try:
        while True:
            request = procedure.send(answer(request, base, records))
    except StopIteration as done:
        return done.value


def answer(request: Any, base: int, records: dict[int, bytes]) -> Any:
    if isinstance(request, ReadShardState):
        return ShardStateRead(
            op=0, incarnation=b"i", base=base, min_watermark=(1 << 48) + 4, trim=0, redo=()
        )
    assert isinstance(request, Fetch)
    if not records:
        return OutOfRange(op=0, topic_id=b"t", start=9, end=9)
    found = [
        StoredRecord(offset=offset, append_time=0, key=b"", value=value)
        for offset, value in records.items()
        if offset >= request.offset
    ]
    return Fetched(op=0, topic_id=b"t", start=0, end=9, records=tuple(found))


def test_a_shard_without_a_state_stands_nowhere() -> None:
    assert asked(-1, {5: NEWER}) == ()


@pytest.mark.parametrize(
    "records", [{}, {6: NEWER}, {5: barrier_value(1)}, {5: b"hello stranger"}], ids=str
)
def test_what_does_not_stand_there_or_is_none_halts_nobody(records: dict[int, bytes]) -> None:
    assert asked(1, records) == ()


def test_the_record_behind_the_watermark_halts() -> None:
    (found,) = asked(1, {5: NEWER})
    assert found == Halt(
        consumer="mailbox",
        topic=Topic.DISPATCH,
        number=0,
        offset=5,
        size_bytes=len(NEWER),
        version=LATER_VERSION,
    )


def test_a_store_that_is_away_is_told() -> None:
    procedure = halts((), (0,), tiered=False)
    next(procedure)
    with pytest.raises(NotMended, match="unreachable"):
        procedure.send(Failed(op=0, why=FailReason.UNREACHABLE))
