"""A chaos run on a real `qim up`: killed under load, judged by the simulator's checkers; and a judge that can fail."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from msgspec.structs import replace

from chaos.device import Disk, LocalFact
from chaos.embedded import EmbeddedDeployment
from chaos.plan import with_faults, workload
from chaos.run import ChaosRun, RunReport
from chaos.scene import judge
from qim.core.client.conversation import DELETED
from qim.core.ports.local_store import SaveBatch, SaveHistory, SavePush
from qim.sim.faults import Crash, Fault, StoreRestart
from qim.sim.plan import Topology

BEARERS = (SaveBatch, SaveHistory, SavePush)
SMALL = Topology(outbox_partitions=2, shards=4)


class UpInjector:
    """kill -9 of the server, and of its store alone."""

    def __init__(self, deployment: EmbeddedDeployment) -> None:
        self._deployment = deployment

    async def begin(self, fault: Fault) -> Callable[[], Awaitable[None]] | None:
        if isinstance(fault, Crash):
            self._deployment.kill()
            await asyncio.to_thread(self._deployment.start)
        else:
            assert isinstance(fault, StoreRestart)
            self._deployment.kill_store()
        return None

    async def heal(self) -> None:
        """It is up."""


def test_killed_under_load_and_judged(tmp_path: Path) -> None:
    deployment = EmbeddedDeployment(tmp_path)
    deployment.start()
    try:
        asyncio.run(killed_and_judged(deployment, tmp_path))
    finally:
        deployment.close()


async def killed_and_judged(deployment: EmbeddedDeployment, folder: Path) -> None:
    plan = workload(7, minutes=0.15, sends_per_second=20, topology=SMALL)
    faults = (Crash(at_ms=3_000, node="up"), StoreRestart(at_ms=5_500))
    said: list[str] = []
    run = ChaosRun(
        with_faults(plan, faults), deployment, UpInjector(deployment), folder, say=said.append
    )
    report: RunReport = await run.run()
    assert report.holds, (report, said)
    assert report.faults == {"crash": 1, "store_restart": 1}
    assert report.effective >= report.messages * 0.9 > 100
    await a_fact_left_out_is_seen(run)
    a_disk_that_lost_or_altered_something_is_seen(run)


def a_disk_that_lost_or_altered_something_is_seen(run: ChaosRun) -> None:
    """The shadow stands for the disk only while both hold the same messages, whole."""
    device = next(one for one in run.scene.real.values() if len(one.shadow.messages) > 1)
    shown = dict(device.shadow.messages)
    rows = dict(device.shadow.rows.conversations)
    pending = len(device.shadow.pending)
    same = Disk(pending=pending, messages=shown, conversations=rows)
    hidden = [one for one, bits in device.shadow.rows.hidden.items() if bits & DELETED]
    for one in hidden:
        del shown[one]
    assert device.compare(same) == []
    first, message = next(iter(shown.items()))
    lost = {one: kept for one, kept in shown.items() if one != first}
    for other in (lost, shown | {first: replace(message, body=b"another")}):
        (told,) = device.compare(Disk(pending=pending, messages=other, conversations=rows))
        assert first.hex() in told
    assert device.compare(Disk(pending=pending + 1, messages=shown, conversations=rows))


async def a_fact_left_out_is_seen(run: ChaosRun) -> None:
    """The judge is no ornament: a message that never reached one device's disk is a gap, and something owed."""
    scene = run.scene
    index, message = next(
        (index, fact.request.messages[0])
        for index, fact in enumerate(scene.facts)
        if isinstance(fact, LocalFact)
        and isinstance(fact.request, SaveBatch)
        and fact.request.messages
    )
    device = scene.facts[index].device
    for at, fact in enumerate(scene.facts):
        bearing = isinstance(fact, LocalFact) and isinstance(fact.request, BEARERS)
        if fact.device == device and bearing:
            kept = tuple(m for m in fact.request.messages if m.message_id != message.message_id)
            scene.facts[at] = replace(fact, request=replace(fact.request, messages=kept))
    judged = await judge(scene, None, {}, ending=True)
    assert {"covered_through_gap", "delivered"} <= {one.check for one in judged.findings}
    assert any(device in owed for owed in judged.owed)
