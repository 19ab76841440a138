"""The archiver's position, hot trim, restore from the archive, recalls by coordinates (docs: pipeline §§1.8, 5)."""

from typing import Any

from msgspec.structs import replace

from qim.core.contract.entities import (
    Interval,
    Member,
    MemberHistoryRow,
    MembershipOp,
    MembershipVersion,
)
from qim.core.ports.archive import ArchivedConversation
from qim.core.ports.completion import Fenced
from qim.core.ports.log import Position
from qim.core.ports.store_history import (
    ArchiveCommitted,
    ArchivePositionRead,
    CommitArchive,
    ConversationsRestored,
    HotTrimmed,
    OpenArchive,
    OverlaysRead,
    ReadArchivePosition,
    ReadOverlays,
    RestoreConversations,
    TrimHot,
)
from qim.core.ports.store_message import ApplyOutbox, Fresh, OpenShard
from qim.core.ports.store_reads import ReadVersions
from tests.adapters.store.requests import (
    FOREVER,
    GROUP,
    HOUR,
    MARKER,
    NOW,
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

CREATE, ADD, REMOVE = MembershipOp.CREATE, MembershipOp.ADD, MembershipOp.REMOVE


def at(offset: int) -> Position:
    return Position(b"topic-id", offset, b"%016d" % offset)


class Archiver:
    """The archiver of partition 3 under an epoch."""

    def __init__(self, store: Store, epoch: int = 7) -> None:
        self.store, self.epoch = store, epoch
        self.opened = ask(store, OpenArchive(op=1, partition=3, epoch=epoch, fresh_key=MARKER))

    def commit(self, low: int, high: int, filter_epoch: int = 2) -> Any:
        return ask(
            self.store,
            CommitArchive(
                op=2,
                partition=3,
                epoch=self.epoch,
                incarnation=self.opened.incarnation,
                from_offset=low,
                to=at(high),
                filter_epoch=filter_epoch,
            ),
        )

    def watermark(self, partition: int = 3) -> int:
        read = ask(self.store, ReadArchivePosition(op=3, partition=partition))
        assert isinstance(read, ArchivePositionRead)
        return read.offset


def test_position_and_watermark_move_together_and_only_forward(store: Store) -> None:
    archiver = Archiver(store)
    assert (archiver.opened.position, archiver.opened.filter_epoch) == (None, 0)
    assert (archiver.watermark(), archiver.watermark(4)) == (0, 0)
    assert archiver.commit(0, 40) == ArchiveCommitted(op=2)
    assert archiver.commit(0, 40) == ArchiveCommitted(op=2), "a retry finds it standing"
    before = store.dump()
    for low, high in ((0, 41), (39, 41), (40, 39), (41, 42), (40, 0)):
        assert archiver.commit(low, high) == Fenced(op=2, epoch=0)
    assert store.dump() == before
    assert archiver.commit(40, 300, filter_epoch=9) == ArchiveCommitted(op=2)
    again = Archiver(store, 8).opened
    assert (again.position, again.filter_epoch, archiver.watermark()) == (at(300), 9, 300)
    assert archiver.commit(300, 301) == Fenced(op=2, epoch=8)


# ------------------------------------------------------------ trim


def hot(store: Store, count: int = 6) -> Shard:
    """Seqs 1.. of a single chat at offsets 101.., sent an hour apart, the last reserved and not yet marked."""
    shard = Shard(store)
    items = [single(n, sent_at=NOW + n * HOUR) for n in range(1, count + 2)]
    shard.reserve(*items)
    shard.mark(*[marked(items[n - 1], n, 100 + n) for n in range(1, count + 1)])
    return shard


def trim(shard: Shard, before_wall: int = NOW + 100 * HOUR, limit: int = 100) -> tuple[int, bool]:
    reply = shard.ask(TrimHot, before_wall=before_wall, limit=limit)
    assert isinstance(reply, HotTrimmed), reply
    return reply.removed, reply.more


def seqs(page: Any) -> list[int]:
    return [int.from_bytes(stored[:8], "big") for stored in page.stored]


def test_nothing_is_trimmed_before_the_archive_says_so(store: Store) -> None:
    shard = hot(store)
    before = store.dump()
    assert trim(shard) == (0, False)
    Archiver(store).commit(0, 101)
    assert trim(shard) == (0, False), "offset 101 is not below the watermark 101"
    assert {k: v for k, v in store.dump().items() if not k.startswith(b"as:")} == before


def test_trim_stops_at_the_watermark_at_the_window_and_at_the_limit(store: Store) -> None:
    shard = hot(store)
    archiver = Archiver(store)
    archiver.commit(0, 104)
    assert trim(shard, before_wall=NOW + HOUR) == (0, False), "sent_at is not before it"
    assert trim(shard, before_wall=NOW + 2 * HOUR) == (1, False)
    assert (seqs(shard.history()), shard.history().floor) == ([2, 3, 4, 5, 6], 2)
    assert trim(shard, limit=1) == (1, True)
    assert trim(shard, limit=1) == (1, False)
    assert (seqs(shard.history()), shard.history().floor) == ([4, 5, 6], 4)
    assert trim(shard) == (0, False)
    archiver.commit(104, 200)
    assert trim(shard) == (3, False)
    assert (seqs(shard.history()), shard.history().floor) == ([], 7)
    assert len(shard.pending()) == 1, "what is pending stays"
    shard.mark(marked(single(7), 7, 107))
    assert seqs(shard.history()) == [7]


def test_trim_touches_only_its_conversation_and_seq(store: Store) -> None:
    shard = Shard(store)
    twin = SINGLE[:-1] + b"\xff"
    items = [single(1), single(2, conversation_id=twin), single(3), single(4, conversation_id=twin)]
    shard.reserve(*items)
    places = ((1, 250), (1, 251), (2, 255), (2, 256))
    shard.mark(*[marked(item, *place) for item, place in zip(items, places, strict=True)])
    Archiver(store).commit(0, 256)
    assert trim(shard) == (3, False)
    assert (seqs(shard.history()), shard.history().floor) == ([], 3)
    other = shard.history(conversation_id=twin)
    assert (seqs(other), other.floor) == ([2], 2)


def test_a_floor_is_never_lowered(store: Store) -> None:
    shard = hot(store)
    restore(shard, replace(CHAT, greatest_seq=50))
    Archiver(store).commit(0, 300)
    assert trim(shard) == (6, False)
    assert shard.history().floor == 51


# ------------------------------------------------------------ overlays


def test_a_recall_counts_once_its_record_is_settled(store: Store) -> None:
    shard = Shard(store).told_whole()
    recall = single(2, overlay=(0, 1))
    shard.reserve(single(1), recall)
    shard.mark(marked(single(1), 1, 10))

    def recalled(*names: tuple[int, bytes, int]) -> tuple[int | None, ...]:
        read = ask(store, ReadOverlays(op=4, names=names))
        assert isinstance(read, OverlaysRead)
        return read.recalled

    assert recalled((3, SINGLE, 1)) == (0,), "still pending"
    shard.mark(marked(recall, 2, 11))
    names = ((3, SINGLE, 1), (3, SINGLE, 2), (3, GROUP, 1), (3, SINGLE, 1))
    assert recalled(*names) == (2, 0, 0, 2)
    assert recalled() == ()


# ------------------------------------------------------------ restore

CHAT = ArchivedConversation(
    conversation_id=SINGLE,
    conversation_kind=1,
    greatest_seq=9,
    last_activity_id=mid(900),
    single_users=(1, 2),
    versions=(),
    everyone=(),
    creator=0,
    name="",
    meta=b"",
    overlays=((3, 4, 0), (5, 6, 2)),
)


def intervals(*pairs: tuple[int, int]) -> tuple[Interval, ...]:
    return tuple(Interval(*pair) for pair in pairs)


def group_after(version: int) -> ArchivedConversation:
    """GROUP as its first ``version`` steps left it: create (3, 1) at 1, add (9, 2) at 3, remove 3 at 5, add 3 at 7."""
    left = {1: FOREVER, 2: FOREVER, 3: 5, 4: 5}[version]
    again = ((6, FOREVER),) if version == 4 else ()
    known: dict[int, tuple[tuple[int, int], ...]] = {1: ((0, FOREVER),), 3: ((0, left), *again)}
    if version > 1:
        known |= {2: ((2, FOREVER),), 9: ((2, FOREVER),)}
    present = ((1, 3), (1, 2, 3, 9), (1, 2, 9), (1, 2, 3, 9))
    return ArchivedConversation(
        conversation_id=GROUP,
        conversation_kind=2,
        greatest_seq=2 * version - 1,
        last_activity_id=mid(version),
        single_users=None,
        versions=tuple(
            MembershipVersion(
                conversation_id=GROUP,
                version=v,
                digest=digest_of(v),
                control_seq=2 * v - 1,
                members=tuple(Member(user, intervals(*known[user])) for user in present[v - 1]),
            )
            for v in range(1, version + 1)
        ),
        everyone=tuple(MemberHistoryRow(user, known[user]) for user in sorted(known)),
        creator=1,
        name="name ü",
        meta=b"\x00meta",
        overlays=(),
    )


STEPS = (
    step(1, CREATE, (3, 1)),
    step(2, ADD, (9, 2)),
    step(3, REMOVE, (3,)),
    step(4, ADD, (3,)),
)


def grow(shard: Shard, first: int, last: int) -> None:
    """The same history by requests: a message behind each step."""
    for version in range(first, last + 1):
        shard.change(2 * version - 1, STEPS[version - 1])
        shard.reserve(grouped(2 * version, version, digest_of(version)))


def restore(shard: Shard, *conversations: ArchivedConversation, applied_to: int = 0) -> None:
    reply = shard.ask(RestoreConversations, conversations=conversations, applied_to=applied_to)
    assert isinstance(reply, ConversationsRestored), reply


def group_of(shard: Shard) -> tuple[Any, ...]:
    """All that reads tell of the group."""
    read = shard.membership()
    names = tuple((3, GROUP, v, digest_of(v)) for v in range(1, 6))
    versions = ask(shard.store, ReadVersions(op=1, names=names)).versions
    return (read.kind, read.version, read.everyone, read.creator, read.name, read.meta, versions)


def test_an_empty_store_gets_versions_and_intervals_back(store: Store) -> None:
    shard = Shard(store)
    grow(shard, 1, 4)
    wanted = group_of(shard)
    store.flush()
    shard = Shard(store)
    restore(shard, group_after(4))
    assert group_of(shard) == wanted
    before = store.dump()
    restore(shard, group_after(4))
    assert store.dump() == before


def test_a_restored_group_goes_on(store: Store) -> None:
    shard = Shard(store)
    restore(shard, replace(group_after(3), greatest_seq=6))
    assert shard.change(7, STEPS[3]) == Fresh(conversation_seq=7, last_activity_id=mid(7))
    assert shard.membership().everyone == group_after(4).everyone
    assert shard.history(conversation_id=GROUP).floor == 7


def test_restoring_over_what_stands_keeps_the_newer(store: Store) -> None:
    for first, archived in ((2, 4), (4, 2), (3, 3), (1, 4)):
        store.flush()
        shard = Shard(store)
        grow(shard, 1, max(first, archived))
        wanted = group_of(shard)[:-1]
        versions = [v for v in group_of(shard)[-1] if v is not None]
        store.flush()
        shard = Shard(store)
        grow(shard, 1, first)
        restore(shard, group_after(archived))
        assert group_of(shard)[:-1] == wanted, (first, archived)
        assert [v for v in group_of(shard)[-1] if v is not None] == versions, (first, archived)


def test_pages_in_any_mixture_give_the_same_group(store: Store) -> None:
    shard = Shard(store)
    grow(shard, 1, 4)
    wanted = group_of(shard)
    store.flush()
    shard = Shard(store)
    for version in (1, 3, 2, 4, 1):
        restore(shard, group_after(version))
    assert group_of(shard) == wanted, "slots were given when fewer were known"


def test_a_single_chat_with_its_overlays(store: Store) -> None:
    shard = Shard(store)
    restore(shard, CHAT, group_after(2))
    page = shard.history(user_id=2, judged=(3, 4, 5))
    assert (page.kind, page.users, page.floor) == (1, (1, 2), 10)
    assert (page.recalled, page.deleted, page.intervals) == ((3,), (5,), ((0, FOREVER),))
    assert shard.history(user_id=1, judged=(5,)).deleted == ()
    fresh = shard.reserve(single(1))[0]
    assert (fresh.conversation_seq, fresh.last_activity_id) == (10, mid(901))
    assert shard.history().stored == (), "it is pending"
    assert shard.pending() == (stored_as(single(1), 10, mid(901)),)


def test_restore_raises_and_never_lowers(store: Store) -> None:
    shard = Shard(store)
    restore(shard, CHAT)
    before = store.dump()
    restore(shard, replace(CHAT, greatest_seq=8, last_activity_id=mid(899), overlays=()))
    assert store.dump() == before
    restore(shard, replace(CHAT, greatest_seq=300, last_activity_id=mid(70), overlays=()))
    assert shard.history().floor == 301
    fresh = shard.reserve(single(1))[0]
    assert (fresh.conversation_seq, fresh.last_activity_id) == (301, mid(901))


def test_applied_moves_with_the_last_page_only(store: Store) -> None:
    shard = Shard(store)

    def reopened() -> Any:
        return ask(store, OpenShard(op=9, shard=3, epoch=7, fresh_key=MARKER))

    restore(shard, CHAT)
    assert (reopened().applied, reopened().hlc_floor) == (0, mid(900))
    restore(shard, applied_to=101)
    assert (reopened().applied, reopened().hlc_floor) == (101, mid(900))
    restore(shard, replace(CHAT, last_activity_id=mid(902)), applied_to=55)
    assert (reopened().applied, reopened().hlc_floor) == (101, mid(902))
    shard.ask(
        ApplyOutbox,
        applied_from=101,
        applied_to=103,
        filter_epoch=7,
        records=(applied(single(12), 10, 102),),
    )
    assert seqs(shard.history()) == [10]
    assert reopened().applied == 103
