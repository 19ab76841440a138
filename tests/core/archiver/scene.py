"""One HistoryArchiver, outbox partitions, an archive, a position store: answers in any order, lost, late or in part."""

from collections.abc import Callable
from typing import Any

from qim.core.archiver import ArchiverConfig, ArchiverEffect, ArchiverEvent, HistoryArchiver
from qim.core.contract import ids
from qim.core.contract.entities import MessageRecord, encode_record, stored_record
from qim.core.contract.logvalue import barrier_value, outbox_value
from qim.core.ports.archive import (
    ArchivedConversationsRead,
    ArchiveExpired,
    ArchiveRow,
    ArchiveWritten,
    ExpireArchive,
    ReadArchivedConversations,
    WriteArchive,
)
from qim.core.ports.completion import Failed, FailReason, Fenced, StoreReset, StoreRole, Unknown
from qim.core.ports.local import FreshEpochWanted, LeaseGone, LeaseHeld, Started
from qim.core.ports.log import (
    EndsRead,
    Fetch,
    Fetched,
    OutOfRange,
    Position,
    ReadEnds,
    StoredRecord,
)
from qim.core.ports.observe import Count, Gauge, Measured, StageReached, Violation, Warned
from qim.core.ports.registry import LeaseRead, ReadLease, Resource, Role
from qim.core.ports.store_history import ArchiveCommitted, ArchiveOpened, CommitArchive, OpenArchive
from qim.core.position import is_other
from qim.sim.archive_rows import ArchiveRows

TOPIC = b"o" * 16
WALL = 1_700_000_000_000
CHATS = (b"c" * 16, b"e" * 16)
CONFIG = ArchiverConfig()
DAY_MS = 86_400_000


def benign(site: str, key: object) -> int:
    return 0


def message(number: int, **other: Any) -> MessageRecord:
    """The ``number``-th message of the world; odd and even ones are of two chats."""
    fields: dict[str, Any] = {
        "tenant_id": "default",
        "conversation_id": CHATS[number % 2],
        "conversation_kind": 1,
        "kind": 1,
        "sender_id": 1,
        "device_id": b"d" * 16,
        "client_message_id": number.to_bytes(16, "big"),
        "request_digest": b"r" * 16,
        "message_id": ids.pack_message_id(WALL + number, 0, 1, 1),
        "version": 0,
        "membership_digest": b"",
        "peer_user_id": 2,
        "recipients": (),
        "delta": None,
        "body": b"hello",
        "custom_type": "",
        "retention_class": 0,
        "sent_at": WALL + number,
        "not_after": WALL + 1_000_000,
        "trace_id": number,
    }
    return MessageRecord(**fields | other)


class Outbox:
    """One partition of the log: ``base`` is its start."""

    def __init__(self, base: int = 0) -> None:
        self.base = base
        self.start = base
        self.records: list[StoredRecord] = []
        self.topic_id = TOPIC
        self.seqs: dict[bytes, int] = {}

    @property
    def end(self) -> int:
        return self.base + len(self.records)

    def append(self, value: bytes, key: bytes = b"") -> int:
        offset = self.end
        self.records.append(
            StoredRecord(offset=offset, append_time=WALL + offset, key=key, value=value)
        )
        return offset

    def message(self, number: int, epoch: int = 1, **other: Any) -> MessageRecord:
        """Appended with its conversation's next seq."""
        record = message(number, **other)
        seq = self.seqs[record.conversation_id] = self.seqs.get(record.conversation_id, 0) + 1
        stored = stored_record(seq, record.message_id, encode_record(record))
        self.append(outbox_value(epoch, stored), record.message_id)
        return record

    def barrier(self, epoch: int) -> int:
        return self.append(barrier_value(epoch))

    def retain(self, start: int) -> None:
        self.start = max(self.start, start)


class Hot:
    """Position and fence of each partition as the scripts keep them."""

    def __init__(self) -> None:
        self.incarnation = b"run/1"
        self.fence: dict[int, int] = {}
        self.position: dict[int, tuple[Position, int]] = {}
        self.moves: list[tuple[int, int]] = []

    def empty(self) -> None:
        """Restarted without its data."""
        self.fence, self.position = {}, {}
        self.incarnation += b"1"

    def open(self, effect: OpenArchive) -> Any:
        if self.fence.get(effect.partition, 0) > effect.epoch:
            return Fenced(op=effect.op, epoch=self.fence[effect.partition])
        self.fence[effect.partition] = effect.epoch
        position, filter_epoch = self.position.get(effect.partition, (None, 0))
        return ArchiveOpened(
            op=effect.op,
            incarnation=self.incarnation,
            position=position,
            filter_epoch=filter_epoch,
        )

    def commit(self, effect: CommitArchive) -> Any:
        if effect.incarnation != self.incarnation:
            return StoreReset(op=effect.op, store=StoreRole.MESSAGE)
        fence = self.fence.get(effect.partition, 0)
        if fence != effect.epoch:
            return Fenced(op=effect.op, epoch=fence)
        held = self.position.get(effect.partition)
        if held is not None and held[0] != effect.to:
            if held[0].offset != effect.from_offset or effect.to.offset < effect.from_offset:
                return Fenced(op=effect.op, epoch=0)
        self.position[effect.partition] = (effect.to, effect.filter_epoch)
        self.moves.append((effect.partition, effect.to.offset))
        return ArchiveCommitted(op=effect.op)


class Scene:
    """The world around one archiver. Effects wait in ``queue`` until a test lets them be answered."""

    def __init__(self, *outboxes: Outbox, config: ArchiverConfig = CONFIG) -> None:
        self.outboxes = outboxes
        self.hot = Hot()
        self.rows = ArchiveRows()
        self.barriers: dict[int, list[tuple[int, int]]] = {}
        self.config = config
        self.now = 0
        self.wall = WALL
        self.epoch = 0
        self.violations: list[Violation] = []
        self.warned: list[Warned] = []
        self.counts: dict[tuple[str, str], int] = {}
        self.stages: list[tuple[int, str]] = []
        self.wanted: list[FreshEpochWanted] = []
        self.written: list[WriteArchive] = []
        self.start()

    # ------------------------------------------------------------ the process

    def start(self) -> None:
        """A new process; what the old one had ordered goes on without it."""
        self.archiver = HistoryArchiver(self.config, choose=benign)
        self.queue: list[ArchiverEffect] = []
        self.give(Started(address="a", wall=self.wall))

    def grant(self, number: int = 0) -> int:
        self.epoch += 1
        self.give(
            LeaseHeld(
                resource=Resource(role=Role.ARCHIVER, number=number),
                epoch=self.epoch,
                barrier_epoch=0,
                barrier_offset=-1,
                wall=self.wall,
            )
        )
        return self.epoch

    def lose(self, number: int = 0) -> None:
        self.give(LeaseGone(resource=Resource(role=Role.ARCHIVER, number=number)))

    def give(self, *events: ArchiverEvent) -> None:
        """One step."""
        for effect in self.archiver.step(self.now, list(events)):
            match effect:
                case Violation():
                    self.violations.append(effect)
                case Warned():
                    self.warned.append(effect)
                case Count():
                    key = (effect.name, effect.label)
                    self.counts[key] = self.counts.get(key, 0) + effect.value
                case StageReached():
                    self.stages.append((effect.trace_id, effect.stage))
                case Gauge() | Measured():
                    raise AssertionError("gauges are asked for, and nothing is timed here")
                case FreshEpochWanted():
                    self.wanted.append(effect)
                case _:
                    self.queue.append(effect)
        self.archiver.check()

    def tick(self, ms: int) -> None:
        """Let time pass, stepping at every deadline."""
        until = self.now + ms
        while (at := self.archiver.deadline()) is not None and at <= until:
            self.now = max(self.now, at)
            self.give()
        self.now = until

    # ------------------------------------------------------------ answers

    def taken(self, *kinds: type) -> list[Any]:
        """Take the waiting effects of these kinds out, unanswered."""
        mine = [effect for effect in self.queue if isinstance(effect, kinds)]
        self.queue = [effect for effect in self.queue if not isinstance(effect, kinds)]
        return mine

    def answer(self, effect: Any) -> Any:
        """What the world makes of it, applied."""
        match effect:
            case OpenArchive():
                return self.hot.open(effect)
            case CommitArchive():
                return self.hot.commit(effect)
            case WriteArchive():
                self.written.append(effect)
                return ArchiveWritten(op=effect.op, reused=self.rows.write(effect))
            case ReadArchivedConversations():
                position = self.rows.positions.get(effect.partition, 0)
                return ArchivedConversationsRead(
                    op=effect.op, conversations=(), more=False, position=position
                )
            case ExpireArchive():
                removed, more = self.rows.expire(effect.before_wall, effect.limit)
                return ArchiveExpired(op=effect.op, removed=removed, more=more)
            case ReadEnds():
                log = self.outboxes[effect.partition]
                return EndsRead(op=effect.op, topic_id=log.topic_id, start=log.start, end=log.end)
            case ReadLease():
                return self._lease(effect)
            case Fetch():
                return self._fetch(effect)
            case _:
                raise AssertionError(effect)

    def _lease(self, effect: ReadLease) -> LeaseRead:
        known = [
            barrier
            for barrier in self.barriers.get(effect.resource.number, [])
            if barrier[1] < effect.barriers_below
        ]
        epoch, offset = max(known, default=(0, -1))
        return LeaseRead(
            op=effect.op,
            resource=effect.resource,
            epoch=epoch,
            owner="",
            address="",
            barrier_epoch=epoch,
            barrier_offset=offset,
        )

    def _fetch(self, effect: Fetch) -> Any:
        log = self.outboxes[effect.partition]
        if not log.start <= effect.offset <= log.end:
            return OutOfRange(op=effect.op, topic_id=log.topic_id, start=log.start, end=log.end)
        first = effect.offset - log.base
        if effect.offset > log.start and is_other(effect.before, log.records[first - 1]):
            return OutOfRange(
                op=effect.op,
                topic_id=log.topic_id,
                start=log.start,
                end=log.end,
                other_record=True,
            )
        return Fetched(
            op=effect.op,
            topic_id=log.topic_id,
            start=log.start,
            end=log.end,
            records=tuple(log.records[first : first + effect.limit]),
        )

    def parked(self, effect: Any) -> bool:
        """A Fetch at the end of its log waits for records."""
        return (
            isinstance(effect, Fetch)
            and effect.offset == self.outboxes[effect.partition].end
            and effect.offset >= self.outboxes[effect.partition].start
        )

    def run(self, limit: int = 10_000) -> None:
        """Answer everything in order until only parked fetches wait; fresh epochs are granted."""
        for _ in range(limit):
            while self.wanted:
                want = self.wanted.pop(0)
                self.epoch = max(self.epoch, want.above)
                self.grant(want.resource.number)
            effect = next((e for e in self.queue if not self.parked(e)), None)
            if effect is None:
                return
            self.queue.remove(effect)
            self.give(self.answer(effect))
        raise AssertionError("it never comes to rest")

    def settle(self) -> None:
        """Run, with time for every retry."""
        for _ in range(6):
            self.run()
            self.tick(5_000)
        self.run()

    def refuse(self, kind: type, how: Callable[[int], Any]) -> None:
        """Answer the waiting effects of a kind with a completion, unapplied."""
        for effect in self.taken(kind):
            self.give(how(effect.op))

    # ------------------------------------------------------------ what came of it

    def archived(self) -> list[ArchiveRow]:
        """All rows by offset."""
        rows = [
            cell.row for held in self.rows.conversations.values() for cell in held.cells.values()
        ]
        return sorted(rows, key=lambda row: row.outbox_offset)

    def offsets(self) -> list[int]:
        return [row.outbox_offset for row in self.archived()]

    def watermark(self, number: int = 0) -> int:
        held = self.hot.position.get(number)
        return held[0].offset if held else 0


def failed(op: int) -> Failed:
    return Failed(op=op, why=FailReason.UNREACHABLE)


def unknown(op: int) -> Unknown:
    return Unknown(op=op)


def filled(count: int, base: int = 0) -> Outbox:
    outbox = Outbox(base)
    for number in range(1, count + 1):
        outbox.message(number)
    return outbox


def running(*outboxes: Outbox, config: ArchiverConfig = CONFIG) -> Scene:
    scene = Scene(*outboxes, config=config)
    for number in range(len(outboxes)):
        scene.grant(number)
    scene.run()
    return scene
