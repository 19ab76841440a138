"""Who plays in a world: the machines of each role, made as the services make them, and the routes of their effects."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, get_args

from qim.core.archiver import ArchiverConfig, HistoryArchiver
from qim.core.audit import AuditConfig, Auditor
from qim.core.client import Client, ClientConfig
from qim.core.client.vocabulary import ClientNotice
from qim.core.contract.params import DEFAULT, Parameters
from qim.core.contract.tokens import AccessToken, sign_token
from qim.core.fanout import FanoutConfig, FanoutCoordinator
from qim.core.gateway import ConnectionNode, GatewayConfig
from qim.core.lease import LeaseConfig, LeaseKeeper
from qim.core.mailbox import MailboxConfig, MailboxNode
from qim.core.ports.archive import ArchiveRequest
from qim.core.ports.completion import StoreRole
from qim.core.ports.local import FreshEpochWanted, LeaseGone, LeaseHeld
from qim.core.ports.local_store import LocalStoreRequest
from qim.core.ports.log import Append, Fetch, ReadEnds
from qim.core.ports.network import Send
from qim.core.ports.observe import Observation
from qim.core.ports.registry import RegistryRequest, Resource, Role
from qim.core.ports.sockets import CloseSocket, Dial, PauseReading, ResumeReading, Write
from qim.core.ports.store_audit import CoverageStoreRequest
from qim.core.ports.store_history import HistoryStoreRequest
from qim.core.ports.store_mailbox import MailboxStoreRequest, RefreshPresence
from qim.core.ports.store_message import MessageStoreRequest
from qim.core.ports.store_session import SessionStoreRequest
from qim.core.retention import RetentionPolicy
from qim.core.session import SessionConfig, SessionProjection
from qim.core.writer import Writer, WriterConfig
from qim.sim.choice import choose
from qim.sim.node import Host, HostedMachine, Node, Route, lease_bus, route_local
from qim.sim.secret import SECRET

if TYPE_CHECKING:
    from qim.sim.localstore import Device
    from qim.sim.plan import Plan
    from qim.sim.scene import Scene

TENANT: Final = "default"
FOREVER: Final = 1 << 60
HOUR_MS: Final = 3_600_000
MINUTE_MS: Final = 60_000
BRIEF_LOOK_MS: Final = 300
"""How often what is due is looked for, where windows are seconds."""


def parameters(plan: "Plan") -> Parameters:
    """The world's parameter set: the drawn compressed windows over the defaults, in legal order."""
    small = plan.parameters
    made = Parameters(
        shard_count=plan.topology.shards,
        outbox_partition_count=plan.topology.outbox_partitions,
        lease_ttl_ms=small.lease_ttl_ms,
        lease_renew_ms=small.lease_renew_ms,
        lease_margin_ms=small.lease_margin_ms,
        heartbeat_ms=small.heartbeat_ms,
        idle_kill_ms=small.idle_kill_ms,
        presence_ttl_ms=small.presence_ttl_ms,
        presence_refresh_ms=small.presence_refresh_ms,
        not_after_ms=small.not_after_ms,
        not_after_slack_ms=small.not_after_slack_ms,
        dedupe_window_ms=small.dedupe_window_ms,
        hot_window_ms=max(small.hot_window_ms, small.dedupe_window_ms + 1),
        page_default=small.page_default,
        outbox_recovery_window_ms=DEFAULT.default_retention_ms,
        dispatch_recovery_window_ms=DEFAULT.default_retention_ms,
    )
    faults = made.order_faults()
    assert not faults, faults
    return made


def service_machines(scene: "Scene", node: Node) -> list[Host]:
    """The hosts of a new process of ``node``'s role."""
    if node.role == "auditor":
        return auditor_machines(scene, node)
    machine = _MAKERS[node.role](scene, node)
    host = _host(scene, node, node.role, machine)
    scene.network.addresses[node.name] = host
    if node.role == "gateway":
        scene.streams.listeners[node.name] = host
        return [host]
    topology = scene.plan.topology
    leased, per_partition = _LEASES[node.role]
    count = topology.outbox_partitions if per_partition else topology.shards
    instance = Resource(role=Role.INSTANCE, number=_number(node))
    pinned = (instance,) if node.role == "writer" else ()
    return [host, _keeper(scene, host, (leased, count), pinned)]


def auditor_machines(scene: "Scene", node: Node) -> list[Host]:
    """The hosts of an auditor; whoever asks for a report puts in a route for it (auditing.py)."""
    config = AuditConfig(
        shard_count=scene.plan.topology.shards,
        outbox_partition_count=scene.plan.topology.outbox_partitions,
    )
    host = _host(scene, node, node.role, Auditor(config, choose=node.choose()))
    return [host, _keeper(scene, host, (Role.AUDITOR, 1), ())]


def _keeper(
    scene: "Scene", host: Host, leased: tuple[Role, int], pinned: tuple[Resource, ...]
) -> Host:
    """Beside the machine of ``host``, whose leases it keeps."""
    made, node = scene.parameters, host.node
    lease = LeaseConfig(
        owner=f"{node.name}.{node.generation}",
        address=node.name,
        roles=(leased,),
        pinned=pinned,
        ttl_ms=made.lease_ttl_ms,
        renew_ms=made.lease_renew_ms,
        margin_ms=made.lease_margin_ms,
        retry_ms=max(50, made.lease_renew_ms // 6),
    )
    keeper = _host(scene, node, "lease", LeaseKeeper(lease, choose=node.choose()))
    lease_bus(host, keeper)
    return keeper


def _writer(scene: "Scene", node: Node) -> HostedMachine:
    made, small = scene.parameters, scene.plan.parameters
    config = WriterConfig(
        instance=_number(node),
        instance_leased=True,
        outbox_partition_count=scene.plan.topology.outbox_partitions,
        not_after_max_ms=made.not_after_ms + made.not_after_slack_ms,
        tiered=True,
        membership_broadcast_max=small.membership_broadcast_max,
        hot_window_ms=small.hot_window_ms,
        retention=_retention(scene),
        trim_every_ms=_housekeeping_ms(scene),
    )
    return Writer(config, choose=node.choose())


def _fanout(scene: "Scene", node: Node) -> HostedMachine:
    config = FanoutConfig(
        shard_count=scene.plan.topology.shards,
        inline_body_bytes_max=scene.plan.parameters.inline_body_bytes_max,
    )
    return FanoutCoordinator(config, choose=node.choose())


def _mailbox(scene: "Scene", node: Node) -> HostedMachine:
    small = scene.plan.parameters
    config = MailboxConfig(
        shard_count=scene.plan.topology.shards,
        outbox_partition_count=scene.plan.topology.outbox_partitions,
        secret=SECRET,
        page_default=scene.parameters.page_default,
        archived=True,
        retention=_retention(scene),
        mailbox_day_ms=small.mailbox_day_ms,
        mailbox_retention_ms=small.mailbox_retention_ms,
        read_back_ms=small.read_back_ms,
        trim_ms=BRIEF_LOOK_MS if small.mailbox_retention_ms < HOUR_MS else MINUTE_MS,
    )
    return MailboxNode(config, choose=node.choose())


def _session(scene: "Scene", node: Node) -> HostedMachine:
    topology = scene.plan.topology
    config = SessionConfig(
        shard_count=topology.shards, outbox_partition_count=topology.outbox_partitions
    )
    return SessionProjection(config, choose=node.choose())


def _archiver(scene: "Scene", node: Node) -> HostedMachine:
    config = ArchiverConfig(retention=_retention(scene), expire_every_ms=_housekeeping_ms(scene))
    return HistoryArchiver(config, choose=node.choose())


def _gateway(scene: "Scene", node: Node) -> HostedMachine:
    config = GatewayConfig(
        token_secrets=(SECRET,),
        parameters=scene.parameters,
        request_timeout_ms=scene.plan.parameters.request_timeout_ms,
    )
    return ConnectionNode(config, choose=node.choose())


_MAKERS: Final[dict[str, Callable[["Scene", Node], HostedMachine]]] = {
    "writer": _writer,
    "fanout": _fanout,
    "mailbox": _mailbox,
    "session": _session,
    "archiver": _archiver,
    "gateway": _gateway,
}
_LEASES: Final[dict[str, tuple[Role, bool]]] = {
    "writer": (Role.WRITER, True),
    "fanout": (Role.FANOUT, True),
    "archiver": (Role.ARCHIVER, True),
    "mailbox": (Role.MAILBOX, False),
    "session": (Role.SESSION, False),
}
"""What a role leases, and whether there is one an outbox partition (else one a mailbox shard)."""


def _number(node: Node) -> int:
    return int(node.name.rpartition("-")[2])


def _retention(scene: "Scene") -> RetentionPolicy:
    return RetentionPolicy(ephemeral_ms=scene.plan.parameters.ephemeral_ms)


def _housekeeping_ms(scene: "Scene") -> int:
    """Compressed windows want to be looked at oftener than real ones."""
    return BRIEF_LOOK_MS if scene.plan.parameters.hot_window_ms < HOUR_MS else MINUTE_MS


def client_machines(scene: "Scene", node: Node, device: "Device", gateway: int) -> list[Host]:
    """A client process over its device's disk; it dials its own gateway first."""
    count = scene.plan.topology.gateways
    addresses = tuple(f"gateway-{(gateway + i) % count + 1}" for i in range(count))
    token = AccessToken(
        tenant_id=TENANT, user_id=device.user_id, device_id=device.device_id, expires_at=FOREVER
    )
    config = ClientConfig(
        user_id=device.user_id,
        device_id=device.device_id,
        access_token=sign_token(token, SECRET),
        addresses=addresses,
        parameters=scene.parameters,
    )
    machine = Client(config, choose=node.choose())
    return [_host(scene, node, "client", machine, scene.client_routes[node.name])]


def _host(
    scene: "Scene",
    node: Node,
    name: str,
    machine: HostedMachine,
    routes: Mapping[type, Route] | None = None,
) -> Host:
    identity = choose(scene.plan.seed, "process", (node.name, node.generation, name))
    return Host(
        node,
        f"{node.name}/{name}",
        machine,
        scene.routes if routes is None else routes,
        identity=identity,
        observe=scene.observe,
    )


def service_routes(scene: "Scene") -> dict[type, Route]:
    """Every effect a service can order, to the fake that carries it out."""
    routes: dict[type, Route] = {}
    for kind in _STORE_ROLES:
        routes[kind] = scene.stores[_role_of(kind)].request
    for kind in get_args(ArchiveRequest):
        routes[kind] = scene.archive.request
    for kind in get_args(RegistryRequest):
        routes[kind] = scene.registry.request
    for kind in get_args(Observation):
        routes[kind] = scene.history.observed
    for kind in (LeaseHeld, LeaseGone, FreshEpochWanted):
        routes[kind] = route_local
    routes[Append] = scene.log.append
    routes[Fetch] = scene.log.fetch
    routes[ReadEnds] = scene.log.read_ends
    routes[Send] = scene.send
    routes[RefreshPresence] = scene.refresh
    routes[Write] = scene.streams.write
    routes[CloseSocket] = scene.streams.close
    routes[PauseReading] = scene.streams.pause_reading
    routes[ResumeReading] = scene.streams.resume_reading
    return routes


def device_routes(scene: "Scene", device: "Device") -> dict[type, Route]:
    """What a client can order: its stream, its disk, and notices to its user."""
    routes: dict[type, Route] = {
        Dial: scene.streams.dial,
        Write: scene.streams.write,
        CloseSocket: scene.streams.close,
    }
    for kind in get_args(LocalStoreRequest):
        routes[kind] = device.request

    def notice(host: Host, effect: Any) -> None:
        scene.history.notice(device, effect)

    for kind in get_args(ClientNotice):
        routes[kind] = notice
    for kind in get_args(Observation):
        routes[kind] = scene.history.observed
    return routes


def _role_of(kind: type) -> StoreRole:
    return _STORE_ROLES[kind]


_STORE_ROLES: Final[dict[type, StoreRole]] = {
    **dict.fromkeys(get_args(MessageStoreRequest), StoreRole.MESSAGE),
    **dict.fromkeys(get_args(HistoryStoreRequest), StoreRole.MESSAGE),
    **dict.fromkeys(get_args(CoverageStoreRequest), StoreRole.MESSAGE),
    **dict.fromkeys(get_args(MailboxStoreRequest), StoreRole.MAILBOX),
    **dict.fromkeys(get_args(SessionStoreRequest), StoreRole.MAILBOX),
}
