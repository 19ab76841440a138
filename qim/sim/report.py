"""What a run says: verdict, violations, digest, census, ledger, and what it cost."""

from msgspec import Struct

from qim.sim.history import Finding


class Report(Struct, frozen=True, kw_only=True):
    """One world's end. ``census``: how often each declared thing happened. Times: simulated ms, CPU seconds."""

    seed: int
    profile: str
    digest: str
    checkpoints: tuple[tuple[int, str], ...]
    violations: tuple[Finding, ...]
    census: dict[str, int]
    ledger: dict[str, int]
    events: int
    steps: int
    sim_ms: int
    cpu_s: float = 0.0

    @property
    def clean(self) -> bool:
        """No violation."""
        return not self.violations

    def identities(self) -> tuple[tuple[str, str], ...]:
        """(check, role) of all violations, sorted, each once: a failure's identity."""
        return tuple(sorted(dict.fromkeys((v.check, v.role) for v in self.violations)))


def repro(seed: int, profile: str) -> str:
    """The one line that reproduces a run."""
    return f"qim sim replay {seed} --profile {profile}"
