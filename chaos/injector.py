"""The simulator's faults done to real parts: signals, files, wires. What began is undone at its end, or at the heal."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from chaos.cluster import ChaosCluster
from chaos.proxy import Direction
from chaos.scene import RealScene
from qim.sim.faults import (
    Crash,
    Fault,
    Garbage,
    LeaderChange,
    LogStall,
    Messages,
    Partition,
    Pause,
    RegistryRepliesLost,
    Restart,
    ScaleOut,
    ScriptsForgotten,
    Sockets,
    StoreRestart,
    StoreStall,
    UserActs,
    WallStep,
    tag_of,
)
from tests.integration.cluster.role_process import RoleProcess
from tests.integration.testbed.server_process import ServerFailed

CALL_BYTES: Final = 300
"""About what one writing call of ours takes in an append-only file."""
RESET_SECONDS: Final = 0.5
UP_SECONDS_MAX: Final = 90.0
WHOLE: Final = 65_536
GARBAGE: Final = (
    bytes(range(256)) * 2,
    b"\xff" * 64,
    b"\0\0\0\x04\0\x20\0\0\0\0\0\0\0\0\0\0hey!",
    b"\0\0",
    b"",
)
End = Callable[[], Awaitable[None]]


class Unsupported(Exception):
    """A plan asks for a fault that real parts can't have (chaos/storm.py says why)."""


class ClusterInjector:
    """``say`` hears what goes otherwise than planned."""

    def __init__(self, cluster: ChaosCluster, *, say: Callable[[str], None]) -> None:
        self.scene: RealScene | None = None
        """Whose devices users act on; set once the run is made."""
        self._cluster = cluster
        self._say = say
        self._stopped: dict[str, Any] = {}
        """Names of what is paused or down by a fault, with what brings it back."""
        self._strangers: list[asyncio.Task[bytes]] = []
        self.clocks_apart_ms = 0
        self._acts: dict[type, Callable[[Any], Awaitable[End | None]]] = {
            Crash: self._crash,
            Pause: self._pause,
            Restart: self._restart,
            ScaleOut: self._scale_out,
            StoreRestart: self._store_restart,
            StoreStall: self._store_stall,
            ScriptsForgotten: self._forget_scripts,
            LeaderChange: self._leader_change,
            LogStall: self._log_stall,
            Partition: self._partition,
            RegistryRepliesLost: self._registry_replies,
            Messages: self._messages,
            Sockets: self._sockets,
            WallStep: self._wall_step,
            Garbage: self._garbage,
            UserActs: self._user_acts,
        }

    @property
    def kinds(self) -> frozenset[type]:
        """Faults that can be made to happen."""
        return frozenset(self._acts)

    async def begin(self, fault: Fault) -> End | None:
        """Make it happen. Raises Unsupported."""
        act = self._acts.get(type(fault))
        if act is None:
            raise Unsupported(f"{tag_of(type(fault))} can't be done to real parts")
        return await act(fault)

    async def heal(self) -> None:
        """Wires whole, everything up and awake."""
        for proxy in self._cluster.proxies.values():
            proxy.passes()
        for name in list(self._stopped):
            await self._bring_back(name)
        for process in self._cluster.processes.values():
            if not process.alive:
                self._say(f"{process.name} was down at the heal")
                await self._up(process)

    # ---------------------------------------------------------------- processes

    async def _crash(self, fault: Crash) -> None:
        process = self._cluster.process(fault.node)
        process.kill()
        await asyncio.sleep(fault.down_ms / 1000)
        await self._up(process)

    async def _pause(self, fault: Pause) -> End:
        process = self._cluster.process(fault.node)
        if not process.alive:
            await self._up(process)
        return self._asleep(fault.node, process)

    async def _restart(self, fault: Restart) -> None:
        process = self._cluster.process(fault.node)
        if process.alive:
            status = await asyncio.to_thread(process.stop)
            if status != 0:
                self._say(f"{process.name} drained with status {status}")
        await asyncio.sleep(fault.down_ms / 1000)
        await self._up(process)

    async def _scale_out(self, fault: ScaleOut) -> None:
        number = len(self._cluster.roles(fault.role)) + 1
        process = self._cluster.add(fault.role, number)
        await self._cluster.start_proxies()
        await self._up(process)

    async def _up(self, process: RoleProcess) -> None:
        """As a supervisor does: again until it serves, since a start may fall into another fault."""
        deadline = time.monotonic() + UP_SECONDS_MAX
        while True:
            if process.alive:
                return
            try:
                await process.started()
                return
            except ServerFailed as failed:
                process.kill()
                if time.monotonic() > deadline:
                    raise
                self._say(f"{process.name} again: {str(failed).splitlines()[-1][:160]}")
                await asyncio.sleep(1.0)

    # ---------------------------------------------------------------- servers

    async def _store_restart(self, fault: StoreRestart) -> None:
        server = self._cluster.redis(fault.store)
        server.kill()
        lost = server.lose_tail(bytes_lost=fault.lost_calls * CALL_BYTES)
        self._say(f"store {fault.store}: {lost} bytes of its tail are gone")
        await asyncio.sleep(fault.down_ms / 1000)
        server.process.launch()
        await asyncio.to_thread(server.process.wait_ready)

    async def _store_stall(self, fault: StoreStall) -> End:
        return self._asleep(f"store {fault.store}", self._cluster.redis(fault.store))

    async def _forget_scripts(self, fault: ScriptsForgotten) -> None:
        def flush() -> None:
            with self._cluster.redis(fault.store).client(socket_timeout=5) as client:
                client.script_flush()

        await asyncio.to_thread(flush)

    async def _leader_change(self, fault: LeaderChange) -> End:
        """The broker that leads is killed: partitions that it led elect others; it comes back at the end."""
        broker = await self._leading(fault)
        name = f"broker {broker.number}"
        broker.kill()
        self._stopped[name] = broker
        return lambda: self._bring_back(name)

    async def _log_stall(self, fault: LogStall) -> End:
        broker = await self._leading(fault)
        name = f"broker {broker.number}"
        if name in self._stopped:
            return _nothing
        return self._asleep(name, broker)

    async def _leading(self, fault: LeaderChange | LogStall) -> Any:
        """Of the fault's partition; where nobody leads it, amid another fault, any one."""
        broker = await self._cluster.leading(fault.topic, fault.partition)
        if broker is not None:
            return broker
        self._say(f"nobody leads {fault.topic} {fault.partition}: a broker by chance")
        return self._cluster.kafka[fault.at_ms % len(self._cluster.kafka)]

    # ---------------------------------------------------------------- wires and clocks

    async def _partition(self, fault: Partition) -> End:
        things = {"store": ["message", "mailbox"], "registry": ["registry"]}.get(
            fault.target, ["message", "mailbox", "registry", "internal"]
        )
        proxies = self._cluster.of(things, fault.source)
        for proxy in proxies:
            proxy.hold(*(tuple(Direction) if fault.two_way else (Direction.THERE,)))
        return _passing(proxies)

    async def _registry_replies(self, fault: RegistryRepliesLost) -> End:
        proxies = self._cluster.of(["registry"])
        for proxy in proxies:
            proxy.hold(Direction.BACK)
        return _passing(proxies)

    async def _messages(self, fault: Messages) -> End:
        proxies = self._cluster.of(["internal"])
        for proxy in proxies:
            proxy.delay_ms = fault.extra_ms
        return _passing(proxies)

    async def _sockets(self, fault: Sockets) -> End:
        proxies = self._cluster.of(["clients", "message", "mailbox", "internal"])
        every = max(1, WHOLE // max(1, fault.reset))

        async def reset() -> None:
            turn = 0
            while True:
                await asyncio.sleep(RESET_SECONDS)
                turn += 1
                for index, proxy in enumerate(proxies):
                    if (turn + index) % every == 0:
                        proxy.reset_streams()

        resetting = asyncio.create_task(reset())

        async def end() -> None:
            resetting.cancel()

        return end

    async def _wall_step(self, fault: WallStep) -> None:
        ahead = self._cluster.step_clock(fault.node, fault.by_ms)
        self.clocks_apart_ms = max(self.clocks_apart_ms, abs(ahead))

    async def _garbage(self, fault: Garbage) -> None:
        (proxy,) = self._cluster.of(["clients"], fault.gateway)
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(GARBAGE[fault.kind % len(GARBAGE)])
        reading = asyncio.create_task(reader.read())
        # A stranger that says nothing is hung up on by the gateway's own time limit; nobody waits for that here.
        reading.add_done_callback(lambda _: writer.close())
        self._strangers.append(reading)

    async def _user_acts(self, fault: UserActs) -> None:
        assert self.scene is not None
        for _ in range(fault.times):
            self.scene.workload.wake(fault.node)
            await asyncio.sleep(0.003)

    # ---------------------------------------------------------------- asleep and back

    def _asleep(self, name: str, what: Any) -> End:
        what.pause()
        self._stopped[name] = what
        return lambda: self._bring_back(name)

    async def _bring_back(self, name: str) -> None:
        what = self._stopped.pop(name, None)
        if what is None:
            return
        if what.process.alive:
            what.resume()
        elif isinstance(what, RoleProcess):
            await self._up(what)
        else:
            what.process.launch()
            await asyncio.to_thread(what.process.wait_ready)


async def _nothing() -> None:
    """It was done by another fault already."""


def _passing(proxies: list[Any]) -> End:
    async def end() -> None:
        for proxy in proxies:
            proxy.passes()

    return end
