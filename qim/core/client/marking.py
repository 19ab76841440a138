"""Read marks and the user's own states on their way: durable here first, sent until the server has them (pipeline.md §4).

    asked ──► SaveRead | SaveUserState ──► kept ──► ReadUnsent ──► MARK_READ, SET_STATE ──OK──► SaveStateSent ──► settled
                                                      ▲                 │ may help: pause
                                                      └─────────────────┘

What is unsent stands in the local store alone, so a mark made offline, or one the list has lower, is sent all the same.
Both are idempotent and ordered by their values, so sending twice, late or out of order does no harm.
"""

from collections import deque
from typing import Final

from msgspec import Struct

from qim.core.client.context import (
    ClientContext,
    MarkSaving,
    SentSaving,
    UnsentReading,
    WaitKind,
)
from qim.core.client.settling import may_help
from qim.core.client.translation import refusal_of_frame
from qim.core.client.vocabulary import (
    MarkReadRequested,
    StateKept,
    StateRequested,
    StateSettled,
)
from qim.core.contract.errors import ErrorCode, ProtocolError
from qim.core.contract.frames import MarkRead, SetState
from qim.core.machine import Ms
from qim.core.ports.local_sessions import (
    ReadUnsent,
    SaveRead,
    SaveStateSent,
    SaveUserState,
    UnsentState,
)

_PAGE = 32
_MARK: Final = WaitKind.MARK


class Ticket(Struct, frozen=True, kw_only=True):
    """Somebody waits until the server has this; ``since``: the pass in which it was kept."""

    number: int
    conversation_id: bytes
    read_seq: int
    version: int
    since: int


class Marking:
    """A pass reads what is unsent page by page and sends it; a change meanwhile makes another pass."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self._tickets: list[Ticket] = []
        self._saving = 0
        self._dirty = True
        self._pass = 0
        self._walking = False
        self._reading = False
        self._after: bytes | None = None
        self._queue: deque[UnsentState] = deque()
        self._out: dict[int, tuple[bytes, int, int]] = {}
        self._confirming = 0
        self._not_before: Ms = 0
        self._tries = 0

    # ---------------------------------------------------------------- the user's wishes

    def ask(self, command: MarkReadRequested | StateRequested) -> None:
        """Keep it, or say that it can't be kept."""
        context = self._context
        conversation_id = command.conversation_id
        if isinstance(command, MarkReadRequested):
            read_seq = command.read_seq
            refusal = refusal_of_frame(MarkRead(conversation_id=conversation_id, read_seq=read_seq))
        else:
            read_seq = 0
            refusal = refusal_of_frame(
                SetState(
                    conversation_id=conversation_id,
                    version=1,
                    flags=command.flags,
                    value=command.value,
                )
            )
        waiting = len(self._tickets) + self._saving
        if refusal is None and waiting >= context.config.mark_tickets_max:
            refusal = ProtocolError(ErrorCode.QUOTA_EXCEEDED, f"{waiting} marks and states wait")
        if refusal is not None:
            context.order(
                StateSettled(ticket=command.ticket, code=refusal.code, message=refusal.message)
            )
            return
        self._saving += 1
        op = context.expect(
            MarkSaving(ticket=command.ticket, conversation_id=conversation_id, read_seq=read_seq)
        )
        if isinstance(command, MarkReadRequested):
            context.order(SaveRead(op=op, conversation_id=conversation_id, read_seq=read_seq))
        else:
            context.order(
                SaveUserState(
                    op=op,
                    conversation_id=conversation_id,
                    version=command.wall,
                    device_id=context.config.device_id,
                    flags=command.flags,
                    value=command.value,
                )
            )

    def kept(self, saving: MarkSaving, version: int) -> None:
        """Durable here."""
        self._saving -= 1
        self._dirty = True
        self._context.order(StateKept(ticket=saving.ticket, version=version))
        self._tickets.append(
            Ticket(
                number=saving.ticket,
                conversation_id=saving.conversation_id,
                read_seq=saving.read_seq,
                version=version,
                since=self._pass,
            )
        )

    def not_kept(self, saving: MarkSaving, *, surely: bool) -> None:
        """The local store can't keep it, or can't say: what it kept after all is sent like everything unsent."""
        self._saving -= 1
        self._dirty = True
        code = ErrorCode.UNAVAILABLE if surely else ErrorCode.TIMEOUT_UNKNOWN
        message = "the local store can't keep it"
        if not surely:
            message = "the local store does not say whether it keeps it"
        self._context.order(StateSettled(ticket=saving.ticket, code=code, message=message))

    def changed(self) -> None:
        """The list or another device may have shown that something is unsent."""
        self._dirty = True

    # ---------------------------------------------------------------- a pass

    def lost(self) -> None:
        """The connection is gone: what was on it may have been done, and doing it again does no harm."""
        self._dirty = True
        self._walking = False
        self._queue.clear()
        self._out.clear()
        self._not_before = self._context.now
        self._tries = 0

    def pump(self) -> None:
        """Begin a pass, send what may go, or end it; a change during a pass begins another at once."""
        if self._context.now < self._not_before or self._reading:
            return
        if self._walking:
            self._go_on()
        if self._dirty and not self._walking:
            self._dirty = False
            self._walking = True
            self._pass += 1
            self._after = b""
            self._go_on()

    def _go_on(self) -> None:
        context = self._context
        while self._queue and len(self._out) < context.config.marks_inflight_max:
            self._send(self._queue.popleft())
        if self._queue or self._out or self._confirming:
            return
        if self._after is None:
            self._walking = False
            self._settle_rest()
            return
        self._reading = True
        op = context.expect(UnsentReading(number=self._pass))
        context.order(ReadUnsent(op=op, after=self._after, limit=_PAGE))

    def deadline(self) -> Ms | None:
        """The end of a pause."""
        waits = self._dirty and not self._walking and not self._reading
        return self._not_before if waits else None

    def unsent_read(
        self, reading: UnsentReading, rows: tuple[UnsentState, ...], more: bool
    ) -> None:
        """What is to be sent."""
        self._reading = False
        if not self._walking or reading.number != self._pass:
            return
        self._queue.extend(rows)
        self._after = rows[-1].conversation_id if more and rows else None

    def unsent_not_read(self) -> None:
        """The local store can't say."""
        self._reading = False
        self._pause(0)

    def done(self, request: int) -> None:
        """OK."""
        self._confirm(request, 0)

    def refused(self, request: int, code: int, retry_after_ms: int) -> None:
        """Again after a pause, or never: then nobody need remember that it wasn't sent."""
        if may_help(code):
            del self._out[request]
            self._pause(retry_after_ms)
        else:
            self._confirm(request, code)

    def confirmed(self, saving: SentSaving) -> None:
        """The local store knows that the server has it."""
        self._confirming -= 1
        self._tries = 0
        self._settle(saving.conversation_id, saving.read_seq, saving.version, saving.code)

    def not_confirmed(self) -> None:
        """It will be sent once more."""
        self._confirming -= 1
        self._pause(0)

    def check(self) -> None:
        """Bounds, and a wait for each that is out."""
        waits = 0
        for wait in self._context.waits.values():
            waits += wait.kind is _MARK
        assert waits == len(self._out) <= self._context.config.marks_inflight_max + 1
        assert len(self._tickets) <= self._context.config.mark_tickets_max
        assert len(self._queue) <= _PAGE

    def _send(self, row: UnsentState) -> None:
        context = self._context
        if row.read_seq:
            mark = MarkRead(conversation_id=row.conversation_id, read_seq=row.read_seq)
            request = context.ask(mark, WaitKind.MARK, key=row.conversation_id)
            self._out[request] = (row.conversation_id, row.read_seq, 0)
        if row.version:
            state = SetState(
                conversation_id=row.conversation_id,
                version=row.version,
                flags=row.flags,
                value=row.value,
            )
            request = context.ask(state, WaitKind.MARK, key=row.conversation_id)
            self._out[request] = (row.conversation_id, 0, row.version)

    def _confirm(self, request: int, code: int) -> None:
        conversation_id, read_seq, version = self._out.pop(request)
        self._confirming += 1
        saving = SentSaving(
            conversation_id=conversation_id, read_seq=read_seq, version=version, code=code
        )
        self._context.order(
            SaveStateSent(
                op=self._context.expect(saving),
                conversation_id=conversation_id,
                read_seq=read_seq,
                version=version,
            )
        )

    def _settle(self, conversation_id: bytes, read_seq: int, version: int, code: int) -> None:
        """Whoever waits for this, or for less of the same kind."""
        rest: list[Ticket] = []
        for ticket in self._tickets:
            met = ticket.conversation_id == conversation_id and (
                0 < ticket.version <= version or 0 == ticket.version < ticket.read_seq <= read_seq
            )
            if met:
                self._context.order(StateSettled(ticket=ticket.number, code=code))
            else:
                rest.append(ticket)
        self._tickets = rest

    def _settle_rest(self) -> None:
        """A whole pass found no more to send: what was kept before it is at the server."""
        done = [ticket for ticket in self._tickets if ticket.since < self._pass]
        self._tickets = [ticket for ticket in self._tickets if ticket.since >= self._pass]
        for ticket in done:
            self._context.order(StateSettled(ticket=ticket.number))

    def _pause(self, at_least_ms: int) -> None:
        """The pass is over, and another follows."""
        self._dirty = True
        self._walking = False
        self._queue.clear()
        delay = self._context.backoff("client.marks", self._tries)
        self._tries += 1
        self._not_before = self._context.now + max(delay, at_least_ms)
