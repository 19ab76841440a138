"""Which machines a process hosts, over which ports, under which leases: the one assembly of `qim up` and `qim serve`.

An embedded server hosts every role over one store and one file; a process of a cluster hosts one role over real servers.
Messages between machines of one process never leave it, others go through the network port (architecture.md, The runtime).
"""

import asyncio
import secrets
from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from qim.adapters.reporting import SILENT, Reporting
from qim.adapters.tcp.server import TcpServer
from qim.adapters.wall_clock import wall_ms
from qim.core.archiver import ArchiverConfig, HistoryArchiver
from qim.core.audit import AuditConfig, AuditFinished, Auditor, AuditReport, AuditRequested
from qim.core.contract.params import Parameters
from qim.core.fanout import FanoutConfig, FanoutCoordinator
from qim.core.gateway import ConnectionNode, GatewayConfig
from qim.core.lease import LeaseConfig, LeaseKeeper
from qim.core.machine import ChoiceKey
from qim.core.mailbox import MailboxConfig, MailboxNode
from qim.core.ports.completion import StoreReset
from qim.core.ports.local import DrainRequested, Started
from qim.core.ports.moderation import FailPolicy
from qim.core.ports.network import Send
from qim.core.ports.registry import Resource, Role
from qim.core.ports.sockets import CloseSocket, PauseReading, ResumeReading, Write
from qim.core.retention import RetentionPolicy
from qim.core.session import SessionConfig, SessionProjection
from qim.core.writer import Writer, WriterConfig
from qim.services.lease_lines import LeaseLines
from qim.services.measured_port import MeasuredPort
from qim.services.roles import DRAIN_ORDER, LEASED, SERVES, ServiceRole, resources
from qim.services.routing import (
    Network,
    Port,
    archive_routes,
    lease_bus,
    leased_store_routes,
    log_routes,
    registry_routes,
)
from qim.services.runtime import Hosted, HostedMachine, Route, Runtime

AUDIT_SECONDS_MAX: Final = 300.0
REST_LOOK_SECONDS: Final = 0.01
LEASES_SECONDS: Final = 1.0
"""For giving leases back, when nothing else is left of a drain's time."""
KEEPER: Final = "lease"


def random_choice(site: str, key: ChoiceKey) -> int:
    """The only entropy of production machines."""
    return secrets.randbits(64)


class Ports(Struct, kw_only=True):
    """The outsides of one process. ``message`` and ``mailbox`` may be one store; ``archive`` only where it is used."""

    message: Port
    mailbox: Port
    log: Port
    registry: Port
    archive: Port | None = None


class Deployment(Struct, frozen=True, kw_only=True):
    """What machines are told beside the contract's parameters.

    ``secrets``: the first signs tokens and cursors, all of them verify tokens. ``instance``: the writer's number, under the
    epoch it was leased with (message ids hold both, and may be made before the keeper has taken the lease anew).
    """

    parameters: Parameters
    retention: RetentionPolicy = RetentionPolicy()
    secrets: tuple[bytes, ...] = ()
    instance: int = 0
    instance_epoch: int = 1
    before_send: FailPolicy = FailPolicy.OFF
    after_send: bool = False
    """Whether the writer asks before it takes a message, and tells afterwards (ports/moderation.py)."""

    @property
    def tiered(self) -> bool:
        """Old history moves into an archive."""
        return self.parameters.message_store_backend == "tiered"


class Hosting:
    """One process's machines. ``host`` them, ``start`` them, ``drain`` them; all from one event loop."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        runtime: Runtime,
        ports: Ports,
        deployment: Deployment,
        *,
        owner: str,
        address: str,
        reporting: Reporting = SILENT,
    ) -> None:
        """``reporting``: of what becomes of leases, as lines."""
        self.runtime = runtime
        self._leases = LeaseLines(loop, reporting.log)
        self.machines: dict[ServiceRole, Any] = {}
        self.hosts: dict[ServiceRole, Hosted] = {}
        self.deployment = deployment
        self.address = address
        self._loop = loop
        self._ports = ports
        self._owner = owner
        self._unbegun: list[Hosted] = []
        self._audits: dict[int, asyncio.Future[AuditReport]] = {}
        self._audit_tickets = 0
        self.keeper = LeaseKeeper(LeaseConfig(owner=owner, address=address), choose=random_choice)
        self.keeper_host: Hosted | None = None
        self.network = Network(address, self.hosts)

    def host(
        self,
        roles: Sequence[ServiceRole],
        *,
        owner: str | None = None,
        remote: Callable[[Send], None] | None = None,
        own: Mapping[type, Route] | None = None,
    ) -> None:
        """Make the roles' machines and their lease keeper; nothing steps before ``start``.

        ``remote`` takes what is for other processes; ``own``: routes of what one role alone orders (sockets, hooks).
        """
        self._owner = owner or self._owner
        self.keeper = self._new_keeper(roles)
        self.network = Network(self.address, self.hosts, remote)
        routes = self._routes() | dict(own or {})
        self.keeper_host = self.runtime.add(
            KEEPER, self.keeper, routes | self._leases.routes(routes, self.runtime.count)
        )
        self._unbegun.append(self.keeper_host)
        for role in roles:
            if role is ServiceRole.AUDITOR:
                routes = routes | self._audit_routes()
            if role in self.hosts:
                # An auditor that was here before the others: what it orders is checked against this keeper now.
                self.hosts[role].routes.update(routes)
            else:
                self._add(role, machine_of(role, self.deployment), routes)

    def host_auditor(self) -> None:
        """The auditor alone, with no keeper: it looks, and moves no CoverageCursor until ``host`` gives it one."""
        auditor = machine_of(ServiceRole.AUDITOR, self.deployment)
        self._add(ServiceRole.AUDITOR, auditor, self._port_routes() | self._audit_routes())
        self.start()

    def start(self) -> None:
        """Let each machine begin that has not yet."""
        for hosted in self._unbegun:
            hosted.post(Started(address=self.address, wall=wall_ms()))
        self._unbegun = []

    def store_was_reset(self, reset: StoreReset) -> None:
        """Another incarnation was seen at the connection: every machine with store state re-opens (pipeline.md §0)."""
        for hosted in self.hosts.values():
            hosted.post(reset)

    def not_serving(self) -> str:
        """What is wished for and not open yet, as words; empty when everything serves.

        Wished for is what rendezvous over the live processes gives to this one: alone, everything.
        """
        told: list[str] = []
        for role, machine in self.machines.items():
            if role not in SERVES:
                continue
            wanted = self._wished(LEASED[role])
            if wanted is None:
                wanted = resources(role, self.deployment.parameters)
            have = machine.serving()
            if have < wanted:
                told.append(f"{have} of {wanted} {SERVES[role]}")
        return ", ".join(told)

    def serving(self, role: ServiceRole) -> int:
        """Shards or partitions of the role that are open here; 0 where it has none."""
        return self.machines[role].serving() if role in SERVES and role in self.machines else 0

    def knows_peers(self) -> bool:
        """The registry has told which processes play the roles of this one: what is wished for is known."""
        return all(
            self.keeper.knows_peers(LEASED[role]) for role in self.machines if role in LEASED
        )

    async def drain(self, seconds_max: float) -> str:
        """Finish what is in flight, give the leases back; who did not come to rest in time and with what, as words."""
        deadline = self._loop.time() + seconds_max
        hosts = [self.hosts[role] for role in DRAIN_ORDER if role in self.hosts]
        restless: list[str] = []
        for hosted in hosts:
            hosted.post(DrainRequested())
            if not await self._rest(hosted, deadline):
                restless.append(hosted.in_flight())
        if (keeper := self.keeper_host) is not None:
            # Also where machines used up the time: what they have in flight is fenced, and others need not wait.
            keeper.post(DrainRequested())
            if not await self._rest(keeper, max(deadline, self._loop.time() + LEASES_SECONDS)):
                restless.append(keeper.in_flight())
        return "; ".join(restless)

    async def audit(self) -> AuditReport:
        """Run the orphan audit (pipeline.md §8)."""
        self._audit_tickets += 1
        future: asyncio.Future[AuditReport] = self._loop.create_future()
        self._audits[self._audit_tickets] = future
        ticket = self._audit_tickets
        self.hosts[ServiceRole.AUDITOR].post(AuditRequested(ticket=ticket))
        try:
            async with asyncio.timeout(AUDIT_SECONDS_MAX):
                return await future
        finally:
            self._audits.pop(ticket, None)

    # ------------------------------------------------------------ parts of the above

    def _new_keeper(self, roles: Sequence[ServiceRole]) -> LeaseKeeper:
        deployment, parameters = self.deployment, self.deployment.parameters
        number = Resource(role=Role.INSTANCE, number=deployment.instance)
        config = LeaseConfig(
            owner=self._owner,
            address=self.address,
            roles=tuple(
                [(LEASED[role], resources(role, parameters)) for role in roles if role in LEASED]
            ),
            pinned=(number,) if ServiceRole.WRITER in roles else (),
            ttl_ms=parameters.lease_ttl_ms,
            renew_ms=parameters.lease_renew_ms,
            margin_ms=parameters.lease_margin_ms,
        )
        return LeaseKeeper(config, choose=random_choice)

    def _wished(self, role: Role) -> int | None:
        """Leases of the role that this process should hold; None while it doesn't know its peers."""
        wishes = [one.wished for one in self.keeper.leases.values() if one.resource.role is role]
        return sum(wishes) if self.keeper.knows_peers(role) else None

    def _add(self, role: ServiceRole, machine: HostedMachine, routes: dict[type, Route]) -> None:
        self.machines[role] = machine
        self.hosts[role] = self.runtime.add(role.value, machine, routes)
        self._unbegun.append(self.hosts[role])

    def _port_routes(self) -> dict[type, Route]:
        ports, timers = self._ports, self.runtime.timer
        message, mailbox = (MeasuredPort(one, timers) for one in (ports.message, ports.mailbox))
        routes = leased_store_routes(self.keeper, message, mailbox)
        routes.update(log_routes(MeasuredPort(ports.log, timers), self.keeper))
        routes.update(registry_routes(MeasuredPort(ports.registry, timers)))
        if ports.archive is not None:
            routes.update(archive_routes(MeasuredPort(ports.archive, timers)))
        return routes

    def _routes(self) -> dict[type, Route]:
        def keeper() -> Hosted:
            assert self.keeper_host is not None
            return self.keeper_host

        def host(role: ServiceRole) -> Callable[[], Hosted]:
            return lambda: self.hosts[role]

        roles = {lease: host(role) for role, lease in LEASED.items()}
        roles[Role.INSTANCE] = roles[Role.WRITER]
        return self._port_routes() | lease_bus(keeper, roles) | {Send: self.network.route}

    def _audit_routes(self) -> dict[type, Route]:
        def finished(effect: AuditFinished, _: Hosted) -> None:
            future = self._audits.get(effect.ticket)
            if future is not None and not future.done():
                future.set_result(effect.report)

        return {AuditFinished: finished}

    async def _rest(self, hosted: Hosted, deadline: float) -> bool:
        """Wait until the machine is idle; polled, since nothing else may be in a machine's way."""
        while not (hosted.machine.idle() and not hosted.inbox):
            if self._loop.time() >= deadline:
                return False
            await asyncio.sleep(REST_LOOK_SECONDS)
        return True


def socket_routes(tcp: TcpServer) -> dict[type, Route]:
    """The gateway's socket effects."""
    return {
        Write: tcp.write,
        CloseSocket: tcp.close,
        PauseReading: tcp.pause,
        ResumeReading: tcp.resume,
    }


# ------------------------------------------------------------ machines


def machine_of(role: ServiceRole, deployment: Deployment) -> Any:
    """The role's machine with this deployment's numbers."""
    return _MACHINES[role](deployment)


def _writer(deployment: Deployment) -> Writer:
    parameters = deployment.parameters
    config = WriterConfig(
        instance=deployment.instance,
        instance_epoch=deployment.instance_epoch,
        instance_leased=True,
        outbox_partition_count=parameters.outbox_partition_count,
        not_after_max_ms=parameters.not_after_ms + parameters.not_after_slack_ms,
        clock_ahead_max_ms=parameters.clock_ahead_max_ms,
        group_members_max=parameters.group_members_max,
        membership_broadcast_max=parameters.membership_broadcast_max,
        tiered=deployment.tiered,
        hot_window_ms=parameters.hot_window_ms,
        recall_window_ms=parameters.recall_window_ms,
        unread_window_max=parameters.unread_window_max,
        retention=deployment.retention,
        before_send=deployment.before_send,
        after_send=deployment.after_send,
    )
    return Writer(config, choose=random_choice)


def _fanout(deployment: Deployment) -> FanoutCoordinator:
    parameters = deployment.parameters
    config = FanoutConfig(
        shard_count=parameters.shard_count, fetch_records_max=parameters.fanout_batch_max
    )
    return FanoutCoordinator(config, choose=random_choice)


def _mailbox(deployment: Deployment) -> MailboxNode:
    parameters = deployment.parameters
    config = MailboxConfig(
        shard_count=parameters.shard_count,
        outbox_partition_count=parameters.outbox_partition_count,
        secret=deployment.secrets[0],
        archived=deployment.tiered,
        retention=deployment.retention,
        mailbox_retention_ms=parameters.mailbox_retention_ms,
        read_back_ms=parameters.read_back_ms,
    )
    return MailboxNode(config, choose=random_choice)


def _session(deployment: Deployment) -> SessionProjection:
    parameters = deployment.parameters
    config = SessionConfig(
        shard_count=parameters.shard_count,
        outbox_partition_count=parameters.outbox_partition_count,
        page_default=parameters.page_default,
        page_max=parameters.page_max,
        page_bytes_max=parameters.batch_bytes_max,
        unread_window=parameters.unread_window_max,
    )
    return SessionProjection(config, choose=random_choice)


def _archiver(deployment: Deployment) -> HistoryArchiver:
    config = ArchiverConfig(
        retention=deployment.retention, batch_rows_max=deployment.parameters.archiver_batch_max
    )
    return HistoryArchiver(config, choose=random_choice)


def _gateway(deployment: Deployment) -> ConnectionNode:
    config = GatewayConfig(token_secrets=deployment.secrets, parameters=deployment.parameters)
    return ConnectionNode(config, choose=random_choice)


def _auditor(deployment: Deployment) -> Auditor:
    parameters = deployment.parameters
    config = AuditConfig(
        shard_count=parameters.shard_count,
        outbox_partition_count=parameters.outbox_partition_count,
    )
    return Auditor(config, choose=random_choice)


_MACHINES: Final[Mapping[ServiceRole, Callable[[Deployment], Any]]] = {
    ServiceRole.WRITER: _writer,
    ServiceRole.FANOUT: _fanout,
    ServiceRole.MAILBOX: _mailbox,
    ServiceRole.SESSION: _session,
    ServiceRole.ARCHIVER: _archiver,
    ServiceRole.GATEWAY: _gateway,
    ServiceRole.AUDITOR: _auditor,
}
