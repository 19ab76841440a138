"""PULL_SESSION_LIST at login, and in a rebuild: every page under one revision, each stored before the next (pipeline.md §4).

A snapshot that the server has dropped meanwhile is refused: the list begins again under a new revision.
"""

from qim.core.client.context import ClientContext, SessionsSaving, WaitKind
from qim.core.client.translation import listed_of_entry
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import PullSessionList, SessionListBatch
from qim.core.machine import Ms
from qim.core.ports.local_sessions import SaveSessions


class Listing:
    """The pages of one list. ``projected_through``: of the last whole list."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self.wanted = True
        self.busy = False
        self.projected_through = 0
        self._at_least = 0
        self._revision = 0
        self._after: bytes | None = None
        self._not_before: Ms = 0
        self._tries = 0

    def want(self, at_least: int = 0) -> None:
        """A list that knows the mailbox up to ``at_least``."""
        self.wanted = True
        self._at_least = at_least
        self._restart()

    def refresh(self, at_least: int) -> None:
        """An overlay took the last thing that a conversation could show: what stands before it is known to the list alone."""
        if not self.wanted:
            self._restart()
        self.wanted = True
        self._at_least = max(self._at_least, at_least)

    def lost(self) -> None:
        """The connection is gone: a list begun is begun again."""
        self.busy = False
        self._restart()

    def pump(self) -> None:
        """The next page."""
        context = self._context
        if not self.wanted or self.busy or context.now < self._not_before:
            return
        self.busy = True
        frame = PullSessionList(
            revision=self._revision, after=self._after, limit=context.config.sessions_limit
        )
        context.ask(frame, WaitKind.SESSIONS)

    def deadline(self) -> Ms | None:
        """The end of a pause."""
        return self._not_before if self.wanted and not self.busy else None

    def arrived(self, frame: SessionListBatch) -> None:
        """A page: stored before the next is asked for."""
        context = self._context
        saving = SessionsSaving(
            conn=context.conn,
            revision=frame.revision,
            after=frame.after,
            projected_through=frame.projected_through,
        )
        context.order(
            SaveSessions(
                op=context.expect(saving),
                user_id=context.config.user_id,
                window=context.config.parameters.unread_window_max,
                conversations=tuple(map(listed_of_entry, frame.conversations)),
            )
        )

    def page_saved(self, saving: SessionsSaving) -> None:
        """On to the next page; after the last, is the list new enough?"""
        if not self.busy or saving.conn != self._context.conn:
            return
        self.busy = False
        if saving.after is not None:
            self._tries = 0
            self._revision, self._after = saving.revision, saving.after
        elif saving.projected_through < self._at_least:
            self._again(0)
        else:
            self.wanted = False
            self.projected_through = saving.projected_through

    def refused(self, code: int, retry_after_ms: int) -> None:
        """ERROR, or no answer in time: again from the start after a pause; a server without lists has none to wait for."""
        self.busy = False
        if code == ErrorCode.UNSUPPORTED:
            self.wanted = False
            self.projected_through = self._at_least
        else:
            self._again(retry_after_ms)

    def not_stored(self, saving: SessionsSaving) -> None:
        """The local store could not keep the page."""
        if self.busy and saving.conn == self._context.conn:
            self.busy = False
            self._again(0)

    def _again(self, at_least_ms: int) -> None:
        delay = self._context.backoff("client.sessions", self._tries)
        tries = self._tries + 1
        self._restart()
        self._tries = tries
        self._not_before = self._context.now + max(delay, at_least_ms)

    def _restart(self) -> None:
        self._revision, self._after = 0, None
        self._not_before = self._context.now
        self._tries = 0
