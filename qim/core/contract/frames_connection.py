"""Frames of the connection itself: PING … REDIRECT, SIGNAL, OK and ERROR (contract.md, Frames; pipeline.md §6)."""

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from qim.core.contract.frame_fields import (
    ACCESS_TOKEN_CHARS_MAX,
    CAPABILITIES_MAX,
    CAPABILITY_CHARS_MAX,
    CLIENT_INFO_CHARS_MAX,
    U8,
    U16,
    U32,
    U64,
    Body,
    CursorBytes,
    CustomType,
    DeviceId,
    Direction,
    Id16,
    Ms,
    Text,
    UserId,
    WireFrame,
    conversation_fault,
    custom_type_fault,
)
from qim.core.contract.wire import STREAM_ROOMS, Flag

Capability = Annotated[str, Meta(max_length=CAPABILITY_CHARS_MAX)]


class Ping(WireFrame, frozen=True, kw_only=True):
    """Heartbeat. client_time: the sender's wall ms, echoed."""

    OPCODE: ClassVar[int] = 0x0001
    NAME: ClassVar[str] = "PING"

    client_time: U64


class Pong(WireFrame, frozen=True, kw_only=True):
    """Answer to PING. watermark: the lane's W as mailbox_seq; a client whose cursor is below it pulls."""

    OPCODE: ClassVar[int] = 0x0002
    NAME: ClassVar[str] = "PONG"
    FLAGS: ClassVar[int] = int(Flag.RESPONSE)

    client_time: U64
    server_time: Ms
    watermark: U64


class Auth(WireFrame, frozen=True, kw_only=True):
    """First frame of a connection. attempt: max(last + 1, wall ms), kept on disk; lower than the live entry's is
    refused with KICKED(REPLACED). cursor None: a new device, or REBUILD."""

    OPCODE: ClassVar[int] = 0x0010
    NAME: ClassVar[str] = "AUTH"
    DIRECTION: ClassVar[Direction] = "c→s"

    access_token: Annotated[str, Meta(max_length=ACCESS_TOKEN_CHARS_MAX)]
    device_id: DeviceId
    attempt: U64
    cursor: CursorBytes | None = None
    client_info: Annotated[str, Meta(max_length=CLIENT_INFO_CHARS_MAX)] = ""
    capabilities: Annotated[tuple[Capability, ...], Meta(max_length=CAPABILITIES_MAX)] = ()


class ServerLimits(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """What this server holds its clients to; values of Parameters. Array inside AUTH_OK."""

    body_bytes_max: U32
    frame_bytes_max: U32
    page_max: U32
    pulls_inflight_max: U32
    group_members_max: U32
    not_after_ms: Ms
    heartbeat_ms: Ms
    idle_kill_ms: Ms


class AuthOk(WireFrame, frozen=True, kw_only=True):
    """AUTH accepted. sync_to_seq: the lane's W now: below it the client pulls, above it the server pushes.
    cursor: where to pull from; badge: unread messages over all conversations, a snapshot."""

    OPCODE: ClassVar[int] = 0x0011
    NAME: ClassVar[str] = "AUTH_OK"
    FLAGS: ClassVar[int] = int(Flag.RESPONSE)
    DIRECTION: ClassVar[Direction] = "s→c"

    session_epoch: U64
    user_id: UserId
    sync_to_seq: U64
    has_offline: bool
    cursor: CursorBytes
    badge: U64
    limits: ServerLimits
    server_time: Ms


class SyncComplete(WireFrame, frozen=True, kw_only=True):
    """The client holds everything up to the sync_to_seq it was given."""

    OPCODE: ClassVar[int] = 0x0012
    NAME: ClassVar[str] = "SYNC_COMPLETE"
    DIRECTION: ClassVar[Direction] = "c→s"

    sync_to_seq: U64


class OnlineReady(WireFrame, frozen=True, kw_only=True):
    """Lifts the barrier: pushes may follow. A client whose cursor is below watermark pulls at once."""

    OPCODE: ClassVar[int] = 0x0013
    NAME: ClassVar[str] = "ONLINE_READY"
    FLAGS: ClassVar[int] = int(Flag.RESPONSE)
    DIRECTION: ClassVar[Direction] = "s→c"

    watermark: U64


class Kicked(WireFrame, frozen=True, kw_only=True):
    """Last frame of a connection. reason: KickReason; reconnect: whether coming back by itself makes sense."""

    OPCODE: ClassVar[int] = 0x0014
    NAME: ClassVar[str] = "KICKED"
    DIRECTION: ClassVar[Direction] = "s→c"

    reason: U8
    reconnect: bool


class Redirect(WireFrame, frozen=True, kw_only=True):
    """Connect to `address` (host:port) instead."""

    OPCODE: ClassVar[int] = 0x0015
    NAME: ClassVar[str] = "REDIRECT"
    FLAGS: ClassVar[int] = int(Flag.RESPONSE)
    DIRECTION: ClassVar[Direction] = "s→c"

    address: Text
    reason: Text = ""


class Signal(WireFrame, frozen=True, kw_only=True):
    """RTC, typing: relayed, never stored. One of conversation_id and peer_user_id names the other side.
    sender_id and sent_at are written by the server; a client's own are ignored."""

    OPCODE: ClassVar[int] = 0x0070
    NAME: ClassVar[str] = "SIGNAL"
    STREAM: ClassVar[int] = STREAM_ROOMS

    conversation_id: Id16 | None
    peer_user_id: UserId | None
    custom_type: CustomType
    body: Body
    sender_id: U64 = 0
    sent_at: Ms = 0

    def fault(self) -> str | None:
        if (self.conversation_id is None) == (self.peer_user_id is None):
            return "exactly one of conversation_id and peer_user_id must be given"
        return conversation_fault(self.conversation_id) or custom_type_fault(self.custom_type)


class Ok(WireFrame, frozen=True, kw_only=True):
    """Done, nothing to say."""

    OPCODE: ClassVar[int] = 0x007E
    NAME: ClassVar[str] = "OK"
    FLAGS: ClassVar[int] = int(Flag.RESPONSE)
    DIRECTION: ClassVar[Direction] = "s→c"


class Error(WireFrame, frozen=True, kw_only=True):
    """Not done, or not known. code: ErrorCode; retry_after_ms: 0 where the server has no advice."""

    OPCODE: ClassVar[int] = 0x007F
    NAME: ClassVar[str] = "ERROR"
    FLAGS: ClassVar[int] = int(Flag.RESPONSE | Flag.ERROR)
    DIRECTION: ClassVar[Direction] = "s→c"

    code: U16
    message: Text
    retry_after_ms: Ms = 0
    client_message_id: Id16 | None = None
