"""Storms over the logs."""

from typing import Final

from qim.core.ports.log import Topic
from qim.sim import faults as f
from qim.sim.weather import PERCENT, Maker, Weather


def log_rates(w: Weather, i: int) -> f.Fault:
    which = w.draw.number(0, 6, "log_rates", i)
    return f.LogRates(
        **w.window("log_rates", i, 5_000),
        reply_lost=w.rate("log_reply", i) if which == 0 else 0,
        not_appended=w.rate("not_appended", i) if which == 1 else 0,
        late=w.rate("log_late", i) if which in (2, 6) else 0,
        doubled=w.rate("doubled", i, most_percent=60) if which == 3 else 0,
        short=w.rate("short", i, most_percent=90) if which == 4 else 0,
        fetch_failed=w.rate("fetch_failed", i, most_percent=60) if which == 5 else 0,
        refused=w.rate("log_refused", i, most_percent=5) if which == 6 else 0,
        extra_ms=0,
    )


def late_appends(w: Weather, i: int) -> f.Fault:
    """Appends nobody can tell the fate of, often: without them the effective filter is never tried."""
    window = w.window("late_appends", i, 8_000)
    return f.LogRates(**window, late=20 * PERCENT + w.rate("late_appends", i, most_percent=50))


def _topic(w: Weather, i: int, kind: str) -> dict[str, object]:
    topic = w.draw.pick((Topic.OUTBOX, Topic.DISPATCH, Topic.USER_STATE), "topic", kind, i)
    count = w.topology.outbox_partitions if topic is Topic.OUTBOX else w.topology.shards
    return {"topic": topic, "partition": w.draw.number(0, count - 1, "partition", kind, i)}


def leader_change(w: Weather, i: int) -> f.Fault:
    place = _topic(w, i, "leader")
    return f.LeaderChange(**w.window("leader", i, 4_000), **place)  # type: ignore[arg-type]


def log_stall(w: Weather, i: int) -> f.Fault:
    place = _topic(w, i, "stall")
    return f.LogStall(**w.window("log_stall", i, 8_000), **place)  # type: ignore[arg-type]


LOG: Final[tuple[Maker, ...]] = (log_rates, leader_change, log_stall, late_appends)
