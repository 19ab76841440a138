"""From a seed and a profile to a plan: topology, workload, beginnings, clocks; faults are drawn in ``storms.py``.

Swarm: each seed draws its own subset of fault kinds, workload kinds and sizes, so that no kind hides another. Every draw
is keyed by what it decides (a message number, a device), never by how much was drawn before.
"""

from typing import Final

from qim.core.contract.entities import RetentionClass
from qim.core.contract.params import DAY_MS
from qim.sim.clock import TRUE_RATE, Piece
from qim.sim.draw import Draw
from qim.sim.faults import Fault, OutboxTrimmed, StoreRestart
from qim.sim.plan import (
    Beginnings,
    ChangeGroup,
    ClockPlan,
    Compressed,
    Connect,
    DevicePlan,
    Disconnect,
    Latency,
    MarkRead,
    Operation,
    Overlay,
    Plan,
    Query,
    Send,
    SetState,
    Topology,
)
from qim.sim.storms import storm

TOLD_FIRST: Final = 1_000_000
"""Operations are numbered apart by what asks for them; those after faults take a hundred a fault."""
FIRST_SEND_MS: Final = 400
BEGINNINGS: Final = (0, 0, 2**31 - 3, 2**31 + 1, 2**32 - 2, 2**47 - 2)
MAILBOX_DAYS: Final = (*(DAY_MS,) * 7, 500, 1_000, 2_000)
"""What is drawn as a mailbox's day; a short one lets it trim, and lets go of cursors, inside a world."""
EPOCHS: Final = (0, 0, 2**31 - 2, 2**48 - 2, 2**53 - 2)


class Kinds:
    """Which kinds of workload this seed has."""

    def __init__(self, draw: Draw) -> None:
        calm = draw.profile == "calm"
        self.groups = draw.chance(60, "groups")
        self.big_bodies = draw.chance(20, "bodies")
        self.reconnects = not calm and draw.chance(50, "reconnects")
        self.queries = draw.chance(30, "queries")
        self.selfchat = draw.chance(20, "selfchat")
        self.changes = self.groups and draw.chance(60, "changes")
        self.views = draw.chance(60, "views")
        self.ephemeral = draw.chance(40, "ephemeral")


def generate(seed: int, profile: str, *, messages: int | None = None) -> Plan:
    """The plan of a seed. ``messages`` fixes the number of sends (the bench uses 60)."""
    draw = Draw(seed, profile)
    calm = profile == "calm"
    topology = _topology(draw, calm)
    devices = _devices(draw, topology)
    span_ms = draw.number(800, 4_000, "span") if calm else draw.number(3_000, 20_000, "span")
    count = messages if messages is not None else draw.number(5, 40, "messages")
    operations = _operations(draw, devices, span_ms, count)
    parameters = _parameters(draw, calm)
    faults, heal_ms = storm(draw, topology, devices, span_ms)
    operations += _afterwards(draw, devices, faults)
    operations += _before_losses(draw, devices, faults)
    return Plan(
        seed=seed,
        profile=profile,
        topology=topology,
        devices=devices,
        operations=operations,
        faults=faults,
        clocks=() if calm else _clocks(draw, topology, devices),
        beginnings=_beginnings(draw),
        latency=_latency(draw, calm),
        parameters=parameters,
        heal_ms=heal_ms,
        end_ms=max(heal_ms, span_ms) + 180_000,
    )


def _topology(draw: Draw, calm: bool) -> Topology:
    most = 2 if calm else 3
    return Topology(
        writers=draw.number(1, most, "writers"),
        fanouts=draw.number(1, 2, "fanouts"),
        mailboxes=draw.number(1, most, "mailboxes"),
        gateways=draw.number(1, 2, "gateways"),
        outbox_partitions=draw.pick((1, 1, 2, 4), "partitions"),
        shards=draw.pick((1, 2, 2, 4), "shards"),
        stores=draw.pick((1, 2), "stores"),
        sessions=draw.number(1, 2, "sessions"),
        archivers=draw.number(1, 2, "archivers"),
    )


def _devices(draw: Draw, topology: Topology) -> tuple[DevicePlan, ...]:
    made: list[DevicePlan] = []
    for index in range(draw.number(2, 6, "users")):
        user_id = draw.raw("user", index) % (2**63) + 1
        for device in range(2 if draw.chance(25, "second", index) else 1):
            gateway = draw.number(0, topology.gateways - 1, "gateway", index, device)
            name = f"d{device + 1}".encode()
            made.append(DevicePlan(user_id=user_id, device_id=name, gateway=gateway))
    return tuple(made)


def _operations(
    draw: Draw, devices: tuple[DevicePlan, ...], span_ms: int, count: int
) -> tuple[Operation, ...]:
    kinds = Kinds(draw)
    users = tuple(dict.fromkeys(device.user_id for device in devices))
    made: list[Operation] = []
    groups = _groups(draw, kinds, devices, users, made, span_ms)
    number = 1_000
    for index in range(count):
        number += 1
        device = draw.number(0, len(devices) - 1, "sender", index)
        me = devices[device].user_id
        others = [user for user in users if user != me or kinds.selfchat]
        grouped = bool(groups) and draw.chance(50, "to_group", index)
        size = draw.pick((8, 16, 200, 3_000), "size", index) if kinds.big_bodies else 16
        at = FIRST_SEND_MS + draw.number(0, span_ms, "at", index)
        made.append(
            Send(
                at_ms=at,
                device=device,
                number=number,
                peer=0 if grouped else draw.pick(others, "peer", index),
                group=draw.pick(groups, "group", index) if grouped else -1,
                body_bytes=size,
                retention_class=_class(draw, kinds, index),
            )
        )
    _comings_and_goings(draw, kinds, devices, made, span_ms)
    if kinds.queries:
        _queries(draw, devices, users, groups, made, span_ms)
    if kinds.views:
        _own_views(draw, devices, users, groups, made, span_ms)
    return tuple(made)


def _afterwards(
    draw: Draw, devices: tuple[DevicePlan, ...], faults: tuple[Fault, ...]
) -> tuple[Operation, ...]:
    """What came back from the archive is written to again."""
    users = tuple(dict.fromkeys(device.user_id for device in devices))
    return tuple(
        Send(
            at_ms=fault.at_ms + draw.number(500, 4_000, "again_at", index, device),
            device=device,
            number=20_000 + index * 100 + device,
            peer=draw.pick(users, "again", index, device),
        )
        for index, fault in enumerate(faults)
        if isinstance(fault, OutboxTrimmed)
        for device in range(len(devices))
    )


def _before_losses(
    draw: Draw, devices: tuple[DevicePlan, ...], faults: tuple[Fault, ...]
) -> tuple[Operation, ...]:
    """Something is said and recalled just before a store loses its tail, and a device that was away comes in between."""
    made: list[Operation] = []
    losses = [fault for fault in faults if isinstance(fault, StoreRestart) and fault.lost_calls]
    for index, fault in enumerate(losses):
        begin = fault.at_ms - draw.number(120, 900, "told_before", index)
        others = [at for at, other in enumerate(devices) if other.user_id != devices[0].user_id]
        if begin < FIRST_SEND_MS or not others or not draw.chance(60, "told", index):
            continue
        reader = draw.pick(others, "away", index)
        peer, number = devices[reader].user_id, TOLD_FIRST + 10 * index
        recall_at = fault.at_ms - draw.number(10, 100, "recalled_before", index)
        back = fault.at_ms + fault.down_ms + draw.number(-80, 40, "back_after", index)
        made += [
            Disconnect(at_ms=begin - 50, device=reader),
            Send(at_ms=begin, device=0, number=number, peer=peer),
            Overlay(at_ms=recall_at, device=0, number=number + 1, kind=4, peer=peer),
            Connect(at_ms=max(recall_at, back), device=reader),
        ]
    return tuple(made)


def _class(draw: Draw, kinds: Kinds, index: int) -> int:
    if not kinds.ephemeral or draw.chance(50, "kept", index):
        return RetentionClass.DEFAULT
    classes = (RetentionClass.EPHEMERAL, RetentionClass.EPHEMERAL, RetentionClass.COMPLIANCE_HOLD)
    return draw.pick(classes, "class", index)


def _groups(
    draw: Draw,
    kinds: Kinds,
    devices: tuple[DevicePlan, ...],
    users: tuple[int, ...],
    made: list[Operation],
    span_ms: int,
) -> tuple[int, ...]:
    if not kinds.groups:
        return ()
    count = draw.number(1, 2, "group_count")
    for group in range(count):
        creator = draw.number(0, len(devices) - 1, "creator", group)
        members = tuple(user for user in users if draw.chance(60, "member", group, str(user))) or (
            users[0],
        )
        at = FIRST_SEND_MS - 100 + group
        made.append(
            ChangeGroup(
                at_ms=at, device=creator, number=group, group=group, operation=1, users=members
            )
        )
        if not kinds.changes:
            continue
        for index in range(draw.number(1, 6, "changes", group)):
            operation = draw.pick((2, 2, 3, 4), "operation", group, index)
            device = (
                creator
                if operation != 4
                else draw.number(0, len(devices) - 1, "leaver", group, index)
            )
            chosen = draw.pick(users, "changed", group, index)
            made.append(
                ChangeGroup(
                    at_ms=FIRST_SEND_MS + draw.number(200, span_ms, "change_at", group, index),
                    device=device,
                    number=100 + group * 20 + index,
                    group=group,
                    operation=operation,
                    users=() if operation == 4 else (chosen,),
                )
            )
    return tuple(range(count))


def _comings_and_goings(
    draw: Draw,
    kinds: Kinds,
    devices: tuple[DevicePlan, ...],
    made: list[Operation],
    span_ms: int,
) -> None:
    if not kinds.reconnects:
        return
    for index in range(len(devices)):
        if draw.chance(50, "leaves", index):
            leave = FIRST_SEND_MS + draw.number(0, span_ms, "leave_at", index)
            back = leave + draw.number(10, span_ms, "back_at", index)
            made.append(Disconnect(at_ms=leave, device=index))
            made.append(Connect(at_ms=back, device=index))


def _queries(
    draw: Draw,
    devices: tuple[DevicePlan, ...],
    users: tuple[int, ...],
    groups: tuple[int, ...],
    made: list[Operation],
    span_ms: int,
) -> None:
    for index in range(draw.number(1, 4, "query_count")):
        grouped = bool(groups) and draw.chance(60, "query_group", index)
        made.append(
            Query(
                at_ms=FIRST_SEND_MS + draw.number(100, span_ms, "query_at", index),
                device=draw.number(0, len(devices) - 1, "asker", index),
                kind=draw.number(1, 2, "query_kind", index) if grouped else 1,
                peer=0 if grouped else draw.pick(users, "query_peer", index),
                group=draw.pick(groups, "query_of", index) if grouped else -1,
            )
        )


def _own_views(
    draw: Draw,
    devices: tuple[DevicePlan, ...],
    users: tuple[int, ...],
    groups: tuple[int, ...],
    made: list[Operation],
    span_ms: int,
) -> None:
    """Read marks, states, recalls and deletions."""
    for index in range(draw.number(1, 12, "view_count")):
        grouped = bool(groups) and draw.chance(50, "view_group", index)
        at = FIRST_SEND_MS + draw.number(300, span_ms + 500, "view_at", index)
        device = draw.number(0, len(devices) - 1, "viewer", index)
        peer = 0 if grouped else draw.pick(users, "view_peer", index)
        group = draw.pick(groups, "view_of", index) if grouped else -1
        number = 10_000 + index
        where = {"at_ms": at, "device": device, "number": number, "peer": peer, "group": group}
        kind = draw.pick(("read", "read", "state", "recall", "delete"), "view", index)
        siblings = [
            other
            for other, planned in enumerate(devices)
            if other != device and planned.user_id == devices[device].user_id
        ]
        # The user's other device says something else in the same moment: whose word stands is a rule, not arrival.
        both = [{**where, "device": other, "number": number + 1_000} for other in siblings]
        if kind == "read":
            made.append(MarkRead(**where, behind=draw.number(0, 3, "behind", index)))
            made.extend(MarkRead(**one, behind=1 + index % 3) for one in both)
        elif kind == "state":
            made.append(SetState(**where, flags=draw.number(0, 7, "flags", index)))
            made.extend(SetState(**one, flags=1 + index % 7) for one in both)
        else:
            made.append(Overlay(**where, kind=4 if kind == "recall" else 5))


def _beginnings(draw: Draw) -> Beginnings:
    return Beginnings(
        outbox_offset=draw.pick((*BEGINNINGS, 2**53 - 2), "outbox_offset"),
        dispatch_offset=draw.pick(BEGINNINGS, "dispatch_offset"),
        epoch=draw.pick(EPOCHS, "epoch"),
        wall_ms=1_700_000_000_000 + draw.number(0, 86_400_000, "wall"),
        monotonic_ms=draw.pick((1_000, 2**31 - 5_000, 2**32 - 5_000), "monotonic"),
    )


def _latency(draw: Draw, calm: bool) -> Latency:
    if calm:
        # Choice 0 everywhere: each way takes its base, so that what happens together stays together.
        return Latency(
            network_spread_ms=0, store_spread_ms=0, log_spread_ms=0, registry_spread_ms=0
        )
    return Latency(
        network_spread_ms=draw.pick((0, 2, 10, 60), "network"),
        store_spread_ms=draw.pick((0, 1, 5, 30), "store"),
        log_spread_ms=draw.pick((1, 4, 20, 80), "log"),
        registry_spread_ms=draw.pick((1, 10, 100), "registry"),
    )


def _parameters(draw: Draw, calm: bool) -> Compressed:
    if calm or draw.chance(30, "full_windows"):
        return Compressed()
    not_after = draw.pick((3_600_000, 3_600_000, 8_000), "not_after")
    day = draw.pick(MAILBOX_DAYS, "mailbox_day")
    brief = day < DAY_MS
    kept = draw.pick((4_000, 10_000), "mailbox_kept")
    if not_after < 60_000:
        # Where rows live to see their end, a client finds its own message in the mailbox until then (contract, order).
        kept = 2 * not_after + 1_000
    return Compressed(
        lease_ttl_ms=4_000,
        lease_renew_ms=1_000,
        lease_margin_ms=500,
        heartbeat_ms=3_000,
        idle_kill_ms=9_000,
        presence_ttl_ms=9_000,
        presence_refresh_ms=3_000,
        not_after_ms=not_after,
        not_after_slack_ms=not_after // 12,
        dedupe_window_ms=2 * not_after,
        hot_window_ms=draw.pick((1_000, 3_000, 10_000, 7 * 86_400_000), "hot_window"),
        ephemeral_ms=draw.pick((1_500, 5_000, 86_400_000), "ephemeral_for"),
        request_timeout_ms=draw.pick((2_000, 5_000), "timeout"),
        page_default=draw.pick((2, 10, 100), "page"),
        inline_body_bytes_max=draw.pick((1_024, 1_024, 8), "inline"),
        mailbox_day_ms=day,
        mailbox_retention_ms=kept if brief else 30 * DAY_MS,
        read_back_ms=draw.pick((2_000, 4_000), "read_back") if brief else 7 * DAY_MS,
    )


def _clocks(
    draw: Draw, topology: Topology, devices: tuple[DevicePlan, ...]
) -> tuple[ClockPlan, ...]:
    if not draw.chance(50, "clocks"):
        return ()
    begin = _beginnings(draw)
    names = [
        *(f"writer-{i + 1}" for i in range(topology.writers)),
        *(f"gateway-{i + 1}" for i in range(topology.gateways)),
        *(f"mailbox-{i + 1}" for i in range(topology.mailboxes)),
        *(f"archiver-{i + 1}" for i in range(topology.archivers)),
        *(f"session-{i + 1}" for i in range(topology.sessions)),
    ]
    made: list[ClockPlan] = []
    for name in names:
        if not draw.chance(50, "clock", name):
            continue
        offset = draw.number(-60_000, 60_000, "offset", name)
        if name.startswith("archiver"):
            # It judges retention and nothing else: what it lets go is gone by whatever clock.
            offset *= draw.pick((1, 10), "far", name)
        rate = TRUE_RATE + draw.number(-2_000, 2_000, "drift", name)
        made.append(
            ClockPlan(
                node=name,
                wall=(Piece(0, begin.wall_ms + offset, rate),),
                monotonic=(Piece(0, begin.monotonic_ms + abs(offset), rate),),
            )
        )
    return tuple(made)
