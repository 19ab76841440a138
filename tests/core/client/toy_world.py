"""Clients and gateways back to back: real machines, real wire bytes both ways, toy services behind.

Nothing moves but by `run` (until nobody has anything to say) and `advance` (time, by the machines' own deadlines).
`cut`, `hold_writes` and `drop` are what a test does to the world.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from qim.core.client import Client, ClientConfig
from qim.core.client.vocabulary import (
    CaughtUp,
    ClientState,
    DevicesTold,
    GroupSettled,
    HistoryArrived,
    MembersArrived,
    MessageApplied,
    OnlineWanted,
    QueryFailed,
    ReadByArrived,
    SendQueued,
    SendRefused,
    SendRequested,
    SendSettled,
    SessionsReady,
    StateChanged,
    StateKept,
    StateSettled,
)
from qim.core.contract.entities import MessageKind
from qim.core.contract.frames import RetentionClass
from qim.core.contract.tokens import AccessToken, sign_token
from qim.core.gateway import ConnectionNode, GatewayConfig
from qim.core.ports.local import DrainRequested, Started
from qim.core.ports.network import Received, Send
from qim.core.ports.observe import Count, Gauge, Measured, StageReached, Violation
from qim.core.ports.sockets import (
    Accepted,
    BytesReceived,
    CloseSocket,
    Dial,
    Dialed,
    PauseReading,
    ResumeReading,
    SocketClosed,
    Write,
)
from tests.core.client.toy_local_store import ToyLocalStore
from tests.core.client.toy_services import SERVICES, ToyServices

SECRET = b"secret of the toy world"
WALL_START = 1_700_000_000_000
NOTICES = (
    DevicesTold,
    StateChanged,
    SendQueued,
    SendRefused,
    SendSettled,
    GroupSettled,
    MessageApplied,
    HistoryArrived,
    MembersArrived,
    QueryFailed,
    CaughtUp,
    ReadByArrived,
    SessionsReady,
    StateKept,
    StateSettled,
)


def benign(site: str, key: tuple[int | str | bytes, ...]) -> int:
    return 0


def token_for(user: int, device: bytes | None = None, expires_in_ms: int = 10**9) -> str:
    token = AccessToken(
        tenant_id="default",
        user_id=user,
        device_id=device,
        expires_at=WALL_START + expires_in_ms,
    )
    return sign_token(token, SECRET)


class ToyClient:
    """A Client, its store, and what it told its user."""

    def __init__(self, world: "ToyWorld", name: str, config: ClientConfig) -> None:
        self.world = world
        self.name = name
        self.config = config
        self.store = ToyLocalStore()
        self.notices: list[Any] = []
        self.counts: dict[str, int] = {}
        self.life = 0
        self.start()

    def crash(self) -> None:
        """The process is gone, its stream with it; what the store had is all that stays."""
        self.world.cut(self)
        self.world.down.add(self.name)
        self.world.queue = deque(item for item in self.world.queue if item[0] != self.name)

    def start(self) -> None:
        """A (new) process over the same local store."""
        self.life += 1
        self.world.down.discard(self.name)
        self.machine = Client(self.config, choose=benign)
        self.world.give(self.name, Started(address=self.name, wall=self.world.wall()))

    def told(self, kind: type) -> list[Any]:
        return [notice for notice in self.notices if type(notice) is kind]

    @property
    def state(self) -> ClientState:
        """Where the client says it stands."""
        changes = self.told(StateChanged)
        return ClientState(changes[-1].state) if changes else ClientState.OFFLINE

    def settled(self) -> dict[bytes, int]:
        """Each settled send with its code (0: sent); told exactly once."""
        told = self.told(SendSettled)
        codes = {n.client_message_id: n.code for n in told}
        assert len(codes) == len(told), "a send was settled twice"
        return codes

    def bodies(self) -> list[bytes | None]:
        return [notice.message.body for notice in self.told(MessageApplied)]

    def online(self) -> None:
        self.world.give(self.name, OnlineWanted(wall=self.world.wall()))

    def send(self, number: int, peer: int, body: bytes = b"hello", **more: Any) -> bytes:
        key = number.to_bytes(16, "big")
        fields: dict[str, Any] = {
            "client_message_id": key,
            "conversation_id": None,
            "peer_user_id": peer,
            "kind": MessageKind.TEXT,
            "custom_type": "",
            "body": body,
            "retention_class": RetentionClass.DEFAULT,
            "wall": self.world.wall(),
        }
        self.world.give(self.name, SendRequested(**(fields | more)))
        return key


class ToyWorld:
    """One inbox in order of arrival; everything is instant unless a test holds it."""

    def __init__(self, gateways: int = 1, **gateway_config: Any) -> None:
        self.now = 1_000
        self.queue: deque[tuple[str, Any]] = deque()
        self.services = ToyServices(self._post)
        self.gateways: dict[str, ConnectionNode] = {}
        self.clients: dict[str, ToyClient] = {}
        self.streams: dict[tuple[str, int], tuple[str, int]] = {}
        self.held: dict[tuple[str, int], list[tuple[str, Any]]] = {}
        self.drop: Callable[[str, Any], bool] = lambda target, event: False
        self.log: list[tuple[str, Any]] = []
        self.counts: dict[str, int] = {}
        self.down: set[str] = set()
        self._conn = 0
        for number in range(1, gateways + 1):
            name = f"gw-{number}"
            config = GatewayConfig(token_secrets=(SECRET,), **gateway_config)
            self.gateways[name] = ConnectionNode(config, choose=benign)
            self.give(name, Started(address=name, wall=self.wall()))

    # ------------------------------------------------------------ the test's hands

    def wall(self) -> int:
        return WALL_START + self.now

    def client(self, user: int, device: bytes = b"phone", **config: Any) -> ToyClient:
        fields: dict[str, Any] = {
            "user_id": user,
            "device_id": device,
            "access_token": token_for(user),
            "addresses": tuple(self.gateways),
        }
        name = f"client-{user}-{device.decode()}"
        client = ToyClient.__new__(ToyClient)
        self.clients[name] = client
        client.__init__(self, name, ClientConfig(**(fields | config)))  # type: ignore[misc]
        return client

    def give(self, target: str, event: Any) -> None:
        self.queue.append((target, event))

    def run(self) -> None:
        """Until nobody has anything to say at this moment."""
        for _ in range(100_000):
            if not self.queue:
                return
            self._deliver(*self.queue.popleft())
        raise AssertionError("the world does not come to rest")

    def advance(self, ms: int) -> None:
        """Time passes; every deadline on the way is kept."""
        until = self.now + ms
        self.run()
        while True:
            deadlines = [machine.deadline() for machine in self._machines()]
            next_due = min((at for at in deadlines if at is not None), default=None)
            if next_due is None or next_due > until:
                break
            self.now = max(self.now + (next_due <= self.now), next_due)
            for name in [*self.gateways, *self.clients]:
                self._step(name, [])
            self.run()
        self.now = max(self.now, until)

    def cut(self, client: ToyClient) -> None:
        """The stream of the moment is gone, with all bytes on it."""
        for end, other in list(self.streams.items()):
            if end[0] == client.name:
                self._close(end, other)

    def drain(self, gateway: str) -> None:
        self.give(gateway, DrainRequested())

    # ------------------------------------------------------------ the world

    def _machines(self) -> list[Any]:
        clients = {name: client.machine for name, client in self.clients.items()}
        everybody: dict[str, Any] = {**self.gateways, **clients}
        return [machine for name, machine in everybody.items() if name not in self.down]

    def _post(self, address: str, message: Any) -> None:
        if address in self.gateways:
            self.give(address, Received(source=SERVICES, wall=self.wall(), message=message))

    def _deliver(self, target: str, event: Any) -> None:
        if self.drop(target, event):
            return
        self.log.append((target, event))
        if target == SERVICES:
            self.services.wall = self.wall()
            reply = self.services.answer(event.message)
            if reply is not None:
                self.give(event.source, Received(source=SERVICES, wall=self.wall(), message=reply))
            return
        self._step(target, [event])

    def _step(self, name: str, events: list[Any]) -> None:
        if name in self.down:
            return
        machine = self.gateways[name] if name in self.gateways else self.clients[name].machine
        effects = machine.step(self.now, events)
        machine.check()
        for effect in effects:
            self._do(name, effect)

    def _do(self, name: str, effect: Any) -> None:
        match effect:
            case Write():
                self._write((name, effect.conn), effect.data)
            case Send():
                self.give(
                    effect.address,
                    Received(source=name, wall=self.wall(), message=effect.message),
                )
            case Dial():
                self._dial(name, effect)
            case CloseSocket():
                end = (name, effect.conn)
                if end in self.streams:
                    self._close(end, self.streams[end])
                else:
                    self.give(name, SocketClosed(conn=effect.conn))
            case PauseReading() | ResumeReading() | Gauge() | Measured() | StageReached():
                pass
            case Count():
                self.counts[effect.name] = self.counts.get(effect.name, 0) + effect.value
            case Violation():
                raise AssertionError(effect)
            case _ if type(effect) in NOTICES:
                self.clients[name].notices.append(effect)
            case _ if name in self.clients:
                self.give(name, self.clients[name].store.serve(effect))
            case _:
                self.services.wall = self.wall()
                self.give(name, self.services.store(effect))

    def _dial(self, name: str, effect: Dial) -> None:
        if effect.address not in self.gateways or effect.address in self.down:
            self.give(name, SocketClosed(conn=effect.conn))
            return
        self._conn += 1
        here, there = (name, effect.conn), (effect.address, self._conn)
        self.streams[here], self.streams[there] = there, here
        self.give(effect.address, Accepted(conn=self._conn, peer=name))
        self.give(name, Dialed(conn=effect.conn))

    def _write(self, end: tuple[str, int], data: bytes) -> None:
        other = self.streams.get(end)
        if other is None:
            return
        event = BytesReceived(conn=other[1], wall=self.wall(), data=data)
        if other in self.held:
            self.held[other].append((other[0], event))
        else:
            self.give(other[0], event)

    def _close(self, end: tuple[str, int], other: tuple[str, int]) -> None:
        self.streams.pop(end, None)
        self.streams.pop(other, None)
        self.give(end[0], SocketClosed(conn=end[1]))
        self.give(other[0], SocketClosed(conn=other[1]))


HOUR_MS = 3_600_000


def pair(**client: Any) -> tuple[ToyWorld, ToyClient, ToyClient]:
    world = ToyWorld()
    ann, bob = world.client(1, **client), world.client(2)
    ann.online()
    bob.online()
    world.run()
    assert (ann.state, bob.state) == (ClientState.ONLINE, ClientState.ONLINE)
    return world, ann, bob


def carries(event: Any, *kinds: type) -> bool:
    return isinstance(event, Received) and isinstance(event.message, kinds)


class DropFirst:
    """Loses the first ``count`` messages of these kinds between services."""

    def __init__(self, count: int, *kinds: type) -> None:
        self.left = count
        self.kinds = kinds

    def __call__(self, target: str, event: Any) -> bool:
        if self.left and carries(event, *self.kinds):
            self.left -= 1
            return True
        return False
