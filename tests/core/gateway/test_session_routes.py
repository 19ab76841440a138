"""Session list, marks, states, readers, overlays: routed to their owners, answered by their frames, within one frame."""

from typing import Any

import pytest

from qim.core.contract.entities import MessageKind
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import (
    DeleteForMe,
    Error,
    MarkRead,
    Ok,
    PullSessionList,
    ReadBy,
    Recall,
    SendAck,
    SessionListBatch,
    SetState,
    StateBatch,
    StateSync,
)
from qim.core.contract.params import DEFAULT
from qim.core.contract.routing import shard, writer_shard
from qim.core.contract.rpc import Refused, SendDone, SubmitOverlay
from qim.core.contract.rpc_session import (
    AskReadBy,
    AskSessionList,
    AskStates,
    DeviceRow,
    ReadByAnswer,
    StateDone,
    StateRow,
    StatesAnswer,
    SubmitRead,
    SubmitState,
)
from qim.core.ports.registry import ReadLease, Resource, Role
from tests.core.gateway.gate import key
from tests.core.gateway.services import GROUP, asked, listed, online_with_sessions, row, stored

SESSION = Resource(role=Role.SESSION, number=shard(1, DEFAULT.shard_count))
ASKED = [
    (PullSessionList(revision=4, after=b"k", limit=7), AskSessionList),
    (MarkRead(conversation_id=GROUP, read_seq=8), SubmitRead),
    (SetState(conversation_id=GROUP, version=3, flags=1, value=b"x"), SubmitState),
    (StateSync(since_revision=6, limit=2), AskStates),
    (ReadBy(conversation_id=GROUP, conversation_seq=3), AskReadBy),
]


@pytest.mark.parametrize(("frame", "question"), ASKED, ids=lambda one: getattr(one, "NAME", ""))
def test_they_go_to_the_session_owner_of_the_users_shard(frame: Any, question: type) -> None:
    gate = online_with_sessions()
    gate.say(5, frame, request=8)
    (read,) = gate.take(ReadLease)
    assert read.resource == SESSION
    gate.effects.append(read)
    ask = asked(gate, question)
    assert (ask.actor.user_id, ask.actor.device_id) == (1, b"phone")
    for name in ("conversation_id", "read_seq", "version", "flags", "value", "limit", "revision"):
        if hasattr(frame, name):
            assert getattr(ask, name) == getattr(frame, name)
    gate.tell(Refused(rid=ask.rid, code=ErrorCode.NOT_MEMBER, message="no"))
    assert gate.refusal(5) == (ErrorCode.NOT_MEMBER, 8)


def test_limits_are_bounded_before_they_are_asked() -> None:
    gate = online_with_sessions()
    for limit, pages, states in (
        (0, DEFAULT.page_default, DEFAULT.page_default),
        (60_000, DEFAULT.page_max, 256),
    ):
        gate.say(5, PullSessionList(limit=limit), StateSync(limit=limit))
        assert asked(gate, AskSessionList).limit == pages
        assert asked(gate, AskStates).limit == states


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        (Recall(client_message_id=key(4), not_after=9, conversation_id=GROUP, target_seq=3), MessageKind.RECALL),
        (DeleteForMe(client_message_id=key(4), not_after=9, conversation_id=GROUP, target_seq=3), MessageKind.DELETE_FOR_ME),
    ],
)  # fmt: skip
def test_overlays_go_to_the_writer_and_are_answered_like_sends(frame: Any, kind: int) -> None:
    gate = online_with_sessions()
    gate.say(5, frame, request=8)
    (read,) = gate.take(ReadLease)
    number = writer_shard(GROUP, DEFAULT.outbox_partition_count)
    assert read.resource == Resource(role=Role.WRITER, number=number)
    gate.effects.append(read)
    ask = asked(gate, SubmitOverlay)
    assert (ask.kind, ask.target_seq, ask.not_after) == (kind, 3, 9)
    gate.tell(
        SendDone(
            rid=ask.rid,
            client_message_id=ask.client_message_id,
            message_id=key(1000),
            conversation_id=GROUP,
            conversation_seq=4,
            last_activity_id=key(1000),
            sent_at=5,
        )
    )
    ((ack, request),) = gate.frames_with_requests(5)
    assert isinstance(ack, SendAck)
    assert (ack.client_message_id, ack.conversation_seq, request) == (key(4), 4, 8)


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (Recall(client_message_id=key(4), not_after=9, conversation_id=GROUP, target_seq=3), ErrorCode.TIMEOUT_UNKNOWN),
        (MarkRead(conversation_id=GROUP, read_seq=1), ErrorCode.TIMEOUT_UNKNOWN),
        (SetState(conversation_id=GROUP, version=1, flags=0), ErrorCode.TIMEOUT_UNKNOWN),
        (StateSync(), ErrorCode.UNAVAILABLE),
        (ReadBy(conversation_id=GROUP, conversation_seq=1), ErrorCode.UNAVAILABLE),
        (PullSessionList(), ErrorCode.UNAVAILABLE),
    ],
)  # fmt: skip
def test_silence_says_whether_it_may_have_been_done(frame: Any, code: ErrorCode) -> None:
    gate = online_with_sessions()
    gate.say(5, frame, request=8)
    gate.owners()
    gate.now += 5_000
    gate.step()
    assert gate.refusal(5) == (code, 8)


def test_a_page_of_the_list() -> None:
    gate = online_with_sessions()
    gate.say(5, PullSessionList(), request=8)
    ask = asked(gate, AskSessionList)
    rows = (row(2, peer_user_id=6), row(1, head=b"", unread=200, unread_exact=False))
    gate.tell(listed(ask, *rows, after=b"next"))
    ((batch, request),) = gate.frames_with_requests(5)
    assert isinstance(batch, SessionListBatch)
    assert (batch.revision, batch.after, batch.projected_through, request) == (9, b"next", 77, 8)
    first, second = batch.conversations
    assert (first.peer_user_id, first.unread, first.state_value) == (6, 3, b"v")
    assert first.head is not None
    assert (first.head.body, first.head.client_message_id) == (b"hello", None)
    assert (second.peer_user_id, second.head, second.unread_exact) == (None, None, False)


def test_the_last_page_has_no_key() -> None:
    gate = online_with_sessions()
    gate.say(5, PullSessionList())
    gate.tell(listed(asked(gate, AskSessionList)))
    (batch,) = gate.frames(5)
    assert (batch.after, batch.conversations) == (None, ())


def test_a_page_too_large_for_a_frame_is_asked_for_again_with_fewer_rows() -> None:
    """Heads carry whole bodies: 500 of 128 KiB fit no frame, and only the owner can make the page's key."""
    gate = online_with_sessions()
    gate.say(5, PullSessionList(limit=50), request=8)
    ask = asked(gate, AskSessionList)
    big = tuple(row(50 - n, head=stored(50 - n, bytes(100 * 1024))) for n in range(50))
    gate.tell(listed(ask, *big, after=b"end"))
    assert gate.frames(5) == []
    again = asked(gate, AskSessionList)
    assert (again.revision, again.after, again.limit) == (9, ask.after, 2)
    assert again.rid != ask.rid
    gate.tell(listed(again, *big[:2], after=b"k2"))
    ((batch, request),) = gate.frames_with_requests(5)
    assert (len(batch.conversations), batch.after, request) == (2, b"k2", 8)


def test_a_lost_revision_begins_at_its_start_where_its_page_is_too_large() -> None:
    gate = online_with_sessions()
    gate.say(5, PullSessionList(revision=3, after=b"k", limit=50), request=8)
    ask = asked(gate, AskSessionList)
    big = tuple(row(9 - n, head=stored(9 - n, bytes(100 * 1024))) for n in range(5))
    gate.tell(listed(ask, *big, revision=4))
    again = asked(gate, AskSessionList)
    assert (again.revision, again.after, again.limit) == (4, b"", 2)


def test_one_row_always_fits() -> None:
    gate = online_with_sessions()
    gate.say(5, PullSessionList(limit=1))
    ask = asked(gate, AskSessionList)
    gate.tell(listed(ask, row(1, head=stored(1, bytes(128 * 1024)), state_value=bytes(1024))))
    (batch,) = gate.frames(5)
    assert len(batch.conversations) == 1


def test_a_head_that_no_version_can_decode_is_an_error_of_this_request() -> None:
    gate = online_with_sessions()
    gate.say(5, PullSessionList(), request=8)
    gate.tell(listed(asked(gate, AskSessionList), row(1, head=bytes(24) + b"\xc1")))
    assert gate.refusal(5) == (ErrorCode.INTERNAL, 8)


def test_states_and_readers() -> None:
    gate = online_with_sessions()
    gate.say(5, StateSync(), request=8)
    ask = asked(gate, AskStates)
    rows = (
        StateRow(conversation_id=GROUP, version=3, device_id=b"d", read_seq=4, flags=1, value=b"v"),
        StateRow(conversation_id=key(1), version=0, device_id=b"", read_seq=9, flags=0, value=b""),
    )
    devices = (DeviceRow(b"d", 7), DeviceRow(b"\xff\0", 9))
    gate.tell(StatesAnswer(rid=ask.rid, rows=rows, revision=12, has_more=True, devices=devices))
    (batch,) = gate.frames(5)
    assert isinstance(batch, StateBatch)
    assert (batch.revision, batch.has_more) == (12, True)
    assert tuple(DeviceRow(d.device_id, d.delivered_through) for d in batch.devices) == devices
    assert [(s.version, s.device_id, s.read_seq) for s in batch.states] == [
        (3, b"d", 4),
        (0, b"\0", 9),
    ]
    gate.say(5, ReadBy(conversation_id=GROUP, conversation_seq=3), request=9)
    ask = asked(gate, AskReadBy)
    gate.tell(ReadByAnswer(rid=ask.rid, users=(2, 3), has_more=True))
    ((told, request),) = gate.frames_with_requests(5)
    assert (told.conversation_id, told.conversation_seq, told.users, told.has_more) == (
        GROUP,
        3,
        (2, 3),
        True,
    )
    assert request == 9


def test_marks_and_states_are_answered_ok() -> None:
    gate = online_with_sessions()
    gate.say(5, MarkRead(conversation_id=GROUP, read_seq=1), request=8)
    gate.tell(StateDone(rid=asked(gate, SubmitRead).rid))
    gate.say(5, SetState(conversation_id=GROUP, version=1, flags=1), request=9)
    gate.tell(StateDone(rid=asked(gate, SubmitState).rid))
    heard = gate.frames_with_requests(5)
    assert [(type(frame), request) for frame, request in heard] == [(Ok, 8), (Ok, 9)]


def test_lists_and_states_count_as_batches() -> None:
    gate = online_with_sessions()
    for _ in range(DEFAULT.pulls_inflight_max + 1):
        gate.say(5, PullSessionList(), request=8)
    ((frame, _),) = gate.frames_with_requests(5)
    assert isinstance(frame, Error)
    assert frame.code == ErrorCode.RATE_LIMITED
