"""Two processes of each role under load; one is killed, stopped or drained: the other serves on, and nothing is lost."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.cluster.cluster import PARTITIONS, SHARDS, Cluster
from tests.integration.cluster.conftest import SHARED_ROLES
from tests.integration.cluster.role_process import RoleProcess
from tests.integration.load import Load
from tests.integration.served import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.xdist_group("takeover")]
LEASED = {"writer": PARTITIONS, "fanout": PARTITIONS, "mailbox": SHARDS, "session": SHARDS}


def held(process: RoleProcess) -> float:
    """Leases of its role that it holds."""
    return process.metric("qim_leases_held", process.role)


def survivor(cluster: Cluster, role: str) -> RoleProcess:
    return cluster.process(f"{role}-2")


def has_all(process: RoleProcess) -> Callable[[], bool]:
    """It holds every lease of its role and serves; of a gateway: it serves."""
    if process.role not in LEASED:
        return lambda: process.get("/readyz")[0] == 200
    return lambda: held(process) == LEASED[process.role] and process.get("/readyz")[0] == 200


def shared(cluster: Cluster, role: str) -> Callable[[], bool]:
    """Both serve, and each holds of its role's leases what it wishes for now that it knows of the other."""
    both = cluster.roles(role)

    def holds() -> bool:
        return all(one.get("/readyz")[0] == 200 for one in both) and settled(
            cluster, role, LEASED.get(role, 0)
        )

    return holds


def settled(cluster: Cluster, role: str, count: int) -> bool:
    """Nobody is about to give some of these leases to another: a moment after a start all are with who had them before."""
    leases = [
        (one.metric("qim_leases_wished", role), one.metric("qim_leases_held", role))
        for one in cluster.roles(role)
    ]
    return all(wished == has for wished, has in leases) and sum(has for _, has in leases) == count


@pytest.mark.parametrize("role", list(LEASED))
def test_two_share_what_is_leased(pairs: Cluster, role: str) -> None:
    asyncio.run(eventually(shared(pairs, role)))


@pytest.mark.parametrize("role", SHARED_ROLES)
def test_a_killed_process_is_replaced_by_the_other(
    pairs: Cluster, stores: Path, first_user: int, role: str
) -> None:
    async def main() -> None:
        load, victim = Load(pairs, stores, first_user), pairs.process(f"{role}-1")
        async with load.running() as running:
            await running.acks(50)
            victim.kill()
            await eventually(has_all(survivor(pairs, role)))
            await running.every_lane()
            await victim.started()
            await eventually(shared(pairs, role))
            await running.every_lane()
        await load.check()

    asyncio.run(main())


@pytest.mark.parametrize("role", SHARED_ROLES)
def test_a_process_that_slept_beyond_its_lease_does_nothing_with_it(
    pairs: Cluster, stores: Path, first_user: int, role: str
) -> None:
    async def main() -> None:
        load, victim = Load(pairs, stores, first_user), pairs.process(f"{role}-1")
        await eventually(shared(pairs, role))
        had = held(victim)
        ended = ended_leases(victim)
        async with load.running() as running:
            await running.acks(50)
            victim.pause()
            try:
                await eventually(has_all(survivor(pairs, role)))
                await running.every_lane()
            finally:
                victim.resume()
            if role in LEASED:
                await eventually(lambda: ended_leases(victim) >= ended + had)
            await eventually(shared(pairs, role))
            await running.every_lane()
        await load.check()
        assert victim.get("/healthz")[0] == 200

    asyncio.run(main())


def ended_leases(process: RoleProcess) -> float:
    """Leases it noticed to have ended under it."""
    names = ("qim_lease_expired_total", "qim_lease_lost_total")
    return sum(process.metric(name, process.role) for name in names)


def test_a_rolling_restart_of_everything_loses_nothing(
    pairs: Cluster, stores: Path, first_user: int
) -> None:
    async def main() -> None:
        load = Load(pairs, stores, first_user)
        async with load.running() as running:
            for process in pairs.roles(*SHARED_ROLES, "auditor"):
                await running.acks(20)
                status = await process.restarted()
                assert status == 0, f"{process.name} did not drain: {process.log()[-2000:]}"
            await running.every_lane()
        await load.check()

    asyncio.run(main())
