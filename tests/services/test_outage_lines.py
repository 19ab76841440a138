"""Outages are lines in the log, once each way, and keep /readyz red: of servers, of leases, of whoever is behind a gateway."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qim.core.contract.params import Parameters
from qim.core.lease import LeaseConfig, LeaseKeeper
from qim.core.ports.completion import Failed, FailReason
from qim.core.ports.local import LeaseGone, LeaseHeld, Started
from qim.core.ports.observe import Count
from qim.core.ports.registry import (
    Acquire,
    Announce,
    Granted,
    LeaseRead,
    Peers,
    ReadLease,
    Resource,
    Role,
)
from qim.services.cluster.behind import OWNER_ASK_SECONDS, OWNER_GRACE_SECONDS, OwnersBehind
from qim.services.cluster.lookout import Lookout
from qim.services.cluster.process import ServeProcess
from qim.services.lease_lines import LeaseLines, spans
from qim.services.links import LINK_GRACE_SECONDS, LINKS_LOOK_SECONDS, Link, Links
from qim.services.roles import ServiceRole
from tests.services.one_process_cluster import OneProcessCluster

PARAMETERS = Parameters(shard_count=4, outbox_partition_count=2)


class Told:
    """Log lines and a clock that is set by hand."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, object]]] = []
        self.now = 0.0

    def log(self, level: str, event: str, fields: dict[str, object]) -> None:
        self.lines.append((level, event, fields))

    def time(self) -> float:
        return self.now

    def events(self) -> list[str]:
        return [event for _, event, _ in self.lines]


# ------------------------------------------------------------ servers


def links(to: Told, up: dict[str, bool], **more: Any) -> Links:
    made = Links(to.time, to.log)
    made.watch(
        tuple(
            Link(name=name, stands=lambda name=name: up[name], why=lambda: "refused", **more)
            for name in up
        )
    )
    return made


def test_an_outage_is_one_line_and_its_end_another() -> None:
    told, up = Told(), {"the store": True, "the log": True}
    watched = links(told, up)
    for second, stands in enumerate([True, False, False, False, True, True, False, True]):
        told.now, up["the store"] = float(second), stands
        watched.look()
    assert told.lines == [
        ("warning", "connection lost", {"to": "the store", "why": "refused"}),
        ("info", "connection back", {"to": "the store", "away_seconds": 3.0}),
        ("warning", "connection lost", {"to": "the store", "why": "refused"}),
        ("info", "connection back", {"to": "the store", "away_seconds": 1.0}),
    ]


def test_who_is_away_for_long_is_missing_and_who_is_back_is_not() -> None:
    told, up = Told(), {"the store": False, "the log": True}
    watched = links(told, up)
    assert watched.look() == "", "it may be a restart"
    told.now = LINK_GRACE_SECONDS
    assert watched.look() == "the store is out of reach for 3 s"
    up["the log"] = False
    told.now += LINKS_LOOK_SECONDS
    watched.look()
    told.now += LINK_GRACE_SECONDS
    assert watched.look().split(", ") == [
        "the store is out of reach for 6 s",
        "the log is out of reach for 3 s",
    ]
    up |= {"the store": True, "the log": True}
    told.now += LINKS_LOOK_SECONDS
    assert watched.look() == ""


def test_looks_come_as_often_as_they_like_and_servers_are_asked_less_often() -> None:
    told, up = Told(), {"the store": True}
    watched = links(told, up)
    watched.look()
    up["the store"] = False
    watched.look()
    assert told.lines == []
    told.now = LINKS_LOOK_SECONDS
    watched.look()
    assert told.events() == ["connection lost"]


def test_a_server_that_is_not_needed_is_told_of_and_no_more() -> None:
    told = Told()
    watched = links(told, {"the registry": False}, needed=False)
    watched.look()
    told.now = 2 * LINK_GRACE_SECONDS
    assert watched.look() == ""
    assert told.events() == ["connection lost"]


def test_an_adapter_that_writes_its_own_lines_is_not_repeated() -> None:
    told, up = Told(), {"the log": False}
    watched = links(told, up, told=True)
    watched.look()
    told.now = LINK_GRACE_SECONDS
    assert watched.look() == "the log is out of reach for 3 s"
    up["the log"] = True
    told.now += 1
    assert watched.look() == ""
    assert told.lines == []


# ------------------------------------------------------------ leases


def mailbox(number: int) -> Resource:
    return Resource(role=Role.MAILBOX, number=number)


class Bus:
    """The keeper's routes, with what went through them, over a loop that is turned by hand."""

    def __init__(self, told: Told) -> None:
        self.through: list[Any] = []
        self.counted: list[tuple[str, int, str]] = []
        self._later: list[Callable[[], None]] = []

        def pass_on(effect: Any, _: object) -> None:
            self.through.append(effect)

        def count(name: str, value: int, label: str) -> None:
            self.counted.append((name, value, label))

        loop: Any = self
        self._routes = LeaseLines(loop, told.log).routes(
            {LeaseHeld: pass_on, LeaseGone: pass_on}, count
        )

    def call_soon(self, call: Callable[[], None]) -> None:
        self._later.append(call)

    def step(self, *effects: Any) -> None:
        hosted: Any = None
        for effect in effects:
            self._routes[type(effect)](effect, hosted)
        later, self._later = self._later, []
        for call in later:
            call()


def held(number: int, epoch: int = 1) -> LeaseHeld:
    return LeaseHeld(
        resource=mailbox(number), epoch=epoch, barrier_epoch=0, barrier_offset=-1, wall=0
    )


def test_leases_are_told_a_role_and_step_at_a_time_with_what_became_of_them() -> None:
    told = Told()
    bus = Bus(told)
    bus.step(*map(held, (0, 1, 2, 5)))
    expired = Count(name="lease_expired", label=Role.MAILBOX)
    lost = Count(name="lease_lost", label=Role.MAILBOX)
    bus.step(expired, LeaseGone(resource=mailbox(0)), expired, LeaseGone(resource=mailbox(1)))
    bus.step(lost, LeaseGone(resource=mailbox(5)))
    bus.step(LeaseGone(resource=mailbox(2)))
    role = {"role": "mailbox"}
    assert told.lines == [
        ("info", "leases held", {**role, "numbers": "0-2 5", "held": 4}),
        ("warning", "leases expired", {**role, "numbers": "0-1", "held": 2}),
        ("warning", "leases lost", {**role, "numbers": "5", "held": 1}),
        ("info", "leases given back", {**role, "numbers": "2", "held": 0}),
    ]
    assert len(bus.through) == 8
    assert bus.counted == [(one.name, 1, "mailbox") for one in (expired, expired, lost)]


def test_a_fresh_epoch_and_the_leases_of_others_are_no_news() -> None:
    told = Told()
    bus = Bus(told)
    bus.step(held(3))
    bus.step(held(3, epoch=2), LeaseGone(resource=mailbox(9), owner_address="elsewhere"))
    assert told.events() == ["leases held"]
    assert len(bus.through) == 3


def test_the_keeper_counts_right_before_it_tells() -> None:
    """What the lines rely on: of each lease that ends by itself the counter comes first."""
    config = LeaseConfig(owner="me", address="a", roles=((Role.MAILBOX, 2),))
    keeper = LeaseKeeper(config, choose=lambda *_: 0)
    said = keeper.step(0, [Started(address="a", wall=0)])
    (announced,) = [one for one in said if isinstance(one, Announce)]
    orders = keeper.step(0, [Peers(op=announced.op, role=Role.MAILBOX, owners=("me",))])
    granted = [
        Granted(op=one.op, resource=one.resource, epoch=1, barrier_epoch=0, barrier_offset=-1)
        for one in orders
        if isinstance(one, Acquire)
    ]
    assert len(granted) == 2
    keeper.step(0, granted)
    told = [one for one in keeper.step(60_000, []) if isinstance(one, Count | LeaseGone)]
    assert [type(one) for one in told] == [Count, LeaseGone, Count, LeaseGone]


@pytest.mark.parametrize(
    ("numbers", "wanted"),
    [([], ""), ([0], "0"), ([4, 3, 1, 0, 0], "0-1 3-4"), ([7, 9, 8, 63], "7-9 63")],
)
def test_numbers_as_people_write_them(numbers: list[int], wanted: str) -> None:
    assert spans(numbers) == wanted


# ------------------------------------------------------------ behind a gateway


class Registry:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.owned: set[Resource] = set()
        self.asked: list[Resource] = []
        self.away = False
        self._waiting: list[tuple[ReadLease, Callable[[Any], None]]] = []

    def submit(self, request: Any, answer: Callable[[Any], None]) -> None:
        self.asked.append(request.resource)
        self._waiting.append((request, answer))

    def answer(self) -> None:
        waiting, self._waiting = self._waiting, []
        for request, answer in waiting:
            if self.away:
                answer(Failed(op=request.op, why=FailReason.UNREACHABLE))
                continue
            address = "127.0.0.1:7001" if request.resource in self.owned else ""
            answer(
                LeaseRead(
                    op=request.op, resource=request.resource, epoch=1, owner="o" if address else "",
                    address=address, barrier_epoch=0, barrier_offset=-1,
                )
            )  # fmt: skip


def test_a_gateway_with_nobody_behind_it_says_so_until_it_finds_one_of_each() -> None:
    told, registry = Told(), Registry()
    behind = OwnersBehind(registry, PARAMETERS, told.time)
    nobody = "no owner of writer shards is known, no owner of mailbox shards is known"
    assert behind.look() == nobody
    assert behind.look() == nobody
    assert len(registry.asked) == 2, "one question each at a time"
    registry.answer()
    registry.owned = {mailbox(3), Resource(role=Role.WRITER, number=1)}
    for _ in range(4):
        behind.look()
        registry.answer()
    assert behind.look() == ""
    assert registry.asked.count(mailbox(3)) == 1


def test_an_owner_that_goes_is_missed_after_a_while_and_a_registry_is_not() -> None:
    told, registry = Told(), Registry()
    registry.owned = {mailbox(0), Resource(role=Role.WRITER, number=0)}
    behind = OwnersBehind(registry, PARAMETERS, told.time)
    behind.look()
    registry.answer()
    assert behind.look() == ""
    registry.owned.discard(mailbox(0))
    began = told.now
    while not behind.look():
        registry.answer()
        told.now += OWNER_ASK_SECONDS / 2
        assert told.now - began < OWNER_GRACE_SECONDS + 2 * OWNER_ASK_SECONDS
    assert told.now - began >= OWNER_GRACE_SECONDS
    assert behind.look() == "no owner of mailbox shards is known"
    registry.owned.add(mailbox(2))
    for _ in range(4):
        behind.look()
        registry.answer()
    assert behind.look() == ""
    registry.away = True
    for _ in range(4):
        told.now += OWNER_GRACE_SECONDS
        behind.look()
        registry.answer()
    assert behind.look() == "", "who doesn't answer says nothing of owners: their leases last"


# ------------------------------------------------------------ processes


def lines_of(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, dict[str, object]]]:
    """What processes log from now on."""
    lines: list[tuple[str, str, dict[str, object]]] = []

    def log(process: ServeProcess, level: str, event: str, fields: dict[str, object]) -> None:
        lines.append((process._role.value, event, fields))

    monkeypatch.setattr(ServeProcess, "_log", log)
    return lines


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)


def test_a_gateway_serves_once_there_is_somebody_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = lines_of(monkeypatch)

    async def main() -> None:
        async with OneProcessCluster(tmp_path / "data") as cluster:
            await cluster.start(ServiceRole.GATEWAY)
            gateway, _ = cluster.running["gateway"]
            assert "no owner of writer shards" in gateway.missing
            ok, told = gateway.readiness()
            assert (ok, told["serving"]) == (False, False)
            await cluster.start(ServiceRole.WRITER)
            await until(lambda: gateway.missing == "no owner of mailbox shards is known")
            await cluster.start(ServiceRole.MAILBOX)
            await until(lambda: gateway.readiness()[0])
            await cluster.stop("writer")
            await until(lambda: not gateway.readiness()[0])

    asyncio.run(main())
    assert ("mailbox", "shards opened", {"serving": 4, "before": 0}) in lines
    assert ("writer", "leases held", {"role": "writer", "numbers": "0-1", "held": 2}) in lines
    assert ("writer", "leases given back", {"role": "writer", "numbers": "0-1", "held": 0}) in lines


def test_a_process_whose_store_is_gone_says_so_in_its_log_and_at_readyz(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = lines_of(monkeypatch)

    async def main() -> None:
        async with OneProcessCluster(tmp_path / "data") as cluster:
            await cluster.start(ServiceRole.FANOUT)
            fanout, _ = cluster.running["fanout"]
            assert fanout.readiness()[0]
            cluster.stop_store()
            await until(lambda: not fanout.readiness()[0])
            assert "the store is out of reach" in fanout.missing
            cluster.start_store()
            await until(lambda: fanout.readiness()[0])

    asyncio.run(main())
    told = [event for _, event, fields in lines if fields.get("to") == "the store"]
    assert told == ["connection lost", "connection back"]


def test_a_lookout_has_nothing_to_say_before_it_begins() -> None:
    told = Told()
    with pytest.raises(AssertionError, match="begun"):
        Lookout(ServiceRole.FANOUT, told.time, told.log).own()
