"""What a dispatch materialises, in 16 bytes: receipts, progress marks and the audit compare it (pipeline.md §3.2).

It covers message_id, conversation_id, conversation_seq, kind, sender, audience name and body digest; never epoch, source
or trace, since a replay by another owner must find the same.
"""

import struct
from functools import lru_cache
from typing import Final

from qim.core.audience import named_version
from qim.core.contract.entities import GroupDispatch, MessageRecord
from qim.core.contract.hashing import H, digest_of, frame_field
from qim.core.contract.ids import ID_BYTES

EXPLICIT: Final = "users"
VERSION: Final = "version"
USER_COUNTS_MAX: Final = 64
"""Numbers of explicit recipients whose framing is kept at hand."""

_HEAD: Final = struct.Struct(">I16sI16sIQIQIQI16s")
_EXPLICIT: Final = frame_field(EXPLICIT)
_VERSION: Final = frame_field(VERSION)


def body_digest(body: bytes) -> bytes:
    """16 bytes over a body as the record holds it."""
    return H("qim.body", body)


def materialisation_digest(dispatch: GroupDispatch) -> bytes:
    """16 bytes; equal for two dispatches iff they put the same entries into the same mailboxes."""
    return _digest(dispatch, dispatch.recipients, dispatch.body_digest)


def expected_digest(record: MessageRecord, users: tuple[int, ...]) -> bytes:
    """What the dispatch of ``record`` to the shard of ``users`` must have, computed from the record alone (the audit)."""
    recipients = () if named_version(record) is not None else users
    return _digest(record, recipients, body_digest(record.body))


def _digest(
    message: GroupDispatch | MessageRecord, recipients: tuple[int, ...], body: bytes
) -> bytes:
    # As H frames the same fields, in three calls: fanout and mailbox both make it for every dispatch.
    if not len(message.message_id) == len(message.conversation_id) == len(body) == ID_BYTES:
        return _field_by_field(message, recipients, body)
    head = _HEAD.pack(
        ID_BYTES,
        message.message_id,
        ID_BYTES,
        message.conversation_id,
        8,
        message.conversation_seq,
        8,
        message.kind,
        8,
        message.sender_id,
        ID_BYTES,
        body,
    )
    if recipients or not message.version:
        count = len(recipients)
        users = [part for user in recipients for part in (8, user)]
        return digest_of(
            "qim.materialise", head + _EXPLICIT + _users(count + 1).pack(8, count, *users)
        )
    version = frame_field(message.version) + frame_field(message.membership_digest)
    return digest_of("qim.materialise", head + _VERSION + version)


def _field_by_field(
    message: GroupDispatch | MessageRecord, recipients: tuple[int, ...], body: bytes
) -> bytes:
    """The same by its definition, whatever the lengths: a record may come from bytes that nobody of ours wrote."""
    audience: tuple[int | bytes | str, ...]
    if recipients or not message.version:
        audience = (EXPLICIT, len(recipients), *recipients)
    else:
        audience = (VERSION, message.version, message.membership_digest)
    return H(
        "qim.materialise",
        message.message_id,
        message.conversation_id,
        message.conversation_seq,
        message.kind,
        message.sender_id,
        body,
        *audience,
    )


@lru_cache(maxsize=USER_COUNTS_MAX)
def _users(count: int) -> struct.Struct:
    return struct.Struct(">" + "IQ" * count)
