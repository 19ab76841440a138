"""The Client: one user's device against one gateway at a time (pipeline.md §6, Client and REBUILD).

    OFFLINE ──OnlineWanted──► DIALING ──stream, attempt on disk──► AUTHENTICATING ──AUTH_OK──► SYNCING
       ▲                        ▲                                    │ refused token              │ first sync stored,
       │ OfflineWanted          └──back-off── WAITING ◄──lost────────┤ or KICKED for good         ▼ ONLINE_READY
       └──────────── any state                                       └──► STOPPED ◄───────────  ONLINE

It promises: a row the user sent is sent until it is settled, once; a message is applied once however often it comes;
the cursor never stands above what is stored. It never names its own user to the server, never lets a push move a
cursor, never fails a row because nobody answered, and keeps no truth outside the local store.

Parts: link.py (stream and AUTH), sending.py, outbox.py, lookup.py, pulling.py, sessions.py (list, states, rebuild),
queries.py.
"""

from collections.abc import Sequence
from typing import assert_never

from qim.core.client.context import ClientContext, Loading
from qim.core.client.hearing import hear
from qim.core.client.parts import Parts
from qim.core.client.replies import not_stored, repeat_due, stored
from qim.core.client.vocabulary import (
    ClientCommand,
    ClientConfig,
    ClientEffect,
    ClientEvent,
    GroupChangeRequested,
    HistoryRequested,
    MarkReadRequested,
    MembersRequested,
    OfflineWanted,
    OnlineWanted,
    OverlayRequested,
    ReadByRequested,
    SendRefused,
    SendRequested,
    StateRequested,
    SyncRequested,
    TokenRenewed,
)
from qim.core.contract.errors import ErrorCode
from qim.core.contract.wire import FramingError
from qim.core.machine import Choose, Ms
from qim.core.ports.completion import Failed, Unknown
from qim.core.ports.local import DrainRequested, Started
from qim.core.ports.local_sessions import SessionsSaved, StateSaved, UnfilledRead, UnsentRead
from qim.core.ports.local_store import (
    AnchorsRead,
    LoadLocal,
    LocalLoaded,
    LocalSaved,
    MessagesSaved,
)
from qim.core.ports.sockets import Backlog, BytesReceived, Dialed, SocketClosed
from qim.core.timers import earliest


class Client:
    """The machine of the module's diagram."""

    def __init__(self, config: ClientConfig, *, choose: Choose) -> None:
        assert config.addresses, "a client without an address can connect nowhere"
        self._context = ClientContext(config, choose)
        self._parts = Parts(self._context)
        self._loaded = False
        self._early: list[ClientCommand] = []

    def step(self, now: Ms, events: Sequence[ClientEvent]) -> list[ClientEffect]:
        """Take facts, give orders: at most one Write, in front of nothing that depends on it."""
        context = self._context
        context.now = now
        for event in events:
            self._on(event)
        self._parts.expire()
        repeat_due(self._parts)
        if self._parts.link.tick():
            self._parts.lose()
        self._pump()
        context.write()
        effects, context.effects = context.effects, []
        return effects

    def deadline(self) -> Ms | None:
        """The next end of a wait or pause."""
        oldest = next(iter(self._context.waits.values()), None)
        return earliest(
            oldest.deadline if oldest else None,
            self._context.repeat_deadline(),
            self._parts.link.deadline(),
            self._parts.sending.deadline(),
            self._parts.pulling.deadline(),
            self._parts.sessions.deadline(),
        )

    def check(self) -> None:
        """Bounds and counts of every part; nothing waits on a stream that is gone."""
        self._parts.check()
        assert len(self._early) <= self._context.config.unsaved_rows_max

    def idle(self) -> bool:
        """Nothing in flight: no stream, no order to the local store unanswered."""
        context = self._context
        return not context.conn and not context.pending and context.repeat_deadline() is None

    # ---------------------------------------------------------------- events

    def _on(self, event: ClientEvent) -> None:
        match event:
            case BytesReceived():
                self._on_bytes(event)
            case LocalSaved() | MessagesSaved() | AnchorsRead():
                stored(self._parts, self._context.pending.pop(event.op), event)
            case SessionsSaved() | StateSaved() | UnsentRead() | UnfilledRead():
                stored(self._parts, self._context.pending.pop(event.op), event)
            case Dialed():
                if event.conn == self._context.conn:
                    self._parts.link.dialed()
            case SocketClosed():
                if event.conn == self._context.conn:
                    self._parts.lose()
            case Started() | LocalLoaded():
                self._on_start(event)
            case Failed() | Unknown():
                pending = self._context.pending.pop(event.op)
                not_stored(self._parts, pending, isinstance(event, Failed))
            case Backlog():
                pass  # sends in flight are bounded, so what waits for the kernel is too
            case DrainRequested():
                self._on_command(OfflineWanted())
            case _:
                self._on_command(event)

    def _on_command(self, command: ClientCommand) -> None:
        if not self._loaded:
            self._wait_for_load(command)
            return
        match command:
            case SendRequested() | GroupChangeRequested() | OverlayRequested():
                self._context.clock.stamp(self._context.now, command.wall)
                self._parts.sending.submit(command)
            case MarkReadRequested() | StateRequested():
                self._parts.sessions.marking.ask(command)
            case HistoryRequested() | MembersRequested() | ReadByRequested():
                self._parts.queries.ask(command)
            case SyncRequested():
                self._parts.pulling.want()
                self._parts.sessions.want()
            case OnlineWanted():
                self._context.clock.stamp(self._context.now, command.wall)
                self._parts.link.go_online()
            case OfflineWanted():
                self._parts.before_loss()
                self._parts.link.go_offline()
            case TokenRenewed():
                self._context.clock.stamp(self._context.now, command.wall)
                self._parts.link.renew_token(command.access_token)
            case _:
                assert_never(command)

    def _wait_for_load(self, command: ClientCommand) -> None:
        if len(self._early) < self._context.config.unsaved_rows_max:
            self._early.append(command)
        elif isinstance(command, SendRequested | GroupChangeRequested | OverlayRequested):
            self._context.order(
                SendRefused(
                    client_message_id=command.client_message_id, code=ErrorCode.QUOTA_EXCEEDED
                )
            )
        else:
            self._context.count("commands_dropped")

    def _on_bytes(self, event: BytesReceived) -> None:
        context = self._context
        context.clock.stamp(context.now, event.wall)
        if event.conn != context.conn:
            return
        self._parts.link.heard()
        lost = False
        try:
            frames = self._parts.link.decoder.feed(event.data)
        except FramingError as error:
            frames, lost = list(error.frames), True
        for raw in frames:
            if event.conn != context.conn:
                return  # a frame before this one ended the connection
            hear(self._parts, raw)
        if lost and event.conn == context.conn:
            context.count("framing_errors")
            self._parts.lose()

    def _on_start(self, event: Started | LocalLoaded) -> None:
        if isinstance(event, Started):
            self._context.clock.stamp(self._context.now, event.wall)
            self._context.order(LoadLocal(op=self._context.expect(Loading())))
            return
        assert isinstance(self._context.pending.pop(event.op), Loading)
        self._on_loaded(event)

    def _on_loaded(self, reply: LocalLoaded) -> None:
        self._parts.link.last_attempt = reply.attempt
        self._parts.pulling.load(reply.cursor, reply.covered_through)
        self._parts.rebuilding.load(reply)
        self._parts.sending.load(reply.pending, reply.order_last)
        self._parts.sessions.states.load(reply.state_revision)
        self._loaded = True
        early, self._early = self._early, []
        for command in early:
            self._on_command(command)

    # ---------------------------------------------------------------- the end of a step

    def _pump(self) -> None:
        if self._parts.link.may_authenticate() and not self._parts.rebuilding.must_wait():
            self._parts.link.authenticate(self._parts.pulling.cursor)
        if self._parts.pulling.pump(rebuilding=not self._parts.rebuilding.is_done()):
            self._parts.sending.reconciled()
            self._parts.sessions.mailbox_reached(self._parts.pulling.covered)
            self._parts.link.sync_complete(self._parts.pulling.sync_to_seq)
        self._parts.sending.pump()
        self._parts.sessions.pump()
        self._parts.queries.pump()
