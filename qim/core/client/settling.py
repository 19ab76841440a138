"""How rows end: SEND_ACK, GROUP_OK, the own copy in the mailbox, a look-up, or a refusal that leaves no hope.

An end is told only when the local store has it; until then the row is SETTLING and nothing else ends it. Nobody's
silence fails a row: it is sent again until not_after, and then looked up.
"""

from typing import Final

from qim.core.client.context import AckSaving, ClientContext, FailureSaving, Wait, WaitKind
from qim.core.client.lookup import Lookup
from qim.core.client.outbox import Outbox, OutboxRow, RowStage
from qim.core.client.translation import coordinates_of_ack, coordinates_of_message
from qim.core.client.vocabulary import GroupSettled, SendSettled
from qim.core.contract.errors import ERROR_MEANINGS, ErrorCode
from qim.core.contract.frames import GroupOk, HistoryBatch, SendAck
from qim.core.machine import Ms
from qim.core.ports.local_store import (
    Coordinates,
    LocalMessage,
    PendingGroupChange,
    SaveAck,
    SaveFailed,
    SaveGroupOk,
)

_OPEN_QUESTIONS: Final = (ErrorCode.INTERNAL, ErrorCode.UNAUTHENTICATED, ErrorCode.TOKEN_EXPIRED)
"""Say nothing about the row: it is sent again, and not_after ends that."""


class Settling:
    """Takes answers for rows and orders their end. It transmits nothing."""

    def __init__(self, context: ClientContext, outbox: Outbox, lookup: Lookup) -> None:
        self._context = context
        self._outbox = outbox
        self._lookup = lookup

    def acked(self, frame: SendAck, request: int) -> None:
        """SEND_ACK, late ones too: the key says whose it is."""
        self._end_wait(request, WaitKind.SEND)
        entry = self._outbox.rows.get(frame.client_message_id)
        if entry is None or entry.stage is RowStage.SETTLING:
            return
        self._settle(entry, AckSaving(coordinates=coordinates_of_ack(frame)))

    def group_done(self, frame: GroupOk, request: int) -> None:
        """GROUP_OK."""
        self._end_wait(request, WaitKind.SEND)
        entry = self._outbox.rows.get(frame.client_message_id)
        if entry is None or entry.stage is RowStage.SETTLING:
            return
        coordinates = Coordinates(
            client_message_id=frame.client_message_id,
            message_id=b"",
            conversation_id=frame.conversation_id,
            conversation_seq=frame.control_seq,
            last_activity_id=b"",
            sent_at=0,
        )
        self._settle(
            entry, AckSaving(coordinates=coordinates, version=frame.version, noop=frame.noop)
        )

    def refused(self, wait: Wait, code: int, retry_after_ms: int, message: str = "") -> None:
        """ERROR, or no answer in time (TIMEOUT_UNKNOWN): again later, look up, or failed for good."""
        entry = self._outbox.rows.get(wait.key)
        if entry is None or entry.stage is not RowStage.INFLIGHT:
            return
        if code == ErrorCode.SEND_EXPIRED:
            self._outbox.inflight -= 1
            entry.expired = True
            entry.stage = RowStage.QUEUED
            self._outbox.wake(entry)
        elif may_help(code):
            self.cool(entry, retry_after_ms)
        else:
            self._fail(entry, code, message)

    def looked(self, wait: Wait, frame: HistoryBatch) -> None:
        """A page of the look-up after SEND_EXPIRED."""
        entry = self._outbox.rows.get(wait.key)
        if entry is None or entry.stage is not RowStage.LOOKING:
            return
        found = self._lookup.judge(entry, frame)
        if found is not None:
            self._settle(entry, AckSaving(coordinates=found))
        elif self._lookup.is_over(entry, frame):
            self._fail(entry, ErrorCode.SEND_EXPIRED)
        else:
            entry.stage = RowStage.QUEUED
            self._outbox.wake(entry)

    def look_refused(self, wait: Wait, code: int, retry_after_ms: int) -> None:
        """No page: later again, unless there is no such conversation for us, so nothing of ours in it."""
        self._lookup.lost()
        entry = self._outbox.rows.get(wait.key)
        if entry is None or entry.stage is not RowStage.LOOKING:
            return
        if may_help(code):
            self.cool(entry, retry_after_ms)
        else:
            self._fail(entry, ErrorCode.SEND_EXPIRED)

    def settled(self, saving: AckSaving) -> None:
        """The row is sent, durably."""
        self._tell(self._settling(saving.coordinates.client_message_id), saving)

    def failed(self, saving: FailureSaving) -> None:
        """The row is failed, durably."""
        entry = self._settling(saving.client_message_id)
        self._outbox.drop(entry)
        key = entry.key
        if isinstance(entry.row, PendingGroupChange):
            self._context.order(
                GroupSettled(
                    client_message_id=key,
                    conversation_id=entry.conversation_id,
                    version=0,
                    control_seq=0,
                    code=saving.code,
                    message=saving.message,
                )
            )
        else:
            self._context.order(
                SendSettled(
                    client_message_id=key,
                    coordinates=None,
                    code=saving.code,
                    message=saving.message,
                )
            )

    def not_settled(self, key: bytes) -> None:
        """The local store could not say so: the row is sent again, and the server repeats its answer.

        One that isn't stored yet (its copy came before that) goes back to its order, which is out or repeated.
        """
        entry = self._settling(key)
        entry.stage = RowStage.QUEUED if entry.stored else RowStage.SAVING
        self._outbox.enlist(entry)
        if entry.stored:
            self.cool(entry, 0)

    def claim(self, messages: tuple[LocalMessage, ...]) -> tuple[Coordinates, ...]:
        """Rows whose own mailbox copy is among these: they are settled by the batch that stores the copies."""
        found: list[Coordinates] = []
        for message in messages:
            if message.client_message_id is None:
                continue
            entry = self._outbox.rows.get(message.client_message_id)
            if entry is None or message.sender_id != self._context.config.user_id:
                continue
            if entry.stage is RowStage.SETTLING:
                continue
            self._outbox.leave(entry)
            found.append(coordinates_of_message(message))
        return tuple(found)

    def cool(self, entry: OutboxRow, retry_after_ms: Ms) -> None:
        """Again after a pause, longer each time, never shorter than the server asks."""
        context = self._context
        delay = context.backoff("client.resend", entry.tries, entry.key)
        self._outbox.cool(entry, context.now + max(delay, retry_after_ms))

    def _settling(self, key: bytes) -> OutboxRow:
        """A row in SETTLING leaves it only by the answer to the one order that put it there."""
        entry = self._outbox.rows[key]
        assert entry.stage is RowStage.SETTLING
        return entry

    def _settle(self, entry: OutboxRow, saving: AckSaving) -> None:
        self._outbox.leave(entry)
        op = self._context.expect(saving)
        if isinstance(entry.row, PendingGroupChange):
            self._context.order(
                SaveGroupOk(
                    op=op,
                    client_message_id=entry.key,
                    conversation_id=saving.coordinates.conversation_id,
                    version=saving.version,
                    control_seq=saving.coordinates.conversation_seq,
                )
            )
        else:
            self._context.order(
                SaveAck(op=op, coordinates=saving.coordinates, traces=(entry.trace,))
            )

    def _fail(self, entry: OutboxRow, code: int, message: str = "") -> None:
        self._outbox.leave(entry)
        saving = FailureSaving(client_message_id=entry.key, code=code, message=message)
        op = self._context.expect(saving)
        self._context.order(SaveFailed(op=op, client_message_id=entry.key, code=code))

    def _tell(self, entry: OutboxRow, saving: AckSaving) -> None:
        self._outbox.drop(entry)
        coordinates = saving.coordinates
        if isinstance(entry.row, PendingGroupChange):
            self._context.order(
                GroupSettled(
                    client_message_id=entry.key,
                    conversation_id=coordinates.conversation_id,
                    version=saving.version,
                    control_seq=coordinates.conversation_seq,
                    noop=saving.noop,
                )
            )
        else:
            self._context.order(SendSettled(client_message_id=entry.key, coordinates=coordinates))

    def _end_wait(self, request: int, kind: WaitKind) -> None:
        wait = self._context.waits.get(request)
        if wait is not None and wait.kind is kind:
            del self._context.waits[request]


def is_passing(code: int) -> bool:
    """Is it of the moment, and no fault of what was asked: the same question may be answered later."""
    try:
        return ERROR_MEANINGS[ErrorCode(code)].retry
    except ValueError:
        return False


def may_help(code: int) -> bool:
    """Can the same request, sent again, end otherwise; a code we don't know says nothing."""
    try:
        known = ErrorCode(code)
    except ValueError:
        return True
    return ERROR_MEANINGS[known].retry or known in _OPEN_QUESTIONS
