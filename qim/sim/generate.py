"""From a seed and a profile to a plan: topology, devices, beginnings, latencies, windows, clocks.

What users do is drawn in ``errands.py``, faults in ``storms/``. Every draw is keyed by what it decides (a message number, a
device), never by how much was drawn before.
"""

from typing import Final

from msgspec.structs import replace

from qim.core.contract.params import DAY_MS
from qim.sim import errands
from qim.sim.clock import TRUE_RATE, Piece
from qim.sim.draw import Draw
from qim.sim.plan import (
    Beginnings,
    ClockPlan,
    Compressed,
    DevicePlan,
    Latency,
    Plan,
    Topology,
)
from qim.sim.storms import storm
from qim.sim.storms.operator import OPERATOR

BEGINNINGS: Final = (0, 0, 2**31 - 3, 2**31 + 1, 2**32 - 2, 2**47 - 2)
MAILBOX_DAYS: Final = (*(DAY_MS,) * 7, 500, 1_000, 2_000)
"""What is drawn as a mailbox's day; a short one lets it trim, and lets go of cursors, inside a world."""
FEW: Final = (1, 2, 3, 4)
"""In a crowd: to how many a change is told as a whole. A group beyond it is as good as one of five hundred."""
PATIENCE_MS: Final = (180_000, 420_000)
"""After the heal. An operator's run that ended in the middle leaves leases of two minutes behind."""
EPOCHS: Final = (0, 0, 2**31 - 2, 2**48 - 2, 2**53 - 2)


def generate(seed: int, profile: str, *, messages: int | None = None) -> Plan:
    """The plan of a seed. ``messages`` fixes the number of sends (the bench uses 60)."""
    draw = Draw(seed, profile)
    calm = profile == "calm"
    topology = _topology(draw, calm)
    devices = _devices(draw, topology)
    span_ms = draw.number(800, 4_000, "span") if calm else draw.number(3_000, 20_000, "span")
    crowd = errands.crowd(draw)
    most = 10 if crowd else 40
    count = messages if messages is not None else draw.number(5, most, "messages")
    operations = errands.operations(draw, devices, span_ms, count)
    parameters = _parameters(draw, calm)
    if profile == "crowd" and not crowd:
        parameters = replace(parameters, membership_broadcast_max=draw.pick(FEW, "broadcast"))
    if profile == "repaired":
        # A record that its log lost and the hot store let go is named and left (decision 0021, "Not in it").
        parameters = replace(parameters, hot_window_ms=Compressed().hot_window_ms)
    faults, heal_ms = storm(draw, topology, devices, span_ms)
    operations += errands.afterwards(draw, devices, faults)
    operations += errands.before_losses(draw, devices, faults)
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
        end_ms=max(heal_ms, span_ms) + PATIENCE_MS[profile in OPERATOR],
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
