"""The parts of a Client, and what concerns all of them: refusals, and the end of a connection."""

from typing import Final, assert_never

from qim.core.client.context import ClientContext, Wait, WaitKind
from qim.core.client.link import Link
from qim.core.client.pulling import Pulling
from qim.core.client.queries import Queries
from qim.core.client.rebuilding import Rebuilding
from qim.core.client.sending import Sending
from qim.core.client.sessions import Sessions
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import AuthOk

_REBUILD_CODES: Final = (
    ErrorCode.CURSOR_EXPIRED,
    ErrorCode.CURSOR_INVALID,
    ErrorCode.CURSOR_REBASED,
)
_QUERIES: Final = (WaitKind.HISTORY, WaitKind.MEMBERS, WaitKind.READ_BY)


class Parts:
    """One of each, wired once; a part never calls another but through what it was given here."""

    def __init__(self, context: ClientContext) -> None:
        self.context = context
        self.link = Link(context)
        self.sending = Sending(context)
        self.pulling = Pulling(context, self.sending.settling)
        self.rebuilding = Rebuilding(context)
        self.sessions = Sessions(context, self.rebuilding)
        self.queries = Queries(context)

    def check(self) -> None:
        """Bounds and counts of every part; nothing waits on a stream that is gone."""
        context = self.context
        self.sending.check()
        self.pulling.check()
        self.queries.check()
        self.sessions.marking.check()
        assert not context.effects, "effects left behind"
        assert not context.waits or context.conn, "waiting for answers without a stream"
        assert not context.is_live() or context.conn, "live without a stream"

    def expire(self) -> None:
        """No answer in time says nothing about what happened: TIMEOUT_UNKNOWN."""
        context = self.context
        while context.waits:
            request, wait = next(iter(context.waits.items()))
            if wait.deadline > context.now:
                return
            del context.waits[request]
            context.count("request_timeouts", wait.kind.name)
            self.refused(wait, ErrorCode.TIMEOUT_UNKNOWN, 0, "no answer in time")

    def authenticated(self, frame: AuthOk) -> None:
        """AUTH_OK: below sync_to_seq we pull, and pending rows may go out."""
        if self.link.is_for_another(frame):
            self.before_loss()
            user_id = self.context.config.user_id
            told = f"the access token is user {frame.user_id}'s, this device is user {user_id}'s"
            self.link.stop(ErrorCode.FORBIDDEN, refused=True, detail=told)
            return
        self.link.authenticated(frame)
        self.rebuilding.connected(frame.sync_to_seq)
        self.pulling.begin(frame)
        self.sending.live()

    def refused(self, wait: Wait, code: int, retry_after_ms: int, message: str = "") -> None:
        """What we asked was not done, or nobody knows: the part that asked decides. ``message``: the server's words."""
        match wait.kind:
            case WaitKind.SEND:
                self.sending.settling.refused(wait, code, retry_after_ms, message)
            case WaitKind.LOOKUP:
                self.sending.settling.look_refused(wait, code, retry_after_ms)
            case WaitKind.PULL:
                self.pulling.refused(retry_after_ms)
                if code in _REBUILD_CODES:
                    self._rebuild()
            case WaitKind.AUTH:
                self._auth_refused(code, retry_after_ms, message)
            case WaitKind.SYNC_COMPLETE:
                self.pulling.sync_refused(retry_after_ms)
            case WaitKind.HISTORY | WaitKind.MEMBERS | WaitKind.READ_BY:
                self.queries.refused(wait, code, retry_after_ms, message)
            case WaitKind.WALK | WaitKind.SESSIONS | WaitKind.STATE_SYNC | WaitKind.MARK:
                self.sessions.refused(wait, code, retry_after_ms)
            case _:
                assert_never(wait.kind)

    def _auth_refused(self, code: int, retry_after_ms: int, message: str) -> None:
        if code in _REBUILD_CODES and self.pulling.cursor is not None:
            self._rebuild()
            return
        self.before_loss()
        self.link.refused(code, retry_after_ms, message)

    def _rebuild(self) -> None:
        """A new connection without cursor; the one at hand was authenticated with it."""
        self.before_loss()
        self.pulling.forget_cursor()
        self.rebuilding.begin()
        self.link.lose()

    def lose(self) -> None:
        """The connection is of no more use."""
        self.before_loss()
        self.link.lose()

    def before_loss(self) -> None:
        """Every part learns that no answer will come, while the waits still say what was asked."""
        tickets = [w.ticket for w in self.context.waits.values() if w.kind in _QUERIES]
        self.queries.lost(tickets)
        self.sending.lost()
        self.pulling.lost()
        self.sessions.lost()
