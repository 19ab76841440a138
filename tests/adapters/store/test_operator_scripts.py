"""What the operator's tools write: receipts replaced, checkpoints put back, shards begun anew (docs: pipeline §§2, 7)."""

from typing import Any

from qim.core.contract.entities import NO_SOURCE
from qim.core.ports.completion import Fenced
from qim.core.ports.log import Position
from qim.core.ports.store_mailbox import RaiseFloor, ReadShardState
from qim.core.ports.store_message import ApplyOutbox
from qim.core.ports.store_operator import (
    AmendSource,
    BumpShard,
    HotRead,
    ProjectionRestarted,
    ReadHot,
    RestartProjection,
    ShardBumped,
    SourceAmended,
)
from qim.core.ports.store_session import OpenSession, ProjectDispatches
from qim.core.ports.store_source import CommitSource, OpenSource, ReadSource
from tests.adapters.store.requests import MARKER, Box, Shard, applied, key, row, single
from tests.adapters.store.servers import RUN_ID, Store, ask

INCARNATION = RUN_ID + b"/" + MARKER
OLD = (1 << 48) + 1000
"""W of a shard under shard_epoch 1."""
NEW = (2 << 48) - 1
"""The predecessor of (2 | 0)."""


def at(offset: int) -> Position:
    return Position(b"topic-id", offset, b"digest%10d" % offset)


def committed(store: Store, to: int, *receipts: tuple[int, bytes]) -> None:
    ask(store, OpenSource(op=1, partition=2, epoch=7, fresh_key=MARKER))
    request = CommitSource(
        op=2,
        partition=2,
        epoch=7,
        incarnation=INCARNATION,
        from_offset=0,
        to=at(to),
        filter_epoch=3,
        receipts=receipts,
        dead_letters=((5, b"bad"),),
    )
    ask(store, request)


def amend(store: Store, low: int, to: Position, **other: Any) -> Any:
    fields: dict[str, Any] = {
        "epoch": 7,
        "incarnation": INCARNATION,
        "filter_epoch": 3,
        "drop_from": -1,
        "receipts": (),
    }
    request = AmendSource(op=3, partition=2, from_offset=low, to=to, **(fields | other))
    return ask(store, request)


def read(store: Store) -> Any:
    return ask(store, ReadSource(op=4, partition=2, low=0, high=1 << 50, limit=50))


def test_a_receipt_is_replaced_and_the_checkpoint_stays(store: Store) -> None:
    committed(store, 20, (3, b"three"), (4, b"zzz"), (1 << 40, b"far"))
    again = ((4, b"aaa"), (5, b"redriven"))
    for _ in range(2):
        assert amend(store, 20, at(20), receipts=again) == SourceAmended(op=3)
        seen = read(store)
        assert seen.checkpoint == 20
        assert seen.receipts == ((3, b"three"), (4, b"aaa"), (5, b"redriven"), (1 << 40, b"far"))
        assert seen.dead_letters == ((5, b"bad"),), "what was found stays as evidence"


def test_a_checkpoint_is_put_back_with_its_receipts_and_only_once(store: Store) -> None:
    committed(store, 20, (3, b"three"), (8, b"eight"), (9, b"nine"))
    back = {"drop_from": 8, "filter_epoch": 2}
    assert amend(store, 20, at(8), **back) == SourceAmended(op=3)
    assert (read(store).checkpoint, read(store).receipts) == (8, ((3, b"three"),))
    opened = ask(store, OpenSource(op=1, partition=2, epoch=7, fresh_key=MARKER))
    assert (opened.position, opened.filter_epoch) == (at(8), 2)
    again = amend(store, 8, at(8), receipts=((8, b"since"),))
    assert again == SourceAmended(op=3)
    assert amend(store, 20, at(8), **back) == SourceAmended(op=3), "a retry"
    assert read(store).receipts == ((3, b"three"), (8, b"since")), "left alone"
    assert amend(store, 20, at(9), **back) == Fenced(op=3, epoch=0)


def test_receipts_between_two_offsets_are_dropped_and_no_other(store: Store) -> None:
    committed(store, 20, (3, b"three"), (8, b"eight"), (9, b"nine"), (1 << 40, b"far"))
    again = {"drop_from": 8, "drop_to": 1 << 40, "receipts": ((9, b"anew"),)}
    for _ in range(2):
        assert amend(store, 20, at(20), **again) == SourceAmended(op=3)
        assert read(store).receipts == ((3, b"three"), (9, b"anew"), (1 << 40, b"far"))
    assert amend(store, 20, at(20), drop_from=4) == SourceAmended(op=3)
    assert read(store).receipts == ((3, b"three"),)


def test_ranges_that_were_lost_are_remembered_each_once(store: Store) -> None:
    committed(store, 20)
    assert read(store).lost == ()
    for _ in range(2):
        amend(store, 20, at(20), lost=(15, 30))
    amend(store, 20, at(20), lost=(30, 30))
    assert read(store).lost == ((15, 30),)
    amend(store, 20, at(20), lost=(1 << 40, 1 << 41))
    assert read(store).lost == ((15, 30), (1 << 40, 1 << 41))


def test_hot_rows_are_read_by_where_they_stood_in_the_log(store: Store) -> None:
    shard = Shard(store)
    records = tuple(applied(single(number), number, 10 * number) for number in range(1, 6))
    shard.ask(ApplyOutbox, applied_from=0, applied_to=99, filter_epoch=5, records=records)
    assert ask(store, ReadHot(op=1, shard=shard.shard, low=0, limit=9)) == HotRead(
        op=1, rows=tuple((one.offset, one.stored) for one in records), more=False
    )
    page = ask(store, ReadHot(op=1, shard=shard.shard, low=11, limit=2))
    assert ([offset for offset, _ in page.rows], page.more) == ([20, 30], True)
    last = ask(store, ReadHot(op=1, shard=shard.shard, low=50, limit=2))
    assert ([offset for offset, _ in last.rows], last.more) == ([50], False)
    assert ask(store, ReadHot(op=1, shard=shard.shard + 1, low=0, limit=2)).rows == ()


def bump(
    store: Store,
    low: int = OLD,
    epoch: int = 7,
    to: int = NEW,
    void_from: int = 1001,
    unsettled: tuple[tuple[int, int], ...] = (),
    promised: tuple[tuple[int, int], ...] = (),
) -> Any:
    request = BumpShard(
        op=9,
        shard=3,
        epoch=epoch,
        incarnation=INCARNATION,
        from_watermark=low,
        to_watermark=to,
        void_from=void_from,
        redo=((0, 44), (7, 1 << 40)),
        unsettled=unsettled,
        promised=promised,
    )
    return ask(store, request)


def begun_box(store: Store) -> Box:
    """W at offset 1000: what is claimed there was materialised, what is claimed above was not. Below 50 nothing is claimed."""
    box = Box(store, shard=3, epoch=7, initial=OLD - 2)
    box.claim((key(1), 1000, 4, 50), (key(2), 1001, 4, 51), (key(3), 1002, NO_SOURCE, 0))
    box.claim((key(4), 999, NO_SOURCE, 0))
    box.append(OLD - 2, OLD, row(1, OLD), days=((20_000, 999),))
    box.ask(RaiseFloor, source_partition=4, floor=50, limit=9)
    return box


EARLIER = (1 << 48) - 1
"""The first offset of what an earlier shard_epoch had: no offset of a log, so that it is a duplicate wherever it stands."""


def test_a_shard_begins_anew_and_keeps_only_claims_of_what_it_had_materialised(
    store: Store,
) -> None:
    begun_box(store)
    assert bump(store, epoch=6) == Fenced(op=9, epoch=7)
    assert bump(store, low=OLD - 1) == Fenced(op=9, epoch=0), "it was judged at another watermark"
    assert bump(store) == ShardBumped(op=9, voided=2)
    assert bump(store) == ShardBumped(op=9, voided=0), "a retry"
    opened = Box(store, shard=3, epoch=8, initial=5).opened
    assert (opened.base, opened.lanes, opened.trim) == (NEW, (), NEW)
    assert (opened.floors, opened.days, opened.position) == (((4, 50),), (), None)
    assert not opened.counter_lost
    state = ask(store, ReadShardState(op=1, shard=3))
    assert (state.min_watermark, state.trim, state.redo) == (NEW, NEW, ((0, 44), (7, 1 << 40)))
    assert state.settled == ((4, 51),), "everything below it was materialised"
    anew = Box(store, shard=3, epoch=8)
    claimed = anew.claim((key(1), 1000, 4, 50), (key(2), 1, 4, 51), (key(3), 2, NO_SOURCE, 0))
    assert claimed.first_offsets == (EARLIER, 1, 2)
    claimed = anew.claim((key(4), 999, NO_SOURCE, 0), (key(5), 3, 4, 49))
    assert claimed.first_offsets == (EARLIER, -1), "below the floor it was materialised too"


def test_a_second_bump_keeps_what_the_first_had_kept(store: Store) -> None:
    """Offsets of another log are not compared with this one's watermark."""
    begun_box(store)
    assert bump(store) == ShardBumped(op=9, voided=2)
    anew = Box(store, shard=3, epoch=8)
    anew.claim((key(2), 0, 4, 51), (key(6), 1, 4, 60))
    anew.append(NEW, NEW + 1, row(1, NEW + 1))
    later = (3 << 48) - 1
    assert bump(store, NEW + 1, 8, later, void_from=1) == ShardBumped(op=9, voided=1)
    assert ask(store, ReadShardState(op=1, shard=3)).settled == ((4, 52),)
    last = Box(store, shard=3, epoch=9)
    claimed = last.claim((key(1), 7, 4, 50), (key(2), 8, 4, 51), (key(6), 9, 4, 60))
    assert claimed.first_offsets == (EARLIER, EARLIER, 9)


def test_no_promise_of_before_the_bump_raises_a_floor(store: Store) -> None:
    """Fanout comes again with what the log lost, behind dispatches that still count it as durable."""
    begun_box(store)
    bump(store, unsettled=((4, 51),), promised=((4, 60), (5, 7)))
    anew = Box(store, shard=3, epoch=8)
    anew.ask(RaiseFloor, source_partition=4, floor=60, limit=9)
    assert anew.claim((key(2), 3, 4, 51)).first_offsets == (3,)
    anew.ask(RaiseFloor, source_partition=4, floor=61, limit=9)
    assert anew.claim((key(7), 4, 4, 52)).first_offsets == (-1,), "fanout has passed it all since"
    anew.ask(RaiseFloor, source_partition=6, floor=9, limit=9)
    assert anew.claim((key(8), 5, 6, 8)).first_offsets == (-1,), "nothing was promised of another"


def test_no_floor_stays_above_what_fanout_has_to_dispatch_again(store: Store) -> None:
    """A record dispatched by hand stands anywhere in the log; lost with it, it comes again under its own old offset."""
    begun_box(store)
    assert bump(store, unsettled=((4, 20), (9, 5))) == ShardBumped(op=9, voided=2)
    anew = Box(store, shard=3, epoch=8)
    assert anew.opened.floors == ((4, 20),)
    assert anew.claim((key(7), 0, 4, 20), (key(8), 1, 4, 19)).first_offsets == (0, -1)
    assert ask(store, ReadShardState(op=1, shard=3)).settled == ((4, 51),)


def test_a_projection_starts_at_the_logs_start_under_the_new_epoch(store: Store) -> None:
    opened = ask(store, OpenSession(op=1, shard=3, epoch=7, fresh_key=MARKER))
    assert (opened.dispatch, opened.shard_epoch) == (None, 1)
    request = ProjectDispatches(
        op=2, shard=3, epoch=7, incarnation=INCARNATION, from_offset=0, to=at(9), rows=()
    )
    ask(store, request)
    restart = RestartProjection(
        op=3, shard=3, epoch=7, incarnation=INCARNATION, shard_epoch=(1 << 16) - 1
    )
    for _ in range(2):
        assert ask(store, restart) == ProjectionRestarted(op=3)
        opened = ask(store, OpenSession(op=1, shard=3, epoch=7, fresh_key=MARKER))
        assert (opened.dispatch, opened.shard_epoch) == (None, (1 << 16) - 1)
