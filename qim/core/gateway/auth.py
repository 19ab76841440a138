"""AUTH until AUTH_OK: token, then the mailbox's judgement of the cursor and the presence entry side by side.

    AUTH ──token bad──► ERROR, may try again (auth_attempts_max)
      │
      ├─ AskSync ───── refused ──► ERROR with its code; CURSOR_* leads the client to REBUILD on this very connection
      └─ EnterPresence  refused ──► KICKED(REPLACED): a live entry holds a higher attempt
      ├─ AskSessionList  for the badge alone, badge_wait_ms at most
             all done ──► AUTH_OK (sync_to_seq, cursor, session_epoch, badge)

An entry that arrives for an AUTH given up meanwhile is left again by its epoch. Nothing here trusts the client's word
about who it is.
"""

from collections import deque

from qim.core.contract.actor import Actor
from qim.core.contract.errors import ErrorCode, ProtocolError
from qim.core.contract.frames import Auth, KickReason
from qim.core.contract.routing import shard
from qim.core.contract.rpc import AskSync, Kick, SyncAnswer
from qim.core.contract.rpc_session import AskSessionList, SessionListAnswer
from qim.core.contract.tokens import AccessToken, verify_token
from qim.core.gateway.answers import auth_ok
from qim.core.gateway.connection import Connection, Entering
from qim.core.gateway.connections import Connections
from qim.core.gateway.context import NodeContext, PresenceEntering
from qim.core.gateway.presence import Presence
from qim.core.gateway.questions import session_of
from qim.core.gateway.requests import Asked, AskKind, Failure, Requests
from qim.core.gateway.table import ConnectionState
from qim.core.machine import Ms
from qim.core.ports.network import Send
from qim.core.ports.registry import Resource, Role
from qim.core.ports.store_mailbox import PresenceEntered

_BADGE_ROWS = 1
"""The badge is of the whole list; its rows are not needed here."""


class Authentication:
    """Brings a connection from AUTHENTICATING to SYNCING, or back."""

    def __init__(
        self,
        context: NodeContext,
        connections: Connections,
        requests: Requests,
        presence: Presence,
    ) -> None:
        self._context = context
        self._connections = connections
        self._requests = requests
        self._presence = presence
        self._badges: deque[tuple[Ms, Connection, Entering]] = deque()

    def authenticate(self, connection: Connection, frame: Auth, request: int) -> None:
        """Judge the token; a good one goes on to ENTERING."""
        connection.auth_attempts += 1
        try:
            token = self._verified(frame)
        except ProtocolError as error:
            error.request = request
            self._connections.refuse(connection, error)
            self._close_if_tried_enough(connection)
            return
        actor = Actor(token.tenant_id, token.user_id, frame.device_id)
        connection.actor = actor
        connection.shard = shard(token.user_id, self._context.parameters.shard_count)
        connection.attempt = frame.attempt
        connection.token_ends_at = self._context.now + token.expires_at - self._context.wall()
        entering = Entering(frame, actor, request=request, rid=self._requests.next_rid())
        connection.entering = entering
        connection.move(ConnectionState.ENTERING)
        self._presence.enter(connection, entering)
        self._ask_sync(connection, entering)
        self._ask_badge(connection, entering)

    def badge(self, asked: Asked, answer: SessionListAnswer | None) -> None:
        """The session owner says the badge, or (None) can't now."""
        connection = self._connections.get(asked.conn)
        if connection is None or connection.entering is None:
            return
        if connection.entering.badge_rid == asked.first_rid:
            self._told_badge(connection, connection.entering, answer.badge if answer else None)

    def tick(self) -> None:
        """AUTH_OK goes out without badge where it took too long."""
        while self._badges and self._badges[0][0] <= self._context.now:
            _, connection, entering = self._badges.popleft()
            if connection.entering is entering:
                self._told_badge(connection, entering, None)

    def deadline(self) -> Ms | None:
        """When the longest waiting AUTH stops waiting for its badge."""
        while self._badges and self._badges[0][1].entering is not self._badges[0][2]:
            self._badges.popleft()
        return self._badges[0][0] if self._badges else None

    def _told_badge(self, connection: Connection, entering: Entering, badge: int | None) -> None:
        if entering.badge is None:
            if badge is None:
                self._context.count("badges_unknown")
            entering.badge = badge or 0
            self._complete(connection)

    def synced(self, asked: Asked, answer: SyncAnswer) -> None:
        """The mailbox accepts the cursor and says where the lane stands."""
        connection = self._connections.get(asked.conn)
        if connection is None or connection.entering is None:
            return
        if connection.entering.rid != asked.first_rid:
            return
        connection.entering.sync = answer
        self._complete(connection)

    def not_synced(self, failure: Failure) -> None:
        """The mailbox refuses the cursor, or can't be reached."""
        connection = self._connections.get(failure.asked.conn)
        if connection is None or connection.entering is None:
            return
        if connection.entering.rid == failure.asked.first_rid:
            self._back(connection, failure.code, failure.message, failure.retry_after_ms)

    def entered(self, pending: PresenceEntering, reply: PresenceEntered) -> None:
        """The entry stands under a session_epoch, or a newer attempt of the device does."""
        connection = pending.connection
        if connection.entering is not pending.entering:
            if not reply.refused:
                self._presence.leave(pending.entering.actor, reply.session_epoch)
            return
        if reply.refused:
            self._connections.kick(connection, KickReason.REPLACED)
            return
        connection.session_epoch = reply.session_epoch
        replaced = reply.replaced
        # A later attempt that our clock takes for expired may live: its next refresh decides, and then it is we who are told.
        if replaced is not None and replaced.attempt <= pending.entering.frame.attempt:
            self._replace(
                connection,
                Kick(
                    conn=replaced.conn,
                    user_id=replaced.user_id,
                    device_id=replaced.device_id,
                    session_epoch=replaced.session_epoch,
                    reason=KickReason.REPLACED,
                ),
                replaced.gateway,
            )
        self._complete(connection)

    def not_entered(self, pending: PresenceEntering) -> None:
        """No entry, or nobody knows (then it ends by its TTL, and pushes to its epoch reach nobody)."""
        if pending.connection.entering is pending.entering:
            self._back(pending.connection, ErrorCode.UNAVAILABLE, "presence is unavailable", 0)

    def kicked(self, kick: Kick) -> None:
        """A gateway says that a newer connection of the device stands; only the exact epoch is meant."""
        connection = self._connections.get(kick.conn)
        if connection is None or connection.session_epoch != kick.session_epoch:
            return
        actor = connection.actor
        if actor is None or (actor.user_id, actor.device_id) != (kick.user_id, kick.device_id):
            return
        try:
            reason = KickReason(kick.reason)
        except ValueError:
            reason = KickReason.REPLACED
        self._connections.kick(connection, reason)

    def _verified(self, frame: Auth) -> AccessToken:
        wall = self._context.wall()
        failure: ProtocolError | None = None
        for secret in self._context.config.token_secrets:
            try:
                token = verify_token(frame.access_token, secret, now_ms=wall)
            except ProtocolError as error:
                failure = failure if failure and failure.code is ErrorCode.TOKEN_EXPIRED else error
                continue
            if token.device_id is not None and token.device_id != frame.device_id:
                raise ProtocolError(
                    ErrorCode.UNAUTHENTICATED, "the access token names another device"
                )
            return token
        raise failure or ProtocolError(ErrorCode.UNAUTHENTICATED, "no token can be verified here")

    def _ask_sync(self, connection: Connection, entering: Entering) -> None:
        rid = entering.rid
        self._requests.ask(
            Asked(
                rid=rid,
                first_rid=rid,
                kind=AskKind.SYNC,
                question=AskSync(rid=rid, actor=entering.actor, cursor=entering.frame.cursor),
                resource=Resource(role=Role.MAILBOX, number=connection.shard),
                deadline=self._context.now + self._context.config.request_timeout_ms,
                conn=connection.conn,
                request=entering.request,
            )
        )

    def _ask_badge(self, connection: Connection, entering: Entering) -> None:
        rid = self._requests.next_rid()
        entering.badge_rid = rid
        self._badges.append(
            (self._context.now + self._context.config.badge_wait_ms, connection, entering)
        )
        self._requests.ask(
            Asked(
                rid=rid,
                first_rid=rid,
                kind=AskKind.BADGE,
                question=AskSessionList(
                    rid=rid, actor=entering.actor, revision=0, after=b"", limit=_BADGE_ROWS
                ),
                resource=session_of(entering.actor.user_id, self._context.parameters),
                deadline=self._context.now + self._context.config.request_timeout_ms,
                conn=connection.conn,
                request=entering.request,
            )
        )

    def _replace(self, connection: Connection, kick: Kick, gateway: str) -> None:
        if gateway != self._context.address:
            self._context.order(Send(address=gateway, message=kick))
        elif kick.conn != connection.conn:
            self.kicked(kick)

    def _complete(self, connection: Connection) -> None:
        entering = connection.entering
        if entering is None or entering.sync is None or not connection.session_epoch:
            return
        if entering.badge is None:
            return
        connection.entering = None
        connection.sync_to_seq = entering.sync.sync_to_seq
        connection.seen = entering.sync.sync_to_seq
        connection.move(ConnectionState.SYNCING)
        connection.decoder.set_limit(self._context.parameters.frame_bytes_max)
        frame = auth_ok(
            entering.sync,
            connection.authenticated().user_id,
            connection.session_epoch,
            entering.badge,
            self._context.wall(),
            self._context.parameters,
        )
        self._connections.send(connection, frame, request=entering.request)

    def _back(
        self, connection: Connection, code: ErrorCode, message: str, retry_after_ms: int
    ) -> None:
        """To AUTHENTICATING, as if this AUTH had not been."""
        assert connection.entering is not None
        request = connection.entering.request
        self._connections.forget(connection)
        connection.move(ConnectionState.AUTHENTICATING)
        self._connections.tell(
            connection, code, message, request=request, retry_after_ms=retry_after_ms
        )
        self._close_if_tried_enough(connection)

    def _close_if_tried_enough(self, connection: Connection) -> None:
        if connection.auth_attempts >= self._context.config.auth_attempts_max:
            self._connections.close(connection)
