"""The registries the conformance suite runs on, behind one set of verbs: the simulator's and the SQLite one."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

from qim.adapters.embedded.sqlite_registry import SqliteRegistry
from qim.core.ports.registry import (
    Acquire,
    Announce,
    Granted,
    LeaseRead,
    RaiseEpoch,
    ReadLease,
    RegisterBarrier,
    RegistryRequest,
    Release,
    Renew,
    Resource,
    Role,
)
from qim.sim.clock import Curve, Piece
from qim.sim.network import Cuts
from qim.sim.node import Host, Node
from qim.sim.registry import Registry
from qim.sim.world import World

TTL_MS: Final = 60_000
"""On the test's clock; on a real etcd also on its own, which must not be over while a test is only slow."""
SETTLED_SECONDS_MAX: Final = 60.0
SHARD: Final = Resource(role=Role.WRITER, number=3)
OTHER: Final = Resource(role=Role.WRITER, number=4)


class AskedRegistry(Protocol):
    """What a test may do with a registry."""

    name: str
    denial_slack_ms: int
    """How much longer than it lasts a lease may be said to last."""

    def ask(self, request: RegistryRequest) -> Any:
        """Its one answer."""
        ...

    def let_pass(self, ms: int) -> None:
        """Time on the registry's clock."""
        ...

    def reopen(self) -> None:
        """The process that used the registry ends and another one begins."""
        ...

    def close(self) -> None: ...


class _Listener:
    def __init__(self) -> None:
        self.heard: dict[int, Any] = {}

    def step(self, now: int, events: Any) -> tuple[()]:
        for event in events:
            if hasattr(event, "op"):
                assert event.op not in self.heard
                self.heard[event.op] = event
        return ()

    def deadline(self) -> None:
        return None

    def check(self) -> None: ...

    def idle(self) -> bool:
        return True


class SimulatedRegistry:
    """The smallest world around qim/sim/registry.py: one process, no faults."""

    name = "simulator"
    denial_slack_ms = 1

    def __init__(self) -> None:
        self._world = World(1)
        self._registry = Registry(self._world, Cuts(), first_epoch=0, base_ms=1, spread_ms=1)
        clock = Curve((Piece(0, 0),), monotone=True)
        self._node = Node(self._world, "writer-1", "writer", monotonic=clock, wall=clock)
        self._node.crashed = lambda _: None
        self._start()

    def _start(self) -> None:
        self._listener = _Listener()
        self._host = Host(
            self._node, "writer-1/listener", self._listener, {}, identity=self._node.generation
        )
        self._node.start([self._host])

    def ask(self, request: RegistryRequest) -> Any:
        self._registry.request(self._host, request)
        while request.op not in self._listener.heard:
            self._world.run(self._world.now + 1)
        return self._listener.heard[request.op]

    def let_pass(self, ms: int) -> None:
        self._world.run(self._world.now + ms)

    def reopen(self) -> None:
        self._node.crash()
        self._start()

    def close(self) -> None: ...


class SqliteAsked:
    """qim/adapters/embedded/sqlite_registry.py over a real file, with a clock of the test's own."""

    name = "sqlite"
    denial_slack_ms = 1

    def __init__(self, path: Path) -> None:
        self.path = path
        self.loop = asyncio.new_event_loop()
        self.seconds = 1_000.0
        self._open()

    def _open(self) -> None:
        self.registry = SqliteRegistry(self.path, self.loop, clock=lambda: self.seconds)

    def start(self, request: RegistryRequest) -> "asyncio.Future[Any]":
        """Hand over without waiting."""
        future: asyncio.Future[Any] = self.loop.create_future()
        self.registry.submit(request, future.set_result)
        return future

    def ask(self, request: RegistryRequest) -> Any:
        return self.loop.run_until_complete(self.start(request))

    def let_pass(self, ms: int) -> None:
        self.seconds += ms / 1000

    def reopen(self) -> None:
        self.loop.run_until_complete(self.registry.close())
        self._open()

    def close(self) -> None:
        self.loop.run_until_complete(self.registry.close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


class Asker:
    """Questions in the words of the port; ops are numbered here."""

    def __init__(self, registry: AskedRegistry) -> None:
        self.registry = registry
        self._op = 0

    def settled(self, asked: Callable[[], bool]) -> None:
        """Ask until it is so: what a registry does behind its answer comes between two of them."""
        deadline = time.monotonic() + SETTLED_SECONDS_MAX
        while not asked():
            assert time.monotonic() < deadline, "it never came to be so"

    def op(self) -> int:
        """The next op."""
        self._op += 1
        return self._op

    def acquisition(self, owner: str, resource: Resource = SHARD, ttl_ms: int = TTL_MS) -> Acquire:
        """The request alone."""
        address = f"{owner}:1"
        return Acquire(op=self.op(), resource=resource, owner=owner, address=address, ttl_ms=ttl_ms)

    def acquire(self, owner: str, resource: Resource = SHARD, ttl_ms: int = TTL_MS) -> Any:
        """Granted or Denied."""
        return self.registry.ask(self.acquisition(owner, resource, ttl_ms))

    def granted(self, owner: str, resource: Resource = SHARD, ttl_ms: int = TTL_MS) -> int:
        """The epoch of a grant."""
        reply = self.acquire(owner, resource, ttl_ms)
        assert isinstance(reply, Granted), reply
        return reply.epoch

    def lost(self, owner: str, *leases: tuple[Resource, int], ttl_ms: int = TTL_MS) -> Any:
        """What a Renew says is lost."""
        return self.registry.ask(
            Renew(op=self.op(), owner=owner, leases=leases, ttl_ms=ttl_ms)
        ).lost

    def release(self, owner: str, *leases: tuple[Resource, int]) -> Any:
        return self.registry.ask(Release(op=self.op(), owner=owner, leases=leases))

    def raise_epoch(self, above: int, resource: Resource = SHARD) -> Any:
        return self.registry.ask(RaiseEpoch(op=self.op(), resource=resource, above=above))

    def register(
        self, epoch: int, offset: int, resource: Resource = SHARD, log_start: int = 0
    ) -> Any:
        return self.registry.ask(
            RegisterBarrier(
                op=self.op(),
                resource=resource,
                epoch=epoch,
                offset=offset,
                log_start=log_start,
            )
        )

    def read(self, resource: Resource = SHARD, below: int = 2**63 - 1) -> LeaseRead:
        reply = self.registry.ask(ReadLease(op=self.op(), resource=resource, barriers_below=below))
        assert isinstance(reply, LeaseRead), reply
        return reply

    def announce(self, owner: str, role: Role = Role.FANOUT, ttl_ms: int = TTL_MS) -> Any:
        """The live owners of the role."""
        return self.registry.ask(
            Announce(op=self.op(), role=role, owner=owner, address=f"{owner}:1", ttl_ms=ttl_ms)
        ).owners
