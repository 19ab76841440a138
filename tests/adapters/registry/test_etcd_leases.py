"""Lease keepers over a real etcd in real time: spreading, handing over, and an etcd that is away."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from qim.adapters.etcd import EtcdRegistry
from qim.core.ports.local import LeaseGone, LeaseHeld
from qim.core.ports.registry import Acquire, Granted, Resource, Role
from tests.adapters.registry.conftest import Registries
from tests.adapters.registry.etcd_process import LeaseProcess, until
from tests.adapters.registry.etcd_scene import new_prefix
from tests.integration.testbed.etcd import EtcdServer

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("etcd")]
COUNT = 16
FIRST = Resource(role=Role.WRITER, number=0)


class Scene:
    """Processes of one prefix on one etcd."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.prefix = new_prefix()
        self.changed = asyncio.Event()
        self.processes: list[LeaseProcess] = []

    async def process(
        self, owner: str, count: int = COUNT, *, watched: bool = True
    ) -> LeaseProcess:
        registry = EtcdRegistry(
            [self.address], self.prefix, asyncio.get_running_loop(), call_ms=1_000
        )
        await registry.start()
        made = LeaseProcess(owner, registry, count, self.changed, self.processes, watched=watched)
        self.processes.append(made)
        return made

    async def until_held(self, *processes: LeaseProcess, count: int = COUNT) -> None:
        """Until these hold everything between them, and share it."""

        def reached() -> bool:
            return sum(len(process.held) for process in processes) == count and all(
                process.held for process in processes
            )

        await until(self.changed, reached)

    async def end(self) -> None:
        for process in self.processes:
            await process.die()

    def never_two(self) -> None:
        """No process was told of a lease that another one might still have used."""
        assert not [doubled for process in self.processes for doubled in process.doubled]


def play(
    loop: asyncio.AbstractEventLoop, address: str, story: Callable[[Scene], Awaitable[None]]
) -> None:
    """Whatever happens, no process outlives its test."""

    async def run() -> None:
        scene = Scene(address)
        try:
            await story(scene)
        finally:
            await scene.end()

    loop.run_until_complete(run())


@pytest.fixture
def own(tmp_path: Path) -> Iterator[EtcdServer]:
    """A server that the test may kill and pause."""
    server = EtcdServer(tmp_path / "own")
    server.start()
    yield server
    server.stop()


def test_two_processes_share_and_a_drained_one_hands_over(registries: Registries) -> None:
    async def story(scene: Scene) -> None:
        first = await scene.process("writer-1")
        await scene.until_held(first)
        second = await scene.process("writer-2")
        await scene.until_held(first, second)
        assert not first.held.keys() & second.held.keys()
        for here, there in ((first, second), (second, first)):
            named = dict.fromkeys(there.held, f"{there.owner}:1")
            knows = partial(here.names, named)
            await until(scene.changed, knows)
        epochs = first.held | second.held
        await first.drain()
        await scene.until_held(second)
        assert all(second.held[resource] >= epoch for resource, epoch in epochs.items())
        scene.never_two()
        moves = [fact for fact in second.told if isinstance(fact, LeaseGone)]
        assert not moves, "what the second one got it kept"
        await second.die()

    play(registries.loop, registries.etcd_address(), story)


def test_what_a_dead_process_held_goes_to_the_living(registries: Registries) -> None:
    async def story(scene: Scene) -> None:
        first, second = await scene.process("writer-1"), await scene.process("writer-2")
        await scene.until_held(first, second)
        lost = dict(first.held)
        await first.die()
        await scene.until_held(second)
        for resource, epoch in lost.items():
            assert second.held[resource] > epoch
        await second.drain()

    play(registries.loop, registries.etcd_address(), story)


def test_without_a_watch_the_same_happens_later(registries: Registries) -> None:
    async def story(scene: Scene) -> None:
        first = await scene.process("writer-1", watched=False)
        await scene.until_held(first)
        second = await scene.process("writer-2", watched=False)
        await scene.until_held(first, second)
        await first.drain()
        await scene.until_held(second)
        scene.never_two()
        await second.drain()

    play(registries.loop, registries.etcd_address(), story)


def test_owners_stop_before_they_must_while_etcd_is_away(
    registries: Registries, own: EtcdServer
) -> None:
    """Nobody needs etcd to know that a lease is over; when it is back, each epoch is a fresh one."""

    async def story(scene: Scene) -> None:
        first, second = await scene.process("writer-1"), await scene.process("writer-2")
        await scene.until_held(first, second)
        before = first.held | second.held
        own.pause()
        await until(scene.changed, lambda: not first.held and not second.held)
        own.resume()
        await scene.until_held(first, second)
        after = first.held | second.held
        assert all(after[resource] > epoch for resource, epoch in before.items())
        scene.never_two()
        await first.drain()
        await second.drain()

    play(registries.loop, own.address, story)


def test_nobody_is_granted_what_a_cut_off_owner_still_believes(
    registries: Registries, own: EtcdServer
) -> None:
    """One of two is cut off from etcd: it stops, and only then does etcd let the other one have its leases."""

    async def story(scene: Scene) -> None:
        first, second = await scene.process("writer-1"), await scene.process("writer-2")
        await scene.until_held(first, second)
        await first.registry.close()
        await scene.until_held(second)
        scene.never_two()
        await until(scene.changed, lambda: not first.held)
        await first.die()
        await second.drain()

    play(registries.loop, own.address, story)


def test_epochs_grow_on_over_kill_nine_of_etcd(registries: Registries, own: EtcdServer) -> None:
    async def story(scene: Scene) -> None:
        first = await scene.process("writer-1", 4)
        await scene.until_held(first, count=4)
        told = max(epoch for epoch in first.held.values())
        for _ in range(3):
            own.kill()
            own.start()
            first.want_fresh(FIRST)
            fresh = partial(first.holds_above, FIRST, told)
            await until(scene.changed, fresh)
            told = first.held[FIRST]
        epochs = [
            fact.epoch
            for fact in first.told
            if isinstance(fact, LeaseHeld) and fact.resource == FIRST
        ]
        assert epochs == sorted(set(epochs))
        await first.drain()

    play(registries.loop, own.address, story)


def test_etcd_itself_ends_a_lease_after_its_ttl_and_not_before(registries: Registries) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        prefix = new_prefix()
        registry = EtcdRegistry([registries.etcd_address()], prefix, loop)

        async def acquire(owner: str) -> object:
            reply: asyncio.Future[object] = loop.create_future()
            request = Acquire(op=1, resource=FIRST, owner=owner, address="", ttl_ms=1_000)
            registry.submit(request, reply.set_result)
            return await reply

        began = loop.time()
        assert isinstance(await acquire("a"), Granted)
        remaining: list[int] = []
        while not isinstance(reply := await acquire("b"), Granted):
            remaining.append(getattr(reply, "remaining_ms", 0))
            await asyncio.sleep(0.02)
        assert loop.time() - began >= 1.0
        assert remaining and all(0 < ms <= 2_000 for ms in remaining)
        assert reply.epoch == 2, "denials cost no epoch"
        await registry.close()

    registries.loop.run_until_complete(run())
