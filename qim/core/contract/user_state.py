"""What stands in the value of a SET_STATE: the user's own settings of a conversation besides StateFlag's switches.

Opaque to the server but for ``mute_until``, which ends MUTED by itself. One MessagePack array; an empty value is all
defaults; what a later version appends is kept out of sight, never refused.
"""

from typing import Final

import msgspec

from qim.core.contract.frame_fields import STATE_VALUE_BYTES_MAX
from qim.core.contract.kinds import StateFlag


class UserState(
    msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, kw_only=True, gc=False
):
    """mute_until: wall ms, 0 for ever (with MUTED). hidden_through: with ARCHIVED, last_activity_id up to which the

    conversation is hidden: something newer shows it again. draft: a text not sent yet.
    """

    mute_until: int = 0
    marked_unread: bool = False
    hidden_through: bytes = b""
    draft: str = ""


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(UserState).decode


def encode_user_state(state: UserState) -> bytes:
    """The value. Raises ValueError above STATE_VALUE_BYTES_MAX."""
    value = b"" if state == UserState() else _encode(state)
    if len(value) > STATE_VALUE_BYTES_MAX:
        raise ValueError(
            f"the state has {len(value)} bytes, at most {STATE_VALUE_BYTES_MAX}: shorten the draft"
        )
    return value


def decode_user_state(value: bytes) -> UserState:
    """Inverse; another program's value is all defaults."""
    try:
        return _decode(value) if value else UserState()
    except msgspec.DecodeError:
        return UserState()


def is_muted(flags: int, value: bytes, wall: int) -> bool:
    """Does the conversation count for no badge at ``wall`` ms."""
    if not flags & StateFlag.MUTED:
        return False
    until = decode_user_state(value).mute_until
    return until == 0 or wall < until


def is_hidden(flags: int, value: bytes, last_activity_id: bytes) -> bool:
    """Is it left out of the list: archived, and nothing newer than what was there then."""
    return bool(flags & StateFlag.ARCHIVED) and last_activity_id <= (
        decode_user_state(value).hidden_through or last_activity_id
    )
