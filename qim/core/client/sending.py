"""Pending rows on their way: durable first, not_after fixed before the first transmission, then sent until settled.

The same bytes go out in every transmission: same client_message_id, same not_after (pipeline.md §6, Client). After a
reconnect rows that may have reached a server wait for the first sync, whose own mailbox copies settle them; what is not
found there is sent again, which the server's dedupe makes harmless. A refusal that names no hope fails the row; nothing
is ever failed because nobody answered.
"""

from typing import Final

from msgspec.structs import replace

from qim.core.client.context import ClientContext, NotAfterSaving, RowSaving, WaitKind
from qim.core.client.lookup import Lookup
from qim.core.client.outbox import ON_WIRE, Outbox, OutboxRow, RowStage, outbox_row
from qim.core.client.settling import Settling
from qim.core.client.translation import Submitted, frame_of_row, refusal_of_row, row_of_command
from qim.core.client.vocabulary import SendQueued, SendRefused
from qim.core.contract.errors import ErrorCode, ProtocolError
from qim.core.machine import Ms
from qim.core.ports.local_store import PendingRow, SaveNotAfter, SavePending

_NOT_AFTER_AGE_MAX_MS: Final = 60_000
"""A not_after fixed longer ago, of a row that surely was never transmitted, is fixed anew."""


class Sending:
    """Brings rows from the command to the notice that settles them. It applies no message."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self._outbox = Outbox()
        self._lookup = Lookup(context)
        self.settling = Settling(context, self._outbox, self._lookup)
        self._order = 0
        self._reconciled = False

    # ---------------------------------------------------------------- commands

    def load(self, rows: tuple[PendingRow, ...], order_last: int) -> None:
        """What an earlier life left; a row with not_after may have been transmitted."""
        config = self._context.config
        self._order = order_last
        for row in rows:
            entry = outbox_row(row, config.tenant_id, config.user_id)
            entry.stage = RowStage.QUEUED
            entry.stored = True
            entry.transmitted = row.not_after > 0
            self._outbox.add(entry)

    def submit(self, command: Submitted) -> None:
        """Store the row, or refuse the command."""
        context = self._context
        key = command.client_message_id
        row = row_of_command(command, self._order + 1)
        refusal = refusal_of_row(row) or self._refusal_here(key)
        if refusal is not None:
            context.order(
                SendRefused(client_message_id=key, code=refusal.code, message=refusal.message)
            )
            return
        self._order += 1
        entry = outbox_row(row, context.config.tenant_id, context.config.user_id)
        if self._may_go_first(entry):
            # It would go out as soon as it is stored, so both facts are stored at once.
            entry.row = replace(row, not_after=self._fresh_not_after())
        self._outbox.add(entry)
        self._save(entry)

    def row_saved(self, saving: RowSaving) -> None:
        """Durable: from here on it is sent until it is settled."""
        entry = self._outbox.rows[saving.client_message_id]
        entry.stored = True
        self._context.order(SendQueued(client_message_id=entry.key))
        if entry.stage is RowStage.SETTLING:
            return  # its own copy came from another device meanwhile; the batch that stores it ends the row
        entry.stage = RowStage.QUEUED
        self._outbox.wake(entry)
        if entry.row.not_after and not self._context.is_live():
            # The connection it was dated for is gone, and the row was on none.
            self._date((entry,), 0)

    def row_not_saved(self, saving: RowSaving, *, surely: bool) -> None:
        """Refused if it surely isn't stored; else stored once more, or a restart might send what was refused."""
        entry = self._outbox.rows[saving.client_message_id]
        if not surely or entry.stage is RowStage.SETTLING:
            self._context.repeat(saving)
            return
        self._outbox.drop(entry)
        refused = SendRefused(
            client_message_id=entry.key,
            code=ErrorCode.UNAVAILABLE,
            message="the local store can't keep it",
        )
        self._context.order(refused)

    def save_again(self, saving: RowSaving) -> None:
        """The same row: an insert that stands keeps it. One whose copy came waits for the batch: it ends the row, or fails."""
        entry = self._outbox.rows.get(saving.client_message_id)
        if entry is None or entry.row.order != saving.order:
            return  # settled, and submitted anew perhaps
        if entry.stage is RowStage.SAVING:
            self._save(entry)
        else:
            self._context.repeat(saving)

    # ---------------------------------------------------------------- connection

    def lost(self) -> None:
        """The connection is gone: what was on it may have arrived or not."""
        self._reconciled = False
        self._lookup.lost()
        for entry in self._outbox.rows.values():
            if entry.stage in (RowStage.INFLIGHT, RowStage.LOOKING):
                self._outbox.inflight -= entry.stage is RowStage.INFLIGHT
                entry.stage = RowStage.QUEUED
        self._outbox.wake_all()

    def live(self) -> None:
        """A new connection may send."""
        self._outbox.wake_all()

    def reconciled(self) -> None:
        """The first sync is in the local store: rows still here were not found in the mailbox."""
        self._reconciled = True
        self._outbox.wake_all()

    def pump(self) -> None:
        """Send what may go, look up what expired, end pauses that are over."""
        context = self._context
        self._outbox.warm(context.now)
        if not context.is_live():
            return
        lanes = self._outbox.take_runnable()
        undated: list[OutboxRow] = []
        for at, lane in enumerate(lanes):
            if self._outbox.inflight >= context.config.sends_inflight_max:
                self._outbox.put_back(lanes[at:])
                break
            self._pump_lane(lane, undated)
        if undated:
            self._date(tuple(undated), self._fresh_not_after())

    def deadline(self) -> Ms | None:
        """The end of the shortest pause."""
        cooling = self._outbox.cooling
        return min([entry.due for entry in cooling.values()]) if cooling else None

    def dated(self, saving: NotAfterSaving, *, done: bool) -> None:
        """not_after is on disk: the rows may go out now, if their connection still stands."""
        for key in saving.rows:
            entry = self._outbox.rows.get(key)
            if entry is None or entry.stage is not RowStage.FIXING:
                continue
            if entry.row.not_after != saving.not_after:
                continue  # an earlier order, taking back; the one that counts is still out
            self._outbox.inflight -= 1
            entry.stage = RowStage.QUEUED
            self._outbox.wake(entry)
            if not done:
                entry.row = replace(entry.row, not_after=0)
                self.settling.cool(entry, 0)

    def check(self) -> None:
        """Bounds and counts."""
        self._outbox.check()
        assert self._outbox.inflight <= self._context.config.sends_inflight_max
        for entry in self._outbox.rows.values():
            if entry.stage is RowStage.INFLIGHT:
                assert entry.stored and entry.transmitted and entry.row.not_after

    # ---------------------------------------------------------------- one row

    def _refusal_here(self, key: bytes) -> ProtocolError | None:
        rows = self._outbox.rows
        if key in rows:
            return ProtocolError(
                ErrorCode.IDEMPOTENCY_CONFLICT, "a row with this client_message_id is pending here"
            )
        if len(rows) >= self._context.config.pending_max:
            return ProtocolError(ErrorCode.QUOTA_EXCEEDED, f"{len(rows)} rows are pending here")
        return None

    def _save(self, entry: OutboxRow) -> None:
        op = self._context.expect(RowSaving(client_message_id=entry.key, order=entry.row.order))
        self._context.order(SavePending(op=op, row=entry.row, traces=(entry.trace,)))

    def _may_go_first(self, entry: OutboxRow) -> bool:
        window = self._context.config.conversation_inflight_max
        return self._context.is_live() and self._outbox.is_clear_for(entry.conversation_id, window)

    def _fresh_not_after(self) -> Ms:
        return self._context.server_time() + self._context.config.parameters.not_after_ms

    def _pump_lane(self, lane: bytes, undated: list[OutboxRow]) -> None:
        """The head window in order; the first row that can't move keeps all behind it waiting."""
        for entry in self._outbox.head(lane, self._context.config.conversation_inflight_max):
            if entry.stage in ON_WIRE:
                continue
            if entry.stage is not RowStage.QUEUED:
                return
            if entry.transmitted and not self._reconciled:
                return
            if self._outbox.inflight >= self._context.config.sends_inflight_max:
                self._outbox.wake(entry)
                return
            if entry.expired:
                if self._lookup.start(entry):
                    entry.stage = RowStage.LOOKING
                else:
                    self._outbox.wake(entry)
                return
            self._outbox.inflight += 1
            if self._is_dated(entry):
                self._transmit(entry)
            else:
                entry.stage = RowStage.FIXING
                undated.append(entry)

    def _is_dated(self, entry: OutboxRow) -> bool:
        if entry.transmitted:
            return True
        return entry.row.not_after >= self._fresh_not_after() - _NOT_AFTER_AGE_MAX_MS

    def _transmit(self, entry: OutboxRow) -> None:
        entry.stage = RowStage.INFLIGHT
        entry.transmitted = True
        self._context.ask(frame_of_row(entry.row), WaitKind.SEND, key=entry.key, trace=entry.trace)

    def _date(self, entries: tuple[OutboxRow, ...], not_after: Ms) -> None:
        """Order not_after onto disk; 0 takes it back from rows that were on no connection."""
        for entry in entries:
            assert not entry.transmitted, "not_after is fixed once"
            entry.row = replace(entry.row, not_after=not_after)
        keys = tuple(entry.key for entry in entries)
        op = self._context.expect(NotAfterSaving(rows=keys, not_after=not_after))
        self._context.order(
            SaveNotAfter(
                op=op,
                rows=tuple((entry.key, not_after) for entry in entries),
                traces=tuple(entry.trace for entry in entries[:4]),
            )
        )
