"""What is said in a conversation: its record, and its dispatches, one a shard."""

from collections.abc import Iterator

from qim.core.contract import routing
from qim.core.contract.entities import GroupDispatch, MessageKind, MessageRecord
from qim.core.contract.hashing import H
from tests.core.session.toy_writer import WRITERS, Conversation, Row

SHARDS = 2
TENANT = "t"


def record_of(
    name: bytes, sender: int, kind: int, target: int, body: bytes, message_id: bytes, sent_at: int
) -> MessageRecord:
    """What the writer has committed."""
    return MessageRecord(
        tenant_id=TENANT,
        conversation_id=name,
        conversation_kind=2,
        kind=kind,
        sender_id=sender,
        device_id=b"d",
        client_message_id=message_id,
        request_digest=b"r" * 16,
        message_id=message_id,
        version=1,
        membership_digest=b"v" * 16,
        peer_user_id=0,
        recipients=(),
        delta=None,
        body=body,
        custom_type="",
        retention_class=0,
        sent_at=sent_at,
        not_after=sent_at,
        trace_id=1,
        target_seq=target,
    )


def dispatches_of(talk: Conversation, row: Row, sent_at: int) -> Iterator[GroupDispatch]:
    """One a shard with recipients, as fanout makes them."""
    own = row.kind == MessageKind.DELETE_FOR_ME
    for shard in range(SHARDS):
        users = [u for u in talk.since if routing.shard(u, SHARDS) == shard]
        if own:
            users = [row.sender] if row.sender in users else []
        if not users:
            continue
        yield GroupDispatch(
            dispatch_id=H("test.dispatch", row.activity, shard),
            tenant_id=TENANT,
            message_id=row.activity,
            conversation_id=talk.name,
            conversation_kind=2,
            conversation_seq=row.seq,
            last_activity_id=row.activity,
            kind=row.kind,
            sender_id=row.sender,
            client_message_id=row.activity,
            sent_at=sent_at,
            retention_class=0,
            shard=shard,
            version=1,
            membership_digest=b"v" * 16,
            recipients=(row.sender,) if own else (),
            peer_user_id=0,
            inline_body=None,
            custom_type="",
            body_digest=b"b" * 16,
            trace_id=1,
            source_partition=routing.writer_shard(talk.name, WRITERS),
            source_offset=0,
            source_epoch=1,
            source_checkpoint=0,
            target_seq=row.target,
        )
