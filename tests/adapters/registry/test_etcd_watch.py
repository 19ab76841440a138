"""What a watch tells when etcd is slow: an event comes once, so what it leads to is asked for until it is answered."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aetcd import rpc

from qim.adapters.etcd import watch as watch_module
from qim.adapters.etcd.connection import NotApplied
from qim.adapters.etcd.keys import Holder, Keys, encode_holder
from qim.adapters.etcd.watch import Noticed, Watch
from qim.core.ports.completion import FailReason
from qim.core.ports.registry import LeaseTaken, Peers, Resource, Role
from tests.adapters.registry.etcd_process import SECONDS_MAX

END_SECONDS_MAX = 30.0
"""Only a hang takes so long: nothing is waited for."""
KEYS = Keys("/qim/")
SHARD = Resource(role=Role.WRITER, number=3)
PEERS = Peers(op=0, role=Role.WRITER, owners=("a", "b"))
TAKEN = LeaseTaken(resource=SHARD, owner="b", address="b:1")


class SlowEtcd:
    """Announcements and connection at once: the first ``late`` questions of each kind run out of time."""

    def __init__(self, late: int) -> None:
        self.roles = frozenset({Role.WRITER})
        self.late = {"peers": late, "leases": late}
        self.asked = asyncio.Event()

    def within(self, ms: int) -> float:
        return 0.0

    def _answered(self, kind: str) -> None:
        self.asked.set()
        if self.late[kind]:
            self.late[kind] -= 1
            raise NotApplied(FailReason.UNREACHABLE)

    async def peers(self, role: Role, within: float) -> Peers:
        self._answered("peers")
        return PEERS

    async def ask(self, method: Any, request: Any, within: float) -> Any:
        self._answered("leases")
        holder = Holder(owner="b", address="b:1", epoch=1, ttl_ms=1_000)
        kv = SimpleNamespace(key=KEYS.lease(SHARD), value=encode_holder(holder))
        return SimpleNamespace(kvs=[kv])


def opened(etcd: SlowEtcd, tell: Any) -> Watch:
    """Its stream stands, and everything is to be read."""
    played: Any = etcd
    made = Watch(played, KEYS, played, tell, asyncio.get_running_loop())
    made._on_answer(rpc.WatchResponse(created=True))
    return made


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "PAUSE_SECONDS_MAX", 0.001)
    monkeypatch.setattr(watch_module, "PAUSE_SECONDS_MIN", 0.001)


def test_who_is_there_and_holds_what_is_asked_again_of_a_slow_etcd() -> None:
    """Its stream stood on, so nobody would have asked before it broke: a NOT_OWNER named no owner until then."""

    async def story() -> None:
        told: asyncio.Queue[Noticed] = asyncio.Queue()
        watch = opened(SlowEtcd(3), told.put_nowait)
        heard: set[Noticed] = set()
        async with asyncio.timeout(SECONDS_MAX):
            while heard != {PEERS, TAKEN}:
                heard.add(await told.get())
        await watch.stop()

    asyncio.run(story())


class Silent(SlowEtcd):
    """Answers nothing, and calls a cancel what the connection calls it, until the test is over."""

    over = False

    async def peers(self, role: Role, within: float) -> Peers:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if self.over:
                raise
            raise NotApplied(FailReason.CANCELLED) from None
        raise AssertionError


def test_a_watch_that_is_stopped_asks_no_more() -> None:
    async def story() -> None:
        etcd = Silent(0)
        watch = opened(etcd, lambda _: None)
        await etcd.asked.wait()
        ended, _ = await asyncio.wait([asyncio.create_task(watch.stop())], timeout=END_SECONDS_MAX)
        etcd.over = True
        assert ended, "it asks on"
        assert watch._reading is None

    asyncio.run(story())


def test_without_its_stream_it_asks_no_more() -> None:
    """The next one begins with all of it."""

    async def story() -> None:
        etcd = SlowEtcd(1 << 30)
        watch = opened(etcd, lambda _: None)
        reading = watch._reading
        assert reading is not None
        await etcd.asked.wait()
        watch.up = False
        async with asyncio.timeout(SECONDS_MAX):
            await asyncio.wait([reading])
        assert watch._reading is None

    asyncio.run(story())
