"""One MailboxNode, one shard, a dispatch log, a store of dictionaries: answers in any order, lost, late or doubled."""

from collections.abc import Callable

from msgspec.structs import replace

from qim.core.audience import VersionKey
from qim.core.contract import ids
from qim.core.contract.entities import (
    GroupDispatch,
    Interval,
    Member,
    MembershipVersion,
    MessageRecord,
    encode_dispatch,
    encode_record,
    stored_record,
)
from qim.core.contract.logvalue import dispatch_value
from qim.core.contract.sequences import U64_MAX
from qim.core.dispatch_digest import body_digest
from qim.core.mailbox import MailboxConfig, MailboxEffect, MailboxEvent, MailboxNode
from qim.core.ports.archive import ArchiveBodiesRead, ReadArchiveBodies
from qim.core.ports.completion import Failed, FailReason, Unknown
from qim.core.ports.local import FreshEpochWanted, LeaseHeld, Started
from qim.core.ports.log import EndsRead, Fetch, Fetched, OutOfRange, ReadEnds, StoredRecord
from qim.core.ports.network import Received, Send
from qim.core.ports.observe import Count, Gauge, StageReached, Violation, Warned
from qim.core.ports.registry import Resource, Role
from qim.core.ports.store_history import OverlaysRead, ReadOverlays
from qim.core.ports.store_reads import BodiesRead, ReadBodies, ReadVersions, VersionsRead
from qim.core.position import is_other
from tests.core.mailbox.store_model import MailboxStoreModel

TENANT = "default"
SECRET = b"s" * 32
TOPIC = b"t" * 16
WALL = 1_700_000_000_000
CONFIG = MailboxConfig(shard_count=1, outbox_partition_count=1, secret=SECRET)
RESOURCE = Resource(role=Role.MAILBOX, number=0)


def benign(site: str, key: object) -> int:
    return 0


def message_id(number: int, wall: int = WALL) -> bytes:
    return ids.pack_message_id(wall + number, 0, 1, 1)


def version(conversation: bytes, number: int, users: tuple[int, ...]) -> MembershipVersion:
    members = tuple(Member(user, (Interval(0, U64_MAX),)) for user in sorted(users))
    return MembershipVersion(
        conversation_id=conversation,
        version=number,
        digest=number.to_bytes(16, "big"),
        control_seq=number,
        members=members,
    )


def dispatch(
    number: int,
    *,
    users: tuple[int, ...] = (),
    named: MembershipVersion | None = None,
    body: bytes = b"hello",
    inline: bool = True,
    sender: int = 1,
    source_offset: int | None = None,
    checkpoint: int = 0,
    shard: int = 0,
    sent_at: int = WALL,
) -> GroupDispatch:
    """The ``number``-th message: seq = number in its one conversation, source offset = number unless told."""
    name = message_id(number, sent_at)
    return GroupDispatch(
        dispatch_id=ids.dispatch_id(name, shard),
        tenant_id=TENANT,
        message_id=name,
        conversation_id=named.conversation_id if named else b"c" * 16,
        conversation_kind=2 if named else 1,
        conversation_seq=number + 100,
        last_activity_id=name,
        kind=1,
        sender_id=sender,
        client_message_id=number.to_bytes(16, "big"),
        sent_at=sent_at,
        retention_class=0,
        shard=shard,
        version=named.version if named else 0,
        membership_digest=named.digest if named else b"",
        recipients=users,
        peer_user_id=2,
        inline_body=body if inline else None,
        custom_type="",
        body_digest=body_digest(body),
        trace_id=number,
        source_partition=0,
        source_offset=number if source_offset is None else source_offset,
        source_epoch=1,
        source_checkpoint=checkpoint,
    )


def record_of(item: GroupDispatch, body: bytes) -> bytes:
    """The stored record in the hot store that a dispatch refers to."""
    record = MessageRecord(
        tenant_id=item.tenant_id,
        conversation_id=item.conversation_id,
        conversation_kind=item.conversation_kind,
        kind=item.kind,
        sender_id=item.sender_id,
        device_id=b"d",
        client_message_id=item.client_message_id,
        request_digest=b"r" * 16,
        message_id=item.message_id,
        version=item.version,
        membership_digest=item.membership_digest,
        peer_user_id=item.peer_user_id,
        recipients=(),
        delta=None,
        body=body,
        custom_type=item.custom_type,
        retention_class=item.retention_class,
        sent_at=item.sent_at,
        not_after=item.sent_at,
        trace_id=item.trace_id,
    )
    return stored_record(item.conversation_seq, item.last_activity_id, encode_record(record))


class Bench:
    """Holds every effect that wants an answer until ``answer`` (or ``run``, which answers all in order)."""

    def __init__(self, config: MailboxConfig = CONFIG) -> None:
        self.config = config
        self.node = MailboxNode(config, choose=benign)
        self.store = MailboxStoreModel()
        self.log: list[StoredRecord] = []
        self.start = 0
        self.topic = TOPIC
        self.versions: dict[VersionKey, MembershipVersion] = {}
        self.applied = 0
        self.bodies: dict[tuple[bytes, int, bytes], bytes] = {}
        self.archive: dict[tuple[bytes, int, bytes], bytes] = {}
        self.let_go = 0
        self.recalls: dict[tuple[bytes, int], int | None] = {}
        self.now = 1_000
        self.epoch = 0
        self.waiting: list[MailboxEffect] = []
        self.late: list[MailboxEffect] = []
        self.sent: list[Send] = []
        self.seen: list[Violation | Count | StageReached | Warned] = []
        self.wanted: list[FreshEpochWanted] = []

    # -------------------------------------------------------- the world

    def append(self, *items: GroupDispatch, at: int = WALL) -> None:
        for item in items:
            self.append_value(dispatch_value(1, encode_dispatch(item)), item.message_id, at)

    def append_value(self, value: bytes, key: bytes = b"", at: int = WALL) -> None:
        offset = self.start + len(self.log)
        self.log.append(StoredRecord(offset=offset, append_time=at, key=key, value=value))

    def know(self, named: MembershipVersion) -> MembershipVersion:
        self.versions[named.conversation_id, named.version, named.digest] = named
        return named

    def wall(self) -> int:
        return WALL + self.now

    # -------------------------------------------------------- the machine

    def step(self, *events: MailboxEvent) -> None:
        effects = self.node.step(self.now, events)
        self.node.check()
        for effect in effects:
            match effect:
                case Send():
                    self.sent.append(effect)
                case Violation() | Count() | StageReached() | Warned():
                    self.seen.append(effect)
                case FreshEpochWanted():
                    self.wanted.append(effect)
                case Gauge():
                    pass
                case _:
                    self.waiting.append(effect)

    def hold(self) -> None:
        """Grant the lease under a fresh epoch."""
        self.epoch += 1
        self.step(
            Started(address="mailbox", wall=self.wall()),
            LeaseHeld(
                resource=RESOURCE,
                epoch=self.epoch,
                barrier_epoch=0,
                barrier_offset=-1,
                wall=self.wall(),
            ),
        )

    def crash(self) -> None:
        """A new instance; what was in flight may still be applied."""
        self.late += [effect for effect in self.waiting if self.is_store_write(effect)]
        self.waiting.clear()
        self.node = MailboxNode(self.config, choose=benign)

    def receive(self, message: object) -> None:
        self.step(Received(source="gateway", wall=self.wall(), message=message))  # type: ignore[arg-type]

    def execute(self, effect: MailboxEffect) -> object:
        """Apply an effect to the world and give its answer."""
        match effect:
            case ReadEnds():
                return EndsRead(op=effect.op, topic_id=self.topic, start=self.start, end=self.end())
            case Fetch():
                return self._fetch(effect)
            case ReadVersions():
                found = tuple(self.versions.get(name[1:]) for name in effect.names)
                return VersionsRead(
                    op=effect.op, versions=found, applied=(self.applied,) * len(found)
                )
            case ReadBodies():
                stored = tuple(self.bodies.get(name) for name in effect.names)
                return BodiesRead(op=effect.op, stored=stored)
            case ReadArchiveBodies():
                stored = tuple(self.archive.get(name) for name in effect.names)
                return ArchiveBodiesRead(op=effect.op, stored=stored, let_go=self.let_go)
            case ReadOverlays():
                marks = tuple(self.recalls.get(name[1:], 0) for name in effect.names)
                return OverlaysRead(op=effect.op, recalled=marks)
            case _:
                return self.store.execute(effect)

    def end(self) -> int:
        return self.start + len(self.log)

    def _fetch(self, effect: Fetch) -> Fetched | OutOfRange:
        ends = {"op": effect.op, "topic_id": self.topic, "start": self.start, "end": self.end()}
        if not self.start <= effect.offset <= self.end():
            return OutOfRange(**ends)  # type: ignore[arg-type]
        first = effect.offset - self.start
        if first > 0 and is_other(effect.before, self.log[first - 1]):
            return OutOfRange(**ends, other_record=True)  # type: ignore[arg-type]
        return Fetched(**ends, records=tuple(self.log[first : first + effect.limit]))  # type: ignore[arg-type]

    def parked(self, effect: MailboxEffect) -> bool:
        """A fetch at the log's end waits for more."""
        return isinstance(effect, Fetch) and effect.offset == self.end()

    @staticmethod
    def is_store_write(effect: MailboxEffect) -> bool:
        return type(effect).__name__ in {
            "AppendEntries",
            "ClaimDispatches",
            "FinishDispatches",
            "RaiseFloor",
            "TrimMailbox",
        }

    def run(self, steps_max: int = 10_000) -> None:
        """Answer everything in order, and let time pass for what waits, until only a parked fetch is left."""
        for _ in range(steps_max):
            ready = [effect for effect in self.waiting if not self.parked(effect)]
            if ready:
                self.waiting.remove(ready[0])
                self.step(self.execute(ready[0]))  # type: ignore[arg-type]
                continue
            return
        raise AssertionError("no end")

    def pass_time(self, ms: int) -> None:
        self.now += ms
        self.step()
        self.run()

    def answer(self, effect: MailboxEffect, fault: str) -> None:
        """Complete one effect: done, failed, or Unknown in each of its three truths."""
        self.waiting.remove(effect)
        op: int = effect.op  # type: ignore[union-attr]
        if fault == "done":
            self.step(self.execute(effect))  # type: ignore[arg-type]
        elif fault == "failed":
            self.step(Failed(op=op, why=FailReason.UNREACHABLE))
        elif fault == "too_large":
            self.step(Failed(op=op, why=FailReason.TOO_LARGE))
        elif fault == "unknown_applied":
            self.execute(effect)
            self.step(Unknown(op=op))
        elif fault == "unknown_lost":
            self.step(Unknown(op=op))
        else:
            assert fault == "unknown_late"
            if self.is_store_write(effect):
                self.late.append(effect)
            self.step(Unknown(op=op))

    # -------------------------------------------------------- what came of it

    def mailbox(self, user: int) -> dict[int, bytes]:
        return {seq: row[1] for seq, row in self.store.rows.get((TENANT, user), {}).items()}

    def violations(self) -> list[str]:
        return [seen.check for seen in self.seen if isinstance(seen, Violation)]

    def counts(self, name: str) -> int:
        return sum(c.value for c in self.seen if isinstance(c, Count) and c.name == name)

    def stages(self, stage: str) -> list[int]:
        return [s.trace_id for s in self.seen if isinstance(s, StageReached) and s.stage == stage]

    def last_message(self) -> object:
        return self.sent[-1].message


Answer = Callable[[MailboxEffect], str]

__all__ = ["CONFIG", "SECRET", "TENANT", "WALL", "Bench", "dispatch", "record_of", "replace"]
