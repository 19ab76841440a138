"""Many seeds: what each worker runs, and what all of them say together (the command line owns the processes).

Failures are grouped by identity, (check, role), never by text. The campaign's digest is made of the seeds' digests in
the order of seeds, so that it is the same for any number of workers.
"""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct
from xxhash import xxh3_128

from qim.sim.report import Report, repro


class Outcome(Struct, frozen=True, kw_only=True):
    """What one seed leaves behind."""

    seed: int
    digest: str
    violations: tuple[tuple[str, str, str], ...]
    """(check, role, detail), each identity once."""
    census: dict[str, int]
    events: int
    sim_ms: int
    cpu_s: float


class Campaign(Struct, frozen=True, kw_only=True):
    """All seeds of a profile."""

    profile: str
    outcomes: tuple[Outcome, ...]

    @property
    def clean(self) -> bool:
        """No violation anywhere."""
        return not any(outcome.violations for outcome in self.outcomes)

    def census(self) -> dict[str, int]:
        """The sum of all census counts."""
        return merged(outcome.census for outcome in self.outcomes)

    def digest(self) -> str:
        """One digest over all seeds."""
        state = xxh3_128()
        for outcome in sorted(self.outcomes, key=lambda outcome: outcome.seed):
            state.update(f"{outcome.seed}:{outcome.digest};".encode())
        return state.hexdigest()

    def groups(self) -> list[tuple[str, str, list[int], str]]:
        """(check, role, seeds, the first detail) of each identity, most frequent first."""
        found: dict[tuple[str, str], tuple[list[int], str]] = {}
        for outcome in self.outcomes:
            for check, role, detail in outcome.violations:
                found.setdefault((check, role), ([], detail))[0].append(outcome.seed)
        rows = [(check, role, seeds, text) for (check, role), (seeds, text) in found.items()]
        return sorted(rows, key=lambda row: (-len(row[2]), row[0], row[1]))

    def as_json(self) -> dict[str, Any]:
        """The object that ``--json`` prints (docs/simulator.md)."""
        return {
            "profile": self.profile,
            "seeds": len(self.outcomes),
            "violations": [
                {
                    "seed": outcome.seed,
                    "check": check,
                    "role": role,
                    "detail": detail,
                    "repro": repro(outcome.seed, self.profile),
                }
                for outcome in self.outcomes
                for check, role, detail in outcome.violations
            ],
            "events": sum(outcome.events for outcome in self.outcomes),
            "cpu_s": round(sum(outcome.cpu_s for outcome in self.outcomes), 3),
            "sim_s": sum(outcome.sim_ms for outcome in self.outcomes) // 1000,
            "digest": self.digest(),
            "census": self.census(),
        }


def outcome_of(report: Report, cpu_s: float) -> Outcome:
    """Shorten a report: each identity with its first detail."""
    first: dict[tuple[str, str], str] = {}
    for finding in report.violations:
        text = finding.detail
        if finding.message_id:
            text += f" [message {finding.message_id.hex()}]"
        first.setdefault((finding.check, finding.role), text)
    return Outcome(
        seed=report.seed,
        digest=report.digest,
        violations=tuple((check, role, text) for (check, role), text in first.items()),
        census=report.census,
        events=report.events,
        sim_ms=report.sim_ms,
        cpu_s=cpu_s,
    )


def merged(parts: Iterable[dict[str, int]]) -> dict[str, int]:
    """Sums by name, sorted."""
    total: dict[str, int] = {}
    for part in parts:
        for name, count in part.items():
            total[name] = total.get(name, 0) + count
    return dict(sorted(total.items()))
