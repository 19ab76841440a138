"""A group of a thousand at its maximum rate beside one-to-one pings: whoever waits, waits for a bound, not for a backlog.

Fairness is counted in what the machines do (events of the whole world between a ping's outbox append and its peer's disk),
so a slower computer changes nothing. The group's size and rate are what the contract allows at most.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import Struct, field

from qim.core.contract.invariants import Stage
from qim.core.ports.observe import StageReached
from qim.sim.node import Host
from qim.sim.plan import ChangeGroup, DevicePlan, Operation, Plan, Send, Topology
from qim.sim.report import Report
from qim.sim.run import run
from qim.sim.scene import Kit

HOT, PINGER, PEER = 1, 2, 3
MEMBERS = 1_000
PING_EVERY_MS = 100
PINGS = 20
HOT_MESSAGES = 60
BEGIN_MS = 600


class Watch(Struct):
    """Counts events, and notes at which count, and when, a message reached a stage: calm clocks all show the same."""

    events: int = 0
    outboxed: dict[int, int] = field(default_factory=dict)
    applied: dict[int, int] = field(default_factory=dict)
    outboxed_ms: dict[int, int] = field(default_factory=dict)
    applied_ms: dict[int, int] = field(default_factory=dict)
    mailboxed: int = 0

    def __call__(self, host: Host, now: int, events: Sequence[Any], effects: Sequence[Any]) -> None:
        self.events += len(events)
        for effect in effects:
            if type(effect) is not StageReached:
                continue
            if effect.stage == Stage.OUTBOXED:
                self.outboxed.setdefault(effect.trace_id, self.events)
                self.outboxed_ms.setdefault(effect.trace_id, now)
            elif effect.stage == Stage.MAILBOXED:
                self.mailboxed += 1
            elif effect.stage == Stage.APPLIED and host.node.name == f"client-{PEER}-d1":
                self.applied.setdefault(effect.trace_id, self.events)
                self.applied_ms.setdefault(effect.trace_id, now)

    def late(self) -> list[int]:
        """The same in ms of the world."""
        return [at - self.outboxed_ms[trace] for trace, at in self.applied_ms.items()]

    def waits(self) -> list[int]:
        """Events a ping was on its way for, in the order of arrival."""
        return [at - self.outboxed[trace] for trace, at in self.applied.items()]


def world(hot: int, *, partitions: int = 1, shards: int = 1, burst: bool = False) -> Plan:
    """``hot`` messages to the group within the time of the pings, or all at once; all share a shard unless told."""
    devices = tuple(DevicePlan(user_id=user, device_id=b"d1") for user in (HOT, PINGER, PEER))
    strangers = tuple(range(1_000, 1_000 + MEMBERS - 1))
    operations: list[Operation] = [
        ChangeGroup(at_ms=300, device=0, number=1, group=0, operation=1, users=(HOT, *strangers))
    ]
    span = 0 if burst else PINGS * PING_EVERY_MS
    operations += [
        Send(at_ms=BEGIN_MS + at * span // hot, device=0, number=100 + at, group=0)
        for at in range(hot)
    ]
    operations += [
        Send(at_ms=BEGIN_MS + at * PING_EVERY_MS, device=1, number=10_000 + at, peer=PEER)
        for at in range(PINGS)
    ]
    return Plan(
        seed=1,
        profile="calm",
        topology=Topology(outbox_partitions=partitions, shards=shards),
        devices=devices,
        operations=tuple(operations),
    )


def played(plan: Plan, kit: Kit) -> tuple[Watch, Report]:
    watch = Watch()
    report = run(plan, kit, observe=watch)
    assert report.clean, report.violations[:3]
    return watch, report


@pytest.fixture(scope="module")
def kit() -> Kit:
    return Kit()


@pytest.mark.slow
@pytest.mark.parametrize(("partitions", "shards"), [(1, 1), (4, 4)])
@pytest.mark.parametrize("burst", [False, True])
def test_pings_beside_a_hot_group_wait_for_a_bound_and_for_no_backlog(
    partitions: int, shards: int, burst: bool, kit: Kit
) -> None:
    quiet, _ = played(world(1, partitions=partitions, shards=shards), kit)
    hot, report = played(
        world(HOT_MESSAGES, partitions=partitions, shards=shards, burst=burst), kit
    )
    assert len(quiet.applied) == len(hot.applied) == PINGS
    # Rows of the hot group are written by the ten thousand meanwhile; no ping sees more of that than its share.
    assert report.ledger["deliveries_owed"] >= HOT_MESSAGES * MEMBERS
    waits = hot.waits()
    assert max(waits) <= 4 * max(quiet.waits())
    assert sum(waits[-5:]) <= 2 * sum(waits[:5]) + 5 * min(waits), (
        "later pings wait for what piled up"
    )
    # In the world's own time a ping takes its usual way: it never stands behind the whole of the hot traffic.
    assert max(hot.late()) <= max(quiet.late()) + PING_EVERY_MS
