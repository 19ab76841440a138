"""Claims, rows, watermarks, pulls, floors and trimming (docs: pipeline §3)."""

from qim.adapters.redis import codec
from qim.core.contract.entities import NO_SOURCE
from qim.core.ports.completion import Fenced
from qim.core.ports.log import Position
from qim.core.ports.store_mailbox import (
    Claim,
    ClaimDispatches,
    Claimed,
    DispatchesFinished,
    EntriesAppended,
    FinishDispatches,
    FloorRaised,
    LaneMove,
    MailboxRows,
    MailboxTrimmed,
    OpenMailbox,
    Progress,
    ProgressRead,
    RaiseFloor,
    ReadProgress,
    ReadShardState,
    ShardStateRead,
    TrimMailbox,
    Trimmed,
)
from tests.adapters.store.requests import MARKER, Box, key, row
from tests.adapters.store.servers import RUN_ID, Store, ask

MISMATCH = 0
TOP = (7 << 48) + 1000
"""A shard_epoch of 7: neighbours here are one double."""


def test_a_fresh_shard_begins_where_it_is_told(store: Store) -> None:
    opened = Box(store, initial=TOP).opened
    assert (opened.base, opened.lanes, opened.trim, opened.floors, opened.days) == (
        TOP, (), 0, (), (),
    )  # fmt: skip
    assert (opened.position, opened.counter_lost) == (None, False)
    assert Box(store, initial=5).opened.base == TOP


def test_data_without_its_watermark_is_told_and_not_mended(store: Store) -> None:
    box = Box(store)
    claim = box_claim(box)
    # shard 6 has claims and no watermark: no request can do that, a lost key could
    store.raw(
        "claim_dispatches", [claim.keys[0], claim.keys[1], b"mc:\0\0\0\6", b"mx:6"], claim.args
    )
    lost = Box(store, shard=6, initial=77)
    assert (lost.opened.counter_lost, lost.opened.base) == (True, 77)
    assert Box(store, shard=6, initial=77).opened.counter_lost, "not mended"
    assert lost.append(77, 78) == Fenced(op=lost.op, epoch=MISMATCH)
    assert not Box(store).opened.counter_lost


def box_claim(box: Box) -> codec.Call:
    return codec.encode(
        ClaimDispatches(
            op=1,
            shard=box.shard,
            epoch=box.epoch,
            incarnation=box.incarnation,
            claims=(Claim(key(1), 1000, 1, 1),),
        )
    )


def test_claims_keep_the_first_offset(store: Store) -> None:
    box = Box(store)
    assert box.claim((key(1), 1000, 4, 50), (key(2), 1001, 4, 51), (key(1), 1002, 4, 50)) == (
        Claimed(op=box.op, first_offsets=(1000, 1001, 1000), digests=(b"", b"", b""))
    )
    again = box.claim((key(2), 1003, 4, 51), (key(3), 1004, NO_SOURCE, 0))
    assert again.first_offsets == (1001, 1004)
    finished = box.ask(
        FinishDispatches,
        items=(Progress(key(1), 1000, 3, b"d" * 16), Progress(key(9), 1009, 3, b"d" * 16)),
    )
    assert finished == DispatchesFinished(op=box.op, differing=())
    assert box.claim((key(1), 1000, 4, 50)).digests == (b"d" * 16,)
    items = (
        Progress(key(1), 1000, 3, b"d" * 16),
        Progress(key(1), 1000, 3, b"e" * 16),
        Progress(key(2), 1003, 3, b"e" * 16),
    )
    assert box.ask(FinishDispatches, items=items).differing == (1,)
    assert box.claim((key(1), 1000, 4, 50), (key(2), 1001, 4, 51)).digests == (b"d" * 16, b"")


def test_progress_that_stands_is_told_with_its_first_offset(store: Store) -> None:
    box = Box(store)
    box.claim((key(1), 1000, 4, 50), (key(2), 1001, 4, 51), (key(3), 1002, NO_SOURCE, 0))
    digest = bytes(range(240, 256))
    items = (Progress(key(1), 1000, 3, digest), Progress(key(3), 1002, 0, bytes(16)))
    box.ask(FinishDispatches, items=items)
    asked = (key(3), key(2), key(1), key(9))
    read = box.ask(ReadProgress, dispatch_ids=asked)
    assert read == ProgressRead(op=box.op, progress=(items[1], None, items[0], None))
    assert box.ask(ReadProgress, dispatch_ids=()).progress == ()
    box.ask(RaiseFloor, source_partition=4, floor=51, limit=10)
    gone = box.ask(ReadProgress, dispatch_ids=asked)
    assert gone.progress == (items[1], None, None, None), "a floor took it: that means nothing"


def test_floors_drop_claims_and_outlaw_what_is_below(store: Store) -> None:
    box = Box(store)
    box.claim(*[(key(n), 1000 + n, 4, 50 + n) for n in range(6)])
    box.claim((key(20), 1020, 5, 50), (key(21), 1021, NO_SOURCE, 0))
    raised = box.ask(RaiseFloor, source_partition=4, floor=53, limit=2)
    assert raised == FloorRaised(op=box.op, more=True)
    assert not box.ask(RaiseFloor, source_partition=4, floor=53, limit=2).more
    claimed = box.claim(
        (key(1), 1100, 4, 51),
        (key(3), 1101, 4, 53),
        (key(20), 1102, 5, 50),
        (key(21), 1103, NO_SOURCE, 0),
        (key(30), 1104, 4, 52),
    )
    assert claimed.first_offsets == (-1, 1003, 1020, 1021, -1)
    box.ask(RaiseFloor, source_partition=4, floor=10, limit=9)
    assert Box(store).opened.floors == ((4, 53),)


def test_rows_and_watermarks_move_together(store: Store) -> None:
    box = Box(store)
    reply = box.append(
        999, 1002, row(1, 1000), row(2, 1000), row(1, 1002), row(1, 1001), days=((20_000, 1000),)
    )
    assert reply == EntriesAppended(op=box.op)
    entries = (b"entry 1000", b"entry 1001", b"entry 1002")
    assert box.read(1, 999) == MailboxRows(1002, 0, entries, False)
    opened = Box(store).opened
    assert (opened.base, opened.days) == (1002, ((20_000, 1000),))
    assert opened.position == Position(b"topic", 1002, b"p" * 16)
    assert box.read(3, 999).entries == ()


def test_compare_and_set_over_all_lanes(store: Store) -> None:
    box = Box(store)
    box.append(999, 1000, moves=(LaneMove(5, 999, 999), LaneMove(0, 999, 1004)))
    opened = Box(store).opened
    assert (opened.base, opened.lanes) == (1000, ((0, 1004), (5, 999)))
    before = store.dump()
    for base, moves in (
        (1000, ()),
        (1000, (LaneMove(5, 999, 1001),)),
        (1000, (LaneMove(5, 998, 1001), LaneMove(0, 1004, 1004))),
        (1001, (LaneMove(5, 999, 1001), LaneMove(0, 1004, 1004))),
        (1000, (LaneMove(6, 999, 1001), LaneMove(0, 1004, 1004))),
    ):
        reply = box.append(base, 1001, row(1, 1001), moves=moves)
        assert reply == Fenced(op=box.op, epoch=MISMATCH)
    assert store.dump() == before
    moves = (LaneMove(5, 999, 1004), LaneMove(0, 1004, 1004))
    assert isinstance(box.append(1000, 1004, row(1, 1001), moves=moves), EntriesAppended)
    assert Box(store).opened.lanes == ()
    again = store.dump()
    assert isinstance(box.append(1000, 1004, row(1, 1001), moves=moves), EntriesAppended), "a retry"
    assert store.dump() == again


def test_neighbouring_sequences_above_2_53_stay_apart(store: Store) -> None:
    box = Box(store, initial=TOP)
    rows = [row(1, TOP + n) for n in range(1, 8)]
    box.append(TOP, TOP + 7, *rows, days=((20_000, 1001),))
    for n in range(8):
        read = box.read(1, TOP + n)
        assert read.watermark == TOP + 7
        assert read.entries == tuple(b"entry %d" % (TOP + k) for k in range(n + 1, 8))


def test_pull_honours_lane_bound_and_limit(store: Store) -> None:
    box = Box(store)
    rows = [row(1, seq) for seq in range(1000, 1010)]
    box.append(999, 1009, *rows, moves=(LaneMove(3, 999, 1004),), days=((20_000, 1000),))

    def seqs(after: int = 999, **other: int) -> tuple[list[int], bool]:
        read = box.read(1, after, **other)
        return [int(entry[6:]) for entry in read.entries], read.more

    assert seqs() == (list(range(1000, 1010)), False)
    assert seqs(lane=3) == (list(range(1000, 1005)), False)
    assert seqs(lane=3, up_to=1007) == (list(range(1000, 1005)), False)
    assert seqs(up_to=1002) == ([1000, 1001, 1002], False)
    assert seqs(limit=10) == (list(range(1000, 1010)), False)
    assert seqs(limit=9) == (list(range(1000, 1009)), True)
    assert seqs(limit=0) == ([], True)
    assert seqs(after=1009) == ([], False)
    assert seqs(after=2000) == ([], False)
    assert box.read(1, 0, lane=3).watermark == 1004


def test_pull_crosses_days_in_order(store: Store) -> None:
    box = Box(store)
    rows = [row(1, 1000 + n, 20_000 + n // 3) for n in range(12)]
    days = tuple((20_000 + n, 1000 + 3 * n) for n in range(4))
    box.append(999, 1005, *rows[:6], days=days[:2])
    box.append(1005, 1011, *rows[6:], days=days[2:])
    assert Box(store).opened.days == days
    for after in range(999, 1012):
        read = box.read(1, after, limit=4)
        wanted = [b"entry %d" % seq for seq in range(after + 1, 1012)]
        assert (list(read.entries), read.more) == (wanted[:4], len(wanted) > 4)
    box.append(1011, 1012, days=days)
    assert Box(store).opened.days == days, "a range that stands is not begun again"


def test_a_read_from_before_every_epoch_has_a_first_day_of_one_entry(store: Store) -> None:
    """The audit begins at 0, whose successor has the offset bits of the second entry (seed 50387, short days)."""
    epoch_1 = 1 << 48
    box = Box(store, initial=epoch_1 - 1)
    rows = [row(1, epoch_1, 20_000), row(1, epoch_1 + 1, 20_001)]
    days = ((20_000, epoch_1), (20_001, epoch_1 + 1))
    box.append(epoch_1 - 1, epoch_1 + 1, *rows, days=days)
    wanted = [b"entry %d" % seq for seq in (epoch_1, epoch_1 + 1)]
    for after in (0, 1, epoch_1 - 1):
        assert list(box.read(1, after).entries) == wanted
    assert list(box.read(1, epoch_1).entries) == wanted[1:]


def test_trim_removes_whole_days_and_never_passes_a_lane(store: Store) -> None:
    box = Box(store)
    rows = [row(user, 1000 + n, 20_000 + n // 3) for n in range(9) for user in (1, 2, 3)]
    days = tuple((20_000 + n, 1000 + 3 * n) for n in range(3))
    box.append(999, 1008, *rows, days=days, moves=(LaneMove(9, 999, 1004),))
    trim = {"day": 20_000, "to": 1002, "limit": 2}
    before = store.dump()
    assert box.ask(TrimMailbox, day=20_000, to=1005, limit=9) == MailboxTrimmed(
        op=box.op, trim=0, more=False
    )
    assert store.dump() == before
    assert box.ask(TrimMailbox, **trim) == MailboxTrimmed(op=box.op, trim=1002, more=True)
    assert box.read(3, 1001).entries == (), "below trim nothing is read, removed or not"
    assert len(box.read(3, 1002).entries) == 6
    assert not box.ask(TrimMailbox, **trim).more
    assert Box(store).opened.days == days[1:]
    assert not any(k.startswith(b"mb:\0\0\0\5\0\0\x4e\x20") for k in store.dump())
    assert not box.ask(TrimMailbox, **trim).more
    state = ask(store, ReadShardState(op=1, shard=5))
    assert state == ShardStateRead(
        op=1, incarnation=RUN_ID + b"/" + MARKER, base=1008, min_watermark=1004, trim=1002
    )
    none = ask(store, ReadShardState(op=1, shard=6))
    assert (none.base, none.min_watermark, none.trim) == (-1, -1, 0)


def test_a_late_call_is_trimmed(store: Store) -> None:
    box = Box(store)
    box.append(999, 1002, row(1, 1001), days=((20_000, 1000),))
    box.ask(TrimMailbox, day=20_000, to=1002, limit=9)
    before = store.dump()
    assert box.append(999, 1001, row(1, 1001)) == Trimmed(op=box.op, trim=1002)
    assert isinstance(box.append(999, 1002, row(1, 1001)), EntriesAppended), "done long ago"
    assert store.dump() == before
    box.append(1002, 1003, row(1, 1002), row(1, 1003, 20_001), days=((20_001, 1002),))
    assert box.read(1, 1002).entries == (b"entry 1003",)
    assert not any(b"entry 1002" in str(v).encode() for v in store.dump().values())


def test_fence_of_a_mailbox(store: Store) -> None:
    old = Box(store, epoch=7)
    Box(store, epoch=8)
    assert old.append(999, 1000) == Fenced(op=old.op, epoch=8)
    late = OpenMailbox(op=1, shard=5, epoch=7, fresh_key=MARKER, initial=0)
    assert ask(store, late) == Fenced(op=1, epoch=8)


def test_a_thousand_recipients_in_one_call(store: Store) -> None:
    box = Box(store)
    rows = [row(user, 1000) for user in range(1, 1001)]
    assert isinstance(box.append(999, 1000, *rows, days=((20_000, 1000),)), EntriesAppended)
    assert box.read(777, 999).entries == (b"entry 1000",)
    assert len(store.dump()[b"mu:\0\0\0\5\0\0\x4e\x20"][1]) == 1000
