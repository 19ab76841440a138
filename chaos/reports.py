"""The audit's JSON back as the report it was made of (qim/services/audit_report.py)."""

from typing import Any

from qim.core.audit import AuditReport
from qim.core.audit.vocabulary import CoveredRange, Orphan, OrphanKind, Verdict


def report_of(told: dict[str, Any]) -> AuditReport:
    """What a server's audit answered."""
    return AuditReport(
        verdict=Verdict(told["verdict"]),
        covered=tuple(
            CoveredRange(
                partition=one["partition"],
                low=int(one["low"]),
                high=int(one["high"]),
                records=one["records"],
            )
            for one in told["covered"]
        ),
        orphans=tuple(
            Orphan(
                kind=OrphanKind(one["kind"]),
                partition=one["partition"],
                offset=int(one["offset"]),
                shard=one["shard"],
                message_id=bytes.fromhex(one["message_id"]),
                detail=one["detail"],
            )
            for one in told["orphans"]
        ),
        orphans_total=told["orphans_total"],
        in_flight=tuple(bytes.fromhex(one) for one in told["in_flight"]),
        incomplete=tuple(told["incomplete"]),
        records=told["records"],
        dispatches=told["dispatches"],
    )
