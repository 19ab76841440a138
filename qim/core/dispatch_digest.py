"""What a dispatch materialises, in 16 bytes: receipts, progress marks and the audit compare it (pipeline.md §3.2).

It covers message_id, conversation_id, conversation_seq, kind, sender, audience name and body digest; never epoch, source
or trace, since a replay by another owner must find the same.
"""

from qim.core.contract.entities import GroupDispatch
from qim.core.contract.hashing import H

EXPLICIT = "users"
VERSION = "version"


def body_digest(body: bytes) -> bytes:
    """16 bytes over a body as the record holds it."""
    return H("qim.body", body)


def materialisation_digest(dispatch: GroupDispatch) -> bytes:
    """16 bytes; equal for two dispatches iff they put the same entries into the same mailboxes."""
    audience: tuple[int | bytes | str, ...]
    if dispatch.recipients or not dispatch.version:
        audience = (EXPLICIT, len(dispatch.recipients), *dispatch.recipients)
    else:
        audience = (VERSION, dispatch.version, dispatch.membership_digest)
    return H(
        "qim.materialise",
        dispatch.message_id,
        dispatch.conversation_id,
        dispatch.conversation_seq,
        dispatch.kind,
        dispatch.sender_id,
        dispatch.body_digest,
        *audience,
    )
