"""Session list, marks, states, readers, overlays: routed to their owners, answered by their frames, within one frame."""

from typing import Any

import pytest

from qim.core.contract.entities import (
    ConversationKind,
    MessageKind,
    MessageRecord,
    encode_record,
    stored_record,
)
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import (
    AuthOk,
    DeleteForMe,
    Error,
    HistoryBatch,
    HistoryDirection,
    MarkRead,
    Ok,
    PullHistory,
    PullSessionList,
    ReadBy,
    Recall,
    SendAck,
    SessionListBatch,
    SetState,
    StateBatch,
    StateSync,
    Tombstone,
)
from qim.core.contract.params import DEFAULT
from qim.core.contract.routing import shard, writer_shard
from qim.core.contract.rpc import (
    AskHistory,
    AskReadBy,
    AskSessionList,
    AskStates,
    AskSync,
    DeviceRow,
    HistoryAnswer,
    ReadByAnswer,
    Refused,
    SendDone,
    SessionListAnswer,
    SessionRow,
    StateDone,
    StateRow,
    StatesAnswer,
    SubmitOverlay,
    SubmitRead,
    SubmitState,
)
from qim.core.ports.registry import ReadLease, Resource, Role
from tests.core.gateway.gate import Gate, auth, key

GROUP = bytes(15) + b"\x77"
SESSION = Resource(role=Role.SESSION, number=shard(1, DEFAULT.shard_count))


def stored(seq: int, body: bytes = b"hello", sender: int = 2, custom_type: str = "") -> bytes:
    record = MessageRecord(
        tenant_id="default",
        conversation_id=GROUP,
        conversation_kind=ConversationKind.GROUP,
        kind=MessageKind.TEXT,
        sender_id=sender,
        device_id=b"phone",
        client_message_id=key(seq),
        request_digest=bytes(16),
        message_id=key(seq),
        version=1,
        membership_digest=bytes(16),
        peer_user_id=0,
        recipients=(),
        delta=None,
        body=body,
        custom_type=custom_type,
        retention_class=0,
        sent_at=7,
        not_after=9,
        trace_id=3,
    )
    return stored_record(seq, key(seq), encode_record(record))


def row(number: int, **more: Any) -> SessionRow:
    fields: dict[str, Any] = {
        "conversation_id": key(number),
        "conversation_kind": ConversationKind.GROUP,
        "peer_user_id": 0,
        "last_activity_id": key(number),
        "head": stored(number),
        "unread": 3,
        "unread_exact": True,
        "read_seq": 2,
        "state_version": 5,
        "state_flags": 1,
        "state_value": b"v",
    }
    return SessionRow(**(fields | more))


def listed(ask: AskSessionList, *rows: SessionRow, **more: Any) -> SessionListAnswer:
    fields: dict[str, Any] = {"revision": 9, "after": b"", "projected_through": 77, "badge": 4}
    return SessionListAnswer(rid=ask.rid, rows=rows, **(fields | more))


def online(**config: Any) -> Gate:
    gate = Gate(**config)
    gate.online(5)
    gate.effects.clear()
    gate.sessions = True
    return gate


def asked(gate: Gate, kind: type) -> Any:
    gate.owners()
    (question,) = gate.asked(kind)
    return question


ASKED = [
    (PullSessionList(revision=4, after=b"k", limit=7), AskSessionList),
    (MarkRead(conversation_id=GROUP, read_seq=8), SubmitRead),
    (SetState(conversation_id=GROUP, version=3, flags=1, value=b"x"), SubmitState),
    (StateSync(since_revision=6, limit=2), AskStates),
    (ReadBy(conversation_id=GROUP, conversation_seq=3), AskReadBy),
]


@pytest.mark.parametrize(("frame", "question"), ASKED, ids=lambda one: getattr(one, "NAME", ""))
def test_they_go_to_the_session_owner_of_the_users_shard(frame: Any, question: type) -> None:
    gate = online()
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
    gate = online()
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
    gate = online()
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
    gate = online()
    gate.say(5, frame, request=8)
    gate.owners()
    gate.now += 5_000
    gate.step()
    assert gate.refusal(5) == (code, 8)


def test_a_page_of_the_list() -> None:
    gate = online()
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
    gate = online()
    gate.say(5, PullSessionList())
    gate.tell(listed(asked(gate, AskSessionList)))
    (batch,) = gate.frames(5)
    assert (batch.after, batch.conversations) == (None, ())


def test_a_page_too_large_for_a_frame_is_asked_for_again_with_fewer_rows() -> None:
    """Heads carry whole bodies: 500 of 128 KiB fit no frame, and only the owner can make the page's key."""
    gate = online()
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
    gate = online()
    gate.say(5, PullSessionList(revision=3, after=b"k", limit=50), request=8)
    ask = asked(gate, AskSessionList)
    big = tuple(row(9 - n, head=stored(9 - n, bytes(100 * 1024))) for n in range(5))
    gate.tell(listed(ask, *big, revision=4))
    again = asked(gate, AskSessionList)
    assert (again.revision, again.after, again.limit) == (4, b"", 2)


def test_one_row_always_fits() -> None:
    gate = online()
    gate.say(5, PullSessionList(limit=1))
    ask = asked(gate, AskSessionList)
    gate.tell(listed(ask, row(1, head=stored(1, bytes(128 * 1024)), state_value=bytes(1024))))
    (batch,) = gate.frames(5)
    assert len(batch.conversations) == 1


def test_a_head_that_no_version_can_decode_is_an_error_of_this_request() -> None:
    gate = online()
    gate.say(5, PullSessionList(), request=8)
    gate.tell(listed(asked(gate, AskSessionList), row(1, head=bytes(24) + b"\xc1")))
    assert gate.refusal(5) == (ErrorCode.INTERNAL, 8)


def test_states_and_readers() -> None:
    gate = online()
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
    gate = online()
    gate.say(5, MarkRead(conversation_id=GROUP, read_seq=1), request=8)
    gate.tell(StateDone(rid=asked(gate, SubmitRead).rid))
    gate.say(5, SetState(conversation_id=GROUP, version=1, flags=1), request=9)
    gate.tell(StateDone(rid=asked(gate, SubmitState).rid))
    heard = gate.frames_with_requests(5)
    assert [(type(frame), request) for frame, request in heard] == [(Ok, 8), (Ok, 9)]


def test_lists_and_states_count_as_batches() -> None:
    gate = online()
    for _ in range(DEFAULT.pulls_inflight_max + 1):
        gate.say(5, PullSessionList(), request=8)
    ((frame, _),) = gate.frames_with_requests(5)
    assert isinstance(frame, Error)
    assert frame.code == ErrorCode.RATE_LIMITED


# ---------------------------------------------------------------- history


def history(gate: Gate, direction: int, anchor: int, *records: bytes, **more: Any) -> HistoryBatch:
    gate.say(5, PullHistory(conversation_id=GROUP, anchor=anchor, direction=direction), request=8)
    ask = asked(gate, AskHistory)
    fields: dict[str, Any] = {"has_more": False}
    gate.tell(HistoryAnswer(rid=ask.rid, conversation_id=GROUP, records=records, **(fields | more)))
    (batch,) = gate.frames(5)
    assert isinstance(batch, HistoryBatch)
    return batch


def test_recalled_records_leave_as_tombstones() -> None:
    batch = history(
        online(),
        HistoryDirection.OLDER,
        0,
        stored(1),
        stored(2, b"secret", custom_type="app/secret"),
        stored(3),
        recalled=(2,),
    )
    assert batch.records[1].custom_type == "", "it may tell what the body was"
    told = [(r.conversation_seq, r.body, r.tombstone) for r in batch.records]
    assert told == [(1, b"hello", 0), (2, None, Tombstone.RECALLED), (3, b"hello", 0)]


def test_around_says_both_ends() -> None:
    batch = history(
        online(),
        HistoryDirection.AROUND,
        2,
        stored(1),
        stored(2),
        has_more=False,
        has_more_newer=True,
    )
    assert (batch.has_more, batch.has_more_newer) == (False, True)


@pytest.mark.parametrize(
    ("direction", "anchor", "kept", "older", "newer"),
    [
        (HistoryDirection.OLDER, 0, [4, 5], True, False),
        (HistoryDirection.NEWER, 0, [1, 2], True, False),
        (HistoryDirection.AROUND, 3, [2, 3], True, True),
        (HistoryDirection.AROUND, 1, [1, 2], False, True),
        (HistoryDirection.AROUND, 5, [4, 5], True, False),
    ],
)
def test_what_does_not_fit_a_frame_is_cut_at_the_far_end(
    direction: int, anchor: int, kept: list[int], older: bool, newer: bool
) -> None:
    records = [stored(seq, bytes(100 * 1024)) for seq in range(1, 6)]
    batch = history(online(), direction, anchor, *records)
    assert [record.conversation_seq for record in batch.records] == kept
    assert (batch.has_more, batch.has_more_newer) == (older, newer)


# ---------------------------------------------------------------- badge


def entering() -> Gate:
    gate = Gate()
    gate.sessions = True
    gate.entering(5)
    gate.presence()
    return gate


def test_auth_ok_waits_for_the_badge() -> None:
    gate = entering()
    gate.synced()
    assert gate.frames(5) == []
    (ask,) = gate.asked(AskSessionList)
    gate.tell(listed(ask, row(1), badge=42))
    (frame,) = gate.frames(5)
    assert isinstance(frame, AuthOk)
    assert frame.badge == 42


def test_the_badge_may_come_first() -> None:
    gate = entering()
    (ask,) = gate.asked(AskSessionList)
    gate.tell(listed(ask, badge=42))
    gate.tell(listed(ask, badge=43))
    gate.synced()
    (frame,) = gate.frames(5)
    assert frame.badge == 42


def test_the_wait_for_the_badge_has_an_end() -> None:
    gate = entering()
    gate.synced()
    (ask,) = gate.asked(AskSessionList)
    due = gate.node.deadline()
    assert due == gate.now + 250
    gate.now = due
    gate.step()
    (frame,) = gate.frames(5)
    assert (frame.badge, gate.counts["gateway_badges_unknown"]) == (0, 1)
    gate.tell(listed(ask, badge=42))
    assert gate.frames(5) == [], "the late answer is nobody's"


def test_a_refused_badge_is_no_reason_to_wait() -> None:
    gate = entering()
    gate.synced()
    (ask,) = gate.asked(AskSessionList)
    gate.tell(Refused(rid=ask.rid, code=ErrorCode.UNAVAILABLE, message="opening"))
    (frame,) = gate.frames(5)
    assert frame.badge == 0


def test_the_badge_of_an_auth_given_up_is_not_the_next_ones() -> None:
    gate = entering()
    (first,) = gate.asked(AskSessionList)
    (sync,) = gate.asked(AskSync)
    gate.tell(Refused(rid=sync.rid, code=ErrorCode.CURSOR_EXPIRED, message="old"))
    assert gate.refusal(5) == (ErrorCode.CURSOR_EXPIRED, 1)
    gate.effects.clear()
    gate.say(5, auth(attempt=2), request=2)
    gate.tell(listed(first, badge=42))
    gate.presence()
    gate.synced()
    assert gate.frames(5) == []
    gate.now += 250
    gate.step()
    (frame,) = gate.frames(5)
    assert frame.badge == 0


def test_a_connection_that_went_takes_its_badge_along() -> None:
    gate = entering()
    gate.hang_up(5)
    gate.now += 250
    gate.step()
    assert gate.node.deadline() != gate.now
