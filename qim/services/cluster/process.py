"""One process of `qim serve`: checks, then shared numbers, then leases, then the business listener; drains on SIGTERM.

Exit status as of `qim up`: 0 drained, 1 a machine died or the drain did not end in time, 2 refused at start. Nothing durable
is written and nobody is listened to before every check has passed.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Final, TypeVar

import uvloop
from msgspec.structs import replace

from qim.adapters import breakage
from qim.adapters.http.operator_endpoint import OperatorEndpoint
from qim.adapters.reporting import Reporting
from qim.adapters.rpc import ProcessRole, RpcNetwork
from qim.adapters.rpc.wiring import RpcSecurity
from qim.adapters.tcp.server import TcpServer
from qim.adapters.tls.reload import reload_on_hangup
from qim.adapters.wall_clock import wall_ms
from qim.core.contract.rpc_admin import AdminOrder
from qim.core.ports.completion import StoreReset
from qim.core.ports.network import Received, Send
from qim.services.cluster.adapters import (
    Certificates,
    Open,
    Opened,
    Told,
    client_facing,
    internal_listener,
    internal_security,
    open_adapters,
)
from qim.services.cluster.library_logs import LibraryLogs
from qim.services.cluster.lookout import Lookout
from qim.services.cluster.orders import AdminDesk, Means
from qim.services.cluster.shared import remedies, shared_numbers
from qim.services.health import Health
from qim.services.hosting import Deployment, Hosting, socket_routes
from qim.services.moderation import moderation_routes
from qim.services.observation import LogSink, ProcessObserver
from qim.services.ready_line import say_ready
from qim.services.refused_line import refused_address
from qim.services.roles import ServiceRole
from qim.services.runtime import Route, Runtime, die_of_what_breaks
from qim.services.settings import Settings, warnings

STDERR: Final = 2
LOOK_SECONDS: Final = 0.25
SERVING_LOOK_SECONDS: Final = 0.02
T = TypeVar("T")


class StoppedAtStart(Exception):
    """SIGTERM came before it served: nothing to drain."""


class ServeProcess:
    """One run of `qim serve ROLE`; ``run`` gives the exit status and raises StartRefused."""

    def __init__(
        self,
        settings: Settings,
        role: ServiceRole,
        *,
        open_ports: Open = open_adapters,
        say: Callable[[Mapping[str, object]], None] = say_ready,
    ) -> None:
        self._settings = settings
        self._role = role
        self._open = open_ports
        self._say = say
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._sink = LogSink(self._loop, STDERR, as_json=settings.log_format == "json")
        self._observer = ProcessObserver(self._sink, self._on_death, stages=settings.log_stages)
        self._health = Health(self._observer, role=role.value)
        self._reporting = Reporting(
            log=self._log, count=self._observer.count, observe=self._observer.observe
        )
        self._runtime = Runtime(self._loop, self._observer)
        self._lookout = Lookout(role, self._loop.time, self._log)
        self._hosting: Hosting | None = None
        self._network: RpcNetwork | None = None
        self._desk: AdminDesk | None = None
        self._tcp: TcpServer | None = None
        self._security: RpcSecurity | None = None
        self._reloads: list[Certificates] = []
        """Certificates that SIGHUP reads again."""
        self._owner = f"{role}-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"

    def stop(self) -> None:
        """As SIGTERM does: drain and end."""
        self._stop.set()

    @property
    def missing(self) -> str:
        """What is wished for and not open yet, as words."""
        return self._health.missing

    def readiness(self) -> tuple[bool, dict[str, object]]:
        """As /readyz has it."""
        return self._health.readyz()

    async def run(self) -> int:
        """From start to exit status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self.stop)
        # From the first moment: unheard it would end the process, and a start may wait for a predecessor's lease.
        reload_on_hangup(self._loop, self._reloads)
        async with contextlib.AsyncExitStack() as ending:
            ending.callback(self._sink.close)
            libraries = LibraryLogs(self._loop, self._log)
            libraries.begin()
            ending.callback(libraries.end)
            die_of_what_breaks(self._loop, self._observer)
            try:
                calm = await self._lead(ending)
            except StoppedAtStart:
                calm = self._health.died is None
                self._log("info", "stopped before it served", {})
        return 0 if calm else 1

    async def _lead(self, ending: contextlib.AsyncExitStack) -> bool:
        for warning in warnings(self._settings, self._role):
            self._log("warning", "not for production", {"what": warning})
        self._read_certificates()
        opened = await self._unless_stopped(self._opened(ending))
        ending.callback(self._runtime.stop)
        hosting = await self._unless_stopped(self._assembled(opened, ending))
        endpoint = self._operator_endpoint()
        ending.callback(endpoint.stop)
        self._observer.sample(endpoint.gauges, self._loop)
        hosting.start()
        if hosting.keeper_host is not None:
            opened.registry.watch(hosting.keeper_host.post)
        self._lookout.begin(opened, hosting)
        self._log("info", "started", {"owner": self._owner, "address": hosting.address})
        told = await self._listening(ending)
        try:
            await self._unless_stopped(self._serving())
        except StoppedAtStart:
            # What it holds already is given back, as after a run: others need not wait for the leases to end.
            if left := await self._drain(hosting):
                return self._told_drained(left)
            raise
        self._say_ready(hosting, {**told, "metrics": endpoint.address})
        return await self._until_stopped(hosting)

    # ------------------------------------------------------------ start

    def _read_certificates(self) -> None:
        settings, role = self._settings, self._role
        self._security = internal_security(settings, role, self._reporting, self._reloads)
        if role is ServiceRole.GATEWAY:
            tls = client_facing(settings, self._reporting, self._reloads)
            self._tcp = TcpServer(self._socket_event, wall_ms, tls=tls, reporting=self._reporting)

    async def _opened(self, ending: contextlib.AsyncExitStack) -> Opened:
        told = Told(
            reporting=self._reporting, on_reset=self._store_was_reset, reloads=self._reloads
        )
        opened = await self._open(self._settings, self._role, self._loop, told)
        ending.push_async_callback(opened.close)
        for warning in opened.warnings:
            self._log("warning", "a check was waived", {"what": warning})
        for what, do in opened.advice:
            self._log("warning", "somebody should look", {"what": what, "do": do})
        for gauges in (*opened.gauges, *(one.gauges for one in self._reloads)):
            self._observer.sample(gauges, self._loop)
        return opened

    async def _assembled(self, opened: Opened, ending: contextlib.AsyncExitStack) -> Hosting:
        """Shared numbers compared, the internal address known, the machine hosted but not started."""
        settings, role = self._settings, self._role
        deployment = Deployment(
            parameters=settings.parameters(),
            retention=settings.retention(),
            secrets=(settings.secret(),),
            before_send=settings.before_send(),
            after_send=settings.webhook_after_send_url is not None,
        )
        ahead_max_ms = deployment.parameters.clock_ahead_max_ms
        await opened.registry.check_clock(wall_ms(), ahead_max_ms)
        numbers = shared_numbers(deployment)
        for topic, identity in sorted(opened.topic_ids.items()):
            numbers[f"topic_id_{topic}"] = identity.hex()
        stored = await opened.registry.read_shared()
        await opened.registry.fix_shared(numbers, commands=remedies(stored))
        address = await self._internal_address(ending)
        if role is ServiceRole.WRITER:
            deployment = await self._numbered(opened, deployment, address)
        hosting = Hosting(
            self._loop,
            self._runtime,
            opened.ports,
            deployment,
            owner=self._owner,
            address=address,
            reporting=self._reporting,
        )
        hosting.host([role], remote=self._send, own=self._own_routes(opened))
        self._observer.sample(self._own_gauges, self._loop)
        self._hosting = hosting
        if role is ServiceRole.AUDITOR:
            self._desk = self._admin_desk(hosting)
        return hosting

    def _admin_desk(self, hosting: Hosting) -> AdminDesk:
        assert self._network is not None
        means = Means(
            settings=self._settings,
            open_ports=self._open,
            audit=hosting.audit,
            caller=self._network.caller,
            send=self._network.send,
            reporting=self._reporting,
        )
        return AdminDesk(self._loop, means)

    def _own_routes(self, opened: Opened) -> dict[type, Route]:
        if self._tcp is not None:
            return socket_routes(self._tcp)
        return {} if opened.hooks is None else moderation_routes(opened.hooks)

    async def _numbered(self, opened: Opened, deployment: Deployment, address: str) -> Deployment:
        """The writer's instance number: its own wish, or the lowest that nobody holds (seed: QIM_WRITER_ID)."""
        number, epoch = await opened.registry.lease_instance_number(
            self._owner,
            address,
            deployment.parameters.lease_ttl_ms,
            number=self._settings.writer_id,
        )
        return replace(deployment, instance=number, instance_epoch=epoch)

    async def _internal_address(self, ending: contextlib.AsyncExitStack) -> str:
        """host:port at which other processes reach this one; roles nobody asks go by their owner's name."""
        listener = internal_listener(self._settings, self._role)
        if listener is None:
            return self._owner
        listen, advertise = listener
        self._network = RpcNetwork(
            listen,
            ProcessRole(self._role.value),
            self._received,
            security=self._security,
            advertise=advertise,
            reporting=self._reporting,
        )
        ending.push_async_callback(self._network.close)
        self._observer.sample(self._network.gauges, self._loop)
        push = "_PUSH" if self._role is ServiceRole.GATEWAY else "_LISTEN"
        with refused_address(f"QIM_{self._role.upper()}{push}", listen):
            return await self._network.start()

    async def _listening(self, ending: contextlib.AsyncExitStack) -> dict[str, object]:
        """Clients may come: the last thing of a start."""
        if self._tcp is None:
            return {}
        ending.callback(self._tcp.abort_all)
        with refused_address("QIM_GATEWAY_LISTEN", self._settings.gateway_listen):
            return {"tcp": await self._tcp.listen(*self._settings.gateway_listen)}

    async def _serving(self) -> None:
        """No limit: what is missing is at /readyz, and a lease of a dead process runs out by itself."""
        while missing := self._lookout.own():
            self._health.missing = missing
            if self._health.died is not None:
                return
            await asyncio.sleep(SERVING_LOOK_SECONDS)
        self._health.missing = self._lookout.all_round()

    def _say_ready(self, hosting: Hosting, told: dict[str, object]) -> None:
        self._health.ready = self._health.died is None
        ready = {"ready": True, "role": self._role.value, "pid": os.getpid(), **told}
        if self._network is not None:
            ready["internal"] = hosting.address
        if self._role is ServiceRole.WRITER:
            ready["writer_id"] = hosting.deployment.instance
        self._say(ready)

    # ------------------------------------------------------------ at work, and the end

    async def _until_stopped(self, hosting: Hosting) -> bool:
        watching = breakage.begin(self._loop, self._watch(), "the look at readiness")
        try:
            await self._stop.wait()
            self._health.ready, self._health.draining = False, True
            left = await self._drain(hosting)
        finally:
            watching.cancel()
        return self._told_drained(left)

    def _told_drained(self, left: str) -> bool:
        if left:
            self._log("error", "not drained", {"in_flight": left})
        else:
            self._log("info", "drained", {})
        return not left

    async def _drain(self, hosting: Hosting) -> str:
        """What could not be finished, as words; empty when everything was."""
        if self._health.died is not None:
            return f"a machine died: {self._health.died!r}"
        if self._tcp is not None:
            self._tcp.stop_accepting()
        # The internal listener stays open meanwhile: answers come on connections that the other side dials.
        deadline = self._loop.time() + self._settings.drain_ms / 1000
        calm = self._desk is None or await self._desk.rest(deadline - self._loop.time())
        left = await hosting.drain(deadline - self._loop.time())
        return "; ".join(filter(None, ("" if calm else "an operator's order", left)))

    async def _watch(self) -> None:
        while True:
            self._health.missing = self._lookout.all_round()
            await asyncio.sleep(LOOK_SECONDS)

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """The work's result. Raises StoppedAtStart when SIGTERM comes first."""
        task, stop = asyncio.create_task(work), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
        finally:
            stop.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))
        raise StoppedAtStart

    def _operator_endpoint(self) -> OperatorEndpoint:
        """It only tells: whoever reaches it may read, and starts nothing."""
        address, health = self._settings.metrics(self._role), self._health
        with refused_address("QIM_METRICS_LISTEN", address):
            return OperatorEndpoint(
                *address,
                self._observer,
                health=health.healthz,
                ready=health.readyz,
                live=health.livez,
            )

    # ------------------------------------------------------------ what others call

    def _received(self, event: Received) -> None:
        if self._desk is not None and isinstance(event.message, AdminOrder):
            self._desk.received(event)
        elif self._hosting is not None:
            self._hosting.network.received(event)

    def _send(self, effect: Send) -> None:
        if self._network is not None:
            self._network.send(effect)

    def _socket_event(self, event: Any) -> None:
        assert self._hosting is not None
        self._hosting.hosts[ServiceRole.GATEWAY].post(event)

    def _store_was_reset(self, reset: StoreReset) -> None:
        self._log("warning", "another incarnation of the store", {"store": reset.store.value})
        if self._hosting is not None:
            self._hosting.store_was_reset(reset)

    def _own_gauges(self) -> Iterable[tuple[str, str, float]]:
        if self._tcp is not None:
            yield from self._tcp.gauges()
        if self._hosting is not None:
            yield "rpc_messages_misdirected", "", self._hosting.network.misdirected

    def _log(self, level: str, event: str, fields: dict[str, object]) -> None:
        self._sink.line(level, self._role.value, event, fields)

    def _on_death(self, machine: str, error: BaseException) -> None:
        self._health.died = error
        self._stop.set()


def run_serve(settings: Settings, role: ServiceRole) -> int:
    """To the exit status. Raises StartRefused, OSError (an address is taken)."""

    async def main() -> int:
        return await ServeProcess(settings, role).run()

    return uvloop.run(main())
