"""Freezing: from a request and its audience to the record that is reserved, once a reservation (pipeline.md §1.2).

The encoded record has no seq yet; the store puts seq and activity in front, and so does ``stored_of``.
"""

from msgspec import Struct

from qim.core.contract.entities import (
    MEMBERSHIP_CUSTOM_TYPE,
    ConversationKind,
    MembershipDelta,
    MembershipOp,
    MessageKind,
    MessageRecord,
    encode_record,
    stored_record,
)
from qim.core.contract.ids import dedupe_key
from qim.core.ports.store_message import AppliedRecord, MembershipWrite, ReserveItem
from qim.core.writer.audience import Audience
from qim.core.writer.commit import Commit
from qim.core.writer.membership import GroupChange, control_body, delta_of, membership_write
from qim.core.writer.overlays import overlay_of


class Content(Struct, frozen=True, kw_only=True):
    """What a record says beyond its request; ``version`` and ``digest`` are what its audience is named by (0: by itself)."""

    kind: int
    custom_type: str
    body: bytes
    conversation_kind: int
    version: int
    digest: bytes
    recipients: tuple[int, ...]
    delta: MembershipDelta | None = None


def freeze_message(commit: Commit, audience: Audience, message_id: bytes, wall: int) -> ReserveItem:
    """Freeze an ordinary message at ``audience``; a single chat is named by its two users instead of a version."""
    single = audience.kind == ConversationKind.SINGLE
    users = (audience.members[0], audience.members[-1]) if single else None
    sender = commit.actor.user_id
    peer = 0
    if users is not None:
        peer = users[1] if users[0] == sender else users[0]
    commit.peer_user_id = peer
    version, digest = (0, b"") if single else (audience.version, audience.digest)
    content = Content(
        kind=commit.kind,
        custom_type=commit.custom_type,
        body=commit.body,
        conversation_kind=audience.kind,
        version=version,
        digest=digest,
        # What a user hides from themselves concerns nobody else.
        recipients=(sender,) if commit.kind == MessageKind.DELETE_FOR_ME else (),
    )
    return _freeze(commit, content, message_id, wall, frozen=(version, digest), users=users)


def freeze_control(
    commit: Commit, change: GroupChange, message_id: bytes, wall: int
) -> tuple[ReserveItem, MembershipWrite]:
    """Freeze a membership control message: its record names V+1 and carries its own audience (pipeline.md §1.9)."""
    assert commit.group is not None
    write = membership_write(change, commit.group, commit.actor, message_id)
    delta = delta_of(change, write)
    commit.change = change
    content = Content(
        kind=MessageKind.CONTROL,
        custom_type=MEMBERSHIP_CUSTOM_TYPE,
        body=control_body(delta),
        conversation_kind=ConversationKind.GROUP,
        version=write.version,
        digest=write.digest,
        recipients=change.recipients,
        delta=delta,
    )
    frozen = (write.previous_version, write.previous_digest)
    return _freeze(commit, content, message_id, wall, frozen=frozen, users=None), write


def _freeze(
    commit: Commit,
    content: Content,
    message_id: bytes,
    wall: int,
    *,
    frozen: tuple[int, bytes],
    users: tuple[int, int] | None,
) -> ReserveItem:
    """``frozen``: the version and digest that must still stand when it is reserved."""
    commit.message_id = message_id
    commit.sent_at = wall
    commit.version = content.version
    commit.record = encode_record(_record(commit, content))
    return ReserveItem(
        dedupe_key=commit.key,
        request_digest=commit.digest,
        message_id=message_id,
        conversation_id=commit.conversation_id,
        conversation_kind=content.conversation_kind,
        version=frozen[0],
        membership_digest=frozen[1],
        single_users=users,
        record=commit.record,
        sent_at=wall,
        not_after=commit.not_after,
        overlay=overlay_of(content.kind, commit.actor.user_id, commit.target_seq),
    )


def _record(commit: Commit, content: Content) -> MessageRecord:
    actor = commit.actor
    return MessageRecord(
        tenant_id=actor.tenant_id,
        conversation_id=commit.conversation_id,
        conversation_kind=content.conversation_kind,
        kind=content.kind,
        sender_id=actor.user_id,
        device_id=actor.device_id,
        client_message_id=commit.client_message_id,
        request_digest=commit.digest,
        message_id=commit.message_id,
        version=content.version,
        membership_digest=content.digest,
        peer_user_id=commit.peer_user_id,
        recipients=content.recipients,
        delta=content.delta,
        body=content.body,
        custom_type=content.custom_type,
        retention_class=commit.retention_class,
        sent_at=commit.sent_at,
        not_after=commit.not_after,
        trace_id=commit.trace_id,
        target_seq=commit.target_seq,
    )


def stored_of(commit: Commit) -> bytes:
    """seq ‖ activity ‖ record, as the store made it at reservation."""
    return stored_record(commit.conversation_seq, commit.last_activity_id, commit.record)


def applied_record(offset: int, stored: bytes, record: MessageRecord) -> AppliedRecord:
    """An effective outbox record as OPEN (d) restores it."""
    single = record.conversation_kind == ConversationKind.SINGLE
    first, second = sorted((record.sender_id, record.peer_user_id))
    return AppliedRecord(
        offset=offset,
        dedupe_key=dedupe_key(record.tenant_id, record.sender_id, record.client_message_id),
        request_digest=record.request_digest,
        message_id=record.message_id,
        conversation_id=record.conversation_id,
        conversation_kind=record.conversation_kind,
        conversation_seq=record.conversation_seq,
        last_activity_id=record.last_activity_id,
        stored=stored,
        sent_at=record.sent_at,
        not_after=record.not_after,
        single_users=(first, second) if single else None,
        membership=_membership_of(record),
        overlay=overlay_of(record.kind, record.sender_id, record.target_seq),
    )


def _membership_of(record: MessageRecord) -> MembershipWrite | None:
    delta = record.delta
    if delta is None:
        return None
    # previous_digest is not in the record: restoring walks the log in order, so the store has it itself.
    return MembershipWrite(
        operation=delta.op,
        users=delta.users,
        previous_version=delta.previous_version,
        previous_digest=b"",
        version=delta.version,
        digest=delta.digest,
        creator=record.sender_id if delta.op == MembershipOp.CREATE else 0,
        name=delta.name,
        meta=delta.meta,
    )
