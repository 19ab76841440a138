"""Everything a process of `qim serve` is told, once read: one frozen value, and what follows from it for a role."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from qim.core.contract.params import DAY_MS, DEFAULT, Parameters
from qim.core.ports.moderation import FailPolicy
from qim.core.retention import RetentionPolicy
from qim.services.roles import ServiceRole
from qim.services.settings.values import Address

LOOPBACK: Final = "127.0.0.1"
DEVELOPMENT_SECRET: Final = "qim-development-secret"  # refused outside loopback
DEVELOPMENT_BROKERS: Final = ("127.0.0.1:19092",)
DISPATCH_TOPIC: Final = "qim.dispatch"
METRICS_PORTS: Final = {
    ServiceRole.GATEWAY: 9100,
    ServiceRole.WRITER: 9101,
    ServiceRole.MAILBOX: 9102,
    ServiceRole.SESSION: 9103,
    ServiceRole.FANOUT: 9106,
    ServiceRole.ARCHIVER: 9107,
    ServiceRole.AUDITOR: 9108,
}
"""contract.md names all but the auditor's."""
VARIABLE_OF: Final[Mapping[str, str]] = {
    "shard_count": "QIM_MAILBOX_SHARD_COUNT",
    "outbox_partition_count": "QIM_OUTBOX_PARTITION_COUNT",
    "message_store_backend": "QIM_MESSAGE_STORE_BACKEND",
    "mailbox_store_backend": "QIM_MAILBOX_STORE_BACKEND",
    "hot_window_ms": "QIM_HISTORY_HOT_WINDOW_MS",
    "default_retention_ms": "QIM_DEFAULT_HISTORY_RETENTION_DAYS",
    "outbox_recovery_window_ms": "QIM_OUTBOX_RECOVERY_WINDOW_MS",
    "dispatch_recovery_window_ms": "QIM_DISPATCH_RECOVERY_WINDOW_MS",
    "archiver_batch_max": "QIM_ARCHIVER_BATCH_MAX",
    "lease_ttl_ms": "QIM_LEASE_TTL_MS",
    "lease_renew_ms": "QIM_LEASE_RENEW_MS",
    "lease_margin_ms": "QIM_LEASE_MARGIN_MS",
}
"""By which variable a parameter of the contract is told; the others come with the version of the software."""


class Settings(Struct, frozen=True, kw_only=True):
    """One field a variable of table.py, where its meaning stands; None: not told, and no default."""

    # hot stores
    redis_addr: str = "127.0.0.1:6379"
    mailbox_redis_addr: str | None = None
    redis_allow_unsafe_dev: bool = False
    # logs
    redpanda_brokers: tuple[str, ...] | None = None
    outbox_topic: str | None = None
    outbox_partition_count: int = DEFAULT.outbox_partition_count
    outbox_recovery_window_ms: int | None = None
    dispatch_topic: str | None = None
    dispatch_recovery_window_ms: int | None = None
    user_state_topic: str = "qim.user_state"
    mailbox_shard_count: int = DEFAULT.shard_count
    redpanda_allow_single_broker: bool = False
    redpanda_tls_ca: str | None = None
    redpanda_sasl_mechanism: str | None = None
    redpanda_sasl_user: str | None = None
    redpanda_sasl_password: str | None = None
    # registry and leases
    etcd_endpoints: tuple[str, ...] = ("127.0.0.1:2379",)
    etcd_prefix: str = "/qim/"
    etcd_user: str | None = None
    etcd_password: str | None = None
    etcd_tls_ca: str | None = None
    etcd_tls_cert: str | None = None
    etcd_tls_key: str | None = None
    lease_ttl_ms: int = DEFAULT.lease_ttl_ms
    lease_renew_ms: int = DEFAULT.lease_renew_ms
    lease_margin_ms: int = DEFAULT.lease_margin_ms
    # history
    message_store_backend: str = "tiered"
    mailbox_store_backend: str = "redis"
    default_history_retention_days: int = DEFAULT.default_retention_ms // DAY_MS
    tenant_retention_days: tuple[tuple[str, int], ...] = ()
    history_hot_window_ms: int = DEFAULT.hot_window_ms
    archiver_batch_max: int = DEFAULT.archiver_batch_max
    scylla_hosts: tuple[str, ...] | None = None
    scylla_keyspace: str | None = None
    scylla_dc: str | None = None
    scylla_rf: int | None = None
    scylla_consistency: str = "LOCAL_QUORUM"
    scylla_allow_unsafe_dev: bool = False
    scylla_user: str | None = None
    scylla_password: str | None = None
    scylla_tls_ca: str | None = None
    # listeners
    gateway_listen: Address = (LOOPBACK, 7000)
    gateway_push: Address = (LOOPBACK, 7010)
    writer_listen: Address = (LOOPBACK, 7001)
    mailbox_listen: Address = (LOOPBACK, 7002)
    session_listen: Address = (LOOPBACK, 7003)
    auditor_listen: Address = (LOOPBACK, 7008)
    internal_advertise: Address | None = None
    metrics_listen: Address | None = None
    archiver_metrics: Address | None = None
    # who may speak
    auth_secret: str = DEVELOPMENT_SECRET
    tls_cert: str | None = None
    tls_key: str | None = None
    gateway_plaintext: bool = False
    internal_tls_cert: str | None = None
    internal_tls_key: str | None = None
    internal_tls_client_ca: str | None = None
    internal_tls_server_ca: str | None = None
    internal_tls_server_name: str | None = None
    internal_tls_server_name_writer: str | None = None
    internal_tls_server_name_mailbox: str | None = None
    internal_tls_server_name_session: str | None = None
    internal_tls_server_name_gateway: str | None = None
    internal_tls_server_name_auditor: str | None = None
    internal_gateway_cert_sha256: tuple[str, ...] = ()
    internal_writer_cert_sha256: tuple[str, ...] = ()
    internal_mailbox_cert_sha256: tuple[str, ...] = ()
    internal_session_cert_sha256: tuple[str, ...] = ()
    internal_admin_cert_sha256: tuple[str, ...] = ()
    # writer
    writer_id: int | None = None
    webhook_before_send_url: str | None = None
    webhook_after_send_url: str | None = None
    webhook_fail_policy: str = "open"
    webhook_secret: str | None = None
    webhook_timeout_ms: int = 2_000
    webhook_tls_ca: str | None = None
    # the process
    log_format: str = "text"
    log_stages: bool = True
    drain_ms: int = 10_000

    def brokers(self, role: ServiceRole) -> tuple[str, ...] | None:
        """Of the log; a mailbox alone has a default (seed)."""
        if self.redpanda_brokers is None and role is ServiceRole.MAILBOX:
            return DEVELOPMENT_BROKERS
        return self.redpanda_brokers

    def dispatches(self, role: ServiceRole) -> str | None:
        """The dispatch topic; a mailbox alone has a default (seed)."""
        if self.dispatch_topic is None and role is ServiceRole.MAILBOX:
            return DISPATCH_TOPIC
        return self.dispatch_topic

    def internal_listen(self, role: ServiceRole) -> Address | None:
        """Where other processes of the cluster reach this one; None: nobody asks it anything."""
        return {
            ServiceRole.GATEWAY: self.gateway_push,
            ServiceRole.WRITER: self.writer_listen,
            ServiceRole.MAILBOX: self.mailbox_listen,
            ServiceRole.SESSION: self.session_listen,
            ServiceRole.AUDITOR: self.auditor_listen,
        }.get(role)

    def metrics(self, role: ServiceRole) -> Address:
        """Where /metrics, /healthz, /readyz and /livez are."""
        if role is ServiceRole.ARCHIVER and self.archiver_metrics is not None:
            return self.archiver_metrics
        return self.metrics_listen or (LOOPBACK, METRICS_PORTS[role])

    def secret(self) -> bytes:
        """Signs tokens and cursors."""
        return self.auth_secret.encode()

    def before_send(self) -> FailPolicy:
        """What holds for a message that nobody could judge; OFF: nobody is asked."""
        if self.webhook_before_send_url is None:
            return FailPolicy.OFF
        return FailPolicy(self.webhook_fail_policy)

    def internal_tls(self) -> tuple[str | None, ...]:
        """The four files of mTLS between processes: all or none of them."""
        return (
            self.internal_tls_cert,
            self.internal_tls_key,
            self.internal_tls_client_ca,
            self.internal_tls_server_ca,
        )

    def told(self) -> dict[str, str]:
        """Every variable that has a value, as it would stand in the environment."""
        from qim.services.settings.table import VARIABLES

        found = {one.name: (one.kind, getattr(self, one.key)) for one in VARIABLES}
        return {
            name: kind.show(value)
            for name, (kind, value) in found.items()
            if value not in (None, ())
        }

    def parameters(self) -> Parameters:
        """The contract's parameters with these numbers; not yet judged."""
        return Parameters(
            shard_count=self.mailbox_shard_count,
            outbox_partition_count=self.outbox_partition_count,
            message_store_backend=self.message_store_backend,
            mailbox_store_backend=self.mailbox_store_backend,
            hot_window_ms=self.history_hot_window_ms,
            default_retention_ms=self.default_history_retention_days * DAY_MS,
            outbox_recovery_window_ms=self.outbox_recovery_window_ms,
            dispatch_recovery_window_ms=self.dispatch_recovery_window_ms,
            archiver_batch_max=self.archiver_batch_max,
            lease_ttl_ms=self.lease_ttl_ms,
            lease_renew_ms=self.lease_renew_ms,
            lease_margin_ms=self.lease_margin_ms,
        )

    def retention(self) -> RetentionPolicy:
        """How long each class of messages is kept; the same for writer and archiver."""
        return RetentionPolicy(
            default_ms=self.default_history_retention_days * DAY_MS,
            ephemeral_ms=DEFAULT.ephemeral_retention_ms,
            tenants=tuple([(tenant, days * DAY_MS) for tenant, days in self.tenant_retention_days]),
        )
