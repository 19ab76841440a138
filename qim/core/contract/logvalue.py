"""Framing of log values: format version, kind, epoch under which it was PUBLISHED, then the payload.

One byte version ‖ one byte kind ‖ epoch (8 B BE) ‖ payload. A Barrier is an epoch and nothing else (contract.md). A newer
format waits and bytes no version can decode are dead-lettered (pipeline.md §2), so the two are told apart here, once: by what
every version keeps of the header (``VERSION_MAX``, ``KIND_MAX``, ``EPOCH_MAX``; decision 0031).
"""

from typing import Final

import msgspec
from msgspec import Struct

from qim.core.contract.entities import (
    FORMAT_VERSION,
    GroupDispatch,
    MessageRecord,
    decode_dispatch,
    decode_stored_record,
)
from qim.core.contract.statelog import UserStateRecord, decode_state_record

KIND_RECORD: Final = 1
KIND_BARRIER: Final = 2
KIND_DISPATCH: Final = 3
KIND_USER_STATE: Final = 4
HEADER_BYTES: Final = 10
VERSION_MAX: Final = 31
KIND_MAX: Final = 31
EPOCH_MAX: Final = (1 << 48) - 1
"""Every version's frame begins with the ten bytes of the header, version and kind in 1..31, the epoch's top two bytes zero.

Text has no bytes below 32 but line ends and tabs, and none that are zero; of random bytes one in four million passes.
"""


class Barrier(Struct, frozen=True, gc=False):
    """Everything of a lower epoch behind it in the outbox is ineffective (pipeline.md §1.7); in the user-state log it only fills."""

    epoch: int


class Outboxed(Struct, frozen=True, gc=False):
    """A published record: ``stored`` is seq ‖ activity ‖ record as the hot store holds it."""

    epoch: int
    stored: bytes
    record: MessageRecord


class Dispatched(Struct, frozen=True, gc=False):
    """A published dispatch."""

    epoch: int
    dispatch: GroupDispatch


class StateLogged(Struct, frozen=True, gc=False):
    """A published read mark or user state; its epoch decides nothing."""

    epoch: int
    record: UserStateRecord


class NewerFormat(Struct, frozen=True, gc=False):
    """Written by a later version, as far as its header tells: wait, never skip."""

    version: int


class Undecodable(Struct, frozen=True, gc=False):
    """Bytes no version can decode, a stranger's or spoilt ones: dead-letter."""

    why: str


def _frame(kind: int, epoch: int, payload: bytes) -> bytes:
    return bytes((FORMAT_VERSION, kind)) + epoch.to_bytes(8, "big") + payload


def barrier_value(epoch: int) -> bytes:
    """The value of a barrier."""
    return _frame(KIND_BARRIER, epoch, b"")


def outbox_value(epoch: int, stored: bytes) -> bytes:
    """The value of a record published under ``epoch``."""
    return _frame(KIND_RECORD, epoch, stored)


def dispatch_value(epoch: int, encoded: bytes) -> bytes:
    """The value of a dispatch published under the fanout's ``epoch``."""
    return _frame(KIND_DISPATCH, epoch, encoded)


def user_state_value(epoch: int, encoded: bytes) -> bytes:
    """The value of a user-state record published under the projection's ``epoch``."""
    return _frame(KIND_USER_STATE, epoch, encoded)


def _header(value: bytes) -> tuple[int, int] | NewerFormat | Undecodable:
    if not value:
        return Undecodable("empty value")
    version = value[0]
    if len(value) < HEADER_BYTES or version == 0:
        return Undecodable(f"header of {min(len(value), HEADER_BYTES)} bytes, version {version}")
    kind, epoch = value[1], int.from_bytes(value[2:HEADER_BYTES], "big")
    if version <= FORMAT_VERSION:
        return kind, epoch
    if version <= VERSION_MAX and 0 < kind <= KIND_MAX and epoch <= EPOCH_MAX:
        return NewerFormat(version)
    # Two bytes tell who wrote it; more could be somebody's message.
    return Undecodable(f"begins with {value[:2].hex()}, as no version's frame does")


def read_outbox(value: bytes) -> Barrier | Outboxed | NewerFormat | Undecodable:
    """Decode an outbox value; never raises."""
    header = _header(value)
    if not isinstance(header, tuple):
        return header
    kind, epoch = header
    if kind == KIND_BARRIER:
        return (
            Barrier(epoch) if len(value) == HEADER_BYTES else Undecodable("barrier with a payload")
        )
    if kind != KIND_RECORD:
        return Undecodable(f"kind {kind} in the outbox")
    try:
        record = decode_stored_record(value[HEADER_BYTES:])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        return Undecodable(str(error))
    return Outboxed(epoch, value[HEADER_BYTES:], record)


def read_dispatch(value: bytes) -> Dispatched | NewerFormat | Undecodable:
    """Decode a dispatch value; never raises."""
    header = _header(value)
    if not isinstance(header, tuple):
        return header
    kind, epoch = header
    if kind != KIND_DISPATCH:
        return Undecodable(f"kind {kind} in the dispatch log")
    try:
        return Dispatched(epoch, decode_dispatch(value[HEADER_BYTES:]))
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        return Undecodable(str(error))


def read_user_state(value: bytes) -> Barrier | StateLogged | NewerFormat | Undecodable:
    """Decode a user-state value; never raises."""
    header = _header(value)
    if not isinstance(header, tuple):
        return header
    kind, epoch = header
    if kind == KIND_BARRIER and len(value) == HEADER_BYTES:
        return Barrier(epoch)
    if kind != KIND_USER_STATE:
        return Undecodable(f"kind {kind} in the user-state log")
    try:
        return StateLogged(epoch, decode_state_record(value[HEADER_BYTES:]))
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        return Undecodable(str(error))
