"""Two auditors under load: one holds the lease of all coverage, the other stands by; killed or stopped, nothing is lost."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from qim.adapters.rpc.admin import AuditorUnreachable
from tests.integration.cluster.cluster import ONE_EACH, PARTITIONS, Cluster
from tests.integration.cluster.conftest import drained
from tests.integration.cluster.operating import audited
from tests.integration.cluster.role_process import RoleProcess
from tests.integration.cluster.test_takeover import ended_leases, held
from tests.integration.load import Load
from tests.integration.served import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.xdist_group("cluster")]
ROUNDS: Final = 3


@pytest.fixture(scope="module")
def auditors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    counts = {**ONE_EACH, "auditor": 2}
    with Cluster(tmp_path_factory.mktemp("auditors"), counts=counts) as running:
        yield running
        drained(running)


def holders(cluster: Cluster) -> list[RoleProcess]:
    """Who holds the lease, of those that answer."""
    return [one for one in cluster.roles("auditor") if held(one) == 1]


def one_holds(cluster: Cluster) -> bool:
    """Exactly one, and both serve: who stands by is ready, too."""
    ready = all(one.get("/readyz")[0] == 200 for one in cluster.roles("auditor"))
    return ready and len(holders(cluster)) == 1


def holder_and_other(cluster: Cluster) -> tuple[RoleProcess, RoleProcess]:
    (holder,) = holders(cluster)
    (other,) = [one for one in cluster.roles("auditor") if one is not holder]
    return holder, other


def coverage(cluster: Cluster) -> list[tuple[bytes | None, bytes | None]]:
    """(CoverageCursor, fence) of each partition as the store has them."""
    with cluster.message_redis.client(socket_timeout=5) as client:
        found = []
        for partition in range(PARTITIONS):
            number = partition.to_bytes(4, "big")
            found.append((client.hget(b"ws:" + number, "v"), client.hget(b"wc:" + number, "e")))
        return found


def audits(process: RoleProcess) -> tuple[int, int]:
    """(begun, ended) in all its lives."""
    events = [record["event"] for record in process.log_records()]
    return events.count("admin order"), events.count("admin order done")


async def in_an_audit(cluster: Cluster, victim: RoleProcess) -> "asyncio.Task[Any]":
    """The victim is stopped in the middle of an audit, as its store answered nobody until then; whoever asked waits."""
    begun, ended = audits(victim)
    cluster.message_redis.pause()
    try:
        asked = asyncio.create_task(asyncio.to_thread(cluster.audited, victim.name))
        await eventually(lambda: audits(victim)[0] > begun and asks_its_store(victim))
        victim.pause()
    finally:
        cluster.message_redis.resume()
    assert audits(victim)[1] == ended
    return asked


def asks_its_store(process: RoleProcess) -> bool:
    """It waits for what it wants to know of each partition: the log has told where each ends, and the cut is made."""
    calls = [
        value
        for (name, _), value in process.metrics().items()
        if name == "qim_store_calls_inflight"
    ]
    return sum(calls) >= PARTITIONS


def test_one_holds_the_lease_and_both_answer(auditors: Cluster) -> None:
    """Looking needs no lease: an operator may ask either."""
    asyncio.run(eventually(lambda: one_holds(auditors)))
    holder, other = holder_and_other(auditors)
    assert audited(auditors, other.name)["verdict"] == "CLEAN"
    before = coverage(auditors)
    assert audited(auditors, other.name)["verdict"] == "CLEAN"
    assert coverage(auditors) == before, "who stands by moves nothing"
    assert audited(auditors, holder.name)["verdict"] == "CLEAN"


def test_a_killed_auditor_is_replaced_by_the_one_that_stands_by(
    auditors: Cluster, stores: Path, first_user: int
) -> None:
    async def main() -> None:
        await eventually(lambda: one_holds(auditors))
        victim, other = holder_and_other(auditors)
        load = Load(auditors, stores, first_user)
        async with load.running() as running:
            await running.acks(300)
            asked = await in_an_audit(auditors, victim)
            victim.kill()
            with pytest.raises(AuditorUnreachable):
                await asked
            await eventually(lambda: held(other) == 1 and other.get("/readyz")[0] == 200)
            report = await asyncio.to_thread(auditors.audited, other.name)
            assert report["verdict"] != "ORPHANS", report
            await running.every_lane()
            await victim.started()
            await eventually(lambda: one_holds(auditors))
            await running.every_lane()
        await load.check()

    asyncio.run(main())


def test_an_auditor_that_slept_beyond_its_lease_moves_no_coverage(
    auditors: Cluster, stores: Path, first_user: int
) -> None:
    """It wakes in the middle of its run, which goes on looking; the cursors stand where its successor put them."""

    async def slept(running: Load) -> bool:
        """Whether it noticed in the middle of a run that had opened the coverages."""
        await eventually(lambda: one_holds(auditors))
        victim, other = holder_and_other(auditors)
        ended, fenced = ended_leases(victim), victim.metric("qim_audit_fenced_total")
        asked = await in_an_audit(auditors, victim)
        _, done = audits(victim)
        try:
            await eventually(lambda: held(other) == 1)
            await running.every_lane()
            report = await asyncio.to_thread(auditors.audited, other.name)
            assert report["verdict"] != "ORPHANS", report
            before = coverage(auditors)
        finally:
            victim.resume()
        # Whoever asked may have given up a process that was silent for so long.
        await asyncio.gather(asked, return_exceptions=True)
        await eventually(lambda: audits(victim)[1] > done)
        assert coverage(auditors) == before
        await eventually(lambda: ended_leases(victim) > ended)
        assert victim.get("/healthz")[0] == 200
        return victim.metric("qim_audit_fenced_total") > fenced

    async def main() -> None:
        load = Load(auditors, stores, first_user)
        async with load.running() as running:
            await running.acks(300)
            for _ in range(ROUNDS):
                if await slept(running):
                    break
            else:
                raise AssertionError("it never noticed in a run")
            await running.every_lane()
        await load.check()

    asyncio.run(main())
