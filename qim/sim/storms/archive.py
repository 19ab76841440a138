"""Storms over the archive, and over a store that must be restored from it."""

from typing import Final

from qim.sim import faults as f
from qim.sim.weather import Maker, Weather

STALE_MS: Final = 30_000
"""Longer than any process is stopped or any request is late."""


def archive_rates(w: Weather, i: int) -> f.Fault:
    which = w.draw.number(0, 5, "archive_rates", i)
    return f.ArchiveRates(
        **w.window("archive_rates", i, 6_000),
        reply_lost=w.rate("archive_reply", i, most_percent=60) if which == 0 else 0,
        late=w.rate("archive_late", i, most_percent=60) if which == 1 else 0,
        partial=w.rate("archive_partial", i, most_percent=80) if which == 2 else 0,
        unreachable=w.rate("archive_unreachable", i, most_percent=60) if which == 3 else 0,
        stale=w.rate("archive_stale", i, most_percent=80) if which == 4 else 0,
        extra_ms=w.draw.pick((20, 300, 1_800), "archive_extra", i) if which == 5 else 0,
    )


def archive_cut(w: Weather, i: int) -> f.Fault:
    role = w.draw.pick(("archiver", "archiver", "writer", "mailbox"), "archive_cut_role", i)
    names = [name for name in w.services if name.startswith(role)]
    return f.Partition(
        **w.window("archive_cut", i, 8_000),
        source=w.draw.pick(names, "archive_cut", i),
        target="archive",
        two_way=w.draw.chance(50, "archive_cut_ways", i),
    )


def outbox_trimmed(w: Weather, i: int) -> f.Fault:
    """After everything that a stopped process may still hold: retention outlives the dedupe window (contract.md)."""
    at = w.when("outbox_trimmed", i) + STALE_MS
    return f.OutboxTrimmed(at_ms=at, older_ms=STALE_MS - 2_000)


ARCHIVE: Final[tuple[Maker, ...]] = (archive_rates, archive_cut, outbox_trimmed)
