"""Answers of the services as frames to the client; bounded to one frame, nothing of other users in them."""

from qim.core.contract.entities import MessageRecord, decode_stored_record
from qim.core.contract.frames import (
    AuthOk,
    GroupOk,
    HistoryBatch,
    HistoryDirection,
    HistoryRecord,
    MailboxBatch,
    MailboxEntry,
    MembersBatch,
    SendAck,
    ServerLimits,
)
from qim.core.contract.params import Parameters
from qim.core.contract.rpc import (
    Actor,
    GroupDone,
    HistoryAnswer,
    MembersAnswer,
    PullAnswer,
    PulledEntry,
    PushTarget,
    SendDone,
    SyncAnswer,
)

ENTRY_OVERHEAD_BYTES = 256
"""More than the fields of a record besides its body take on the wire."""


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


def auth_ok(sync: SyncAnswer, user_id: int, session_epoch: int, wall: int, p: Parameters) -> AuthOk:
    """AUTH_OK; the badge comes with the session list, until then 0."""
    return AuthOk(
        session_epoch=session_epoch,
        user_id=user_id,
        sync_to_seq=sync.sync_to_seq,
        has_offline=sync.has_offline,
        cursor=sync.cursor,
        badge=0,
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
    answer: HistoryAnswer, actor: Actor, direction: int, bytes_max: int
) -> HistoryBatch:
    """HISTORY_BATCH within ``bytes_max``, holding at least one record; what was cut is said by has_more.

    Cut at the far end in the direction asked, so that the next page continues it. Raises msgspec.DecodeError on a
    stored record that no version can decode.
    """
    records = [history_record(decode_stored_record(stored), actor) for stored in answer.records]
    older = direction != HistoryDirection.NEWER
    kept: list[HistoryRecord] = []
    size = 0
    for record in reversed(records) if older else records:
        size += ENTRY_OVERHEAD_BYTES + len(record.body or b"")
        if kept and size > bytes_max:
            break
        kept.append(record)
    if older:
        kept.reverse()
    return HistoryBatch(
        conversation_id=answer.conversation_id,
        records=tuple(kept),
        has_more=answer.has_more or len(kept) < len(records),
    )


def history_record(record: MessageRecord, actor: Actor) -> HistoryRecord:
    """One record as ``actor`` may see it; whether he may at all was the writer's to judge."""
    own = record.sender_id == actor.user_id
    return HistoryRecord(
        message_id=record.message_id,
        conversation_seq=record.conversation_seq,
        last_activity_id=record.last_activity_id,
        kind=record.kind,
        sender_id=record.sender_id,
        client_message_id=record.client_message_id if own else None,
        custom_type=record.custom_type,
        body=record.body,
        sent_at=record.sent_at,
        trace_id=record.trace_id,
    )
