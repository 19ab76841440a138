"""Two processes' networks in one event loop, and what each of them heard and told."""

import asyncio
from collections.abc import Callable
from typing import Any

from qim.adapters.reporting import Reporting
from qim.adapters.rpc import ProcessRole, RpcLimits, RpcNetwork, RpcSecurity
from qim.core.contract.actor import Actor
from qim.core.contract.rpc import AskHistory, HistoryAnswer, Message
from qim.core.ports.network import Received, Send

WAIT_SECONDS_MAX = 20.0
ACTOR = Actor(tenant_id="default", user_id=7, device_id=b"d")


class Told:
    """Log lines, counters and durations of one network."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, object]]] = []
        self.counts: dict[tuple[str, str], int] = {}
        self.observed: list[tuple[str, float, str]] = []
        self._more = asyncio.Event()
        self.reporting = Reporting(log=self._log, count=self._count, observe=self._observe)

    def _log(self, level: str, event: str, fields: dict[str, object]) -> None:
        self.lines.append((level, event, fields))
        self._more.set()

    def _count(self, name: str, value: int, label: str) -> None:
        self.counts[name, label] = self.counts.get((name, label), 0) + value
        self._more.set()

    def _observe(self, name: str, seconds: float, label: str) -> None:
        self.observed.append((name, seconds, label))
        self._more.set()

    def text(self) -> str:
        """All lines, for a look at what they say."""
        return "\n".join(f"{level} {event} {fields}" for level, event, fields in self.lines)

    def total(self, name: str) -> int:
        """A counter over all its labels."""
        return sum(value for (known, _), value in self.counts.items() if known == name)

    async def until(self, holds: Callable[[], Any]) -> None:
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while not holds():
                self._more.clear()
                await self._more.wait()


class Process:
    """One network and everything it received."""

    def __init__(
        self,
        role: ProcessRole,
        *,
        security: RpcSecurity | None = None,
        limits: RpcLimits | None = None,
        listen: tuple[str, int] = ("127.0.0.1", 0),
    ) -> None:
        self.told = Told()
        self.heard: list[Received] = []
        self.answering: Callable[[Received], Message | None] = lambda _: None
        self._more = asyncio.Event()
        self.network = RpcNetwork(
            listen,
            role,
            self._received,
            security=security,
            reporting=self.told.reporting,
            limits=limits,
            wall=lambda: 1234,
        )

    async def __aenter__(self) -> "Process":
        await self.network.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.network.close()

    @property
    def address(self) -> str:
        return self.network.address

    def _received(self, event: Received) -> None:
        self.heard.append(event)
        answer = self.answering(event)
        if answer is not None:
            self.network.send(Send(address=event.source, message=answer))
        self._more.set()

    def say(self, to: str, message: Message) -> None:
        self.network.send(Send(address=to, message=message))

    def knows(self, address: str, role: ProcessRole) -> None:
        """As if a peer of this role had said hello from there."""
        self.network._wiring.learned(address, role)

    async def until_heard(self, count: int) -> None:
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while len(self.heard) < count:
                self._more.clear()
                await self._more.wait()

    def gauge(self, name: str) -> float:
        """The sum over its labels."""
        return sum(value for known, _, value in self.network.gauges() if known == name)


def ask(rid: int, anchor: int = 0) -> AskHistory:
    """A question a gateway may ask a writer."""
    return AskHistory(
        rid=rid, actor=ACTOR, conversation_id=b"c" * 16, anchor=anchor, direction=0, limit=10
    )


def answer(rid: int, size: int = 0) -> HistoryAnswer:
    """The writer's answer, as large as asked."""
    return HistoryAnswer(rid=rid, conversation_id=b"c" * 16, records=(bytes(size),), has_more=False)
