"""Hand-made logs and stores for the auditor: a message is sent whole, then a test spoils one thing about it."""

from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from qim.core.audience import VersionAudience, audience_by_shard, named_version
from qim.core.audit import AuditConfig, AuditFinished, Auditor, AuditReport, AuditRequested
from qim.core.audit.tenure import COVERAGE
from qim.core.contract.entities import (
    CommitAuditFact,
    CommitState,
    ConversationKind,
    FanoutAuditReceipt,
    GroupDispatch,
    Interval,
    Member,
    MembershipVersion,
    MessageRecord,
    ReceiptShard,
    UserMailboxEntry,
    encode_dispatch,
    encode_entry,
    encode_receipt,
    encode_record,
    stored_record,
)
from qim.core.contract.hashing import H
from qim.core.contract.ids import dispatch_id
from qim.core.contract.logvalue import barrier_value, dispatch_value, outbox_value
from qim.core.contract.routing import shard as shard_of
from qim.core.contract.sequences import U64_MAX, mailbox_seq
from qim.core.dispatch_digest import body_digest, materialisation_digest
from qim.core.ports.completion import Fenced, StoreReset, StoreRole
from qim.core.ports.local import FreshEpochWanted, LeaseHeld
from qim.core.ports.log import EndsRead, Fetch, Fetched, OutOfRange, ReadEnds, StoredRecord, Topic
from qim.core.ports.observe import Count, Gauge, Violation
from qim.core.ports.registry import LeaseRead, ReadLease
from qim.core.ports.store_audit import (
    AdvanceCoverage,
    CoverageAdvanced,
    CoverageOpened,
    OpenCoverage,
)
from qim.core.ports.store_mailbox import (
    MailboxesRead,
    MailboxRead,
    MailboxRows,
    Progress,
    ProgressRead,
    ReadMailboxes,
    ReadProgress,
    ReadShardState,
    ShardStateRead,
)
from qim.core.ports.store_message import (
    FactsRead,
    ReadFacts,
    ReadSource,
    ReadVersions,
    SourceRead,
    VersionsRead,
)

SHARDS: Final = 4
PARTITIONS: Final = 2
TENANT: Final = "t"
GROUP: Final = b"group-conversati"
STEPS_MAX: Final = 5_000


def users_in(shard: int, count: int = 1) -> tuple[int, ...]:
    """The first users that live in a shard."""
    return tuple([user for user in range(1, 500) if shard_of(user, SHARDS) == shard][:count])


A, B = users_in(0)[0], users_in(1)[0]
"""A single chat whose users live in shards 0 and 1."""


class Log(Struct):
    """A partition; offsets begin at ``base``."""

    base: int = 0
    values: list[tuple[bytes, bytes]] = []
    start: int = 0

    @property
    def end(self) -> int:
        return self.base + len(self.values)

    def append(self, value: bytes, key: bytes = b"") -> int:
        self.values.append((key, value))
        return self.end - 1

    def spoil(self, offset: int, value: bytes) -> None:
        self.values[offset - self.base] = (self.values[offset - self.base][0], value)

    def records(self, offset: int, limit: int) -> tuple[StoredRecord, ...]:
        places = range(offset, min(offset + limit, self.end))
        return tuple(
            StoredRecord(offset=at, append_time=1, key=key, value=value)
            for at in places
            for key, value in [self.values[at - self.base]]
        )


class Box(Struct):
    """A mailbox shard's state."""

    watermark: int = -1
    trim: int = 0
    incarnation: bytes = b"run/1"
    rows: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
    progress: dict[bytes, Progress] = {}
    redo: tuple[tuple[int, int], ...] = ()


class Source(Struct):
    """An outbox partition as the store knows it."""

    checkpoint: int = -1
    lost: tuple[tuple[int, int], ...] = ()
    receipts: dict[int, bytes] = {}
    dead_letters: dict[int, bytes] = {}
    facts: dict[bytes, CommitAuditFact] = {}
    covered_to: int = 0
    fence: int = 0
    incarnation: bytes = b"run/m"


class Sent(Struct, kw_only=True):
    """Where a message stands."""

    partition: int
    offset: int
    record: MessageRecord
    receipt: FanoutAuditReceipt
    dispatches: dict[int, GroupDispatch]
    users: dict[int, tuple[int, ...]]

    def place(self, shard: int) -> int:
        """Its dispatch offset in a shard."""
        return next(at.offset for at in self.receipt.shards if at.shard == shard)


class Toy:
    """Logs, store, registry; ``answer`` is what they say. ``trouble(request)`` may say something else first."""

    def __init__(self) -> None:
        self.logs = {(Topic.OUTBOX, n): Log() for n in range(PARTITIONS)}
        self.logs |= {(Topic.DISPATCH, n): Log() for n in range(SHARDS)}
        self.sources = [Source() for _ in range(PARTITIONS)]
        self.boxes = [Box() for _ in range(SHARDS)]
        self.versions: dict[tuple[bytes, int, bytes], MembershipVersion] = {}
        self.barriers: dict[int, list[tuple[int, int]]] = {}
        self.epoch = 0
        self.leasing = True
        """Whether an auditor that asks for a lease gets it."""
        self.trouble: Callable[[Any], Any] = lambda _: None
        self.asked: list[Any] = []
        self.seen: list[Any] = []
        self.fetch_limit = 1_000
        self.page_limit = 1_000
        self.topic_ids = {topic: H("toy", topic.value) for topic in Topic}
        self.now = 0
        self._message = 0
        self._seqs: dict[bytes, int] = {}

    # ------------------------------------------------------------ sending, whole

    def outbox(self, partition: int = 0) -> Log:
        return self.logs[Topic.OUTBOX, partition]

    def dispatch(self, shard: int) -> Log:
        return self.logs[Topic.DISPATCH, shard]

    def group(self, version: int, users: tuple[int, ...]) -> None:
        """A frozen version of the one group."""
        digest = H("toy.version", version)
        members = tuple(Member(user, (Interval(0, U64_MAX),)) for user in users)
        self.versions[GROUP, version, digest] = MembershipVersion(
            conversation_id=GROUP, version=version, digest=digest, control_seq=0, members=members
        )

    def record(
        self, users: tuple[int, int] = (A, B), version: int = 0, **more: Any
    ) -> MessageRecord:
        """The next message: of a single chat, or of the group at ``version``."""
        self._message += 1
        number = self._message
        conversation_id = GROUP if version else b"single-%09d" % min(users)
        seq = self._seqs[conversation_id] = self._seqs.get(conversation_id, 0) + 1
        fields: dict[str, Any] = {
            "tenant_id": TENANT,
            "conversation_id": conversation_id,
            "conversation_kind": ConversationKind.GROUP if version else ConversationKind.SINGLE,
            "kind": 1,
            "sender_id": users[0],
            "device_id": b"d",
            "client_message_id": b"c" * 16,
            "request_digest": b"r" * 16,
            "message_id": number.to_bytes(16, "big"),
            "version": version,
            "membership_digest": H("toy.version", version) if version else b"",
            "peer_user_id": 0 if version else users[1],
            "recipients": (),
            "delta": None,
            "body": b"body %d" % number,
            "custom_type": "",
            "retention_class": 0,
            "sent_at": 1,
            "not_after": 2,
            "trace_id": number,
        }
        record = MessageRecord(**fields | more)
        return replace(record, conversation_seq=seq, last_activity_id=record.message_id)

    def publish(self, record: MessageRecord, *, partition: int = 0, epoch: int = 1) -> int:
        """Append to the outbox alone; its offset."""
        plain = replace(record, conversation_seq=0, last_activity_id=b"\0" * 16)
        stored = stored_record(
            record.conversation_seq, record.last_activity_id, encode_record(plain)
        )
        return self.outbox(partition).append(outbox_value(epoch, stored), record.message_id)

    def barrier(self, epoch: int, partition: int = 0, *, fanned_out: bool = True) -> int:
        """A barrier in the outbox."""
        offset = self.outbox(partition).append(barrier_value(epoch))
        if fanned_out:
            self.sources[partition].checkpoint = offset + 1
        return offset

    def send(
        self,
        users: tuple[int, int] = (A, B),
        *,
        partition: int = 0,
        epoch: int = 1,
        version: int = 0,
        **more: Any,
    ) -> Sent:
        """A message that is everywhere where it must be, with fact, receipt, progress and entries."""
        record = self.record(users, version, **more)
        offset = self.publish(record, partition=partition, epoch=epoch)
        source = self.sources[partition]
        source.facts[record.message_id] = CommitAuditFact(
            message_id=record.message_id,
            conversation_id=record.conversation_id,
            conversation_seq=record.conversation_seq,
            state=CommitState.COMMITTED,
            rebuilt=False,
            outbox_offset=offset,
        )
        sent = self.fan_out(record, partition, offset)
        for shard in sent.users:
            self.materialise(sent, shard)
        return sent

    def fan_out(self, record: MessageRecord, partition: int, offset: int) -> Sent:
        """Dispatches, receipt and checkpoint."""
        name = named_version(record)
        audience = VersionAudience(self.versions[name], SHARDS) if name is not None else None
        users = dict(audience_by_shard(record, audience, SHARDS))
        dispatches = {
            shard: self.dispatch_of(
                record, shard, () if name is not None else there, partition, offset
            )
            for shard, there in users.items()
        }
        places = tuple(
            ReceiptShard(
                shard=shard,
                offset=self.append_dispatch(shard, dispatch),
                digest=materialisation_digest(dispatch),
            )
            for shard, dispatch in dispatches.items()
        )
        receipt = FanoutAuditReceipt(
            source_offset=offset, message_id=record.message_id, source_epoch=1, shards=places
        )
        source = self.sources[partition]
        source.receipts[offset] = encode_receipt(receipt)
        source.checkpoint = offset + 1
        return Sent(
            partition=partition,
            offset=offset,
            record=record,
            receipt=receipt,
            dispatches=dispatches,
            users=users,
        )

    def dispatch_of(
        self,
        record: MessageRecord,
        shard: int,
        recipients: tuple[int, ...],
        partition: int,
        offset: int,
    ) -> GroupDispatch:
        common = {
            name: getattr(record, name)
            for name in GroupDispatch.__struct_fields__
            if name in MessageRecord.__struct_fields__
        }
        own: dict[str, Any] = {
            "dispatch_id": dispatch_id(record.message_id, shard),
            "shard": shard,
            "recipients": recipients,
            "inline_body": None,
            "body_digest": body_digest(record.body),
            "source_partition": partition,
            "source_offset": offset,
            "source_epoch": 1,
            "source_checkpoint": 0,
        }
        return GroupDispatch(**common | own)

    def append_dispatch(self, shard: int, dispatch: GroupDispatch) -> int:
        value = dispatch_value(1, encode_dispatch(dispatch))
        return self.dispatch(shard).append(value, dispatch.message_id)

    def materialise(self, sent: Sent, shard: int, offset: int | None = None) -> None:
        """Entries, progress and watermark of one shard."""
        place = sent.place(shard) if offset is None else offset
        for user in sent.users[shard]:
            self.put(shard, user, sent.record, mailbox_seq(1, place))
        one = dispatch_id(sent.record.message_id, shard)
        digest = materialisation_digest(sent.dispatches[shard])
        box = self.boxes[shard]
        box.progress[one] = Progress(one, place, len(sent.users[shard]), digest)
        self.passed(shard, max(place, box.watermark & (1 << 48) - 1 if box.watermark >= 0 else 0))

    def put(self, shard: int, user: int, record: MessageRecord, seq: int) -> None:
        """One entry."""
        entry = UserMailboxEntry(
            mailbox_seq=seq,
            event_id=b"e" * 16,
            message_id=record.message_id,
            conversation_id=record.conversation_id,
            conversation_seq=record.conversation_seq,
            kind=1,
            sender_id=record.sender_id,
        )
        rows = self.boxes[shard].rows.setdefault((TENANT, user), [])
        rows.append((seq, encode_entry(entry)))
        rows.sort()

    def passed(self, shard: int, offset: int) -> None:
        """Every lane has passed the dispatch at ``offset``."""
        self.boxes[shard].watermark = mailbox_seq(1, offset)

    def trim(self, shard: int, offset: int) -> None:
        """Trim stands at the dispatch at ``offset`` and what is at or below it is gone."""
        box = self.boxes[shard]
        box.trim = mailbox_seq(1, offset)
        for user, rows in box.rows.items():
            box.rows[user] = [row for row in rows if row[0] > box.trim]

    # ------------------------------------------------------------ answering

    def answer(self, request: Any) -> Any:
        """The right answer."""
        match request:
            case ReadEnds():
                log = self.logs[request.topic, request.partition]
                return EndsRead(op=request.op, topic_id=b"", start=log.start, end=log.end)
            case Fetch():
                return self._fetched(request)
            case ReadLease():
                below = [
                    barrier
                    for barrier in self.barriers.get(request.resource.number, [])
                    if barrier[1] < request.barriers_below
                ]
                epoch, offset = max(below, default=(0, -1))
                return LeaseRead(
                    op=request.op,
                    resource=request.resource,
                    epoch=9,
                    owner="",
                    address="",
                    barrier_epoch=epoch,
                    barrier_offset=offset,
                )
            case ReadSource():
                return self._source(request)
            case ReadVersions():
                versions = tuple(self.versions.get(name[1:]) for name in request.names)
                return VersionsRead(op=request.op, versions=versions, applied=(0,) * len(versions))
            case _:
                return self._answer_store(request)

    def _answer_store(self, request: Any) -> Any:
        match request:
            case ReadShardState():
                box = self.boxes[request.shard]
                return ShardStateRead(
                    op=request.op,
                    incarnation=box.incarnation,
                    base=box.watermark,
                    min_watermark=box.watermark,
                    trim=box.trim,
                    redo=box.redo,
                )
            case ReadMailboxes():
                box = self.boxes[request.shard]
                assert request.incarnation == box.incarnation
                results = tuple(self._rows(box, read) for read in request.reads)
                return MailboxesRead(op=request.op, results=results)
            case ReadProgress():
                box = self.boxes[request.shard]
                progress = tuple(box.progress.get(one) for one in request.dispatch_ids)
                return ProgressRead(op=request.op, progress=progress)
            case ReadFacts():
                facts = sorted(self.sources[request.shard].facts.items())
                behind = [fact for key, fact in facts if key > request.after]
                limit = min(request.limit, self.page_limit)
                return FactsRead(
                    op=request.op, facts=tuple(behind[:limit]), more=len(behind) > limit
                )
            case OpenCoverage():
                source = self.sources[request.partition]
                if request.epoch < source.fence:
                    return Fenced(op=request.op, epoch=source.fence)
                source.fence = request.epoch
                return CoverageOpened(
                    op=request.op, incarnation=source.incarnation, covered_to=source.covered_to
                )
            case AdvanceCoverage():
                source = self.sources[request.partition]
                if request.incarnation != source.incarnation or request.epoch > source.fence:
                    return StoreReset(op=request.op, store=StoreRole.MESSAGE)
                if request.epoch < source.fence:
                    return Fenced(op=request.op, epoch=source.fence)
                source.covered_to = max(source.covered_to, request.covered_to)
                for fact in request.drop_facts:
                    source.facts.pop(fact, None)
                return CoverageAdvanced(op=request.op)
        raise AssertionError(request)

    def _fetched(self, request: Fetch) -> Any:
        log = self.logs[request.topic, request.partition]
        common = {"op": request.op, "topic_id": b"", "start": log.start, "end": log.end}
        if not log.start <= request.offset <= log.end:
            return OutOfRange(**common)
        limit = min(request.limit, self.fetch_limit)
        return Fetched(**common, records=log.records(request.offset, limit))

    def _source(self, request: ReadSource) -> SourceRead:
        source = self.sources[request.partition]
        limit = min(request.limit, self.page_limit)
        lists = [
            [(at, row) for at, row in sorted(rows.items()) if request.low <= at < request.high]
            for rows in (source.receipts, source.dead_letters)
        ]
        cuts = [rows[limit][0] for rows in lists if len(rows) > limit]
        receipts, letters = [
            tuple((at, row) for at, row in rows if not cuts or at < min(cuts)) for rows in lists
        ]
        return SourceRead(
            op=request.op,
            incarnation=source.incarnation,
            checkpoint=source.checkpoint,
            applied=0,
            receipts=receipts,
            dead_letters=letters,
            lost=source.lost,
            more=bool(cuts),
        )

    def _rows(self, box: Box, read: MailboxRead) -> MailboxRows:
        limit = min(read.limit, self.page_limit)
        rows = [
            row
            for seq, row in box.rows.get((read.tenant_id, read.user_id), [])
            if read.after < seq <= min(read.up_to, box.watermark)
        ]
        if read.after < box.trim:
            rows = []
        return MailboxRows(box.watermark, box.trim, tuple(rows[:limit]), len(rows) > limit)

    # ------------------------------------------------------------ running

    def held(self, above: int = 0) -> LeaseHeld:
        """The lease is granted under a fresh epoch."""
        self.epoch = max(self.epoch, above) + 1
        return LeaseHeld(
            resource=COVERAGE, epoch=self.epoch, barrier_epoch=0, barrier_offset=-1, wall=1
        )

    def auditor(self, **limits: Any) -> Auditor:
        config = AuditConfig(shard_count=SHARDS, outbox_partition_count=PARTITIONS, **limits)
        return Auditor(config, choose=lambda site, key: 0)

    def audit(self, auditor: Auditor | None = None, **limits: Any) -> AuditReport:
        """One run to its end by an auditor that holds the lease; what else it said is in ``seen``."""
        auditor = auditor or self.auditor(**limits)
        begins = [AuditRequested(ticket=5)]
        if not auditor.serving() and self.leasing:
            begins = [self.held(), *begins]
        effects = auditor.step(self.now, begins)
        for _ in range(STEPS_MAX):
            auditor.check()
            finished = [one for one in effects if isinstance(one, AuditFinished)]
            self.seen += [one for one in effects if isinstance(one, Count | Gauge | Violation)]
            if finished:
                assert finished[0].ticket == 5
                return finished[0].report
            events = self.events(auditor, effects)
            effects = auditor.step(self.now, events)
        raise AssertionError("the audit does not end")

    def events(self, auditor: Auditor, effects: list[Any]) -> list[Any]:
        events = []
        for request in effects:
            if isinstance(request, FreshEpochWanted):
                events.append(self.held(request.above))
            if not hasattr(request, "op"):
                continue
            self.asked.append(request)
            trouble = self.trouble(request)
            if trouble is None:
                events.append(self.answer(request))
            elif trouble is not SILENCE:
                events.append(trouble)
        if not events:
            deadline = auditor.deadline()
            assert deadline is not None, "nothing to wait for"
            self.now = max(self.now + 1, deadline)
        return events


SILENCE: Final = object()
"""A trouble: no answer at all."""
