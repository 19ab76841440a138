"""Storms over the registry and over what is said between processes: leases that end, replies and messages that don't come."""

from typing import Final

from qim.core.ports.registry import Role
from qim.sim import faults as f
from qim.sim.weather import Maker, Weather


def expire(w: Weather, i: int) -> f.Fault:
    roles = (Role.WRITER, Role.FANOUT, Role.MAILBOX, Role.SESSION, Role.ARCHIVER)
    role = w.draw.pick(roles, "expire_role", i)
    of_users = role in (Role.MAILBOX, Role.SESSION)
    count = w.topology.shards if of_users else w.topology.outbox_partitions
    number = w.draw.number(0, count - 1, "expire_number", i)
    return f.LeaseExpires(at_ms=w.when("expire", i), role=role, number=number)


def set_back(w: Weather, i: int) -> f.Fault:
    roles = (Role.WRITER, Role.WRITER, Role.FANOUT, Role.MAILBOX, Role.SESSION, Role.ARCHIVER)
    role = w.draw.pick(roles, "set_back_role", i)
    of_users = role in (Role.MAILBOX, Role.SESSION)
    count = w.topology.shards if of_users else w.topology.outbox_partitions
    return f.RegistrySetBack(
        at_ms=w.when("set_back", i),
        role=role,
        number=w.draw.number(0, count - 1, "set_back_number", i),
        epochs=w.draw.pick((1, 1, 1, 2, 5), "set_back_by", i),
    )


def registry_replies(w: Weather, i: int) -> f.Fault:
    window = w.window("registry", i, 8_000)
    return f.RegistryRepliesLost(**window, rate=w.rate("registry", i, most_percent=80))


def registry_lags(w: Weather, i: int) -> f.Fault:
    return f.RegistryLags(**w.window("lags", i, 8_000))


def registry_cut(w: Weather, i: int) -> f.Fault:
    two_way = w.draw.chance(50, "registry_cut_ways", i)
    return f.Partition(
        **w.window("registry_cut", i, 15_000),
        source=w.node("registry_cut", i),
        target="registry",
        two_way=two_way,
    )


def messages(w: Weather, i: int) -> f.Fault:
    which = w.draw.number(0, 3, "messages", i)
    window = w.window("messages", i, 8_000)
    return f.Messages(
        at_ms=window["at_ms"],
        until_ms=window["until_ms"],
        drop=w.rate("drop", i) if which == 0 else 0,
        repeat=w.rate("repeat", i) if which == 1 else 0,
        overtake=w.rate("overtake", i) if which == 2 else 0,
        extra_ms=w.draw.pick((30, 400, 2_500), "extra", i) if which == 3 else 0,
    )


def partition(w: Weather, i: int) -> f.Fault:
    source, target = w.node("partition_a", i), w.node("partition_b", i)
    if source == target:
        target = "log"
    two_way = w.draw.chance(50, "partition_ways", i)
    return f.Partition(
        **w.window("partition", i, 10_000), source=source, target=target, two_way=two_way
    )


def unreachable(w: Weather, i: int) -> f.Fault:
    """It renews its lease, and nobody who needs it can reach it."""
    return f.Partition(
        **w.window("unreachable", i, 8_000),
        source="*",
        target=w.node("unreachable", i),
        two_way=False,
    )


def store_cut(w: Weather, i: int) -> f.Fault:
    store = w.draw.pick(("store-1", f"store-{w.topology.stores}"), "store_cut", i)
    two_way = w.draw.chance(50, "store_cut_ways", i)
    return f.Partition(
        **w.window("store_cut", i, 6_000),
        source=w.node("store_cut", i),
        target=store,
        two_way=two_way,
    )


REGISTRY: Final[tuple[Maker, ...]] = (expire, registry_replies, registry_lags, registry_cut)
NETWORK: Final[tuple[Maker, ...]] = (messages, partition, unreachable, store_cut)
