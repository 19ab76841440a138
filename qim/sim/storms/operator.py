"""Storms that a person ends: logs that lose what was acknowledged, and the act that makes good for it."""

from typing import Final

from qim.sim import faults as f
from qim.sim.weather import Maker, Weather


def dispatch_lost(w: Weather, i: int) -> f.Fault:
    stops = w.draw.chance(20, "bump_stops", i)
    return f.DispatchLost(
        at_ms=w.when("dispatch_lost", i) + 500,
        shard=w.draw.number(0, w.topology.shards - 1, "lost_shard", i),
        read=w.draw.pick((1, 1, 2, 5), "lost_read", i),
        how=w.draw.pick(("cut", "cut", "refilled", "recreated"), "lost_how", i),
        notice_ms=w.draw.pick((0, 100, 500, 3_000, 9_000), "lost_noticed", i),
        stops_after=w.draw.number(1, 60, "bump_stops_after", i) if stops else 0,
    )


def outbox_lost(w: Weather, i: int) -> f.Fault:
    stops = w.draw.chance(30, "repair_stops", i)
    return f.OutboxLost(
        at_ms=w.when("outbox_lost", i) + 500,
        partition=w.draw.number(0, w.topology.outbox_partitions - 1, "lost_outbox", i),
        records=w.draw.pick((1, 1, 2, 3, 5, 9, 20), "lost_records", i),
        how=w.draw.pick(("cut", "cut", "cut", "refilled", "recreated"), "outbox_lost_how", i),
        notice_ms=w.draw.pick((0, 100, 500, 3_000, 9_000), "outbox_lost_noticed", i),
        stops_after=w.draw.number(1, 90, "repair_stops_after", i) if stops else 0,
    )


OPERATOR: Final[dict[str, tuple[Maker, ...]]] = {
    "mended": (dispatch_lost,),
    "repaired": (outbox_lost,),
}
"""By profile."""
