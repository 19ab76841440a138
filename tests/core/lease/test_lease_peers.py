"""Several keepers around one registry that does what it should: each change of the cast moves each lease at most once."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qim.core.lease import LeaseConfig, LeaseEffect, LeaseEvent, LeaseKeeper
from qim.core.ports.completion import Failed, FailReason, Unknown
from qim.core.ports.local import DrainRequested, LeaseGone, LeaseHeld, Started
from qim.core.ports.registry import (
    Acquire,
    Announce,
    Denied,
    EpochRaised,
    Granted,
    LeaseFreed,
    LeaseTaken,
    Peers,
    RaiseEpoch,
    Release,
    Released,
    Renew,
    Renewed,
    Resource,
    Role,
)

COUNT = 32
TURN_MS = 50
SETTLE_MS = 30_000
TTL_MS = 10_000


class Held:
    """What the registry knows of one resource."""

    def __init__(self) -> None:
        self.epoch = 0
        self.owner = ""
        self.until = 0


class Stage:
    """Time, the registry, the keepers; hints reach them at once, or never (``hints``)."""

    def __init__(self, *, hints: bool) -> None:
        self.now = 0
        self.hints = hints
        self.keepers: dict[str, LeaseKeeper] = {}
        self.inboxes: dict[str, list[LeaseEvent]] = {}
        self.leases: dict[Resource, Held] = {}
        self.announced: dict[str, int] = {}
        self.held: dict[str, set[Resource]] = {}
        self.moves: dict[Resource, int] = {}
        self.idle_ms: dict[Resource, int] = {}
        self.fate: Callable[[], str] = lambda: ""

    # ------------------------------------------------------------ the cast

    def join(self, owner: str) -> None:
        config = LeaseConfig(owner=owner, address=owner, roles=((Role.WRITER, COUNT),))
        self.keepers[owner] = LeaseKeeper(config, choose=lambda site, key: self.now)
        self.inboxes[owner] = [Started(address=owner, wall=0)]
        self.held[owner] = set()

    def drain(self, owner: str) -> None:
        self.inboxes[owner].append(DrainRequested())

    def kill(self, owner: str) -> None:
        del self.keepers[owner], self.inboxes[owner], self.held[owner]

    def pass_ms(self, ms: int) -> None:
        for _ in range(ms // TURN_MS):
            self.now += TURN_MS
            self.expire()
            for owner in list(self.keepers):
                self.turn(owner)
            for number in range(COUNT):
                resource = Resource(role=Role.WRITER, number=number)
                holders = [owner for owner, held in self.held.items() if resource in held]
                assert len(holders) <= 1, (resource, holders)
                if not holders:
                    self.idle_ms[resource] = self.idle_ms.get(resource, 0) + TURN_MS

    def turn(self, owner: str) -> None:
        events, self.inboxes[owner] = self.inboxes[owner], []
        effects = self.keepers[owner].step(self.now, events)
        self.keepers[owner].check()
        for effect in effects:
            match effect:
                case LeaseHeld():
                    self.held[owner].add(effect.resource)
                    self.moves[effect.resource] = self.moves.get(effect.resource, 0) + 1
                case LeaseGone():
                    self.held[owner].discard(effect.resource)
                case _:
                    self.request(owner, effect)

    # ------------------------------------------------------------ the registry

    def request(self, owner: str, effect: LeaseEffect) -> None:
        assert isinstance(effect, Acquire | Renew | Release | RaiseEpoch | Announce), effect
        fate = self.fate()
        if fate == "failed":
            self.inboxes[owner].append(Failed(op=effect.op, why=FailReason.UNREACHABLE))
            return
        answer = self.applied(effect)
        self.inboxes[owner].append(Unknown(op=effect.op) if fate == "unknown" else answer)

    def applied(self, effect: Acquire | Renew | Release | RaiseEpoch | Announce) -> LeaseEvent:
        match effect:
            case Acquire():
                return self.acquire(effect)
            case Renew():
                lost = [r for r, epoch in effect.leases if not self.renewed(r, effect.owner, epoch)]
                return Renewed(op=effect.op, lost=tuple(lost))
            case Release():
                for resource, epoch in effect.leases:
                    held = self.leases[resource]
                    if (held.owner, held.epoch) == (effect.owner, epoch):
                        self.free(resource)
                return Released(op=effect.op)
            case RaiseEpoch():
                return EpochRaised(op=effect.op)
            case Announce():
                before = set(self.announced)
                self.announced[effect.owner] = self.now + effect.ttl_ms
                self.expire()
                if before != set(self.announced):
                    self.notice(self.peers(0))
                return self.peers(effect.op)

    def acquire(self, effect: Acquire) -> Granted | Denied:
        held = self.leases.setdefault(effect.resource, Held())
        if held.owner not in ("", effect.owner):
            left = held.until - self.now
            return Denied(
                op=effect.op, resource=effect.resource, owner=held.owner, remaining_ms=left
            )
        held.epoch += 1
        held.owner, held.until = effect.owner, self.now + effect.ttl_ms
        self.notice(LeaseTaken(resource=effect.resource, owner=effect.owner, address=effect.owner))
        return Granted(
            op=effect.op,
            resource=effect.resource,
            epoch=held.epoch,
            barrier_epoch=0,
            barrier_offset=-1,
        )

    def renewed(self, resource: Resource, owner: str, epoch: int) -> bool:
        held = self.leases[resource]
        if (held.owner, held.epoch) != (owner, epoch):
            return False
        held.until = self.now + TTL_MS
        return True

    def free(self, resource: Resource) -> None:
        self.leases[resource].owner = ""
        self.notice(LeaseFreed(resource=resource))

    def expire(self) -> None:
        for resource, held in self.leases.items():
            if held.owner and held.until <= self.now:
                self.free(resource)
        gone = [owner for owner, until in self.announced.items() if until <= self.now]
        for owner in gone:
            del self.announced[owner]
        if gone:
            self.notice(self.peers(0))

    def peers(self, op: int) -> Peers:
        return Peers(op=op, role=Role.WRITER, owners=tuple(sorted(self.announced)))

    def notice(self, fact: Peers | LeaseFreed | LeaseTaken) -> None:
        if self.hints:
            for inbox in self.inboxes.values():
                inbox.append(fact)

    # ------------------------------------------------------------ what must be true

    def settled(self) -> None:
        """After a while all is held, by those that are there, and since then nothing moves."""
        self.pass_ms(SETTLE_MS)
        assert sum(map(len, self.held.values())) == COUNT
        moves = dict(self.moves)
        self.pass_ms(SETTLE_MS)
        assert self.moves == moves

    def changed(self, change: Callable[[], None]) -> tuple[int, int, int]:
        """(leases that moved, most moves of one, longest time that one was held by nobody) through a change."""
        before, self.idle_ms = dict(self.moves), {}
        change()
        self.settled()
        moved = [count - before.get(resource, 0) for resource, count in self.moves.items()]
        return sum(map(bool, moved)), max(moved), max(self.idle_ms.values(), default=0)


@pytest.mark.parametrize("hints", [True, False])
def test_each_change_of_the_cast_moves_each_lease_at_most_once(hints: bool) -> None:
    stage = Stage(hints=hints)
    stage.join("a")
    stage.settled()
    for owner in ("b", "c"):
        newcomer = owner
        moved, most, idle_ms = stage.changed(lambda newcomer=newcomer: stage.join(newcomer))
        assert 0 < moved < COUNT and most == 1
        assert idle_ms <= (3 * TURN_MS if hints else 4_000)
    assert all(len(held) > COUNT // 8 for held in stage.held.values())
    share = len(stage.held["b"])
    moved, most, idle_ms = stage.changed(lambda: stage.drain("b"))
    assert (moved, most) == (share, 1)
    assert idle_ms <= (3 * TURN_MS if hints else 4_000)
    share = len(stage.held["c"])
    moved, most, idle_ms = stage.changed(lambda: stage.kill("c"))
    assert (moved, most) == (share, 1)
    assert idle_ms <= TTL_MS + (3 * TURN_MS if hints else 4_000)


@pytest.mark.parametrize("hints", [True, False])
def test_many_that_start_and_stop_together_come_to_rest(hints: bool) -> None:
    stage = Stage(hints=hints)
    for owner in "abcdef":
        stage.join(owner)
        stage.pass_ms(200)
    stage.settled()
    for owner in "abc":
        stage.drain(owner)
    stage.settled()
    assert not any(stage.held[owner] for owner in "abc")
    assert all(stage.keepers[owner].idle() for owner in "abc")


@settings(max_examples=30)
@given(st.lists(st.sampled_from(["", "", "", "failed", "unknown"]), max_size=60), st.booleans())
def test_answers_that_get_lost_delay_and_never_double(fates: list[str], hints: bool) -> None:
    stage = Stage(hints=hints)
    left = list(fates)
    stage.fate = lambda: left.pop() if left else ""
    stage.join("a")
    stage.pass_ms(1_000)
    stage.join("b")
    stage.pass_ms(2_000)
    stage.drain("a")
    stage.settled()
    assert not stage.held["a"]
    assert stage.keepers["a"].idle()
