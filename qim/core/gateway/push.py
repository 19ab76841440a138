"""PUSH_EVENTS: hints of the mailbox to devices that are ONLINE (pipeline.md §3.5).

Lossy by design: what finds no room, no such session or no ONLINE connection is dropped and counted; the watermark in
ONLINE_READY and PONG makes the client pull it. This module has no way to a cursor and never touches one.
"""

from qim.core.contract.invariants import Stage
from qim.core.contract.rpc import Push, PushBatch, PushTarget
from qim.core.gateway.answers import pushed_entry
from qim.core.gateway.connection import Connection
from qim.core.gateway.connections import Connections
from qim.core.gateway.context import NodeContext
from qim.core.gateway.table import ConnectionState
from qim.core.ports.observe import StageReached


def deliver(context: NodeContext, connections: Connections, batch: PushBatch) -> None:
    """Hand each message to the devices it names here."""
    for push in batch.pushes:
        pushed = sum(_push(context, connections, push, target) for target in push.targets)
        if pushed:
            context.order(
                StageReached(
                    trace_id=push.entry.trace_id,
                    stage=Stage.PUSHED,
                    detail=f"devices={pushed}",
                    sent_at=push.entry.sent_at,
                )
            )


def _push(context: NodeContext, connections: Connections, push: Push, target: PushTarget) -> bool:
    connection = connections.get(target.conn)
    if connection is None or not _is_meant(connection, target):
        context.count("pushes_dropped", "session")
        return False
    # Remembered also where the hint itself can't go yet: ONLINE_READY will say it.
    connection.seen = max(connection.seen, target.mailbox_seq)
    if connection.state is not ConnectionState.ONLINE:
        context.count("pushes_dropped", "state")
        return False
    connections.push(connection, pushed_entry(push.entry, target))
    return True


def _is_meant(connection: Connection, target: PushTarget) -> bool:
    """Exactly this session: a connection number or a user alone could be somebody else's by now."""
    return (
        connection.is_live()
        and connection.session_epoch == target.session_epoch
        and connection.authenticated().user_id == target.user_id
    )
