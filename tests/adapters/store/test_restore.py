"""OPEN (d): the outbox is the truth and restoring is idempotent from any earlier state (docs: pipeline §1.6)."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from qim.core.contract.entities import CommitState
from qim.core.ports.completion import Fenced
from qim.core.ports.store_audit import (
    AdvanceCoverage,
    CoverageAdvanced,
    CoverageOpened,
    OpenCoverage,
)
from qim.core.ports.store_message import AppliedRecord, ApplyOutbox, Existing, OutboxApplied
from qim.core.ports.store_reads import ReadBodies
from qim.core.ports.store_source import ReadFacts
from tests.adapters.store.requests import (
    HOUR,
    MARKER,
    NOW,
    SINGLE,
    Shard,
    applied,
    key,
    marked,
    mid,
    single,
    stored_as,
)
from tests.adapters.store.servers import Store, ask

RECORDS = tuple(applied(single(10 + n), n, 100 + n) for n in range(1, 6))


def restore(
    shard: Shard, low: int, high: int, records: Sequence[AppliedRecord], **other: object
) -> None:
    fields = {"filter_epoch": 5} | other
    reply = shard.ask(
        ApplyOutbox, applied_from=low, applied_to=high, records=tuple(records), **fields
    )
    assert reply == OutboxApplied(op=shard.op)


def test_an_empty_store_is_rebuilt(store: Store) -> None:
    shard = Shard(store)
    restore(shard, 0, 106, RECORDS)
    assert shard.history().stored == tuple(record.stored for record in RECORDS)
    again = Shard(store, epoch=8).opened
    assert (again.applied, again.filter_epoch, again.hlc_floor) == (106, 5, mid(15))
    shard = Shard(store, epoch=8)
    assert all(f.rebuilt and f.state == CommitState.COMMITTED for f in shard.facts())
    assert [f.outbox_offset for f in shard.facts()] == [101, 102, 103, 104, 105]
    found = shard.lookup(11)[0]
    assert (found.state, found.conversation_seq, found.message_id) == (4, 1, mid(11))
    assert [m.user_id for m in shard.membership(SINGLE).version.members] == [1, 2]
    assert shard.reserve(single(3))[0].conversation_seq == 6
    assert shard.reserve(single(4))[0].last_activity_id == mid(17)


@pytest.mark.parametrize("survived", range(6))
def test_from_any_prefix_of_what_was_lived(store: Store, survived: int) -> None:
    """The store kept the first ``survived`` commits, half of them marked; the outbox has all five."""
    shard = Shard(store)
    for n in range(1, survived + 1):
        shard.reserve(single(10 + n))
    for n in range(1, survived // 2 + 1):
        shard.mark(marked(single(10 + n), n, 100 + n))
    low = 101 + survived // 2 if survived >= 2 else 0
    restore(shard, low, 106, [r for r in RECORDS if r.offset >= low])
    assert shard.pending() == ()
    assert shard.history().stored == tuple(record.stored for record in RECORDS)
    assert {f.message_id: f.rebuilt for f in shard.facts()} == {
        mid(10 + n): n > survived for n in range(1, 6)
    }, "a fact written when its record was RECORDED stays evidence"
    assert [f.outbox_offset for f in shard.facts()] == [101, 102, 103, 104, 105]
    assert all(found.state == CommitState.COMMITTED for found in shard.lookup(*range(11, 16)))
    before = store.dump()
    restore(shard, low, 106, RECORDS)
    assert store.dump() == before
    assert all(isinstance(r, Existing) for r in shard.reserve(single(11), single(15)))


def test_an_intent_in_the_way_of_a_seq_goes(store: Store) -> None:
    shard = Shard(store)
    shard.reserve(single(50), single(51))
    restore(shard, 0, 106, RECORDS[:1])
    assert shard.lookup(50) == (None,)
    assert shard.pending() == (stored_as(single(51), 2, mid(51)),)
    assert shard.history().stored == (RECORDS[0].stored,)
    assert [f.message_id for f in shard.facts()] == [mid(11), mid(51)]


def test_an_intent_in_the_way_of_a_dedupe_key_goes(store: Store) -> None:
    shard = Shard(store)
    shard.reserve(single(40), replace(single(50), dedupe_key=key(11)))
    restore(shard, 0, 106, RECORDS[:1])
    assert shard.lookup(11)[0].message_id == mid(11)
    assert shard.pending() == (), "seq 1 was in the way too"
    assert shard.history().stored == (RECORDS[0].stored,)


def test_past_the_window_no_dedupe_entry_comes_back(store: Store) -> None:
    shard = Shard(store)
    shard.reserve(single(9), single(12))
    shard.mark(marked(single(9), 1, 3), applied_to=0)
    far = NOW + 4 * HOUR
    restore(shard, 0, 106, RECORDS, now_wall=far)
    kept = {k for k in store.dump() if k.startswith(b"d:")}
    assert kept == {b"d:" + key(9), b"d:" + key(12)}, (
        "what stood as an intent is settled, not left pending"
    )
    assert shard.pending() == ()
    assert len(shard.history().stored) == 6, "a reused seq shows as two rows"


def test_what_was_applied_is_not_applied_again(store: Store) -> None:
    shard = Shard(store)
    restore(shard, 0, 106, RECORDS)
    before = store.dump()
    restore(shard, 0, 50, [applied(single(90), 9, 49)], filter_epoch=1)
    assert store.dump() == before


def test_coverage_drops_facts_for_good(store: Store) -> None:
    shard = Shard(store)
    restore(shard, 0, 106, RECORDS)
    reply = shard.cover(covered_to=104, drop_facts=(mid(11), mid(12)))
    assert reply == CoverageAdvanced(op=2)
    assert [f.message_id for f in shard.facts()] == [mid(13), mid(14), mid(15)]
    shard.cover(covered_to=1, drop_facts=())
    shard.cover(covered_to=104, drop_facts=(mid(13),))
    restore(shard, 106, 107, [RECORDS[2], applied(single(16), 6, 106)])
    assert [f.message_id for f in shard.facts()] == [mid(14), mid(15), mid(16)]


def test_a_zombie_auditor_drops_no_fact_and_moves_no_cursor(store: Store) -> None:
    """Its successor may have found the fact to be all that is left of a message, and tells it until it is resolved."""
    shard = Shard(store)
    restore(shard, 0, 106, RECORDS)
    zombie = AdvanceCoverage(
        op=9,
        partition=3,
        epoch=7,
        incarnation=shard.incarnation,
        covered_to=106,
        drop_facts=(mid(11),),
    )
    opening = OpenCoverage(op=8, partition=3, epoch=7, fresh_key=MARKER)
    assert ask(store, opening) == CoverageOpened(op=8, incarnation=shard.incarnation, covered_to=0)
    shard.cover(covered_to=102, drop_facts=(), epoch=8)
    before = store.dump()
    assert ask(store, zombie) == Fenced(op=9, epoch=8)
    assert ask(store, opening) == Fenced(op=8, epoch=8)
    assert store.dump() == before
    found = ask(store, replace(opening, epoch=9))
    assert found.covered_to == 102


def test_the_coverages_of_two_partitions_are_fenced_apart(store: Store) -> None:
    shard, other = Shard(store), Shard(store, shard=4)
    shard.cover(covered_to=5, drop_facts=(), epoch=8)
    assert other.cover(covered_to=5, drop_facts=(), epoch=7) == CoverageAdvanced(op=2)
    assert Shard(store, epoch=7).opened.applied == 0, "nor do they fence a writer"


def test_facts_page_in_message_id_order(store: Store) -> None:
    shard = Shard(store)
    shard.reserve(*[single(n) for n in (9, 3, 7, 5)])
    first = ask(store, ReadFacts(op=1, shard=3, after=b"", limit=3))
    assert ([f.message_id for f in first.facts], first.more) == ([mid(3), mid(5), mid(7)], True)
    rest = ask(store, ReadFacts(op=1, shard=3, after=mid(7), limit=3))
    assert ([f.message_id for f in rest.facts], rest.more) == ([mid(9)], False)
    assert rest.facts[0].conversation_seq == 1
    assert ask(store, ReadFacts(op=1, shard=4, after=b"", limit=3)).facts == ()


def test_bodies_by_coordinates(store: Store) -> None:
    shard = Shard(store)
    shard.reserve(single(5), single(6))
    names = ((SINGLE, 1, mid(5)), (SINGLE, 1, mid(6)), (SINGLE, 3, mid(6)), (b"x" * 16, 1, mid(5)))
    read = ask(store, ReadBodies(op=1, names=names))
    assert read.stored == (stored_as(single(5), 1, mid(5)), None, None, None)


def test_seq_never_goes_back_below_a_pending_intent(store: Store) -> None:
    shard = Shard(store)
    shard.reserve(*[single(10 + n) for n in range(1, 6)])
    restore(shard, 0, 104, RECORDS[:3])
    assert [row[:8][-1] for row in shard.pending()] == [4, 5]
    (fresh,) = shard.reserve(single(3))
    assert (fresh.conversation_seq, fresh.last_activity_id) == (6, mid(16))
