"""The registry on a real etcd behind the verbs of the conformance suite.

etcd has no clock that a test could move. So ``let_pass`` does what etcd does when time has passed: it revokes the leases
whose TTL is over on the test's clock. That etcd does so by itself is shown in test_etcd_registry.py, on the real clock.
"""

import asyncio
from typing import Any

from aetcd import rpc

from qim.adapters.etcd import EtcdRegistry
from qim.adapters.etcd.keys import Keys
from qim.core.ports.registry import (
    Acquire,
    Announce,
    Granted,
    Peers,
    RegistryRequest,
    Renew,
    Renewed,
)
from tests.adapters.registry.etcd_scene import CALL_MS, new_prefix
from tests.adapters.registry.registries import TTL_MS


class EtcdAsked:
    """One client process after the other; each instance has a prefix of its own, removed at the end."""

    name = "etcd"
    denial_slack_ms = TTL_MS

    def __init__(self, address: str, loop: asyncio.AbstractEventLoop) -> None:
        self.address = address
        self.prefix = f"{new_prefix()}/"
        self.loop = loop
        self._keys = Keys(self.prefix)
        self._now_ms = 0
        self._ends_ms: dict[bytes, int] = {}
        self._channel = self._run(self._connected())
        self._kv, self._lease = rpc.KVStub(self._channel), rpc.LeaseStub(self._channel)
        self._open()

    async def _connected(self) -> Any:
        return rpc.insecure_channel(self.address)

    def _open(self) -> None:
        self.registry = EtcdRegistry([self.address], self.prefix, self.loop, call_ms=CALL_MS)

    def _run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def start(self, request: RegistryRequest) -> "asyncio.Future[Any]":
        """Hand over without waiting."""
        future: asyncio.Future[Any] = self.loop.create_future()
        self.registry.submit(request, future.set_result)
        return future

    def ask(self, request: RegistryRequest) -> Any:
        reply = self._run(self.start(request))
        ends = self._now_ms + getattr(request, "ttl_ms", 0)
        match request, reply:
            case Acquire(), Granted():
                self._ends_ms[self._keys.lease(request.resource)] = ends
            case Renew(), Renewed():
                for resource, _ in request.leases:
                    if resource not in reply.lost:
                        self._ends_ms[self._keys.lease(resource)] = ends
            case Announce(), Peers():
                self._ends_ms[self._keys.peer(request.role, request.owner)] = ends
        return reply

    def let_pass(self, ms: int) -> None:
        self._now_ms += ms
        for key in [key for key, ends in self._ends_ms.items() if ends <= self._now_ms]:
            del self._ends_ms[key]
            self._run(self._end(key))

    async def _end(self, key: bytes) -> None:
        for kv in (await self._kv.Range(rpc.RangeRequest(key=key))).kvs:
            await self._lease.LeaseRevoke(rpc.LeaseRevokeRequest(ID=kv.lease))

    def reopen(self) -> None:
        self._run(self.registry.close())
        self._open()

    def close(self) -> None:
        self._run(self.registry.close())
        self._run(self._remove())

    async def _remove(self) -> None:
        end = self.prefix[:-1].encode() + b"0"
        await self._kv.DeleteRange(rpc.DeleteRangeRequest(key=self.prefix.encode(), range_end=end))
        await self._channel.close()
