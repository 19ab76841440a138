"""The audit is itself judged: CLEAN implies that the oracle finds nothing missing, and an oracle that finds nothing
missing implies CLEAN (simulator.md, "Checkers")."""

from typing import TYPE_CHECKING

from qim.core.audit import Verdict
from qim.core.ports.log import Topic
from qim.sim.checkers.liveness import owed_by_services, unsettled
from qim.sim.history import History

if TYPE_CHECKING:
    from qim.sim.scene import Scene


class AuditJudged:
    """Compares the world's audit report with what the logs and the devices say."""

    def attach(self, history: History) -> None:
        self.history = history

    def finish(self, scene: "Scene") -> None:
        report, found = scene.audit_report, self.history.found
        if report is None:
            found("audit_unfinished", "auditor", "no report")
            return
        whole = not unsettled(scene)
        if whole and report.verdict is not Verdict.CLEAN:
            parts = [f"{orphan.kind} {orphan.detail}" for orphan in report.orphans[:3]]
            text = f"{report.verdict}: {'; '.join([*parts, *report.incomplete[:3]])}"
            found("audit_not_clean", "auditor", text)
        if report.verdict is Verdict.CLEAN:
            for check, _, text, message_id in owed_by_services(scene)[:3]:
                found("audit_blind", "auditor", f"CLEAN, but {check}: {text}", message_id)
            covered = sum(part.records for part in report.covered)
            starts = {
                number: scene.log.partitions[Topic.OUTBOX, number].start
                for number in range(scene.plan.topology.outbox_partitions)
            }
            effective = sum(
                one.offset >= starts[number]
                for number, standing in scene.history.oracle.in_order.items()
                for one in standing
            )
            # What is in flight is listed beside: it may stand in the outbox already, its mark still on the way.
            if whole and covered != effective:
                text = f"{covered} covered of {effective} effective records"
                found("audit_ledger", "auditor", text)
