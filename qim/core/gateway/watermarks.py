"""The lane's W for ONLINE_READY and PONG: one question in flight a shard, its users gathered (pipeline.md §6).

It repairs what lossy pushes dropped; a W that can't be learnt leaves PONG with the greatest one known.
"""

from msgspec import Struct

from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import OnlineReady, Ping, Pong
from qim.core.contract.rpc import AskWatermark, WatermarkAnswer
from qim.core.gateway.connection import Connection
from qim.core.gateway.connections import Connections
from qim.core.gateway.context import NodeContext
from qim.core.gateway.requests import Asked, AskKind, Requests
from qim.core.gateway.table import ConnectionState
from qim.core.ports.registry import Resource, Role


class Want(Struct, frozen=True, kw_only=True):
    """Who waits for the watermark: a PING (client_time set) or a SYNC_COMPLETE (None)."""

    connection: Connection
    user_id: int
    request: int
    client_time: int | None


class Watermarks:
    """Gathers wants a shard; at most one PING and one SYNC_COMPLETE a connection wait. It never invents a watermark."""

    def __init__(self, context: NodeContext, connections: Connections, requests: Requests) -> None:
        self._context = context
        self._connections = connections
        self._requests = requests
        self._gathered: dict[int, list[Want]] = {}
        self._asked: dict[int, tuple[Want, ...]] = {}

    def ping(self, connection: Connection, frame: Ping, request: int) -> None:
        """Answer with W; a second PING while one waits is answered from what is known."""
        if connection.pinging:
            self._pong(connection, frame.client_time, request)
            return
        connection.pinging = True
        self._want(connection, request, frame.client_time)

    def ready(self, connection: Connection, request: int) -> None:
        """Answer SYNC_COMPLETE with ONLINE_READY."""
        connection.move(ConnectionState.READYING)
        self._want(connection, request, None)

    def answered(self, asked: Asked, answer: WatermarkAnswer) -> None:
        """W of each user asked for, in order."""
        wants = self._asked.pop(asked.resource.number)
        if len(answer.watermarks) != len(wants):
            self._context.count("answers_ignored")
            self._give_up(wants)
            return
        for want, watermark in zip(wants, answer.watermarks, strict=True):
            want.connection.seen = max(want.connection.seen, watermark)
            self._serve(want)

    def failed(self, asked: Asked) -> None:
        """No answer: PONG says what is known, ONLINE_READY can't be said."""
        self._give_up(self._asked.pop(asked.resource.number))

    def flush(self) -> None:
        """Ask for each shard that has wants and no question in flight."""
        limit = self._context.config.watermark_users_max
        for shard in [shard for shard in self._gathered if shard not in self._asked]:
            wants = self._gathered.pop(shard)
            if len(wants) > limit:
                self._gathered[shard] = wants[limit:]
            self._ask(shard, tuple(wants[:limit]))

    def _ask(self, shard: int, wants: tuple[Want, ...]) -> None:
        self._asked[shard] = wants
        rid = self._requests.next_rid()
        users = tuple(want.user_id for want in wants)
        self._requests.ask(
            Asked(
                rid=rid,
                first_rid=rid,
                kind=AskKind.WATERMARK,
                question=AskWatermark(rid=rid, shard=shard, users=users),
                resource=Resource(role=Role.MAILBOX, number=shard),
                deadline=self._context.now + self._context.config.request_timeout_ms,
            )
        )

    def _want(self, connection: Connection, request: int, client_time: int | None) -> None:
        want = Want(
            connection=connection,
            user_id=connection.authenticated().user_id,
            request=request,
            client_time=client_time,
        )
        self._gathered.setdefault(connection.shard, []).append(want)

    def _serve(self, want: Want) -> None:
        connection = want.connection
        if want.client_time is not None:
            connection.pinging = False
            if connection.is_live():
                self._pong(connection, want.client_time, want.request)
        elif connection.state is ConnectionState.READYING:
            connection.move(ConnectionState.ONLINE)
            self._connections.send(
                connection, OnlineReady(watermark=connection.seen), request=want.request
            )

    def _give_up(self, wants: tuple[Want, ...]) -> None:
        for want in wants:
            if want.client_time is not None:
                self._serve(want)
            elif want.connection.state is ConnectionState.READYING:
                want.connection.move(ConnectionState.SYNCING)
                self._connections.tell(
                    want.connection,
                    ErrorCode.UNAVAILABLE,
                    "the mailbox gives no watermark now",
                    request=want.request,
                    retry_after_ms=self._context.config.owner_retry_after_ms,
                )

    def _pong(self, connection: Connection, client_time: int, request: int) -> None:
        pong = Pong(
            client_time=client_time, server_time=self._context.wall(), watermark=connection.seen
        )
        self._connections.send(connection, pong, request=request)
