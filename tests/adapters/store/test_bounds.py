"""The greatest calls that are let through still run whole: a script that raised midway would keep half its writes."""

from collections.abc import Callable
from typing import Any

import pytest

from qim.adapters.redis import codec
from qim.core.contract.entities import MembershipOp
from qim.core.ports import store_mailbox as mailbox
from qim.core.ports import store_message as message
from qim.core.ports import store_source as source
from qim.core.ports.log import Position
from tests.adapters.store.requests import NOW, Box, Shard, key, marked, mid, row, single, step
from tests.adapters.store.servers import Store, ask


def greatest(make: Callable[[int], Any]) -> int:
    """How many items make the greatest call that is not too large."""
    low, high = 1, 7_000
    while high - low > 1:
        middle = (low + high) // 2
        if codec.too_large(codec.encode(make(middle))):
            high = middle
        else:
            low = middle
    return low


def test_reserve_and_mark(store: Store) -> None:
    shard = Shard(store)
    items = [single(n, record=b"r") for n in range(1, 3_000)]

    def reserve(count: int) -> Any:
        return shard.bound(message.ReserveAndRecord, items=tuple(items[:count]))

    count = greatest(reserve)
    assert count > 850
    results = ask(store, reserve(count)).results
    assert [r.conversation_seq for r in results] == list(range(1, count + 1))
    marks = tuple(marked(item, n, n) for n, item in enumerate(items[:count], start=1))
    reply = ask(store, shard.bound(message.MarkCommitted, items=marks, applied_to=count))
    assert isinstance(reply, message.MarkedCommitted)
    assert shard.pending() == ()
    assert len(shard.history(limit=10_000).stored) == count


def test_lookup_and_facts(store: Store) -> None:
    shard = Shard(store)
    shard.reserve(single(1))
    keys = (key(1), *[key(5)] * 6_990)
    assert len(shard.ask(message.LookupCommits, dedupe_keys=keys).commits) == len(keys)
    dropped = tuple(mid(n) for n in range(6_990))
    shard.cover(covered_to=1, drop_facts=dropped)
    assert shard.facts() == ()


@pytest.mark.parametrize("users", [1, 5_000])
def test_append(store: Store, users: int) -> None:
    box = Box(store)

    def append(count: int) -> Any:
        rows = tuple(row(n % users, 1000 + n) for n in range(count))
        return mailbox.AppendEntries(
            op=1,
            shard=box.shard,
            epoch=box.epoch,
            incarnation=box.incarnation,
            base_from=999,
            base_to=999 + count,
            moves=(),
            rows=rows,
            days=((20_000, 1000),),
            position=Position(b"t", 1, b"d"),
        )

    count = greatest(append)
    assert count > 1_000
    assert isinstance(ask(store, append(count)), mailbox.EntriesAppended)
    assert len(box.read(0, 999, limit=7_000).entries) == (count if users == 1 else 1)
    done = box.ask(mailbox.TrimMailbox, day=20_000, to=999 + count, limit=10_000)
    assert not done.more
    assert not any(k.startswith((b"mb:", b"mu:")) for k in store.dump())


def test_claims_and_floor(store: Store) -> None:
    box = Box(store)

    def claim(count: int) -> Any:
        claims = tuple(mailbox.Claim(key(n), 1000 + n, 1, n) for n in range(count))
        return mailbox.ClaimDispatches(
            op=1, shard=box.shard, epoch=box.epoch, incarnation=box.incarnation, claims=claims
        )

    count = greatest(claim)
    first = ask(store, claim(count))
    assert first.first_offsets == tuple(range(1000, 1000 + count))
    assert ask(store, claim(count)) == first
    assert not box.ask(mailbox.RaiseFloor, source_partition=1, floor=count, limit=count).more
    assert ask(store, claim(count)).first_offsets == (-1,) * count


def test_receipts(store: Store) -> None:
    ask(store, source.OpenSource(op=1, partition=1, epoch=1, fresh_key=b"k"))
    receipts = tuple((n, b"r" * 40) for n in range(6_900))
    shard = Shard(store)
    commit = source.CommitSource(
        op=1,
        partition=1,
        epoch=1,
        incarnation=shard.incarnation,
        from_offset=0,
        to=Position(b"t", 6_900, b"d"),
        filter_epoch=1,
        receipts=receipts,
        dead_letters=(),
    )
    assert isinstance(ask(store, commit), source.SourceCommitted)
    read = ask(store, source.ReadSource(op=1, partition=1, low=0, high=9_999, limit=6_900))
    assert (read.receipts, read.more) == (receipts, False)


def test_a_group_as_large_as_one_call_names(store: Store) -> None:
    """Users are one argument, so the size of a group is not bound by the number of arguments."""
    shard = Shard(store)
    users = tuple(range(1, 20_001))
    shard.create(1, users)
    shard.change(2, step(2, MembershipOp.REMOVE, users[:19_999]))
    read = shard.membership()
    assert [m.user_id for m in read.version.members] == [20_000]
    assert len(read.everyone) == 20_000


def test_presence_of_many(store: Store) -> None:
    Box(store)
    holds = tuple(mailbox.PresenceHold("t", n, b"d", n, 5, 1) for n in range(2_300))
    request = mailbox.RefreshPresence(op=1, gateway="g", now_wall=NOW, ttl_ms=9, holds=holds)
    assert ask(store, request).lost == ()
    users = tuple(("t", n) for n in range(2_300))
    entries = ask(store, mailbox.ReadPresence(op=1, now_wall=NOW, users=users)).entries
    assert [e.conn for (e,) in entries] == list(range(2_300))
