"""What is true in a world, computed from its logs alone: effective records, audiences, versions, first dispatches.

It never asks a machine and never depends on the switch it judges: logs are truth (pipeline.md §0), and everything here
is a function of what was appended to them.
"""

from typing import Final

from msgspec import Struct

from qim.core.contract.entities import (
    ConversationKind,
    GroupDispatch,
    MembershipOp,
    MessageRecord,
)
from qim.core.contract.ids import dispatch_id
from qim.core.contract.logvalue import (
    Barrier,
    Dispatched,
    Outboxed,
    read_dispatch,
    read_outbox,
)
from qim.core.contract.routing import lane, shard
from qim.core.contract.sequences import FIRST_SHARD_EPOCH, mailbox_seq
from qim.core.effective import EffectiveFilter
from qim.core.ports.log import StoredRecord


class Effective(Struct, frozen=True, kw_only=True, gc=False):
    """An effective record and where it stands."""

    partition: int
    offset: int
    epoch: int
    record: MessageRecord
    audience: tuple[int, ...]
    again: bool = False
    """Whoever mends its log published it, not its writer."""


class Expected(Struct, frozen=True, kw_only=True, gc=False):
    """A dispatch at its first offset in a shard's log, and the users of the shard it must reach."""

    offset: int
    dispatch: GroupDispatch
    users: tuple[int, ...]


class Entry(Struct, frozen=True, kw_only=True, gc=False):
    """A mailbox_seq, and the how-manyth dispatch of the world it was: a topic made anew begins its offsets again."""

    seq: int
    order: int


NOBODY: Final[tuple[int, ...]] = ()
JOINING: Final = (MembershipOp.CREATE, MembershipOp.ADD)


class Oracle:
    """Fed with every append, in the order in which it lands."""

    def __init__(self, shard_count: int) -> None:
        self.shard_count = shard_count
        self.filters: dict[int, EffectiveFilter] = {}
        self.at: dict[tuple[int, int], Effective | None] = {}
        """(partition, offset) -> the effective record, None for barriers and the ineffective."""
        self.barriers: dict[int, list[tuple[int, int]]] = {}
        self.messages: dict[bytes, Effective] = {}
        self.conversations: dict[bytes, list[MessageRecord]] = {}
        """conversation -> the records of ``messages`` in the order in which they landed."""
        self.versions: dict[bytes, dict[int, tuple[int, ...]]] = {}
        self.in_order: dict[int, list[Effective]] = {}
        """partition -> effective records by offset."""
        self.was: dict[tuple[int, int], dict[bytes, Effective]] = {}
        """(partition, offset) of all that an outbox lost -> the effective records that had stood there, by message_id."""
        self.unfenced: dict[int, int] = {}
        """Outbox partition -> the greatest epoch of a barrier it lost: what that had voided may land again, and mean something."""
        self.ineffective = 0
        self.firsts: dict[tuple[int, bytes], int] = {}
        """(shard, dispatch_id) -> mailbox_seq."""
        self.orders: dict[tuple[int, bytes], int] = {}
        self.dispatches: dict[int, dict[int, Expected | None]] = {}
        """shard -> offset -> first dispatch under its shard_epoch, None for a repeated one."""
        self.past: dict[tuple[int, int], dict[int, Expected | None]] = {}
        """(shard, shard_epoch) -> what ``dispatches`` was under an epoch that is over."""
        self.stood: dict[tuple[int, int, bytes], None] = {}
        """(shard, offset, dispatch_id) of all that ever stood in a dispatch log."""
        self.epochs: dict[int, int] = {}
        self.lost: dict[int, None] = {}
        """Shards whose log lost something that its mailbox had read: it reads nothing more under this epoch."""
        self.dispatched_ever = 0
        self.repeated = 0
        self.places: dict[int, tuple[int, int]] = {}

    def place(self, user_id: int) -> tuple[int, int]:
        """(shard, lane)."""
        found = self.places.get(user_id)
        if found is None:
            found = self.places[user_id] = (shard(user_id, self.shard_count), lane(user_id))
        return found

    # ------------------------------------------------------------ outbox

    def outboxed(
        self, partition: int, stored: StoredRecord, *, again: bool = False
    ) -> Effective | None:
        """One outbox record has landed; the effective record it is, if it is one."""
        entry = read_outbox(stored.value)
        assert isinstance(entry, (Outboxed, Barrier)), entry
        judge = self.filters.get(partition)
        if judge is None:
            judge = self.filters[partition] = EffectiveFilter(0)
        found: Effective | None = None
        if type(entry) is Outboxed and judge.admits(entry):
            record = entry.record
            if record.delta is not None:
                self._change(record)
            found = Effective(
                partition=partition,
                offset=stored.offset,
                epoch=entry.epoch,
                record=record,
                audience=self.audience(record),
                again=again,
            )
            if record.message_id not in self.messages:
                self.messages[record.message_id] = found
                self.conversations.setdefault(record.conversation_id, []).append(record)
            elif again or self.was_lost(self.messages[record.message_id]):
                self.messages[record.message_id] = found
            self.in_order.setdefault(partition, []).append(found)
        elif type(entry) is Barrier:
            judge.admits(entry)
            self.barriers.setdefault(partition, []).append((entry.epoch, stored.offset))
        else:
            self.ineffective += 1
        self.at[partition, stored.offset] = found
        return found

    def outbox_lost(self, partition: int, end: int) -> None:
        """The log ends at ``end``: what a barrier above it said is said no more, what was committed there is committed all the same."""
        places = [place for place in self.at if place[0] == partition and place[1] >= end]
        for place in places:
            stood = self.was.setdefault(place, {})
            found = self.at.pop(place)
            if found is not None:
                stood[found.record.message_id] = found
        standing = self.in_order.get(partition, [])
        self.in_order[partition] = [one for one in standing if one.offset < end]
        gone = [epoch for epoch, offset in self.barriers.get(partition, []) if offset >= end]
        self.unfenced[partition] = max([self.unfenced.get(partition, 0), *gone])
        left = [one for one in self.barriers.get(partition, []) if one[1] < end]
        self.barriers[partition] = left
        self.filters[partition] = EffectiveFilter(max((epoch for epoch, _ in left), default=0))

    def was_lost(self, message: Effective) -> bool:
        """It stands no more where it last stood."""
        return self.at.get((message.partition, message.offset)) is not message

    def stood_at(self, partition: int, offset: int, message_id: bytes) -> Effective | None:
        """The record of this id that stands there, or that stood there until its log lost it."""
        found = self.at.get((partition, offset))
        if found is not None and found.record.message_id == message_id:
            return found
        return self.was.get((partition, offset), {}).get(message_id)

    def _change(self, record: MessageRecord) -> None:
        delta = record.delta
        assert delta is not None
        versions = self.versions.setdefault(record.conversation_id, {})
        before = versions.get(delta.previous_version, NOBODY)
        users = delta.users
        after = (*before, *users) if delta.op in JOINING else [u for u in before if u not in users]
        versions[delta.version] = tuple(sorted(dict.fromkeys(after)))

    def audience(self, record: MessageRecord) -> tuple[int, ...]:
        """The frozen audience, ascending."""
        if record.recipients:
            return tuple(sorted(record.recipients))
        if record.conversation_kind == ConversationKind.SINGLE:
            return tuple(sorted(dict.fromkeys((record.sender_id, record.peer_user_id))))
        return self.versions.get(record.conversation_id, {}).get(record.version, NOBODY)

    def shards_of(self, message: Effective) -> tuple[int, ...]:
        """Target shards of the record, ascending."""
        return tuple(sorted(dict.fromkeys(self.place(user)[0] for user in message.audience)))

    def entry_of(self, message: Effective, user_id: int) -> Entry | None:
        """Where the message stands in the user's mailbox, None while it was not dispatched there."""
        number = self.place(user_id)[0]
        key = (number, dispatch_id(message.record.message_id, number))
        seq = self.firsts.get(key)
        return None if seq is None else Entry(seq=seq, order=self.orders[key])

    def members(self, conversation_id: bytes) -> tuple[int, ...]:
        """Members of the latest version an effective record made."""
        versions = self.versions.get(conversation_id)
        return versions[max(versions)] if versions else NOBODY

    # ------------------------------------------------------------ dispatch log

    def dispatched(self, shard_number: int, stored: StoredRecord) -> Expected | None:
        """One dispatch has landed; what it must become, unless it is a repetition."""
        entry = read_dispatch(stored.value)
        assert isinstance(entry, Dispatched), entry
        dispatch = entry.dispatch
        self.stood[shard_number, stored.offset, dispatch.dispatch_id] = None
        if shard_number in self.lost:
            return None
        rows = self.dispatches.setdefault(shard_number, {})
        key = (shard_number, dispatch.dispatch_id)
        if key in self.firsts:
            self.repeated += 1
            rows[stored.offset] = None
            return None
        self.orders[key] = self.dispatched_ever
        self.dispatched_ever += 1
        self.firsts[key] = mailbox_seq(self.epoch(shard_number), stored.offset)
        source = self.messages.get(dispatch.message_id)
        audience = source.audience if source is not None else NOBODY
        users = tuple(user for user in audience if self.place(user)[0] == shard_number)
        expected = Expected(offset=stored.offset, dispatch=dispatch, users=users)
        rows[stored.offset] = expected
        return expected

    def epoch(self, shard_number: int) -> int:
        """The shard_epoch."""
        return self.epochs.get(shard_number, FIRST_SHARD_EPOCH)

    def rows(self, shard_number: int, shard_epoch: int) -> dict[int, Expected | None]:
        """``dispatches`` as they are, or were, under this epoch."""
        if shard_epoch == self.epoch(shard_number):
            return self.dispatches.get(shard_number, {})
        return self.past.get((shard_number, shard_epoch), {})

    def dispatch_lost(self, shard_number: int) -> None:
        """The mailbox goes on with what it had fetched; what is dispatched from now on it reads after a bump."""
        self.lost[shard_number] = None

    def bumped(
        self, shard_number: int, shard_epoch: int, void_from: int, records: list[StoredRecord]
    ) -> None:
        """All of ``records``, the log as it stands, is read again; what was materialised below ``void_from`` stays a duplicate."""
        before = self.epoch(shard_number)
        self.past[shard_number, before] = self.dispatches.pop(shard_number, {})
        first = mailbox_seq(before, void_from)
        for key in [key for key, seq in self.firsts.items() if key[0] == shard_number]:
            if self.firsts[key] >= first:
                del self.firsts[key], self.orders[key]
        self.epochs[shard_number] = shard_epoch
        self.lost.pop(shard_number, None)
        for record in records:
            self.dispatched(shard_number, record)
