"""Messages between services (gateway, writer, mailbox): plain data, MessagePack with a tag, one request id a question.

The gateway injects the actor (tenant, user, device); a client never names itself (pipeline.md §6). Every question is
answered by exactly one answer with its ``rid`` or by nothing at all: the asker's wait has an end. ``Refused`` carries an
ErrorCode number and, for NOT_OWNER, the owner's address.
"""

from typing import Final

import msgspec
from msgspec import Struct

from qim.core.contract.actor import Actor
from qim.core.contract.rpc_admin import AdminDone, AdminOrder
from qim.core.contract.rpc_session import (
    AskReadBy,
    AskSessionList,
    AskStates,
    AskSummaries,
    ReadByAnswer,
    SessionListAnswer,
    StateDone,
    StatesAnswer,
    SubmitRead,
    SubmitState,
    SummariesAnswer,
)


class SubmitSend(Struct, frozen=True, kw_only=True, tag="send", gc=False):
    """Gateway to writer: SEND_MESSAGE (exactly one of conversation_id, peer_user_id may be None)."""

    rid: int
    actor: Actor
    client_message_id: bytes
    conversation_id: bytes | None
    peer_user_id: int | None
    kind: int
    custom_type: str
    body: bytes
    retention_class: int
    not_after: int


class SendDone(Struct, frozen=True, kw_only=True, tag="sent", gc=False):
    """Writer to gateway: the coordinates of a COMMITTED message."""

    rid: int
    client_message_id: bytes
    message_id: bytes
    conversation_id: bytes
    conversation_seq: int
    last_activity_id: bytes
    sent_at: int


class SubmitGroup(Struct, frozen=True, kw_only=True, tag="group", gc=False):
    """Gateway to writer: CREATE_GROUP (conversation_id None), GROUP_ADD, GROUP_REMOVE, LEAVE_GROUP."""

    rid: int
    actor: Actor
    op: int
    client_message_id: bytes
    not_after: int
    conversation_id: bytes | None
    members: tuple[int, ...]
    name: str = ""
    meta: bytes = b""


class GroupDone(Struct, frozen=True, kw_only=True, tag="grouped", gc=False):
    """Writer to gateway: GROUP_OK, only once ``version`` is COMMITTED."""

    rid: int
    client_message_id: bytes
    conversation_id: bytes
    version: int
    control_seq: int
    noop: bool


class AskHistory(Struct, frozen=True, kw_only=True, tag="history", gc=False):
    """Gateway to writer: PULL_HISTORY; direction 0 older, 1 newer, 2 around ``anchor``."""

    rid: int
    actor: Actor
    conversation_id: bytes
    anchor: int
    direction: int
    limit: int


class HistoryAnswer(Struct, frozen=True, kw_only=True, tag="past", gc=False):
    """Writer to gateway: stored records (seq ‖ activity ‖ record) ascending by seq; ``has_more`` exact in the direction."""

    rid: int
    conversation_id: bytes
    records: tuple[bytes, ...]
    has_more: bool
    has_more_newer: bool = False
    recalled: tuple[int, ...] = ()
    """conversation_seqs among ``records`` that are recalled: the gateway shows a tombstone, never their body."""


class AskMembers(Struct, frozen=True, kw_only=True, tag="members", gc=False):
    """Gateway to writer: MEMBERS since a version (0: all). ``seeing``: only those who see this conversation_seq (0: all)."""

    rid: int
    actor: Actor
    conversation_id: bytes
    since_version: int
    seeing: int = 0


class MembersAnswer(Struct, frozen=True, kw_only=True, tag="memberlist", gc=False):
    """Writer to gateway: members added and removed since ``since_version``."""

    rid: int
    conversation_id: bytes
    version: int
    since_version: int
    added: tuple[int, ...]
    removed: tuple[int, ...]
    name: str
    creator: int


class AskSync(Struct, frozen=True, kw_only=True, tag="sync", gc=False):
    """Gateway to mailbox at AUTH: judge this cursor (None: new device) and say where the lane stands."""

    rid: int
    actor: Actor
    cursor: bytes | None


class SyncAnswer(Struct, frozen=True, kw_only=True, tag="synced", gc=False):
    """Mailbox to gateway: sync_to_seq = the lane's W now; ``cursor`` is the one to pull from."""

    rid: int
    sync_to_seq: int
    has_offline: bool
    cursor: bytes


class AskPull(Struct, frozen=True, kw_only=True, tag="pull", gc=False):
    """Gateway to mailbox: PULL_MAILBOX. up_to_seq 0 means as far as W."""

    rid: int
    actor: Actor
    cursor: bytes
    up_to_seq: int
    limit: int


class PulledEntry(Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """An entry joined with its body: ``body`` None with tombstone 0 is a hint without body (push only)."""

    mailbox_seq: int
    event_id: bytes
    message_id: bytes
    conversation_id: bytes
    conversation_kind: int
    conversation_seq: int
    last_activity_id: bytes
    kind: int
    sender_id: int
    client_message_id: bytes | None
    custom_type: str
    body: bytes | None
    tombstone: int
    sent_at: int
    peer_user_id: int
    trace_id: int


class PullAnswer(Struct, frozen=True, kw_only=True, tag="pulled", gc=False):
    """Mailbox to gateway: the contiguous prefix up to ``covered_through_seq``; the only thing that moves a cursor."""

    rid: int
    entries: tuple[PulledEntry, ...]
    covered_through_seq: int
    has_more: bool
    cursor: bytes
    retry_after_ms: int


class AskWatermark(Struct, frozen=True, kw_only=True, tag="mark", gc=False):
    """Gateway to mailbox: the lane watermark of these users (all of one shard), for ONLINE_READY and PONG."""

    rid: int
    shard: int
    users: tuple[int, ...]


class WatermarkAnswer(Struct, frozen=True, kw_only=True, tag="marked", gc=False):
    """Mailbox to gateway: one mailbox_seq a user asked for."""

    rid: int
    watermarks: tuple[int, ...]


class PushTarget(Struct, frozen=True, array_like=True, gc=False):
    """One online device at the addressed gateway; own_copy: it belongs to the sender (gets client_message_id)."""

    user_id: int
    conn: int
    session_epoch: int
    mailbox_seq: int
    event_id: bytes
    own_copy: bool


class Push(Struct, frozen=True, array_like=True, gc=False):
    """One message for many devices of one gateway; the body stands once."""

    entry: PulledEntry
    targets: tuple[PushTarget, ...]


class PushBatch(Struct, frozen=True, kw_only=True, tag="push", gc=False):
    """Mailbox to gateway: hints, lossy by design."""

    shard: int
    pushes: tuple[Push, ...]


class Kick(Struct, frozen=True, kw_only=True, tag="kick", gc=False):
    """Gateway to gateway: close the connection that holds exactly this session_epoch, with KICKED(reason)."""

    conn: int
    user_id: int
    device_id: bytes
    session_epoch: int
    reason: int


class SubmitOverlay(Struct, frozen=True, kw_only=True, tag="overlay", gc=False):
    """Gateway to writer: RECALL or DELETE_FOR_ME (``kind``) of ``target_seq``; answered by SendDone or Refused."""

    rid: int
    actor: Actor
    client_message_id: bytes
    not_after: int
    conversation_id: bytes
    target_seq: int
    kind: int


class Refused(Struct, frozen=True, kw_only=True, tag="refused", gc=False):
    """The answer to any question that was not done; TIMEOUT_UNKNOWN says it may be done yet."""

    rid: int
    code: int
    message: str
    retry_after_ms: int = 0
    owner_address: str = ""


Message = (
    SubmitSend
    | SendDone
    | SubmitGroup
    | GroupDone
    | AskHistory
    | HistoryAnswer
    | AskMembers
    | MembersAnswer
    | AskSync
    | SyncAnswer
    | AskPull
    | PullAnswer
    | AskWatermark
    | WatermarkAnswer
    | PushBatch
    | Kick
    | SubmitOverlay
    | AskSummaries
    | SummariesAnswer
    | AskSessionList
    | SessionListAnswer
    | SubmitRead
    | SubmitState
    | StateDone
    | AskStates
    | StatesAnswer
    | AskReadBy
    | ReadByAnswer
    | Refused
    | AdminOrder
    | AdminDone
)

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Message)


def encode_message(message: Message) -> bytes:
    """The bytes between processes."""
    return _encoder.encode(message)


def decode_message(data: bytes) -> Message:
    """Inverse of ``encode_message``; raises msgspec.DecodeError on anything else."""
    return _decoder.decode(data)
