"""The auditor over hand-made logs and stores: a message is sent whole, then a test spoils one thing about it."""

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
from qim.core.ports.local import FreshEpochWanted, LeaseHeld
from qim.core.ports.observe import Count, Gauge, Violation
from qim.core.ports.store_mailbox import Progress
from tests.core.audit.toy_services import PARTITIONS, SHARDS, Services

TENANT: Final = "t"
GROUP: Final = b"group-conversati"
STEPS_MAX: Final = 5_000


def users_in(shard: int, count: int = 1) -> tuple[int, ...]:
    """The first users that live in a shard."""
    return tuple([user for user in range(1, 500) if shard_of(user, SHARDS) == shard][:count])


A, B = users_in(0)[0], users_in(1)[0]
"""A single chat whose users live in shards 0 and 1."""


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


class Toy(Services):
    """What is sent is everywhere at once. ``answer`` is what is true; ``trouble(request)`` may say something else first."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 0
        self.leasing = True
        """Whether an auditor that asks for a lease gets it."""
        self.trouble: Callable[[Any], Any] = lambda _: None
        self.asked: list[Any] = []
        self.seen: list[Any] = []
        self.now = 0
        self._message = 0
        self._seqs: dict[bytes, int] = {}

    # ------------------------------------------------------------ sending, whole

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
