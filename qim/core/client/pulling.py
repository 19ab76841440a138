"""PULL_MAILBOX, the only thing that moves the cursor: one in flight, a dirty flag, a time-out (pipeline.md §6).

    nothing to do ──watermark above covered, push, has_more──► pull in flight ──MAILBOX_BATCH──► saving ──durable──┐
          ▲                                                        │ error, time-out: pause                        │
          └────────────────────────────────────────────────────────┴───────────────────────────────────────────────┘

Cursor and messages are committed in one transaction; in memory the cursor moves only when that is durable. A push is
stored by message_id and can't move anything: its effect has no field for a cursor.
"""

from typing import Final

from qim.core.client.context import BatchSaving, ClientContext, PushSaving, WaitKind
from qim.core.client.settling import Settling
from qim.core.client.translation import message_of_entry
from qim.core.client.vocabulary import CaughtUp, ClientState, MessageApplied
from qim.core.contract.frames import AuthOk, MailboxBatch, PullMailbox, PushEvents, Tombstone
from qim.core.contract.invariants import Invariant, Stage
from qim.core.machine import Ms
from qim.core.ports.local_store import LocalMessage, SaveBatch, SavePush
from qim.core.ports.observe import StageReached, Violation

_TRACES_MAX: Final = 4
_PULL: Final = WaitKind.PULL


class Pulling:
    """Cursor, what it covers, and what is known to stand beyond it."""

    def __init__(self, context: ClientContext, settling: Settling) -> None:
        self._context = context
        self._settling = settling
        self.cursor: bytes | None = None
        self.covered = 0
        self._committed: tuple[bytes | None, int] = (None, 0)
        self.sync_to_seq = 0
        self.synced = False
        self._known = 0
        self._known_when_asked = 0
        self._dirty = False
        self._asked = False
        self._saving = False
        self._tries = 0
        self._not_before: Ms = 0
        self._pushes_saving = 0
        self._told: int | None = None

    def load(self, cursor: bytes | None, covered_through: int) -> None:
        """What an earlier life committed."""
        self._stand_at(cursor, covered_through)

    def forget_cursor(self) -> None:
        """REBUILD: it stands for nothing any more."""
        self._stand_at(None, 0)

    # ---------------------------------------------------------------- connection

    def begin(self, frame: AuthOk) -> None:
        """AUTH_OK: below sync_to_seq we pull, above it the server pushes."""
        self.sync_to_seq = frame.sync_to_seq
        self.synced = False
        self._known = frame.sync_to_seq
        self._not_before = self._context.now
        self._tries = 0
        self._told = None
        if self.cursor is None:
            self._stand_at(frame.cursor, 0)
        # A cursor whose place isn't known is pulled from once at least.
        self._dirty = frame.has_offline or self.covered == 0

    def lost(self) -> None:
        """No answer will come; what is being saved is saved all the same."""
        self._asked = False
        self.synced = False

    def saw(self, watermark: int) -> None:
        """ONLINE_READY or PONG: entries up to here exist."""
        self._known = max(self._known, watermark)

    def want(self) -> None:
        """The user wants to know."""
        self._dirty = True
        self._not_before = self._context.now
        self._told = None

    # ---------------------------------------------------------------- pull

    def pump(self, *, rebuilding: bool) -> bool:
        """Pull if there is reason to; True when the first sync of this connection has just ended.

        While ``rebuilding`` history is still to come, so nobody is told that all is here.
        """
        context = self._context
        if (self.cursor, self.covered) != self._committed:
            context.order(
                Violation(
                    check=Invariant.CURSOR_ADVANCED_BY_PUSH,
                    detail=f"covered {self.covered}, committed {self._committed[1]}",
                )
            )
        if not context.is_live() or self._asked or self._saving:
            return False
        if not self._dirty and self.covered >= self._known:
            return self._rest(rebuilding)
        if context.now < self._not_before:
            return False
        assert self.cursor is not None, "AUTH_OK gave a cursor"
        self._asked = True
        self._dirty = False
        self._known_when_asked = self._known
        up_to = 0 if self.synced or self.covered >= self.sync_to_seq else self.sync_to_seq
        frame = PullMailbox(cursor=self.cursor, up_to_seq=up_to, limit=context.config.pull_limit)
        context.ask(frame, WaitKind.PULL)
        return False

    def deadline(self) -> Ms | None:
        """When a pause ends that keeps a wanted pull waiting."""
        waits = self._context.is_live() and not self._asked and not self._saving
        if waits and (self._dirty or self.covered < self._known or not self.synced):
            return self._not_before
        return None

    def pulled(self, frame: MailboxBatch, *, moves_anchors: bool) -> None:
        """MAILBOX_BATCH: into one transaction with its cursor."""
        self._asked = False
        if frame.covered_through_seq < self.covered:
            # The lane's tail is being replayed there: nothing of ours is lost, and nothing goes back.
            self._pause(frame.retry_after_ms)
            self._context.count("batches_behind")
            return
        self._saving = True
        messages = tuple(map(message_of_entry, frame.entries))
        settled = self._settling.claim(messages)
        saving = BatchSaving(
            conn=self._context.conn,
            messages=messages,
            cursor=frame.cursor,
            covered_through=frame.covered_through_seq,
            settled=settled,
            has_more=frame.has_more,
            retry_after_ms=frame.retry_after_ms,
        )
        self._context.order(
            SaveBatch(
                op=self._context.expect(saving),
                messages=messages,
                cursor=frame.cursor,
                covered_through=frame.covered_through_seq,
                moves_anchors=moves_anchors,
                settled=settled,
                traces=_traces(messages),
            )
        )

    def refused(self, retry_after_ms: int) -> None:
        """ERROR, or no answer in time: again after a pause."""
        self._asked = False
        self._dirty = True
        self._pause(retry_after_ms)

    def sync_refused(self, retry_after_ms: int) -> None:
        """SYNC_COMPLETE got no ONLINE_READY: say it again after a pause."""
        self.synced = False
        self._pause(retry_after_ms)

    def batch_saved(self, saving: BatchSaving, fresh: tuple[int, ...]) -> None:
        """The transaction is durable: now, and only now, the cursor stands there."""
        self._saving = False
        progress = saving.covered_through > self.covered
        self._stand_at(saving.cursor, max(self.covered, saving.covered_through))
        self.applied(saving.messages, fresh)
        if saving.conn != self._context.conn:
            return
        if saving.has_more and (progress or saving.messages):
            self._dirty = True
            self._not_before = max(self._not_before, self._context.now + saving.retry_after_ms)
        elif saving.has_more or self.covered < self._known:
            # Not all of what is known came: at once where we moved or heard of more meanwhile, else in a while.
            self._dirty = True
            if progress or self._known > self._known_when_asked:
                self._not_before = self._context.now + saving.retry_after_ms
            else:
                self._pause(saving.retry_after_ms)
        if progress:
            self._tries = 0

    def batch_not_saved(self) -> None:
        """Nothing moved: the same pull again."""
        self._saving = False
        self._dirty = True
        self._pause(0)

    # ---------------------------------------------------------------- push

    def pushed(self, frame: PushEvents) -> None:
        """A hint: what came whole is stored by message_id, and a pull will follow to move the cursor."""
        context = self._context
        newest = max((entry.mailbox_seq for entry in frame.entries), default=0)
        if newest <= self.covered:
            return
        whole = tuple(
            message_of_entry(entry)
            for entry in frame.entries
            if entry.body is not None or entry.tombstone != Tombstone.NONE
        )
        room = self._pushes_saving < context.config.pushes_unsaved_max
        if whole and room:
            self._pushes_saving += 1
            op = context.expect(PushSaving(messages=whole))
            context.order(SavePush(op=op, messages=whole, traces=_traces(whole)))
        if len(whole) == len(frame.entries) and room and self._known <= self.covered:
            self._not_before = max(self._not_before, context.now + context.config.pull_linger_ms)
        self._known = max(self._known, newest)

    def push_saved(self, saving: PushSaving, fresh: tuple[int, ...]) -> None:
        """Stored."""
        self._pushes_saving -= 1
        self.applied(saving.messages, fresh)

    def push_not_saved(self) -> None:
        """It was a hint; the pull brings it."""
        self._pushes_saving -= 1

    # ---------------------------------------------------------------- common ends

    def applied(self, messages: tuple[LocalMessage, ...], fresh: tuple[int, ...]) -> None:
        """Say what stands in the local store for the first time."""
        for index in fresh:
            message = messages[index]
            self._context.order(MessageApplied(message=message))
            self._context.order(StageReached(trace_id=message.trace_id, stage=Stage.APPLIED))

    def check(self) -> None:
        """One pull at most, and its wait stands exactly while it is out."""
        pulls = 0
        for wait in self._context.waits.values():
            pulls += wait.kind is _PULL
        assert pulls == self._asked
        assert not (self._asked and self._saving), "a pull beside an unsaved batch"
        assert 0 <= self._pushes_saving <= self._context.config.pushes_unsaved_max

    def _stand_at(self, cursor: bytes | None, covered: int) -> None:
        """The only way for the cursor to move; who moves it otherwise is found out at the end of the step."""
        self.cursor, self.covered = cursor, covered
        self._committed = (cursor, covered)

    def _rest(self, rebuilding: bool) -> bool:
        """Nothing to pull: the first sync is over, or we are caught up."""
        if not self.synced:
            self.synced = self._context.now >= self._not_before
            return self.synced
        told = rebuilding or self._told == self.covered
        if self._context.state is ClientState.ONLINE and not told:
            self._told = self.covered
            self._context.order(CaughtUp(covered_through=self.covered))
        return False

    def _pause(self, at_least_ms: int) -> None:
        delay = self._context.backoff("client.pull", self._tries, self.covered)
        self._tries += 1
        self._not_before = self._context.now + max(delay, at_least_ms)


def _traces(messages: tuple[LocalMessage, ...]) -> tuple[int, ...]:
    return tuple(message.trace_id for message in messages[:_TRACES_MAX])
