"""REBUILD: the cursor is worth nothing any more, the messages here are (pipeline.md §6, REBUILD).

    CURSOR_EXPIRED | INVALID | REBASED ──► REBUILDING stored, cursor dropped ──► AUTH without cursor
        ──► mailbox from the read-back position, as usual ──covered ≥ first sync_to_seq──►
        PULL_HISTORY newer from each conversation's anchor, page by page ──all read──► ONLINE stored

Nothing local is deleted. In this state only HISTORY_BATCH moves anchors: a mailbox batch read back from seven days ago
would jump over what the device missed before. The state is on disk, so a restart goes on; anchors moved so far stay.
"""

from collections import deque

from qim.core.client.context import (
    AnchorsReading,
    ClientContext,
    HistorySaving,
    StateSaving,
    Wait,
    WaitKind,
)
from qim.core.client.translation import message_of_record
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import HistoryBatch, HistoryDirection, PullHistory
from qim.core.machine import Ms
from qim.core.ports.local_store import (
    AnchorsRead,
    LocalState,
    ReadAnchors,
    SaveHistory,
    SaveState,
)

_GONE = (ErrorCode.NOT_FOUND, ErrorCode.NOT_MEMBER, ErrorCode.FORBIDDEN)


class Rebuilding:
    """The stored state and the history part. It deletes nothing and leaves the mailbox part to Pulling."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self.state = LocalState.ONLINE
        self._target = 0
        self._mailbox_done = False
        self._dropping = False
        self._busy = False
        self._queue: deque[tuple[bytes, int]] = deque()
        self._after: bytes | None = b""
        self._not_before: Ms = 0
        self._tries = 0

    def load(self, state: int, target: int) -> None:
        """What an earlier life stored."""
        self.state = LocalState(state)
        self._target = target

    def is_done(self) -> bool:
        """Not REBUILDING: nothing older is still to come, and a MAILBOX_BATCH may raise anchors."""
        return self.state is LocalState.ONLINE

    def begin(self) -> None:
        """The server refuses the cursor: store the state and forget the cursor in one transaction."""
        self._context.count("rebuilds")
        self.state = LocalState.REBUILDING
        self._target = 0
        self._restart()
        self._dropping = True
        self._save(drop_cursor=True)

    def connected(self, sync_to_seq: int) -> None:
        """AUTH_OK: the first one's sync_to_seq is what the rebuild must reach."""
        self._restart()
        if self.state is LocalState.REBUILDING and not self._target:
            self._target = sync_to_seq
            self._save(drop_cursor=False)

    def lost(self) -> None:
        """The connection is gone; the history part starts over from the anchors of then."""
        self._restart()

    def mailbox_reached(self, covered: int) -> None:
        """A first sync ended here."""
        if self.state is LocalState.REBUILDING and self._target and covered >= self._target:
            self._mailbox_done = True

    def pump(self) -> None:
        """The next page of anchors, the next page of history, or the end."""
        context = self._context
        if not self._mailbox_done or self._busy or not context.is_live():
            return
        if context.now < self._not_before:
            return
        if self._queue:
            self._busy = True
            conversation_id, anchor = self._queue[0]
            frame = PullHistory(
                conversation_id=conversation_id,
                anchor=anchor,
                direction=HistoryDirection.NEWER,
                limit=context.config.history_limit,
            )
            context.ask(frame, WaitKind.REBUILD, key=conversation_id)
        elif self._after is not None:
            self._busy = True
            op = context.expect(AnchorsReading())
            context.order(ReadAnchors(op=op, after=self._after, limit=context.config.anchors_page))
        else:
            self.state = LocalState.ONLINE
            self._target = 0
            self._mailbox_done = False
            self._save(drop_cursor=False)

    def deadline(self) -> Ms | None:
        """The end of a pause."""
        if self._mailbox_done and not self._busy and self._context.is_live():
            return self._not_before
        return None

    def anchors_read(self, reply: AnchorsRead) -> None:
        """Conversations to read on from their anchors."""
        self._busy = False
        self._queue.extend(reply.anchors)
        self._after = reply.anchors[-1][0] if reply.more and reply.anchors else None

    def arrived(self, wait: Wait, frame: HistoryBatch) -> None:
        """A page: stored, and the anchor behind it, before the next is asked for."""
        self._assert_head(wait)
        messages = tuple(message_of_record(r, frame.conversation_id) for r in frame.records)
        anchor = messages[-1].conversation_seq if messages else 0
        saving = HistorySaving(
            ticket=0,
            conversation_id=frame.conversation_id,
            messages=messages,
            has_more=frame.has_more and bool(messages),
            anchor=anchor,
        )
        self._context.order(
            SaveHistory(
                op=self._context.expect(saving),
                conversation_id=frame.conversation_id,
                messages=messages,
                anchor=anchor,
            )
        )

    def page_saved(self, saving: HistorySaving) -> None:
        """On to the next page or conversation; a page of an earlier connection is only stored."""
        if not self._busy or not self._queue or self._queue[0][0] != saving.conversation_id:
            return
        self._busy = False
        self._tries = 0
        self._queue.popleft()
        if saving.has_more:
            self._queue.appendleft((saving.conversation_id, saving.anchor))

    def page_refused(self, wait: Wait, code: int, retry_after_ms: int) -> None:
        """A conversation that is no longer ours is passed over; anything else is tried again."""
        self._assert_head(wait)
        self._busy = False
        if code in _GONE:
            self._queue.popleft()
        else:
            self._pause(retry_after_ms)

    def not_stored(self) -> None:
        """The local store could not read or write a page: again after a pause."""
        if self._busy:
            self._busy = False
            self._pause(0)

    def must_wait(self) -> bool:
        """No AUTH before the state is on disk: a new cursor under the old state would hide what was missed."""
        return self._dropping

    def state_saved(self, saving: StateSaving) -> None:
        """The stored state is the one in memory."""
        if saving.drop_cursor:
            self._dropping = False

    def save_again(self, saving: StateSaving) -> None:
        """Until it is stored: a restart in the wrong state would trust the wrong anchors."""
        if saving.drop_cursor or (saving.state, saving.rebuild_target) == (
            self.state,
            self._target,
        ):
            self._save(drop_cursor=saving.drop_cursor)

    def _assert_head(self, wait: Wait) -> None:
        """A wait ends with its connection, and only the head of the queue is ever asked for."""
        assert self._busy and self._queue[0][0] == wait.key

    def _restart(self) -> None:
        self._mailbox_done = False
        self._busy = False
        self._queue.clear()
        self._after = b""
        self._not_before = self._context.now
        self._tries = 0

    def _save(self, *, drop_cursor: bool) -> None:
        saving = StateSaving(state=self.state, rebuild_target=self._target, drop_cursor=drop_cursor)
        self._context.order(
            SaveState(
                op=self._context.expect(saving),
                state=self.state,
                drop_cursor=drop_cursor,
                rebuild_target=self._target,
            )
        )

    def _pause(self, at_least_ms: int) -> None:
        delay = self._context.backoff("client.rebuild", self._tries)
        self._tries += 1
        self._not_before = self._context.now + max(delay, at_least_ms)
