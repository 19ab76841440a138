"""Where effects go in one process, and the last look at the lease as they are handed to I/O (pipeline.md §0)."""

from collections.abc import Callable
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from qim.core.contract.actor import Actor
from qim.core.contract.rpc import Message
from qim.core.contract.rpc_session import AskSummaries, SummariesAnswer
from qim.core.ports.completion import Failed, FailReason
from qim.core.ports.local import FreshEpochWanted, LeaseGone, LeaseHeld
from qim.core.ports.log import Append, Fetch, LogRecord, LogRequest, ReadEnds, Topic
from qim.core.ports.network import Received, Send
from qim.core.ports.registry import Acquire, RegistryRequest, Resource, Role
from qim.core.ports.store import StoreRequest, store_role
from qim.core.ports.store_audit import CoverageStoreRequest
from qim.core.ports.store_message import LookupCommits, ReadPending
from qim.core.ports.store_operator import RestartProjection
from qim.core.ports.store_reads import ReadHistory, ReadMembership
from qim.core.ports.store_session import SessionStoreRequest
from qim.services.roles import ServiceRole
from qim.services.routing import (
    MAILBOX_ASKS,
    SESSION_ASKS,
    WRITER_ASKS,
    Network,
    lease_bus,
    leased_store_routes,
    log_routes,
    registry_routes,
)
from tests.adapters.store.samples import FENCED, KINDS, sample

READS_UNDER_AN_EPOCH = (LookupCommits, ReadPending, ReadMembership, ReadHistory)
"""Fenced by their scripts and harmless when late: they need no look at the lease."""


class Keeper:
    """Holds exactly what it is told to hold."""

    def __init__(self) -> None:
        self.held: set[tuple[Resource, int]] = set()
        self.asked: list[tuple[Resource, int]] = []

    def holds(self, resource: Resource, epoch: int, now: int) -> bool:
        self.asked.append((resource, epoch))
        return (resource, epoch) in self.held


class Port:
    """Answers at once with the request's name."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def submit(self, request: Any, answer: Callable[[Any], None]) -> None:
        self.requests.append(request)
        answer(f"answer to {type(request).__name__}")


class Asking:
    """The machine that asks."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.heard: list[Any] = []

    def post(self, event: Any) -> None:
        self.heard.append(event)


class Case:
    def __init__(self) -> None:
        self.keeper = Keeper()
        self.message, self.mailbox, self.log = Port(), Port(), Port()
        self.machine = Asking()
        keeper: Any = self.keeper
        self.store = leased_store_routes(keeper, self.message, self.mailbox)
        self.logs = log_routes(self.log, keeper)

    def give(self, routes: dict[type, Any], effect: Any) -> None:
        routes[type(effect)](effect, self.machine)


@pytest.fixture
def case() -> Case:
    return Case()


def leased_resource(request: Any) -> Resource:
    """What a request writes, judged by its own fields and its family alone."""
    if hasattr(request, "partition"):
        if isinstance(request, CoverageStoreRequest):
            return Resource(role=Role.AUDITOR, number=0)
        archive = type(request).__name__ in {"OpenArchive", "CommitArchive"}
        role = Role.ARCHIVER if archive else Role.FANOUT
        return Resource(role=role, number=request.partition)
    if isinstance(request, (*get_args(SessionStoreRequest), RestartProjection)):
        return Resource(role=Role.SESSION, number=request.shard)
    message = store_role(request).value == "message"
    return Resource(role=Role.WRITER if message else Role.MAILBOX, number=request.shard)


# ------------------------------------------------------------ the store

LEASED = tuple(kind for kind in FENCED if kind not in READS_UNDER_AN_EPOCH)
FREE = tuple(kind for kind in KINDS if kind not in LEASED)


def test_every_request_of_the_store_has_a_route(case: Case) -> None:
    assert set(case.store) == set(get_args(StoreRequest)) == set(LEASED) | set(FREE)


@pytest.mark.parametrize("kind", LEASED, ids=lambda kind: kind.__name__)
def test_a_write_whose_lease_is_gone_is_not_handed_to_io(case: Case, kind: type) -> None:
    request = sample(kind)
    resource = leased_resource(request)
    case.keeper.held = {(resource, request.epoch + 1), (resource, request.epoch - 1)}
    case.give(case.store, request)
    assert case.machine.heard == [Failed(op=request.op, why=FailReason.LEASE_LOST)]
    assert (case.message.requests, case.mailbox.requests) == ([], [])
    case.keeper.held = {(resource, request.epoch)}
    case.give(case.store, request)
    assert case.machine.heard[1:] == [f"answer to {kind.__name__}"]
    assert case.keeper.asked == [(resource, request.epoch)] * 2


@pytest.mark.parametrize("kind", FREE, ids=lambda kind: kind.__name__)
def test_what_needs_no_lease_goes_straight_to_its_store(case: Case, kind: type) -> None:
    request = sample(kind)
    case.give(case.store, request)
    message = store_role(request).value == "message"
    assert case.message.requests == ([request] if message else [])
    assert case.mailbox.requests == ([] if message else [request])
    assert case.machine.heard == [f"answer to {kind.__name__}"]
    assert case.keeper.asked == []


# ------------------------------------------------------------ the log


def append(topic: Topic, epoch: int = 7) -> Append:
    record = LogRecord(key=b"", value=b"v")
    return Append(op=5, topic=topic, partition=3, epoch=epoch, records=(record,))


def test_an_outbox_append_is_checked_and_a_dispatch_is_not(case: Case) -> None:
    case.give(case.logs, append(Topic.OUTBOX))
    assert case.machine.heard == [Failed(op=5, why=FailReason.LEASE_LOST)]
    case.keeper.held = {(Resource(role=Role.WRITER, number=3), 7)}
    case.give(case.logs, append(Topic.OUTBOX))
    # A fanout appends to shards it doesn't own: a late dispatch is claimed away downstream.
    case.give(case.logs, append(Topic.DISPATCH, epoch=99))
    assert [one.topic for one in case.log.requests] == [Topic.OUTBOX, Topic.DISPATCH]
    assert case.machine.heard[1:] == ["answer to Append"] * 2


def test_reads_of_the_log_go_through(case: Case) -> None:
    assert set(case.logs) == set(get_args(LogRequest))
    fetch = Fetch(op=1, topic=Topic.OUTBOX, partition=0, offset=0, limit=1, bytes_max=1, wait_ms=0)
    case.give(case.logs, fetch)
    case.give(case.logs, ReadEnds(op=2, topic=Topic.DISPATCH, partition=0))
    assert case.machine.heard == ["answer to Fetch", "answer to ReadEnds"]
    assert case.keeper.asked == []


# ------------------------------------------------------------ registry, bus, network


def test_the_registry_answers_the_machine_that_asked() -> None:
    port, asking = Port(), Asking()
    routes = registry_routes(port)
    assert set(routes) == set(get_args(RegistryRequest))
    resource = Resource(role=Role.WRITER, number=1)
    acquire = Acquire(op=1, resource=resource, owner="o", address="a", ttl_ms=1)
    hosted: Any = asking
    routes[Acquire](acquire, hosted)
    assert asking.heard == ["answer to Acquire"]


def test_leases_go_to_the_machine_of_their_role_and_wishes_to_the_keeper(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machines: dict[str, Any] = {name: Asking() for name in ("keeper", "writer", "mailbox")}
    routes = lease_bus(
        lambda: machines["keeper"],
        {
            Role.WRITER: lambda: machines["writer"],
            Role.INSTANCE: lambda: machines["writer"],
            Role.MAILBOX: lambda: machines["mailbox"],
        },
    )

    def held(role: Role) -> LeaseHeld:
        resource = Resource(role=role, number=1)
        return LeaseHeld(resource=resource, epoch=1, barrier_epoch=0, barrier_offset=-1, wall=1)

    def now(role: Role) -> LeaseHeld:
        return replace(held(role), wall=2)

    monkeypatch.setattr("qim.services.routing.wall_ms", lambda: 2)
    facts = {role: held(role) for role in Role}
    for fact in facts.values():
        routes[LeaseHeld](fact, machines["keeper"])
    gone = LeaseGone(resource=Resource(role=Role.MAILBOX, number=2))
    routes[LeaseGone](gone, machines["keeper"])
    wish = FreshEpochWanted(resource=gone.resource)
    routes[FreshEpochWanted](wish, machines["mailbox"])
    # The keeper carries on the wall time of its start; the edge says what it is now.
    assert machines["writer"].heard == [now(Role.WRITER), now(Role.INSTANCE)]
    assert machines["mailbox"].heard == [now(Role.MAILBOX), gone]
    assert machines["keeper"].heard == [wish], "roles nobody plays here are nobody's"


def network(
    *roles: ServiceRole, remote: Callable[[Send], None] | None = None
) -> tuple[Network, dict[ServiceRole, Any]]:
    machines: dict[ServiceRole, Any] = {role: Asking(role.value) for role in roles}
    return Network("here", machines, remote), machines


ASKED = {
    ServiceRole.WRITER: WRITER_ASKS,
    ServiceRole.MAILBOX: MAILBOX_ASKS,
    ServiceRole.SESSION: SESSION_ASKS,
}
TALKERS = (*ASKED, ServiceRole.GATEWAY)


def of_kind(kind: Any) -> Any:
    return kind(**dict.fromkeys(kind.__struct_fields__))


@pytest.mark.parametrize("kind", get_args(Message), ids=lambda kind: kind.__name__)
def test_a_message_goes_to_the_machine_its_type_names(kind: type) -> None:
    net, machines = network(*TALKERS)
    message = of_kind(kind)
    net.route(Send(address="here", message=message), machines[ServiceRole.GATEWAY])
    net.route(Send(address="elsewhere", message=message), machines[ServiceRole.GATEWAY])
    wanted = next((role for role, kinds in ASKED.items() if kind in kinds), ServiceRole.GATEWAY)
    for role, machine in machines.items():
        assert len(machine.heard) == (1 if role is wanted else 0), "nothing is owed to elsewhere"
    (received,) = machines[wanted].heard
    assert isinstance(received, Received)
    assert received.source == "here"
    assert received.message is message
    assert received.wall > 0


def test_what_the_session_asks_is_answered_to_the_session() -> None:
    net, machines = network(*TALKERS)
    question: Any = AskSummaries(rid=1, actor=Actor("t", 1, b"d"), window=1, items=())
    net.route(Send(address="here", message=question), machines[ServiceRole.SESSION])
    (received,) = machines[ServiceRole.WRITER].heard
    answer = SummariesAnswer(rid=1, summaries=())
    net.route(Send(address=received.source, message=answer), machines[ServiceRole.WRITER])
    assert [one.message for one in machines[ServiceRole.SESSION].heard] == [answer]
    assert machines[ServiceRole.GATEWAY].heard == []


def test_what_is_for_another_process_leaves_this_one_and_no_other_does() -> None:
    sent: list[Send] = []
    net, machines = network(ServiceRole.GATEWAY, remote=sent.append)
    away = Send(address="elsewhere", message=of_kind(AskSummaries))
    net.route(away, machines[ServiceRole.GATEWAY])
    assert sent == [away]
    assert machines[ServiceRole.GATEWAY].heard == []


@pytest.mark.parametrize("kind", get_args(Message), ids=lambda kind: kind.__name__)
def test_a_process_of_one_role_hears_what_is_for_that_role(kind: type) -> None:
    for role in TALKERS:
        net, machines = network(role)
        received = Received(source="elsewhere", wall=1, message=of_kind(kind))
        net.received(received)
        asked = next((one for one, kinds in ASKED.items() if kind in kinds), None)
        answered = asked is None and role in (ServiceRole.GATEWAY, ServiceRole.SESSION)
        heard = asked is role or answered
        assert machines[role].heard == ([received] if heard else [])
        assert net.misdirected == (0 if heard else 1)
