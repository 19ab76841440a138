"""What the results of the steps mean. Pure, and closed: what was not looked at, not told or not finished is never a pass.

a step:  failed (a promise is broken) > incomplete (not all of it was proved) > passed
a run:   REJECTED (any failed) > INCOMPLETE (any not passed, or missing) > PARTIAL (shortened on purpose) > ACCEPTED
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

STEPS: Final = (
    "bed",
    "check",
    "test",
    "integration",
    "start",
    "smoke",
    "prewarm",
    "steady",
    "heavy",
    "invariants",
    "audit",
    "stop",
)
STEADY_SECONDS: Final = 180.0
HEAVY_SECONDS: Final = 60.0
ACK_P99_MS: Final = 150.0
END_TO_END_P99_MS: Final = 300.0
"""contract.md, Parameters: the service level objectives."""
HELD_SHARE: Final = 0.98
"""Of the given rate; the rest is what stands in flight at the end of the measured time."""
SMOKE_CHECKS_MIN: Final = 40
GROUP_MEMBERS: Final = 1_000


class Status(StrEnum):
    """Of one step."""

    PASSED = "passed"
    FAILED = "failed"
    INCOMPLETE = "incomplete"
    SKIPPED = "skipped"


class Verdict(StrEnum):
    """Of the run; only the first is worth a release."""

    ACCEPTED = "ACCEPTED"
    PARTIAL = "PARTIAL"
    INCOMPLETE = "INCOMPLETE"
    REJECTED = "REJECTED"


class Judged(Struct, frozen=True, kw_only=True):
    """``failed``: broken promises, in words. ``incomplete``: what was not proved, in words. ``figures``: for the report."""

    failed: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()
    figures: dict[str, Any] = {}

    @property
    def status(self) -> Status:
        """Passed only where there is nothing to say."""
        if self.failed:
            return Status.FAILED
        return Status.INCOMPLETE if self.incomplete else Status.PASSED


class StepResult(Struct, frozen=True, kw_only=True):
    """One step as the report tells it."""

    name: str
    status: Status
    seconds: float
    why: tuple[str, ...] = ()
    figures: dict[str, Any] = {}


def verdict_of(results: Sequence[StepResult], *, shortened: bool) -> Verdict:
    """Of a run. ``shortened``: fewer steps or less time than STEPS and the two spans above, on purpose."""
    if any(result.status is Status.FAILED for result in results):
        return Verdict.REJECTED
    asked = [result for result in results if result.status is not Status.SKIPPED]
    if not asked or any(result.status is not Status.PASSED for result in asked):
        return Verdict.INCOMPLETE
    whole = tuple(result.name for result in asked) == STEPS
    if not whole and not shortened:
        return Verdict.INCOMPLETE
    return Verdict.PARTIAL if shortened else Verdict.ACCEPTED


def shortened_by(steps: Sequence[str], steady_seconds: float, heavy_seconds: float) -> bool:
    """Whether a run of these can't be a whole one."""
    brief = steady_seconds < STEADY_SECONDS or heavy_seconds < HEAVY_SECONDS
    return tuple(steps) != STEPS or brief


# ---------------------------------------------------------------- steps


def judge_command(status: int, words: str) -> Judged:
    """A command that must end with 0."""
    if status == 0:
        return Judged()
    return Judged(failed=(f"{words} ended with status {status}",))


def judge_tests(status: int, words: str, told: Mapping[str, Any] | None) -> Judged:
    """``told``: tests, failures, errors, skipped (names), as the runner's report has them; None: there is no report."""
    failed = [] if status == 0 else [f"{words} ended with status {status}"]
    if told is None:
        return Judged(failed=tuple(failed), incomplete=(f"{words} left no report",))
    incomplete = []
    for kind in ("failures", "errors"):
        if told[kind]:
            failed.append(f"{told[kind]} {kind}")
    if not told["tests"]:
        incomplete.append("no test ran")
    incomplete += [f"skipped: {name}" for name in told["skipped"]]
    figures = {"tests": told["tests"], "skipped": len(told["skipped"])}
    return Judged(failed=tuple(failed), incomplete=tuple(incomplete), figures=figures)


def judge_smoke(status: int, report: Mapping[str, Any] | None, wanted: Iterable[str]) -> Judged:
    """``wanted``: names of all checks there are."""
    if report is None:
        return Judged(failed=(f"qim smoke ended with status {status} and no report",))
    by_name = {check["name"]: check for check in report["checks"]}
    failed, incomplete = [], []
    for name, check in by_name.items():
        if check["status"] == "failed":
            failed.append(f"{name}: {check['detail']}")
        elif check["status"] != "passed":
            incomplete.append(f"{name} was {check['status']}: {check['detail']}")
    incomplete += [f"{name} was not made" for name in wanted if name not in by_name]
    if len(by_name) < SMOKE_CHECKS_MIN:
        incomplete.append(f"{len(by_name)} checks, at least {SMOKE_CHECKS_MIN} are known")
    if status != 0 and not failed:
        failed.append(f"qim smoke ended with status {status}")
    return Judged(
        failed=tuple(failed),
        incomplete=tuple(incomplete),
        figures={"checks": len(by_name), "passed": report["passed"]},
    )


def judge_prewarm(status: int, report: Mapping[str, Any] | None, keys: int) -> Judged:
    """The table must have grown before the load, else its doublings fall into it."""
    if status != 0 or report is None:
        return Judged(incomplete=(f"qim prewarm ended with status {status}",))
    if report["after"] < keys:
        return Judged(incomplete=(f"{report['after']} keys instead of {keys}",))
    return Judged(figures=dict(report))


def judge_load(report: Mapping[str, Any] | None, *, rate: float, seconds: float) -> Judged:
    """Of any load: nothing acked was lost, doubled or reordered; all of it was offered at the rate, and settled."""
    if report is None:
        return Judged(incomplete=("qim load left no report",))
    failed, incomplete = [], []
    if not report["holds"]:
        failed.append(f"what was acked did not arrive as promised: {report['verdict']}")
    if not report["complete"]:
        incomplete += [str(why) for why in report["incomplete_because"]] or ["it says incomplete"]
    if report["seconds"] < seconds:
        incomplete.append(f"{report['seconds']:.0f} s were measured, {seconds:.0f} asked")
    if not report["offered_per_s"] >= HELD_SHARE * rate:
        failed.append(f"offered_per_s was {report['offered_per_s']:.1f}, the rate is {rate:g}")
    return Judged(failed=tuple(failed), incomplete=tuple(incomplete), figures=load_figures(report))


def load_figures(report: Mapping[str, Any]) -> dict[str, Any]:
    """What the run's report keeps of a load's."""
    names = ("offered_per_s", "acked_per_s", "delivered_per_s", "seconds", "verdict")
    kept = {name: report[name] for name in names}
    return kept | {name: report[name] for name in ("latency_ms", "errors", "counts")}


def judge_steady(report: Mapping[str, Any] | None, *, rate: float, seconds: float) -> Judged:
    """And the rate held, not only caught up with in the end; and the service level objectives."""
    judged = judge_load(report, rate=rate, seconds=seconds)
    if report is None:
        return judged
    failed, incomplete = list(judged.failed), list(judged.incomplete)
    if not report["acked_per_s"] >= HELD_SHARE * rate:
        failed.append(f"acked_per_s was {report['acked_per_s']:.1f}, the rate is {rate:g}")
    for stage, most in (("ack", ACK_P99_MS), ("end_to_end", END_TO_END_P99_MS)):
        row = report["latency_ms"].get(stage) or {"count": 0}
        if not row["count"] or not math.isfinite(row["p99"]):
            incomplete.append(f"no latency of {stage} was measured")
        elif row["p99"] > most:
            failed.append(f"{stage} P99 {row['p99']:.1f} ms, promised are {most:g} ms")
    return Judged(failed=tuple(failed), incomplete=tuple(incomplete), figures=judged.figures)


def judge_heavy(
    report: Mapping[str, Any] | None, *, rate: float, seconds: float, storms: int
) -> Judged:
    """No latency is judged here; but all hardship that was planned must have happened."""
    judged = judge_load(report, rate=rate, seconds=seconds)
    if report is None:
        return judged
    incomplete, counts = list(judged.incomplete), report["counts"]
    if counts.get("storms", 0) < storms:
        incomplete.append(f"{counts.get('storms', 0)} of {storms} storms")
    if counts.get("connections_lost", 0) < storms * GROUP_MEMBERS:
        incomplete.append(f"only {counts.get('connections_lost', 0)} streams were cut")
    if not counts.get("readers_held", 0):
        incomplete.append("no reader was slow")
    verdict = report["verdict"]
    if verdict["expected"] < 2 * verdict["acked"] + GROUP_MEMBERS - 2:
        incomplete.append(f"no message to {GROUP_MEMBERS} members was acked")
    return Judged(failed=judged.failed, incomplete=tuple(incomplete), figures=judged.figures)


def judge_devices(told: Mapping[str, Any] | None) -> Judged:
    """The SDK's own devices beside the load: only they can see a cursor that a push moved."""
    if told is None:
        return Judged(incomplete=("no device of the SDK was there",))
    failed = [f"a device's own check fired: {one}" for one in told["violations"]]
    failed += [f"{told[kind]} {kind} on a device" for kind in ("lost", "doubled") if told[kind]]
    incomplete = []
    if not told["acked"] or not told["delivered"]:
        incomplete.append("the devices of the SDK sent or got nothing")
    if told["unsettled"]:
        incomplete.append(f"{told['unsettled']} sends of devices were not acked")
    return Judged(failed=tuple(failed), incomplete=tuple(incomplete), figures={"devices": told})


def judge_processes(told: Mapping[str, Mapping[str, Any] | None], invariants: int) -> Judged:
    """``told``: of each process that was started what it says now; None: it did not answer.

    Of one: alive, restarted, pages (path → ok), invariants (name → value), violations (check → count), stale.
    """
    failed, incomplete = [], []
    if not told:
        incomplete.append("no process was asked")
    for name, one in told.items():
        if one is None:
            incomplete.append(f"{name} could not be asked")
            continue
        if not one["alive"] or one["restarted"]:
            failed.append(f"{name} did not live through it")
        failed += [f"{name}{path} is not green" for path, ok in one["pages"].items() if not ok]
        if len(one["pages"]) < 3:
            incomplete.append(f"{name} showed {sorted(one['pages'])} only")
        for kind in ("invariants", "violations"):
            failed += [f"{name}: {k} is {v:g}" for k, v in one[kind].items() if v != 0]
        if len(one["invariants"]) < invariants:
            incomplete.append(f"{name} tells {len(one['invariants'])} of {invariants} invariants")
        if one["stale"]:
            incomplete.append(f"{name} tells old samples: its event loop did not answer")
    figures = {"processes": len(told), "answered": sum(one is not None for one in told.values())}
    return Judged(failed=tuple(failed), incomplete=tuple(incomplete), figures=figures)


def judge_audit(report: Mapping[str, Any] | None, *, partitions: int, acked: int) -> Judged:
    """CLEAN is not enough: it must have covered every partition, and at least as many records as were acked to us."""
    if report is None:
        return Judged(incomplete=("the auditor did not answer",))
    failed, incomplete = [], []
    verdict, orphans = report["verdict"], report["orphans_total"]
    if verdict == "ORPHANS" or orphans or report["orphans"]:
        failed.append(f"{max(orphans, len(report['orphans']))} orphans: {report['orphans'][:3]}")
    elif verdict != "CLEAN":
        incomplete.append(f"the audit says {verdict}")
    incomplete += [f"not judged: {reason}" for reason in report["incomplete"]]
    if report["in_flight"]:
        incomplete.append(f"{len(report['in_flight'])} messages in flight: neither covered nor not")
    covered = {one["partition"] for one in report["covered"]}
    missing = sorted(set(range(partitions)) - covered)
    if missing:
        incomplete.append(f"outbox partitions {missing} were not covered")
    records = sum(one["records"] for one in report["covered"])
    if records < acked:
        incomplete.append(f"{records} records covered, {acked} messages were acked")
    if report["dispatches"] < acked:
        incomplete.append(f"{report['dispatches']} dispatches judged, {acked} messages were acked")
    return Judged(
        failed=tuple(failed),
        incomplete=tuple(incomplete),
        figures={
            "verdict": verdict,
            "partitions": len(covered),
            "records": records,
            "dispatches": report["dispatches"],
            "acked": acked,
        },
    )


def judge_stop(statuses: Mapping[str, int | None], said: Sequence[str], left: int) -> Judged:
    """``statuses`` by process after SIGTERM; ``said``: what logs tell of a death; ``left``: children still there."""
    failed = [f"{name} ended with {status}" for name, status in statuses.items() if status != 0]
    failed += said
    incomplete = [] if statuses else ["no process was stopped"]
    if left:
        failed.append(f"{left} processes of this run are still there")
    return Judged(
        failed=tuple(failed), incomplete=tuple(incomplete), figures={"stopped": len(statuses)}
    )


def together(*judged: Judged) -> Judged:
    """One step that looked at several things."""
    figures: dict[str, Any] = {}
    for one in judged:
        figures |= one.figures
    return Judged(
        failed=tuple(why for one in judged for why in one.failed),
        incomplete=tuple(why for one in judged for why in one.incomplete),
        figures=figures,
    )
