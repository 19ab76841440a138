"""With an archive: every committed message comes to it, also over the death of the archiver."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cluster.cluster import ONE_EACH, PARTITIONS, Cluster
from tests.integration.cluster.conftest import drained
from tests.integration.cluster.test_takeover import ended_leases, held, settled
from tests.integration.load import Load
from tests.integration.served import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.xdist_group("cluster")]
NAMES_MAX = 30


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    counts = {**ONE_EACH, "archiver": 2}
    with Cluster(tmp_path_factory.mktemp("tiered"), counts=counts, tiered=True) as running:
        yield running
        drained(running)


def caught_up(cluster: Cluster) -> bool:
    """Every partition is held by one of the archivers, and none is behind."""
    lags = [
        value
        for archiver in cluster.roles("archiver")
        for (name, _), value in archiver.metrics().items()
        if name == LAG
    ]
    return len(lags) >= PARTITIONS and not any(lags)


def archived(cluster: Cluster) -> float:
    """Rows that the archivers alive now have written."""
    return sum(one.metric("qim_archived_rows_total") for one in cluster.roles("archiver"))


def shared(cluster: Cluster) -> bool:
    """Each of the two holds some of the partitions."""
    held_each = [held(one) for one in cluster.roles("archiver")]
    return all(held_each) and sum(held_each) == PARTITIONS


def all_held(cluster: Cluster) -> bool:
    """Every partition has an archiver, whichever of them."""
    return sum(held(one) for one in cluster.roles("archiver")) == PARTITIONS


async def share(cluster: Cluster) -> None:
    """Rendezvous over random names gives one of them everything once in eight times: then it is begun under another name."""
    for _ in range(NAMES_MAX):
        await eventually(lambda: settled(cluster, "archiver", PARTITIONS))
        if shared(cluster):
            return
        assert await cluster.roles("archiver")[0].restarted() == 0
    raise AssertionError(f"{NAMES_MAX} names in a row that share nothing")


def test_what_is_committed_is_archived_whoever_is_killed_meanwhile(
    tiered: Cluster, stores: Path, first_user: int
) -> None:
    archiver, other = tiered.roles("archiver")

    async def main() -> None:
        load = Load(tiered, stores, first_user)
        async with load.running() as running:
            await running.acks(50)
            archiver.kill()
            await eventually(lambda: held(other) == PARTITIONS)
            await running.acks(50)
            await archiver.started()
            await running.every_lane()
        await load.check()
        await eventually(lambda: caught_up(tiered))
        assert archived(tiered) >= 50
        # One grep shows a message as far as its archive: by the trace that its writer gave it.
        await eventually(lambda: len(traces(tiered, "archiver", "ARCHIVED")) >= 50)
        strays = traces(tiered, "archiver", "ARCHIVED") - traces(tiered, "writer", "RECORDED")
        assert not strays

    asyncio.run(main())


def traces(cluster: Cluster, role: str, stage: str) -> set[str]:
    """Of the messages that reached the stage, as the logs of the role have it."""
    logged = [record for one in cluster.roles(role) for record in one.log_records()]
    return {record["trace_id"] for record in logged if record["event"] == stage}


def test_an_archiver_that_slept_beyond_its_lease_does_nothing_with_it(
    tiered: Cluster, stores: Path, first_user: int
) -> None:
    """Its inserts may be late and are harmless; its position is fenced, and nothing is trimmed by it."""
    victim, other = tiered.roles("archiver")

    async def main() -> None:
        load = Load(tiered, stores, first_user)
        await share(tiered)
        had, ended = held(victim), ended_leases(victim)
        async with load.running() as running:
            await running.acks(50)
            victim.pause()
            try:
                await eventually(lambda: held(other) == PARTITIONS)
                await running.every_lane()
            finally:
                victim.resume()
            await eventually(lambda: ended_leases(victim) >= ended + had)
            await running.every_lane()
        await load.check()
        await eventually(lambda: shared(tiered) and caught_up(tiered))
        assert victim.get("/healthz")[0] == 200

    asyncio.run(main())


def test_a_rolling_restart_of_everything_loses_nothing_of_the_archive(
    tiered: Cluster, stores: Path, first_user: int
) -> None:
    """Every process of the cluster in turn, archivers and auditor too."""

    async def main() -> None:
        load = Load(tiered, stores, first_user)
        async with load.running() as running:
            for process in tiered.processes.values():
                await running.acks(20)
                status = await process.restarted()
                assert status == 0, f"{process.name} did not drain: {process.log()[-2000:]}"
            await running.every_lane()
        await load.check()
        await eventually(lambda: all_held(tiered) and caught_up(tiered))

    asyncio.run(main())


LAG = "qim_archiver_lag_records"
