"""Presence entries of this node's connections: entered at AUTH, kept alive, left by epoch (pipeline.md §3.6).

The script assigns the session_epoch and tells whom we replaced; a Kick to that one is only the fast way. The node keeps
nothing that the store could contradict: whoever lost his entry is closed.
"""

from collections import deque

from qim.core.contract.actor import Actor
from qim.core.gateway.connection import Connection, Entering
from qim.core.gateway.context import (
    REFRESHES_INFLIGHT_MAX,
    NodeContext,
    PresenceEntering,
    PresenceLeaving,
    PresenceRefreshing,
)
from qim.core.machine import Ms
from qim.core.ports.store_mailbox import (
    EnterPresence,
    LeavePresence,
    PresenceHold,
    RefreshPresence,
)


class Presence:
    """Orders to the mailbox store about entries; it does not close anybody itself."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._due: Ms = context.parameters.presence_refresh_ms
        self._round_at: Ms | None = None
        self._queue: deque[int] = deque()
        self._inflight = 0

    def enter(self, connection: Connection, entering: Entering) -> None:
        """Ask for an entry under this AUTH's attempt."""
        context = self._context
        actor = entering.actor
        op = context.expect(PresenceEntering(connection=connection, entering=entering))
        context.order(
            EnterPresence(
                op=op,
                tenant_id=actor.tenant_id,
                user_id=actor.user_id,
                device_id=actor.device_id,
                gateway=context.address,
                conn=connection.conn,
                attempt=entering.frame.attempt,
                now_wall=context.wall(),
                ttl_ms=context.parameters.presence_ttl_ms,
            )
        )

    def leave(self, actor: Actor, session_epoch: int) -> None:
        """Remove the entry if it still is the one of ``session_epoch``; a newer one stays untouched."""
        context = self._context
        context.order(
            LeavePresence(
                op=context.expect(PresenceLeaving()),
                tenant_id=actor.tenant_id,
                user_id=actor.user_id,
                device_id=actor.device_id,
                session_epoch=session_epoch,
            )
        )

    def refresh_all(self) -> None:
        """The store is another incarnation: every entry is written again, at once but for the pause between rounds."""
        context = self._context
        earliest = context.now
        if self._round_at is not None:
            earliest = max(earliest, self._round_at + context.config.refresh_pause_ms)
        self._due = min(self._due, earliest)

    def deadline(self) -> Ms | None:
        """When the next refresh is due; None while there is nobody to refresh, or the answers will tell."""
        if not self._context.connections:
            return None
        return self._due

    def tick(self) -> None:
        """Start a round if it is due, and order as many batches as may be in flight."""
        context = self._context
        if context.now >= self._due:
            self._round_at = context.now
            self._due = context.now + context.parameters.presence_refresh_ms
            # A round that is still under way is not doubled: its rest is simply walked from the start again.
            self._queue = deque(context.connections)
        while self._queue and self._inflight < REFRESHES_INFLIGHT_MAX:
            self._refresh_batch()

    def refreshed(self, pending: PresenceRefreshing, lost: tuple[int, ...]) -> list[Connection]:
        """Whose entry belongs to somebody newer now; those connections must end as REPLACED."""
        self._inflight -= 1
        gone: list[Connection] = []
        for hold in (pending.holds[index] for index in lost):
            connection = self._context.connections.get(hold.conn)
            if connection is not None and connection.session_epoch == hold.session_epoch:
                gone.append(connection)
        return gone

    def not_refreshed(self) -> None:
        """The batch failed, or nobody knows; the next round comes well before the entries end."""
        self._inflight -= 1
        self._context.count("presence_refresh_failed")

    def _refresh_batch(self) -> None:
        context = self._context
        holds: list[PresenceHold] = []
        while self._queue and len(holds) < context.config.refresh_batch_max:
            connection = context.connections.get(self._queue.popleft())
            if connection is not None and connection.is_live():
                holds.append(connection.hold())
        if not holds:
            return
        self._inflight += 1
        refreshing = PresenceRefreshing(holds=tuple(holds))
        context.order(
            RefreshPresence(
                op=context.expect(refreshing),
                gateway=context.address,
                now_wall=context.wall(),
                ttl_ms=context.parameters.presence_ttl_ms,
                holds=refreshing.holds,
            )
        )
