"""The audit's report as JSON and as lines for people."""

import json

import pytest

from qim.core.audit import AuditReport, Orphan, OrphanKind, Verdict
from qim.core.audit.vocabulary import CoveredRange
from qim.services.audit_report import ORPHANS_SHOWN_MAX, report_as_json, report_as_text

BIG = 2**63 + 1


def report(
    orphans: int = 0, *, total: int | None = None, incomplete: tuple[str, ...] = ()
) -> AuditReport:
    found = tuple(
        Orphan(
            kind=OrphanKind.NOT_MATERIALISED,
            partition=1,
            offset=BIG + number,
            shard=2,
            message_id=bytes(15) + b"\xab",
            detail=f"detail {number}",
        )
        for number in range(orphans)
    )
    verdict = Verdict.ORPHANS if orphans else Verdict.INCOMPLETE if incomplete else Verdict.CLEAN
    return AuditReport(
        verdict=verdict,
        covered=(CoveredRange(partition=0, low=3, high=BIG, records=7),),
        orphans=found,
        orphans_total=orphans if total is None else total,
        in_flight=(b"\x01" * 16,),
        incomplete=incomplete,
        records=7,
        dispatches=9,
    )


def test_json_survives_a_reader_with_doubles() -> None:
    told = json.loads(json.dumps(report_as_json(report(1))))
    assert told == {
        "verdict": "ORPHANS",
        "covered": [{"partition": 0, "low": "3", "high": str(BIG), "records": 7}],
        "orphans": [
            {
                "kind": "not_materialised",
                "partition": 1,
                "offset": str(BIG),
                "shard": 2,
                "message_id": "00" * 15 + "ab",
                "detail": "detail 0",
            }
        ],
        "orphans_total": 1,
        "in_flight": ["01" * 16],
        "incomplete": [],
        "records": 7,
        "dispatches": 9,
    }


@pytest.mark.parametrize("made", [report(), report(incomplete=("outbox 0: why",)), report(2)])
def test_people_read_the_verdict_first_and_what_it_means(made: AuditReport) -> None:
    lines = list(report_as_text(report_as_json(made)))
    assert lines[0].startswith(f"{made.verdict}: ")
    assert "7 records in 1 outbox partitions, 9 dispatches judged" in lines
    assert "1 messages in flight: neither covered nor orphans" in lines
    for reason in made.incomplete:
        assert f"  not judged: {reason}" in lines
    for orphan in made.orphans:
        assert any(orphan.detail in line and "not_materialised" in line for line in lines)


def test_many_orphans_are_counted_not_listed() -> None:
    shown = ORPHANS_SHOWN_MAX
    lines = list(report_as_text(report_as_json(report(shown + 5, total=5_000))))
    assert sum("not_materialised" in line for line in lines) == shown
    assert f"  and {5_000 - shown} more (--json shows up to {shown + 5})" in lines
