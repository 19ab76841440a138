"""What stands downstream without what it should have come from: dispatches and facts without their record."""

import pytest
from msgspec.structs import replace

from qim.core.audit import OrphanKind, Verdict
from qim.core.contract.entities import NO_SOURCE, CommitState
from qim.core.contract.ids import dispatch_id
from qim.core.ports.log import Topic
from tests.core.audit.spoiling import GARBAGE, only, orphans
from tests.core.audit.toy import Toy
from tests.core.audit.toy_services import PARTITIONS


def test_a_dispatch_nobody_can_read(toy: Toy) -> None:
    offset = toy.dispatch(2).append(GARBAGE, b"m" * 16)
    assert orphans(toy.audit()) == [(OrphanKind.DEAD_LETTERED, -1, offset, 2)]


def test_a_dispatch_whose_source_is_another_record(toy: Toy) -> None:
    sent = toy.send()
    offset = toy.append_dispatch(0, replace(sent.dispatches[0], source_offset=0))
    toy.passed(0, offset)
    assert orphans(toy.audit()) == [(OrphanKind.DISPATCH_WITHOUT_RECORD, 0, offset, 0)]


@pytest.mark.parametrize(
    ("kind", "partition", "changes"),
    [
        (OrphanKind.DISPATCH_WITHOUT_RECORD, PARTITIONS, {"source_partition": PARTITIONS}),
        (OrphanKind.DISPATCH_WITHOUT_RECORD, 0, {"dispatch_id": b"i" * 16}),
        (OrphanKind.WRONG_SHARD_SET, 0, {"shard": 1}),
        (OrphanKind.WRONG_SHARD_SET, -1, {"shard": 1, "source_partition": NO_SOURCE}),
        (OrphanKind.WRONG_DIGEST, 0, {"sender_id": 77}),
    ],
)
def test_a_dispatch_that_is_not_its_records(
    toy: Toy, kind: OrphanKind, partition: int, changes: dict[str, object]
) -> None:
    sent = toy.send()
    offset = toy.append_dispatch(0, replace(sent.dispatches[0], **changes))
    toy.passed(0, offset)
    assert orphans(toy.audit()) == [(kind, partition, offset, 0)]


def test_a_dispatch_to_a_shard_its_record_does_not_reach(toy: Toy) -> None:
    """The receipt is right, and yet a copy went elsewhere: a leak."""
    sent = toy.send()
    record = sent.record
    stray = replace(sent.dispatches[0], shard=3, dispatch_id=dispatch_id(record.message_id, 3))
    offset = toy.append_dispatch(3, stray)
    toy.passed(3, offset)
    assert orphans(toy.audit()) == [(OrphanKind.WRONG_SHARD_SET, 0, offset, 3)]


def test_a_dispatch_of_an_ineffective_record(toy: Toy) -> None:
    """Somebody fanned out what a zombie appended."""
    toy.barrier(5)
    record = toy.record()
    offset = toy.publish(record, epoch=4)
    sent = toy.fan_out(record, 0, offset)
    for shard in (0, 1):
        toy.materialise(sent, shard)
    found = orphans(toy.audit())
    kind = OrphanKind.DISPATCH_WITHOUT_RECORD
    assert found == [(kind, 0, sent.place(0), 0), (kind, 0, sent.place(1), 1)]


def test_a_dispatch_that_points_at_a_barrier_or_behind_a_shortened_log(toy: Toy) -> None:
    sent = toy.send()
    barrier = toy.barrier(1)
    offset = toy.append_dispatch(0, replace(sent.dispatches[0], source_offset=barrier))
    toy.passed(0, offset)
    assert orphans(toy.audit()) == [(OrphanKind.DISPATCH_WITHOUT_RECORD, 0, offset, 0)]

    def shorten(request: object) -> None:
        if type(request).__name__ == "Fetch" and getattr(request, "topic", None) is Topic.DISPATCH:
            del toy.outbox().values[barrier:]

    toy.trouble = shorten
    found = orphans(toy.audit())
    assert (OrphanKind.DISPATCH_WITHOUT_RECORD, 0, offset, 0) in found


def test_a_committed_fact_whose_record_is_not_there(toy: Toy) -> None:
    sent = toy.send()
    fact = toy.sources[0].facts[sent.record.message_id]
    lost = replace(fact, message_id=b"lost" * 4, outbox_offset=0)
    toy.sources[0].facts[lost.message_id] = lost
    one = only(toy.audit())
    assert (one.kind, one.offset, one.message_id) == (
        OrphanKind.FACT_WITHOUT_RECORD,
        0,
        b"lost" * 4,
    )


@pytest.mark.parametrize(
    "change",
    [
        {"rebuilt": True},
        {"state": CommitState.RECORDED},
        {"outbox_offset": -1},
    ],
)
def test_facts_that_are_no_evidence(toy: Toy, change: dict[str, object]) -> None:
    sent = toy.send()
    fact = toy.sources[0].facts[sent.record.message_id]
    other = replace(fact, message_id=b"other" + bytes(11), outbox_offset=0)
    toy.sources[0].facts[other.message_id] = replace(other, **change)
    assert toy.audit().verdict is Verdict.CLEAN


def test_a_committed_fact_whose_record_is_not_effective(toy: Toy) -> None:
    toy.barrier(5)
    record = toy.record()
    offset = toy.publish(record, epoch=4)
    any_fact = next(iter(toy.sources[0].facts.values()))
    fact = replace(any_fact, message_id=record.message_id, outbox_offset=offset)
    toy.sources[0].facts[fact.message_id] = fact
    assert orphans(toy.audit()) == [(OrphanKind.FACT_WITHOUT_RECORD, 0, offset, -1)]
