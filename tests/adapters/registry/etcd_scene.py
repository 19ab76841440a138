"""One client of the registry on etcd, asked from inside the loop."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aetcd import rpc

from qim.adapters.etcd import EtcdRegistry
from qim.core.ports.registry import (
    Acquire,
    Announce,
    Granted,
    Peers,
    ReadLease,
    RegisterBarrier,
    RegistryRequest,
    Release,
    Resource,
    Role,
)

SHARD = Resource(role=Role.WRITER, number=3)
CALL_MS = 20_000
"""A busy machine is no failure of the registry: only who waits for an end makes it short."""


RUN = f"/qim-test/{secrets.token_hex(4)}/"
"""What all keys of this test run begin with; the server may be somebody's."""


def new_prefix() -> str:
    """Nobody else's."""
    return f"{RUN}{secrets.token_hex(8)}"


async def remove_everything(address: str) -> None:
    """All keys of this test run."""
    async with rpc.insecure_channel(address) as channel:
        end = RUN[:-1].encode() + b"0"
        request = rpc.DeleteRangeRequest(key=RUN.encode(), range_end=end)
        await rpc.KVStub(channel).DeleteRange(request)


class EtcdClient:
    """Questions as coroutines; the answers may be Failed and Unknown."""

    def __init__(self, registry: EtcdRegistry) -> None:
        self.registry = registry
        self._op = 0

    def op(self) -> int:
        self._op += 1
        return self._op

    def begin(self, request: RegistryRequest) -> "asyncio.Future[Any]":
        """Hand over without waiting."""
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.registry.submit(request, reply.set_result)
        return reply

    async def ask(self, request: RegistryRequest) -> Any:
        return await self.begin(request)

    async def acquire(self, owner: str, ttl_ms: int = 60_000, resource: Resource = SHARD) -> Any:
        return await self.ask(self.acquisition(owner, ttl_ms, resource))

    def acquisition(self, owner: str, ttl_ms: int = 60_000, resource: Resource = SHARD) -> Acquire:
        address = f"{owner}:1"
        return Acquire(op=self.op(), resource=resource, owner=owner, address=address, ttl_ms=ttl_ms)

    async def granted(self, owner: str, resource: Resource = SHARD) -> Granted:
        """Asked again until it is, as a keeper does; the test's own end is the bound."""
        while not isinstance(reply := await self.acquire(owner, resource=resource), Granted):
            pass
        return reply

    async def announced(self, owner: str, ttl_ms: int = 60_000) -> Peers:
        """The same of an announcement."""
        while not isinstance(reply := await self.announce(owner, ttl_ms), Peers):
            pass
        return reply

    async def read(self, resource: Resource = SHARD) -> Any:
        return await self.ask(ReadLease(op=self.op(), resource=resource))

    async def register(self, epoch: int, offset: int) -> Any:
        return await self.ask(
            RegisterBarrier(op=self.op(), resource=SHARD, epoch=epoch, offset=offset)
        )

    async def release(self, owner: str, epoch: int) -> Any:
        return await self.ask(Release(op=self.op(), owner=owner, leases=((SHARD, epoch),)))

    async def announce(self, owner: str, ttl_ms: int = 60_000) -> Any:
        return await self.ask(
            Announce(op=self.op(), role=Role.WRITER, owner=owner, address="a:1", ttl_ms=ttl_ms)
        )


@asynccontextmanager
async def etcd_client(
    endpoints: Sequence[str], prefix: str = "", **options: Any
) -> AsyncIterator[EtcdClient]:
    """Closed at the end; not started. Patient unless ``options`` say otherwise."""
    loop = asyncio.get_running_loop()
    options = {"call_ms": CALL_MS, **options}
    registry = EtcdRegistry(endpoints, prefix or new_prefix(), loop, **options)
    try:
        yield EtcdClient(registry)
    finally:
        await registry.close()
