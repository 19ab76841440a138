"""The questions of the simulator's judge, asked of real services over their own network, as a gateway would."""

import asyncio
import time
from typing import Any, Final, assert_never

from msgspec.structs import replace

from chaos.scene import RealScene, projections
from qim.adapters.rpc import ProcessRole, RpcNetwork
from qim.core.contract.sequences import before_first
from qim.core.ports.log import Topic
from qim.core.ports.network import Received, Send
from qim.core.ports.registry import LeaseRead, ReadLease, Resource
from qim.core.retention import RetentionPolicy
from qim.services.routing import Port
from qim.sim.asking import Asking, Later, Projected, Question, StatesEnd, Wanted, is_not_now
from qim.sim.told import Told
from qim.sim.visible import Clock, Visible

PAGE: Final = 100
ASK_AGAIN_SECONDS: Final = 5.0
PATIENCE_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 0.2
CLOCKS_APART_MS: Final = 0


class MachineClocks:
    """One machine, one clock; ``spread_ms`` is what injected offsets put between processes."""

    def __init__(self, spread_ms: int = CLOCKS_APART_MS) -> None:
        self._spread_ms = spread_ms

    def of(self, *resources: Resource) -> Clock:
        """Now, give or take the spread."""
        now = time.time_ns() // 1_000_000
        return Clock(
            earliest=now - self._spread_ms,
            latest=now + self._spread_ms,
            policy=RetentionPolicy(),
        )


class RealAsking:
    """Use within ``async with``; plaintext on loopback, where its word is taken for a gateway's."""

    def __init__(self, registry: Port, *, spread_ms: int = CLOCKS_APART_MS) -> None:
        self._registry = registry
        self._spread_ms = spread_ms
        self._network = RpcNetwork(("127.0.0.1", 0), ProcessRole.GATEWAY, self._received)
        self._rid = 1 << 60
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    async def __aenter__(self) -> "RealAsking":
        await self._network.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._network.close()

    async def told(self, scene: RealScene, visible: Visible) -> dict[int, Told]:
        """Everything about every user of the plan."""
        asking = Asking(scene.plan.topology, MachineClocks(self._spread_ms), page=PAGE)
        found: dict[int, Told] = {}
        for user in scene.plan.users:
            told = found[user] = Told()
            asked = asking.about(user, visible, told)
            try:
                wanted = next(asked)
                while True:
                    wanted = asked.send(await self._found(scene, wanted))
            except StopIteration:
                continue
        return found

    async def _found(self, scene: RealScene, wanted: Wanted) -> Any:
        match wanted:
            case Question():
                return await self._answer(wanted.resource, wanted.message)
            case Projected():
                reached = (await projections(scene)).get(wanted.number, [-1])
                return before_first(1, max(reached[0], 0))
            case StatesEnd():
                read = await scene.deployment.read_log(Topic.USER_STATE, wanted.number)
                return len(read.records)
            case Later():
                return await asyncio.sleep(wanted.ms / 1000)
            case _:
                assert_never(wanted)

    async def _answer(self, resource: Resource, message: Any) -> Any:
        """Until it is answered with something else than "not now", or patience ends."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        answer: Any = None
        while time.monotonic() < deadline:
            address = await self._owner(resource)
            answer = await self._ask(address, message) if address else None
            if answer is not None and not is_not_now(answer):
                return answer
            await asyncio.sleep(PAUSE_SECONDS)
        return answer

    async def _owner(self, resource: Resource) -> str:
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._registry.submit(ReadLease(op=0, resource=resource), answered.set_result)
        read = await asyncio.wait_for(answered, ASK_AGAIN_SECONDS)
        return read.address if isinstance(read, LeaseRead) else ""

    async def _ask(self, address: str, message: Any) -> Any:
        self._rid += 1
        answered = self._waiting[self._rid] = asyncio.get_running_loop().create_future()
        self._network.send(Send(address=address, message=replace(message, rid=self._rid)))
        try:
            return await asyncio.wait_for(answered, ASK_AGAIN_SECONDS)
        except TimeoutError:
            return None
        finally:
            del self._waiting[self._rid]

    def _received(self, received: Received) -> None:
        waiting = self._waiting.get(getattr(received.message, "rid", 0))
        if waiting is not None and not waiting.done():
            waiting.set_result(received.message)
