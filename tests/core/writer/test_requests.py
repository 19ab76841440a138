"""From arrival to verdict (pipeline.md §1.1): bounds, dedupe, what is looked up before it is rejected, admission."""

import msgspec
import pytest

from qim.core.contract.entities import ConversationKind, MemberHistoryRow, MembershipOp
from qim.core.contract.errors import ErrorCode
from qim.core.contract.rpc import AskWatermark, Refused
from qim.core.ports.completion import Unknown
from qim.core.ports.local import DrainRequested, LeaseGone
from qim.core.ports.log import Append
from qim.core.ports.registry import Resource, Role
from qim.core.ports.store_message import LookupCommits, ReserveAndRecord, Reserved, VersionMoved
from qim.core.ports.store_reads import MembershipRead, ReadMembership
from qim.core.writer import WriterConfig
from tests.core.writer.outside import SHARD
from tests.core.writer.scene import HOUR_MS, WALL, Scene, actor, chat

ONE = {"outbox_partition_count": 1}


BAD_SENDS: list[tuple[dict[str, object], ErrorCode]] = [
    ({"client_message_id": b"\0" * 16}, ErrorCode.INVALID_ARGUMENT),
    ({"client_message_id": b"short"}, ErrorCode.INVALID_ARGUMENT),
    ({"actor": actor(0)}, ErrorCode.INVALID_ARGUMENT),
    ({"actor": actor(2**64)}, ErrorCode.INVALID_ARGUMENT),
    ({"actor": actor(1, "")}, ErrorCode.INVALID_ARGUMENT),
    (
        {"actor": msgspec.structs.replace(actor(1), device_id=b"d" * 257)},
        ErrorCode.INVALID_ARGUMENT,
    ),
    ({"not_after": 0}, ErrorCode.INVALID_ARGUMENT),
    ({"not_after": 2**60}, ErrorCode.INVALID_ARGUMENT),
    ({"not_after": WALL + 3 * HOUR_MS}, ErrorCode.INVALID_ARGUMENT),
    ({"peer_user_id": None}, ErrorCode.INVALID_ARGUMENT),
    ({"peer_user_id": 0}, ErrorCode.INVALID_ARGUMENT),
    ({"peer_user_id": 2**64}, ErrorCode.INVALID_ARGUMENT),
    ({"conversation_id": b"\0" * 16}, ErrorCode.INVALID_ARGUMENT),
    ({"conversation_id": b"x" * 15}, ErrorCode.INVALID_ARGUMENT),
    ({"conversation_id": b"x" * 16}, ErrorCode.INVALID_ARGUMENT),  # not the chat with that peer
    ({"kind": 3}, ErrorCode.UNSUPPORTED),
    ({"kind": 4}, ErrorCode.UNSUPPORTED),
    ({"kind": 99}, ErrorCode.UNSUPPORTED),
    ({"body": b"x" * (128 * 1024 + 1)}, ErrorCode.INVALID_ARGUMENT),
    ({"custom_type": "é" * 33}, ErrorCode.INVALID_ARGUMENT),
    ({"custom_type": "\ud800"}, ErrorCode.INVALID_ARGUMENT),
    ({"custom_type": "qim.membership.v1"}, ErrorCode.INVALID_ARGUMENT),
    ({"retention_class": 4}, ErrorCode.INVALID_ARGUMENT),
    ({"retention_class": -1}, ErrorCode.INVALID_ARGUMENT),
]


@pytest.mark.parametrize(("fields", "code"), BAD_SENDS)
def test_bad_fields_are_refused_and_cost_nothing(
    fields: dict[str, object], code: ErrorCode
) -> None:
    scene = Scene()
    rid = scene.send(1, 2, **fields)
    scene.settle()
    assert scene.refused(rid) is code
    assert scene.effective() == []
    assert scene.writer.idle()


@pytest.mark.parametrize(
    "body",
    [b"", b"\0", bytes(range(256)), b"x" * (128 * 1024)],
    ids=["empty", "nul", "all", "full"],
)
def test_a_body_is_kept_byte_for_byte(body: bytes) -> None:
    scene = Scene()
    rid = scene.send(1, 2, body=body, custom_type="é" * 32, kind=2)
    scene.settle()
    assert scene.sent(rid)
    assert scene.effective()[0].body == body


def test_a_chat_with_oneself_and_the_peer_of_each_side() -> None:
    scene = Scene()
    own = scene.send(7, 7)
    there = scene.send(1, 2)
    back = scene.send(2, 1)
    scene.settle()
    assert scene.sent(own).conversation_id == chat(7, 7)
    assert scene.sent(there).conversation_id == scene.sent(back).conversation_id
    by_sender = {r.sender_id: r.peer_user_id for r in scene.effective()}
    assert by_sender == {7: 7, 1: 2, 2: 1}


def test_a_known_chat_is_named_by_its_id_alone() -> None:
    scene = Scene()
    unknown = scene.send(1, to=chat(1, 2))
    scene.settle()
    assert scene.refused(unknown) is ErrorCode.NOT_FOUND
    first = scene.send(1, 2)
    scene.settle()
    named = scene.send(2, to=chat(1, 2))
    both = scene.send(2, 1, to=chat(1, 2))
    stranger = scene.send(3, to=chat(1, 2))
    scene.settle()
    acks = [scene.sent(rid) for rid in (first, named, both)]
    assert [ack.conversation_seq for ack in acks] == [1, 2, 3]
    assert scene.refused(stranger) is ErrorCode.NOT_MEMBER


def test_another_tenants_user_of_the_same_number_is_a_stranger() -> None:
    scene = Scene()
    scene.send(1, 2)
    scene.settle()
    rid = scene.send(1, to=chat(1, 2), actor=actor(1, "other"))
    scene.settle()
    assert scene.refused(rid) is ErrorCode.NOT_MEMBER


def test_a_retry_gets_the_same_coordinates_under_its_own_rid() -> None:
    scene = Scene()
    first = scene.send(1, 2, number=5)
    scene.settle()
    again = scene.send(1, 2, number=5)
    scene.settle()
    one, two = scene.sent(first), scene.sent(again)
    assert msgspec.structs.replace(two, rid=one.rid) == one
    assert two.rid == again
    assert scene.counts["duplicate_send.replayed"] == 1


def test_requests_with_one_key_in_flight_share_one_commit() -> None:
    scene = Scene(WriterConfig(**ONE, waiters_max=2))
    first = scene.send(1, 2, number=5)
    second = scene.send(1, 2, number=5)
    other = scene.send(1, 2, number=5, body=b"other")
    third = scene.send(1, 2, number=5)
    assert scene.refused(other) is ErrorCode.IDEMPOTENCY_CONFLICT
    assert scene.refused(third) is ErrorCode.RATE_LIMITED
    scene.rid = second - 1
    scene.send(1, 2, number=5)  # the network doubled the second question
    scene.rid = third
    scene.settle()
    assert scene.sent(first).message_id == scene.sent(second).message_id
    assert len(scene.effective()) == 1


def test_the_same_key_with_other_content_is_a_conflict_and_other_senders_are_not() -> None:
    scene = Scene()
    scene.send(1, 2, number=5)
    scene.settle()
    body = scene.send(1, 2, number=5, body=b"other")
    scene.settle()
    conversation = scene.send(1, 3, number=5)
    scene.settle()
    sender = scene.send(2, 1, number=5)
    scene.settle()
    assert scene.refused(body) is ErrorCode.IDEMPOTENCY_CONFLICT
    assert scene.refused(conversation) is ErrorCode.IDEMPOTENCY_CONFLICT
    assert scene.sent(sender)


def test_expired_only_after_the_look_up_found_nothing() -> None:
    scene = Scene()
    rid = scene.send(1, 2, number=5)
    scene.settle()
    scene.now += HOUR_MS + 1
    old = scene.wall() - 1
    known = scene.send(1, 2, number=5, not_after=old)
    unknown = scene.send(1, 2, number=6, not_after=old)
    assert scene.said(unknown) is None
    assert len(scene.pending(LookupCommits)) == 1
    scene.settle()
    assert scene.sent(known).message_id == scene.sent(rid).message_id
    assert scene.refused(unknown) is ErrorCode.SEND_EXPIRED


def test_a_stored_commit_is_replayed_to_one_who_is_no_member_any_more() -> None:
    scene = Scene()
    group = scene.create(1, 2)
    rid = scene.send(2, to=group, number=50)
    scene.settle()
    scene.group(1, MembershipOp.REMOVE, (2,), to=group)
    scene.settle()
    again = scene.send(2, to=group, number=50)
    fresh = scene.send(2, to=group, number=51)
    scene.settle()
    assert scene.sent(again).message_id == scene.sent(rid).message_id
    assert scene.refused(fresh) is ErrorCode.NOT_MEMBER


def test_look_ups_gather_while_one_is_in_flight() -> None:
    scene = Scene()
    rids = [scene.send(1, 2, not_after=1) for _ in range(3)]
    lookups = scene.pending(LookupCommits)
    assert len(lookups) == 1
    scene.settle()
    assert [scene.refused(rid) for rid in rids] == [ErrorCode.SEND_EXPIRED] * 3


def test_a_look_up_in_doubt_is_asked_again() -> None:
    scene = Scene()
    rid = scene.send(1, 2, not_after=1)
    lookup = scene.until(LookupCommits)
    scene.step(Unknown(op=lookup.op))
    scene.advance(100)
    scene.settle()
    assert scene.refused(rid) is ErrorCode.SEND_EXPIRED


def test_what_is_not_ours_is_refused_with_not_owner() -> None:
    scene = Scene(WriterConfig(outbox_partition_count=65536))
    send = scene.send(1, 2)
    group = scene.group(1, MembershipOp.CREATE, (2,))
    read = scene.history(1, chat(1, 2))
    assert {scene.refused(rid) for rid in (send, group, read)} == {ErrorCode.NOT_OWNER}
    closed = Scene()
    closed.lose()
    assert closed.refused(closed.send(1, 2)) is ErrorCode.NOT_OWNER
    assert closed.refused(closed.members(1, chat(1, 2))) is ErrorCode.NOT_OWNER


def test_not_owner_names_the_owner_that_the_registry_noticed() -> None:
    scene = Scene()

    def named(rid: int) -> str:
        answer = scene.said(rid)
        assert isinstance(answer, Refused) and answer.code == ErrorCode.NOT_OWNER
        return answer.owner_address

    scene.step(LeaseGone(resource=SHARD))
    assert named(scene.send(1, 2)) == ""
    scene.step(LeaseGone(resource=SHARD, owner_address="writer-2:1"))
    instance = Resource(role=Role.INSTANCE, number=SHARD.number)
    scene.step(LeaseGone(resource=instance, owner_address="another:1"))
    assert named(scene.send(1, 2)) == "writer-2:1"
    assert named(scene.history(1, chat(1, 2))) == "writer-2:1"
    scene.step(LeaseGone(resource=SHARD))
    assert named(scene.members(1, chat(1, 2))) == ""


def test_a_drained_writer_takes_nothing_new_and_finishes_what_it_has() -> None:
    scene = Scene()
    rid = scene.send(1, 2)
    scene.step(DrainRequested())
    late = scene.send(1, 2)
    read = scene.history(1, chat(1, 2))
    assert scene.refused(late) is ErrorCode.UNAVAILABLE
    assert scene.refused(read) is ErrorCode.UNAVAILABLE
    assert not scene.writer.idle()
    scene.settle()
    assert scene.sent(rid)
    assert scene.writer.idle()


def test_messages_that_are_no_questions_are_counted_and_ignored() -> None:
    scene = Scene()
    scene.receive(AskWatermark(rid=1, shard=0, users=(1,)))
    scene.receive(Refused(rid=1, code=1, message=""))
    assert scene.counts["unexpected_message"] == 2
    assert not scene.answers


# ---------------------------------------------------------------- members and versions


def test_one_read_serves_all_who_wait_and_keeps_their_order() -> None:
    scene = Scene()
    group = scene.create(1, 2)
    scene.lose()
    scene.hold()
    scene.settle()
    rids = [scene.send(sender, to=group) for sender in (1, 2, 1)]
    assert len(scene.pending(ReadMembership)) == 1
    scene.settle()
    assert [scene.sent(rid).conversation_seq for rid in rids] == [2, 3, 4]


def test_loads_in_flight_are_bounded() -> None:
    scene = Scene(WriterConfig(**ONE, membership_loads_max=1))
    first = scene.send(1, to=b"\x01" * 16)
    second = scene.send(1, to=b"\x02" * 16)
    assert scene.refused(second) is ErrorCode.UNAVAILABLE
    scene.settle()
    assert scene.refused(first) is ErrorCode.NOT_FOUND


def test_a_cache_too_small_still_serves() -> None:
    scene = Scene(WriterConfig(**ONE, cached_conversations_max=1, cached_members_max=1))
    group = scene.create(1, 2, 3)
    rids = [scene.send(2, to=group) for _ in range(3)]
    scene.settle()
    assert [scene.sent(rid).conversation_seq for rid in rids] == [2, 3, 4]


def test_a_moved_version_is_frozen_again_at_most_three_times() -> None:
    scene = Scene()
    group = scene.create(1, 2)
    rid = scene.send(2, to=group)
    for attempt in range(4):
        reserve = scene.until(ReserveAndRecord)
        scene.step(
            Reserved(op=reserve.op, results=(VersionMoved(version=attempt, digest=b"d" * 16),))
        )
    assert scene.refused(rid) is ErrorCode.MEMBERSHIP_CHANGED
    assert scene.counts["refreeze"] == 4
    again = scene.send(2, to=group)
    reserve = scene.until(ReserveAndRecord)
    scene.step(Reserved(op=reserve.op, results=(VersionMoved(version=9, digest=b"d" * 16),)))
    scene.settle()
    assert scene.sent(again).conversation_seq == 2


# ---------------------------------------------------------------- clocks


def test_a_kind_of_conversation_that_takes_no_sends() -> None:
    scene = Scene()
    rid = scene.send(1, to=b"\x01" * 16)
    load = scene.until(ReadMembership)
    room = MembershipRead(
        op=load.op,
        kind=ConversationKind.ROOM,
        version=None,
        everyone=(MemberHistoryRow(1, ((0, 2**64 - 1),)),),
        creator=1,
        name="",
        meta=b"",
    )
    scene.step(room)
    scene.settle()
    assert scene.refused(rid) is ErrorCode.UNSUPPORTED


def test_an_answer_in_doubt_is_never_called_undone() -> None:
    """A reservation cut off by a fresh epoch, then a writer that may not serve: TIMEOUT_UNKNOWN, not UNAVAILABLE."""
    scene = Scene()
    scene.wall_offset += 6 * 60_000
    rid = scene.send(1, 2)
    append = scene.until(Append)
    scene.carry_out(append)
    scene.restart_store(-1)
    scene.step(Unknown(op=append.op))
    scene.wanted.clear()
    scene.hold()
    scene.settle()
    assert scene.sent(rid)  # found by OPEN: what is COMMITTED is told whatever the clock
