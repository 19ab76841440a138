"""What each step does; what it means is judgement.py's. A step that can't be carried out raises, and is then incomplete."""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from acceptance.bed import LENT, Bed, missing_parts, room_for
from acceptance.commands import QIM, Commands, Ended, junit_of
from acceptance.devices import DeviceLane
from acceptance.judgement import (
    ACK_P99_MS,
    GROUP_MEMBERS,
    Judged,
    judge_audit,
    judge_command,
    judge_devices,
    judge_heavy,
    judge_prewarm,
    judge_processes,
    judge_smoke,
    judge_steady,
    judge_stop,
    judge_tests,
    together,
)
from qim.cli.smoke.command import CHECKS
from qim.core.contract.invariants import Invariant
from tests.integration.cluster.cluster import PARTITIONS, SECRET

MINUTE: Final = 60.0
CHECK_SECONDS_MAX: Final = 15 * MINUTE
TESTS_SECONDS_MAX: Final = 60 * MINUTE
SMOKE_SECONDS_MAX: Final = 10 * MINUTE
PREWARM_SECONDS_MAX: Final = 15 * MINUTE
WARMUP_SECONDS: Final = 10.0
SETTLE_SECONDS: Final = 120.0
LOAD_SLACK_SECONDS: Final = 5 * MINUTE
PREWARM_KEYS: Final = 2_200_000
STEADY_USERS: Final = 200
STEADY_GROUPS: Final = 10
STEADY_GROUP_SHARE: Final = 0.1
HEAVY_SHARE: Final = 0.25
"""Of the steady rate; the messages to groups come on top."""
HEAVY_GROUPS: Final = 2
GROUP_DELIVERIES_SHARE: Final = 0.5
"""Deliveries a second of the groups' messages, as a share of the steady rate (the least is a message in four seconds)."""
STORMS: Final = 2
RECONNECTS: Final = 5.0
SLOW_READERS: Final = 20
STEADY_LATE_MS: Final = ACK_P99_MS / 2
"""Latency counts from the due time, so a late generator can only make it look worse; beyond this it would be all of it."""
HEAVY_LATE_MS: Final = 10_000.0
"""A storm keeps the one process that plays a thousand devices busy too; no latency is read from this load."""
STEADY_FIRST_USER: Final = 1_000_001
HEAVY_FIRST_USER: Final = 2_000_001
LANE_FIRST_USER: Final = 3_000_001
AUDIT_TRIES: Final = 12
LOOK_AGAIN_SECONDS: Final = 5.0


class Plan(Struct, frozen=True, kw_only=True):
    """What the caller chose. ``rate``: messages a second."""

    rate: float
    steps: tuple[str, ...]
    steady_seconds: float
    heavy_seconds: float
    processes_each: int
    brokers: int
    plain: bool


class Steps:
    """One run's steps, by name; ``bed`` stands from `start` on."""

    def __init__(self, plan: Plan, folder: Path, commands: Commands) -> None:
        self.plan = plan
        self.folder = folder
        self.commands = commands
        self.cluster: Bed | None = None
        self.acked = 0
        self.by_name: dict[str, Callable[[], Judged]] = {
            "bed": self.bed,
            "check": self.check,
            "test": lambda: self.tests("test"),
            "integration": lambda: self.tests("integration"),
            "start": self.start,
            "smoke": self.smoke,
            "prewarm": self.prewarm,
            "steady": self.steady,
            "heavy": self.heavy,
            "invariants": self.invariants,
            "audit": self.audit,
            "stop": self.stop,
        }

    # ------------------------------------------------------------ before

    def bed(self) -> Judged:
        """Is all here that a bed of its own needs?"""
        why = missing_parts(os.environ) + room_for(self.folder)
        return Judged(incomplete=tuple(why), figures={"folder": str(self.folder)})

    def check(self) -> Judged:
        """`make check`."""
        ended = self.commands.run("check", ["make", "check"], seconds_max=CHECK_SECONDS_MAX)
        return judge_command(ended.status, "make check")

    def tests(self, target: str) -> Judged:
        """`make test`, `make integration`: their own servers, their own report."""
        report = self.folder / f"{target}.xml"
        words = ["make", target, f"PYTEST_ARGS=--junitxml={report}"]
        ended = self.commands.run(target, words, seconds_max=TESTS_SECONDS_MAX)
        return judge_tests(ended.status, f"make {target}", junit_of(report))

    def start(self) -> Judged:
        """The cluster, which stays until the end. Raises ServerFailed."""
        plan = self.plan
        self.cluster = Bed(
            self.folder / "bed",
            processes_each=plan.processes_each,
            brokers=plan.brokers,
            plain=plan.plain,
        )
        self.cluster.start()
        return Judged(figures={"processes": sorted(self.cluster.processes), "tls": not plan.plain})

    # ------------------------------------------------------------ users

    def smoke(self) -> Judged:
        """Every check of `qim smoke`, against every process."""
        bed = self._standing()
        words = [*QIM, "smoke", "--json", "--server", bed.addresses[0]]
        for address in bed.operators:
            words += ["--metrics", address]
        ended = self.commands.run(
            "smoke", words, environment=bed.client_environment, seconds_max=SMOKE_SECONDS_MAX
        )
        return judge_smoke(ended.status, ended.report(), [check.name for check in CHECKS])

    def prewarm(self) -> Judged:
        """The message store's table as large as a long life would make it."""
        bed = self._standing()
        words = [*QIM, "prewarm", "--json", "--keys", str(PREWARM_KEYS)]
        words += ["--redis", bed.message_redis.address]
        ended = self.commands.run("prewarm", words, seconds_max=PREWARM_SECONDS_MAX)
        return judge_prewarm(ended.status, ended.report(), PREWARM_KEYS)

    def steady(self) -> Judged:
        """The given rate, and what was promised of latency."""
        plan = self.plan
        words = ["--users", str(STEADY_USERS), "--first-user", str(STEADY_FIRST_USER)]
        words += ["--groups", str(STEADY_GROUPS), "--group-size", "10"]
        words += ["--group-share", str(STEADY_GROUP_SHARE), "--late-ms", str(STEADY_LATE_MS)]
        report, devices = self._load("steady", plan.rate, plan.steady_seconds, words)
        judged = judge_steady(report, rate=plan.rate, seconds=plan.steady_seconds)
        return together(judged, judge_devices(devices))

    def heavy(self) -> Judged:
        """A thousand members, storms, slow readers."""
        plan = self.plan
        grouped = max(0.25, plan.rate * GROUP_DELIVERIES_SHARE / GROUP_MEMBERS)
        rate = plan.rate * HEAVY_SHARE + grouped
        words = ["--users", str(GROUP_MEMBERS), "--first-user", str(HEAVY_FIRST_USER)]
        words += ["--groups", str(HEAVY_GROUPS), "--group-size", str(GROUP_MEMBERS)]
        words += ["--group-share", f"{grouped / rate:.6f}", "--storms", str(STORMS)]
        words += ["--reconnects", str(RECONNECTS), "--slow", str(SLOW_READERS)]
        words += ["--late-ms", str(HEAVY_LATE_MS)]
        report, devices = self._load("heavy", rate, plan.heavy_seconds, words)
        judged = judge_heavy(report, rate=rate, seconds=plan.heavy_seconds, storms=STORMS)
        return together(judged, judge_devices(devices))

    def _load(
        self, name: str, rate: float, seconds: float, words: list[str]
    ) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """`qim load` with devices of the SDK beside it; the reports of both."""
        bed = self._standing()
        command = [*QIM, "load", "--json", "--rate", f"{rate:g}", "--seconds", f"{seconds:g}"]
        command += ["--warmup", str(WARMUP_SECONDS), "--settle", str(SETTLE_SECONDS), *words]
        for address in bed.addresses:
            command += ["--server", address]
        ended, devices = asyncio.run(self._beside(name, command, seconds))
        report = ended.report()
        self.acked += report["verdict"]["acked"] if report is not None else 0
        self.acked += devices["acked"]
        return report, devices

    async def _beside(
        self, name: str, command: list[str], seconds: float
    ) -> tuple[Ended, dict[str, Any]]:
        bed = self._standing()
        lane = DeviceLane(
            bed.addresses,
            SECRET.encode(),
            self.folder / f"devices-{name}",
            first_user=LANE_FIRST_USER,
            tls=bed.tls,
        )
        stop = asyncio.Event()
        running = asyncio.create_task(lane.run(stop))
        longest = WARMUP_SECONDS + seconds + SETTLE_SECONDS + LOAD_SLACK_SECONDS
        try:
            ended = await asyncio.to_thread(
                self.commands.run,
                name,
                command,
                environment=bed.client_environment,
                seconds_max=longest,
            )
        finally:
            self.commands.end()
            stop.set()
        return ended, await running

    # ------------------------------------------------------------ after

    def invariants(self) -> Judged:
        """Of every process that was started."""
        bed = self._standing()
        told = bed.told()
        if any(one is None or one["stale"] for one in told.values()):
            time.sleep(LOOK_AGAIN_SECONDS)
            told = bed.told()
        return judge_processes(told, len(Invariant))

    def audit(self) -> Judged:
        """Again while it says that it can't judge yet: the last messages may still be on their way."""
        bed = self._standing()
        report: dict[str, Any] | None = None
        for attempt in range(AUDIT_TRIES):
            if attempt:
                time.sleep(LOOK_AGAIN_SECONDS)
            report = bed.audited()
            if report["verdict"] != "INCOMPLETE" and not report["in_flight"]:
                break
        return judge_audit(report, partitions=PARTITIONS, acked=self.acked)

    def stop(self) -> Judged:
        """SIGTERM, drain, status 0; then the servers, by pid."""
        bed = self._standing()
        statuses = bed.stopped()
        said = bed.deaths()
        bed.end()
        return judge_stop(statuses, said, bed.left())

    def close(self) -> None:
        """However the run ends: nothing of it stays."""
        self.commands.end()
        if self.cluster is not None:
            self.cluster.end()

    def _standing(self) -> Bed:
        if self.cluster is None:
            raise NotStanding("no cluster was started: the step `start` comes first")
        return self.cluster


class NotStanding(Exception):
    """A step needs the cluster, and there is none."""


def forget_settings() -> list[str]:
    """The caller's own QIM_ variables, taken away for this run; those that name somebody's server are left to be refused."""
    taken = [name for name in os.environ if name.startswith("QIM_") and name not in LENT]
    for name in taken:
        del os.environ[name]
    return taken
