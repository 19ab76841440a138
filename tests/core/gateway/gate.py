"""One ConnectionNode held in hand: say frames, hear frames, see orders. Services answer only what a test lets them."""

from typing import Any

from qim.core.contract.entities import MessageKind
from qim.core.contract.frames import (
    Auth,
    AuthOk,
    Error,
    Kicked,
    OnlineReady,
    PullMailbox,
    SendMessage,
    SyncComplete,
    WireFrame,
    decode_server_frame,
    encode_frame,
)
from qim.core.contract.rpc import (
    AskSync,
    AskWatermark,
    Message,
    PulledEntry,
    Push,
    PushBatch,
    PushTarget,
    SyncAnswer,
    WatermarkAnswer,
)
from qim.core.contract.tokens import AccessToken, sign_token
from qim.core.contract.wire import FRAME_BYTES_MAX, FrameDecoder
from qim.core.gateway import ConnectionNode, GatewayConfig
from qim.core.ports.local import Started
from qim.core.ports.network import Received, Send
from qim.core.ports.observe import Count, Measured
from qim.core.ports.registry import LeaseRead, ReadLease, Role
from qim.core.ports.sockets import (
    Accepted,
    Backlog,
    BytesReceived,
    CloseSocket,
    SocketClosed,
    Write,
)
from qim.core.ports.store_mailbox import EnterPresence, PresenceEntered

SECRET = b"secret"
WALL = 1_700_000_000_000
MAILBOX_SEQ = 1 << 48


def token(user: int = 1, **more: Any) -> str:
    fields: dict[str, Any] = {
        "tenant_id": "default",
        "user_id": user,
        "device_id": None,
        "expires_at": WALL + 10**9,
    }
    return sign_token(AccessToken(**(fields | more)), SECRET)


def auth(user: int = 1, device: bytes = b"phone", attempt: int = 1, **more: Any) -> Auth:
    fields = {"access_token": token(user), "device_id": device, "attempt": attempt}
    return Auth(**(fields | more))


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def send(number: int = 1, **more: Any) -> SendMessage:
    fields: dict[str, Any] = {
        "client_message_id": key(number),
        "conversation_id": None,
        "peer_user_id": 2,
        "kind": MessageKind.TEXT,
        "custom_type": "",
        "body": b"hello",
        "retention_class": 0,
        "not_after": 99,
    }
    return SendMessage(**(fields | more))


def pull(**more: Any) -> PullMailbox:
    return PullMailbox(**({"cursor": b"cursor"} | more))


def pushed(
    *targets: PushTarget, number: int = 1, body: bytes | None = b"hint", peer: int = 0
) -> PushBatch:
    entry = PulledEntry(
        mailbox_seq=0,
        event_id=key(0),
        message_id=key(number),
        conversation_id=key(7),
        conversation_kind=2,
        conversation_seq=number,
        last_activity_id=key(number),
        kind=1,
        sender_id=9,
        client_message_id=key(99),
        custom_type="",
        body=body,
        tombstone=0,
        sent_at=1,
        peer_user_id=peer,
        trace_id=1234,
    )
    return PushBatch(shard=3, pushes=(Push(entry, targets),))


def target(conn: int, epoch: int, user: int = 1, seq: int = 1, own: bool = False) -> PushTarget:
    return PushTarget(user, conn, epoch, MAILBOX_SEQ + seq, key(500 + conn), own)


class Gate:
    """`step` feeds events and sorts the orders; `frames(conn)` takes what was written to a connection since."""

    def __init__(self, **config: Any) -> None:
        fields: dict[str, Any] = {"token_secrets": (SECRET,)}
        self.node = ConnectionNode(GatewayConfig(**(fields | config)), choose=lambda site, key: 0)
        self.now = 1_000
        self.effects: list[Any] = []
        self.counts: dict[str, int] = {}
        self.closed: list[int] = []
        self.epochs = 0
        self.sessions = False  # does anybody own the session shards
        self._decoders: dict[int, FrameDecoder] = {}
        self._frames: dict[int, list[tuple[Any, int]]] = {}
        self.step(Started(address="gw-1", wall=WALL))

    def step(self, *events: Any) -> list[Any]:
        effects = self.node.step(self.now, events)
        self.node.check()
        written: set[int] = set()
        for effect in effects:
            if isinstance(effect, Write):
                assert effect.conn not in written, "two Writes of one connection in a step"
                assert effect.conn not in self.closed, "a Write behind the close"
                written.add(effect.conn)
                self._hear(effect)
            elif isinstance(effect, CloseSocket):
                self.closed.append(effect.conn)
            elif isinstance(effect, Count):
                key = f"{effect.name}.{effect.label}" if effect.label else effect.name
                self.counts[key] = self.counts.get(key, 0) + effect.value
            elif not isinstance(effect, Measured):
                self.effects.append(effect)
        return list(effects)

    def _hear(self, effect: Write) -> None:
        decoder = self._decoders.setdefault(effect.conn, FrameDecoder(FRAME_BYTES_MAX))
        for raw in decoder.feed(effect.data):
            frame = decode_server_frame(raw)
            self._frames.setdefault(effect.conn, []).append((frame, raw.request))

    def frames(self, conn: int) -> list[Any]:
        return [frame for frame, _ in self._frames.pop(conn, [])]

    def frames_with_requests(self, conn: int) -> list[tuple[Any, int]]:
        return self._frames.pop(conn, [])

    def take(self, kind: type) -> list[Any]:
        """Orders of one kind given so far, each once."""
        found = [effect for effect in self.effects if isinstance(effect, kind)]
        self.effects = [effect for effect in self.effects if not isinstance(effect, kind)]
        return found

    def asked(self, kind: type) -> list[Any]:
        """Questions of one kind sent so far, each once; the others stay."""
        found = [s for s in self.effects if isinstance(s, Send) and isinstance(s.message, kind)]
        self.effects = [effect for effect in self.effects if effect not in found]
        return [send.message for send in found]

    # ------------------------------------------------------------ clients

    def say(self, conn: int, *frames: WireFrame, request: int = 0) -> list[Any]:
        data = b"".join(encode_frame(frame, request=request) for frame in frames)
        return self.say_bytes(conn, data)

    def say_bytes(self, conn: int, data: bytes) -> list[Any]:
        return self.step(BytesReceived(conn=conn, wall=WALL + self.now, data=data))

    def accept(self, conn: int) -> None:
        self.step(Accepted(conn=conn, peer="somewhere"))

    def hang_up(self, conn: int) -> None:
        self.step(SocketClosed(conn=conn))

    def tell(self, *messages: Message, source: str = "services") -> None:
        self.step(*(Received(source=source, wall=WALL + self.now, message=m) for m in messages))

    def owners(self) -> None:
        """The registry answers every lookup with `services`, of session shards only where a test wants them."""
        for read in self.take(ReadLease):
            known = self.sessions or read.resource.role is not Role.SESSION
            self.step(lease_read(read.op, read.resource, "services" if known else ""))

    # ------------------------------------------------------------ the way to ONLINE

    def entering(self, conn: int, user: int = 1, device: bytes = b"phone", **more: Any) -> None:
        self.accept(conn)
        self.say(conn, auth(user, device, **more), request=1)
        self.owners()

    def presence(self, replaced: Any = None, refused: bool = False) -> int:
        """Answer the EnterPresence that waits; its session_epoch."""
        (enter,) = self.take(EnterPresence)
        self.epochs += 1
        self.step(
            PresenceEntered(
                op=enter.op, refused=refused, session_epoch=self.epochs, replaced=replaced
            )
        )
        return self.epochs

    def synced(self, **more: Any) -> None:
        """Answer the AskSync that waits."""
        self.owners()
        (ask,) = self.asked(AskSync)
        fields = {"sync_to_seq": MAILBOX_SEQ, "has_offline": False, "cursor": b"cursor"}
        self.tell(SyncAnswer(rid=ask.rid, **(fields | more)))

    def syncing(self, conn: int, user: int = 1, device: bytes = b"phone", **more: Any) -> int:
        """A connection in SYNCING; its session_epoch."""
        self.entering(conn, user, device, **more)
        epoch = self.presence()
        self.synced()
        assert [type(f) for f in self.frames(conn)] == [AuthOk]
        return epoch

    def readying(self, conn: int, user: int = 1, device: bytes = b"phone") -> int:
        epoch = self.syncing(conn, user, device)
        self.say(conn, SyncComplete(sync_to_seq=MAILBOX_SEQ), request=2)
        return epoch

    def watermark(self, *marks: int) -> None:
        self.owners()
        (ask,) = self.asked(AskWatermark)
        self.tell(WatermarkAnswer(rid=ask.rid, watermarks=marks or (MAILBOX_SEQ,)))

    def online(self, conn: int, user: int = 1, device: bytes = b"phone") -> int:
        epoch = self.readying(conn, user, device)
        self.watermark()
        assert [type(f) for f in self.frames(conn)] == [OnlineReady]
        return epoch

    # ------------------------------------------------------------ judgements

    def refusal(self, conn: int) -> tuple[int, int]:
        """(code, request) of the only frame written since."""
        ((frame, request),) = self.frames_with_requests(conn)
        assert isinstance(frame, Error), frame
        return frame.code, request

    def kick(self, conn: int) -> tuple[int, bool]:
        """(reason, reconnect) of the last frame, which is a KICKED in front of a close."""
        frame = self.frames(conn)[-1]
        assert isinstance(frame, Kicked), frame
        assert conn in self.closed
        return frame.reason, frame.reconnect


def lease_read(op: int, resource: Any, address: str) -> LeaseRead:
    return LeaseRead(
        op=op,
        resource=resource,
        epoch=1,
        owner=address,
        address=address,
        barrier_epoch=0,
        barrier_offset=-1,
    )


class Kernel:
    """Takes `room` bytes and no more until drained; reports as a driver does, each 16 KiB."""

    def __init__(self, gate: "Gate", conn: int, room: int) -> None:
        self.gate = gate
        self.conn = conn
        self.queued = -room
        self.reported = 0

    def after(self, effects: list[Any]) -> None:
        self.queued += sum(len(e.data) for e in effects if isinstance(e, Write))
        self.report()

    def drain(self, size: int) -> None:
        self.queued -= min(size, max(0, self.queued))
        self.report()

    def report(self) -> None:
        over = max(0, self.queued)
        if abs(over - self.reported) >= 16 * 1024 or (over == 0) != (self.reported == 0):
            self.reported = over
            self.gate.step(Backlog(conn=self.conn, bytes_queued=over))
