"""A plan set up: services, processes, devices and faults hung into one world, and what faults may do to them."""

from collections.abc import Callable, Mapping
from typing import Final

from qim.adapters.redis.scripts import load_scripts
from qim.core.audit import AuditReport
from qim.core.ports.completion import StoreRole
from qim.core.ports.local import DrainRequested
from qim.core.ports.log import Topic
from qim.core.ports.network import Send
from qim.core.ports.store_mailbox import RefreshPresence
from qim.core.ports.store_message import ApplyOutbox, OpenShard, ShardOpened
from qim.sim.archive import Archive
from qim.sim.cast import (
    client_machines,
    device_routes,
    parameters,
    service_machines,
    service_routes,
)
from qim.sim.clock import Curve, Piece
from qim.sim.faults import Fault, tag_of
from qim.sim.history import History
from qim.sim.keyspace import Keyspace, ScriptRuntime
from qim.sim.localstore import Device
from qim.sim.log import Log
from qim.sim.network import Network
from qim.sim.node import Host, Node, Observe, Route
from qim.sim.operators import KEPT_DOWN_MS, Operators
from qim.sim.plan import Plan
from qim.sim.registry import Registry
from qim.sim.store import Store
from qim.sim.strangers import Strangers
from qim.sim.streams import Streams
from qim.sim.told import Told
from qim.sim.workload import Workload
from qim.sim.world import World

DOOM_PATIENCE_MS: Final = 100
"""A process that orders nothing is killed between two steps."""
EFFECT_PATIENCE_MS: Final = 1_500
"""As long as that it waits for the order it is to die at."""
DRAIN_LOOK_MS: Final = 20
DRAIN_MAX_MS: Final = 10_000
SUPERVISOR_MS: Final = 300
"""How soon a process that died of its own bug is started again."""


class Kit:
    """What worlds of one process may share: compiled scripts and emptied keyspaces. It holds no world's state."""

    def __init__(self, scripts: Mapping[str, str] | None = None) -> None:
        """``scripts`` replaces some of the production scripts (mutants)."""
        self._runtime = ScriptRuntime({**load_scripts(), **(scripts or {})})

    def keyspaces(self, count: int) -> list[Keyspace]:
        """``count`` empty keyspaces."""
        return [Keyspace(self._runtime) for _ in range(count)]


class Scene:
    """The world of one plan, ready to run."""

    def __init__(self, plan: Plan, kit: Kit, *, observe: Observe | None = None) -> None:
        self.plan = plan
        self.parameters = parameters(plan)
        self.observe = observe
        world = self.world = World(plan.seed)
        latency, begin = plan.latency, plan.beginnings
        self.network = Network(
            world, base_ms=latency.network_ms, spread_ms=latency.network_spread_ms
        )
        cuts = self.network.cuts
        self.streams = Streams(
            world, self.network, base_ms=latency.network_ms, spread_ms=latency.network_spread_ms
        )
        self._clocks = {clock.node: clock for clock in plan.clocks}
        self.log = self._make_log()
        self.registry = Registry(
            world,
            cuts,
            first_epoch=begin.epoch,
            base_ms=latency.registry_ms,
            spread_ms=latency.registry_spread_ms,
        )
        self.archive = Archive(
            world, cuts, base_ms=latency.store_ms, spread_ms=latency.store_spread_ms
        )
        self.servers = self._make_stores(kit)
        self.stores = {role: server for server in self.servers for role in server.roles}
        self.boxes = self.stores[StoreRole.MAILBOX]
        if begin.outbox_offset:
            self._begin_store(begin.outbox_offset, begin.epoch)
        self.history = self._make_history()
        self.routes: dict[type, Route] = service_routes(self)
        self.client_routes: dict[str, dict[type, Route]] = {}
        self.nodes: dict[str, Node] = {}
        self.devices: dict[str, Device] = {}
        self.twins: dict[str, Device] = {}
        self.twinned: dict[str, str] = {}
        self._gone: dict[str, bool] = {}
        self.counts: dict[str, int] = {}
        self.death: BaseException | None = None
        self.audit_report: AuditReport | None = None
        self.told: dict[int, Told] = {}
        self._gateway_of: dict[str, int] = {}
        self._down_ms: dict[str, int] = {}
        for role, count in plan.topology.processes():
            for _ in range(count):
                self.add(role)
        for planned in plan.devices:
            self._add_device(planned.user_id, planned.device_id, planned.gateway)
        self.workload = Workload(self)
        self.operators = Operators(self)
        self.strangers = Strangers(self, self.make_node("stranger-1", "stranger"))
        for index, fault in enumerate(plan.faults):
            world.at(fault.at_ms, index, self._begin, fault)

    # ------------------------------------------------------------ setting up

    def _make_log(self) -> Log:
        plan, latency = self.plan, self.plan.latency
        log = Log(
            self.world,
            self._wall("log"),
            self.network.cuts,
            base_ms=latency.log_ms,
            spread_ms=latency.log_spread_ms,
        )
        log.create(Topic.OUTBOX, plan.topology.outbox_partitions, plan.beginnings.outbox_offset)
        log.create(Topic.DISPATCH, plan.topology.shards, plan.beginnings.dispatch_offset)
        log.create(Topic.USER_STATE, plan.topology.shards, 0)
        return log

    def _make_stores(self, kit: Kit) -> list[Store]:
        plan = self.plan
        both = (StoreRole.MESSAGE, StoreRole.MAILBOX)
        shares = [both] if plan.topology.stores == 1 else [(role,) for role in both]
        return [
            Store(
                self.world,
                f"store-{index + 1}",
                keyspace,
                roles,
                self.network.cuts,
                base_ms=plan.latency.store_ms,
                spread_ms=plan.latency.store_spread_ms,
            )
            for index, (roles, keyspace) in enumerate(
                zip(shares, kit.keyspaces(len(shares)), strict=True)
            )
        ]

    def _make_history(self) -> History:
        """It hears whatever logs, archive and stores do from now on."""
        world, message_store = self.world, self.stores[StoreRole.MESSAGE]
        history = History(self.plan.topology.shards, lambda: world.now)
        history.peek = message_store.ask
        history.peek_mailbox, self.boxes.lost = self.boxes.ask, history.mailbox_lost
        history.log = self.log
        history.incarnation = lambda: message_store.incarnation_number
        history.keep(self.plan.parameters)
        self.log.heard = history.appended
        self.archive.heard = history.archive
        for server in self.servers:
            server.heard = history.store
        return history

    def _begin_store(self, applied: int, epoch: int) -> None:
        """An outbox that begins late was once applied and archived up to there: what no tail can lose."""
        store = self.stores[StoreRole.MESSAGE]
        for shard in range(self.plan.topology.outbox_partitions):
            opened = store.ask(
                OpenShard(op=0, shard=shard, epoch=epoch, fresh_key=b"beginning of time")
            )
            assert isinstance(opened, ShardOpened), opened
            store.ask(
                ApplyOutbox(
                    op=0,
                    shard=shard,
                    epoch=epoch,
                    incarnation=opened.incarnation,
                    now_wall=0,
                    applied_from=0,
                    applied_to=applied,
                    filter_epoch=0,
                    records=(),
                )
            )
            self.archive.rows.positions[shard] = applied
        store.keyspace.forget_before(store.keyspace.mark())

    def _wall(self, name: str) -> Curve:
        clock = self._clocks.get(name)
        pieces = clock.wall if clock else (Piece(0, self.plan.beginnings.wall_ms),)
        return Curve(pieces, monotone=False)

    def _monotonic(self, name: str) -> Curve:
        clock = self._clocks.get(name)
        pieces = clock.monotonic if clock else (Piece(0, self.plan.beginnings.monotonic_ms),)
        return Curve(pieces, monotone=True)

    def make_node(self, name: str, role: str) -> Node:
        node = Node(
            self.world,
            name,
            role,
            monotonic=self._monotonic(name),
            wall=self._wall(name),
        )
        node.crashed = self._crashed
        node.died = self._died
        self.nodes[name] = node
        return node

    def add(self, role: str) -> None:
        """One more process of a service."""
        number = 1 + sum(1 for node in self.nodes.values() if node.role == role)
        node = self.make_node(f"{role}-{number}", role)
        self.world.at(self.world.now + 1, number, self._start, node)

    def _add_device(self, user_id: int, device_id: bytes, gateway: int) -> None:
        name = f"client-{user_id}-{device_id.decode()}"
        device = Device(self.world, user_id, device_id, name)
        self.devices[name] = device
        self._begin_client(name, device, gateway)

    def add_twin(self, name: str) -> str:
        """The same device once more, on a disk of its own; nothing is owed to it."""
        first = self.devices[name]
        twin = f"{name}-twin{1 + len(self.twins)}"
        device = Device(self.world, first.user_id, first.device_id, twin)
        self.twins[twin] = device
        self.twinned[name] = twin
        self.count("client.twin")
        self._begin_client(twin, device, self._gateway_of[name])
        return twin

    def lose(self, name: str) -> None:
        """It is gone for good."""
        self._gone[name] = True
        node = self.nodes[name]
        if node.alive:
            node.crash()

    def _begin_client(self, name: str, device: Device, gateway: int) -> None:
        device.heard = self.history.local
        self.client_routes[name] = device_routes(self, device)
        self._gateway_of[name] = gateway
        node = self.make_node(name, "client")
        self.world.at(self.world.now + 1, 64, self._start, node)

    def _start(self, node: Node) -> None:
        if node.alive or node.name in self._gone:
            return
        if self.operators.keeps_down(node.role):
            self.world.at(self.world.now + KEPT_DOWN_MS, 0, self._start, node)
            return
        if node.role == "client":
            device = self.devices.get(node.name) or self.twins[node.name]
            hosts = client_machines(self, node, device, self._gateway_of[node.name])
        else:
            hosts = service_machines(self, node)
            for server in self.servers:
                server.hosts = [host for host in server.hosts if not host.dead]
                server.hosts.append(hosts[0])
        node.start(hosts)
        if node.role == "client":
            self.workload.started(node)

    # ------------------------------------------------------------ what faults do

    def _begin(self, fault: Fault) -> None:
        self.count(f"fault.{tag_of(type(fault))}")
        undo = fault.begin(self)
        if undo is not None:
            self.world.at(max(fault.until_ms, self.world.now + 1), 0, _undo, undo)

    def store(self, number: int) -> Store:
        """By number; a plan for two stores means the one where there is one."""
        return self.servers[number % len(self.servers)]

    def wall_of(self, name: str) -> Curve:
        """The wall clock of a process, or of the log."""
        return self.log.wall if name == "log" else self.nodes[name].wall

    def kill(self, name: str, salt: int, down_ms: int, at_effect: str = "") -> None:
        """kill -9 between two effects of the next step, or around the next order named ``at_effect``."""
        node = self.nodes.get(name)
        if node is None or not node.alive:
            return
        self._down_ms[name] = down_ms
        if node.paused:
            node.crash()
            return
        self._doom(node, salt, at_effect, pauses=False)

    def kill_now(self, name: str, down_ms: int) -> None:
        """kill -9 in this very moment."""
        if self.nodes[name].alive:
            self._down_ms[name] = down_ms
            self.nodes[name].crash()

    def stop(self, name: str, salt: int, at_effect: str = "") -> int:
        """SIGSTOP likewise; the generation that is stopped."""
        node = self.nodes.get(name)
        if node is None or not node.alive or node.paused:
            return -1
        self._doom(node, salt, at_effect, pauses=True)
        return node.generation

    def _doom(self, node: Node, salt: int, at_effect: str, *, pauses: bool) -> None:
        node.doom, node.doom_pauses, node.doom_effect = salt, pauses, at_effect
        patience = EFFECT_PATIENCE_MS if at_effect else DOOM_PATIENCE_MS
        self.world.at(self.world.now + patience, 0, self._impatient, node)

    def _impatient(self, node: Node) -> None:
        if node.doom is None or not node.alive:
            return
        node.doom = None
        if node.doom_pauses:
            node.pause()
        else:
            node.crash()

    def resume(self, name: str, generation: int) -> None:
        """SIGCONT, if the stopped process still exists."""
        node = self.nodes.get(name)
        if node is None or node.generation != generation:
            return
        if node.doom_pauses:
            node.doom = None
        if node.paused:
            self.count("process.resumed")
        node.resume()

    def _crashed(self, node: Node) -> None:
        self.count(f"crashed.{node.role}")
        down_ms = self._down_ms.pop(node.name, SUPERVISOR_MS)
        self.world.at(self.world.now + down_ms, 0, self._start, node)

    def _died(self, host: Host, error: BaseException) -> None:
        self.history.found(
            "machine_died", host.node.role, f"{host.name}: {type(error).__name__}: {error}"
        )
        # What follows would only be the consequence, told many times.
        self.world.stopped = True
        self.death = error

    def drain(self, name: str, down_ms: int, order: DrainRequested) -> None:
        """A graceful stop: machines first, then their leases, then the process ends and comes back."""
        node = self.nodes.get(name)
        if node is None or not node.alive or node.paused:
            return
        self._down_ms[name] = down_ms
        node.hosts[0].take(order)
        until = self.world.now + DRAIN_MAX_MS
        self.world.at(self.world.now + 1, 0, self._draining, (node, node.generation, order, until))

    def _draining(self, payload: tuple[Node, int, DrainRequested, int]) -> None:
        node, generation, order, until = payload
        if not node.alive or node.generation != generation:
            return
        hosts = node.hosts
        overdue = self.world.now >= until
        if not overdue and (node.paused or any(host.inbox for host in hosts)):
            self.world.at(self.world.now + DRAIN_LOOK_MS, 0, self._draining, payload)
            return
        if not overdue and not hosts[0].machine.idle():
            self.world.at(self.world.now + DRAIN_LOOK_MS, 0, self._draining, payload)
            return
        if len(hosts) > 1 and not overdue and not hosts[1].machine.idle():
            hosts[1].take(order)
            self.world.at(self.world.now + DRAIN_LOOK_MS, 0, self._draining, payload)
            return
        self.count("drain.overdue" if overdue else "drain.done")
        node.crash()

    # ------------------------------------------------------------ routes and counts

    def send(self, host: Host, effect: Send) -> None:
        """A message between services: history first, then the network."""
        if type(effect.message) in self.history.on_sent:
            self.history.sent(host, effect)
        self.network.send(host, effect)

    def refresh(self, host: Host, effect: RefreshPresence) -> None:
        """A gateway's entries to the mailbox store, likewise."""
        self.history.refreshing(host, effect)
        self.boxes.request(host, effect)

    def count(self, name: str) -> None:
        """One more of ``name`` in the census."""
        self.counts[name] = self.counts.get(name, 0) + 1


def _undo(undo: Callable[[], None]) -> None:
    undo()
