"""Requests as they arrive, made into commits: digest, trace, size (pipeline.md §1.1). Pure functions."""

from qim.core.contract.entities import MessageKind
from qim.core.contract.ids import request_digest
from qim.core.contract.rpc import SubmitGroup, SubmitOverlay, SubmitSend
from qim.core.writer.commit import Commit
from qim.core.writer.membership import group_digest, group_request
from qim.core.writer.overlays import overlay_body

Submit = SubmitSend | SubmitGroup | SubmitOverlay


def digest_of(message: Submit, conversation_id: bytes) -> bytes:
    """16 bytes: what a retry with the same client_message_id must say again."""
    actor = message.actor
    if isinstance(message, SubmitGroup):
        return group_digest(actor, message)
    if isinstance(message, SubmitOverlay):
        body = overlay_body(message.target_seq)
        return request_digest(
            actor.tenant_id, actor.user_id, conversation_id, message.kind, "", body
        )
    return request_digest(
        actor.tenant_id,
        actor.user_id,
        conversation_id,
        message.kind,
        message.custom_type,
        message.body,
    )


def commit_of(message: Submit, conversation_id: bytes, key: bytes, digest: bytes) -> Commit:
    """A valid request as a commit nobody waits for yet; its trace is the first 8 bytes of the dedupe key."""
    trace_id = int.from_bytes(key[:8], "big")
    if isinstance(message, SubmitGroup):
        return Commit(
            key=key,
            digest=digest,
            actor=message.actor,
            client_message_id=message.client_message_id,
            conversation_id=conversation_id,
            kind=MessageKind.CONTROL,
            not_after=message.not_after,
            group=group_request(message.actor, message),
            trace_id=trace_id,
            size=512 + 32 * len(message.members) + len(message.meta),
        )
    if isinstance(message, SubmitOverlay):
        return Commit(
            key=key,
            digest=digest,
            actor=message.actor,
            client_message_id=message.client_message_id,
            conversation_id=conversation_id,
            kind=message.kind,
            body=overlay_body(message.target_seq),
            not_after=message.not_after,
            target_seq=message.target_seq,
            trace_id=trace_id,
            size=512,
        )
    return Commit(
        key=key,
        digest=digest,
        actor=message.actor,
        client_message_id=message.client_message_id,
        conversation_id=conversation_id,
        peer_user_id=message.peer_user_id or 0,
        kind=message.kind,
        custom_type=message.custom_type,
        body=message.body,
        retention_class=message.retention_class,
        not_after=message.not_after,
        trace_id=trace_id,
        size=512 + len(message.body),
    )
