"""Every parameter of the system with its unit in its name, and the order they must keep (contract.md, Parameters).

A parameter that isn't here doesn't exist. `shared_digest` covers those that all processes must agree on; the registry
keeps it, and a service with another one refuses to start.
"""

from typing import Final

import msgspec

from qim.core.contract.frame_fields import BODY_BYTES_MAX, CUSTOM_TYPE_BYTES_MAX
from qim.core.contract.hashing import H
from qim.core.contract.routing import LANE_COUNT, VIRTUAL_BUCKET_COUNT, shard_count_is_legal
from qim.core.contract.wire import FRAME_BYTES_BEFORE_AUTH_MAX, FRAME_BYTES_MAX

SECOND_MS: Final = 1000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS


class Parameters(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All parameters. Counts end in _count or _max, times in _ms, sizes in _bytes or _bytes_max."""

    # routing
    virtual_bucket_count: int = VIRTUAL_BUCKET_COUNT
    lane_count: int = LANE_COUNT
    shard_count: int = 64
    outbox_partition_count: int = 16
    history_bucket_width: int = 4096
    # backends
    message_store_backend: str = "tiered"
    mailbox_store_backend: str = "redis"
    # windows and retention
    dedupe_window_ms: int = 2 * HOUR_MS
    not_after_ms: int = HOUR_MS
    not_after_slack_ms: int = 5 * MINUTE_MS
    hot_window_ms: int = 7 * DAY_MS
    default_retention_ms: int = 30 * DAY_MS
    ephemeral_retention_ms: int = DAY_MS
    recall_window_ms: int = DAY_MS
    mailbox_retention_ms: int = 30 * DAY_MS
    mailbox_day_ms: int = DAY_MS
    read_back_ms: int = 7 * DAY_MS
    outbox_recovery_window_ms: int | None = None
    dispatch_recovery_window_ms: int | None = None
    clock_ahead_max_ms: int = 5 * MINUTE_MS
    # sizes of things
    group_members_max: int = 1000
    membership_broadcast_max: int = 500
    explicit_recipients_max: int = 1024
    inline_body_bytes_max: int = 1024
    inline_recipients_max: int = 64
    body_bytes_max: int = BODY_BYTES_MAX
    custom_type_bytes_max: int = CUSTOM_TYPE_BYTES_MAX
    frame_bytes_before_auth_max: int = FRAME_BYTES_BEFORE_AUTH_MAX
    frame_bytes_max: int = FRAME_BYTES_MAX
    batch_bytes_max: int = 256 * 1024
    page_default: int = 100
    page_max: int = 500
    unread_window_max: int = 200
    # batches and attempts
    fanout_batch_max: int = 512
    archiver_batch_max: int = 512
    refreeze_attempts_max: int = 3
    pulls_inflight_max: int = 4
    store_connections_max: int = 8
    script_args_max: int = 7000
    # leases and presence
    lease_ttl_ms: int = 10 * SECOND_MS
    lease_renew_ms: int = 3 * SECOND_MS
    lease_margin_ms: int = SECOND_MS
    presence_ttl_ms: int = 90 * SECOND_MS
    presence_refresh_ms: int = 30 * SECOND_MS
    # connections
    heartbeat_ms: int = 30 * SECOND_MS
    idle_kill_ms: int = 90 * SECOND_MS
    unauthenticated_max_ms: int = 10 * SECOND_MS
    outbound_frames_max: int = 256
    outbound_batches_max: int = 4
    outbound_bytes_max: int = 256 * 1024
    # objectives, P99
    slo_send_ack_ms: int = 150
    slo_end_to_end_ms: int = 300

    def order_faults(self) -> tuple["ParameterFault", ...]:
        """What breaks the legal order; must be empty for compressed windows too."""
        faults = [fault for rule in ORDER for fault in _order_fault(self, rule)]
        usable_ms = self.lease_ttl_ms - self.lease_margin_ms
        if self.lease_renew_ms >= usable_ms:
            expected = f"below lease_ttl_ms - lease_margin_ms ({usable_ms}), when the lease stops being used"
            faults.append(
                _fault(
                    "lease_renew_ms",
                    self.lease_renew_ms,
                    expected,
                    "renew earlier or lengthen lease_ttl_ms",
                )
            )
        return tuple(faults)

    def range_faults(self) -> tuple["ParameterFault", ...]:
        """What lies outside the range of a real deployment."""
        faults: list[ParameterFault] = []
        for name in ("shard_count", "outbox_partition_count"):
            count = getattr(self, name)
            if not shard_count_is_legal(count):
                faults.append(
                    _fault(
                        name, count, "a power of two in 1..65536", "choose the next power of two"
                    )
                )
        for name, least, greatest in RANGES:
            value = getattr(self, name)
            if not least <= value <= greatest:
                faults.append(
                    _fault(name, value, f"{least}..{greatest}", f"set {name} inside its range")
                )
        for name, allowed in CHOICES:
            value = getattr(self, name)
            if value not in allowed:
                faults.append(
                    _fault(name, value, " or ".join(allowed), f"set {name} to one of these")
                )
        return tuple(faults)

    def validate(self) -> tuple["ParameterFault", ...]:
        """All faults, empty when these parameters may run."""
        return self.order_faults() + self.range_faults()

    def recovery_faults(
        self, *, outbox_log_retention_ms: int | None, dispatch_log_retention_ms: int | None
    ) -> tuple["ParameterFault", ...]:
        """Recovery windows must be configured and the log must keep at least as long (None: it keeps for ever)."""
        return _recovery_fault(
            "outbox_recovery_window_ms", self.outbox_recovery_window_ms, outbox_log_retention_ms
        ) + _recovery_fault(
            "dispatch_recovery_window_ms",
            self.dispatch_recovery_window_ms,
            dispatch_log_retention_ms,
        )

    def require_valid(self) -> "Parameters":
        """Self. Raises ParametersInvalid with every fault."""
        faults = self.validate()
        if faults:
            raise ParametersInvalid(faults)
        return self

    def shared_digest(self) -> bytes:
        """16 bytes over the names and values all processes must share."""
        facts: list[bytes | int | str] = []
        for name in SHARED:
            value = getattr(self, name)
            facts += (name, "" if value is None else value)
        return H("qim.parameters", *facts)


class ParameterFault(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One parameter that can't stand: what it is, what was got, what is expected, what to do."""

    name: str
    got: str
    expected: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.name} is {self.got}, expected {self.expected}: {self.remedy}"


class ParametersInvalid(Exception):
    """Parameters that must not run; `faults` has them all."""

    def __init__(self, faults: tuple[ParameterFault, ...]) -> None:
        super().__init__("; ".join(str(fault) for fault in faults))
        self.faults = faults


class Order(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`smaller` must be below `greater` (or may equal it), because of `why`."""

    smaller: str
    greater: str
    why: str
    may_equal: bool = False


def _order(smaller: str, greater: str, why: str) -> Order:
    return Order(smaller=smaller, greater=greater, why=why)


def _at_most(smaller: str, greater: str, why: str) -> Order:
    return Order(smaller=smaller, greater=greater, why=why, may_equal=True)


ORDER: Final = (
    _order(
        "dedupe_window_ms", "hot_window_ms", "a commit's record is hot while a retry may ask for it"
    ),
    _order("hot_window_ms", "default_retention_ms", "the archive takes over before history ends"),
    _order(
        "dedupe_window_ms",
        "mailbox_retention_ms",
        "a client finds its own message before it re-sends",
    ),
    _order(
        "not_after_ms",
        "dedupe_window_ms",
        "a retry allowed by not_after must still meet its commit",
    ),
    _order("not_after_slack_ms", "not_after_ms", "the slack forgives clocks, it is no window"),
    _at_most("read_back_ms", "mailbox_retention_ms", "a new device reads what the mailbox keeps"),
    _at_most("mailbox_day_ms", "mailbox_retention_ms", "trimming removes whole day buckets"),
    _order("lease_margin_ms", "lease_ttl_ms", "the margin is part of the lease"),
    _order("presence_refresh_ms", "presence_ttl_ms", "an entry is refreshed before it ends"),
    _order("heartbeat_ms", "idle_kill_ms", "a heartbeat comes before the kill"),
    _at_most("page_default", "page_max", "the default page is a legal page"),
    _at_most(
        "membership_broadcast_max", "explicit_recipients_max", "a broadcast is an explicit audience"
    ),
    _at_most("inline_body_bytes_max", "body_bytes_max", "an inline body is a body"),
    _at_most("body_bytes_max", "batch_bytes_max", "a batch holds at least one entry"),
    _order("batch_bytes_max", "frame_bytes_max", "a batch travels in one frame"),
    _at_most("frame_bytes_before_auth_max", "frame_bytes_max", "AUTH only lifts the limit"),
)

RANGES: Final = (
    ("virtual_bucket_count", VIRTUAL_BUCKET_COUNT, VIRTUAL_BUCKET_COUNT),
    ("lane_count", LANE_COUNT, LANE_COUNT),
    ("history_bucket_width", 4096, 4096),
    ("hot_window_ms", HOUR_MS, 3650 * DAY_MS),
    ("default_retention_ms", DAY_MS, 3650 * DAY_MS),
    ("ephemeral_retention_ms", MINUTE_MS, 3650 * DAY_MS),
    ("recall_window_ms", SECOND_MS, 3650 * DAY_MS),
    ("mailbox_retention_ms", DAY_MS, 3650 * DAY_MS),
    ("mailbox_day_ms", DAY_MS, DAY_MS),
    ("dedupe_window_ms", MINUTE_MS, 3650 * DAY_MS),
    ("not_after_ms", SECOND_MS, 3650 * DAY_MS),
    ("not_after_slack_ms", 0, HOUR_MS),
    ("read_back_ms", 0, 3650 * DAY_MS),
    ("clock_ahead_max_ms", SECOND_MS, HOUR_MS),
    ("group_members_max", 1, 100_000),
    ("membership_broadcast_max", 1, 1024),
    ("explicit_recipients_max", 1, 1024),
    ("inline_body_bytes_max", 0, BODY_BYTES_MAX),
    ("inline_recipients_max", 0, 1024),
    ("body_bytes_max", 1, BODY_BYTES_MAX),
    ("custom_type_bytes_max", 0, CUSTOM_TYPE_BYTES_MAX),
    ("frame_bytes_before_auth_max", 1024, FRAME_BYTES_MAX),
    ("frame_bytes_max", 1024, FRAME_BYTES_MAX),
    ("batch_bytes_max", 1, FRAME_BYTES_MAX),
    ("page_default", 1, 500),
    ("page_max", 1, 500),
    ("unread_window_max", 1, 10_000),
    ("fanout_batch_max", 1, 4096),
    ("archiver_batch_max", 1, 4096),
    ("refreeze_attempts_max", 1, 16),
    ("pulls_inflight_max", 1, 64),
    ("store_connections_max", 1, 64),
    ("script_args_max", 16, 7000),
    ("lease_ttl_ms", SECOND_MS, HOUR_MS),
    ("lease_renew_ms", 1, HOUR_MS),
    ("lease_margin_ms", 1, HOUR_MS),
    ("presence_ttl_ms", SECOND_MS, HOUR_MS),
    ("presence_refresh_ms", 1, HOUR_MS),
    ("heartbeat_ms", 1, HOUR_MS),
    ("idle_kill_ms", SECOND_MS, HOUR_MS),
    ("unauthenticated_max_ms", 1, HOUR_MS),
    ("outbound_frames_max", 1, 65536),
    ("outbound_batches_max", 1, 64),
    ("outbound_bytes_max", 1024, 64 * 1024 * 1024),
    ("slo_send_ack_ms", 1, HOUR_MS),
    ("slo_end_to_end_ms", 1, HOUR_MS),
)

CHOICES: Final = (
    ("message_store_backend", ("tiered", "redis")),
    ("mailbox_store_backend", ("redis",)),
)

SHARED: Final = (
    "virtual_bucket_count",
    "lane_count",
    "shard_count",
    "outbox_partition_count",
    "history_bucket_width",
    "message_store_backend",
    "mailbox_store_backend",
    "dedupe_window_ms",
    "not_after_ms",
    "not_after_slack_ms",
    "hot_window_ms",
    "default_retention_ms",
    "ephemeral_retention_ms",
    "mailbox_retention_ms",
    "mailbox_day_ms",
    "read_back_ms",
    "outbox_recovery_window_ms",
    "dispatch_recovery_window_ms",
    "group_members_max",
    "membership_broadcast_max",
    "explicit_recipients_max",
    "inline_body_bytes_max",
    "inline_recipients_max",
    "body_bytes_max",
)

DEFAULT: Final = Parameters()


def _fault(name: str, got: object, expected: str, remedy: str) -> ParameterFault:
    return ParameterFault(name=name, got=str(got), expected=expected, remedy=remedy)


def _order_fault(parameters: Parameters, rule: Order) -> tuple[ParameterFault, ...]:
    smaller, greater = getattr(parameters, rule.smaller), getattr(parameters, rule.greater)
    if smaller < greater or (rule.may_equal and smaller == greater):
        return ()
    sign = "at most" if rule.may_equal else "below"
    expected = f"{sign} {rule.greater} ({greater}), for {rule.why}"
    return (
        _fault(rule.smaller, smaller, expected, f"lower {rule.smaller} or raise {rule.greater}"),
    )


def _recovery_fault(
    name: str, window_ms: int | None, log_retention_ms: int | None
) -> tuple[ParameterFault, ...]:
    if window_ms is None:
        return (
            _fault(
                name, "not set", "a window in ms", "say for how long a consumer may stand still"
            ),
        )
    if log_retention_ms is None or window_ms <= log_retention_ms:
        return ()
    return (
        _fault(
            name,
            window_ms,
            f"at most the log's retention ({log_retention_ms})",
            "raise retention.ms",
        ),
    )
