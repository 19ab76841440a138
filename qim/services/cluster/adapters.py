"""The adapters of one process of a cluster: only those its role speaks to, each checked before anything is written.

They are imported here and as late as possible: `qim up` and the client commands work without the extra `cluster`.
"""

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from qim.adapters.redis.address import StoreAddress
from qim.adapters.redis.outcomes import NotConnected
from qim.adapters.redis.store import RedisStore
from qim.adapters.reporting import SILENT, Reporting
from qim.adapters.rpc import ProcessRole
from qim.adapters.rpc.wiring import RpcSecurity
from qim.adapters.start_refused import StartRefused
from qim.adapters.tls.reload import Reloads
from qim.core.ports.completion import StoreReset, StoreRole
from qim.core.ports.log import EndsRead, ReadEnds, Topic
from qim.services.cluster.log_settings import broker_files, log_settings
from qim.services.hosting import Ports
from qim.services.links import Link
from qim.services.moderation import Hooks
from qim.services.roles import ServiceRole
from qim.services.routing import Port
from qim.services.settings import Settings, has_internal_tls
from qim.services.settings.values import show_address

if TYPE_CHECKING:
    from qim.adapters.tls.client_facing import ClientFacingTls
    from qim.adapters.tls.outgoing import OutgoingFiles, OutgoingTls

MESSAGE: Final = frozenset(ServiceRole) - {ServiceRole.GATEWAY}
MAILBOX: Final = frozenset(
    {ServiceRole.GATEWAY, ServiceRole.MAILBOX, ServiceRole.SESSION, ServiceRole.AUDITOR}
)
LOGS: Final = frozenset(ServiceRole) - {ServiceRole.GATEWAY}
ARCHIVE: Final = frozenset({ServiceRole.WRITER, ServiceRole.MAILBOX, ServiceRole.ARCHIVER})
"""Which roles speak to what; a test compares these with the effects of their machines."""

Gauges = Callable[[], Iterable[tuple[str, str, float]]]


class Registry(Port, Protocol):
    """The registry, with what only a start asks of it."""

    async def check_clock(self, wall_ms: int, ahead_max_ms: int) -> int | None: ...

    async def fix_shared(
        self, numbers: dict[str, str], *, commands: dict[str, str] | None = None
    ) -> None: ...

    async def read_shared(self) -> dict[str, str]: ...

    async def replace_shared(self, numbers: dict[str, str]) -> None: ...

    def watch(self, tell: Callable[[Any], None]) -> None: ...

    async def lease_instance_number(
        self, owner: str, address: str, ttl_ms: int, *, number: int | None = None
    ) -> tuple[int, int]: ...


class Certificates(Reloads, Protocol):
    """What SIGHUP reads again; tells when the present ones end."""

    def gauges(self) -> Iterable[tuple[str, str, float]]: ...


class Opened:
    """What a role's process speaks to, opened and checked; ``close`` ends all of it in reverse."""

    def __init__(self, reloads: list[Certificates] | None = None) -> None:
        """``reloads``: where certificates are added as they are read, for who listens to SIGHUP already."""
        self.ports: Ports
        self.registry: Registry
        self.topic_ids: Mapping[Topic, bytes] = {}
        self.hooks: Hooks | None = None
        self.gauges: list[Gauges] = []
        self.links: list[Link] = []
        self.warnings: list[str] = []
        self.reloads: list[Certificates] = [] if reloads is None else reloads
        self.advice: list[tuple[str, str]] = []
        """(what was found, what to do) of what is no reason to refuse."""
        self._stack = AsyncExitStack()

    def closing(self, close: Callable[[], Awaitable[object]]) -> None:
        """Called at the end."""
        self._stack.push_async_callback(close)

    async def close(self) -> None:
        """Whatever was opened."""
        await self._stack.aclose()


class NotAsked:
    """The port of a role that never asks it; a request is our own bug."""

    def __init__(self, role: ServiceRole, what: str) -> None:
        self._told = f"a {role} has no business with the {what}"

    def submit(self, request: Any, answer: Callable[[Any], None]) -> None:
        """Raises AssertionError."""
        raise AssertionError(f"{self._told}: {type(request).__name__}")


class Told(Struct, frozen=True, kw_only=True):
    """Whom adapters tell what nobody asked: log lines, numbers, a store's other incarnation, certificates they read."""

    reporting: Reporting
    on_reset: Callable[[StoreReset], None]
    reloads: list[Certificates] | None = None


Open = Callable[[Settings, ServiceRole, AbstractEventLoop, Told], Awaitable[Opened]]


async def open_adapters(
    settings: Settings, role: ServiceRole, loop: AbstractEventLoop, told: Told
) -> Opened:
    """Connect and check: stores, log, archive, then registry. Nothing durable is written. Raises StartRefused."""
    opened = Opened(told.reloads)
    try:
        message, mailbox = await _open_stores(settings, role, opened, told)
        log: Port = NotAsked(role, "log")
        if role in LOGS:
            log = await _open_log(settings, role, loop, opened, told.reporting)
        archive: Port | None = None
        if role in ARCHIVE and settings.message_store_backend == "tiered":
            archive = await open_archive(settings, loop, opened, told.reporting)
        if role is ServiceRole.WRITER:
            opened.hooks = await _open_hooks(settings, loop, opened, told.reporting)
        opened.registry = await open_registry(settings, loop, opened, told.reporting)
        opened.ports = Ports(
            message=message, mailbox=mailbox, log=log, registry=opened.registry, archive=archive
        )
    except BaseException:
        await opened.close()
        raise
    return opened


# ------------------------------------------------------------ hot stores


async def _open_stores(
    settings: Settings,
    role: ServiceRole,
    opened: Opened,
    told: Told,
) -> tuple[Port, Port]:
    """One connection where both stores are one server."""
    places = {
        StoreRole.MESSAGE: settings.redis_addr,
        StoreRole.MAILBOX: settings.mailbox_redis_addr or settings.redis_addr,
    }
    wanted = [
        store
        for store, roles in ((StoreRole.MESSAGE, MESSAGE), (StoreRole.MAILBOX, MAILBOX))
        if role in roles
    ]
    ports: dict[StoreRole, Port] = {}
    for place in dict.fromkeys(places[store] for store in wanted):
        stores = tuple([store for store in wanted if places[store] == place])
        address = StoreAddress.parse(place)
        if address.tls:
            tls = towards(f"redis {'_'.join(stores)}", address.tls_files(), opened, told.reporting)
            address = replace(address, renewed=tls)
        made = await _open_store(settings, address, stores, told.on_reset)
        opened.closing(made.close)
        opened.warnings += made.waived
        opened.advice += made.advice
        opened.gauges.append(_labelled(made, stores))
        opened.links.append(_store_link(made, stores))
        ports.update(dict.fromkeys(stores, made))
    return (
        ports.get(StoreRole.MESSAGE, NotAsked(role, "message store")),
        ports.get(StoreRole.MAILBOX, NotAsked(role, "mailbox store")),
    )


async def _open_store(
    settings: Settings,
    address: StoreAddress,
    stores: tuple[StoreRole, ...],
    on_reset: Callable[[StoreReset], None],
) -> RedisStore:
    try:
        return await RedisStore.open(
            address,
            on_reset=on_reset,
            roles=stores,
            unsafe_dev=settings.redis_allow_unsafe_dev,
        )
    except NotConnected as error:
        raise StartRefused(
            "redis_unreachable",
            f"the {' and '.join(stores)} store at {address}",
            got=str(error).removeprefix(f"{address}: "),
            expected="a server that answers",
            command=f"{address.redis_cli} ping",
        ) from None


def _labelled(store: RedisStore, stores: tuple[StoreRole, ...]) -> Gauges:
    gauges: Callable[[], Iterable[tuple[str, str, float]]] | None = getattr(store, "gauges", None)
    label = "_".join(stores)

    def told() -> Iterable[tuple[str, str, float]]:
        for name, own, value in gauges() if gauges is not None else ():
            yield name, f"{label}_{own}" if own else label, value

    return told


def _store_link(store: RedisStore, stores: tuple[StoreRole, ...]) -> Link:
    return Link(
        name=f"the {' and '.join(stores)} store",
        stands=lambda: store.connection.connected,
        why=lambda: store.connection.last_failure,
    )


# ------------------------------------------------------------ log, archive, registry


async def _open_log(
    settings: Settings,
    role: ServiceRole,
    loop: AbstractEventLoop,
    opened: Opened,
    reporting: Reporting,
) -> Port:
    from qim.adapters.kafka.log import KafkaLog

    files = broker_files(settings)
    tls = None if files is None else towards("kafka", files, opened, reporting).context
    log: Any = KafkaLog(log_settings(settings, role, client_id=f"qim-{role}", tls=tls), loop)
    opened.closing(log.close)
    await log.start()
    opened.gauges.append(log.gauges)
    opened.links.append(Link(name="the log", stands=log.connected, told=True))
    found: Port = log
    opened.topic_ids = {topic: await topic_identity(found, topic, loop) for topic in Topic}
    return found


async def topic_identity(log: Port, topic: Topic, loop: AbstractEventLoop) -> bytes:
    """Which creation of the topic this is: the registry keeps it, so that one made anew is noticed by whoever starts.

    Raises StartRefused where the log doesn't tell.
    """
    answered: asyncio.Future[Any] = loop.create_future()
    log.submit(ReadEnds(op=0, topic=topic, partition=0), answered.set_result)
    answer = await answered
    if not isinstance(answer, EndsRead):
        raise StartRefused(
            "kafka_ends_unread",
            f"the answer about the ends of topic {topic}",
            got=type(answer).__name__,
            expected="its first and last offset",
            command="qim doctor",
        )
    return answer.topic_id


async def open_archive(
    settings: Settings, loop: AbstractEventLoop, opened: Opened, reporting: Reporting = SILENT
) -> Port:
    """The archive alone; ``opened`` ends it. Raises StartRefused."""
    from qim.adapters.cassandra.archive import CassandraArchive
    from qim.adapters.cassandra.settings import settings_from

    found = settings_from(settings.told())
    tls = None
    if found.tls_ca:
        tls = towards("archive", found.tls_files(), opened, reporting).context
    archive = CassandraArchive(found, loop, tls=tls)
    opened.closing(archive.close)
    await archive.start()
    opened.advice += archive.advice
    opened.gauges.append(archive.gauges)
    return archive


async def _open_hooks(
    settings: Settings, loop: AbstractEventLoop, opened: Opened, reporting: Reporting
) -> Hooks | None:
    """Nobody is called yet; None: there are none."""
    if settings.webhook_before_send_url is None and settings.webhook_after_send_url is None:
        return None
    from qim.adapters.webhook import Webhooks, settings_from

    found = settings_from(settings.told())
    tls = None
    if found.tls_ca:
        tls = towards("webhook", found.tls_files(), opened, reporting).context
    hooks = Webhooks(found, loop, tls=tls)
    opened.closing(hooks.close)
    await hooks.start()
    opened.gauges.append(hooks.gauges)
    return hooks


async def open_registry(
    settings: Settings,
    loop: AbstractEventLoop,
    opened: Opened,
    reporting: Reporting = SILENT,
) -> Registry:
    """The registry alone; ``opened`` ends it. Raises StartRefused."""
    from qim.adapters.etcd.registry import EtcdRegistry

    tls: OutgoingTls | None = None
    if settings.etcd_tls_ca or settings.etcd_tls_cert:
        from qim.adapters.tls.outgoing import OutgoingFiles

        files = OutgoingFiles(
            ca=settings.etcd_tls_ca or "",
            certificate=settings.etcd_tls_cert or "",
            key=settings.etcd_tls_key or "",
            names=("QIM_ETCD_TLS_CA", "QIM_ETCD_TLS_CERT", "QIM_ETCD_TLS_KEY"),
        )
        tls = towards("etcd", files, opened, reporting)
    registry = EtcdRegistry(
        settings.etcd_endpoints,
        settings.etcd_prefix,
        loop,
        tls=tls,
        user=settings.etcd_user,
        password=settings.etcd_password,
    )
    opened.closing(registry.close)
    await registry.start()
    opened.gauges.append(registry.gauges)
    link = Link(name="the registry", stands=registry.connected, why=registry.why, needed=False)
    opened.links.append(link)
    found: Registry = registry
    return found


def towards(
    name: str, files: "OutgoingFiles", opened: Opened, reporting: Reporting
) -> "OutgoingTls":
    """What a server is dialled with, read again on SIGHUP. Raises StartRefused."""
    from qim.adapters.tls.outgoing import OutgoingTls

    tls = OutgoingTls(name, files, reporting)
    opened.reloads.append(tls)
    return tls


def internal_listener(settings: Settings, role: ServiceRole) -> tuple[tuple[str, int], str] | None:
    """Where the role listens for other processes and how they dial it ("" as bound); None: it has nothing to hear."""
    listen = settings.internal_listen(role)
    if listen is None:
        return None
    advertised = settings.internal_advertise
    return listen, show_address(advertised) if advertised is not None else ""


def internal_security(
    settings: Settings, role: ServiceRole, reporting: Reporting, reloads: list[Certificates]
) -> RpcSecurity | None:
    """mTLS between processes; None: plaintext, all internal listeners being loopback. Raises StartRefused."""
    if not has_internal_tls(settings):
        return None
    from qim.adapters.tls.internal import InternalTls
    from qim.adapters.tls.internal_settings import InternalTlsSettings

    told = InternalTlsSettings.from_environment(settings.told())
    assert told is not None, "all four files are set"
    tls = InternalTls(told, ProcessRole(role.value), reporting)
    reloads.append(tls)
    return tls


def client_facing(
    settings: Settings, reporting: Reporting, reloads: list[Certificates]
) -> "ClientFacingTls | None":
    """TLS for clients; None: plaintext. Raises StartRefused."""
    from qim.adapters.tls.client_facing import ClientFacingTls

    tls = ClientFacingTls.from_environment(settings.told(), reporting)
    if tls is not None:
        reloads.append(tls)
    return tls
