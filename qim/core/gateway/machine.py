"""The ConnectionNode: sockets on one side, services on the other, nothing durable in between (pipeline.md §6).

It authenticates, injects the actor, admits (L1), routes to the owner the registry names, and hands answers and push
hints back. It stores no message, moves no cursor, judges no membership and retries nothing that may have been done.

    client ──frame──► table.py ──► questions.py ──rid──► owner   (requests.py: bounded, every wait ends)
    client ◄──frame── answers.py ◄──────────────rid──── owner
    client ◄──PUSH_EVENTS── hints of the mailbox, to exactly the session_epoch they name, ONLINE only

Parts: connection.py and outbound.py (state and bounds of one stream), auth.py, presence.py, watermarks.py, owners.py.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import assert_never

from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import KickReason
from qim.core.contract.rpc import (
    GroupDone,
    HistoryAnswer,
    Kick,
    MembersAnswer,
    Message,
    PullAnswer,
    PushBatch,
    Refused,
    SendDone,
    SyncAnswer,
    WatermarkAnswer,
)
from qim.core.contract.rpc_session import ReadByAnswer, SessionListAnswer, StateDone, StatesAnswer
from qim.core.gateway.auth import Authentication
from qim.core.gateway.connection import Connection
from qim.core.gateway.connections import Connections
from qim.core.gateway.context import (
    NodeContext,
    OwnerLookup,
    PendingOp,
    PresenceEntering,
    PresenceLeaving,
    PresenceRefreshing,
)
from qim.core.gateway.owners import Owners
from qim.core.gateway.presence import Presence
from qim.core.gateway.push import deliver
from qim.core.gateway.reading import Reading
from qim.core.gateway.requests import AskKind, Requests
from qim.core.gateway.table import ConnectionState
from qim.core.gateway.vocabulary import GatewayConfig, GatewayEffect, GatewayEvent
from qim.core.gateway.watermarks import Watermarks
from qim.core.machine import Choose, Ms
from qim.core.ports.completion import Completion, StoreReset, StoreRole
from qim.core.ports.local import DrainRequested, Started
from qim.core.ports.network import Received
from qim.core.ports.observe import Gauge, queue
from qim.core.ports.registry import LeaseRead
from qim.core.ports.sockets import Accepted, Backlog, BytesReceived, CloseSocket, SocketClosed
from qim.core.ports.store_mailbox import PresenceEntered, PresenceLeft, PresenceRefreshed
from qim.core.timers import earliest

_TIMERS_STALE_MAX = 1_024
_ENTERING = ConnectionState.ENTERING


class ConnectionNode:
    """The machine of the module's diagram; ``choose`` is part of the shape and not needed here."""

    def __init__(self, config: GatewayConfig, *, choose: Choose) -> None:
        assert config.token_secrets, "a gateway without token secrets could let nobody in"
        self.choose = choose
        self._context = NodeContext(config)
        self._owners = Owners(self._context)
        self._requests = Requests(self._context, self._owners)
        self._presence = Presence(self._context)
        self._connections = Connections(self._context, self._presence)
        self._watermarks = Watermarks(self._context, self._connections, self._requests)
        self._authentication = Authentication(
            self._context, self._connections, self._requests, self._presence
        )
        self._reading = Reading(
            self._context,
            self._connections,
            self._requests,
            self._authentication,
            self._watermarks,
        )
        self._timers: list[tuple[Ms, int]] = []

    def step(self, now: Ms, events: Sequence[GatewayEvent]) -> list[GatewayEffect]:
        """Take facts, give orders: at most one Write a connection, its CloseSocket behind it."""
        context = self._context
        context.now = now
        for event in events:
            self._on(event)
            self._report_failures()
        self._requests.expire()
        self._report_failures()
        self._authentication.tick()
        self._end_overdue()
        self._drain()
        self._presence.tick()
        self._watermarks.flush()
        self._report_failures()
        self._connections.flush()
        effects, context.effects = context.effects, []
        return effects

    def deadline(self) -> Ms | None:
        """The next end of a wait: a request, a silent connection, a refresh, the drain."""
        return earliest(
            self._requests.deadline(),
            self._timers[0][0] if self._timers else None,
            self._presence.deadline(),
            self._authentication.deadline(),
            self._context.draining_until,
        )

    def gauges(self, now: Ms) -> list[Gauge]:
        """Bounded structures, by a driver that is asked for them."""
        context = self._context
        config = context.config
        held = sum(len(connection.held) for connection in context.connections.values())
        return [
            *queue("gateway.connections", len(context.connections), config.connections_max),
            *queue("gateway.requests", len(self._requests), config.requests_max),
            *queue("gateway.owner_waiters", self._owners.waiters, config.owner_waiters_max),
            *queue("gateway.owners", self._owners.known(), config.owners_max),
            Gauge(name="gateway_held_frames", value=held),
        ]

    def check(self) -> None:
        """Bounds and counts; no connection is live without an actor and a session_epoch."""
        context = self._context
        self._owners.check()
        self._requests.check()
        assert not context.effects, "effects left behind"
        assert len(context.connections) <= context.config.connections_max
        assert len(self._timers) <= 2 * len(context.connections) + _TIMERS_STALE_MAX
        requests_max = context.config.connection_requests_max
        batches_max = context.parameters.outbound_batches_max
        for conn, connection in context.connections.items():
            assert conn == connection.conn
            assert (connection.actor and connection.session_epoch) or not connection.is_live()
            assert (connection.entering is not None) == (connection.state is _ENTERING)
            assert 0 <= connection.inflight <= requests_max
            assert connection.inflight_batches <= batches_max

    def idle(self) -> bool:
        """Nothing in flight: no connection, no request, no op."""
        context = self._context
        return not (context.connections or context.pending or len(self._requests))

    # ---------------------------------------------------------------- events

    def _on(self, event: GatewayEvent) -> None:
        match event:
            case BytesReceived():
                self._on_bytes(event)
            case Received():
                self._context.clock.stamp(self._context.now, event.wall)
                self._on_message(event.message)
            case Backlog():
                self._on_backlog(event)
            case Accepted() | SocketClosed():
                self._on_socket(event)
            case LeaseRead() | PresenceEntered() | PresenceRefreshed() | PresenceLeft():
                self._on_reply(event)
            case Started():
                self._context.address = event.address
                self._context.clock.stamp(self._context.now, event.wall)
                self._requests.start_at(event.wall)
            case DrainRequested():
                self._on_drain()
            case _:
                self._on_completion(event)

    def _on_bytes(self, event: BytesReceived) -> None:
        self._context.clock.stamp(self._context.now, event.wall)
        connection = self._connections.get(event.conn)
        if connection is None:
            return  # what a closing connection still says is not heard
        connection.last_heard = self._context.now
        self._reading.read(connection, event.data)

    def _on_backlog(self, event: Backlog) -> None:
        connection = self._connections.get(event.conn)
        if connection is None:
            return
        connection.out.report(event.bytes_queued)
        if connection.out.overflows():
            self._connections.kick(connection, KickReason.SLOW_CONSUMER)
        else:
            self._reading.wake(connection)

    def _on_socket(self, event: Accepted | SocketClosed) -> None:
        context = self._context
        if isinstance(event, SocketClosed):
            connection = context.connections.get(event.conn)
            if connection is not None:
                if connection.state is not ConnectionState.CLOSING:
                    self._connections.forget(connection)
                    connection.move(ConnectionState.CLOSING)
                del context.connections[event.conn]
            return
        config = context.config
        if len(context.connections) >= config.connections_max or context.draining_until is not None:
            context.count("connections_refused")
            context.order(CloseSocket(conn=event.conn))
            return
        connection = Connection(event.conn, context.now, context.parameters, config.admission_burst)
        context.connections[event.conn] = connection
        heappush(self._timers, (self._due(connection), event.conn))

    def _on_message(self, message: Message) -> None:
        match message:
            case PushBatch():
                deliver(self._context, self._connections, message)
            case PullAnswer() | SendDone() | HistoryAnswer() | GroupDone() | MembersAnswer():
                self._reading.answered(message)
            case Refused():
                self._requests.refused(message)
            case Kick():
                self._authentication.kicked(message)
            case SyncAnswer():
                asked = self._requests.answered(message.rid, AskKind.SYNC)
                if asked is not None:
                    self._authentication.synced(asked, message)
            case WatermarkAnswer():
                asked = self._requests.answered(message.rid, AskKind.WATERMARK)
                if asked is not None:
                    self._watermarks.answered(asked, message)
            case SessionListAnswer():
                asked = self._requests.answered(message.rid, AskKind.SESSIONS, AskKind.BADGE)
                if asked is not None and asked.kind is AskKind.BADGE:
                    self._authentication.badge(asked, message)
                elif asked is not None:
                    self._reading.taken(asked, message)
            case StateDone() | StatesAnswer() | ReadByAnswer():
                self._reading.answered(message)
            case _:
                # A question of another gateway, sent to the wrong process.
                self._context.count("messages_ignored", type(message).__name__)

    def _on_reply(
        self, reply: LeaseRead | PresenceEntered | PresenceRefreshed | PresenceLeft
    ) -> None:
        pending = self._context.pending.pop(reply.op, None)
        match reply, pending:
            case LeaseRead(), OwnerLookup():
                self._requests.resolved(pending.resource, reply.address)
            case PresenceEntered(), PresenceEntering():
                self._authentication.entered(pending, reply)
            case PresenceRefreshed(), PresenceRefreshing():
                for connection in self._presence.refreshed(pending, reply.lost):
                    self._connections.kick(connection, KickReason.REPLACED)
            case PresenceLeft(), PresenceLeaving():
                pass
            case _:
                raise AssertionError(f"{reply!r} answers {pending!r}")

    def _on_completion(self, completion: Completion) -> None:
        if isinstance(completion, StoreReset):
            if completion.store is StoreRole.MAILBOX:
                self._presence.refresh_all()
            if completion.op is None:
                return
        assert completion.op is not None
        pending: PendingOp = self._context.pending.pop(completion.op)
        match pending:
            case OwnerLookup():
                self._requests.resolved(pending.resource, "")
            case PresenceEntering():
                self._authentication.not_entered(pending)
            case PresenceRefreshing():
                self._presence.not_refreshed()
            case PresenceLeaving():
                pass  # it ends by its TTL
            case _:
                assert_never(pending)

    def _on_drain(self) -> None:
        if self._context.draining_until is None:
            self._context.draining_until = self._context.now + self._context.config.drain_timeout_ms

    # ---------------------------------------------------------------- ends

    def _report_failures(self) -> None:
        for failure in self._requests.take_failures():
            match failure.asked.kind:
                case AskKind.SYNC:
                    self._authentication.not_synced(failure)
                case AskKind.WATERMARK:
                    self._watermarks.failed(failure.asked)
                case AskKind.BADGE:
                    self._authentication.badge(failure.asked, None)
                case _:
                    self._reading.failed(failure)

    def _due(self, connection: Connection) -> Ms:
        if connection.is_live():
            silent = connection.last_heard + self._context.parameters.idle_kill_ms
            return min(silent, connection.token_ends_at)
        return connection.accepted_at + self._context.parameters.unauthenticated_max_ms

    def _end_overdue(self) -> None:
        """One timer a connection; one that finds it was heard meanwhile is set again."""
        now = self._context.now
        if len(self._timers) > 2 * len(self._context.connections) + _TIMERS_STALE_MAX:
            # Timers of connections long gone, after a storm of reconnects.
            self._timers = [(at, conn) for at, conn in self._timers if self._connections.get(conn)]
            heapify(self._timers)
        while self._timers and self._timers[0][0] <= now:
            _, conn = heappop(self._timers)
            connection = self._connections.get(conn)
            if connection is None:
                continue
            due = self._due(connection)
            if due > now:
                heappush(self._timers, (due, conn))
            else:
                self._end(connection)

    def _end(self, connection: Connection) -> None:
        """Its time is over: of its token, of its silence, or for its AUTH."""
        if connection.is_live() and connection.token_ends_at > self._context.now:
            self._connections.kick(connection, KickReason.IDLE)
            return
        code, why = ErrorCode.UNAUTHENTICATED, "no AUTH in time"
        if connection.is_live():
            code, why = ErrorCode.TOKEN_EXPIRED, "the access token of this connection has expired"
        self._connections.tell(connection, code, why, request=0)
        self._connections.close(connection)

    def _drain(self) -> None:
        """Graceful stop: who waits for an answer keeps his connection until it came or the time is over."""
        until = self._context.draining_until
        if until is None:
            return
        over = self._context.now >= until
        for connection in list(self._context.connections.values()):
            if over or not (connection.inflight or connection.held):
                self._connections.kick(connection, KickReason.SHUTDOWN)
        if over:
            self._context.draining_until = self._context.now + self._context.config.drain_timeout_ms
