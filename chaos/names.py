"""Whom a plan's faults name, looked up before anything is started: a run must not end on a fault ten minutes in.

A plan drawn for a world may name a fourth writer, an archiver of a hot cluster or a third store that the cluster here doesn't have.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from qim.sim.faults import (
    Crash,
    Fault,
    Garbage,
    LeaderChange,
    Partition,
    Pause,
    Restart,
    ScaleOut,
    ScriptsForgotten,
    StoreRestart,
    StoreStall,
    UserActs,
    WallStep,
    tag_of,
)

UNKNOWN_NODE: Final = "UNKNOWN_NODE"
"""The code in front of the message: scripts look for it, and the exit status is 2."""
APART: Final = ("store", "registry", "*")
"""What a process can be parted from: it has a proxy to each."""
BROKERS_TO_CHANGE: Final = 3


def unknown_names(
    faults: Iterable[Fault],
    *,
    counts: Mapping[str, int],
    devices: Iterable[str],
    stores: int,
    brokers: int,
) -> list[str]:
    """Each name, role or number that no part of the cluster has, with its fault. A scale_out adds names for later faults.

    ``counts``: processes by role; ``devices``: names; ``stores`` and ``brokers``: how many.
    """
    grown = dict(counts)
    nodes = {f"{role}-{number}" for role, count in counts.items() for number in _upto(count)}
    users = set(devices)
    told: list[str] = []
    for fault in sorted(faults, key=lambda one: one.at_ms):
        at = f"{tag_of(type(fault))} at {fault.at_ms} ms"
        told += [f"{at}: {what}" for what in _wrong(fault, nodes, grown, users, stores, brokers)]
        if isinstance(fault, ScaleOut) and fault.role in grown:
            grown[fault.role] += 1
            nodes.add(f"{fault.role}-{grown[fault.role]}")
    return told


def _wrong(
    fault: Fault,
    nodes: set[str],
    roles: Mapping[str, int],
    users: set[str],
    stores: int,
    brokers: int,
) -> Iterator[str]:
    match fault:
        case Crash(node=node) | Pause(node=node) | Restart(node=node) | WallStep(node=node):
            yield from _none(node, nodes, "process")
        case Partition(source=source, target=target):
            yield from _none(source, nodes, "process")
            yield from _none(target, APART, "thing to be parted from")
        case Garbage(gateway=gateway):
            gateways = {name for name in nodes if name.startswith("gateway-")}
            yield from _none(gateway, gateways, "gateway")
        case ScaleOut(role=role):
            yield from _none(role, roles, "role")
        case UserActs(node=node):
            yield from _none(node, users, "device")
        case StoreRestart(store=store) | StoreStall(store=store) | ScriptsForgotten(store=store):
            yield from _none(store, range(stores), "store")
        case LeaderChange() if brokers < BROKERS_TO_CHANGE:
            yield f"{brokers} broker: nobody else can lead; --brokers {BROKERS_TO_CHANGE}"
        case _:
            return


def _none(name: object, known: Iterable[object], what: str) -> Iterator[str]:
    there = list(map(str, known))
    if str(name) not in there:
        yield f"no {what} {str(name)!r}; there are {', '.join(sorted(there))}"


def _upto(count: int) -> range:
    return range(1, count + 1)
