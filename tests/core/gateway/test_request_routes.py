"""Questions and answers: which owner a request is for, and what becomes of its answer on the way back."""

from typing import Any

import pytest

from qim.core.contract.entities import MembershipOp
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import (
    CreateGroup,
    Error,
    GroupAdd,
    GroupOk,
    GroupRemove,
    HistoryBatch,
    HistoryDirection,
    LeaveGroup,
    MailboxBatch,
    Members,
    MembersBatch,
    PullHistory,
    SendAck,
)
from qim.core.contract.ids import dedupe_key, group_conversation_id, single_conversation_id
from qim.core.contract.params import DEFAULT
from qim.core.contract.routing import shard, writer_shard
from qim.core.contract.rpc import (
    AskHistory,
    AskMembers,
    AskPull,
    GroupDone,
    HistoryAnswer,
    MembersAnswer,
    SubmitSend,
)
from qim.core.ports.network import Send
from qim.core.ports.registry import ReadLease, Resource, Role
from qim.core.ports.sockets import Write
from tests.core.gateway.gate import MAILBOX_SEQ, Gate, key, lease_read, pull, send
from tests.core.gateway.services import GROUP, asked, online, pulled, sent, stored


def test_a_send_goes_to_the_writer_of_its_conversation_with_the_actor_injected() -> None:
    gate = online()
    gate.say(5, send(), request=8)
    (read,) = gate.take(ReadLease)
    conversation_id = single_conversation_id("default", 1, 2)
    number = writer_shard(conversation_id, DEFAULT.outbox_partition_count)
    assert read.resource == Resource(role=Role.WRITER, number=number)
    gate.step(lease_read(read.op, read.resource, "writer-3"))
    (order,) = gate.take(Send)
    assert order.address == "writer-3"
    ask = order.message
    assert (ask.actor.tenant_id, ask.actor.user_id, ask.actor.device_id) == ("default", 1, b"phone")
    assert (ask.client_message_id, ask.body, ask.not_after) == (key(1), b"hello", 99)
    trace = int.from_bytes(dedupe_key("default", 1, key(1))[:8], "big")
    assert order.traces == (trace,)
    effects = gate.step()
    assert not [e for e in effects if isinstance(e, Write)]
    gate.tell(sent(ask))
    ((ack, request),) = gate.frames_with_requests(5)
    assert isinstance(ack, SendAck)
    assert (ack.client_message_id, ack.conversation_seq, request) == (key(1), 3, 8)


def test_both_names_of_a_single_chat_must_agree() -> None:
    gate = online()
    gate.say(5, send(conversation_id=GROUP), request=8)
    assert gate.refusal(5) == (ErrorCode.INVALID_ARGUMENT, 8)
    gate.say(5, send(conversation_id=single_conversation_id("default", 1, 2)), request=8)
    assert asked(gate, SubmitSend)


def test_groups_are_routed_by_their_conversation() -> None:
    gate = online()
    group = group_conversation_id("default", 1, key(4))
    frames = [
        (CreateGroup(client_message_id=key(4), not_after=1, members=(2,), name="n", meta=b"m"), group),
        (GroupAdd(client_message_id=key(5), not_after=1, conversation_id=GROUP, members=(2,)), GROUP),
        (GroupRemove(client_message_id=key(6), not_after=1, conversation_id=GROUP, members=(3,)), GROUP),
        (LeaveGroup(client_message_id=key(7), not_after=1, conversation_id=GROUP), GROUP),
        (send(8, conversation_id=GROUP, peer_user_id=None), GROUP),
    ]  # fmt: skip
    questions = []
    for frame, conversation_id in frames:
        gate.say(5, frame)
        for read in gate.take(ReadLease):
            wanted = writer_shard(conversation_id, DEFAULT.outbox_partition_count)
            assert read.resource == Resource(role=Role.WRITER, number=wanted)
            gate.step(lease_read(read.op, read.resource, "w"))
        (order,) = gate.take(Send)
        questions.append(order.message)
    ops = [(q.op, q.conversation_id, q.members) for q in questions[:4]]
    assert ops == [
        (MembershipOp.CREATE, None, (2,)),
        (MembershipOp.ADD, GROUP, (2,)),
        (MembershipOp.REMOVE, GROUP, (3,)),
        (MembershipOp.LEAVE, GROUP, ()),
    ]
    assert (questions[0].name, questions[0].meta) == ("n", b"m")
    done = GroupDone(
        rid=questions[1].rid,
        client_message_id=key(5),
        conversation_id=GROUP,
        version=7,
        control_seq=9,
        noop=True,
    )
    gate.tell(done)
    (frame,) = gate.frames(5)
    assert isinstance(frame, GroupOk)
    assert (frame.version, frame.control_seq, frame.noop) == (7, 9, True)


def test_pulls_go_to_the_users_mailbox_and_come_back_whole() -> None:
    gate = online()
    gate.say(5, pull(up_to_seq=12, limit=0), request=8)
    number = shard(1, DEFAULT.shard_count)
    reads = [r.resource for r in gate.take(ReadLease)]
    assert reads in ([], [Resource(role=Role.MAILBOX, number=number)]), "known since AUTH"
    ask = asked(gate, AskPull)
    assert (ask.cursor, ask.up_to_seq, ask.limit) == (b"cursor", 12, DEFAULT.page_default)
    gate.tell(pulled(ask, has_more=True, retry_after_ms=40))
    ((batch, request),) = gate.frames_with_requests(5)
    assert isinstance(batch, MailboxBatch)
    assert request == 8
    assert (batch.cursor, batch.has_more, batch.retry_after_ms) == (b"next", True, 40)
    assert batch.covered_through_seq == MAILBOX_SEQ


def test_page_limits_are_bounded() -> None:
    gate = online()
    gate.say(5, pull(limit=60_000))
    assert asked(gate, AskPull).limit == DEFAULT.page_max


def history(gate: Gate, direction: int, *records: bytes, has_more: bool = False) -> list[Any]:
    gate.say(5, PullHistory(conversation_id=GROUP, anchor=9, direction=direction), request=8)
    ask = asked(gate, AskHistory)
    assert (ask.anchor, ask.direction, ask.limit) == (9, direction, DEFAULT.page_default)
    gate.tell(HistoryAnswer(rid=ask.rid, conversation_id=GROUP, records=records, has_more=has_more))
    return gate.frames_with_requests(5)


def test_history_hides_the_keys_of_others() -> None:
    gate = online()
    ((batch, request),) = history(gate, HistoryDirection.OLDER, stored(1, sender=1), stored(2))
    assert isinstance(batch, HistoryBatch)
    assert request == 8
    assert [r.client_message_id for r in batch.records] == [key(1), None]
    assert [r.conversation_seq for r in batch.records] == [1, 2]
    assert not batch.has_more


@pytest.mark.parametrize(
    ("direction", "kept"),
    [
        (HistoryDirection.OLDER, [3, 4]),
        (HistoryDirection.NEWER, [1, 2]),
        (HistoryDirection.AROUND, [3, 4]),
    ],
)
def test_history_is_cut_to_one_batch_at_its_far_end(direction: int, kept: list[int]) -> None:
    gate = online()
    big = bytes(100 * 1024)
    records = [stored(seq, big) for seq in (1, 2, 3, 4)]
    ((batch, _),) = history(gate, direction, *records)
    assert [r.conversation_seq for r in batch.records] == kept
    assert batch.has_more


def test_a_stored_record_nobody_can_read_is_our_fault() -> None:
    gate = online()
    ((frame, request),) = history(gate, HistoryDirection.OLDER, b"\xc1" * 40)
    assert isinstance(frame, Error)
    assert (frame.code, request) == (ErrorCode.INTERNAL, 8)


def test_members() -> None:
    gate = online()
    gate.say(5, Members(conversation_id=GROUP, since_version=0), request=8)
    ask = asked(gate, AskMembers)
    gate.tell(
        MembersAnswer(
            rid=ask.rid,
            conversation_id=GROUP,
            version=3,
            since_version=0,
            added=(1, 2),
            removed=(),
            name="n",
            creator=1,
        )
    )
    (frame,) = gate.frames(5)
    assert isinstance(frame, MembersBatch)
    assert (frame.version, frame.added, frame.full, frame.creator) == (3, (1, 2), True, 1)
