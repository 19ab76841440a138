"""Field types and the base of all frames: what a body's values may be (contract.md, Frames).

A bound that msgspec can check stands in the type, so decoding pays nothing for it; what it can't say (non-zero ids,
bytes of UTF-8, one of two) is a frame's own `fault`.
"""

from typing import Annotated, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

BODY_BYTES_MAX: Final = 128 * 1024
CUSTOM_TYPE_BYTES_MAX: Final = 64
DEVICE_ID_BYTES_MAX: Final = 64
DEVICES_MAX: Final = 32
CURSOR_BYTES_MAX: Final = 512
ACCESS_TOKEN_CHARS_MAX: Final = 2048
CLIENT_INFO_CHARS_MAX: Final = 256
CAPABILITIES_MAX: Final = 64
CAPABILITY_CHARS_MAX: Final = 64
TEXT_CHARS_MAX: Final = 1024
GROUP_NAME_CHARS_MAX: Final = 256
GROUP_META_BYTES_MAX: Final = 4 * 1024
STATE_VALUE_BYTES_MAX: Final = 1024
USERS_MAX: Final = 65536
"""Users in one frame: above any group size in force, so that 1,001 members is TOO_MANY_MEMBERS and not a shape."""
ENTRIES_MAX: Final = 65536

U64 = Annotated[int, Meta(ge=0)]  # the upper bound is MessagePack's own
U32 = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
U16 = Annotated[int, Meta(ge=0, le=(1 << 16) - 1)]
U8 = Annotated[int, Meta(ge=0, le=255)]
UserId = Annotated[int, Meta(ge=1)]  # 0 stands for 'nobody' in stored entities
Ms = Annotated[int, Meta(ge=0)]
Id16 = Annotated[bytes, Meta(min_length=16, max_length=16)]
Body = Annotated[bytes, Meta(max_length=BODY_BYTES_MAX)]
CustomType = Annotated[str, Meta(max_length=CUSTOM_TYPE_BYTES_MAX)]
DeviceId = Annotated[bytes, Meta(min_length=1, max_length=DEVICE_ID_BYTES_MAX)]
CursorBytes = Annotated[bytes, Meta(max_length=CURSOR_BYTES_MAX)]
Text = Annotated[str, Meta(max_length=TEXT_CHARS_MAX)]
GroupName = Annotated[str, Meta(max_length=GROUP_NAME_CHARS_MAX)]
GroupMeta = Annotated[bytes, Meta(max_length=GROUP_META_BYTES_MAX)]
StateValue = Annotated[bytes, Meta(max_length=STATE_VALUE_BYTES_MAX)]
UserIds = Annotated[tuple[UserId, ...], Meta(max_length=USERS_MAX)]
PageLimit = Annotated[int, Meta(ge=0, le=(1 << 16) - 1)]
"""Entries asked for; 0 asks for the server's default, and the server bounds it by its page maximum."""

Direction = Literal["c→s", "s→c", "both"]

_NIL = bytes(16)


class WireFrame(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """Base of every frame. OPCODE, NAME: the contract's; STREAM: where it travels unless told otherwise;
    FLAGS: header flags it always carries; DIRECTION: who sends it."""

    OPCODE: ClassVar[int] = 0
    NAME: ClassVar[str] = ""
    STREAM: ClassVar[int] = 0
    FLAGS: ClassVar[int] = 0
    DIRECTION: ClassVar[Direction] = "both"

    def fault(self) -> str | None:
        """What is wrong with these values beyond their types, or None. INVALID_ARGUMENT to the peer."""
        return None


def key_fault(client_message_id: bytes, conversation_id: bytes | None = None) -> str | None:
    """The two ids that must not be all zero: a zero key would make unrelated requests look alike."""
    if client_message_id == _NIL:
        return "client_message_id must not be zero"
    return conversation_fault(conversation_id)


def conversation_fault(conversation_id: bytes | None) -> str | None:
    """A zero conversation_id names nothing."""
    return "conversation_id must not be zero" if conversation_id == _NIL else None


def custom_type_fault(custom_type: str) -> str | None:
    """Its bound is in bytes of UTF-8, which a length in characters can't check."""
    if len(custom_type) * 4 <= CUSTOM_TYPE_BYTES_MAX or custom_type.isascii():
        return None
    size = len(custom_type.encode())
    return (
        None
        if size <= CUSTOM_TYPE_BYTES_MAX
        else f"custom_type has {size} bytes, at most {CUSTOM_TYPE_BYTES_MAX}"
    )
