"""A plan: everything that makes a world, as frozen data, JSON both ways (simulator.md, "Plan, world, verdict").

Times are world ms from the start. Names of nodes are ``<role>-<number>`` from 1, of devices ``client-<user>-<device>``.
"""

from typing import Final

import msgspec
from msgspec import Struct

from qim.sim.clock import Piece
from qim.sim.faults import Fault

PROFILES: Final = (
    "calm",
    "swarm",
    "zombie",
    "store",
    "log",
    "archive",
    "client",
    "crowd",
    "mended",
    "repaired",
)


class Topology(Struct, frozen=True, kw_only=True, gc=False):
    """How many of each. ``stores``: 1 (both roles in one server) or 2 (with separate tails)."""

    writers: int = 1
    fanouts: int = 1
    mailboxes: int = 1
    gateways: int = 1
    outbox_partitions: int = 1
    shards: int = 1
    stores: int = 1
    sessions: int = 1
    archivers: int = 1

    def processes(self) -> tuple[tuple[str, int], ...]:
        """(role, how many), in the order in which they start."""
        return (
            ("writer", self.writers),
            ("fanout", self.fanouts),
            ("mailbox", self.mailboxes),
            ("session", self.sessions),
            ("archiver", self.archivers),
            ("gateway", self.gateways),
        )


class Beginnings(Struct, frozen=True, kw_only=True, gc=False):
    """Where counters start: near 2^31, 2^48 and 2^53 where that is legal. Clocks: ms a clock shows at world time 0."""

    outbox_offset: int = 0
    dispatch_offset: int = 0
    epoch: int = 0
    wall_ms: int = 1_700_000_000_000
    monotonic_ms: int = 1_000


class Latency(Struct, frozen=True, kw_only=True, gc=False):
    """Base and spread of each way, in ms; a draw of 0 is the base."""

    network_ms: int = 1
    network_spread_ms: int = 2
    store_ms: int = 1
    store_spread_ms: int = 1
    log_ms: int = 1
    log_spread_ms: int = 2
    registry_ms: int = 2
    registry_spread_ms: int = 2


class Compressed(Struct, frozen=True, kw_only=True, gc=False):
    """The parameter set of the world; everything else has contract.md's defaults."""

    lease_ttl_ms: int = 10_000
    lease_renew_ms: int = 3_000
    lease_margin_ms: int = 1_000
    heartbeat_ms: int = 30_000
    idle_kill_ms: int = 90_000
    presence_ttl_ms: int = 90_000
    presence_refresh_ms: int = 30_000
    not_after_ms: int = 3_600_000
    not_after_slack_ms: int = 300_000
    dedupe_window_ms: int = 7_200_000
    hot_window_ms: int = 7 * 86_400_000
    """The writer's; below the dedupe window in worlds too short for that one."""
    ephemeral_ms: int = 86_400_000
    request_timeout_ms: int = 5_000
    page_default: int = 100
    mailbox_day_ms: int = 86_400_000
    mailbox_retention_ms: int = 30 * 86_400_000
    read_back_ms: int = 7 * 86_400_000
    membership_broadcast_max: int = 500
    inline_body_bytes_max: int = 1_024
    """Longer bodies stand in no dispatch: pushes go without them, pulls look into store and archive."""


class Send(Struct, frozen=True, kw_only=True, gc=False, tag="send"):
    """``device`` (index into Plan.devices) sends ``body_bytes`` to a peer, or to group number ``group``."""

    at_ms: int
    device: int
    number: int
    peer: int = 0
    group: int = -1
    body_bytes: int = 16
    retention_class: int = 0


class ChangeGroup(Struct, frozen=True, kw_only=True, gc=False, tag="group"):
    """A MembershipOp on group number ``group``."""

    at_ms: int
    device: int
    number: int
    group: int
    operation: int
    users: tuple[int, ...] = ()


class Connect(Struct, frozen=True, kw_only=True, gc=False, tag="connect"):
    """The device's user wants to be online."""

    at_ms: int
    device: int


class Disconnect(Struct, frozen=True, kw_only=True, gc=False, tag="disconnect"):
    """The device's user wants to be offline."""

    at_ms: int
    device: int


QUERY_HISTORY: Final = 1
QUERY_MEMBERS: Final = 2


class Query(Struct, frozen=True, kw_only=True, gc=False, tag="query"):
    """Ask for history or members (``kind``) of a group or peer conversation."""

    at_ms: int
    device: int
    kind: int
    peer: int = 0
    group: int = -1


class MarkRead(Struct, frozen=True, kw_only=True, gc=False, tag="mark_read"):
    """Read all but the last ``behind`` messages that the device holds of a conversation; nothing held: seq 1 is marked."""

    at_ms: int
    device: int
    number: int
    peer: int = 0
    group: int = -1
    behind: int = 0


class SetState(Struct, frozen=True, kw_only=True, gc=False, tag="set_state"):
    """Replace the user's own state of a conversation."""

    at_ms: int
    device: int
    number: int
    peer: int = 0
    group: int = -1
    flags: int = 0


class Overlay(Struct, frozen=True, kw_only=True, gc=False, tag="overlay"):
    """RECALL what the device sent last, or DELETE_FOR_ME the newest message it holds, of a conversation (``kind``)."""

    at_ms: int
    device: int
    number: int
    kind: int
    peer: int = 0
    group: int = -1


Operation = Send | ChangeGroup | Connect | Disconnect | Query | MarkRead | SetState | Overlay


class DevicePlan(Struct, frozen=True, kw_only=True, gc=False):
    """One device of one user; ``gateway``: the first one it dials."""

    user_id: int
    device_id: bytes
    gateway: int = 0


class ClockPlan(Struct, frozen=True, kw_only=True):
    """A node's clocks, where they differ from the truth."""

    node: str
    wall: tuple[Piece, ...]
    monotonic: tuple[Piece, ...]


class Plan(Struct, frozen=True, kw_only=True):
    """One world. Faults end by ``heal_ms``; whoever has not settled by ``end_ms`` never will."""

    seed: int
    profile: str
    topology: Topology
    devices: tuple[DevicePlan, ...]
    operations: tuple[Operation, ...]
    faults: tuple[Fault, ...] = ()
    clocks: tuple[ClockPlan, ...] = ()
    beginnings: Beginnings = Beginnings()
    latency: Latency = Latency()
    parameters: Compressed = Compressed()
    heal_ms: int = 0
    end_ms: int = 120_000

    @property
    def users(self) -> tuple[int, ...]:
        """All user ids, ascending."""
        return tuple(sorted(dict.fromkeys(device.user_id for device in self.devices)))


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Plan)


def encode_plan(plan: Plan) -> bytes:
    """JSON."""
    return msgspec.json.format(_encoder.encode(plan), indent=1)


def decode_plan(data: bytes) -> Plan:
    """Inverse of ``encode_plan``; raises msgspec.ValidationError."""
    return _decoder.decode(data)
