"""From an effective outbox record to its GroupDispatches, one a target shard: a function of record and version alone."""

from msgspec import Struct

from qim.core.audience import VersionAudience, audience_by_shard, named_version
from qim.core.contract import ids
from qim.core.contract.entities import GroupDispatch, MessageRecord, encode_dispatch
from qim.core.contract.logvalue import dispatch_value
from qim.core.contract.params import DEFAULT
from qim.core.dispatch_digest import body_digest, materialisation_digest
from qim.core.fanout.partition import Outgoing, Partition, SourceItem
from qim.core.fanout.vocabulary import FanoutConfig
from qim.core.ports.log import LogRecord


def dispatches(
    config: FanoutConfig, partition: Partition, item: SourceItem, audience: VersionAudience | None
) -> list[Outgoing]:
    """The dispatches of one record in shard order; the item gets a place in its receipt for each."""
    assert item.outboxed is not None
    record = item.outboxed.record
    targets = audience_by_shard(record, audience, config.shard_count)
    digest = body_digest(record.body)
    source = Source(
        partition=partition.number,
        offset=item.stored.offset,
        epoch=item.outboxed.epoch,
        checkpoint=partition.durable,
    )
    # A version is the same audience in every shard, explicit recipients are each shard's own.
    shared = b""
    outgoing: list[Outgoing] = []
    for place, (shard, users) in enumerate(targets):
        dispatch = group_dispatch(
            record,
            shard,
            users,
            digest,
            source,
            inline_body_bytes_max=config.inline_body_bytes_max,
            inline_recipients_max=config.inline_recipients_max,
        )
        if not shared or dispatch.recipients:
            shared = materialisation_digest(dispatch)
        value = dispatch_value(partition.epoch, encode_dispatch(dispatch))
        outgoing.append(
            Outgoing(
                partition=partition,
                item=item,
                place=place,
                shard=shard,
                digest=shared,
                record=LogRecord(key=record.message_id, value=value),
                trace_id=record.trace_id,
            )
        )
    item.places = [None] * len(outgoing)
    item.missing = len(outgoing)
    return outgoing


class Source(Struct, frozen=True, kw_only=True, gc=False):
    """Where the record stands and how far fanout had come: for the audit and the mailbox's floor, deciding nothing else."""

    partition: int
    offset: int
    epoch: int
    checkpoint: int


def group_dispatch(
    record: MessageRecord,
    shard: int,
    users: tuple[int, ...],
    digest: bytes,
    source: Source,
    *,
    inline_body_bytes_max: int = DEFAULT.inline_body_bytes_max,
    inline_recipients_max: int = DEFAULT.inline_recipients_max,
) -> GroupDispatch:
    """One record for the users of one shard; ``digest`` is that of its body."""
    named = named_version(record) is not None
    inline = len(record.body) <= inline_body_bytes_max and len(users) <= inline_recipients_max
    return GroupDispatch(
        dispatch_id=ids.dispatch_id(record.message_id, shard),
        tenant_id=record.tenant_id,
        message_id=record.message_id,
        conversation_id=record.conversation_id,
        conversation_kind=record.conversation_kind,
        conversation_seq=record.conversation_seq,
        last_activity_id=record.last_activity_id,
        kind=record.kind,
        sender_id=record.sender_id,
        client_message_id=record.client_message_id,
        sent_at=record.sent_at,
        retention_class=record.retention_class,
        shard=shard,
        version=record.version,
        membership_digest=record.membership_digest,
        recipients=() if named else users,
        peer_user_id=record.peer_user_id,
        inline_body=record.body if inline else None,
        custom_type=record.custom_type,
        body_digest=digest,
        trace_id=record.trace_id,
        source_partition=source.partition,
        source_offset=source.offset,
        source_epoch=source.epoch,
        source_checkpoint=source.checkpoint,
        target_seq=record.target_seq,
    )
