"""A mailbox store of dictionaries with the semantics of the scripts, for one shard: what MailboxNode is tested against."""

from qim.core.contract import routing
from qim.core.contract.entities import NO_SOURCE, PresenceEntry
from qim.core.ports.completion import Fenced, StoreReset, StoreRole
from qim.core.ports.log import Position
from qim.core.ports.store_mailbox import (
    AppendEntries,
    ClaimDispatches,
    Claimed,
    DispatchesFinished,
    EntriesAppended,
    FinishDispatches,
    FloorRaised,
    MailboxesRead,
    MailboxOpened,
    MailboxRead,
    MailboxRows,
    MailboxTrimmed,
    OpenMailbox,
    PresenceRead,
    RaiseFloor,
    ReadMailboxes,
    ReadPresence,
    TrimMailbox,
    Trimmed,
)
from qim.core.ports.store_session import DeliveredNoted, NoteDelivered

Reply = object


class MailboxStoreModel:
    """One shard's state. ``rows``: (tenant, user) -> seq -> (day, entry)."""

    def __init__(self) -> None:
        self.marker = b"run/1"
        self.epoch = 0
        self.base: int | None = None
        self.own: dict[int, int] = {}
        self.trim = 0
        self.days: list[tuple[int, int]] = []
        self.position: Position | None = None
        self.claims: dict[bytes, tuple[int, int, int]] = {}
        self.finished: dict[bytes, tuple[int, bytes]] = {}
        self.floors: dict[int, int] = {}
        self.rows: dict[tuple[str, int], dict[int, tuple[int, bytes]]] = {}
        self.delivered: dict[tuple[str, int, bytes], int] = {}
        self.presence: dict[tuple[str, int], tuple[PresenceEntry, ...]] = {}

    def watermark(self, lane: int) -> int:
        assert self.base is not None
        return self.own.get(lane, self.base)

    def minimum(self) -> int:
        assert self.base is not None
        return min([self.base, *self.own.values()])

    def execute(self, request: object) -> Reply:
        """The reply a script would give; applied at once."""
        if isinstance(request, OpenMailbox):
            return self._open(request)
        if isinstance(request, ReadPresence):
            entries = tuple(self.presence.get(user, ()) for user in request.users)
            return PresenceRead(op=request.op, entries=entries)
        assert isinstance(
            request,
            AppendEntries
            | ClaimDispatches
            | FinishDispatches
            | RaiseFloor
            | TrimMailbox
            | ReadMailboxes
            | NoteDelivered,
        )
        if request.incarnation != self.marker:
            return StoreReset(op=request.op, store=StoreRole.MAILBOX)
        if isinstance(request, ReadMailboxes):
            return MailboxesRead(
                op=request.op, results=tuple(self._read(read) for read in request.reads)
            )
        if isinstance(request, NoteDelivered):
            for *device, seq in request.items:
                name = (device[0], device[1], device[2])
                self.delivered[name] = max(self.delivered.get(name, 0), seq)
            return DeliveredNoted(op=request.op)
        if request.epoch < self.epoch:
            return Fenced(op=request.op, epoch=self.epoch)
        self.epoch = request.epoch
        match request:
            case AppendEntries():
                return self._append(request)
            case ClaimDispatches():
                return self._claim(request)
            case FinishDispatches():
                return self._finish(request)
            case RaiseFloor():
                return self._floor(request)
            case TrimMailbox():
                return self._trim(request)

    def _open(self, request: OpenMailbox) -> Reply:
        if request.epoch < self.epoch:
            return Fenced(op=request.op, epoch=self.epoch)
        self.epoch = request.epoch
        lost = self.base is None and bool(self.days or self.claims or self.trim)
        if self.base is None and not lost:
            self.base = request.initial
        return MailboxOpened(
            op=request.op,
            incarnation=self.marker,
            base=self.base if self.base is not None else request.initial,
            lanes=tuple(sorted(self.own.items())),
            trim=self.trim,
            floors=tuple(sorted(self.floors.items())),
            days=tuple(self.days),
            position=self.position,
            counter_lost=lost,
        )

    def _append(self, request: AppendEntries) -> Reply:
        before = {m.lane: m.from_ for m in request.moves if m.from_ != request.base_from}
        after = {m.lane: m.to for m in request.moves if m.to != request.base_to}
        moves = (request.base_from, before) != (request.base_to, after)
        if moves and (self.base, self.own) == (request.base_to, after):
            return EntriesAppended(op=request.op)
        if request.base_to <= self.trim:
            return Trimmed(op=request.op, trim=self.trim)
        if (self.base, self.own) != (request.base_from, before):
            return Fenced(op=request.op, epoch=0)
        for day, first in request.days:
            if not self.days or self.days[-1][0] < day:
                self.days.append((day, first))
        for row in request.rows:
            assert any(day == row.day for day, _ in self.days), "a row of a day without a range"
            mailbox = self.rows.setdefault((row.tenant_id, row.user_id), {})
            held = mailbox.get(row.mailbox_seq)
            assert held is None or held == (row.day, row.entry), "a replay wrote something else"
            mailbox[row.mailbox_seq] = (row.day, row.entry)
        self.base, self.own = request.base_to, after
        self.position = request.position
        return EntriesAppended(op=request.op)

    def _claim(self, request: ClaimDispatches) -> Reply:
        offsets: list[int] = []
        digests: list[bytes] = []
        for claim in request.claims:
            sourced = claim.source_partition != NO_SOURCE
            if sourced and claim.source_offset < self.floors.get(claim.source_partition, 0):
                offsets.append(-1)
                digests.append(b"")
                continue
            new = (claim.offset, claim.source_partition, claim.source_offset)
            first = self.claims.setdefault(claim.dispatch_id, new)
            offsets.append(first[0])
            digests.append(self.finished.get(claim.dispatch_id, (0, b""))[1])
        return Claimed(op=request.op, first_offsets=tuple(offsets), digests=tuple(digests))

    def _finish(self, request: FinishDispatches) -> Reply:
        differing: list[int] = []
        for index, item in enumerate(request.items):
            claim = self.claims.get(item.dispatch_id)
            if claim is not None and claim[0] == item.offset:
                held = self.finished.setdefault(item.dispatch_id, (item.entry_count, item.digest))
                if held[1] != item.digest:
                    differing.append(index)
        return DispatchesFinished(op=request.op, differing=tuple(differing))

    def _floor(self, request: RaiseFloor) -> Reply:
        source = request.source_partition
        assert source != NO_SOURCE, "a redriven dispatch raises no floor"
        floor = self.floors[source] = max(self.floors.get(source, 0), request.floor)
        below = [
            name for name, (_, p, offset) in self.claims.items() if p == source and offset < floor
        ]
        for name in below[: request.limit]:
            del self.claims[name]
            self.finished.pop(name, None)
        return FloorRaised(op=request.op, more=len(below) > request.limit)

    def _trim(self, request: TrimMailbox) -> Reply:
        if self.minimum() < request.to:
            return MailboxTrimmed(op=request.op, trim=self.trim, more=False)
        self.trim = max(self.trim, request.to)
        users = [
            user
            for user, mailbox in self.rows.items()
            if any(day == request.day for day, _ in mailbox.values())
        ]
        for user in users[: request.limit]:
            mailbox = self.rows[user]
            self.rows[user] = {seq: row for seq, row in mailbox.items() if row[0] != request.day}
        if len(users) > request.limit:
            return MailboxTrimmed(op=request.op, trim=self.trim, more=True)
        if self.days and self.days[0][0] == request.day:
            del self.days[0]
        return MailboxTrimmed(op=request.op, trim=self.trim, more=False)

    def _read(self, read: MailboxRead) -> MailboxRows:
        assert read.lane == routing.lane(read.user_id)
        watermark = self.watermark(read.lane)
        end = min(watermark, read.up_to) if read.up_to else watermark
        mailbox = self.rows.get((read.tenant_id, read.user_id), {})
        seqs = [seq for seq in sorted(mailbox) if read.after < seq <= end]
        if read.after < self.trim:
            seqs = []
        entries = tuple(mailbox[seq][1] for seq in seqs[: read.limit])
        return MailboxRows(watermark, self.trim, entries, len(seqs) > read.limit)
