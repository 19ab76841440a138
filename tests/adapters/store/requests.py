"""Short ways to make store requests for tests; every default may be overridden."""

from typing import Any

from msgspec.structs import replace

from qim.core.contract.entities import (
    ConversationKind,
    MembershipOp,
    MessageRecord,
    encode_record,
    stored_record,
)
from qim.core.contract.hashing import H
from qim.core.ports import store_audit as audit
from qim.core.ports import store_mailbox as mailbox
from qim.core.ports import store_message as message
from qim.core.ports import store_reads as reads
from qim.core.ports import store_source as source
from qim.core.ports.log import Position
from tests.adapters.store.servers import Store, ask

HOUR = 3_600_000
NOW = 1_800_000_000_000
GROUP = b"group-conversati"
SINGLE = b"single-conversat"
MARKER = b"fresh-marker-key"
FOREVER = (1 << 64) - 1


def mid(number: int) -> bytes:
    """A message_id."""
    return number.to_bytes(16, "big")


def key(number: int) -> bytes:
    """A dedupe key."""
    return H("test.key", number)


def record_of(item: dict[str, Any], body: bytes = b"body") -> bytes:
    return encode_record(
        MessageRecord(
            tenant_id="default",
            conversation_id=item["conversation_id"],
            conversation_kind=item["conversation_kind"],
            kind=1,
            sender_id=1,
            device_id=b"d",
            client_message_id=b"c" * 16,
            request_digest=item["request_digest"],
            message_id=item["message_id"],
            version=item["version"],
            membership_digest=item["membership_digest"],
            peer_user_id=2,
            recipients=(),
            delta=None,
            body=body,
            custom_type="",
            retention_class=0,
            sent_at=item["sent_at"],
            not_after=item["not_after"],
            trace_id=1,
        )
    )


def single(number: int, **other: Any) -> message.ReserveItem:
    """A commit of a single chat."""
    item: dict[str, Any] = {
        "dedupe_key": key(number),
        "request_digest": H("test.digest", number),
        "message_id": mid(number),
        "conversation_id": SINGLE,
        "conversation_kind": ConversationKind.SINGLE,
        "version": 0,
        "membership_digest": b"",
        "single_users": (1, 2),
        "sent_at": NOW,
        "not_after": NOW + HOUR,
    } | other
    item.setdefault("record", record_of(item))
    return message.ReserveItem(**item)


def grouped(number: int, version: int, digest: bytes, **other: Any) -> message.ReserveItem:
    """A commit of a group, frozen at (version, digest)."""
    return single(
        number,
        **{
            "conversation_id": GROUP,
            "conversation_kind": ConversationKind.GROUP,
            "version": version,
            "membership_digest": digest,
            "single_users": None,
        }
        | other,
    )


def digest_of(version: int) -> bytes:
    """The chained digest of a group's version in these tests."""
    return b"" if version == 0 else H("test.version", version)


def step(
    version: int, operation: int, users: tuple[int, ...], **other: Any
) -> message.MembershipWrite:
    """The step from version - 1 to version."""
    return message.MembershipWrite(
        **{
            "operation": operation,
            "users": users,
            "previous_version": version - 1,
            "previous_digest": digest_of(version - 1),
            "version": version,
            "digest": digest_of(version),
            "creator": 1,
            "name": "name ü",
            "meta": b"\x00meta",
        }
        | other
    )


class Shard:
    """A writer shard opened under an epoch: requests bound to what its Open answered."""

    def __init__(self, store: Store, shard: int = 3, epoch: int = 7) -> None:
        self.store, self.shard, self.epoch, self.op = store, shard, epoch, 0
        opened = ask(store, message.OpenShard(op=1, shard=shard, epoch=epoch, fresh_key=MARKER))
        assert isinstance(opened, message.ShardOpened), opened
        self.opened, self.incarnation = opened, opened.incarnation

    def bound(self, kind: Any, **fields: Any) -> Any:
        self.op += 1
        common = {
            "op": self.op,
            "shard": self.shard,
            "epoch": self.epoch,
            "incarnation": self.incarnation,
            "now_wall": NOW,
        }
        common = {name: value for name, value in common.items() if name in kind.__struct_fields__}
        return kind(**common | fields)

    def ask(self, kind: Any, **fields: Any) -> Any:
        reply = ask(self.store, self.bound(kind, **fields))
        assert reply.op == self.op
        return reply

    def cover(self, covered_to: int, drop_facts: tuple[bytes, ...], epoch: int = 7) -> Any:
        """Open the shard's coverage under an epoch, and advance it."""
        ask(
            self.store,
            audit.OpenCoverage(op=1, partition=self.shard, epoch=epoch, fresh_key=MARKER),
        )
        return ask(
            self.store,
            audit.AdvanceCoverage(
                op=2,
                partition=self.shard,
                epoch=epoch,
                incarnation=self.incarnation,
                covered_to=covered_to,
                drop_facts=drop_facts,
            ),
        )

    def reserve(self, *items: message.ReserveItem, **fields: Any) -> tuple[Any, ...]:
        reply = self.ask(message.ReserveAndRecord, items=items, **fields)
        assert isinstance(reply, message.Reserved), reply
        assert len(reply.results) == len(items)
        return reply.results

    def change(
        self, number: int, write: message.MembershipWrite, **other: Any
    ) -> message.ReserveResult:
        item = grouped(number, write.previous_version, write.previous_digest, **other)
        reply = self.ask(message.MembershipChange, item=item, membership=write)
        assert isinstance(reply, message.Reserved), reply
        return reply.results[0]

    def create(self, number: int = 1, users: tuple[int, ...] = (1, 2, 3)) -> message.ReserveResult:
        return self.change(number, step(1, MembershipOp.CREATE, users))

    def mark(self, *items: message.MarkItem, applied_to: int | None = None) -> Any:
        to = max([item.offset + 1 for item in items]) if applied_to is None else applied_to
        return self.ask(message.MarkCommitted, applied_to=to, items=items)

    def told_whole(self) -> "Shard":
        """OPEN has put everything before its barrier into the store."""
        fields = {"applied_from": 0, "applied_to": 0, "filter_epoch": self.epoch, "records": ()}
        assert isinstance(
            self.ask(message.ApplyOutbox, **fields, whole=True), message.OutboxApplied
        )
        return self

    def membership(self, conversation_id: bytes = GROUP) -> Any:
        return self.ask(reads.ReadMembership, conversation_id=conversation_id)

    def history(self, low: int = -1, high: int = FOREVER, **other: Any) -> Any:
        """The page of one conversation."""
        asked = {"conversation_id": SINGLE, "newest_first": False, "limit": 100} | other
        return self.histories(reads.HistoryItem(low=low, high=high, **asked))[0]

    def histories(self, *items: reads.HistoryItem, **fields: Any) -> Any:
        pages: tuple[reads.HistoryPage, ...]
        pages = self.ask(reads.ReadHistory, items=items, **fields).pages
        assert len(pages) == len(items)
        return pages

    def lookup(self, *numbers: int, **other: Any) -> Any:
        keys = tuple(key(number) for number in numbers)
        return self.ask(message.LookupCommits, dedupe_keys=keys, **other).commits

    def pending(self) -> tuple[bytes, ...]:
        read = self.ask(message.ReadPending, after=b"", limit=100)
        stored: tuple[bytes, ...] = read.stored
        return stored

    def facts(self) -> Any:
        return ask(
            self.store, source.ReadFacts(op=1, shard=self.shard, after=b"", limit=1000)
        ).facts


def marked(item: message.ReserveItem, seq: int, offset: int) -> message.MarkItem:
    """The confirmation of an item."""
    return message.MarkItem(
        dedupe_key=item.dedupe_key,
        message_id=item.message_id,
        conversation_id=item.conversation_id,
        conversation_seq=seq,
        offset=offset,
    )


def stored_as(item: message.ReserveItem, seq: int, activity: bytes) -> bytes:
    return stored_record(seq, activity, item.record)


def applied(
    item: message.ReserveItem,
    seq: int,
    offset: int,
    membership: message.MembershipWrite | None = None,
) -> message.AppliedRecord:
    """The same commit as an effective outbox record, as OPEN (d) restores it."""
    if membership is not None:
        # the record doesn't hold it
        membership = replace(membership, previous_digest=b"")
    return message.AppliedRecord(
        offset=offset,
        dedupe_key=item.dedupe_key,
        request_digest=item.request_digest,
        message_id=item.message_id,
        conversation_id=item.conversation_id,
        conversation_kind=item.conversation_kind,
        conversation_seq=seq,
        last_activity_id=item.message_id,
        stored=stored_as(item, seq, item.message_id),
        sent_at=item.sent_at,
        not_after=item.not_after,
        single_users=item.single_users,
        membership=membership,
        overlay=item.overlay,
    )


class Box:
    """A mailbox shard opened under an epoch."""

    def __init__(self, store: Store, shard: int = 5, epoch: int = 7, initial: int = 999) -> None:
        self.store, self.shard, self.epoch, self.op = store, shard, epoch, 0
        opened = ask(
            store,
            mailbox.OpenMailbox(op=1, shard=shard, epoch=epoch, fresh_key=MARKER, initial=initial),
        )
        assert isinstance(opened, mailbox.MailboxOpened), opened
        self.opened, self.incarnation = opened, opened.incarnation

    def ask(self, kind: Any, **fields: Any) -> Any:
        self.op += 1
        common = {
            "op": self.op,
            "shard": self.shard,
            "epoch": self.epoch,
            "incarnation": self.incarnation,
        }
        common = {name: value for name, value in common.items() if name in kind.__struct_fields__}
        reply = ask(self.store, kind(**common | fields))
        assert reply.op == self.op
        return reply

    def append(
        self,
        base_from: int,
        base_to: int,
        *rows: mailbox.MailboxRow,
        moves: tuple[mailbox.LaneMove, ...] = (),
        days: tuple[tuple[int, int], ...] = (),
        **other: Any,
    ) -> Any:
        fields = {"position": Position(b"topic", base_to, b"p" * 16)} | other
        return self.ask(
            mailbox.AppendEntries,
            base_from=base_from,
            base_to=base_to,
            moves=moves,
            rows=rows,
            days=days,
            **fields,
        )

    def claim(self, *claims: tuple[bytes, int, int, int]) -> Any:
        made = tuple(mailbox.Claim(*claim) for claim in claims)
        return self.ask(mailbox.ClaimDispatches, claims=made)

    def read(self, user_id: int, after: int, **other: Any) -> Any:
        fields = {"tenant_id": "t", "lane": 0, "up_to": 0, "limit": 100} | other
        asked = mailbox.MailboxRead(user_id=user_id, after=after, **fields)
        return self.ask(mailbox.ReadMailboxes, reads=(asked,)).results[0]


def row(user_id: int, seq: int, day: int = 20_000, tenant_id: str = "t") -> mailbox.MailboxRow:
    """A mailbox row whose entry names its seq."""
    return mailbox.MailboxRow(tenant_id, user_id, day, seq, b"entry %d" % seq)
