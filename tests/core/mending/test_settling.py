"""Fanout put behind what a repair published: a stop anywhere loses no receipt, and no record of a log is kept in memory."""

import tracemalloc
from typing import Any, Final

import pytest
from msgspec.structs import replace

from qim.core.audit import Verdict
from qim.core.contract.entities import encode_record
from qim.core.contract.logvalue import Outboxed, outbox_value, read_outbox
from qim.core.mending import source
from qim.core.mending.asking import NotMended
from qim.core.mending.lost import walk
from qim.core.mending.outbox import OutboxRepair
from qim.core.ports.completion import Failed, FailReason, StoreRole, Unknown
from qim.core.ports.log import Append, EndsRead, Fetch, Fetched, LogRecord, StoredRecord, Topic
from qim.core.ports.registry import LeaseRead
from qim.core.ports.store_history import CommitArchive
from qim.core.ports.store_operator import AmendSource
from qim.core.ports.store_source import OpenSource, SourceOpened
from tests.core.mending.settled import KEY, World
from tests.core.mending.test_outbox_repair import cut, message_ids, repairing
from tests.core.newer_format import LATER_VERSION, NEWER

RECORDS: Final = 2_000
BODY_BYTES: Final = 8_192
PAGE: Final = 256
WRITES_MAX: Final = 60


@pytest.mark.parametrize("answered", [False, True])
def test_receipts_of_many_pages_outlive_a_stop_between_any_two(
    world: World, answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its receipt a record would be dispatched by hand, and again to who has it: the claims of the first are gone."""
    monkeypatch.setattr(source, "AMENDED_RECEIPTS_MAX", 2)
    number = cut(world, 0)
    before = message_ids(world, number)
    cut(world, 5)
    for steps in range(1, WRITES_MAX):
        left = [steps]

        def fate(request: Any, left: list[int] = left) -> Any:
            if isinstance(request, AmendSource):
                left[0] -= 1
                if left[0] == 0:
                    if answered:
                        world.answer(request)
                    return Unknown(op=0)
            return None

        world.fate = fate
        try:
            done = world.carry_out(repairing(world, number).applied())
        except NotMended:
            continue
        assert done.redispatched == 0
        break
    assert 5 < steps < WRITES_MAX - 1
    assert not [
        one for one in world.asked if isinstance(one, Append) and one.topic is Topic.DISPATCH
    ]
    world.fate = lambda request: None
    assert sorted(message_ids(world, number)) == sorted(before)
    assert world.audit().verdict is Verdict.CLEAN


def test_a_fanout_whose_records_could_not_be_dispatched_is_not_put_behind_them(
    world: World,
) -> None:
    """Nothing but its position tells the next run that there is something to do."""
    number = cut(world, 0)
    log = world.scene.log.partitions[Topic.OUTBOX, number]
    known = world.carry_out(source.evidence(number))
    last = max(known.receipts)
    key = b"fr:" + number.to_bytes(4, "big")
    (row,) = [
        row
        for row in world.scene.stores[StoreRole.MESSAGE].keyspace.dump()[key][1]
        if int.from_bytes(row[:8], "big") == last
    ]
    world.spoil(b"ZREM", key, row)
    astray = [True]

    def fate(request: Any) -> Any:
        if isinstance(request, Append) and request.topic is Topic.DISPATCH and astray[0]:
            return Failed(op=0, why=FailReason.UNREACHABLE)
        if isinstance(request, AmendSource) and request.to.offset == log.end:
            astray[0] = False
        if isinstance(request, OpenSource) and astray[0]:
            opened = world.answer(request)
            assert isinstance(opened, SourceOpened) and opened.position is not None
            return replace(opened, position=replace(opened.position, digest=b"of another log.."))
        return None

    world.fate = fate
    more: dict[str, Any] = {"owner": "op", "address": "op", "fresh_key": KEY, "tiered": False}
    with pytest.raises(NotMended):
        world.carry_out(OutboxRepair(number, world.shards(), **more).applied())
    assert astray[0], "its position stands where it stood"


def test_an_outbox_with_a_record_of_a_newer_format_is_not_repaired_by_an_older_program(
    world: World,
) -> None:
    """Fanout and archiver wait before it; put behind, nobody would ever dispatch it."""
    number = cut(world, 3)
    newer = LogRecord(key=b"k", value=NEWER)
    world.answer(Append(op=0, topic=Topic.OUTBOX, partition=number, epoch=0, records=(newer,)))
    stands = world.scene.log.partitions[Topic.OUTBOX, number].end - 1
    before = len(world.asked)
    for procedure in (repairing(world, number).planned(), repairing(world, number).applied()):
        with pytest.raises(NotMended, match=f"format {LATER_VERSION} at {stands}, newer than"):
            world.carry_out(procedure)
    writes = (Append, AmendSource, CommitArchive)
    assert not [one for one in world.asked[before:] if isinstance(one, writes)]


def test_a_log_greater_than_a_memory_is_walked(world: World) -> None:
    number = cut(world, 0)
    entries = [
        read_outbox(one.value) for one in world.scene.log.partitions[Topic.OUTBOX, number].records
    ]
    entry = next(one for one in entries if isinstance(one, Outboxed))
    record = replace(entry.record, body=bytes(BODY_BYTES))
    prefix = entry.stored[: len(entry.stored) - len(encode_record(entry.record))]
    value = outbox_value(entry.epoch, prefix + encode_record(record))
    assert walked(number, value, RECORDS) < RECORDS * BODY_BYTES // 3


def walked(number: int, value: bytes, count: int) -> int:
    """The most memory at once, of a log of so many records, each of them read into bytes of its own."""
    log = EndsRead(op=0, topic_id=b"t", start=0, end=count)
    procedure = walk(number, log)
    tracemalloc.start()
    answer: Any = None
    try:
        while True:
            request = procedure.send(answer)
            if isinstance(request, Fetch):
                answer = fetched(value, request.offset, count)
            else:
                answer = LeaseRead(
                    op=0,
                    resource=request.resource,
                    epoch=1,
                    owner="",
                    address="",
                    barrier_epoch=0,
                    barrier_offset=-1,
                )
    except StopIteration as done:
        standing = done.value
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(standing.placed) == count
    return most


def fetched(value: bytes, offset: int, end: int) -> Fetched:
    records = tuple(
        StoredRecord(offset=at, append_time=0, key=b"", value=bytes(bytearray(value)))
        for at in range(offset, min(offset + PAGE, end))
    )
    return Fetched(op=0, topic_id=b"t", start=0, end=end, records=records)
