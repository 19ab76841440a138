"""Brokers as a test plays them, in the place of qim/adapters/kafka/cluster.py."""

import asyncio
from collections.abc import Callable
from typing import Any

from qim.adapters.kafka.cluster import Lane, Leader

TOPIC_ID = b"t" * 16


class PlayedCluster:
    """Brokers as the test plays them: each append request is kept until the test answers it."""

    def __init__(self) -> None:
        self.on_refreshed: list[Callable[[], None]] = []
        self.led: Leader | None = Leader(1, 0, 3)
        self.id = TOPIC_ID
        self.requests: list[tuple[Any, asyncio.Future[Any]]] = []
        self.producer_ids = 0
        self.refreshes = 0
        self.doubted: list[int] = []
        self.arrived = asyncio.Event()

    def leader(self, name: str, partition: int) -> Leader | None:
        return self.led

    def topic_id(self, name: str) -> bytes:
        return self.id

    def want_refresh(self) -> None: ...

    def doubt(self, node: int) -> int:
        self.doubted.append(node)
        return self.refreshes + 1

    def settled(self, node: int, doubt: int) -> bool:
        return self.refreshes >= doubt

    def refreshed(self) -> None:
        """Somebody told who leads."""
        self.refreshes += 1
        for listener in self.on_refreshed:
            listener()

    async def ask(self, node: int, lane: Lane, request: Any) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.requests.append((request, answer))
        self.arrived.set()
        return await answer

    async def ask_any(self, request: Any) -> Any:
        self.producer_ids += 1
        return Said(error_code=0, producer_id=self.producer_ids, producer_epoch=0)


class Said:
    """An answer's structure."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)
