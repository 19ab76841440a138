"""Storms over the hot store."""

from typing import Final

from qim.sim import faults as f
from qim.sim.weather import Maker, Weather


def _store_number(w: Weather, i: int, kind: str) -> int:
    return w.draw.number(0, w.topology.stores - 1, "store", kind, i)


def store_rates(w: Weather, i: int) -> f.Fault:
    which = w.draw.number(0, 4, "store_rates", i)
    return f.StoreRates(
        **w.window("store_rates", i, 5_000),
        store=_store_number(w, i, "rates"),
        reply_lost=w.rate("reply_lost", i) if which == 0 else 0,
        late=w.rate("late", i) if which == 1 else 0,
        unreachable=w.rate("unreachable_store", i) if which == 2 else 0,
        refused=w.rate("refused", i) if which == 3 else 0,
        extra_ms=w.draw.pick((20, 300, 1_800), "store_extra", i) if which == 4 else 0,
    )


def store_stall(w: Weather, i: int) -> f.Fault:
    return f.StoreStall(**w.window("store_stall", i, 6_000), store=_store_number(w, i, "stall"))


def store_restart(w: Weather, i: int) -> f.Fault:
    return f.StoreRestart(
        at_ms=w.when("store_restart", i),
        store=_store_number(w, i, "restart"),
        lost_calls=w.draw.pick((0, 1, 3, 10, 60), "lost_calls", i),
        down_ms=w.draw.pick((5, 50, 1_500), "store_down", i),
    )


def store_emptied(w: Weather, i: int) -> f.Fault:
    return f.StoreEmptied(
        **w.window("store_emptied", i, 4_000),
        store=_store_number(w, i, "emptied"),
        flush=w.draw.chance(50, "flush", i),
    )


def scripts(w: Weather, i: int) -> f.Fault:
    return f.ScriptsForgotten(at_ms=w.when("scripts", i), store=_store_number(w, i, "scripts"))


STORE: Final[tuple[Maker, ...]] = (
    store_rates,
    store_stall,
    store_restart,
    store_emptied,
    scripts,
)
