"""GroupMembership (pipeline.md §1.9): real changes, their audience, rights, versions, and NoOp only when COMMITTED."""

import msgspec
import pytest

from qim.core.contract.entities import (
    MEMBERSHIP_CUSTOM_TYPE,
    MembershipDelta,
    MembershipOp,
    MessageKind,
)
from qim.core.contract.errors import ErrorCode
from qim.core.contract.ids import NIL_ID, group_conversation_id, membership_digest_next
from qim.core.ports.completion import StoreReset, StoreRole
from qim.core.ports.log import Append
from qim.core.ports.store_message import MarkCommitted, MembershipChange, ReserveAndRecord
from qim.core.writer import WriterConfig
from tests.core.writer.scene import Scene, chat, cmid

CREATE, ADD, REMOVE, LEAVE = (
    MembershipOp.CREATE,
    MembershipOp.ADD,
    MembershipOp.REMOVE,
    MembershipOp.LEAVE,
)


def test_create_makes_version_one_with_its_creator_among_the_founders() -> None:
    scene = Scene()
    rid = scene.group(9, CREATE, (5, 3, 5, 9), number=77, changes={"name": "team", "meta": b"m"})
    scene.settle()
    done = scene.grouped(rid)
    assert done.conversation_id == group_conversation_id("default", 9, cmid(77))
    assert (done.version, done.control_seq, done.noop) == (1, 1, False)
    record = scene.effective()[0]
    assert (record.kind, record.custom_type) == (MessageKind.CONTROL, MEMBERSHIP_CUSTOM_TYPE)
    assert record.recipients == (3, 5, 9)
    assert record.version == 1
    delta = record.delta
    assert delta is not None
    assert (delta.op, delta.users, delta.previous_version, delta.version, delta.count) == (
        CREATE,
        (3, 5, 9),
        0,
        1,
        3,
    )
    assert (delta.name, delta.meta) == ("team", b"m")
    expected = membership_digest_next(
        NIL_ID,
        op=CREATE,
        users=(3, 5, 9),
        version=1,
        control=(record.message_id, 9, "team", b"m"),
    )
    assert delta.digest == record.membership_digest == expected
    assert msgspec.msgpack.decode(record.body, type=MembershipDelta) == delta


def test_versions_digests_and_intervals_go_on() -> None:
    scene = Scene()
    group = scene.create(1, 2)
    added = scene.group(2, ADD, (3, 2, 4), to=group)
    scene.settle()
    removed = scene.group(1, REMOVE, (4, 99), to=group)
    scene.settle()
    left = scene.group(3, LEAVE, to=group)
    scene.settle()
    assert [scene.grouped(rid).version for rid in (added, removed, left)] == [2, 3, 4]
    assert [scene.grouped(rid).control_seq for rid in (added, removed, left)] == [2, 3, 4]
    deltas = [record.delta for record in scene.effective()]
    assert [delta.users for delta in deltas if delta] == [(1, 2), (3, 4), (4,), (3,)]
    assert [delta.count for delta in deltas if delta] == [2, 4, 3, 2]
    # those who go hear of it too
    assert [record.recipients for record in scene.effective()] == [
        (1, 2),
        (1, 2, 3, 4),
        (1, 2, 3, 4),
        (1, 2, 3),
    ]
    scene.lose()
    scene.hold()
    scene.settle()
    listed = scene.members(1, group)
    scene.settle()
    assert scene.member_list(listed).added == (1, 2)
    assert scene.member_list(listed).version == 4


def test_the_control_message_stands_before_every_record_of_its_version() -> None:
    scene = Scene()
    group = scene.create(1, 2)
    scene.group(1, ADD, (3,), to=group)
    rids = [scene.send(2, to=group), scene.send(1, to=group)]
    scene.group(1, REMOVE, (3,), to=group)
    rids.append(scene.send(2, to=group))
    scene.settle()
    assert [(r.conversation_seq, r.version) for r in scene.effective()] == [
        (1, 1),
        (2, 2),
        (3, 2),
        (4, 2),
        (5, 3),
        (6, 3),
    ]
    assert [scene.sent(rid).conversation_seq for rid in rids] == [3, 4, 6]


def test_rights() -> None:
    scene = Scene()
    group = scene.create(1, 2, 3)
    cases = [
        (scene.group(2, REMOVE, (3,), to=group), ErrorCode.FORBIDDEN),
        (scene.group(9, ADD, (9,), to=group), ErrorCode.NOT_MEMBER),
        (scene.group(9, LEAVE, to=group), ErrorCode.NOT_MEMBER),
        (scene.group(1, ADD, (4,), to=b"\x05" * 16), ErrorCode.NOT_FOUND),
    ]
    scene.send(1, 2)
    scene.settle()
    cases.append((scene.group(1, ADD, (4,), to=chat(1, 2)), ErrorCode.INVALID_ARGUMENT))
    scene.settle()
    assert [scene.refused(rid) for rid, _ in cases] == [code for _, code in cases]
    assert len(scene.effective()) == 2


BAD: list[tuple[dict[str, object], ErrorCode]] = [
    ({"op": 9}, ErrorCode.INVALID_ARGUMENT),
    ({"client_message_id": b"\0" * 16}, ErrorCode.INVALID_ARGUMENT),
    ({"conversation_id": b"\x05" * 16}, ErrorCode.INVALID_ARGUMENT),
    ({"op": ADD}, ErrorCode.INVALID_ARGUMENT),
    ({"op": ADD, "conversation_id": b"\x05" * 16, "members": ()}, ErrorCode.INVALID_ARGUMENT),
    ({"op": LEAVE, "conversation_id": b"\x05" * 16}, ErrorCode.INVALID_ARGUMENT),
    ({"members": (0,)}, ErrorCode.INVALID_ARGUMENT),
    ({"members": (2**64,)}, ErrorCode.INVALID_ARGUMENT),
    ({"name": "n" * 257}, ErrorCode.INVALID_ARGUMENT),
    ({"meta": b"m" * 4097}, ErrorCode.INVALID_ARGUMENT),
    ({"members": tuple(range(1, 1002))}, ErrorCode.TOO_MANY_MEMBERS),
    ({"members": tuple(range(2, 1002))}, ErrorCode.TOO_MANY_MEMBERS),
]


@pytest.mark.parametrize(("fields", "code"), BAD, ids=range(len(BAD)))
def test_bad_fields_are_refused(fields: dict[str, object], code: ErrorCode) -> None:
    scene = Scene()
    rid = scene.group(1, CREATE, (2,), changes=fields)
    scene.settle()
    assert scene.refused(rid) is code
    assert scene.effective() == []


def test_a_thousand_members_and_not_one_more() -> None:
    scene = Scene()
    group = scene.create(1, *range(2, 1001))
    record = scene.effective()[0]
    assert len(record.recipients) == 1000
    rid = scene.group(1, ADD, (5000,), to=group)
    scene.settle()
    assert scene.refused(rid) is ErrorCode.TOO_MANY_MEMBERS
    gone = scene.group(1, REMOVE, (7,), to=group)
    scene.settle()
    assert scene.grouped(gone).version == 2
    assert scene.effective()[1].recipients == (1, 7)  # a large group: the changed and the actor
    many = scene.group(1, REMOVE, tuple(range(400, 1001)), to=group)
    scene.settle()
    assert scene.grouped(many).version == 3
    assert len(scene.effective()[2].recipients) == 999  # |V+1| <= 500: all of V and V+1


def test_a_group_may_become_empty() -> None:
    scene = Scene()
    group = scene.create(1)
    rid = scene.group(1, LEAVE, to=group)
    scene.settle()
    assert scene.grouped(rid).version == 2
    assert scene.effective()[1].delta is not None
    assert scene.refused_after_settle(scene.send(1, to=group)) is ErrorCode.NOT_MEMBER


def test_a_retry_of_a_change_is_replayed_not_a_noop() -> None:
    scene = Scene()
    group = scene.create(1, 2, number=70)
    first = scene.group(1, ADD, (3,), to=group, number=71)
    scene.settle()
    again = scene.group(1, ADD, (3,), to=group, number=71)
    made = scene.group(1, CREATE, (2,), number=70, changes={"name": "team"})
    scene.settle()
    one, two = scene.grouped(first), scene.grouped(again)
    assert (one.version, one.control_seq, one.noop) == (two.version, two.control_seq, two.noop)
    assert scene.grouped(made).conversation_id == group
    assert scene.grouped(made).version == 1
    other = scene.group(1, ADD, (4,), to=group, number=71)
    renamed = scene.group(1, CREATE, (2,), number=70, changes={"name": "other"})
    swapped = scene.group(1, REMOVE, (3,), to=group, number=71)
    scene.settle()
    assert {scene.refused(rid) for rid in (other, renamed, swapped)} == {
        ErrorCode.IDEMPOTENCY_CONFLICT
    }


def test_noop_is_answered_only_once_its_version_is_committed() -> None:
    scene = Scene()
    group = scene.create(1, 2)
    change = scene.group(1, ADD, (3,), to=group)
    append = scene.until(Append)
    noop = scene.group(2, ADD, (3,), to=group)
    while scene.inflight:
        scene.answer()
    assert scene.said(noop) is None  # version 2 stands in the store, not yet in the log
    scene.step(scene.carry_out(append))
    mark = scene.until(MarkCommitted)
    assert scene.said(noop) is None
    scene.step(scene.carry_out(mark))
    assert scene.grouped(change).version == 2
    done = scene.grouped(noop)
    assert (done.version, done.control_seq, done.noop) == (2, 2, True)
    late = scene.group(2, ADD, (1, 2), to=group)
    scene.settle()
    assert scene.grouped(late) == msgspec.structs.replace(
        done, rid=late, client_message_id=cmid(late)
    )
    assert len(scene.effective()) == 2


def test_a_noop_that_waits_survives_a_reset() -> None:
    scene = Scene()
    group = scene.create(1, 2)
    tail = scene.keyspace.mark()
    change = scene.group(1, ADD, (3,), to=group)
    append = scene.until(Append)
    noop = scene.group(2, ADD, (3,), to=group)
    while scene.inflight:
        scene.answer()
    scene.restart_store(tail)
    scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    scene.step(scene.carry_out(append))  # it lands all the same, before the barrier
    scene.settle()
    assert scene.grouped(change).version == 2
    assert scene.grouped(noop).noop
    assert [r.version for r in scene.effective()] == [1, 2]


def test_a_create_whose_group_exists_is_a_conflict() -> None:
    scene = Scene()
    scene.create(1, 2, number=70)
    key = [key for key in scene.keyspace.dump() if key.startswith(b"d:")]
    assert len(key) == 1
    scene.now += 5 * 3_600_000  # beyond the dedupe window: the key is free, the group is not
    rid = scene.group(1, CREATE, (2, 3), number=70)
    scene.settle()
    assert scene.refused(rid) is ErrorCode.IDEMPOTENCY_CONFLICT
    assert len(scene.effective()) == 1


def test_a_change_too_large_for_one_record_is_refused_before_it_is_reserved() -> None:
    scene = Scene(WriterConfig(outbox_partition_count=1, record_bytes_max=600))
    rid = scene.group(1, CREATE, tuple(range(2, 300)))
    other = scene.send(1, 2)
    assert not scene.pending(MembershipChange)
    assert scene.refused(rid) is ErrorCode.INVALID_ARGUMENT
    scene.settle()
    assert scene.sent(other).conversation_seq == 1


def test_changes_and_sends_keep_their_order_of_arrival() -> None:
    scene = Scene()
    first = scene.send(1, 2)
    group = scene.group(1, CREATE, (2,))
    second = scene.send(1, 2)
    kinds = []
    while scene.inflight:
        question = scene.inflight[0]
        if isinstance(question, ReserveAndRecord | MembershipChange):
            kinds.append(type(question).__name__)
        scene.answer()
    assert kinds == ["ReserveAndRecord", "MembershipChange", "ReserveAndRecord"]
    assert scene.grouped(group).version == 1
    assert [scene.sent(rid).conversation_seq for rid in (first, second)] == [1, 2]


def test_explicit_recipients_stay_within_their_limit() -> None:
    scene = Scene(
        WriterConfig(
            outbox_partition_count=1, membership_broadcast_max=5, explicit_recipients_max=6
        )
    )
    rid = scene.group(1, CREATE, range(2, 9))  # 8 founders are more than may be named
    scene.settle()
    assert scene.refused(rid) is ErrorCode.INVALID_ARGUMENT
