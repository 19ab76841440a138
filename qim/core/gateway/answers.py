"""Answers of the services as frames to the client; bounded to one frame, nothing of other users in them."""

from typing import assert_never

from qim.core.contract.actor import Actor
from qim.core.contract.entities import MessageRecord, decode_stored_record
from qim.core.contract.frames import (
    AuthOk,
    ConversationState,
    DeviceDelivered,
    GroupOk,
    HistoryBatch,
    HistoryDirection,
    HistoryRecord,
    MailboxBatch,
    MailboxEntry,
    MembersBatch,
    Ok,
    ReadBy,
    SendAck,
    ServerLimits,
    SessionEntry,
    SessionListBatch,
    StateBatch,
    Tombstone,
    WireFrame,
)
from qim.core.contract.params import Parameters
from qim.core.contract.rpc import (
    GroupDone,
    HistoryAnswer,
    MembersAnswer,
    PullAnswer,
    PulledEntry,
    PushTarget,
    SendDone,
    SyncAnswer,
)
from qim.core.contract.rpc_session import (
    AskReadBy,
    ReadByAnswer,
    SessionListAnswer,
    SessionRow,
    StateDone,
    StatesAnswer,
)
from qim.core.gateway.questions import Question

ENTRY_OVERHEAD_BYTES = 256
"""More than the fields of a record besides its body take on the wire."""
_NO_DEVICE = b"\0"
"""Stands on the wire for "no device set a state": a conversation of which only a read mark is known (version 0)."""


def send_ack(done: SendDone) -> SendAck:
    """SEND_ACK: the message is COMMITTED."""
    return SendAck(
        client_message_id=done.client_message_id,
        message_id=done.message_id,
        conversation_id=done.conversation_id,
        conversation_seq=done.conversation_seq,
        last_activity_id=done.last_activity_id,
        sent_at=done.sent_at,
    )


def group_ok(done: GroupDone) -> GroupOk:
    """GROUP_OK: the version is COMMITTED."""
    return GroupOk(
        client_message_id=done.client_message_id,
        conversation_id=done.conversation_id,
        version=done.version,
        control_seq=done.control_seq,
        noop=done.noop,
    )


def members_batch(answer: MembersAnswer) -> MembersBatch:
    """MEMBERS_BATCH; everyone where the difference was asked since version 0."""
    return MembersBatch(
        conversation_id=answer.conversation_id,
        version=answer.version,
        since_version=answer.since_version,
        added=answer.added,
        removed=answer.removed,
        name=answer.name,
        creator=answer.creator,
        full=answer.since_version == 0,
    )


def auth_ok(
    sync: SyncAnswer, user_id: int, session_epoch: int, badge: int, wall: int, p: Parameters
) -> AuthOk:
    """AUTH_OK; badge 0 also where the session owner did not say in time: the session list tells it."""
    return AuthOk(
        session_epoch=session_epoch,
        user_id=user_id,
        sync_to_seq=sync.sync_to_seq,
        has_offline=sync.has_offline,
        cursor=sync.cursor,
        badge=badge,
        limits=ServerLimits(
            body_bytes_max=p.body_bytes_max,
            frame_bytes_max=p.frame_bytes_max,
            page_max=p.page_max,
            pulls_inflight_max=p.pulls_inflight_max,
            group_members_max=p.group_members_max,
            not_after_ms=p.not_after_ms,
            heartbeat_ms=p.heartbeat_ms,
            idle_kill_ms=p.idle_kill_ms,
        ),
        server_time=wall,
    )


def mailbox_batch(answer: PullAnswer) -> MailboxBatch:
    """MAILBOX_BATCH, the only thing that moves a cursor; the mailbox made all of it, the cursor too."""
    return MailboxBatch(
        entries=tuple(map(mailbox_entry, answer.entries)),
        covered_through_seq=answer.covered_through_seq,
        has_more=answer.has_more,
        cursor=answer.cursor,
        retry_after_ms=answer.retry_after_ms,
    )


def mailbox_entry(entry: PulledEntry) -> MailboxEntry:
    """One pulled entry."""
    return MailboxEntry(
        mailbox_seq=entry.mailbox_seq,
        event_id=entry.event_id,
        message_id=entry.message_id,
        conversation_id=entry.conversation_id,
        conversation_seq=entry.conversation_seq,
        last_activity_id=entry.last_activity_id,
        kind=entry.kind,
        sender_id=entry.sender_id,
        client_message_id=entry.client_message_id,
        custom_type=entry.custom_type,
        body=entry.body,
        tombstone=entry.tombstone,
        sent_at=entry.sent_at,
        peer_user_id=entry.peer_user_id or None,
        trace_id=entry.trace_id,
        conversation_kind=entry.conversation_kind,
    )


def pushed_entry(entry: PulledEntry, target: PushTarget) -> MailboxEntry:
    """The entry as one device sees it: its own mailbox_seq and event_id, the key only in the sender's own copy."""
    return MailboxEntry(
        mailbox_seq=target.mailbox_seq,
        event_id=target.event_id,
        message_id=entry.message_id,
        conversation_id=entry.conversation_id,
        conversation_seq=entry.conversation_seq,
        last_activity_id=entry.last_activity_id,
        kind=entry.kind,
        sender_id=entry.sender_id,
        client_message_id=entry.client_message_id if target.own_copy else None,
        custom_type=entry.custom_type,
        body=entry.body,
        tombstone=entry.tombstone,
        sent_at=entry.sent_at,
        peer_user_id=entry.peer_user_id or None,
        trace_id=entry.trace_id,
        conversation_kind=entry.conversation_kind,
    )


def history_batch(
    answer: HistoryAnswer, actor: Actor, direction: int, anchor: int, bytes_max: int
) -> HistoryBatch:
    """HISTORY_BATCH within ``bytes_max``, holding at least one record; what was cut is said by has_more.

    Cut at the far end in the direction asked (AROUND: at whichever end is farther from the anchor), so that the next
    page continues it. Raises msgspec.DecodeError on a stored record that no version can decode.
    """
    recalled = frozenset(answer.recalled)
    records = [
        history_record(decode_stored_record(stored), actor, recalled) for stored in answer.records
    ]
    first, last = _cut(records, direction, anchor, bytes_max)
    older, newer = first > 0, last < len(records)
    if direction == HistoryDirection.NEWER:
        older, newer = newer, older
    return HistoryBatch(
        conversation_id=answer.conversation_id,
        records=tuple(records[first:last]),
        has_more=answer.has_more or older,
        has_more_newer=answer.has_more_newer or (newer and direction == HistoryDirection.AROUND),
    )


def _cut(
    records: list[HistoryRecord], direction: int, anchor: int, bytes_max: int
) -> tuple[int, int]:
    """The part [first, last) that is kept: grown from where the page begins until ``bytes_max`` is reached."""
    if direction == HistoryDirection.OLDER:
        begin = len(records)
    elif direction == HistoryDirection.NEWER:
        begin = 0
    else:
        begin = sum(record.conversation_seq < anchor for record in records)
    first = last = begin
    left = bytes_max
    while first > 0 or last < len(records):
        up = last < len(records) and (first == 0 or last - begin <= begin - first)
        record = records[last if up else first - 1]
        left -= _size(record)
        if left < 0 and last > first:
            break
        first, last = (first, last + 1) if up else (first - 1, last)
    return first, last


def _size(record: HistoryRecord) -> int:
    return ENTRY_OVERHEAD_BYTES + len(record.body or b"")


def history_record(
    record: MessageRecord, actor: Actor, recalled: frozenset[int] = frozenset()
) -> HistoryRecord:
    """One record as ``actor`` may see it; whether he may at all was the writer's to judge.

    ``recalled``: conversation_seqs of which only a tombstone leaves the server.
    """
    own = record.sender_id == actor.user_id
    gone = record.conversation_seq in recalled
    return HistoryRecord(
        message_id=record.message_id,
        conversation_seq=record.conversation_seq,
        last_activity_id=record.last_activity_id,
        kind=record.kind,
        sender_id=record.sender_id,
        client_message_id=record.client_message_id if own else None,
        custom_type="" if gone else record.custom_type,
        body=None if gone else record.body,
        tombstone=Tombstone.RECALLED if gone else Tombstone.NONE,
        sent_at=record.sent_at,
        trace_id=record.trace_id,
    )


def session_rows_that_fit(answer: SessionListAnswer, bytes_max: int) -> int:
    """How many rows of the page fit one frame, at least one: heads carry whole bodies."""
    size = 0
    for index, row in enumerate(answer.rows):
        size += 2 * ENTRY_OVERHEAD_BYTES + len(row.head) + len(row.state_value)
        if index and size > bytes_max:
            return index
    return len(answer.rows)


def session_list_batch(answer: SessionListAnswer, actor: Actor) -> SessionListBatch:
    """SESSION_LIST_BATCH. Raises msgspec.DecodeError on a head that no version can decode."""
    return SessionListBatch(
        conversations=tuple(_session_entry(row, actor) for row in answer.rows),
        revision=answer.revision,
        after=answer.after or None,
        projected_through=answer.projected_through,
    )


def _session_entry(row: SessionRow, actor: Actor) -> SessionEntry:
    head = history_record(decode_stored_record(row.head), actor) if row.head else None
    return SessionEntry(
        conversation_id=row.conversation_id,
        conversation_kind=row.conversation_kind,
        peer_user_id=row.peer_user_id or None,
        last_activity_id=row.last_activity_id,
        head=head,
        unread=row.unread,
        unread_exact=row.unread_exact,
        read_seq=row.read_seq,
        state_version=row.state_version,
        state_flags=row.state_flags,
        state_value=row.state_value,
    )


SessionAnswer = StateDone | StatesAnswer | ReadByAnswer


def session_frame(question: Question, answer: SessionAnswer) -> WireFrame:
    """OK for what is durable in the user-state log, STATE_BATCH, READ_BY."""
    match answer:
        case StateDone():
            return Ok()
        case StatesAnswer():
            return state_batch(answer)
        case ReadByAnswer():
            assert isinstance(question, AskReadBy)
            return read_by(answer, question)
        case _:
            assert_never(answer)


def state_batch(answer: StatesAnswer) -> StateBatch:
    """STATE_BATCH; questions.py asks for so few that values of the greatest size fit one frame."""
    return StateBatch(
        states=tuple(
            ConversationState(
                conversation_id=row.conversation_id,
                version=row.version,
                device_id=row.device_id or _NO_DEVICE,
                read_seq=row.read_seq,
                flags=row.flags,
                value=row.value,
            )
            for row in answer.rows
        ),
        revision=answer.revision,
        has_more=answer.has_more,
        devices=tuple(
            DeviceDelivered(device_id=row.device_id, delivered_through=row.delivered_through)
            for row in answer.devices
        ),
    )


def read_by(answer: ReadByAnswer, question: AskReadBy) -> ReadBy:
    """READ_BY, answered by the frame that asked."""
    return ReadBy(
        conversation_id=question.conversation_id,
        conversation_seq=question.conversation_seq,
        users=answer.users,
        has_more=answer.has_more,
    )
