"""Lease keepers over a real etcd in real time: spreading, handing over, and an etcd that is away."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from qim.adapters.etcd import EtcdRegistry
from qim.core.ports.local import LeaseGone, LeaseHeld
from qim.core.ports.registry import Denied, Granted, Resource, Role
from tests.adapters.registry.conftest import Registries
from tests.adapters.registry.etcd_process import ENDS_MS, SECONDS_MAX, STAYS_MS, LeaseProcess, until
from tests.adapters.registry.etcd_scene import CALL_MS, EtcdClient, etcd_client, new_prefix
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
        self, owner: str, count: int = COUNT, *, watched: bool = True, ends: bool = False
    ) -> LeaseProcess:
        """``ends``: its leases are short, for who waits for their end; else nothing but its owner gives them back."""
        ttl_ms, call_ms = (ENDS_MS, 1_000) if ends else (STAYS_MS, CALL_MS)
        registry = EtcdRegistry(
            [self.address], self.prefix, asyncio.get_running_loop(), call_ms=call_ms
        )
        await registry.start()
        others = self.processes
        made = LeaseProcess(
            owner, registry, count, self.changed, others, watched=watched, ttl_ms=ttl_ms
        )
        self.processes.append(made)
        return made

    async def until_held(self, *processes: LeaseProcess, count: int = COUNT) -> None:
        """Until these hold everything between them, and share it: each something, and nothing two."""

        def reached() -> bool:
            held = [resource for process in processes for resource in process.held]
            return len(held) == len(set(held)) == count and all(
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


def test_two_processes_share_and_a_drained_one_hands_over(registries: Registries) -> None:
    async def story(scene: Scene) -> None:
        first = await scene.process("writer-1")
        await scene.until_held(first)
        second = await scene.process("writer-2")
        await scene.until_held(first, second)
        for here, there in ((first, second), (second, first)):
            named = dict.fromkeys(there.held, f"{there.owner}:1")
            await until(scene.changed, partial(here.names, named))
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
        first = await scene.process("writer-1", ends=True)
        second = await scene.process("writer-2", ends=True)
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
        first = await scene.process("writer-1", ends=True)
        second = await scene.process("writer-2", ends=True)
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
        first = await scene.process("writer-1", ends=True)
        second = await scene.process("writer-2", ends=True)
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
    """Who asked for the first time when it was over was denied nothing, nor who got no answer: they ask about another lease."""

    async def run() -> None:
        async with etcd_client([registries.etcd_address()]) as client, asyncio.timeout(SECONDS_MAX):
            number = 0
            while not await ended(client, Resource(role=Role.WRITER, number=number)):
                number += 1

    async def ended(client: EtcdClient, resource: Resource) -> bool:
        """Whether anybody was denied it before; judged in any case."""
        began = asyncio.get_running_loop().time()
        if not isinstance(await client.acquire("a", 1_000, resource), Granted):
            return False
        remaining: list[int] = []
        while isinstance(reply := await client.acquire("b", 1_000, resource), Denied):
            remaining.append(reply.remaining_ms)
            await asyncio.sleep(0.02)
        if not isinstance(reply, Granted):
            return False
        assert asyncio.get_running_loop().time() - began >= 1.0
        assert all(0 < ms <= 2_000 for ms in remaining)
        assert reply.epoch == 2, "denials cost no epoch"
        return bool(remaining)

    registries.loop.run_until_complete(run())
