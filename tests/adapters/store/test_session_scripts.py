"""Projection, read marks and user state: every value moves one way, positions by compare-and-set (docs: pipeline §4)."""

import random
from typing import Any

import pytest

from qim.adapters.redis.codec_session import pack_state, unpack_state
from qim.core.ports.completion import Fenced
from qim.core.ports.log import Position
from qim.core.ports.store_session import (
    ApplyStates,
    DispatchesProjected,
    MarksRead,
    OpenSession,
    ProjectDispatches,
    ProjectedRow,
    ReadMarks,
    ReadSessions,
    ReadStates,
    SessionOpened,
    SessionRecord,
    SessionsRead,
    StateChange,
    StatesApplied,
    StatesRead,
)
from tests.adapters.store.requests import MARKER, mid
from tests.adapters.store.servers import Store, ask

A, B, C = b"a" * 16, b"b" * 16, b"\xff" * 16
NONE = b"\0" * 16


def at(offset: int) -> Position:
    return Position(b"topic-id", offset, b"%016d" % offset)


def mark(offset: int, read_seq: int, user: int = 1, conversation: bytes = A) -> StateChange:
    return StateChange(
        offset=offset,
        tenant_id="t",
        user_id=user,
        conversation_id=conversation,
        read_seq=read_seq,
        version=0,
        device_id=b"",
        flags=0,
        value=b"",
    )


def state(
    offset: int, version: int, device: bytes = b"d", value: bytes = b"", **other: Any
) -> StateChange:
    fields = {"tenant_id": "t", "user_id": 1, "conversation_id": A, "flags": 5} | other
    return StateChange(
        offset=offset, read_seq=0, version=version, device_id=device, value=value, **fields
    )


class Sessions:
    """A session shard opened under an epoch."""

    def __init__(self, store: Store, shard: int = 5, epoch: int = 7) -> None:
        self.store, self.shard, self.epoch = store, shard, epoch
        opened = ask(store, OpenSession(op=1, shard=shard, epoch=epoch, fresh_key=MARKER))
        assert isinstance(opened, SessionOpened), opened
        self.opened = opened
        self.dispatch = opened.dispatch.offset if opened.dispatch is not None else 0
        self.state = opened.state.offset if opened.state is not None else 0

    def ask(self, kind: Any, **fields: Any) -> Any:
        common = {
            "op": 9,
            "shard": self.shard,
            "epoch": self.epoch,
            "incarnation": self.opened.incarnation,
            "tenant_id": "t",
        }
        common = {name: value for name, value in common.items() if name in kind.__struct_fields__}
        reply = ask(self.store, kind(**common | fields))
        assert reply.op == 9
        return reply

    def project(self, *rows: ProjectedRow, low: int | None = None, high: int | None = None) -> Any:
        low = self.dispatch if low is None else low
        high = low + 1 if high is None else high
        reply = self.ask(ProjectDispatches, from_offset=low, to=at(high), rows=rows)
        if isinstance(reply, DispatchesProjected):
            self.dispatch = high
        return reply

    def apply(self, *changes: StateChange, low: int | None = None, high: int | None = None) -> Any:
        low = self.state if low is None else low
        high = low + 1 if high is None else high
        reply = self.ask(ApplyStates, from_offset=low, to=at(high), changes=changes)
        if reply == StatesApplied(op=9, losing=(), winners=()):
            self.state = high
        return reply

    def read(self, user: int = 1, **other: Any) -> SessionsRead:
        reply = self.ask(ReadSessions, user_id=user, **other)
        assert isinstance(reply, SessionsRead), reply
        return reply

    def since(self, offset: int, limit: int = 100, user: int = 1) -> StatesRead:
        reply = self.ask(ReadStates, user_id=user, since_offset=offset, limit=limit)
        assert isinstance(reply, StatesRead), reply
        return reply


DONE = StatesApplied(op=9, losing=(), winners=())


def record(conversation: bytes = A, **other: Any) -> SessionRecord:
    fields: dict[str, Any] = {
        "last_activity_id": NONE,
        "conversation_seq": 0,
        "read_seq": 0,
        "version": 0,
        "device_id": b"",
        "flags": 0,
        "value": b"",
    }
    return SessionRecord(conversation_id=conversation, **fields | other)


def test_a_shard_begins_without_positions_and_finds_them_again(store: Store) -> None:
    first = Sessions(store)
    assert (first.opened.dispatch, first.opened.state) == (None, None)
    assert first.read() == SessionsRead(op=9, records=(), dispatch_offset=0, state_offset=0)
    first.project(low=0, high=300)
    first.apply(low=0, high=7)
    again = Sessions(store, epoch=8)
    assert (again.opened.dispatch, again.opened.state) == (at(300), at(7))
    assert first.project() == Fenced(op=9, epoch=8)
    assert first.apply() == Fenced(op=9, epoch=8)
    other = Sessions(store, shard=6)
    assert (other.opened.dispatch, other.opened.state) == (None, None)


def test_positions_move_by_compare_and_set_and_a_retry_is_done(store: Store) -> None:
    one = Sessions(store)
    row = ProjectedRow("t", 1, A, mid(5), 2, mid(5))
    assert one.project(row, low=0, high=4) == DispatchesProjected(op=9)
    assert one.apply(mark(0, 9), low=0, high=4) == DONE
    before = store.dump()
    assert one.project(row, low=0, high=4) == DispatchesProjected(op=9)
    assert one.apply(mark(0, 9), low=0, high=4) == DONE
    for low, high in ((0, 5), (3, 5), (5, 6)):
        assert one.project(row, low=low, high=high) == Fenced(op=9, epoch=0)
        assert one.apply(mark(9, 99), low=low, high=high) == Fenced(op=9, epoch=0)
    assert store.dump() == before


def test_activity_seq_and_touch_are_the_greatest_seen_in_any_order(store: Store) -> None:
    rows = [
        ProjectedRow("t", 1, A, mid(255), 1, mid(255)),
        ProjectedRow("t", 1, A, mid(256), 2, mid(256)),
        ProjectedRow("t", 1, A, NONE, 256, mid(300)),
        ProjectedRow("t", 1, B, mid(1), 255, mid(1)),
        ProjectedRow("t", 2, A, mid(256), 2, mid(256)),
    ]
    wanted = (
        record(A, last_activity_id=mid(256), conversation_seq=256, touched_id=mid(300)),
        record(B, last_activity_id=mid(1), conversation_seq=255, touched_id=mid(1)),
    )
    for seed in range(6):
        store.flush()
        one = Sessions(store)
        shuffled = random.Random(seed).sample(rows, len(rows))
        one.project(*shuffled[:2])
        one.project(*shuffled[2:])
        one.project(*rows)
        assert one.read().records == wanted
        assert one.read(2).records == (
            record(A, last_activity_id=mid(256), conversation_seq=2, touched_id=mid(256)),
        )


def test_tenants_users_and_shards_share_nothing(store: Store) -> None:
    one, other = Sessions(store, shard=5), Sessions(store, shard=6)
    for number, tenant in enumerate(("", "t", "t\0", "ü"), start=1):
        one.project(ProjectedRow(tenant, 1, A, mid(number), number, mid(number)))
        assert [r.conversation_seq for r in one.read(tenant_id=tenant).records] == [number]
    assert other.read().records == one.read(2).records == ()


def test_read_marks_are_the_greatest_and_a_lower_one_is_told_with_its_winner(store: Store) -> None:
    one = Sessions(store)
    assert one.apply(mark(0, 256)) == DONE
    before = store.dump()
    lost = one.apply(mark(1, 300), mark(2, 255), mark(3, 1, user=2), low=1, high=4)
    assert lost == StatesApplied(op=9, losing=(1,), winners=(mark(0, 300),))
    assert store.dump() == before, "nothing was written: the winner must be durable first"
    assert one.apply(mark(1, 300), mark(3, 1, user=2), low=1, high=4) == DONE
    assert one.apply(mark(4, 300)) == DONE, "an equal one loses nothing"
    assert one.read().records == (record(read_seq=300),)
    assert one.since(-1).rows == ((1, record(read_seq=300)),), "and changed nothing"


def test_states_are_ordered_by_version_then_device(store: Store) -> None:
    one = Sessions(store)
    assert one.apply(state(0, 256, b"d", b"first")) == DONE
    for offset, loser in enumerate(
        (state(1, 255, b"z"), state(1, 256, b"c\xff"), state(1, 256, b""), state(1, 256, b"D"))
    ):
        lost = one.apply(loser, low=1, high=2)
        assert lost.losing == (0,), offset
        assert lost.winners == (state(0, 256, b"d", b"first"),)
    for offset, winner in enumerate(
        (
            state(1, 256, b"d", b"same device and version: the log's order"),
            state(2, 256, b"d\0", b"longer"),
            state(3, 256, b"\xff" * 64),
            state(4, (1 << 64) - 1, b"a", b"x" * 1024, flags=(1 << 32) - 1),
        ),
        start=1,
    ):
        assert one.apply(winner) == DONE
        held = one.read().records[0]
        assert (held.version, held.device_id) == (winner.version, winner.device_id)
        assert (held.flags, held.value) == (winner.flags, winner.value), offset


def test_marks_and_states_of_a_conversation_do_not_meet(store: Store) -> None:
    one = Sessions(store)
    assert one.apply(mark(0, 9), state(1, 3, value=b"pin"), mark(2, 10), low=0, high=3) == DONE
    wanted = record(read_seq=10, version=3, device_id=b"d", flags=5, value=b"pin")
    assert one.read().records == (wanted,)
    one.project(ProjectedRow("t", 1, A, mid(5), 2, mid(5)))
    (held,) = one.read().records
    assert (held.last_activity_id, held.read_seq, held.value) == (mid(5), 10, b"pin")


def test_changes_are_paged_in_the_order_of_their_last_offsets(store: Store) -> None:
    one = Sessions(store)
    one.apply(
        mark(0, 1, conversation=C),
        mark(1, 1, conversation=A),
        state(2, 1, conversation_id=B),
        mark(256, 2, conversation=C),
        low=0,
        high=257,
    )
    assert [offset for offset, _ in one.since(-1).rows] == [1, 2, 256]
    assert [row.conversation_id for _, row in one.since(-1).rows] == [A, B, C]
    assert [offset for offset, _ in one.since(1).rows] == [2, 256]
    for limit, more in ((0, True), (1, True), (2, True), (3, False), (4, False)):
        read = one.since(-1, limit)
        assert (len(read.rows), read.more) == (min(limit, 3), more)
    assert one.since(256) == StatesRead(op=9, rows=(), more=False)
    assert one.since(-1, user=2) == StatesRead(op=9, rows=(), more=False)


def test_marks_of_many_users_of_many_shards(store: Store) -> None:
    one, other = Sessions(store, shard=5), Sessions(store, shard=6)
    one.apply(mark(0, 9), state(1, 1, conversation_id=A), mark(2, 8, user=2), low=0, high=3)
    other.apply(mark(0, 7, user=3))
    users = ((5, "t", 1), (5, "t", 2), (6, "t", 3), (5, "t", 3), (5, "u", 1))
    reply = one.ask(ReadMarks, conversation_id=A, users=users)
    assert reply == MarksRead(op=9, read_seqs=(9, 8, 7, 0, 0))
    assert one.ask(ReadMarks, conversation_id=B, users=users).read_seqs == (0,) * 5
    assert one.ask(ReadMarks, conversation_id=B, users=()).read_seqs == ()


def test_any_order_and_any_repetition_of_records_ends_alike(store: Store) -> None:
    """Losers dropped as the applier drops them: whatever the log repeats, the same values stand."""
    random_source = random.Random(4)
    changes = [mark(n, random_source.randrange(20)) for n in range(12)]
    changes += [state(n, random_source.randrange(1, 6), b"d%d" % (n % 3)) for n in range(12, 24)]
    best = max(c.read_seq for c in changes)
    top = max((c.version, c.device_id) for c in changes)
    for seed in range(5):
        store.flush()
        one = Sessions(store)
        for change in random.Random(seed).sample(changes * 2, len(changes) * 2):
            if one.apply(change).losing:
                one.apply()
        (held,) = one.read().records
        assert (held.read_seq, (held.version, held.device_id)) == (best, top)


@pytest.mark.parametrize("device", [b"", b"d", b"d\0", b"\xff" * 64])
def test_a_packed_state_is_read_back(device: bytes) -> None:
    packed = pack_state(258, device, 7, b"value\0")
    assert unpack_state(packed) == (258, device, 7, b"value\0")
    with pytest.raises(OverflowError):
        pack_state(1, b"d" * 65, 0, b"")
