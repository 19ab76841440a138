"""Which faults a seed has, and when: each profile has its kinds, each seed its own subset of them."""

from typing import Final

from qim.sim import faults as f
from qim.sim.draw import Draw
from qim.sim.plan import DevicePlan, Topology
from qim.sim.storms.archive import ARCHIVE, archive_cut, archive_rates
from qim.sim.storms.clients import CLIENT
from qim.sim.storms.log import LOG, late_appends, log_rates
from qim.sim.storms.network import (
    NETWORK,
    REGISTRY,
    expire,
    messages,
    registry_cut,
    registry_replies,
    set_back,
    store_cut,
)
from qim.sim.storms.operator import OPERATOR
from qim.sim.storms.process import CLOCK, PROCESS, contest, crash, lost, pause
from qim.sim.storms.store import (
    STORE,
    scripts,
    store_emptied,
    store_rates,
    store_restart,
    store_stall,
)
from qim.sim.weather import Maker, Weather

Storm = tuple[tuple[f.Fault, ...], int]
SETTLE_MS: Final = 1_500

KINDS: Final[dict[str, tuple[Maker, ...]]] = {
    "calm": (),
    "swarm": (
        *(PROCESS + CLOCK + REGISTRY + NETWORK + STORE + LOG + ARCHIVE + CLIENT),
        set_back,
    ),
    "zombie": (
        pause,
        expire,
        registry_cut,
        registry_replies,
        log_rates,
        late_appends,
        store_rates,
        set_back,
    ),
    "store": (*STORE, crash, store_cut),
    "log": (*LOG, crash, expire),
    "archive": (*ARCHIVE, crash, store_restart, store_emptied, expire),
    "client": (*CLIENT, crash, messages),
}
KINDS["crowd"] = KINDS["swarm"]
KINDS["mended"] = (
    *(PROCESS + CLOCK + REGISTRY + NETWORK + LOG + CLIENT),
    *(store_rates, store_stall, scripts, archive_rates, archive_cut),
)
KINDS["repaired"] = KINDS["mended"]
"""What two things lose at once no act brings back: here stores keep what they have."""
SWARMS: Final = ("swarm", "crowd", *OPERATOR)
"""Each seed has its own subset of the kinds."""


def storm(draw: Draw, topology: Topology, devices: tuple[DevicePlan, ...], span_ms: int) -> Storm:
    """The faults, and when all of them are over."""
    kinds = KINDS[draw.profile]
    weather = Weather(draw, topology, devices, span_ms)
    made: list[f.Fault] = []
    share = draw.number(10, 60, "share")
    # Some worlds are hit by few kinds again and again in a short time: what needs three things at once needs that.
    dense = draw.profile == "swarm" and draw.chance(25, "dense")
    if dense:
        share = draw.number(8, 25, "dense_share")
        weather.span_ms = min(span_ms, 5_000)
    for number, maker in enumerate(kinds):
        # Drawn under this name since the first seed: another would give every seed other faults.
        name = f"_{maker.__name__}"
        if draw.profile in SWARMS and not draw.chance(share, "kind", name):
            continue
        made.extend(
            maker(weather, number * 100 + index)
            for index in range(
                draw.number(3, 10, "dense", name) if dense else draw.number(1, 3, "how_many", name)
            )
        )
    for maker in OPERATOR.get(draw.profile, ()):
        many = draw.number(1, 3, "acts", maker.__name__)
        made.extend(maker(weather, index) for index in range(many))
    if draw.profile in ("swarm", "zombie") and draw.chance(35, "contested"):
        for index in range(draw.number(2, 6, "contests")):
            made.extend(contest(weather, index))
    if draw.profile != "calm" and draw.chance(15, "loses"):
        made.extend(lost(weather))
    made.sort(key=lambda fault: fault.at_ms)
    over = max((max(fault.at_ms, fault.until_ms) for fault in made), default=0)
    return tuple(made), over + SETTLE_MS if made else 0
