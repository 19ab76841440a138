"""A run on real processes in the shape that the simulator's workload and checkers know as a scene.

The workload acts on devices live. What is judged is built afterwards: the logs as they stand, the stores as they answer,
the facts of the devices in the order in which they happened.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, cast

from msgspec import Struct

from chaos.device import Fact, LocalFact, NoticeFact, RealDevice
from chaos.questions import questions
from qim.core.audit import AuditReport
from qim.core.client.vocabulary import ClientNotice
from qim.core.contract.errors import ErrorCode
from qim.core.ports.completion import StoreRole
from qim.core.ports.log import StoredRecord, Topic
from qim.core.ports.store_session import ReadSessions, SessionsRead
from qim.sim.cast import TENANT
from qim.sim.checkers.apply_once import ApplyOnce
from qim.sim.checkers.audit_judged import AuditJudged
from qim.sim.checkers.commit_once import CommitOnce
from qim.sim.checkers.contiguous_batches import ContiguousBatches
from qim.sim.checkers.liveness import Liveness, unsettled
from qim.sim.checkers.sessions import Sessions
from qim.sim.checkers.visibility import Visibility
from qim.sim.history import Checker, Finding, History
from qim.sim.localstore import Device
from qim.sim.oracle import Oracle
from qim.sim.partition import Partition
from qim.sim.plan import Plan
from qim.sim.told import Told
from qim.sim.visible import Visible
from qim.sim.workload import Workload


class RealWorld:
    """The run's time in ms, and what is to happen at a time of it."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._loop = asyncio.get_running_loop()

    @property
    def now(self) -> int:
        """ms since the run began."""
        return int((time.monotonic() - self._began) * 1000)

    def at(self, when: int, tiebreak: int, act: Callable[[Any], None], payload: Any) -> None:
        """Call ``act(payload)`` then."""
        self._loop.call_later(max(0, when - self.now) / 1000, act, payload)


class LogEnd(Struct, frozen=True, kw_only=True):
    """A partition as it was read: from its first retained offset to its end."""

    start: int
    records: tuple[StoredRecord, ...]


class Deployment(Protocol):
    """What a run needs of the system under test, whatever starts and stops it."""

    @property
    def gateways(self) -> tuple[str, ...]: ...

    @property
    def secret(self) -> bytes: ...

    async def read_log(self, topic: Topic, partition: int) -> LogEnd: ...

    async def ask_store(self, role: StoreRole, request: Any) -> Any: ...

    async def incarnation(self, role: StoreRole) -> bytes: ...

    @property
    def tiered(self) -> bool: ...

    async def ask_archive(self, request: Any) -> Any:
        """Of a deployment that is ``tiered``."""

    async def audit(self) -> AuditReport: ...

    async def look(self) -> AuditReport | None:
        """An audit in the middle of it all; None: nobody could be asked, or nobody is to be."""


class _Stores:
    """Answers that were asked for beforehand; checkers ask without waiting."""

    def __init__(self, answers: dict[Any, Any]) -> None:
        self._answers = answers

    def ask(self, request: Any) -> Any:
        return self._answers.get(request)


class RealScene:
    """One plan on one deployment."""

    def __init__(self, plan: Plan, deployment: Deployment, folder: Path) -> None:
        self.plan = plan
        self.deployment = deployment
        self.world = RealWorld()
        self.facts: list[Fact] = []
        self.twinned: dict[str, str] = {}
        self.history = History(plan.topology.shards, lambda: self.world.now)
        self.real = {
            name: RealDevice(
                name,
                device.user_id,
                device.device_id,
                addresses=_from(deployment.gateways, device.gateway),
                secret=deployment.secret,
                folder=folder,
                now=lambda: self.world.now,
                on_fact=self.facts.append,
                on_notice=self._noticed,
            )
            for name, device in _named(plan)
        }
        self.nodes: Any = self.real
        self.devices = {name: device.shadow for name, device in self.real.items()}
        self.workload = Workload(cast(Any, self))

    def start(self) -> None:
        """Every device's user goes online; operations come at their times."""
        for device in self.real.values():
            device.start()
            self.workload.started(cast(Any, device))

    async def stop(self) -> None:
        """Every device's process."""
        for device in self.real.values():
            await device.stop()

    def settled_here(self) -> bool:
        """No operation left to give, nothing pending on a device whose user wants to be online."""
        if self.workload.open:
            return False
        return not any(
            self.devices[name].pending for name, on in self.workload.wanted.items() if on
        )

    def _noticed(self, device: Device, notice: ClientNotice) -> None:
        # The workload alone listens live; checkers hear the same facts afterwards, over the whole log.
        self.history.notice(device, notice)


class Judged(Struct, kw_only=True):
    """What the checkers read after a run: ``unsettled`` empty means that nothing more is to be waited for."""

    findings: list[Finding]
    owed: list[str]
    messages: int
    effective: int
    deliveries: int
    refused: dict[str, int]


async def judge(
    scene: RealScene, audit: AuditReport | None, told: dict[int, Told], *, ending: bool
) -> Judged:
    """Build the scene that checkers know from logs, stores and facts, and let them judge it.

    ``ending`` False: only what is still owed, for whoever waits for the end.
    """
    history = History(scene.plan.topology.shards, lambda: scene.world.now)
    checkers: list[Checker] = [
        CommitOnce(), ApplyOnce(), ContiguousBatches(), Visibility(), Liveness(), AuditJudged(),
    ]  # fmt: skip
    if told:
        checkers.append(Sessions())
    for checker in checkers:
        checker.attach(history)
    shown = await _shown(scene, history, audit, told)
    devices: dict[str, Device] = shown.devices
    for fact in list(scene.facts):
        if isinstance(fact, LocalFact):
            devices[fact.device].take_order(fact.request)
            history.local(devices[fact.device], fact.request, fact.answer)
        else:
            assert isinstance(fact, NoticeFact)
            history.notice(devices[fact.device], fact.notice)
    if ending:
        for checker in checkers:
            checker.finish(shown)
    return Judged(
        findings=history.findings,
        owed=[f"{check}: {text}" for check, _, text, _ in unsettled(shown)],
        messages=len(scene.workload.asked),
        effective=len(history.oracle.messages),
        deliveries=sum(len(device.messages) for device in devices.values()),
        refused=_refused(devices.values()),
    )


async def _shown(
    scene: RealScene, history: History, audit: AuditReport | None, told: dict[int, Told]
) -> Any:
    """The scene as checkers know it: logs and stores as they are now, devices that no fact has reached yet."""
    partitions = await _feed_logs(scene, history)
    history.projected.update(await projections(scene))
    return SimpleNamespace(
        plan=scene.plan,
        history=history,
        log=SimpleNamespace(partitions=partitions),
        stores=await _ask_stores(scene),
        devices={
            name: Device(cast(Any, None), shadow.user_id, shadow.device_id, name)
            for name, shadow in scene.devices.items()
        },
        workload=scene.workload,
        network=SimpleNamespace(counts={}),
        audit_report=audit,
        told=told,
        twinned=scene.twinned,
    )


def _refused(devices: Iterable[Device]) -> dict[str, int]:
    """Sends that were settled as failed, by the word of their code."""
    codes = Counter(code for device in devices for code in device.failed.values())
    return {ErrorCode(code).name: count for code, count in sorted(codes.items())}


async def true_now(scene: RealScene) -> Oracle:
    """By the logs as they stand."""
    history = History(scene.plan.topology.shards, lambda: scene.world.now)
    await _feed_logs(scene, history)
    return history.oracle


async def visible_now(scene: RealScene) -> Visible:
    """What users may see."""
    return Visible(await true_now(scene))


async def _feed_logs(scene: RealScene, history: History) -> dict[tuple[Topic, int], Partition]:
    topology = scene.plan.topology
    counts = {
        Topic.OUTBOX: topology.outbox_partitions,
        Topic.DISPATCH: topology.shards,
        Topic.USER_STATE: topology.shards,
    }
    partitions: dict[tuple[Topic, int], Partition] = {}
    for topic, count in counts.items():
        for number in range(count):
            read = await scene.deployment.read_log(topic, number)
            partition = Partition(topic, number, read.start, b"")
            partition.records.extend(read.records)
            partitions[topic, number] = partition
            history.landed_in(partition, cast(Any, None), read.records)
    return partitions


async def projections(scene: RealScene) -> dict[int, list[int]]:
    """session shard -> [dispatch offset, state offset] as the mailbox store has them, -1: none."""
    incarnation = await scene.deployment.incarnation(StoreRole.MAILBOX)
    found: dict[int, list[int]] = {}
    for shard in range(scene.plan.topology.shards):
        read = await scene.deployment.ask_store(
            StoreRole.MAILBOX,
            ReadSessions(op=0, shard=shard, incarnation=incarnation, tenant_id=TENANT, user_id=1),
        )
        if isinstance(read, SessionsRead):
            found[shard] = [read.dispatch_offset, read.state_offset]
    return found


async def _ask_stores(scene: RealScene) -> dict[StoreRole, _Stores]:
    """Everything that the checkers of the end ask, asked now."""
    stores: dict[StoreRole, _Stores] = {}
    for role, requests in questions(scene.plan.topology).items():
        answers = {one: await scene.deployment.ask_store(role, one) for one in requests}
        stores[role] = _Stores(answers)
    return stores


def _named(plan: Plan) -> list[tuple[str, Any]]:
    return [
        (f"client-{device.user_id}-{device.device_id.decode()}", device) for device in plan.devices
    ]


def _from(gateways: tuple[str, ...], first: int) -> tuple[str, ...]:
    first %= len(gateways)
    return gateways[first:] + gateways[:first]
