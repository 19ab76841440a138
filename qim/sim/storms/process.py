"""Storms over processes and their clocks: they die, stop, slow down, come and go, at drawn times and at drawn orders."""

from typing import Final

from qim.core.ports.registry import Role
from qim.sim import faults as f
from qim.sim.weather import Maker, Weather

ORDERS: Final = {
    "writer": ("OpenShard", "Append", "RegisterBarrier", "ApplyOutbox", "ReserveAndRecord", "MarkCommitted", "Send"),
    "fanout": ("OpenSource", "Append", "CommitSource"),
    "mailbox": ("OpenMailbox", "ClaimDispatches", "AppendEntries", "FinishDispatches", "Send"),
    "session": ("OpenSession", "Append", "ProjectDispatches", "ApplyStates", "ReadSessions", "Send"),
    "archiver": ("OpenArchive", "WriteArchive", "CommitArchive"),
    "gateway": ("EnterPresence", "Write", "Send"),
}  # fmt: skip
"""Orders at which a process may be made to die: where half of a protocol has happened."""


def _order(w: Weather, node: str, kind: str, i: int) -> str:
    if not w.draw.chance(50, "at_effect", kind, i):
        return ""
    return w.draw.pick(ORDERS[node.partition("-")[0]], "which_effect", kind, i)


def crash(w: Weather, i: int) -> f.Fault:
    node = w.node("crash", i)
    return f.Crash(
        at_ms=w.when("crash", i),
        node=node,
        salt=w.draw.raw("salt", i),
        down_ms=w.draw.pick((1, 100, 500, 3_000), "down", i),
        at_effect=_order(w, node, "crash", i),
    )


def pause(w: Weather, i: int) -> f.Fault:
    lasting = w.draw.pick((800, 4_000, 12_000, 25_000), "pause_for", i)
    at = w.when("pause", i)
    node = w.node("pause", i)
    return f.Pause(
        at_ms=at,
        until_ms=at + lasting,
        node=node,
        salt=w.draw.raw("pause_salt", i),
        at_effect=_order(w, node, "pause", i),
    )


def slow(w: Weather, i: int) -> f.Fault:
    extra = w.draw.pick((20, 200, 1_500), "slow", i)
    return f.SlowNode(**w.window("slow", i, 6_000), node=w.node("slow", i), extra_ms=extra)


def restart(w: Weather, i: int) -> f.Fault:
    return f.Restart(at_ms=w.when("restart", i), node=w.node("restart", i))


def scale(w: Weather, i: int) -> f.Fault:
    role = w.draw.pick(("writer", "fanout", "mailbox", "session", "archiver"), "scale", i)
    return f.ScaleOut(at_ms=w.when("scale", i), role=role)


def wall_step(w: Weather, i: int) -> f.Fault:
    by = w.draw.pick((-200_000, -5_000, 5_000, 100_000), "step", i)
    return f.WallStep(at_ms=w.when("step", i), node=w.node("step", i), by_ms=by)


def freeze(w: Weather, i: int) -> f.Fault:
    return f.ClockFreeze(**w.window("freeze", i, 8_000), node=w.node("freeze", i))


def lost(w: Weather) -> list[f.Fault]:
    """The world heals without one of its processes; never without the last of a role."""
    many = [(role, count) for role, count in w.topology.processes() if count > 1]
    if not many:
        return []
    role, count = w.draw.pick(many, "lost_role")
    node = f"{role}-{w.draw.number(1, count, 'lost_node')}"
    return [f.Lost(at_ms=w.when("lost", 0), node=node, stopped=w.draw.chance(40, "lost_stopped"))]


def contest(w: Weather, i: int) -> list[f.Fault]:
    """A writer opens while another owner comes and goes, and the store forgets the other: each step happens alone too."""
    draw = w.draw
    begin = w.when("contest", i)
    length = draw.number(120, 500, "contest_length", i)
    end = begin + length
    node = f"writer-{draw.number(1, w.topology.writers, 'contest_node', i)}"
    again = draw.pick(("crash", "restart", "expire"), "contest_again", i)
    made: list[f.Fault] = [
        f.StoreStall(at_ms=begin + draw.number(0, 40, "contest_stall", i), until_ms=end, store=0),
        f.StoreRestart(
            at_ms=end - draw.number(1, 60, "contest_restart", i),
            lost_calls=draw.pick((1, 5, 60), "contest_lost", i),
            down_ms=5,
        ),
    ]
    if again == "crash":
        made.append(f.Crash(at_ms=begin, node=node, salt=draw.raw("contest_salt", i), down_ms=1))
    elif again == "restart":
        made.append(f.Restart(at_ms=begin, node=node, down_ms=1))
    for number in range(w.topology.outbox_partitions):
        if again == "expire":
            made.append(f.LeaseExpires(at_ms=begin, role=Role.WRITER, number=number))
        at = end - draw.number(40, 120, "contest_usurper", i, number)
        late = draw.pick((0, 100, 200, 400), "contest_late", i, number)
        made.append(f.Usurper(at_ms=at, number=number, late_ms=late))
    return made


PROCESS: Final[tuple[Maker, ...]] = (crash, pause, slow, restart, scale)
CLOCK: Final[tuple[Maker, ...]] = (wall_step, freeze)
