"""What a dispatch materialises, in 16 bytes: receipts, progress marks and the audit compare it (pipeline.md §3.2).

It covers message_id, conversation_id, conversation_seq, kind, sender, audience name and body digest; never epoch, source
or trace, since a replay by another owner must find the same.
"""

from qim.core.audience import named_version
from qim.core.contract.entities import GroupDispatch, MessageRecord
from qim.core.contract.hashing import H

EXPLICIT = "users"
VERSION = "version"


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
