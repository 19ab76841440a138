"""A message store that comes back empty over a trimmed outbox is restored from the archive (pipeline.md §1.8)."""

import pytest
from msgspec.structs import replace

from qim.sim.faults import OutboxTrimmed
from qim.sim.generate import generate
from qim.sim.run import run
from qim.sim.scene import Kit


@pytest.mark.slow
def test_worlds_go_on_over_what_the_archive_kept() -> None:
    """Twice in a world, sends going on before, between and after; nobody sees a difference."""
    kit = Kit()
    restored = 0
    for seed in range(12):
        plan = generate(seed, "calm", messages=25)
        faults = (OutboxTrimmed(at_ms=2_500), OutboxTrimmed(at_ms=4_500))
        report = run(replace(plan, faults=faults, heal_ms=6_000, end_ms=100_000), kit)
        assert report.clean, (seed, report.violations[:3])
        assert report.census["log.outbox_trimmed"]
        restored += report.census.get("said.conversations_restored", 0)
    assert restored > 12
