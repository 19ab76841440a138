"""Reserve, mark, refuse, look up: the commit pipeline's scripts on every store (docs: pipeline §1)."""

from msgspec.structs import replace

from qim.core.contract.entities import CommitState
from qim.core.ports.store_message import (
    Existing,
    Fresh,
    HeadsWritten,
    MarkedCommitted,
    MarkedRefused,
    MarkLost,
    MarkRefused,
    ReadPending,
    VersionMoved,
    WriteHeads,
)
from tests.adapters.store.requests import (
    GROUP,
    HOUR,
    NOW,
    SINGLE,
    Shard,
    grouped,
    key,
    marked,
    mid,
    single,
    stored_as,
)
from tests.adapters.store.servers import Store


def test_a_first_commit_gets_seq_1_and_records_the_chat(store: Store) -> None:
    shard = Shard(store)
    assert shard.reserve(single(5)) == (Fresh(conversation_seq=1, last_activity_id=mid(5)),)
    read = shard.membership(SINGLE)
    assert (read.kind, [m.user_id for m in read.version.members]) == (1, [1, 2])
    assert read.version.version == 0
    assert read.version.digest == b""
    assert shard.pending() == (stored_as(single(5), 1, mid(5)),)
    (fact,) = shard.facts()
    assert (fact.message_id, fact.state, fact.rebuilt, fact.outbox_offset) == (
        mid(5), CommitState.RECORDED, False, -1,
    )  # fmt: skip


def test_activity_never_goes_back(store: Store) -> None:
    shard = Shard(store)
    results = shard.reserve(single(9), single(4), single(3), single(20))
    assert [r.conversation_seq for r in results] == [1, 2, 3, 4]
    assert [r.last_activity_id for r in results] == [mid(9), mid(10), mid(11), mid(20)]
    assert shard.reserve(single(6))[0].last_activity_id == mid(21)


def test_a_dedupe_key_commits_once(store: Store) -> None:
    shard = Shard(store)
    item = single(5)
    shard.reserve(item)
    again = Existing(
        state=CommitState.RECORDED,
        request_digest=item.request_digest,
        message_id=mid(5),
        conversation_id=SINGLE,
        conversation_seq=1,
        last_activity_id=mid(5),
        sent_at=NOW,
        version=0,
        stored=stored_as(item, 1, mid(5)),
    )
    assert shard.reserve(replace(item, message_id=mid(6))) == (again,)
    assert shard.lookup(5, 6) == (again, None)
    assert shard.mark(marked(item, 1, 40)) == MarkedCommitted(op=shard.op)
    done = replace(again, state=CommitState.COMMITTED, stored=b"")
    assert shard.reserve(item) == (done,)
    assert shard.lookup(5) == (done,)
    assert shard.reserve(single(7))[0].conversation_seq == 2


def test_the_same_key_twice_in_one_batch(store: Store) -> None:
    shard = Shard(store)
    first, second, third = shard.reserve(single(5), single(5), single(6))
    assert first == Fresh(conversation_seq=1, last_activity_id=mid(5))
    assert isinstance(second, Existing)
    assert second.stored == stored_as(single(5), 1, mid(5))
    assert third.conversation_seq == 2


def test_one_moved_version_spoils_nothing(store: Store) -> None:
    shard = Shard(store)
    results = shard.reserve(single(5), grouped(6, 1, b"x" * 16), single(7))
    assert results[1] == VersionMoved(version=0, digest=b"")
    assert [results[0].conversation_seq, results[2].conversation_seq] == [1, 2]
    assert shard.lookup(6) == (None,)


def test_a_single_chat_that_exists_needs_no_users(store: Store) -> None:
    shard = Shard(store)
    assert shard.reserve(single(4, single_users=None)) == (VersionMoved(version=0, digest=b""),)
    shard.reserve(single(5))
    assert shard.reserve(single(6, single_users=None))[0].conversation_seq == 2
    assert shard.reserve(single(7))[0].conversation_seq == 3


def test_the_dedupe_window_is_judged_by_the_time_handed_in(store: Store) -> None:
    shard = Shard(store)
    committed, recorded = single(5), single(6)
    shard.reserve(committed, recorded)
    shard.mark(marked(committed, 1, 1))
    last = NOW + HOUR + 2 * HOUR
    assert None not in shard.lookup(5, 6, now_wall=last)
    assert shard.lookup(5, now_wall=last + 1) == (None,)
    kept = shard.lookup(6, now_wall=last + 1)[0]
    assert kept.stored, "an intent counts until it is settled"
    later = single(5, message_id=mid(50), not_after=last + 2 * HOUR)
    assert shard.reserve(later, now_wall=last + 1)[0].conversation_seq == 3


def test_entries_past_the_window_are_dropped_a_few_at_a_time(store: Store) -> None:
    shard = Shard(store)
    items = [single(n) for n in range(1, 41)]
    shard.reserve(*items)
    shard.mark(*[marked(item, n, n) for n, item in enumerate(items[:39], start=1)])
    far = NOW + 4 * HOUR
    before = sum(k.startswith(b"d:") for k in store.dump())
    shard.reserve(single(100, not_after=far + HOUR), now_wall=far)
    after = sum(k.startswith(b"d:") for k in store.dump())
    assert before + 1 - 9 <= after < before
    for number in range(101, 120):
        shard.reserve(single(number, not_after=far + HOUR), now_wall=far)
    dump = store.dump()
    kept = {k for k in dump if k.startswith(b"d:")}
    assert kept == {b"d:" + key(n) for n in [40, *range(100, 120)]}, "a pending intent stays"
    assert len(dump[b"dx:\0\0\0\3"][1]) == len(kept)


def test_a_reused_key_outlives_its_first_index_row(store: Store) -> None:
    shard = Shard(store)
    shard.reserve(single(5))
    shard.mark(marked(single(5), 1, 1))
    far = NOW + 4 * HOUR
    shard.reserve(single(5, message_id=mid(50), not_after=far + HOUR), now_wall=far)
    shard.reserve(single(6, not_after=far + HOUR), now_wall=far)
    assert shard.lookup(5, now_wall=far)[0].message_id == mid(50)


def test_mark_moves_applied_and_never_back(store: Store) -> None:
    shard = Shard(store)
    items = [single(n) for n in (5, 6, 7)]
    shard.reserve(*items)
    shard.mark(marked(items[0], 1, 10), marked(items[1], 2, 11))
    assert Shard(store, epoch=8).opened.applied == 12
    shard = Shard(store, epoch=9)
    assert shard.opened.filter_epoch == 7
    shard.mark(marked(items[2], 3, 5))
    again = Shard(store, epoch=9).opened
    assert (again.applied, again.filter_epoch) == (12, 7)
    assert again.hlc_floor == mid(7)
    assert [f.state for f in shard.facts()] == [CommitState.COMMITTED] * 3
    assert [f.outbox_offset for f in shard.facts()] == [10, 11, 5]
    assert shard.pending() == ()


def test_mark_is_idempotent_and_demands_the_intent(store: Store) -> None:
    shard = Shard(store)
    shard.reserve(single(5), single(6))
    shard.mark(marked(single(5), 1, 10))
    before = store.dump()
    assert isinstance(shard.mark(marked(single(5), 1, 10)), MarkedCommitted)
    assert store.dump() == before
    other = replace(marked(single(6), 2, 11), message_id=mid(99))
    assert shard.mark(marked(single(6), 2, 11), other) == MarkLost(op=shard.op, index=1)
    assert shard.mark(marked(single(77), 1, 1)) == MarkLost(op=shard.op, index=0)
    assert store.dump() == before, "a lost mark writes nothing"
    assert isinstance(shard.mark(applied_to=30), MarkedCommitted)
    assert Shard(store, epoch=8).opened.applied == 30


def test_refused_intents_leave_every_reader(store: Store) -> None:
    shard = Shard(store)
    shard.reserve(single(5), single(6))
    refusal = (marked(single(5), 1, -1),)
    assert shard.ask(MarkRefused, items=refusal) == MarkedRefused(op=shard.op)
    before = store.dump()
    assert isinstance(shard.ask(MarkRefused, items=refusal), MarkedRefused)
    assert store.dump() == before
    assert len(shard.pending()) == 1
    assert shard.history().stored == ()
    assert shard.facts()[0].state == CommitState.REFUSED
    assert shard.lookup(5)[0].state == CommitState.REFUSED
    assert shard.reserve(single(5))[0].state == CommitState.REFUSED
    assert shard.mark(marked(single(5), 1, 3)) == MarkLost(op=shard.op, index=0)
    both = (marked(single(6), 2, -1), marked(single(8), 2, -1))
    assert shard.ask(MarkRefused, items=both) == MarkLost(op=shard.op, index=1)
    assert len(shard.pending()) == 1


def test_pending_pages_in_conversation_order(store: Store) -> None:
    shard = Shard(store)
    other = b"a" * 16
    shard.reserve(single(1), single(2, conversation_id=other), single(3), single(4))
    first = shard.ask(ReadPending, after=b"", limit=3)
    assert [row[:8][-1] for row in first.stored] == [1, 1, 2]
    assert first.more
    rest = shard.ask(ReadPending, after=first.last, limit=3)
    assert (len(rest.stored), rest.more) == (1, False)
    end = shard.ask(ReadPending, after=rest.last, limit=3)
    assert (end.stored, end.last, end.more) == ((), rest.last, False)


def test_history_leaves_out_pending_and_tells_more_exactly(store: Store) -> None:
    shard = Shard(store)
    items = [single(n) for n in range(1, 11)]
    shard.reserve(*items)
    settled = [1, 2, 4, 5, 6, 9]
    shard.mark(*[marked(items[n - 1], n, n) for n in settled])

    def seqs(**fields: object) -> tuple[list[int], bool]:
        read = shard.history(**fields)
        return [int.from_bytes(row[:8], "big") for row in read.stored], read.more

    assert seqs() == (settled, False)
    assert seqs(limit=6) == (settled, False)
    assert seqs(limit=5) == (settled[:5], True)
    assert seqs(limit=2, newest_first=True) == ([9, 6], True)
    assert seqs(low=2, high=9) == ([4, 5, 6], False)
    assert seqs(low=2, high=9, limit=3, newest_first=True) == ([6, 5, 4], False)
    assert seqs(low=9) == ([], False)
    assert seqs(low=0, high=1 << 64, limit=0) == ([], True)
    assert shard.history().floor == 0


def test_heads_only_go_forward(store: Store) -> None:
    shard = Shard(store)
    shard.reserve(single(5))
    head = (SINGLE, 3, mid(7), mid(6))
    assert shard.ask(WriteHeads, heads=(head, (GROUP, 1, mid(1), mid(1)))) == HeadsWritten(
        op=shard.op
    )
    before = store.dump()
    shard.ask(WriteHeads, heads=((SINGLE, 2, mid(9), mid(9)),))
    assert store.dump() == before
