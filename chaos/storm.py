"""Faults of a run, drawn from its seed: of the simulator's kinds, those that real processes, servers and wires can have.

One after another with a breath between them, and now and then two at once; each long enough to matter to a lease.
"""

from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct

from chaos.plan import WARM_UP_MS
from qim.core.ports.log import Topic
from qim.sim.draw import Draw
from qim.sim.faults import (
    FAULTS,
    Crash,
    Fault,
    FaultBase,
    Garbage,
    LeaderChange,
    LogStall,
    Messages,
    Partition,
    Pause,
    RegistryRepliesLost,
    Restart,
    ScaleOut,
    ScriptsForgotten,
    Sockets,
    StoreRestart,
    StoreStall,
    UserActs,
    WallStep,
    tag_of,
)

ROLES: Final = ("writer", "fanout", "mailbox", "session", "archiver", "gateway", "auditor")
BREATH_MS: Final = 3_000
WHOLE: Final = 65_536
WALL_STEP_MS_MAX: Final = 120_000


class Cast(Struct, frozen=True, kw_only=True):
    """What a deployment has: names of processes by role, of devices, counts, and how long a lease stands."""

    processes: dict[str, tuple[str, ...]]
    devices: tuple[str, ...]
    stores: int
    brokers: int
    lease_ttl_ms: int


def storm(seed: int, cast: Cast, *, until_ms: int, only: tuple[str, ...] = ()) -> tuple[Fault, ...]:
    """Faults from the warm-up to ``until_ms``. ``only``: kinds by tag; () takes all that the cast can have."""
    draw = Draw(seed, "chaos")
    makers = {tag: make for tag, make in MAKERS.items() if not only or tag in only}
    if cast.brokers < 3:
        # With one broker its absence is the log's; that is LogStall's business.
        makers.pop("leader_change", None)
    tags = tuple(makers)
    drawn: list[Fault] = []
    at = 2 * WARM_UP_MS
    while True:
        index = len(drawn)
        fault = makers[tags[(draw.raw("first") + index * 7) % len(tags)]](draw, cast, at, index)
        end = max(fault.until_ms, at + BREATH_MS)
        if end > until_ms:
            return tuple(drawn)
        drawn.append(fault)
        together = draw.chance(40, "together", index)
        at = at + BREATH_MS // 2 if together else end + BREATH_MS


def _process(draw: Draw, cast: Cast, index: int) -> str:
    roles = [role for role in ROLES if cast.processes.get(role)]
    return draw.pick(cast.processes[draw.pick(roles, "role", index)], "process", index)


def _crash(draw: Draw, cast: Cast, at: int, index: int) -> Fault:
    down = draw.number(0, 3_000, "down", index)
    return Crash(at_ms=at, node=_process(draw, cast, index), down_ms=down)


def _pause(draw: Draw, cast: Cast, at: int, index: int) -> Fault:
    """Beyond the lease: who wakes is a zombie."""
    until = at + cast.lease_ttl_ms + draw.number(1_000, 4_000, "pause", index)
    return Pause(at_ms=at, until_ms=until, node=_process(draw, cast, index))


def _restart(draw: Draw, cast: Cast, at: int, index: int) -> Fault:
    return Restart(at_ms=at, node=_process(draw, cast, index), down_ms=200)


def _scale_out(draw: Draw, cast: Cast, at: int, index: int) -> Fault:
    role = draw.pick(("writer", "mailbox", "fanout", "session"), "scale", index)
    return ScaleOut(at_ms=at, role=role)


def _store_restart(draw: Draw, cast: Cast, at: int, index: int) -> Fault:
    return StoreRestart(
        at_ms=at,
        store=draw.number(0, cast.stores - 1, "store", index),
        lost_calls=draw.number(1, 400, "tail", index),
        down_ms=draw.number(100, 2_000, "down", index),
    )


def _store_stall(draw: Draw, cast: Cast, at: int, index: int) -> Fault:
    store = draw.number(0, cast.stores - 1, "store", index)
    return StoreStall(
        at_ms=at, until_ms=at + draw.number(2_000, 8_000, "stall", index), store=store
    )


def _scripts(draw: Draw, cast: Cast, at: int, index: int) -> Fault:
    return ScriptsForgotten(at_ms=at, store=draw.number(0, cast.stores - 1, "store", index))


def _leader_change(draw: Draw, cast: Cast, at: int, index: int) -> Fault:
    """kill -9 of the broker that leads this partition; it comes back at the end."""
    until = at + draw.number(5_000, 12_000, "leader", index)
    return LeaderChange(at_ms=at, until_ms=until, topic=_topic(draw, index), partition=0)


def _log_stall(draw: Draw, cast: Cast, at: int, index: int) -> Fault:
    until = at + draw.number(2_000, 8_000, "stall", index)
    return LogStall(at_ms=at, until_ms=until, topic=_topic(draw, index), partition=0)


def _topic(draw: Draw, index: int) -> Topic:
    return draw.pick((Topic.OUTBOX, Topic.DISPATCH), "topic", index)


def _partition(draw: Draw, cast: Cast, at: int, index: int) -> Fault:
    return Partition(
        at_ms=at,
        until_ms=at + draw.number(3_000, cast.lease_ttl_ms + 4_000, "partition", index),
        source=_process(draw, cast, index),
        target=draw.pick(("store", "registry", "*"), "target", index),
        two_way=draw.chance(50, "two_way", index),
    )


def _registry(draw: Draw, cast: Cast, at: int, index: int) -> Fault:
    """etcd hears and nobody hears etcd, for longer than a lease."""
    until = at + cast.lease_ttl_ms + draw.number(0, 4_000, "registry", index)
    return RegistryRepliesLost(at_ms=at, until_ms=until, rate=WHOLE)


def _messages(draw: Draw, cast: Cast, at: int, index: int) -> Fault:
    until = at + draw.number(4_000, 10_000, "messages", index)
    delay = draw.number(20, 400, "delay", index)
    return Messages(at_ms=at, until_ms=until, extra_ms=delay)


def _sockets(draw: Draw, cast: Cast, at: int, index: int) -> Fault:
    until = at + draw.number(3_000, 8_000, "sockets", index)
    return Sockets(
        at_ms=at, until_ms=until, reset=draw.number(WHOLE // 8, WHOLE // 2, "reset", index)
    )


def _wall(draw: Draw, cast: Cast, at: int, index: int) -> Fault:
    by = draw.number(-WALL_STEP_MS_MAX, WALL_STEP_MS_MAX, "wall", index)
    return WallStep(at_ms=at, node=_process(draw, cast, index), by_ms=by)


def _garbage(draw: Draw, cast: Cast, at: int, index: int) -> Fault:
    node = draw.pick(cast.processes["gateway"], "garbage", index)
    return Garbage(at_ms=at, gateway=node, kind=draw.number(0, 4, "kind", index))


def _user_acts(draw: Draw, cast: Cast, at: int, index: int) -> Fault:
    return UserActs(at_ms=at, node=draw.pick(cast.devices, "user", index), times=50)


MAKERS: Final[dict[str, Callable[[Draw, Cast, int, int], Fault]]] = {
    "crash": _crash,
    "pause": _pause,
    "store_restart": _store_restart,
    "leader_change": _leader_change,
    "registry_replies": _registry,
    "restart": _restart,
    "partition": _partition,
    "store_stall": _store_stall,
    "log_stall": _log_stall,
    "sockets": _sockets,
    "messages": _messages,
    "wall_step": _wall,
    "scripts_forgotten": _scripts,
    "scale_out": _scale_out,
    "garbage": _garbage,
    "user_acts": _user_acts,
}
"""By tag; what of the simulator's kinds is not here can't be done to real parts from outside, see ``NOT_FOR_REAL``."""

NOT_FOR_REAL: Final[dict[str, str]] = {
    "slow": "a slow process is a delayed wire here (messages)",
    "lost": "a run ends whole, so that all of it can be judged",
    "usurper": "needs a process that opens a shard and dies between two requests",
    "freeze": "the monotonic clock of a real process can't be stopped alone; pause stops both",
    "lease_expires": "etcd lets a lease go only by its owner's silence: registry_replies and pause do that",
    "registry_lags": "one etcd has one truth",
    "registry_set_back": "a snapshot is put back while every process is stopped; simulated",
    "store_rates": "replies are lost by partition and sockets, never by rate",
    "store_emptied": "a store that comes back empty needs the archive; tests/integration has it",
    "archive_rates": "tests/adapters/archive has its failures",
    "outbox_trimmed": "retention takes hours",
    "log_rates": "appends end Unknown by leader_change and log_stall",
    "topic_recreated": "must be detected, and ends the run",
    "retention": "must be detected, and ends the run",
    "tail_lost": "must be detected, and ends the run",
    "outbox_lost": "every process of three roles stands until a person has mended it; tests/integration has it",
    "dispatch_lost": "every process of two roles stands until a person has mended it; tests/integration has it",
    "cursor_damaged": "is the device's own file; simulated",
    "twin": "a second device under the same name; simulated and in tests/integration",
}


def unsupported(faults: Iterable[Fault]) -> list[str]:
    """Kinds among these that can't be done to real parts, each with why."""
    tags = dict.fromkeys(tag_of(type(fault)) for fault in faults)
    return [f"{tag}: {NOT_FOR_REAL.get(tag, 'unknown')}" for tag in tags if tag not in MAKERS]


def coverage(done: dict[str, int]) -> dict[str, str]:
    """Each of the simulator's kinds: how often it was reproduced for real, or why it can't be."""
    told: dict[str, str] = {}
    kinds: tuple[type[FaultBase], ...] = FAULTS
    for kind in kinds:
        tag = tag_of(kind)
        told[tag] = (
            f"{done[tag]} times" if tag in done else NOT_FOR_REAL.get(tag, "not in this run")
        )
    return told
