"""Frames of rooms (contract.md, Frames). Speaking in a room is SEND_MESSAGE with the room's conversation_id."""

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from qim.core.contract.frame_fields import (
    ENTRIES_MAX,
    U8,
    U32,
    U64,
    Body,
    CustomType,
    Direction,
    Id16,
    Ms,
    WireFrame,
    conversation_fault,
)
from qim.core.contract.wire import STREAM_ROOMS, Flag


class RoomMessage(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """One thing said in a room. Array inside ROOM_STATE and ROOM_EVENT; room_seq has no holes within its epoch."""

    room_seq: U64
    message_id: Id16
    kind: U8
    sender_id: U64
    custom_type: CustomType
    body: Body
    sent_at: Ms
    client_message_id: Id16 | None = None


class RoomJoin(WireFrame, frozen=True, kw_only=True):
    """Enter; replay what was said after room_seq (0: what the server still holds). Answered by ROOM_STATE."""

    OPCODE: ClassVar[int] = 0x0060
    NAME: ClassVar[str] = "ROOM_JOIN"
    STREAM: ClassVar[int] = STREAM_ROOMS
    DIRECTION: ClassVar[Direction] = "c→s"

    conversation_id: Id16
    room_seq: U64 = 0

    def fault(self) -> str | None:
        return conversation_fault(self.conversation_id)


class RoomState(WireFrame, frozen=True, kw_only=True):
    """The room now, with its short replay; replay_truncated: older ones than the first shown are gone."""

    OPCODE: ClassVar[int] = 0x0061
    NAME: ClassVar[str] = "ROOM_STATE"
    STREAM: ClassVar[int] = STREAM_ROOMS
    FLAGS: ClassVar[int] = int(Flag.RESPONSE)
    DIRECTION: ClassVar[Direction] = "s→c"

    conversation_id: Id16
    room_seq: U64
    replay: Annotated[tuple[RoomMessage, ...], Meta(max_length=ENTRIES_MAX)]
    replay_truncated: bool
    present: U32 = 0


class RoomEvent(WireFrame, frozen=True, kw_only=True):
    """Something was said; best effort, never stored in a mailbox."""

    OPCODE: ClassVar[int] = 0x0062
    NAME: ClassVar[str] = "ROOM_EVENT"
    STREAM: ClassVar[int] = STREAM_ROOMS
    DIRECTION: ClassVar[Direction] = "s→c"

    conversation_id: Id16
    message: RoomMessage


class RoomLeave(WireFrame, frozen=True, kw_only=True):
    """Leave the room. Answered by OK."""

    OPCODE: ClassVar[int] = 0x0063
    NAME: ClassVar[str] = "ROOM_LEAVE"
    STREAM: ClassVar[int] = STREAM_ROOMS
    DIRECTION: ClassVar[Direction] = "c→s"

    conversation_id: Id16

    def fault(self) -> str | None:
        return conversation_fault(self.conversation_id)
