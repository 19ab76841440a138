"""The hot store's fake: the real codec and the real Lua over an in-memory keyspace, with a tail that can vanish.

What a connection does is here too, since that is where the first law is kept (pipeline.md §0): every new connection knows
the server's run_id; an op that names another one is answered StoreReset without being sent; whoever had a connection to
the run_id that died is told without an op. Requests of one lane (one shard, one user) keep their order; lanes don't.

Ways to fail: reply lost after apply, applied after the caller gave up, stall, unreachable, restart, restart with a lost
tail, restart empty, FLUSHALL, refusal on memory, script cache emptied (NOSCRIPT: the adapter loads and sends again).
"""

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from qim.adapters.redis.codec import decode, encode, run_id_named, too_large
from qim.core.audit.tenure import COVERAGE
from qim.core.ports.completion import Failed, FailReason, Fenced, StoreReset, StoreRole, Unknown
from qim.core.ports.registry import Resource, Role
from qim.core.ports.store import StoreReply, StoreRequest, store_role
from qim.core.ports.store_audit import OpenCoverage
from qim.core.ports.store_mailbox import (
    EnterPresence,
    LeavePresence,
    OpenMailbox,
    ReadPresence,
    RefreshPresence,
)
from qim.core.ports.store_message import OpenShard
from qim.core.ports.store_source import OpenSource
from qim.sim.choice import TIEBREAK_SHIFT, Way, fault_level
from qim.sim.keyspace import Keyspace, ScriptError
from qim.sim.network import Cuts
from qim.sim.node import Host
from qim.sim.sites import STORE, STORE_LATE

if TYPE_CHECKING:
    from qim.sim.world import World

REPLY_TIMEOUT_MS: Final = 2_000
"""When the adapter gives an unanswered request up as Unknown."""
LATE_MAX_MS: Final = 20_000
OPENS: Final = (OpenShard, OpenSource, OpenMailbox, OpenCoverage)
WITHOUT_SHARD: Final = (EnterPresence, LeavePresence, ReadPresence, RefreshPresence)
PRESENCE_LANE: Final = "presence"

Completed = StoreReply | Failed | Unknown | Fenced | StoreReset
Heard = Callable[[Host, StoreRequest, Completed], None]


class Rates(Struct, kw_only=True):
    """Rates of 65,536 for one request, while a fault's window is open."""

    reply_lost: int = 0
    late: int = 0
    refused: int = 0
    unreachable: int = 0
    extra_ms: int = 0


class Store:
    """One server process and the connections to it; serves one or both store roles."""

    def __init__(
        self,
        world: "World",
        name: str,
        keyspace: Keyspace,
        roles: tuple[StoreRole, ...],
        cuts: Cuts,
        *,
        base_ms: int,
        spread_ms: int,
    ) -> None:
        self.world = world
        self.name = name
        self.keyspace = keyspace
        self.roles = roles
        self.cuts = cuts
        self.way = Way(base_ms, spread_ms)
        self.run_number = 1
        self.incarnation_number = 1
        """Changes with the run and with FLUSHALL."""
        self.run_id = self._run_id()
        self.rates = Rates()
        self.rated = False
        self.rated_windows = 0
        self.stalled_until = 0
        self.down_until = 0
        self.hosts: list[Host] = []
        self.heard: Heard | None = None
        self.lost: Callable[[], None] | None = None
        """Told once it is another incarnation."""
        self.counts: dict[str, int] = {}
        self.scripts_cached: set[str] = set()
        self._forgot = False
        self.calls = 0

    def _run_id(self) -> bytes:
        return f"{self.name}.{self.run_number}".encode().hex().encode().ljust(40, b"0")[:40]

    # ------------------------------------------------------------ the way there

    def request(self, host: Host, effect: StoreRequest) -> None:
        """Hand one request to the connection; exactly one completion comes back."""
        world = self.world
        kind = _KINDS[type(effect)]
        traces = effect.traces if kind.traced else ()  # type: ignore[union-attr]
        draw = world.dice.draw(kind.site, traces[0] if traces else host.identity)
        if kind.fenced and host.node.keeper is not None and not _lease_stands(host, effect, kind):
            self._count("lease_check_refused")
            world.at(world.now, 0, host.take, Failed(op=effect.op, why=FailReason.LEASE_LOST))
            return
        tiebreak = draw >> TIEBREAK_SHIFT
        arrival = world.now + self.way.there(draw) + host.node.slow_ms
        level = fault_level(draw)
        rates = self.rates
        lost = False
        if self.rated:
            arrival += rates.extra_ms
            if level < rates.late:
                self._late(host, effect, tiebreak)
                return
            level -= rates.late
            if 0 <= level < rates.unreachable:
                self._count("store.unreachable")
                self._fail(host, effect, FailReason.UNREACHABLE, arrival)
                return
            level -= rates.unreachable
            if 0 <= level < rates.refused and type(effect) not in OPENS:
                self._count("store.refused_on_memory")
                self._fail(host, effect, FailReason.OUT_OF_MEMORY, arrival)
                return
            level -= rates.refused
            lost = 0 <= level < rates.reply_lost
        lane = (self.name, kind.lane(effect))
        at, order = host.in_line(lane, arrival, tiebreak)
        payload = (host, effect, draw, world.now, self.run_number, lost, lane)
        world.at(at, order, self._arrive, payload)

    def _late(self, host: Host, effect: StoreRequest, tiebreak: int) -> None:
        """The caller gives up first, and the server applies it some time after: on a connection nobody reads."""
        self._count("store.applied_late")
        world = self.world
        late = world.dice.draw(STORE_LATE, host.identity)
        world.at(world.now + REPLY_TIMEOUT_MS, tiebreak, host.take, Unknown(op=effect.op))
        arrival = world.now + REPLY_TIMEOUT_MS + late % LATE_MAX_MS
        world.at(arrival, tiebreak, self._apply_late, (host, effect, self.run_number))

    # ------------------------------------------------------------ at the server

    def _arrive(self, payload: tuple[Host, StoreRequest, int, int, int, bool, Any]) -> None:
        host, effect, draw, sent, run_number, lost, lane = payload
        world = self.world
        now = world.now
        give_up = sent + REPLY_TIMEOUT_MS
        if now < self.stalled_until:
            if self.stalled_until > give_up and not lost:
                self._count("store.stalled_past_timeout")
                world.at(give_up, 0, host.take, Unknown(op=effect.op))
                lost = True
                payload = (host, effect, draw, sent, run_number, True, None)
            world.at(self.stalled_until, draw >> TIEBREAK_SHIFT, self._arrive, payload)
            return
        if run_number != self.run_number:
            # The connection died with the server: written to a socket, read by nobody.
            if lane is not None:
                world.at(now + 1, 0, host.take, Unknown(op=effect.op))
            return
        if lane is None:
            # Stalled past the caller's patience: it was told Unknown then, and this is the late application.
            if now >= self.down_until:
                self._apply(host, effect)
            return
        if now < self.down_until:
            self._fail(host, effect, FailReason.UNREACHABLE, now)
            return
        if self.cuts and self.cuts.between(host.node.name, self.name):
            world.at(give_up, 0, host.take, Unknown(op=effect.op))
            return
        answer = self._apply(host, effect)
        if lost or (self.cuts and self.cuts.between(self.name, host.node.name)):
            self._count("store.reply_lost")
            world.at(give_up, 0, host.take, Unknown(op=effect.op))
            return
        at, order = host.in_line((lane, "reply"), now + self.way.back(draw), draw >> TIEBREAK_SHIFT)
        world.at(at, order, host.take, answer)

    def _apply_late(self, payload: tuple[Host, StoreRequest, int]) -> None:
        host, effect, run_number = payload
        if run_number == self.run_number and self.world.now >= self.down_until:
            self._apply(host, effect)

    def _apply(self, host: Host, effect: StoreRequest) -> Completed:
        """One script, whole. The run_id is judged as the connection does, before anything is sent."""
        named = run_id_named(effect)
        if named and named != self.run_id:
            answer: Completed = StoreReset(op=effect.op, store=store_role(effect))
        else:
            answer = self._call(host, effect)
        if type(answer) is StoreReset:
            self._count("store.reset_answered")
        if self.heard is not None:
            self.heard(host, effect, answer)
        return answer

    def _call(self, host: Host, effect: StoreRequest) -> Completed:
        call = encode(effect)
        if too_large(call):
            return Failed(op=effect.op, why=FailReason.TOO_LARGE)
        if call.script not in self.scripts_cached:
            # NOSCRIPT: the adapter loads it and sends again; nothing was applied in between.
            if self._forgot:
                self._count("store.noscript")
            self.scripts_cached.add(call.script)
        self.calls += 1
        self.world.trace.entries.append(
            (self.world.now, host.name, call.script, call.keys, call.args)
        )
        try:
            raw = self.keyspace.call(call.script, call.keys, call.args)
        except ScriptError as error:
            raise AssertionError(f"{call.script}: {error.message}") from error
        return decode(effect, self.run_id, raw)

    def ask(self, request: StoreRequest) -> Completed:
        """A look for the checkers, outside of time and of every fault."""
        call = encode(request)
        return decode(request, self.run_id, self.keyspace.call(call.script, call.keys, call.args))

    def _fail(self, host: Host, effect: StoreRequest, why: FailReason, at: int) -> None:
        self.world.at(at + 1, 0, host.take, Failed(op=effect.op, why=why))

    # ------------------------------------------------------------ what faults do

    def restart(self, *, down_ms: int, lost_calls: int | None) -> None:
        """Another run_id; the newest ``lost_calls`` writing calls are gone (None: all data)."""
        keyspace = self.keyspace
        if lost_calls is None:
            keyspace.flush()
            self._count("store.emptied")
        else:
            position = max(keyspace.forgotten(), keyspace.mark() - lost_calls)
            if position < keyspace.mark():
                self._count("store.tail_lost")
            keyspace.rollback_to(position)
        self._count("store.restarted")
        self.run_number += 1
        self.incarnation_number += 1
        self.run_id = self._run_id()
        self.scripts_cached.clear()
        self.down_until = self.world.now + down_ms
        if self.lost is not None:
            self.lost()
        for host in self.hosts:
            if not host.dead:
                self._tell(host, self.down_until + 1 + self.way.base_ms)

    def flush_all(self) -> None:
        """FLUSHALL: the run_id and every connection stay."""
        self._count("store.flushed")
        self.incarnation_number += 1
        self.keyspace.flush()
        if self.lost is not None:
            self.lost()

    def reconnect(self) -> None:
        """Every connection is made anew: run_id and marker are read, and a marker that differs is told."""
        self._count("store.reconnected")
        for host in self.hosts:
            if not host.dead:
                self._tell(host, self.world.now + 1 + self.way.base_ms)

    def forget_scripts(self) -> None:
        """SCRIPT FLUSH: the next call of each script is answered NOSCRIPT, loaded, and sent again."""
        self._count("store.scripts_forgotten")
        self._forgot = True
        self.scripts_cached.clear()

    def _tell(self, host: Host, at: int) -> None:
        for role in self.roles:
            if role in STORE_ROLES_OF[host.node.role]:
                self.world.at(at, 0, host.take, StoreReset(op=None, store=role))

    def _count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1


def _nothing(_: Any) -> int:
    raise AssertionError("leased without saying what for")


def _lane(kind: type, named: str) -> Callable[[Any], Any]:
    if named == "shard":
        return attrgetter("shard")
    if named:
        return lambda effect: (effect.partition,)
    lane = PRESENCE_LANE if kind in WITHOUT_SHARD else kind.__name__
    return lambda _: lane


class _Kind:
    """What a kind of request has, looked up once: each request asks for all of it."""

    __slots__ = ("fenced", "lane", "number", "site", "traced")

    def __init__(self, kind: type) -> None:
        fields = kind.__struct_fields__  # type: ignore[attr-defined]
        self.site = STORE[kind]
        self.traced = "traces" in fields
        self.fenced = "epoch" in fields
        named = [name for name in ("shard", "partition") if name in fields]
        assert len(named) <= 1, f"{kind.__name__} is for one resource"
        self.number: Callable[[Any], int] = attrgetter(named[0]) if named else _nothing
        """What its lease is for."""
        self.lane = _lane(kind, named[0] if named else "")
        """What keeps its order: the shard or source partition a request names, else its kind."""


_KINDS: Final = {kind: _Kind(kind) for kind in STORE}


def _lease_stands(host: Host, effect: StoreRequest, kind: _Kind) -> bool:
    epoch: int = effect.epoch  # type: ignore[union-attr]
    if not epoch:
        return True
    role = _LEASE_ROLES[host.node.role]
    if role is Role.AUDITOR:
        return host.node.holds(COVERAGE, epoch)
    resource = Resource(role=role, number=kind.number(effect))
    return host.node.holds(resource, epoch)


_LEASE_ROLES: Final = {
    "writer": Role.WRITER,
    "fanout": Role.FANOUT,
    "mailbox": Role.MAILBOX,
    "session": Role.SESSION,
    "archiver": Role.ARCHIVER,
    "auditor": Role.AUDITOR,
}
STORE_ROLES_OF: Final[dict[str, tuple[StoreRole, ...]]] = {
    "writer": (StoreRole.MESSAGE,),
    "fanout": (StoreRole.MESSAGE,),
    "mailbox": (StoreRole.MESSAGE, StoreRole.MAILBOX),
    "session": (StoreRole.MESSAGE, StoreRole.MAILBOX),
    "archiver": (StoreRole.MESSAGE,),
    "gateway": (StoreRole.MAILBOX,),
    "auditor": (StoreRole.MESSAGE, StoreRole.MAILBOX),
}
