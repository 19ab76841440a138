"""One Client held in hand, against a server that says exactly what the test wants; its local store serves at once."""

from typing import Any

from qim.core.client import Client, ClientConfig
from qim.core.client.vocabulary import OnlineWanted, SendRequested
from qim.core.contract.frames import (
    Auth,
    AuthOk,
    MailboxBatch,
    OnlineReady,
    PullMailbox,
    PullSessionList,
    ServerLimits,
    SessionListBatch,
    StateBatch,
    StateSync,
    SyncComplete,
    WireFrame,
    decode_client_frame,
    encode_frame,
)
from qim.core.contract.wire import FRAME_BYTES_MAX, FrameDecoder
from qim.core.ports.local import Started
from qim.core.ports.sockets import BytesReceived, CloseSocket, Dial, Dialed, SocketClosed, Write
from tests.core.client.toy_local_store import ToyLocalStore
from tests.core.client.toy_world import NOTICES, benign

WALL = 1_700_000_000_000
SEQ = 1 << 48


class Hand:
    """`step` feeds events; local orders are served before it returns; `said` are the client's frames since."""

    def __init__(
        self, store: ToyLocalStore | None = None, *, serve: bool = True, **config: Any
    ) -> None:
        fields: dict[str, Any] = {
            "user_id": 1,
            "device_id": b"phone",
            "access_token": "token",
            "addresses": ("a:1", "b:2"),
            "state_sync_every_ms": 10**9,
        }
        self.client = Client(ClientConfig(**(fields | config)), choose=benign)
        self.store = store or ToyLocalStore()
        self.now = 1_000
        self.dials: list[Dial] = []
        self.closed: list[int] = []
        self.notices: list[Any] = []
        self.orders: list[Any] = []
        self.others: list[Any] = []
        self.serve = serve
        self.lists = True  # an empty session list and no states, answered at once
        self._frames: list[tuple[Any, int]] = []
        self._decoder = FrameDecoder(FRAME_BYTES_MAX)
        self.step(Started(address="phone", wall=WALL))

    def step(self, *events: Any) -> None:
        todo = list(events)
        first = True
        while todo or first:
            first = False
            effects = self.client.step(self.now, todo)
            self.client.check()
            todo = []
            for effect in effects:
                reply = self._do(effect)
                if reply is not None:
                    todo.append(reply)
        if self.lists:
            self._answer_lists()

    def _answer_lists(self) -> None:
        for _, request in self.said(PullSessionList):
            self.hear(
                SessionListBatch(
                    conversations=(), revision=1, after=None, projected_through=2 * SEQ
                ),
                request=request,
            )
        for frame, request in self.said(StateSync):
            self.hear(
                StateBatch(states=(), revision=frame.since_revision, has_more=False),
                request=request,
            )

    def _do(self, effect: Any) -> Any:
        match effect:
            case Dial():
                self.dials.append(effect)
                self._decoder = FrameDecoder(FRAME_BYTES_MAX)
            case CloseSocket():
                self.closed.append(effect.conn)
            case Write():
                self._frames += [
                    (decode_client_frame(raw), raw.request)
                    for raw in self._decoder.feed(effect.data)
                ]
            case _ if isinstance(effect, NOTICES):
                self.notices.append(effect)
            case _ if hasattr(effect, "op"):
                if self.serve:
                    return self.store.serve(effect)
                self.orders.append(effect)
            case _:
                self.others.append(effect)
        return None

    def serve_one(self) -> None:
        """Answer the oldest order that waits."""
        self.step(self.store.serve(self.orders.pop(0)))

    # ------------------------------------------------------------ the server's side

    @property
    def conn(self) -> int:
        return self.dials[-1].conn

    def said(self, kind: type | None = None) -> list[tuple[Any, int]]:
        """Frames (of one kind) with their request numbers, each once; the others stay."""
        wanted = [item for item in self._frames if kind is None or isinstance(item[0], kind)]
        self._frames = [item for item in self._frames if item not in wanted]
        return wanted

    def hear(self, *frames: WireFrame, request: int = 0) -> None:
        self.hear_bytes(b"".join(encode_frame(frame, request=request) for frame in frames))

    def hear_bytes(self, data: bytes) -> None:
        self.step(BytesReceived(conn=self.conn, wall=WALL + self.now, data=data))

    def told(self, kind: type) -> list[Any]:
        return [notice for notice in self.notices if isinstance(notice, kind)]

    # ------------------------------------------------------------ the way to ONLINE

    def dialing(self) -> "Hand":
        self.step(OnlineWanted(wall=WALL + self.now))
        return self

    def authenticating(self) -> int:
        """Dialed; the request number of the AUTH."""
        if not self.dials:
            self.dialing()
        self.step(Dialed(conn=self.conn))
        ((_, request),) = self.said(Auth)
        return request

    def syncing(self, **more: Any) -> "Hand":
        self.hear(auth_ok(**more), request=self.authenticating())
        return self

    def online(self, **more: Any) -> "Hand":
        return self.online_after(self.authenticating(), **more)

    def online_after(self, auth: int, **more: Any) -> "Hand":
        """From the AUTH's request number on."""
        self.hear(auth_ok(**more), request=auth)
        for _, request in self.said(PullMailbox):
            self.hear(
                MailboxBatch(entries=(), covered_through_seq=SEQ, has_more=False, cursor=b"c1"),
                request=request,
            )
        ((_, request),) = self.said(SyncComplete)
        self.hear(OnlineReady(watermark=SEQ), request=request)
        return self

    def send(self, number: int = 1, **more: Any) -> bytes:
        key = number.to_bytes(16, "big")
        fields: dict[str, Any] = {
            "client_message_id": key,
            "conversation_id": None,
            "peer_user_id": 2,
            "kind": 1,
            "custom_type": "",
            "body": b"hello",
            "retention_class": 0,
            "wall": WALL + self.now,
        }
        self.step(SendRequested(**(fields | more)))
        return key

    def advance(self, ms: int) -> None:
        """Time by the client's own deadlines."""
        until = self.now + ms
        while (due := self.client.deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            before = self.client.deadline()
            self.step()
            if self.client.deadline() == before and before <= self.now:
                raise AssertionError("a deadline that a step does not move")
        self.now = until

    def hang_up(self) -> None:
        self.step(SocketClosed(conn=self.conn))


def auth_ok(**more: Any) -> AuthOk:
    fields: dict[str, Any] = {
        "session_epoch": 1,
        "user_id": 1,
        "sync_to_seq": SEQ,
        "has_offline": False,
        "cursor": b"c0",
        "badge": 0,
        "limits": ServerLimits(
            body_bytes_max=1,
            frame_bytes_max=1,
            page_max=1,
            pulls_inflight_max=1,
            group_members_max=1,
            not_after_ms=1,
            heartbeat_ms=1,
            idle_kill_ms=1,
        ),
        "server_time": WALL + 5,
    }
    return AuthOk(**(fields | more))
