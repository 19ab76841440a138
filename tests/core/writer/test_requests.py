"""From arrival to verdict (pipeline.md §1.1): bounds, dedupe, what is looked up before it is rejected, admission."""

import msgspec
import pytest

from qim.core.contract.entities import ConversationKind, MembershipOp
from qim.core.contract.errors import ErrorCode
from qim.core.contract.rpc import AskHistory, AskWatermark, Refused
from qim.core.ports.completion import Unknown
from qim.core.ports.local import DrainRequested, LeaseGone, LeaseHeld
from qim.core.ports.log import Append
from qim.core.ports.registry import Resource, Role
from qim.core.ports.store_message import (
    LookupCommits,
    MemberHistory,
    MembershipRead,
    ReadMembership,
    ReserveAndRecord,
    Reserved,
    VersionMoved,
)
from qim.core.writer import WriterConfig
from tests.core.writer.scene import HOUR_MS, SHARD, WALL, Scene, actor, chat, cmid

ONE = {"outbox_partition_count": 1}


def ask_nobody(number: int) -> AskHistory:
    """A question about a conversation that doesn't exist."""
    return AskHistory(
        rid=10_000 + number,
        actor=actor(1),
        conversation_id=b"\x01" * 16,
        anchor=0,
        direction=0,
        limit=0,
    )


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


# ---------------------------------------------------------------- bounds


def test_the_queue_is_bounded_by_count_and_by_bytes() -> None:
    scene = Scene(WriterConfig(**ONE, commits_max=2))
    rids = [scene.send(1, 2) for _ in range(3)]
    refused = scene.said(rids[2])
    assert isinstance(refused, Refused)
    assert refused.code == ErrorCode.UNAVAILABLE
    assert refused.retry_after_ms > 0
    scene.settle()
    assert scene.sent(rids[0]).conversation_seq == 1
    assert scene.sent(rids[1]).conversation_seq == 2
    small = Scene(WriterConfig(**ONE, commit_bytes_max=1000))
    small.send(1, 2, body=b"x" * 800)
    assert small.refused(small.send(1, 2)) is ErrorCode.UNAVAILABLE


def test_waiting_requests_are_bounded_and_answered_ones_make_room() -> None:
    scene = Scene(WriterConfig(**ONE, waiting_requests_max=2))
    scene.send(1, 2)
    scene.settle()
    stuck = scene.send(3, 4)
    scene.until(Append)
    scene.now += 1
    assert scene.said(scene.send(5, 6)) is None
    scene.now += 1
    assert scene.refused(scene.send(7, 8)) is ErrorCode.UNAVAILABLE
    assert scene.refused(scene.send(7, 8)) is ErrorCode.UNAVAILABLE
    assert scene.said(stuck) is None


def test_intents_do_not_pile_up_behind_a_log_that_stands() -> None:
    scene = Scene(WriterConfig(**ONE, unappended_max=1))
    scene.send(1, 2)
    append = scene.until(Append)
    scene.send(1, 2)
    scene.answer()
    scene.send(1, 2)
    assert not scene.inflight
    scene.step(scene.carry_out(append))
    scene.settle()
    assert len(scene.effective()) == 3


def test_batches_are_bounded_by_items_and_bytes() -> None:
    scene = Scene(WriterConfig(**ONE, reserve_items_max=2, append_records_max=1, mark_items_max=1))
    rids = [scene.send(1, 2) for _ in range(6)]
    scene.settle()
    assert [scene.sent(rid).conversation_seq for rid in rids] == [1, 2, 3, 4, 5, 6]
    big = Scene(WriterConfig(**ONE, reserve_bytes_max=1000, append_bytes_max=1000))
    rids = [big.send(1, 2, body=b"x" * 600) for _ in range(4)]
    while big.inflight:
        question = big.inflight[0]
        if isinstance(question, ReserveAndRecord):
            assert len(question.items) == 1
        if isinstance(question, Append):
            assert len(question.records) == 1
        big.answer()
    assert [big.sent(rid).conversation_seq for rid in rids] == [1, 2, 3, 4]


def test_appends_are_bounded_by_bytes() -> None:
    scene = Scene(WriterConfig(**ONE, append_bytes_max=2000))
    rids = [scene.send(1, 2, body=b"x" * 600) for _ in range(6)]
    sizes = []
    while scene.inflight:
        if isinstance(scene.inflight[0], Append):
            sizes.append(len(scene.inflight[0].records))
        scene.answer()
    assert max(sizes) == 2
    assert [scene.sent(rid).conversation_seq for rid in rids] == [1, 2, 3, 4, 5, 6]


def test_answered_waiters_do_not_pile_up() -> None:
    scene = Scene()
    stuck = scene.send(1, 1)  # the front of the line stays, those behind it are answered
    reserve = scene.until(ReserveAndRecord)
    scene.step(Unknown(op=reserve.op))
    for number in range(2000):
        scene.receive(ask_nobody(number))
        scene.settle()
    assert scene.said(stuck) is None
    assert scene.writer.deadline() is not None


# ---------------------------------------------------------------- admission


def test_a_device_has_its_rate_and_forgotten_keys_start_full() -> None:
    scene = Scene(
        WriterConfig(**ONE, device_rate_per_s=1, device_burst_max=1, admission_keys_max=1)
    )
    scene.send(1, 2)
    assert scene.refused(scene.send(1, 3)) is ErrorCode.RATE_LIMITED
    assert scene.said(scene.send(2, 3)) is None
    assert scene.said(scene.send(1, 4)) is None  # its bucket made room for the other device's


def test_a_conversation_and_a_tenant_have_their_rates() -> None:
    scene = Scene(WriterConfig(**ONE, conversation_rate_per_s=10, conversation_burst_max=2))
    rids = [scene.send(1, 2) for _ in range(3)]
    refused = scene.said(rids[2])
    assert isinstance(refused, Refused)
    assert (refused.code, refused.retry_after_ms) == (ErrorCode.RATE_LIMITED, 100)
    other = scene.send(1, 3)
    assert scene.said(other) is None
    scene.advance(100)
    assert scene.said(scene.send(1, 2)) is None
    tenant = Scene(WriterConfig(**ONE, tenant_rate_per_s=1, tenant_burst_max=1))
    tenant.send(1, 2)
    assert tenant.refused(tenant.send(3, 4)) is ErrorCode.RATE_LIMITED
    assert tenant.said(tenant.send(3, 4, actor=actor(3, "other"))) is None


def test_a_refused_rate_costs_no_seq() -> None:
    scene = Scene(WriterConfig(**ONE, conversation_rate_per_s=1, conversation_burst_max=1))
    scene.send(1, 2)
    scene.send(1, 2)
    scene.settle()
    scene.advance(1000)
    rid = scene.send(1, 2)
    scene.settle()
    assert scene.sent(rid).conversation_seq == 2


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


def test_a_clock_far_ahead_of_the_logs_refuses_and_recovers() -> None:
    scene = Scene()
    scene.wall_offset += 6 * 60_000
    ahead = scene.send(1, 2)
    scene.settle()
    assert scene.sent(ahead)  # the append that told us
    assert scene.counts["clock_refused"] == 1
    refused = scene.send(1, 2)
    scene.settle()
    assert scene.refused(refused) is ErrorCode.UNAVAILABLE
    again = scene.send(1, 2, number=ahead)
    scene.settle()
    assert scene.sent(again).message_id == scene.sent(ahead).message_id
    scene.wall_offset = WALL
    scene.advance(scene.config.clock_probe_ms)
    scene.settle()
    assert scene.counts["shard_refresh.clock_probe"] == 1
    rid = scene.send(1, 2)
    scene.settle()
    assert scene.sent(rid).message_id > scene.sent(ahead).message_id


def test_a_slow_answer_is_no_fast_clock() -> None:
    scene = Scene()
    rid = scene.send(1, 2)
    append = scene.until(Append)
    answer = scene.carry_out(append)
    scene.now += 60 * 60_000  # the process was paused
    scene.step(answer)
    assert "clock_refused" not in scene.counts
    assert scene.said(rid) is None or isinstance(scene.said(rid), Refused)


def test_another_instance_lease_gives_other_ids_that_still_rise() -> None:
    scene = Scene()
    first = scene.send(1, 2)
    scene.settle()
    instance = Resource(role=Role.INSTANCE, number=0x1234)
    scene.step(
        LeaseHeld(resource=instance, epoch=0x50007, barrier_epoch=0, barrier_offset=-1, wall=WALL)
    )
    other = Resource(role=Role.MAILBOX, number=0)
    scene.step(LeaseHeld(resource=other, epoch=3, barrier_epoch=0, barrier_offset=-1, wall=WALL))
    scene.step(LeaseGone(resource=instance))
    second = scene.send(1, 2)
    scene.settle()
    earlier, later = scene.sent(first).message_id, scene.sent(second).message_id
    assert later > earlier
    assert later[8:12] == bytes.fromhex("12340007")


def test_ids_rise_though_the_wall_clock_steps_back() -> None:
    scene = Scene()
    rids = []
    for step_ms in (0, -5_000, -86_400_000, 1_000, 0):
        scene.wall_offset = WALL + step_ms
        rids.append(scene.send(1, 2))
        scene.settle()
    ids = [scene.sent(rid).message_id for rid in rids]
    assert ids == sorted(set(ids))


def test_trace_is_the_head_of_the_dedupe_key() -> None:
    scene = Scene()
    scene.send(1, 2, number=5)
    scene.settle()
    record = scene.effective()[0]
    assert record.client_message_id == cmid(5)
    assert {trace for trace, _ in scene.stages} == {record.trace_id}
    assert scene.traces == [(record.trace_id,)]


def test_a_kind_of_conversation_that_takes_no_sends() -> None:
    scene = Scene()
    rid = scene.send(1, to=b"\x01" * 16)
    load = scene.until(ReadMembership)
    room = MembershipRead(
        op=load.op,
        kind=ConversationKind.ROOM,
        version=None,
        everyone=(MemberHistory(1, ((0, 2**64 - 1),)),),
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
