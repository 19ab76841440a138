"""Which faults a seed has, and when: each profile has its kinds, each seed its own subset of them."""

from collections.abc import Callable
from typing import Final

from qim.core.ports.log import Topic
from qim.core.ports.registry import Role
from qim.sim import faults as f
from qim.sim.draw import Draw
from qim.sim.plan import DevicePlan, Topology
from qim.sim.weather import PERCENT, Weather

Storm = tuple[tuple[f.Fault, ...], int]
STALE_MS: Final = 30_000
"""Longer than any process is stopped or any request is late."""
SETTLE_MS: Final = 1_500


Maker = Callable[[Weather, int], f.Fault]


ORDERS: Final = {
    "writer": ("OpenShard", "Append", "RegisterBarrier", "ApplyOutbox", "ReserveAndRecord", "MarkCommitted", "Send"),
    "fanout": ("OpenSource", "Append", "CommitSource"),
    "mailbox": ("OpenMailbox", "ClaimDispatches", "AppendEntries", "FinishDispatches", "Send"),
    "session": ("OpenSession", "Append", "ProjectDispatches", "ApplyStates", "ReadSessions", "Send"),
    "archiver": ("OpenArchive", "WriteArchive", "CommitArchive"),
    "gateway": ("EnterPresence", "Write", "Send"),
}  # fmt: skip
"""Orders at which a process may be made to die: where half of a protocol has happened."""


def _order(w: Weather, node: str, kind: str, i: int) -> str:
    if not w.draw.chance(50, "at_effect", kind, i):
        return ""
    return w.draw.pick(ORDERS[node.partition("-")[0]], "which_effect", kind, i)


def _crash(w: Weather, i: int) -> f.Fault:
    node = w.node("crash", i)
    return f.Crash(
        at_ms=w.when("crash", i),
        node=node,
        salt=w.draw.raw("salt", i),
        down_ms=w.draw.pick((1, 100, 500, 3_000), "down", i),
        at_effect=_order(w, node, "crash", i),
    )


def _pause(w: Weather, i: int) -> f.Fault:
    lasting = w.draw.pick((800, 4_000, 12_000, 25_000), "pause_for", i)
    at = w.when("pause", i)
    node = w.node("pause", i)
    return f.Pause(
        at_ms=at,
        until_ms=at + lasting,
        node=node,
        salt=w.draw.raw("pause_salt", i),
        at_effect=_order(w, node, "pause", i),
    )


def _slow(w: Weather, i: int) -> f.Fault:
    extra = w.draw.pick((20, 200, 1_500), "slow", i)
    return f.SlowNode(**w.window("slow", i, 6_000), node=w.node("slow", i), extra_ms=extra)


def _restart(w: Weather, i: int) -> f.Fault:
    return f.Restart(at_ms=w.when("restart", i), node=w.node("restart", i))


def _scale(w: Weather, i: int) -> f.Fault:
    role = w.draw.pick(("writer", "fanout", "mailbox", "session", "archiver"), "scale", i)
    return f.ScaleOut(at_ms=w.when("scale", i), role=role)


def _wall_step(w: Weather, i: int) -> f.Fault:
    by = w.draw.pick((-200_000, -5_000, 5_000, 100_000), "step", i)
    return f.WallStep(at_ms=w.when("step", i), node=w.node("step", i), by_ms=by)


def _freeze(w: Weather, i: int) -> f.Fault:
    return f.ClockFreeze(**w.window("freeze", i, 8_000), node=w.node("freeze", i))


def _expire(w: Weather, i: int) -> f.Fault:
    roles = (Role.WRITER, Role.FANOUT, Role.MAILBOX, Role.SESSION, Role.ARCHIVER)
    role = w.draw.pick(roles, "expire_role", i)
    of_users = role in (Role.MAILBOX, Role.SESSION)
    count = w.topology.shards if of_users else w.topology.outbox_partitions
    number = w.draw.number(0, count - 1, "expire_number", i)
    return f.LeaseExpires(at_ms=w.when("expire", i), role=role, number=number)


def _set_back(w: Weather, i: int) -> f.Fault:
    roles = (Role.WRITER, Role.WRITER, Role.FANOUT, Role.MAILBOX, Role.SESSION, Role.ARCHIVER)
    role = w.draw.pick(roles, "set_back_role", i)
    of_users = role in (Role.MAILBOX, Role.SESSION)
    count = w.topology.shards if of_users else w.topology.outbox_partitions
    return f.RegistrySetBack(
        at_ms=w.when("set_back", i),
        role=role,
        number=w.draw.number(0, count - 1, "set_back_number", i),
        epochs=w.draw.pick((1, 1, 1, 2, 5), "set_back_by", i),
    )


def _registry_replies(w: Weather, i: int) -> f.Fault:
    window = w.window("registry", i, 8_000)
    return f.RegistryRepliesLost(**window, rate=w.rate("registry", i, most_percent=80))


def _registry_lags(w: Weather, i: int) -> f.Fault:
    return f.RegistryLags(**w.window("lags", i, 8_000))


def _registry_cut(w: Weather, i: int) -> f.Fault:
    two_way = w.draw.chance(50, "registry_cut_ways", i)
    return f.Partition(
        **w.window("registry_cut", i, 15_000),
        source=w.node("registry_cut", i),
        target="registry",
        two_way=two_way,
    )


def _messages(w: Weather, i: int) -> f.Fault:
    which = w.draw.number(0, 3, "messages", i)
    window = w.window("messages", i, 8_000)
    return f.Messages(
        at_ms=window["at_ms"],
        until_ms=window["until_ms"],
        drop=w.rate("drop", i) if which == 0 else 0,
        repeat=w.rate("repeat", i) if which == 1 else 0,
        overtake=w.rate("overtake", i) if which == 2 else 0,
        extra_ms=w.draw.pick((30, 400, 2_500), "extra", i) if which == 3 else 0,
    )


def _partition(w: Weather, i: int) -> f.Fault:
    source, target = w.node("partition_a", i), w.node("partition_b", i)
    if source == target:
        target = "log"
    two_way = w.draw.chance(50, "partition_ways", i)
    return f.Partition(
        **w.window("partition", i, 10_000), source=source, target=target, two_way=two_way
    )


def _unreachable(w: Weather, i: int) -> f.Fault:
    """It renews its lease, and nobody who needs it can reach it."""
    return f.Partition(
        **w.window("unreachable", i, 8_000),
        source="*",
        target=w.node("unreachable", i),
        two_way=False,
    )


def _store_cut(w: Weather, i: int) -> f.Fault:
    store = w.draw.pick(("store-1", f"store-{w.topology.stores}"), "store_cut", i)
    two_way = w.draw.chance(50, "store_cut_ways", i)
    return f.Partition(
        **w.window("store_cut", i, 6_000),
        source=w.node("store_cut", i),
        target=store,
        two_way=two_way,
    )


def _sockets(w: Weather, i: int) -> f.Fault:
    reset = w.draw.chance(50, "sockets", i)
    return f.Sockets(
        **w.window("sockets", i, 8_000),
        reset=w.rate("reset", i, most_percent=15) if reset else 0,
        split=0 if reset else w.rate("split", i, most_percent=90),
    )


def _client_cut(w: Weather, i: int) -> f.Fault:
    gateway = f"gateway-{w.draw.number(1, w.topology.gateways, 'cut_gateway', i)}"
    client = w.draw.pick(w.clients, "cut_client", i)
    return f.Partition(
        **w.window("client_cut", i, 20_000),
        source=client,
        target=gateway,
        two_way=w.draw.chance(50, "client_cut_ways", i),
    )


def _client_crash(w: Weather, i: int) -> f.Fault:
    return f.Crash(
        at_ms=w.when("client_crash", i),
        node=w.draw.pick(w.clients, "client_crash", i),
        salt=w.draw.raw("client_salt", i),
        down_ms=w.draw.pick((1, 300, 4_000), "client_down", i),
    )


def _client_pause(w: Weather, i: int) -> f.Fault:
    at = w.when("client_pause", i)
    return f.Pause(
        at_ms=at,
        until_ms=at + w.draw.pick((500, 6_000, 20_000), "client_pause_for", i),
        node=w.draw.pick(w.clients, "client_pause", i),
        salt=w.draw.raw("client_pause_salt", i),
    )


def _store_number(w: Weather, i: int, kind: str) -> int:
    return w.draw.number(0, w.topology.stores - 1, "store", kind, i)


def _store_rates(w: Weather, i: int) -> f.Fault:
    which = w.draw.number(0, 4, "store_rates", i)
    return f.StoreRates(
        **w.window("store_rates", i, 5_000),
        store=_store_number(w, i, "rates"),
        reply_lost=w.rate("reply_lost", i) if which == 0 else 0,
        late=w.rate("late", i) if which == 1 else 0,
        unreachable=w.rate("unreachable_store", i) if which == 2 else 0,
        refused=w.rate("refused", i) if which == 3 else 0,
        extra_ms=w.draw.pick((20, 300, 1_800), "store_extra", i) if which == 4 else 0,
    )


def _store_stall(w: Weather, i: int) -> f.Fault:
    return f.StoreStall(**w.window("store_stall", i, 6_000), store=_store_number(w, i, "stall"))


def _store_restart(w: Weather, i: int) -> f.Fault:
    return f.StoreRestart(
        at_ms=w.when("store_restart", i),
        store=_store_number(w, i, "restart"),
        lost_calls=w.draw.pick((0, 1, 3, 10, 60), "lost_calls", i),
        down_ms=w.draw.pick((5, 50, 1_500), "store_down", i),
    )


def _store_emptied(w: Weather, i: int) -> f.Fault:
    return f.StoreEmptied(
        **w.window("store_emptied", i, 4_000),
        store=_store_number(w, i, "emptied"),
        flush=w.draw.chance(50, "flush", i),
    )


def _scripts(w: Weather, i: int) -> f.Fault:
    return f.ScriptsForgotten(at_ms=w.when("scripts", i), store=_store_number(w, i, "scripts"))


def _log_rates(w: Weather, i: int) -> f.Fault:
    which = w.draw.number(0, 6, "log_rates", i)
    return f.LogRates(
        **w.window("log_rates", i, 5_000),
        reply_lost=w.rate("log_reply", i) if which == 0 else 0,
        not_appended=w.rate("not_appended", i) if which == 1 else 0,
        late=w.rate("log_late", i) if which in (2, 6) else 0,
        doubled=w.rate("doubled", i, most_percent=60) if which == 3 else 0,
        short=w.rate("short", i, most_percent=90) if which == 4 else 0,
        fetch_failed=w.rate("fetch_failed", i, most_percent=60) if which == 5 else 0,
        refused=w.rate("log_refused", i, most_percent=5) if which == 6 else 0,
        extra_ms=0,
    )


def _late_appends(w: Weather, i: int) -> f.Fault:
    """Appends nobody can tell the fate of, often: without them the effective filter is never tried."""
    window = w.window("late_appends", i, 8_000)
    return f.LogRates(**window, late=20 * PERCENT + w.rate("late_appends", i, most_percent=50))


def _topic(w: Weather, i: int, kind: str) -> dict[str, object]:
    topic = w.draw.pick((Topic.OUTBOX, Topic.DISPATCH, Topic.USER_STATE), "topic", kind, i)
    count = w.topology.outbox_partitions if topic is Topic.OUTBOX else w.topology.shards
    return {"topic": topic, "partition": w.draw.number(0, count - 1, "partition", kind, i)}


def _leader_change(w: Weather, i: int) -> f.Fault:
    place = _topic(w, i, "leader")
    return f.LeaderChange(**w.window("leader", i, 4_000), **place)  # type: ignore[arg-type]


def _log_stall(w: Weather, i: int) -> f.Fault:
    place = _topic(w, i, "stall")
    return f.LogStall(**w.window("log_stall", i, 8_000), **place)  # type: ignore[arg-type]


def _archive_rates(w: Weather, i: int) -> f.Fault:
    which = w.draw.number(0, 5, "archive_rates", i)
    return f.ArchiveRates(
        **w.window("archive_rates", i, 6_000),
        reply_lost=w.rate("archive_reply", i, most_percent=60) if which == 0 else 0,
        late=w.rate("archive_late", i, most_percent=60) if which == 1 else 0,
        partial=w.rate("archive_partial", i, most_percent=80) if which == 2 else 0,
        unreachable=w.rate("archive_unreachable", i, most_percent=60) if which == 3 else 0,
        stale=w.rate("archive_stale", i, most_percent=80) if which == 4 else 0,
        extra_ms=w.draw.pick((20, 300, 1_800), "archive_extra", i) if which == 5 else 0,
    )


def _archive_cut(w: Weather, i: int) -> f.Fault:
    role = w.draw.pick(("archiver", "archiver", "writer", "mailbox"), "archive_cut_role", i)
    names = [name for name in w.services if name.startswith(role)]
    return f.Partition(
        **w.window("archive_cut", i, 8_000),
        source=w.draw.pick(names, "archive_cut", i),
        target="archive",
        two_way=w.draw.chance(50, "archive_cut_ways", i),
    )


def _outbox_trimmed(w: Weather, i: int) -> f.Fault:
    """After everything that a stopped process may still hold: retention outlives the dedupe window (contract.md)."""
    at = w.when("outbox_trimmed", i) + STALE_MS
    return f.OutboxTrimmed(at_ms=at, older_ms=STALE_MS - 2_000)


def _cursor(w: Weather, i: int) -> f.Fault:
    return f.CursorDamaged(
        at_ms=w.when("cursor", i),
        node=w.draw.pick(w.clients, "cursor_node", i),
        how=w.draw.pick(("tampered", "ancient", "future"), "how", i),
    )


def _twin(w: Weather, i: int) -> f.Fault:
    node = w.draw.pick(w.clients, "twin_node", i)
    return f.Twin(**w.window("twin", i, 6_000), node=node)


def _garbage(w: Weather, i: int) -> f.Fault:
    return f.Garbage(
        at_ms=w.when("garbage", i),
        gateway=f"gateway-{w.draw.number(1, w.topology.gateways, 'garbage_at', i)}",
        kind=w.draw.number(0, 4, "garbage_kind", i),
        salt=w.draw.raw("garbage_salt", i) % 2**32,
    )


def _user_acts(w: Weather, i: int) -> f.Fault:
    times = w.draw.number(2, 30, "acts", i)
    node = w.draw.pick(w.clients, "acts_node", i)
    return f.UserActs(at_ms=w.when("acts", i), node=node, times=times)


def _lost(w: Weather) -> list[f.Fault]:
    """The world heals without one of its processes; never without the last of a role."""
    topology = w.topology
    counts = (
        ("writer", topology.writers),
        ("fanout", topology.fanouts),
        ("mailbox", topology.mailboxes),
        ("session", topology.sessions),
        ("archiver", topology.archivers),
        ("gateway", topology.gateways),
    )
    many = [(role, count) for role, count in counts if count > 1]
    if not many:
        return []
    role, count = w.draw.pick(many, "lost_role")
    node = f"{role}-{w.draw.number(1, count, 'lost_node')}"
    return [f.Lost(at_ms=w.when("lost", 0), node=node, stopped=w.draw.chance(40, "lost_stopped"))]


def contest(w: Weather, i: int) -> list[f.Fault]:
    """A writer opens while another owner comes and goes, and the store forgets the other: each step happens alone too."""
    draw = w.draw
    begin = w.when("contest", i)
    length = draw.number(120, 500, "contest_length", i)
    end = begin + length
    node = f"writer-{draw.number(1, w.topology.writers, 'contest_node', i)}"
    again = draw.pick(("crash", "restart", "expire"), "contest_again", i)
    made: list[f.Fault] = [
        f.StoreStall(at_ms=begin + draw.number(0, 40, "contest_stall", i), until_ms=end, store=0),
        f.StoreRestart(
            at_ms=end - draw.number(1, 60, "contest_restart", i),
            lost_calls=draw.pick((1, 5, 60), "contest_lost", i),
            down_ms=5,
        ),
    ]
    if again == "crash":
        made.append(f.Crash(at_ms=begin, node=node, salt=draw.raw("contest_salt", i), down_ms=1))
    elif again == "restart":
        made.append(f.Restart(at_ms=begin, node=node, down_ms=1))
    for number in range(w.topology.outbox_partitions):
        if again == "expire":
            made.append(f.LeaseExpires(at_ms=begin, role=Role.WRITER, number=number))
        at = end - draw.number(40, 120, "contest_usurper", i, number)
        late = draw.pick((0, 100, 200, 400), "contest_late", i, number)
        made.append(f.Usurper(at_ms=at, number=number, late_ms=late))
    return made


PROCESS: Final[tuple[Maker, ...]] = (_crash, _pause, _slow, _restart, _scale)
CLOCK: Final[tuple[Maker, ...]] = (_wall_step, _freeze)
REGISTRY: Final[tuple[Maker, ...]] = (_expire, _registry_replies, _registry_lags, _registry_cut)
NETWORK: Final[tuple[Maker, ...]] = (_messages, _partition, _unreachable, _store_cut)
STORE: Final[tuple[Maker, ...]] = (
    _store_rates,
    _store_stall,
    _store_restart,
    _store_emptied,
    _scripts,
)
LOG: Final[tuple[Maker, ...]] = (_log_rates, _leader_change, _log_stall, _late_appends)
ARCHIVE: Final[tuple[Maker, ...]] = (_archive_rates, _archive_cut, _outbox_trimmed)
CLIENT: Final[tuple[Maker, ...]] = (
    _sockets,
    _client_cut,
    _client_crash,
    _client_pause,
    _cursor,
    _twin,
    _garbage,
    _user_acts,
)
KINDS: Final[dict[str, tuple[Maker, ...]]] = {
    "calm": (),
    "swarm": (
        *(PROCESS + CLOCK + REGISTRY + NETWORK + STORE + LOG + ARCHIVE + CLIENT),
        _set_back,
    ),
    "zombie": (
        _pause,
        _expire,
        _registry_cut,
        _registry_replies,
        _log_rates,
        _late_appends,
        _store_rates,
        _set_back,
    ),
    "store": (*STORE, _crash, _store_cut),
    "log": (*LOG, _crash, _expire),
    "archive": (*ARCHIVE, _crash, _store_restart, _store_emptied, _expire),
    "client": (*CLIENT, _crash, _messages),
}


def storm(draw: Draw, topology: Topology, devices: tuple[DevicePlan, ...], span_ms: int) -> Storm:
    """The faults, and when all of them are over."""
    kinds = KINDS[draw.profile]
    weather = Weather(draw, topology, devices, span_ms)
    made: list[f.Fault] = []
    share = draw.number(10, 60, "share")
    # Some worlds are hit by few kinds again and again in a short time: what needs three things at once needs that.
    dense = draw.profile == "swarm" and draw.chance(25, "dense")
    if dense:
        share = draw.number(8, 25, "dense_share")
        weather.span_ms = min(span_ms, 5_000)
    for number, maker in enumerate(kinds):
        name = maker.__name__
        if draw.profile == "swarm" and not draw.chance(share, "kind", name):
            continue
        made.extend(
            maker(weather, number * 100 + index)
            for index in range(
                draw.number(3, 10, "dense", name) if dense else draw.number(1, 3, "how_many", name)
            )
        )
    if draw.profile in ("swarm", "zombie") and draw.chance(35, "contested"):
        for index in range(draw.number(2, 6, "contests")):
            made.extend(contest(weather, index))
    if draw.profile != "calm" and draw.chance(15, "loses"):
        made.extend(_lost(weather))
    made.sort(key=lambda fault: fault.at_ms)
    over = max((max(fault.at_ms, fault.until_ms) for fault in made), default=0)
    return tuple(made), over + SETTLE_MS if made else 0
