"""A record dispatched by hand: its dispatches name no source, so that only their claims decide, and those stay (§3.4)."""

from msgspec import Struct

from qim.core.audience import VersionAudience, audience_by_shard, named_version
from qim.core.contract.entities import NO_SOURCE, MessageRecord, ReceiptShard, encode_dispatch
from qim.core.contract.logvalue import dispatch_value
from qim.core.dispatch_digest import body_digest, materialisation_digest
from qim.core.fanout.dispatching import Source, group_dispatch
from qim.core.mending.asking import NotMended, Procedure, ask, epoch_of
from qim.core.ports.completion import Unknown
from qim.core.ports.log import Append, Appended, LogRecord, Topic
from qim.core.ports.registry import Role
from qim.core.ports.store_reads import ReadVersions, VersionsRead

ATTEMPTS_MAX = 5
BY_HAND = Source(partition=NO_SOURCE, offset=0, epoch=0, checkpoint=0)


class Dispatchable(Struct):
    """One dispatch to be appended to one shard."""

    shard: int
    recipients: int
    digest: bytes
    record: LogRecord


def audience_of(
    partition: int, record: MessageRecord, shard_count: int
) -> Procedure[tuple[tuple[int, tuple[int, ...]], ...]]:
    """(shard, its recipients) by the frozen version. Raises NotMended while the store doesn't have it."""
    named = named_version(record)
    audience: VersionAudience | None = None
    if named is not None:
        reply = yield from ask(ReadVersions(op=0, names=((partition, *named),)), VersionsRead)
        version = reply.versions[0]
        if version is None:
            raise NotMended(
                f"message {record.message_id.hex()}: version {record.version} of its group is not in the store; it comes "
                "with the open of the writer's shard"
            )
        audience = VersionAudience(version, shard_count)
    return audience_by_shard(record, audience, shard_count)


def dispatches_of(
    partition: int, record: MessageRecord, shard_count: int
) -> Procedure[tuple[Dispatchable, ...]]:
    """By the frozen version, as fanout would. Raises NotMended while the store doesn't have it."""
    by_shard = yield from audience_of(partition, record, shard_count)
    epoch = yield from epoch_of(Role.FANOUT, partition)
    body = body_digest(record.body)
    made: list[Dispatchable] = []
    for shard, users in by_shard:
        dispatch = group_dispatch(record, shard, users, body, BY_HAND)
        value = dispatch_value(epoch, encode_dispatch(dispatch))
        made.append(
            Dispatchable(
                shard=shard,
                recipients=len(users),
                digest=materialisation_digest(dispatch),
                record=LogRecord(key=record.message_id, value=value),
            )
        )
    return tuple(made)


def append(made: tuple[Dispatchable, ...]) -> Procedure[tuple[ReceiptShard, ...]]:
    """All of them durable, then where they stand. An append of unknown outcome is repeated: a copy is claimed away."""
    places: list[ReceiptShard] = []
    for one in made:
        request = Append(
            op=0, topic=Topic.DISPATCH, partition=one.shard, epoch=0, records=(one.record,)
        )
        for _ in range(ATTEMPTS_MAX):
            reply = yield request
            if not isinstance(reply, Unknown):
                break
        if not isinstance(reply, Appended):
            raise NotMended(f"dispatch {one.shard}: {reply!r}; run it again")
        places.append(ReceiptShard(shard=one.shard, offset=reply.offsets[0], digest=one.digest))
    return tuple(places)
