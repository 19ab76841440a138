"""The fences of an outbox partition raised before it is looked at: what its owners had under way would come after (pipeline.md §0).

A lease says that nobody serves it; a mark or a commit of who served it before may still be on its way to the store.
"""

from collections.abc import Mapping

from qim.core.mending.asking import Procedure, ask
from qim.core.mending.looking import key_of
from qim.core.ports.registry import Role
from qim.core.ports.store_history import ArchiveOpened, OpenArchive
from qim.core.ports.store_message import OpenShard, ShardOpened
from qim.core.ports.store_source import OpenSource, SourceOpened


def fenced(partition: int, epochs: Mapping[Role, int], fresh_key: bytes) -> Procedure[None]:
    """Under the epochs of leases that we hold: each owner after us is granted a higher one."""
    writer, fanout = epochs[Role.WRITER], epochs[Role.FANOUT]
    shard = OpenShard(op=0, shard=partition, epoch=writer, fresh_key=key_of(writer, fresh_key))
    yield from ask(shard, ShardOpened)
    source = OpenSource(
        op=0, partition=partition, epoch=fanout, fresh_key=key_of(fanout, fresh_key)
    )
    yield from ask(source, SourceOpened)
    if Role.ARCHIVER in epochs:
        epoch = epochs[Role.ARCHIVER]
        archive = OpenArchive(
            op=0, partition=partition, epoch=epoch, fresh_key=key_of(epoch, fresh_key)
        )
        yield from ask(archive, ArchiveOpened)
