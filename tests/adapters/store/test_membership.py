"""Groups: versions, intervals, slots, and their restoring from the outbox (docs: pipeline §1.9)."""

import pytest

from qim.core.contract.entities import Interval, Member, MemberHistoryRow, MembershipOp
from qim.core.ports.completion import Failed, FailReason, StoreReset
from qim.core.ports.store_message import ApplyOutbox, Existing, Fresh, OutboxApplied, VersionMoved
from qim.core.ports.store_reads import ReadVersions
from tests.adapters.store.requests import (
    FOREVER,
    GROUP,
    SINGLE,
    Shard,
    applied,
    digest_of,
    grouped,
    mid,
    single,
    step,
)
from tests.adapters.store.servers import Store, ask

CREATE, ADD, REMOVE, LEAVE = (
    MembershipOp.CREATE, MembershipOp.ADD, MembershipOp.REMOVE, MembershipOp.LEAVE,
)  # fmt: skip


def members(version: object) -> dict[int, tuple[tuple[int, int], ...]]:
    assert version is not None
    return {
        m.user_id: tuple((i.joined_at, i.left_at) for i in m.intervals)
        for m in version.members  # type: ignore[attr-defined]
    }


def test_founders_see_everything(store: Store) -> None:
    shard = Shard(store)
    assert shard.create(1, (3, 1, FOREVER)) == Fresh(conversation_seq=1, last_activity_id=mid(1))
    read = shard.membership()
    assert (read.kind, read.creator, read.name, read.meta) == (2, 1, "name ü", b"\x00meta")
    assert (read.version.version, read.version.digest) == (1, digest_of(1))
    assert read.version.control_seq == 1
    everyone = tuple(Member(user, (Interval(0, FOREVER),)) for user in (1, 3, FOREVER))
    assert read.version.members == everyone
    assert read.everyone == tuple(
        MemberHistoryRow(user, ((0, FOREVER),)) for user in (1, 3, FOREVER)
    )


def test_intervals_join_leave_and_rejoin(store: Store) -> None:
    shard = Shard(store)
    shard.create(1, (1, 2))
    shard.reserve(grouped(2, 1, digest_of(1)))
    assert shard.change(3, step(2, ADD, (5, 4))).conversation_seq == 3
    assert shard.change(4, step(3, REMOVE, (2, 5))).conversation_seq == 4
    shard.reserve(grouped(5, 3, digest_of(3)))
    shard.change(6, step(4, ADD, (2,)))
    shard.change(7, step(5, LEAVE, (1,)))
    read = shard.membership()
    assert members(read.version) == {2: ((0, 4), (5, FOREVER)), 4: ((2, FOREVER),)}
    assert {m.user_id: m.intervals for m in read.everyone} == {
        1: ((0, 7),),
        2: ((0, 4), (5, FOREVER)),
        4: ((2, FOREVER),),
        5: ((2, 4),),
    }
    names = tuple((3, GROUP, v, digest_of(v)) for v in range(1, 6))
    versions = ask(store, ReadVersions(op=1, names=names)).versions
    assert [sorted(members(v)) for v in versions] == [
        [1, 2], [1, 2, 4, 5], [1, 4], [1, 2, 4], [2, 4],
    ]  # fmt: skip
    assert [v.control_seq for v in versions] == [1, 3, 4, 6, 7]


def test_a_moved_version_consumes_no_seq(store: Store) -> None:
    shard = Shard(store)
    shard.create()
    moved = VersionMoved(version=1, digest=digest_of(1))
    results = shard.reserve(
        grouped(2, 1, digest_of(2)), grouped(3, 2, digest_of(1)), grouped(4, 1, digest_of(1))
    )
    assert results == (moved, moved, Fresh(conversation_seq=2, last_activity_id=mid(4)))
    assert shard.change(5, step(3, ADD, (9,))) == moved
    assert shard.change(6, step(1, CREATE, (9,))) == moved
    assert shard.membership().version.version == 1
    assert shard.reserve(single(7, conversation_id=GROUP)) == (moved,), "a group is no single chat"
    shard.change(8, step(2, ADD, (9,)))
    assert shard.reserve(grouped(9, 1, digest_of(1))) == (
        VersionMoved(version=2, digest=digest_of(2)),
    )


def test_a_change_commits_once(store: Store) -> None:
    shard = Shard(store)
    shard.create()
    shard.change(2, step(2, ADD, (9,)))
    before = store.dump()
    again = shard.change(2, step(2, ADD, (9,)))
    assert isinstance(again, Existing)
    assert (again.version, again.conversation_seq, bool(again.stored)) == (2, 2, True)
    assert store.dump() == before
    assert shard.change(3, step(1, CREATE, (1,)), conversation_id=b"x" * 16).conversation_seq == 1


def test_exact_versions_or_nothing(store: Store) -> None:
    shard = Shard(store)
    shard.create()
    shard.reserve(single(2))
    names = (
        (3, GROUP, 1, digest_of(2)),
        (3, GROUP, 2, digest_of(1)),
        (4, GROUP, 1, digest_of(1)),
        (3, SINGLE, 0, b""),
        (3, b"n" * 16, 0, b""),
        (3, GROUP, 0, b""),
    )
    read = ask(store, ReadVersions(op=1, names=names))
    assert [v is not None for v in read.versions] == [False, False, True, True, False, False]
    assert members(read.versions[3]) == {1: ((0, FOREVER),), 2: ((0, FOREVER),)}
    assert read.applied == (0,) * 6
    shard.mark(applied_to=1 << 60)
    assert ask(store, ReadVersions(op=1, names=names)).applied[:3] == (1 << 60, 1 << 60, 0)


def test_no_conversation(store: Store) -> None:
    read = Shard(store).membership()
    assert (read.kind, read.version, read.everyone) == (0, None, ())


def test_a_thousand_members(store: Store) -> None:
    shard = Shard(store)
    founders = tuple(range(1, 1001))
    shard.create(1, founders)
    shard.change(2, step(2, REMOVE, tuple(range(1, 1001, 2))))
    shard.change(3, step(3, ADD, tuple(range(2001, 2501))))
    read = shard.membership()
    expected = [*range(2, 1001, 2), *range(2001, 2501)]
    assert [m.user_id for m in read.version.members] == expected
    assert len(read.everyone) == 1500
    exact = ask(store, ReadVersions(op=1, names=((3, GROUP, 1, digest_of(1)),))).versions[0]
    assert [m.user_id for m in exact.members] == list(founders)


def restore(shard: Shard, low: int, high: int, *records: object, **other: object) -> object:
    fields = {"filter_epoch": 5} | other
    return shard.ask(ApplyOutbox, applied_from=low, applied_to=high, records=records, **fields)


CHANGES = (
    applied(grouped(1, 0, b""), 1, 10, step(1, CREATE, (1, 2))),
    applied(grouped(2, 1, digest_of(1)), 2, 11),
    applied(grouped(3, 1, digest_of(1)), 3, 12, step(2, ADD, (4, 5))),
    applied(grouped(4, 2, digest_of(2)), 4, 13, step(3, LEAVE, (1,))),
)


def live(store: Store) -> Shard:
    shard = Shard(store)
    shard.create(1, (1, 2))
    shard.reserve(grouped(2, 1, digest_of(1)))
    shard.change(3, step(2, ADD, (4, 5)))
    shard.change(4, step(3, LEAVE, (1,)))
    return shard


def conversations(store: Store) -> dict[bytes, object]:
    """Everything a conversation is, but for the shard's order of hot rows: that is made by the mark."""
    own = (b"c:", b"h:", b"gm:", b"gv:")
    return {key: held for key, held in store.dump().items() if key.startswith(own)}


@pytest.mark.parametrize("cut", range(5))
def test_restoring_equals_having_lived_it(store: Store, cut: int) -> None:
    lived = live(store).membership()
    versions = conversations(store)
    store.flush()
    shard = Shard(store)
    assert restore(shard, 0, 10 + cut, *CHANGES[:cut]) == OutboxApplied(op=shard.op)
    restore(shard, 10 + cut, 20, *CHANGES[cut:])
    restored = shard.membership()
    assert (restored.version, restored.everyone) == (lived.version, lived.everyone)
    assert conversations(store) == versions


def test_restoring_over_what_stands_changes_no_membership(store: Store) -> None:
    shard = live(store)
    kept = conversations(store)
    restore(shard, 0, 20, *CHANGES)
    assert conversations(store) == kept
    assert shard.pending() == ()
    # a newer version stays the latest when an older record is restored
    shard.change(5, step(4, ADD, (1,)))
    restore(shard, 20, 21, CHANGES[2])
    assert shard.membership().version.version == 4


def test_a_change_without_its_version_before_is_refused_whole(store: Store) -> None:
    shard = Shard(store)
    before = store.dump()
    assert restore(shard, 0, 20, CHANGES[0], CHANGES[3]) == Failed(
        op=shard.op, why=FailReason.INVALID
    )
    assert store.dump() == before
    assert isinstance(restore(shard, 5, 20, *CHANGES), StoreReset), "a gap in what was applied"
    assert store.dump() == before
