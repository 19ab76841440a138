"""A simulated world that has settled: real scripts, real codec, and a driver of procedures over what it left behind."""

from collections.abc import Callable
from typing import Any

from qim.adapters.redis.scripts import load_scripts
from qim.core.contract.entities import decode_receipt
from qim.core.mending.asking import Procedure
from qim.core.ports.archive import ReadArchiveBodies, ReadArchivedConversations
from qim.core.ports.completion import StoreRole
from qim.core.ports.log import (
    Append,
    Appended,
    EndsRead,
    Fetch,
    Fetched,
    OutOfRange,
    ReadEnds,
    StoredRecord,
    Topic,
)
from qim.core.ports.registry import (
    Acquire,
    BarrierRegistered,
    EpochRaised,
    Granted,
    LeaseRead,
    RaiseEpoch,
    ReadLease,
    RegisterBarrier,
    Release,
    Released,
    Renew,
    Renewed,
)
from qim.core.ports.store import store_role
from qim.sim.auditing import audited
from qim.sim.keyspace import ScriptRuntime
from qim.sim.scene import Kit, Scene

SPOIL = "redis.call(unpack(ARGV)) return {'K'}"
KEY = b"k" * 16
NEVER_MS = 1 << 40


class SpoilingKit(Kit):
    """Its keyspaces know one script more: any command at all."""

    def __init__(self) -> None:
        super().__init__()
        self._runtime = ScriptRuntime({**load_scripts(), "spoil": SPOIL})


class World:
    """A world that has settled, and a driver of procedures over it. ``fate`` may answer something else first."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        for name in list(scene.nodes):
            scene.kill_now(name, NEVER_MS)  # who owns something would be told by its lease
        self.fate: Callable[[Any], Any] = lambda request: None
        self.asked: list[Any] = []

    def carry_out(self, procedure: Procedure[Any]) -> Any:
        try:
            request = next(procedure)
            while True:
                self.asked.append(request)
                answer = self.fate(request)
                request = procedure.send(self.answer(request) if answer is None else answer)
        except StopIteration as done:
            return done.value

    def answer(self, request: Any) -> Any:
        match request:
            case Append() | Fetch() | ReadEnds():
                return self._log(request)
            case ReadLease() | Acquire() | Renew() | Release() | RegisterBarrier() | RaiseEpoch():
                return self._registry(request)
            case ReadArchivedConversations() | ReadArchiveBodies():
                return self.scene.archive.ask(request)
            case _:
                return self.scene.stores[store_role(request)].ask(request)

    def _log(self, request: Append | Fetch | ReadEnds) -> Any:
        partition = self.scene.log.partitions[request.topic, request.partition]
        start, end = partition.start, partition.end
        match request:
            case ReadEnds():
                return EndsRead(op=0, topic_id=partition.topic_id, start=start, end=end)
            case Fetch(offset=offset) if not start <= offset <= end:
                return OutOfRange(op=0, topic_id=partition.topic_id, start=start, end=end)
            case Fetch():
                records = partition.slice(request.offset, request.limit, request.bytes_max)
                return Fetched(
                    op=0, topic_id=partition.topic_id, start=start, end=end, records=records
                )
            case Append():
                offsets = []
                for record in request.records:
                    offsets.append(partition.end)
                    stored = StoredRecord(
                        offset=partition.end, append_time=0, key=record.key, value=record.value
                    )
                    partition.records.append(stored)
                return Appended(op=0, offsets=tuple(offsets), append_time=0)

    def _registry(self, request: Any) -> Any:
        lease = self.scene.registry.lease(
            getattr(request, "resource", None) or request.leases[0][0]
        )
        match request:
            case ReadLease():
                below = [one for one in lease.barriers if one[1] < request.barriers_below]
                epoch, offset = max(below, default=(0, -1))
                return LeaseRead(
                    op=0,
                    resource=request.resource,
                    epoch=lease.epoch,
                    owner="",
                    address="",
                    barrier_epoch=epoch,
                    barrier_offset=offset,
                )
            case Acquire():
                lease.epoch += 1
                return Granted(
                    op=0,
                    resource=request.resource,
                    epoch=lease.epoch,
                    barrier_epoch=0,
                    barrier_offset=-1,
                )
            case RaiseEpoch():
                lease.epoch = max(lease.epoch, request.above)
                return EpochRaised(op=0)
            case RegisterBarrier():
                lease.barriers.append((request.epoch, request.offset))
                return BarrierRegistered(op=0)
            case Renew():
                return Renewed(op=0, lost=())
            case _:
                return Released(op=0)

    # ------------------------------------------------------------ what befalls it

    def audit(self) -> Any:
        return audited(self.scene)

    def spoil(self, *command: bytes) -> None:
        self.scene.stores[StoreRole.MESSAGE].keyspace.call("spoil", [], list(command))

    def shards(self) -> int:
        return sum(topic is Topic.DISPATCH for topic, _ in self.scene.log.partitions)

    def dead_lettered(self) -> tuple[int, StoredRecord]:
        """As if an older fanout had passed the newest receipted record: a dead letter where its receipt was."""
        held = self.scene.stores[StoreRole.MESSAGE].keyspace.dump()
        for key, (_, rows) in held.items():
            if key.startswith(b"fr:") and rows:
                number = int.from_bytes(key[3:7], "big")
                receipt = decode_receipt(rows[-1][8:])
                partition = self.scene.log.partitions[Topic.OUTBOX, number]
                (record,) = partition.slice(receipt.source_offset, 1, 1)
                self.spoil(b"ZREM", key, rows[-1])
                letter = receipt.source_offset.to_bytes(8, "big") + record.value
                self.spoil(b"ZADD", b"fd:" + key[3:], b"0", letter)
                return number, record
        raise AssertionError("no receipt in this world: choose another seed")
