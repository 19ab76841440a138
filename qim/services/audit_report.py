"""An AuditReport as JSON and as text for people (pipeline.md §8). Ids are lowercase hex; offsets are strings, being u64."""

from collections.abc import Iterator, Mapping
from typing import Any

from qim.core.audit.vocabulary import AuditReport, CoveredRange, Orphan, Verdict

ORPHANS_SHOWN_MAX = 20
MEANING = {
    Verdict.CLEAN: "everything in the covered range is where it must be, once",
    Verdict.ORPHANS: "keep the data directory and read the kinds below; an orphan stays until it is resolved",
    Verdict.INCOMPLETE: "no orphan found, but not everything could be judged; let it catch up and run again",
}


def report_as_json(report: AuditReport) -> dict[str, object]:
    """verdict, covered, orphans, orphans_total, in_flight, incomplete, records, dispatches."""
    return {
        "verdict": str(report.verdict),
        "covered": [_covered(one) for one in report.covered],
        "orphans": [_orphan(one) for one in report.orphans],
        "orphans_total": report.orphans_total,
        "in_flight": [message_id.hex() for message_id in report.in_flight],
        "incomplete": list(report.incomplete),
        "records": report.records,
        "dispatches": report.dispatches,
    }


def report_as_text(report: Mapping[str, Any]) -> Iterator[str]:
    """Lines for people, from what ``report_as_json`` gave (a live server sends that)."""
    verdict = Verdict(report["verdict"])
    yield f"{verdict}: {MEANING[verdict]}"
    partitions = len(report["covered"])
    yield f"{report['records']} records in {partitions} outbox partitions, {report['dispatches']} dispatches judged"
    for one in report["orphans"][:ORPHANS_SHOWN_MAX]:
        where = f"partition {one['partition']} offset {one['offset']} shard {one['shard']}"
        yield f"  {one['kind']}: message {one['message_id']}, {where}: {one['detail']}"
    unseen = report["orphans_total"] - min(len(report["orphans"]), ORPHANS_SHOWN_MAX)
    if unseen > 0:
        yield f"  and {unseen} more (--json shows up to {len(report['orphans'])})"
    if report["in_flight"]:
        yield f"{len(report['in_flight'])} messages in flight: neither covered nor orphans"
    for reason in report["incomplete"]:
        yield f"  not judged: {reason}"


def _covered(one: CoveredRange) -> dict[str, object]:
    return {
        "partition": one.partition,
        "low": str(one.low),
        "high": str(one.high),
        "records": one.records,
    }


def _orphan(one: Orphan) -> dict[str, object]:
    return {
        "kind": str(one.kind),
        "partition": one.partition,
        "offset": str(one.offset),
        "shard": one.shard,
        "message_id": one.message_id.hex(),
        "detail": one.detail,
    }
