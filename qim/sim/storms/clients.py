"""Storms over devices and their streams, and over what their users do."""

from typing import Final

from qim.sim import faults as f
from qim.sim.weather import Maker, Weather


def sockets(w: Weather, i: int) -> f.Fault:
    reset = w.draw.chance(50, "sockets", i)
    return f.Sockets(
        **w.window("sockets", i, 8_000),
        reset=w.rate("reset", i, most_percent=15) if reset else 0,
        split=0 if reset else w.rate("split", i, most_percent=90),
    )


def client_cut(w: Weather, i: int) -> f.Fault:
    gateway = f"gateway-{w.draw.number(1, w.topology.gateways, 'cut_gateway', i)}"
    client = w.draw.pick(w.clients, "cut_client", i)
    return f.Partition(
        **w.window("client_cut", i, 20_000),
        source=client,
        target=gateway,
        two_way=w.draw.chance(50, "client_cut_ways", i),
    )


def client_crash(w: Weather, i: int) -> f.Fault:
    return f.Crash(
        at_ms=w.when("client_crash", i),
        node=w.draw.pick(w.clients, "client_crash", i),
        salt=w.draw.raw("client_salt", i),
        down_ms=w.draw.pick((1, 300, 4_000), "client_down", i),
    )


def client_pause(w: Weather, i: int) -> f.Fault:
    at = w.when("client_pause", i)
    return f.Pause(
        at_ms=at,
        until_ms=at + w.draw.pick((500, 6_000, 20_000), "client_pause_for", i),
        node=w.draw.pick(w.clients, "client_pause", i),
        salt=w.draw.raw("client_pause_salt", i),
    )


def cursor(w: Weather, i: int) -> f.Fault:
    return f.CursorDamaged(
        at_ms=w.when("cursor", i),
        node=w.draw.pick(w.clients, "cursor_node", i),
        how=w.draw.pick(("tampered", "ancient", "future"), "how", i),
    )


def twin(w: Weather, i: int) -> f.Fault:
    node = w.draw.pick(w.clients, "twin_node", i)
    return f.Twin(**w.window("twin", i, 6_000), node=node)


def garbage(w: Weather, i: int) -> f.Fault:
    return f.Garbage(
        at_ms=w.when("garbage", i),
        gateway=f"gateway-{w.draw.number(1, w.topology.gateways, 'garbage_at', i)}",
        kind=w.draw.number(0, 4, "garbage_kind", i),
        salt=w.draw.raw("garbage_salt", i) % 2**32,
    )


def user_acts(w: Weather, i: int) -> f.Fault:
    times = w.draw.number(2, 30, "acts", i)
    node = w.draw.pick(w.clients, "acts_node", i)
    return f.UserActs(at_ms=w.when("acts", i), node=node, times=times)


CLIENT: Final[tuple[Maker, ...]] = (
    sockets,
    client_cut,
    client_crash,
    client_pause,
    cursor,
    twin,
    garbage,
    user_acts,
)
