"""Where each effect of a machine goes in one process: ports, the network, the local bus (architecture.md, The runtime).

In an embedded server every role lives in one process, so a network message goes to the machine that its type names; in a
cluster the same table sends what is not ours through a connection.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, get_args

from msgspec.structs import replace

from qim.adapters.wall_clock import wall_ms
from qim.core.audit.tenure import COVERAGE
from qim.core.contract.rpc import (
    AskHistory,
    AskMembers,
    AskPull,
    AskSync,
    AskWatermark,
    Message,
    SubmitGroup,
    SubmitOverlay,
    SubmitSend,
)
from qim.core.contract.rpc_session import (
    AskReadBy,
    AskSessionList,
    AskStates,
    AskSummaries,
    SubmitRead,
    SubmitState,
)
from qim.core.lease import LeaseKeeper
from qim.core.ports.archive import ArchiveRequest
from qim.core.ports.completion import Failed, FailReason
from qim.core.ports.local import FreshEpochWanted, LeaseGone, LeaseHeld
from qim.core.ports.log import LogRequest, Topic
from qim.core.ports.network import Received, Send
from qim.core.ports.registry import RegistryRequest, Resource, Role
from qim.core.ports.store_audit import CoverageStoreRequest
from qim.core.ports.store_history import HistoryStoreRequest
from qim.core.ports.store_mailbox import MailboxStoreRequest
from qim.core.ports.store_message import MessageStoreRequest
from qim.core.ports.store_operator import OperatorMailboxRequest, OperatorMessageRequest
from qim.core.ports.store_session import SessionStoreRequest
from qim.services.roles import ServiceRole
from qim.services.runtime import Hosted, Route, monotonic_ms, routes_for

WRITER_ASKS: Final = frozenset(
    {SubmitSend, SubmitGroup, SubmitOverlay, AskHistory, AskMembers, AskSummaries}
)
MAILBOX_ASKS: Final = frozenset({AskSync, AskPull, AskWatermark})
SESSION_ASKS: Final = frozenset({SubmitRead, SubmitState, AskSessionList, AskStates, AskReadBy})


class Port(Protocol):
    """One outside: ``answer`` is called exactly once, on the event loop."""

    def submit(self, request: Any, answer: Callable[[Any], None]) -> None: ...


def port_routes(types: Any, port: Port) -> dict[type, Route]:
    """Every request of a union to its port, its answer back to the asking machine."""

    def route(effect: Any, hosted: Hosted) -> None:
        port.submit(effect, hosted.post)

    return routes_for(get_args(types), route)


_LEASED: Final[dict[str, Role]] = {
    "OpenShard": Role.WRITER,
    "ApplyOutbox": Role.WRITER,
    "ReserveAndRecord": Role.WRITER,
    "MembershipChange": Role.WRITER,
    "MarkCommitted": Role.WRITER,
    "MarkRefused": Role.WRITER,
    "WriteHeads": Role.WRITER,
    "TrimHot": Role.WRITER,
    "RestoreConversations": Role.WRITER,
    "OpenSource": Role.FANOUT,
    "CommitSource": Role.FANOUT,
    "OpenArchive": Role.ARCHIVER,
    "CommitArchive": Role.ARCHIVER,
    "OpenMailbox": Role.MAILBOX,
    "ClaimDispatches": Role.MAILBOX,
    "AppendEntries": Role.MAILBOX,
    "FinishDispatches": Role.MAILBOX,
    "RaiseFloor": Role.MAILBOX,
    "TrimMailbox": Role.MAILBOX,
    "OpenSession": Role.SESSION,
    "ProjectDispatches": Role.SESSION,
    "ApplyStates": Role.SESSION,
    "OpenCoverage": Role.AUDITOR,
    "AdvanceCoverage": Role.AUDITOR,
    "AmendSource": Role.FANOUT,
    "BumpShard": Role.MAILBOX,
    "RestartProjection": Role.SESSION,
}


def leased_store_routes(keeper: LeaseKeeper, message: Port, mailbox: Port) -> dict[type, Route]:
    """Store requests, each checked against the lease once more as it is handed to I/O (pipeline.md §0)."""
    routes: dict[type, Route] = {}
    unions = (
        (MessageStoreRequest, message),
        (HistoryStoreRequest, message),
        (CoverageStoreRequest, message),
        (MailboxStoreRequest, mailbox),
        (SessionStoreRequest, mailbox),
        (OperatorMessageRequest, message),
        (OperatorMailboxRequest, mailbox),
    )
    for union, port in unions:
        for kind in get_args(union) or (union,):
            role = _LEASED.get(kind.__name__)
            routes[kind] = _plain_route(port) if role is None else _leased_route(keeper, role, port)
    return routes


def _plain_route(port: Port) -> Route:
    def route(effect: Any, hosted: Hosted) -> None:
        port.submit(effect, hosted.post)

    return route


def _leased_route(keeper: LeaseKeeper, role: Role, port: Port) -> Route:
    numbered = "partition" if role in (Role.FANOUT, Role.ARCHIVER) else "shard"

    def route(effect: Any, hosted: Hosted) -> None:
        resource = (
            COVERAGE
            if role is Role.AUDITOR
            else Resource(role=role, number=getattr(effect, numbered))
        )
        if keeper.holds(resource, effect.epoch, monotonic_ms()):
            port.submit(effect, hosted.post)
        else:
            hosted.post(Failed(op=effect.op, why=FailReason.LEASE_LOST))

    return route


def log_routes(log: Port, keeper: LeaseKeeper) -> dict[type, Route]:
    """Log requests; an outbox append checks its lease at hand-off, a late one is harmless all the same."""

    def route(effect: Any, hosted: Hosted) -> None:
        log.submit(effect, hosted.post)

    def append(effect: Any, hosted: Hosted) -> None:
        if effect.topic is Topic.OUTBOX:
            resource = Resource(role=Role.WRITER, number=effect.partition)
            if not keeper.holds(resource, effect.epoch, monotonic_ms()):
                hosted.post(Failed(op=effect.op, why=FailReason.LEASE_LOST))
                return
        log.submit(effect, hosted.post)

    routes = routes_for(get_args(LogRequest), route)
    append_type = next(kind for kind in get_args(LogRequest) if kind.__name__ == "Append")
    routes[append_type] = append
    return routes


def archive_routes(archive: Port) -> dict[type, Route]:
    """Archive requests; inserts carry no fence and are harmless when late (pipeline.md §0)."""
    return port_routes(ArchiveRequest, archive)


def registry_routes(registry: Port) -> dict[type, Route]:
    """Registry requests."""
    return port_routes(RegistryRequest, registry)


def lease_bus(
    keeper: Callable[[], Hosted], roles: Mapping[Role, Callable[[], Hosted]]
) -> dict[type, Route]:
    """LeaseHeld and LeaseGone to the machine of the role, FreshEpochWanted to the keeper."""

    def told(effect: Any, _: Hosted) -> None:
        target = roles.get(effect.resource.role)
        if target is not None:
            target().post(effect)

    def held(effect: Any, hosted: Hosted) -> None:
        # Wall time is stamped at the edge: the keeper carries on the one of its start, and clocks are set meanwhile.
        told(replace(effect, wall=wall_ms()), hosted)

    def wanted(effect: Any, _: Hosted) -> None:
        keeper().post(effect)

    return {LeaseHeld: held, LeaseGone: told, FreshEpochWanted: wanted}


class Network:
    """Messages between machines: to one of this process directly, to any other through ``remote``.

    Gateway and session both ask writers, whose answers have the same types: where both live in one process, what the
    session asks carries an address of its own, and whatever is sent there is for it.
    """

    def __init__(
        self,
        address: str,
        hosts: Mapping[ServiceRole, Hosted],
        remote: Callable[[Send], None] | None = None,
    ) -> None:
        self._address = address
        self._session_address = f"{address}/session"
        self._hosts = hosts
        self._remote = remote
        self.misdirected = 0
        """Messages for a role that isn't played here (metric): somebody believes a stale address."""

    def route(self, effect: Send, sender: Hosted) -> None:
        """Route of Send."""
        message, to = effect.message, effect.address
        if to == self._session_address:
            self._post(ServiceRole.SESSION, self._local(message, sender))
        elif to == self._address:
            self._post(self._role(message), self._local(message, sender))
        elif self._remote is not None:
            self._remote(effect)

    def received(self, event: Received) -> None:
        """A message of another process."""
        self._post(self._role(event.message), event)

    def _role(self, message: Message) -> ServiceRole:
        role = _ASKED.get(type(message))
        if role is not None:
            return role
        return ServiceRole.GATEWAY if ServiceRole.GATEWAY in self._hosts else ServiceRole.SESSION

    def _local(self, message: Message, sender: Hosted) -> Received:
        apart = sender.name == ServiceRole.SESSION and ServiceRole.GATEWAY in self._hosts
        source = self._session_address if apart else self._address
        return Received(source=source, wall=wall_ms(), message=message)

    def _post(self, role: ServiceRole, event: Received) -> None:
        host = self._hosts.get(role)
        if host is None:
            self.misdirected += 1
        else:
            host.post(event)


_ASKED: Final[Mapping[type, ServiceRole]] = {
    **dict.fromkeys(WRITER_ASKS, ServiceRole.WRITER),
    **dict.fromkeys(MAILBOX_ASKS, ServiceRole.MAILBOX),
    **dict.fromkeys(SESSION_ASKS, ServiceRole.SESSION),
}
