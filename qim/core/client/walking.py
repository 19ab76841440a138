"""A walk over conversations: PULL_HISTORY newer from where each stands, page by page (pipeline.md §6, REBUILD; §4, unread).

    begin ──► page of (conversation, seq) from the local store ──► PULL_HISTORY newer ──► stored ──┐
                 ▲              ▲                                     │ more ──────────────────────┤
                 │              └── next conversation ◄──────────────┘ gone, all read ◄───────────┘
                 └── next page ◄── none left          last page done ──► ended

REBUILD begins at the anchors, moves them, and reads to the end. FILL begins at the read marks of conversations whose unread
can't be counted here, and reads what the window of unread needs. One page at a time; a lost connection ends the walk.
"""

from collections import deque
from enum import IntEnum

from qim.core.client.context import ClientContext, HistorySaving, RowsReading, Wait, WaitKind
from qim.core.client.settling import is_passing
from qim.core.client.translation import message_of_record
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import HistoryBatch, HistoryDirection, PullHistory
from qim.core.contract.sequences import U64_MAX
from qim.core.machine import Ms
from qim.core.ports.local_sessions import ReadUnfilled
from qim.core.ports.local_store import ReadAnchors, SaveHistory

_GONE = (ErrorCode.NOT_FOUND, ErrorCode.NOT_MEMBER, ErrorCode.FORBIDDEN)


class WalkKind(IntEnum):
    """What a walk is for."""

    REBUILD = 1
    FILL = 2


class Walk:
    """At most one walk at a time. It decides neither when to walk nor what follows."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self.kind: WalkKind | None = None
        self.busy = False
        self._number = 0
        self._queue: deque[tuple[bytes, int]] = deque()
        self._after: bytes | None = b""
        self._left = 0
        self._not_before: Ms = 0
        self._tries = 0

    def begin(self, kind: WalkKind) -> None:
        """From the first conversation on."""
        self._number += 1
        self.kind = kind
        self.busy = False
        self._queue.clear()
        self._after = b""
        self._left = self._need()
        self._not_before = self._context.now
        self._tries = 0

    def stop(self) -> None:
        """The connection is gone, or the walk is over; what is being stored is stored all the same."""
        self.kind = None
        self.busy = False
        self._queue.clear()

    def pump(self) -> bool:
        """The next page of conversations or of history; True when the walk has just ended."""
        context = self._context
        if self.kind is None or self.busy or context.now < self._not_before:
            return False
        if self._queue:
            self._ask()
        elif self._after is not None:
            self._read(self._after)
        else:
            self.stop()
            return True
        return False

    def deadline(self) -> Ms | None:
        """The end of a pause."""
        return self._not_before if self.kind is not None and not self.busy else None

    def rows_read(
        self, reading: RowsReading, rows: tuple[tuple[bytes, int], ...], more: bool
    ) -> None:
        """Conversations to read on from where they stand."""
        if reading.walk != self._number or self.kind is None:
            return
        self.busy = False
        self._queue.extend(rows)
        self._after = rows[-1][0] if more and rows else None

    def arrived(self, wait: Wait, frame: HistoryBatch) -> None:
        """A page: stored, and the anchor behind it, before the next is asked for."""
        assert self.busy and self._queue[0][0] == wait.key, "a wait ends with its connection"
        context = self._context
        begin = self._queue[0][1]
        messages = tuple(message_of_record(r, frame.conversation_id) for r in frame.records)
        last = messages[-1].conversation_seq if messages else begin
        saving = HistorySaving(
            ticket=0,
            conversation_id=frame.conversation_id,
            messages=messages,
            has_more=frame.has_more and bool(messages),
            walk=self._number,
        )
        context.order(
            SaveHistory(
                op=context.expect(saving),
                conversation_id=frame.conversation_id,
                messages=messages,
                anchor=last if self.kind is WalkKind.REBUILD and messages else 0,
                covers_from=begin,
                covers_to=last if frame.has_more else U64_MAX,
                gone_before=max(0, context.server_time() - context.config.settled_after_ms),
            )
        )

    def page_saved(self, saving: HistorySaving) -> None:
        """On to the next page or conversation; a page of an earlier walk is only stored."""
        if saving.walk != self._number or not self.busy:
            return
        self.busy = False
        self._tries = 0
        self._left -= len(saving.messages)
        self._queue.popleft()
        if saving.has_more and (self._left > 0 or self.kind is WalkKind.REBUILD):
            self._queue.appendleft((saving.conversation_id, saving.messages[-1].conversation_seq))
        else:
            self._left = self._need()

    def page_refused(self, wait: Wait, code: int, retry_after_ms: int) -> None:
        """A conversation that is no longer ours is passed over; anything else is tried again, for unread not for ever."""
        assert self.busy and self._queue[0][0] == wait.key, "a wait ends with its connection"
        self.busy = False
        if code in _GONE or self._is_unreadable(code):
            self._queue.popleft()
            self._left = self._need()
            self._tries = 0
        else:
            self._pause(retry_after_ms)

    def not_stored(self, walk: int) -> None:
        """The local store could not read or write a page: again after a pause."""
        if walk == self._number and self.busy:
            self.busy = False
            self._pause(0)

    def _is_unreadable(self, code: int) -> bool:
        """Does one conversation keep the unread of all others waiting. A rebuild waits: passed over, its history would be lost."""
        if self.kind is WalkKind.REBUILD or is_passing(code):
            return False
        return self._tries + 1 >= self._context.config.fill_tries_max

    def _need(self) -> int:
        """Records that decide an unread count: one more than its window."""
        return self._context.config.parameters.unread_window_max + 1

    def _ask(self) -> None:
        context = self._context
        self.busy = True
        conversation_id, seq = self._queue[0]
        rebuild = self.kind is WalkKind.REBUILD
        limit = context.config.history_limit
        frame = PullHistory(
            conversation_id=conversation_id,
            anchor=seq,
            direction=HistoryDirection.NEWER,
            limit=limit if rebuild else min(self._left, context.config.parameters.page_max),
        )
        context.ask(frame, WaitKind.WALK, key=conversation_id)

    def _read(self, after: bytes) -> None:
        context = self._context
        self.busy = True
        op = context.expect(RowsReading(walk=self._number))
        limit = context.config.anchors_page
        if self.kind is WalkKind.REBUILD:
            context.order(ReadAnchors(op=op, after=after, limit=limit))
        else:
            context.order(ReadUnfilled(op=op, after=after, limit=limit))

    def _pause(self, at_least_ms: int) -> None:
        delay = self._context.backoff("client.rebuild", self._tries)
        self._tries += 1
        self._not_before = self._context.now + max(delay, at_least_ms)
