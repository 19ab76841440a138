"""Overlays and reads in the store (pipeline.md §5): laid where they are reserved, lifted with their record, read in batches."""

import pytest

from qim.adapters.redis import codec
from qim.core.contract.entities import MembershipOp
from qim.core.ports.store_history import OverlaysRead, ReadOverlays
from qim.core.ports.store_message import ApplyOutbox, MarkedRefused, MarkRefused, OutboxApplied
from qim.core.ports.store_reads import HistoryItem
from tests.adapters.store.requests import (
    FOREVER,
    GROUP,
    SINGLE,
    Shard,
    applied,
    digest_of,
    grouped,
    marked,
    mid,
    single,
    step,
    stored_as,
)
from tests.adapters.store.servers import Store, ask

RECALL, DELETE = (0, 1), (7, 1)


def page(shard: Shard, user_id: int = 7, judged: tuple[int, ...] = (), **fields: object) -> object:
    return shard.history(user_id=user_id, judged=judged, **fields)


def laid(store: Store) -> list[bytes]:
    return sorted(key for key in store.dump() if key[:3] in (b"ov:", b"od:", b"wo:"))


@pytest.mark.parametrize("overlay", [RECALL, DELETE])
def test_it_counts_from_the_mark_on(store: Store, overlay: tuple[int, int]) -> None:
    shard = Shard(store)
    target, record = single(1), single(2, overlay=overlay)
    shard.reserve(target, record)
    shard.mark(marked(target, 1, 10))
    assert (page(shard).recalled, page(shard).deleted) == ((), ())
    shard.mark(marked(record, 2, 11))
    shown = page(shard)
    assert (shown.recalled, shown.deleted) == (((1,), ()) if overlay is RECALL else ((), (1,)))
    assert page(shard, 8).deleted == page(shard, 0).deleted == ()
    assert b"wo:" + (3).to_bytes(4, "big") not in store.dump()


@pytest.mark.parametrize("overlay", [RECALL, DELETE])
def test_a_refused_record_lifts_what_it_laid_and_nothing_else(
    store: Store, overlay: tuple[int, int]
) -> None:
    shard = Shard(store)
    first, second = single(2, overlay=overlay), single(3, overlay=overlay)
    shard.reserve(single(1), first, second)
    shard.mark(marked(single(1), 1, 10), marked(second, 3, 11))
    refuse = (marked(first, 2, 0),)
    for _ in range(2):
        assert shard.ask(MarkRefused, items=refuse) == MarkedRefused(op=shard.op)
    shown = page(shard)
    assert (*shown.recalled, *shown.deleted) == (1,)
    other = single(4, overlay=(overlay[0], 9))
    shard.reserve(other)
    shard.ask(MarkRefused, items=(marked(other, 4, 0),))
    shown = page(shard, judged=(9,))
    assert (*shown.recalled, *shown.deleted) == (1,)


@pytest.mark.parametrize("overlay", [RECALL, DELETE])
def test_restoring_equals_having_lived_it(store: Store, overlay: tuple[int, int]) -> None:
    shard = Shard(store)
    target, record = single(1), single(2, overlay=overlay)
    results = shard.reserve(target, record)
    shard.mark(marked(target, 1, 0), marked(record, 2, 1))
    lived = {key: held for key, held in store.dump().items() if key[:2] in (b"ov", b"od", b"ho")}
    assert [key[:3] for key in laid(store)] == [b"ov:" if overlay is RECALL else b"od:"]
    assert len(results) == 2
    store.flush()
    shard = Shard(store)
    records = (applied(target, 1, 0), applied(record, 2, 1))
    for _ in range(2):
        reply = shard.ask(
            ApplyOutbox, applied_from=0, applied_to=2, filter_epoch=1, records=records
        )
        assert reply == OutboxApplied(op=shard.op)
    again = {key: held for key, held in store.dump().items() if key[:2] in (b"ov", b"od", b"ho")}
    assert again == lived


def test_an_intent_that_was_never_outboxed_takes_its_overlay_with_it(store: Store) -> None:
    """The seq it had is another record's; what it laid must not hang on that one."""
    shard = Shard(store)
    shard.reserve(single(1), single(2, overlay=RECALL), single(3, overlay=DELETE))
    others = (applied(single(1), 1, 0), applied(single(8), 2, 1), applied(single(9), 3, 2))
    shard.ask(ApplyOutbox, applied_from=0, applied_to=3, filter_epoch=1, records=others)
    shown = page(shard)
    assert len(shown.stored) == 3
    assert (shown.recalled, shown.deleted) == ((), ())
    assert laid(store) == []


def test_an_intent_restored_from_its_own_record_counts(store: Store) -> None:
    shard = Shard(store)
    record = single(2, overlay=RECALL)
    shard.reserve(single(1), record)
    records = (applied(single(1), 1, 0), applied(record, 2, 1))
    shard.ask(ApplyOutbox, applied_from=0, applied_to=2, filter_epoch=1, records=records)
    assert page(shard).recalled == (1,)
    assert laid(store) == [b"ov:" + SINGLE]


def test_recalls_by_coordinates_agree_with_history(store: Store) -> None:
    shard = Shard(store).told_whole()
    Shard(store, shard=4).told_whole()
    record = single(3, overlay=RECALL)
    shard.reserve(single(1), single(2), record)
    names = ((3, SINGLE, 1), (3, SINGLE, 2), (4, SINGLE, 1), (3, GROUP, 1))
    assert ask(store, ReadOverlays(op=1, names=names)) == OverlaysRead(op=1, recalled=(0, 0, 3, 0))
    shard.mark(marked(single(1), 1, 0), marked(single(2), 2, 1), marked(record, 3, 2))
    assert ask(store, ReadOverlays(op=1, names=names)).recalled == (3, 0, 3, 0)
    assert page(shard).recalled == (1,)


def test_recalls_are_unknown_before_their_shards_open(store: Store) -> None:
    """A store that lost its tail still answers; only OPEN puts back what it lost."""
    names = ((3, SINGLE, 1), (4, GROUP, 1))
    shard = Shard(store)
    assert ask(store, ReadOverlays(op=1, names=names)).recalled == (None, None)
    shard.reserve(single(1))
    shard.mark(marked(single(1), 1, 0))
    records = (applied(single(2), 2, 1), applied(single(3), 3, 2))
    part = {"applied_from": 1, "applied_to": 2, "filter_epoch": 1, "records": records[:1]}
    shard.ask(ApplyOutbox, **part)
    assert ask(store, ReadOverlays(op=1, names=names)).recalled == (None, None)
    rest = {"applied_from": 2, "applied_to": 3, "filter_epoch": 1, "records": records[1:]}
    shard.ask(ApplyOutbox, **rest, whole=True)
    assert ask(store, ReadOverlays(op=1, names=names)).recalled == (0, None)


def test_recalls_are_unknown_again_in_another_run(store: Store) -> None:
    Shard(store).told_whole()
    read = ReadOverlays(op=1, names=((3, SINGLE, 1),))
    assert ask(store, read).recalled == (0,)
    raw = store.raw(*codec.encode(read))
    assert codec.decode(read, b"b" * 40, raw) == OverlaysRead(op=1, recalled=(None,))


# ---------------------------------------------------------------- the batched read


def test_many_conversations_in_one_script(store: Store) -> None:
    shard = Shard(store)
    shard.create(1, (1, 2))
    shard.change(2, step(2, MembershipOp.REMOVE, (2,)))
    shard.change(3, step(3, MembershipOp.ADD, (2, 5)))
    item = grouped(4, 3, digest_of(3))
    shard.reserve(single(5), single(6), item)
    shard.mark(marked(single(5), 1, 0), marked(single(6), 2, 1), marked(item, 4, 2))

    def asked(name: bytes, user: int, **fields: object) -> HistoryItem:
        given = {"low": 0, "high": FOREVER + 1, "newest_first": True, "limit": 9} | fields
        return HistoryItem(conversation_id=name, user_id=user, **given)  # type: ignore[arg-type]

    pages = shard.histories(
        asked(SINGLE, 1),
        asked(GROUP, 2),
        asked(b"no such conversa", 1),
        asked(SINGLE, 9, limit=1),
        asked(GROUP, 5, newest_first=False, limit=0),
    )
    assert [p.kind for p in pages] == [1, 2, 0, 1, 2]
    assert pages[0].users == (1, 2)
    assert pages[0].stored == (stored_as(single(6), 2, mid(6)), stored_as(single(5), 1, mid(5)))
    assert [p.intervals for p in pages] == [
        ((0, FOREVER),),
        ((0, 2), (2, FOREVER)),
        (),
        (),
        ((2, FOREVER),),
    ]
    assert [p.more for p in pages] == [False, False, False, True, True]
    assert [len(p.stored) for p in pages] == [2, 1, 0, 1, 0], "intents are not shown"
    assert [p.creator for p in pages] == [0, 1, 0, 0, 1]


def test_bytes_are_bounded_over_all_and_the_first_row_always_comes(store: Store) -> None:
    shard = Shard(store)
    shard.reserve(single(5), single(6))
    shard.mark(marked(single(5), 1, 0), marked(single(6), 2, 1))
    item = HistoryItem(conversation_id=SINGLE, low=0, high=9, newest_first=False, limit=9)
    size = len(stored_as(single(5), 1, mid(5)))
    for room, expected in ((0, (1, 0)), (size, (1, 0)), (2 * size, (2, 0)), (9 * size, (2, 2))):
        pages = shard.histories(item, item, bytes_max=room)
        assert tuple(len(page.stored) for page in pages) == expected
        assert tuple(page.more for page in pages) == tuple(count < 2 for count in expected)


def test_seqs_asked_besides(store: Store) -> None:
    shard = Shard(store)
    recall, delete = single(3, overlay=(0, 5)), single(4, overlay=(7, 5))
    shard.reserve(recall, delete)
    shard.mark(marked(recall, 1, 0), marked(delete, 2, 1))
    asked = page(shard, low=0, high=0, limit=0, judged=(4, 5, 6))
    assert (asked.stored, asked.recalled, asked.deleted) == ((), (5,), (5,))  # type: ignore[attr-defined]


def test_a_shard_that_an_older_writer_marked_whole_is_whole() -> None:
    """Before decision 0028 the mark was the run_id alone, and mailboxes are upgraded before writers."""
    read = ReadOverlays(op=1, names=((3, SINGLE, 1), (4, SINGLE, 1)))
    raw = [b"K", b"a" * 40, b"a" * 40 + b"." + b"c" * 40, b"", b""]
    both = OverlaysRead(op=1, recalled=(0, 0))
    assert codec.decode(read, b"a" * 40 + b"." + b"c" * 40, raw) == both
    other = codec.decode(read, b"a" * 40 + b"." + b"d" * 40, raw)
    assert other == OverlaysRead(op=1, recalled=(0, None))
