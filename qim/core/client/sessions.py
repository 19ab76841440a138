"""List, states and unread beside the mailbox: what is asked for when, one question at a time (pipeline.md §§4, 6).

    first sync ──► session list, once a life or in a rebuild ──► REBUILD: walk from the anchors, then ONLINE stored
               ──► STATE_SYNC ──► walk what unread can't be counted without ──► SessionsReady

Read marks and own states go out beside all that (marking.py).
"""

from qim.core.client.context import ClientContext, Wait, WaitKind
from qim.core.client.listing import Listing
from qim.core.client.marking import Marking
from qim.core.client.rebuilding import Rebuilding
from qim.core.client.state_sync import StateSyncing
from qim.core.client.vocabulary import SessionsReady
from qim.core.client.walking import Walk, WalkKind
from qim.core.machine import Ms
from qim.core.timers import earliest


class Sessions:
    """Orders its parts; none of them moves a cursor."""

    def __init__(self, context: ClientContext, rebuilding: Rebuilding) -> None:
        self._context = context
        self._rebuilding = rebuilding
        self.listing = Listing(context)
        self.states = StateSyncing(context)
        self.walk = Walk(context)
        self.marking = Marking(context)
        self._synced = False
        self._unfilled = True
        self._told = False

    def mailbox_reached(self, covered: int) -> None:
        """The first sync of this connection is in the local store."""
        self._synced = True
        if self._rebuilding.is_reached_by(covered):
            self.listing.want(self._rebuilding.target)
            self._unfilled = True

    def lost(self) -> None:
        """The connection is gone."""
        self._synced = False
        self._told = False
        self._unfilled = True  # a walk under way is begun again
        self.listing.lost()
        self.states.lost()
        self.walk.stop()
        self.marking.lost()

    def refused(self, wait: Wait, code: int, retry_after_ms: int) -> None:
        """ERROR, or no answer in time, to a question of one of the parts."""
        match wait.kind:
            case WaitKind.WALK:
                self.walk.page_refused(wait, code, retry_after_ms)
            case WaitKind.SESSIONS:
                self.listing.refused(code, retry_after_ms)
            case WaitKind.STATE_SYNC:
                self.states.refused(code, retry_after_ms)
            case _:
                self.marking.refused(wait.request, code, retry_after_ms)

    def want(self) -> None:
        """The user wants to know what is new elsewhere."""
        self.states.want()
        self._told = False

    def refill(self) -> None:
        """The list, a read mark or another device's, or a conversation met in its middle: unread that can't be counted here."""
        self._unfilled = True

    def pump(self) -> None:
        """One question in flight; rest when all is known."""
        if not self._context.is_live() or not self._synced:
            return
        self.marking.pump()
        if self._is_busy():
            return
        self.listing.pump()
        if self._is_busy() or self.listing.wanted:
            return
        if self.walk.kind is None:
            self._begin_walk()
        self._walk()
        if not self._is_busy():
            self.states.pump()
        self._tell()

    def deadline(self) -> Ms | None:
        """The end of a pause; while a question is in flight its own wait says when."""
        if not self._context.is_live() or not self._synced:
            return None
        marking = self.marking.deadline()
        if self._is_busy():
            return marking
        if self.listing.wanted:
            return earliest(marking, self.listing.deadline())
        return earliest(marking, self.walk.deadline(), self.states.deadline())

    def _is_busy(self) -> bool:
        return self.listing.busy or self.states.busy or self.walk.busy

    def _begin_walk(self) -> None:
        if self._rebuilding.is_reached_by(self.listing.projected_through):
            self.walk.begin(WalkKind.REBUILD)
        elif self._unfilled and self._rebuilding.is_done():
            self._unfilled = False
            self.walk.begin(WalkKind.FILL)

    def _walk(self) -> None:
        kind = self.walk.kind
        if self.walk.pump() and kind is WalkKind.REBUILD:
            self._rebuilding.finish()
            self._begin_walk()
            self.walk.pump()

    def _tell(self) -> None:
        ready = (
            not self._told
            and not self._is_busy()
            and self.walk.kind is None
            and not self._unfilled
            and self.states.synced
            and self._rebuilding.is_done()
        )
        if ready:
            self._told = True
            self._context.order(SessionsReady(projected_through=self.listing.projected_through))
