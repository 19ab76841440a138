"""Wire frames as what the device keeps, and rows as what it sends; nothing is decided here."""

from typing import assert_never

from msgspec.structs import replace

from qim.core.client.vocabulary import GroupChangeRequested, OverlayRequested, SendRequested
from qim.core.contract.entities import MembershipOp, MessageKind
from qim.core.contract.errors import ErrorCode, ProtocolError
from qim.core.contract.frames import (
    CreateGroup,
    DeleteForMe,
    GroupAdd,
    GroupRemove,
    HistoryRecord,
    LeaveGroup,
    MailboxEntry,
    Recall,
    SendAck,
    SendMessage,
    SessionEntry,
    WireFrame,
    decode_client_frame,
    encode_frame,
)
from qim.core.contract.wire import FRAME_BYTES_MAX, FrameDecoder
from qim.core.ports.local_sessions import ListedConversation
from qim.core.ports.local_store import (
    Coordinates,
    LocalMessage,
    PendingGroupChange,
    PendingMessage,
    PendingOverlay,
    PendingRow,
)

_OVERLAYS = (MessageKind.RECALL, MessageKind.DELETE_FOR_ME)


def message_of_entry(entry: MailboxEntry) -> LocalMessage:
    """A mailbox entry, pulled or pushed."""
    return LocalMessage(
        message_id=entry.message_id,
        conversation_id=entry.conversation_id,
        conversation_kind=entry.conversation_kind,
        conversation_seq=entry.conversation_seq,
        last_activity_id=entry.last_activity_id,
        kind=entry.kind,
        sender_id=entry.sender_id,
        client_message_id=entry.client_message_id,
        custom_type=entry.custom_type,
        body=entry.body,
        tombstone=entry.tombstone,
        sent_at=entry.sent_at,
        peer_user_id=entry.peer_user_id or 0,
        trace_id=entry.trace_id,
    )


def message_of_record(record: HistoryRecord, conversation_id: bytes) -> LocalMessage:
    """A record of a history page."""
    return LocalMessage(
        message_id=record.message_id,
        conversation_id=conversation_id,
        conversation_kind=0,
        conversation_seq=record.conversation_seq,
        last_activity_id=record.last_activity_id,
        kind=record.kind,
        sender_id=record.sender_id,
        client_message_id=record.client_message_id,
        custom_type=record.custom_type,
        body=record.body,
        tombstone=record.tombstone,
        sent_at=record.sent_at,
        peer_user_id=0,
        trace_id=record.trace_id,
    )


def coordinates_of_message(message: LocalMessage) -> Coordinates:
    """Where our own message stands, as its own copy says."""
    assert message.client_message_id is not None
    return Coordinates(
        client_message_id=message.client_message_id,
        message_id=message.message_id,
        conversation_id=message.conversation_id,
        conversation_seq=message.conversation_seq,
        last_activity_id=message.last_activity_id,
        sent_at=message.sent_at,
    )


def coordinates_of_ack(ack: SendAck) -> Coordinates:
    """Where our message stands, as SEND_ACK says."""
    return Coordinates(
        client_message_id=ack.client_message_id,
        message_id=ack.message_id,
        conversation_id=ack.conversation_id,
        conversation_seq=ack.conversation_seq,
        last_activity_id=ack.last_activity_id,
        sent_at=ack.sent_at,
    )


def listed_of_entry(entry: SessionEntry) -> ListedConversation:
    """An entry of the session list, its preview as a message."""
    head = None
    if entry.head is not None:
        head = replace(
            message_of_record(entry.head, entry.conversation_id),
            conversation_kind=entry.conversation_kind,
        )
    return ListedConversation(
        conversation_id=entry.conversation_id,
        conversation_kind=entry.conversation_kind,
        peer_user_id=entry.peer_user_id or 0,
        last_activity_id=entry.last_activity_id,
        head=head,
        unread=entry.unread,
        unread_exact=entry.unread_exact,
        read_seq=entry.read_seq,
        version=entry.state_version,
        flags=entry.state_flags,
        value=entry.state_value,
    )


Submitted = SendRequested | GroupChangeRequested | OverlayRequested


def row_of_command(command: Submitted, order: int) -> PendingRow:
    """The row that will stand for the command, not dated yet."""
    if isinstance(command, OverlayRequested):
        return PendingOverlay(
            order=order,
            client_message_id=command.client_message_id,
            kind=command.kind,
            conversation_id=command.conversation_id,
            target_seq=command.target_seq,
            created_at=command.wall,
        )
    if isinstance(command, GroupChangeRequested):
        return PendingGroupChange(
            order=order,
            client_message_id=command.client_message_id,
            operation=command.operation,
            conversation_id=command.conversation_id,
            members=command.members,
            name=command.name,
            meta=command.meta,
            created_at=command.wall,
        )
    return PendingMessage(
        order=order,
        client_message_id=command.client_message_id,
        conversation_id=command.conversation_id,
        peer_user_id=command.peer_user_id,
        kind=command.kind,
        custom_type=command.custom_type,
        body=command.body,
        retention_class=command.retention_class,
        created_at=command.wall,
    )


Overlay = Recall | DeleteForMe
Transmission = SendMessage | CreateGroup | GroupAdd | GroupRemove | LeaveGroup | Overlay


def frame_of_row(row: PendingRow) -> Transmission:
    """The same bytes in every transmission: nothing but the row goes in, and its not_after stands."""
    assert row.not_after, "a row is transmitted only with its not_after on disk"
    if isinstance(row, PendingGroupChange):
        return _group_frame(row)
    if isinstance(row, PendingOverlay):
        frame = Recall if row.kind == MessageKind.RECALL else DeleteForMe
        return frame(
            client_message_id=row.client_message_id,
            not_after=row.not_after,
            conversation_id=row.conversation_id,
            target_seq=row.target_seq,
        )
    return SendMessage(
        client_message_id=row.client_message_id,
        conversation_id=row.conversation_id,
        peer_user_id=row.peer_user_id,
        kind=row.kind,
        custom_type=row.custom_type,
        body=row.body,
        retention_class=row.retention_class,
        not_after=row.not_after,
    )


def _group_frame(row: PendingGroupChange) -> Transmission:
    operation = MembershipOp(row.operation)
    key, until = row.client_message_id, row.not_after
    if operation is MembershipOp.CREATE:
        return CreateGroup(
            client_message_id=key,
            not_after=until,
            members=row.members,
            name=row.name,
            meta=row.meta,
        )
    assert row.conversation_id is not None
    group = row.conversation_id
    match operation:
        case MembershipOp.ADD:
            return GroupAdd(
                client_message_id=key, not_after=until, conversation_id=group, members=row.members
            )
        case MembershipOp.REMOVE:
            return GroupRemove(
                client_message_id=key, not_after=until, conversation_id=group, members=row.members
            )
        case MembershipOp.LEAVE:
            return LeaveGroup(client_message_id=key, not_after=until, conversation_id=group)
        case _:
            assert_never(operation)


def refusal_of_row(row: PendingRow) -> ProtocolError | None:
    """``refusal_of_frame`` for a row that is not stored yet."""
    if isinstance(row, PendingGroupChange):
        creates = row.operation == MembershipOp.CREATE
        if row.operation not in tuple(MembershipOp) or creates != (row.conversation_id is None):
            return _invalid("a membership change of an existing group names it, CREATE names none")
    if isinstance(row, PendingOverlay) and row.kind not in _OVERLAYS:
        return _invalid("no overlay of this kind")
    return refusal_of_frame(frame_of_row(replace(row, not_after=1)))


def refusal_of_frame(frame: WireFrame) -> ProtocolError | None:
    """What the server would refuse at sight, found by its own decoder: INVALID_ARGUMENT or FRAME_TOO_LARGE."""
    try:
        (raw,) = FrameDecoder(FRAME_BYTES_MAX).feed(encode_frame(frame))
        decode_client_frame(raw)
    except ProtocolError as error:
        # A value of another type is malformed for the server, and a wrong argument of whoever asked here.
        return _invalid(error.message) if error.code is ErrorCode.MALFORMED_FRAME else error
    except (OverflowError, UnicodeEncodeError, TypeError) as error:
        # No MessagePack integer, a lone surrogate, a value of a type that no frame has.
        return _invalid(str(error))
    return None


def _invalid(message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INVALID_ARGUMENT, message)
