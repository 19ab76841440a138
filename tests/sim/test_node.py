"""How a process of the world dies and stops: between effects, and what a stopped one finds when it goes on."""

from typing import Any

import pytest

from qim.core.lease import LeaseConfig, LeaseKeeper
from qim.core.ports.local import Started
from qim.core.ports.registry import Acquire, Announce, Resource, Role
from qim.sim.clock import Curve, Piece
from qim.sim.node import Host, Node
from qim.sim.world import World

FIRST = Resource(role=Role.WRITER, number=0)


class Toy:
    """Orders "a", "b", "c" when it is told to go."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def step(self, now: int, events: list[Any]) -> list[str]:
        self.heard += events
        return ["a", "b", "c"] if "go" in events else []

    def deadline(self) -> int | None:
        return None

    def check(self) -> None: ...

    def idle(self) -> bool:
        return True


class Process:
    """A toy beside a keeper that holds no lease; each order notes whether the driver would still let it go."""

    def __init__(self) -> None:
        self.world = World(1)
        clocks = {"monotonic": Curve((Piece(0, 1_000),), monotone=True)}
        clocks["wall"] = Curve((Piece(0, 5_000),), monotone=False)
        self.node = Node(self.world, "toy-1", "toy", **clocks)
        self.ordered: list[tuple[str, bool]] = []
        self.toy = Toy()
        self.host = Host(self.node, "toy-1", self.toy, {str: self._route}, identity=1)
        keeper = LeaseKeeper(
            LeaseConfig(owner="toy-1", address="toy-1", roles=((Role.WRITER, 1),)),
            choose=lambda site, key: 0,
        )
        nowhere = dict.fromkeys((Announce, Acquire), lambda host, effect: None)
        self.node.start([self.host, Host(self.node, "keeper", keeper, nowhere, identity=2)])
        self.pass_time()

    def _route(self, host: Host, effect: str) -> None:
        self.ordered.append((effect, host.node.holds(FIRST, 1)))

    def pass_time(self) -> None:
        """Until everything that arrives by then was stepped."""
        self.world.at(self.world.now + 5, 0, lambda _: None, None)
        self.world.run(self.world.now + 5)

    def go(self) -> None:
        self.world.at(self.world.now + 1, 0, self.host.take, "go")
        self.pass_time()

    def effects(self) -> str:
        return "".join(effect for effect, _ in self.ordered)


def test_every_machine_begins_with_the_news_that_it_does() -> None:
    assert Process().toy.heard == [Started(address="toy-1", wall=5_000)]


@pytest.mark.parametrize(("doom", "done"), [(0, ""), (1, "a"), (2, "ab"), (3, "abc"), (4, "")])
def test_a_process_dies_between_any_two_effects(doom: int, done: str) -> None:
    process = Process()
    process.node.doom = doom
    process.go()
    assert process.effects() == done
    assert not process.node.alive
    process.go()
    assert process.toy.heard[1:] == ["go"], "what is addressed to the dead falls on the floor"


@pytest.mark.parametrize(("salt", "done"), [(0, ""), (1, "a")])
def test_a_process_dies_right_before_or_after_an_order_it_is_to_die_at(
    salt: int, done: str
) -> None:
    process = Process()
    process.node.doom, process.node.doom_effect = salt, "str"
    process.go()
    assert process.effects() == done
    assert not process.node.alive


def test_a_process_that_does_not_order_what_it_is_to_die_at_goes_on() -> None:
    process = Process()
    process.node.doom, process.node.doom_effect = 0, "Append"
    process.go()
    assert (process.effects(), process.node.alive, process.node.doom) == ("abc", True, 0)


def test_a_stopped_process_hands_over_what_it_had_checked_and_hears_all_that_came() -> None:
    process = Process()
    process.node.doom, process.node.doom_pauses = 1, True
    process.go()
    assert process.ordered == [("a", False)], "the driver asks as it hands over"
    process.world.at(process.world.now + 1, 0, process.host.take, "late answer")
    process.node.unread.append((process.host.take, "unread bytes"))
    process.pass_time()
    assert process.toy.heard[1:] == ["go"]
    process.node.resume()
    process.pass_time()
    assert process.ordered == [("a", False), ("b", True), ("c", True)], "a zombie's go out unasked"
    assert process.toy.heard[1:] == ["go", "late answer", "unread bytes"]
    assert not process.node.holds(FIRST, 1), "and it is asked again from now on"


def test_what_is_sent_on_a_lane_keeps_its_order() -> None:
    host = Process().host
    assert host.in_line("x", 10, 5) == (10, 5)
    assert host.in_line("x", 8, 9) == (10, 5)
    assert host.in_line("x", 10, 3) == (10, 5)
    assert host.in_line("y", 8, 9) == (8, 9)
    assert host.in_line("x", 11, 0) == (11, 0)
