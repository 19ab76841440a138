"""What a chaos run's report takes for holding, and what not."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chaos.plan import workload
from chaos.run import ChaosRun, RunReport
from chaos.scene import Judged
from qim.core.audit import AuditReport, Verdict
from qim.sim.history import Finding
from tests.chaos.test_run_on_up import SMALL

FOUND = Finding(check="commit_once", role="writer", at=1, detail="twice")


def reported(
    folder: Path, verdict: Verdict = Verdict.CLEAN, *differences: str, **changes: Any
) -> RunReport:
    """Of a run that was judged as told."""
    told: dict[str, Any] = {"findings": [], "owed": [], "messages": 9, "effective": 9}
    judged = Judged(**{**told, "deliveries": 18, "refused": {}, **changes})
    audit = cast(AuditReport, SimpleNamespace(verdict=verdict, incomplete=()))

    async def main() -> RunReport:
        deployment: Any = SimpleNamespace(gateways=("127.0.0.1:1",), secret=b"s" * 32)
        plan = workload(1, minutes=0.1, sends_per_second=1, topology=SMALL)
        run = ChaosRun(plan, deployment, cast(Any, None), folder, say=print)
        return run._report(judged, audit, differences)

    return asyncio.run(main())


def test_a_run_that_is_whole_holds(tmp_path: Path) -> None:
    assert reported(tmp_path).holds


@pytest.mark.parametrize("changes", [{"findings": [FOUND]}, {"owed": ["x"]}, {"effective": 0}])
def test_whatever_was_found_or_is_owed_breaks_it(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert not reported(tmp_path, **changes).holds


def test_a_run_in_which_nothing_was_committed_says_so(tmp_path: Path) -> None:
    """All sends refused, nothing owed, the audit of nothing CLEAN: no check has anything to say."""
    report = reported(tmp_path, effective=0)
    assert report.violations == (("nothing_committed", "run", "of 9 messages none"),)


def test_an_audit_or_a_disk_breaks_it(tmp_path: Path) -> None:
    assert not reported(tmp_path, Verdict.INCOMPLETE).holds
    assert not reported(tmp_path, Verdict.CLEAN, "a disk differs").holds
