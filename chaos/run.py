"""One chaos run: workload and faults at their times, heal, wait until nothing is owed, judge.

started ──faults and audits, until heal_ms──► healed ──nothing owed, or end_ms──► audited ──► judged
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct

from chaos.archived import archive_differences
from chaos.scene import Deployment, Judged, RealScene, judge, true_now, visible_now
from qim.core.audit import AuditReport, Verdict
from qim.sim.faults import Fault, tag_of
from qim.sim.plan import Plan
from qim.sim.told import Told
from qim.sim.visible import Visible

LOOK_SECONDS: Final = 1.0
AUDIT_TRIES: Final = 5
AUDIT_EVERY_SECONDS: Final = 2.0


class Injector(Protocol):
    """Makes faults happen to real parts."""

    async def begin(self, fault: Fault) -> Callable[[], Awaitable[None]] | None:
        """Make it happen; give back what ends it at ``until_ms``, None where it only begins."""

    async def heal(self) -> None:
        """Everything is up, running and reachable again."""


class RunReport(Struct, frozen=True, kw_only=True):
    """``holds``: messages were committed, no check fired, nothing is owed, the audit is CLEAN, disks and shadows agree."""

    seed: int
    holds: bool
    violations: tuple[tuple[str, str, str], ...]
    owed: tuple[str, ...]
    audit: str
    audit_incomplete: tuple[str, ...]
    audits_meanwhile: dict[str, int]
    """Verdicts of audits amid the faults. INCOMPLETE is what they may be; an orphan that is none would be a violation."""
    messages: int
    effective: int
    deliveries: int
    refused: dict[str, int]
    faults: dict[str, int]
    devices: tuple[str, ...]
    seconds: float


class ChaosRun:
    """``say`` is told what happens, a line each."""

    def __init__(
        self,
        plan: Plan,
        deployment: Deployment,
        injector: Injector,
        folder: Path,
        *,
        say: Callable[[str], None],
        ask_users: Callable[[RealScene, Visible], Awaitable[dict[int, Told]]] | None = None,
    ) -> None:
        self.plan = plan
        self.scene = RealScene(plan, deployment, folder)
        self._deployment = deployment
        self._injector = injector
        self._say = say
        self._ask_users = ask_users
        self._injected: dict[str, int] = {}
        self._looked: dict[str, int] = {}
        self._found: list[tuple[str, str, str]] = []

    async def run(self) -> RunReport:
        """All of it."""
        scene = self.scene
        scene.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                looking = tasks.create_task(self._look_on())
                for fault in self.plan.faults:
                    tasks.create_task(self._inject(fault))
                await self._until(self.plan.heal_ms)
                await looking
            await self._injector.heal()
            self._say(f"healed at {scene.world.now / 1000:.1f} s")
            await self._settle()
            audit = await self._audit()
            told: dict[int, Told] = {}
            if self._ask_users is not None:
                told = await self._ask_users(scene, await visible_now(scene))
            judged = await judge(scene, audit, told, ending=True)
            if self._deployment.tiered:
                ask = self._deployment.ask_archive
                self._found += await archive_differences(await true_now(scene), ask)
            differences = await self._differences()
            return self._report(judged, audit, differences)
        finally:
            await scene.stop()

    async def _inject(self, fault: Fault) -> None:
        await self._until(fault.at_ms)
        name = tag_of(type(fault))
        self._say(f"{self.scene.world.now / 1000:6.1f} s  {name} {_words(fault)}")
        end = await self._injector.begin(fault)
        self._injected[name] = self._injected.get(name, 0) + 1
        if end is not None:
            await self._until(fault.until_ms)
            await end()
            self._say(f"{self.scene.world.now / 1000:6.1f} s  {name} ends")

    async def _until(self, ms: int) -> None:
        await asyncio.sleep(max(0, ms - self.scene.world.now) / 1000)

    async def _look_on(self) -> None:
        """Audits until the heal, so that an auditor that is killed or stopped is so in the middle of its work."""
        while self.scene.world.now < self.plan.heal_ms:
            report = await self._deployment.look()
            told = "none" if report is None else str(report.verdict)
            self._looked[told] = self._looked.get(told, 0) + 1
            if report is not None and report.verdict is Verdict.ORPHANS:
                self._found.append(("audit_amid_faults", "auditor", str(report.orphans[0])))
            await asyncio.sleep(AUDIT_EVERY_SECONDS)

    async def _settle(self) -> None:
        """Until nothing is owed; what still is at ``end_ms`` is a violation of liveness."""
        while self.scene.world.now < self.plan.end_ms:
            if self.scene.settled_here():
                judged = await judge(self.scene, None, {}, ending=False)
                if not judged.owed:
                    return
            await asyncio.sleep(LOOK_SECONDS)

    async def _audit(self) -> AuditReport:
        """INCOMPLETE may only mean that a moment was caught: again a few times."""
        for _ in range(AUDIT_TRIES):
            report = await self._deployment.audit()
            if report.verdict is not Verdict.INCOMPLETE:
                break
            await asyncio.sleep(LOOK_SECONDS)
        return report

    async def _differences(self) -> tuple[str, ...]:
        found: list[str] = []
        for device in self.scene.real.values():
            found += device.violations() + await device.differences()
        return tuple(found)

    def _report(
        self, judged: Judged, audit: AuditReport, differences: tuple[str, ...]
    ) -> RunReport:
        found = [(one.check, one.role, one.detail) for one in judged.findings]
        if not judged.effective:
            found.append(("nothing_committed", "run", f"of {judged.messages} messages none"))
        violations = (*self._found, *found)
        clean = audit.verdict is Verdict.CLEAN
        return RunReport(
            seed=self.plan.seed,
            holds=clean and not (violations or judged.owed or differences),
            violations=violations,
            owed=tuple(judged.owed),
            audit=str(audit.verdict),
            audit_incomplete=audit.incomplete,
            audits_meanwhile=dict(sorted(self._looked.items())),
            messages=judged.messages,
            effective=judged.effective,
            deliveries=judged.deliveries,
            refused=judged.refused,
            faults=dict(sorted(self._injected.items())),
            devices=differences,
            seconds=self.scene.world.now / 1000,
        )


def _words(fault: Fault) -> str:
    fields = [name for name in fault.__struct_fields__ if name not in ("at_ms", "until_ms")]
    return " ".join(f"{name}={getattr(fault, name)}" for name in fields)
