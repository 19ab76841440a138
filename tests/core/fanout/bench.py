"""One FanoutCoordinator, outbox partitions, dispatch logs, a source store of dictionaries: answers in any order, lost or late."""

from msgspec.structs import replace

from qim.core.audience import VersionKey
from qim.core.contract import ids
from qim.core.contract.entities import (
    FanoutAuditReceipt,
    GroupDispatch,
    Interval,
    Member,
    MembershipVersion,
    MessageRecord,
    decode_receipt,
    encode_record,
    stored_record,
)
from qim.core.contract.logvalue import Dispatched, barrier_value, outbox_value, read_dispatch
from qim.core.contract.sequences import U64_MAX
from qim.core.fanout import FanoutConfig, FanoutCoordinator, FanoutEffect, FanoutEvent
from qim.core.ports.completion import Failed, FailReason, Fenced, StoreReset, StoreRole, Unknown
from qim.core.ports.local import FreshEpochWanted, LeaseHeld, Started
from qim.core.ports.log import (
    Append,
    Appended,
    EndsRead,
    Fetch,
    Fetched,
    OutOfRange,
    Position,
    ReadEnds,
    StoredRecord,
)
from qim.core.ports.observe import Count, Gauge, StageReached, Violation, Warned
from qim.core.ports.registry import LeaseRead, ReadLease, Resource, Role
from qim.core.ports.store_reads import ReadVersions, VersionsRead
from qim.core.ports.store_source import CommitSource, OpenSource, SourceCommitted, SourceOpened
from qim.core.position import is_other

TENANT = "default"
TOPIC = b"o" * 16
WALL = 1_700_000_000_000
CONFIG = FanoutConfig(shard_count=4)


def benign(site: str, key: object) -> int:
    return 0


def version(number: int, users: tuple[int, ...]) -> MembershipVersion:
    members = tuple(Member(user, (Interval(0, U64_MAX),)) for user in sorted(users))
    return MembershipVersion(
        conversation_id=b"g" * 16,
        version=number,
        digest=number.to_bytes(16, "big"),
        control_seq=number,
        members=members,
    )


def record(
    number: int,
    *,
    sender: int = 1,
    peer: int = 2,
    named: MembershipVersion | None = None,
    recipients: tuple[int, ...] = (),
    body: bytes = b"hello",
) -> MessageRecord:
    """The ``number``-th message; its stored form takes seq = number + 100."""
    name = ids.pack_message_id(WALL + number, 0, 1, 1)
    return MessageRecord(
        tenant_id=TENANT,
        conversation_id=named.conversation_id if named else b"c" * 16,
        conversation_kind=2 if named else 1,
        kind=1,
        sender_id=sender,
        device_id=b"phone",
        client_message_id=number.to_bytes(16, "big"),
        request_digest=b"r" * 16,
        message_id=name,
        version=named.version if named else 0,
        membership_digest=named.digest if named else b"",
        peer_user_id=peer,
        recipients=recipients,
        delta=None,
        body=body,
        custom_type="",
        retention_class=0,
        sent_at=WALL,
        not_after=WALL,
        trace_id=number,
    )


def seq_of(item: MessageRecord) -> int:
    """The conversation_seq its stored form takes."""
    return int.from_bytes(item.client_message_id, "big") + 100


class Source:
    """One outbox partition and what the store keeps of it."""

    def __init__(self) -> None:
        self.log: list[StoredRecord] = []
        self.start = 0
        self.epoch = 0
        self.position: Position | None = None
        self.filter_epoch = 0
        self.receipts: dict[int, bytes] = {}
        self.dead_letters: dict[int, bytes] = {}

    def end(self) -> int:
        return self.start + len(self.log)

    def offset(self) -> int:
        return self.position.offset if self.position else self.start


class Bench:
    """Holds every effect that wants an answer until ``answer`` (or ``run``, which answers all in order)."""

    def __init__(self, config: FanoutConfig = CONFIG, partitions: int = 1) -> None:
        self.config = config
        self.node = FanoutCoordinator(config, choose=benign)
        self.marker = b"run/1"
        self.topic = TOPIC
        self.sources = [Source() for _ in range(partitions)]
        self.barriers: list[tuple[int, int]] = []
        self.dispatched: dict[int, list[bytes]] = {}
        self.versions: dict[VersionKey, MembershipVersion] = {}
        self.applied = 0
        self.now = 1_000
        self.waiting: list[FanoutEffect] = []
        self.late: list[FanoutEffect] = []
        self.seen: list[Violation | Count | StageReached | Warned] = []
        self.wanted: list[FreshEpochWanted] = []

    # -------------------------------------------------------- the world

    def append(self, *items: MessageRecord, epoch: int = 1, partition: int = 0) -> None:
        for item in items:
            stored = stored_record(seq_of(item), item.message_id, encode_record(item))
            self.append_value(outbox_value(epoch, stored), item.message_id, partition)

    def append_barrier(self, epoch: int, partition: int = 0) -> None:
        self.append_value(barrier_value(epoch), b"", partition)

    def append_value(self, value: bytes, key: bytes = b"", partition: int = 0) -> None:
        source = self.sources[partition]
        stored = StoredRecord(offset=source.end(), append_time=WALL, key=key, value=value)
        source.log.append(stored)

    def know(self, named: MembershipVersion) -> MembershipVersion:
        self.versions[named.conversation_id, named.version, named.digest] = named
        return named

    # -------------------------------------------------------- the machine

    def step(self, *events: FanoutEvent) -> None:
        effects = self.node.step(self.now, events)
        self.node.check()
        for effect in effects:
            match effect:
                case Violation() | Count() | StageReached() | Warned():
                    self.seen.append(effect)
                case FreshEpochWanted():
                    self.wanted.append(effect)
                case Gauge():
                    pass
                case _:
                    self.waiting.append(effect)

    def hold(self, epoch: int = 1, partition: int = 0) -> None:
        """Grant the lease under a fresh epoch."""
        resource = Resource(role=Role.FANOUT, number=partition)
        self.step(
            Started(address="fanout", wall=WALL),
            LeaseHeld(
                resource=resource, epoch=epoch, barrier_epoch=0, barrier_offset=-1, wall=WALL
            ),
        )

    def crash(self) -> None:
        """A new instance; what was in flight may still be applied."""
        self.late += [e for e in self.waiting if isinstance(e, Append | CommitSource)]
        self.waiting.clear()
        self.node = FanoutCoordinator(self.config, choose=benign)

    def execute(self, effect: FanoutEffect) -> object:
        """Apply an effect to the world and give its answer."""
        match effect:
            case ReadEnds():
                source = self.sources[effect.partition]
                return EndsRead(
                    op=effect.op, topic_id=self.topic, start=source.start, end=source.end()
                )
            case Fetch():
                return self._fetch(effect)
            case ReadLease():
                below = [b for b in self.barriers if b[1] < effect.barriers_below]
                epoch, offset = max(below, default=(0, -1))
                return LeaseRead(
                    op=effect.op,
                    resource=effect.resource,
                    epoch=9,
                    owner="",
                    address="",
                    barrier_epoch=epoch,
                    barrier_offset=offset,
                )
            case ReadVersions():
                found = tuple(self.versions.get(name[1:]) for name in effect.names)
                return VersionsRead(
                    op=effect.op, versions=found, applied=(self.applied,) * len(found)
                )
            case Append():
                log = self.dispatched.setdefault(effect.partition, [])
                first = len(log)
                log.extend(stored.value for stored in effect.records)
                offsets = tuple(range(first, len(log)))
                return Appended(op=effect.op, offsets=offsets, append_time=WALL)
            case OpenSource():
                return self._open(effect)
            case CommitSource():
                return self._commit(effect)
            case _:
                raise AssertionError(effect)

    def _fetch(self, effect: Fetch) -> Fetched | OutOfRange:
        source = self.sources[effect.partition]
        ends = {"op": effect.op, "topic_id": self.topic, "start": source.start, "end": source.end()}
        if not source.start <= effect.offset <= source.end():
            return OutOfRange(**ends)  # type: ignore[arg-type]
        first = effect.offset - source.start
        if first > 0 and is_other(effect.before, source.log[first - 1]):
            return OutOfRange(**ends, other_record=True)  # type: ignore[arg-type]
        return Fetched(**ends, records=tuple(source.log[first : first + effect.limit]))  # type: ignore[arg-type]

    def _open(self, effect: OpenSource) -> object:
        source = self.sources[effect.partition]
        if effect.epoch < source.epoch:
            return Fenced(op=effect.op, epoch=source.epoch)
        source.epoch = effect.epoch
        return SourceOpened(
            op=effect.op,
            incarnation=self.marker,
            position=source.position,
            filter_epoch=source.filter_epoch,
        )

    def _commit(self, effect: CommitSource) -> object:
        source = self.sources[effect.partition]
        if effect.incarnation != self.marker:
            return StoreReset(op=effect.op, store=StoreRole.MESSAGE)
        if effect.epoch < source.epoch:
            return Fenced(op=effect.op, epoch=source.epoch)
        if source.position is not None and source.position.offset != effect.from_offset:
            if source.position == effect.to:
                return SourceCommitted(op=effect.op)
            return Fenced(op=effect.op, epoch=0)
        assert effect.to.offset > effect.from_offset
        for offset, receipt in effect.receipts:
            self.judge_receipt(offset, decode_receipt(receipt))
        source.receipts.update(effect.receipts)
        source.dead_letters.update(effect.dead_letters)
        source.position, source.filter_epoch = effect.to, effect.filter_epoch
        return SourceCommitted(op=effect.op)

    def judge_receipt(self, offset: int, receipt: FanoutAuditReceipt) -> None:
        """Receipt before checkpoint, and what it names really stands in the dispatch logs."""
        assert receipt.source_offset == offset
        for place in receipt.shards:
            item = self.dispatches(place.shard)[place.offset]
            assert (item.message_id, item.source_offset) == (receipt.message_id, offset)

    def answer(self, effect: FanoutEffect, fault: str) -> None:
        """Complete one effect: done, failed, or Unknown in each of its three truths."""
        self.waiting.remove(effect)
        op: int = effect.op  # type: ignore[union-attr]
        if fault == "done":
            self.step(self.execute(effect))  # type: ignore[arg-type]
        elif fault == "failed":
            self.step(Failed(op=op, why=FailReason.UNREACHABLE))
        else:
            if fault == "unknown_applied":
                self.execute(effect)
            elif fault == "unknown_late" and isinstance(effect, Append | CommitSource):
                self.late.append(effect)
            self.step(Unknown(op=op))

    def parked(self, effect: FanoutEffect) -> bool:
        """A fetch at the log's end waits for more."""
        return isinstance(effect, Fetch) and effect.offset == self.sources[effect.partition].end()

    def run(self, steps_max: int = 10_000) -> None:
        """Answer everything in order until only parked fetches are left."""
        for _ in range(steps_max):
            ready = [effect for effect in self.waiting if not self.parked(effect)]
            if not ready:
                return
            self.answer(ready[0], "done")
        raise AssertionError("no end")

    def pass_time(self, ms: int) -> None:
        self.now += ms
        self.step()
        self.run()

    # -------------------------------------------------------- what came of it

    def dispatches(self, shard: int) -> list[GroupDispatch]:
        entries = [read_dispatch(value) for value in self.dispatched.get(shard, [])]
        return [entry.dispatch for entry in entries if isinstance(entry, Dispatched)]

    def first_dispatches(self, shard: int) -> list[GroupDispatch]:
        """As the mailbox claims them: each dispatch_id at its first offset."""
        first: dict[bytes, GroupDispatch] = {}
        for item in self.dispatches(shard):
            first.setdefault(item.dispatch_id, item)
        return list(first.values())

    def violations(self) -> list[str]:
        return [seen.check for seen in self.seen if isinstance(seen, Violation)]

    def counts(self, name: str) -> int:
        return sum(c.value for c in self.seen if isinstance(c, Count) and c.name == name)

    def stages(self) -> list[int]:
        return [s.trace_id for s in self.seen if isinstance(s, StageReached)]


__all__ = ["CONFIG", "TOPIC", "WALL", "Bench", "record", "replace", "seq_of", "version"]
