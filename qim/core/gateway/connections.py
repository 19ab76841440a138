"""Frames to connections, refusals, kicks and ends: each connection gets one Write a step, its last words before its end.

Whoever is closed has been told why where the stream still allows it (KICKED or ERROR stand before the close).
"""

from msgspec.structs import replace

from qim.core.contract.errors import ErrorCode, ProtocolError
from qim.core.contract.frames import (
    Kicked,
    KickReason,
    MailboxEntry,
    PushEvents,
    WireFrame,
    encode_frame,
    error_frame,
)
from qim.core.gateway.answers import ENTRY_OVERHEAD_BYTES
from qim.core.gateway.connection import Connection
from qim.core.gateway.context import NodeContext
from qim.core.gateway.presence import Presence
from qim.core.gateway.table import ConnectionState
from qim.core.ports.sockets import CloseSocket, PauseReading, ResumeReading, Write

_COMES_BACK = (KickReason.SHUTDOWN, KickReason.SLOW_CONSUMER, KickReason.IDLE)
_TEXT_CHARS_MAX = 512


class Connections:
    """What leaves through sockets. It routes nothing and knows no service."""

    def __init__(self, context: NodeContext, presence: Presence) -> None:
        self._context = context
        self._presence = presence
        self._touched: dict[int, Connection] = {}
        self._ending: list[Connection] = []
        self._pushes: dict[int, list[MailboxEntry]] = {}

    def get(self, conn: int) -> Connection | None:
        """The connection if it is there and not about to end."""
        connection = self._context.connections.get(conn)
        if connection is None or connection.state is ConnectionState.CLOSING:
            return None
        return connection

    def send(
        self,
        connection: Connection,
        frame: WireFrame,
        *,
        request: int = 0,
        stream: int | None = None,
        batch: bool = False,
        trace: int | None = None,
    ) -> None:
        """Put one frame behind all others; a peer that takes too little is cut."""
        data = encode_frame(frame, stream=stream, request=request)
        connection.out.put(data, batch=batch, trace=trace)
        self._touched[connection.conn] = connection
        if connection.out.overflows():
            self.kick(connection, KickReason.SLOW_CONSUMER)

    def refuse(
        self,
        connection: Connection,
        error: ProtocolError,
        *,
        retry_after_ms: int = 0,
    ) -> None:
        """One ERROR to the request at fault; where the bytes can't be trusted any more, the end."""
        if connection.state is ConnectionState.CLOSING:
            return
        self._context.count("refused", error.code.name)
        message = error.message[:_TEXT_CHARS_MAX]
        frame = replace(error_frame(error, retry_after_ms=retry_after_ms), message=message)
        self.send(connection, frame, request=error.request, stream=error.stream)
        if error.closes:
            self.close(connection)

    def tell(
        self,
        connection: Connection,
        code: ErrorCode,
        message: str,
        *,
        request: int,
        stream: int = 0,
        retry_after_ms: int = 0,
        client_message_id: bytes | None = None,
    ) -> None:
        """``refuse`` from its parts."""
        error = ProtocolError(
            code, message, stream=stream, request=request, client_message_id=client_message_id
        )
        self.refuse(connection, error, retry_after_ms=retry_after_ms)

    def push(self, connection: Connection, entry: MailboxEntry) -> None:
        """A hint for the end of this step: hints of one step travel in one frame."""
        self._pushes.setdefault(connection.conn, []).append(entry)

    def kick(self, connection: Connection, reason: KickReason) -> None:
        """KICKED, then the end."""
        if connection.state is ConnectionState.CLOSING:
            return
        self._context.count("kicked", reason.name)
        kicked = Kicked(reason=reason, reconnect=reason in _COMES_BACK)
        connection.out.put(encode_frame(kicked))
        self._touched[connection.conn] = connection
        self.close(connection)

    def close(self, connection: Connection) -> None:
        """No more is heard; what was written goes out first."""
        if connection.state is ConnectionState.CLOSING:
            return
        self.forget(connection)
        connection.move(ConnectionState.CLOSING)
        self._ending.append(connection)

    def forget(self, connection: Connection) -> None:
        """The connection counts for nobody any more: its presence entry goes, by epoch."""
        if connection.session_epoch:
            self._presence.leave(connection.authenticated(), connection.session_epoch)
            connection.session_epoch = 0
        connection.entering = None
        connection.held.clear()
        self._pushes.pop(connection.conn, None)

    def pause_if_busy(self, connection: Connection) -> None:
        """From connection_pause_at requests in flight on, nothing more is read from this socket."""
        if (
            not connection.paused
            and connection.inflight >= self._context.config.connection_pause_at
        ):
            connection.paused = True
            self._context.order(PauseReading(conn=connection.conn))

    def resume_if_idle(self, connection: Connection) -> None:
        """Half of them answered: read on."""
        if (
            connection.paused
            and connection.inflight * 2 <= self._context.config.connection_pause_at
        ):
            connection.paused = False
            self._context.order(ResumeReading(conn=connection.conn))

    def flush(self) -> None:
        """The end of a step: pushes into frames, one Write a connection, then the closes."""
        pushes, self._pushes = self._pushes, {}  # a peer cut by its own push takes its hints along
        for conn, entries in pushes.items():
            self._flush_pushes(self._context.connections[conn], entries)
        for connection in self._touched.values():
            data, traces = connection.out.take()
            if data and connection.conn in self._context.connections:
                self._context.order(Write(conn=connection.conn, data=data, traces=traces))
        self._touched.clear()
        for connection in self._ending:
            if connection.conn in self._context.connections:
                self._context.order(CloseSocket(conn=connection.conn))
        self._ending.clear()

    def _flush_pushes(self, connection: Connection, entries: list[MailboxEntry]) -> None:
        bytes_max = self._context.parameters.batch_bytes_max
        part: list[MailboxEntry] = []
        size = 0
        for entry in entries:
            entry_bytes = ENTRY_OVERHEAD_BYTES + len(entry.body or b"")
            if part and size + entry_bytes > bytes_max:
                self._send_pushes(connection, part)
                part, size = [], 0
            part.append(entry)
            size += entry_bytes
        self._send_pushes(connection, part)

    def _send_pushes(self, connection: Connection, entries: list[MailboxEntry]) -> None:
        if connection.state is not ConnectionState.ONLINE:
            return  # cut by the part before this one
        self.send(connection, PushEvents(entries=tuple(entries)), trace=entries[0].trace_id)
