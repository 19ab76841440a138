"""Every variable of `qim serve`: its name, how it is written, who needs it and what it means (docs/configuration.md).

Names, defaults and refusals are the seed's where it has them. A variable that isn't here doesn't exist, and is refused.
"""

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from qim.core.contract.redact import secret_digest
from qim.services.roles import ServiceRole
from qim.services.settings.concealed import host_alone, without_login
from qim.services.settings.values import (
    ADDRESS,
    BROKERS,
    DIALLED,
    ENDPOINTS,
    FINGERPRINTS,
    HOSTS,
    PATH,
    SWITCH,
    TENANTS,
    URL,
    WORD,
    Kind,
    one_of,
    power_of_two,
    whole,
)

PREFIX: Final = "QIM_"
DAY_MS: Final = 24 * 3600 * 1000
HOUR_MS: Final = 3600 * 1000

_ALL: Final = frozenset(ServiceRole)
_READ_LOGS: Final = _ALL - {ServiceRole.GATEWAY}
_READ_LOGS_UNTOLD: Final = _READ_LOGS - {ServiceRole.MAILBOX}
_NOBODY: Final[frozenset[ServiceRole]] = frozenset()


class Variable(Struct, frozen=True, kw_only=True):
    """One variable; its key in a file is the name without QIM_, in small letters. ``needed_by``: no default there."""

    name: str
    kind: Kind
    meaning: str
    group: str
    needed_by: frozenset[ServiceRole] = _NOBODY
    default_told: str = ""
    """Where the default isn't one value."""
    conceal: Callable[[str], str] | None = None
    """How it is shown where it may not be shown as it is."""

    @property
    def key(self) -> str:
        """The name in a file, and of the field in Settings."""
        return self.name.removeprefix(PREFIX).lower()


def _in(group: str, *rows: tuple[str, Kind, str] | Variable) -> list[Variable]:
    return [
        row
        if isinstance(row, Variable)
        else Variable(name=row[0], kind=row[1], meaning=row[2], group=group)
        for row in rows
    ]


_STORES: Final = "Hot stores"
_LOGS: Final = "Logs"
_REGISTRY: Final = "Registry and leases"
_HISTORY: Final = "History"
_LISTENERS: Final = "Listeners"
_TRUST: Final = "Who may speak"
_WRITER: Final = "Writer"
_PROCESS: Final = "The process"

NEVER_SCYLLA: Final = (
    ": nothing is committed on Scylla, which is the archive of tiered (docs/decisions/0017)"
)
VARIABLES: Final[tuple[Variable, ...]] = (
    *_in(
        _STORES,
        Variable(
            name="QIM_REDIS_ADDR",
            kind=WORD,
            group=_STORES,
            conceal=without_login,
            meaning="the message store: `host:port`, `redis://[:password@]host:port`, `rediss://…` or `unix:/path`; Redis ≥ 7.0 or Valkey, standalone, AOF, noeviction",
        ),
        Variable(
            name="QIM_MAILBOX_REDIS_ADDR",
            kind=WORD,
            group=_STORES,
            conceal=without_login,
            default_told="that of QIM_REDIS_ADDR",
            meaning="the mailbox store, where it is another server; the two may lose their tails apart",
        ),
        (
            "QIM_REDIS_ALLOW_UNSAFE_DEV",
            SWITCH,
            "1 skips the checks of AOF, appendfsync and eviction, for loopback and Unix sockets alone; never those of version and Cluster",
        ),
    ),
    *_in(
        _LOGS,
        Variable(
            name="QIM_REDPANDA_BROKERS",
            kind=BROKERS,
            group=_LOGS,
            needed_by=_READ_LOGS_UNTOLD,
            default_told="mailbox: 127.0.0.1:19092",
            meaning="brokers of Redpanda or Kafka",
        ),
        Variable(
            name="QIM_OUTBOX_TOPIC",
            kind=WORD,
            group=_LOGS,
            needed_by=_READ_LOGS,
            meaning="topic of committed messages; must be there, with QIM_OUTBOX_PARTITION_COUNT partitions",
        ),
        (
            "QIM_OUTBOX_PARTITION_COUNT",
            power_of_two(65536),
            "partitions of the outbox, which are the writer shards; fixed by the first process that starts",
        ),
        Variable(
            name="QIM_OUTBOX_RECOVERY_WINDOW_MS",
            kind=whole(1, 2**53),
            group=_LOGS,
            needed_by=_ALL,
            meaning="for how long a consumer of the outbox may stand still; the topic's retention.ms must cover it",
        ),
        Variable(
            name="QIM_DISPATCH_TOPIC",
            kind=WORD,
            group=_LOGS,
            needed_by=_READ_LOGS_UNTOLD,
            default_told="mailbox: qim.dispatch",
            meaning="topic of dispatches; must be there, with QIM_MAILBOX_SHARD_COUNT partitions and LogAppendTime",
        ),
        Variable(
            name="QIM_DISPATCH_RECOVERY_WINDOW_MS",
            kind=whole(1, 2**53),
            group=_LOGS,
            needed_by=_ALL,
            meaning="for how long mailboxes and session projections may stand still; the topic's retention.ms must cover it",
        ),
        (
            "QIM_USER_STATE_TOPIC",
            WORD,
            "compacted topic of read marks and user states; QIM_MAILBOX_SHARD_COUNT partitions",
        ),
        (
            "QIM_MAILBOX_SHARD_COUNT",
            power_of_two(65536),
            "mailbox shards, which are the dispatch partitions; fixed by the first process that starts",
        ),
        (
            "QIM_REDPANDA_ALLOW_SINGLE_BROKER",
            SWITCH,
            "1 lets topics have one copy, for brokers on loopback alone: development and tests",
        ),
        ("QIM_REDPANDA_TLS_CA", PATH, "CA of the brokers; set, the connection is TLS"),
        (
            "QIM_REDPANDA_SASL_MECHANISM",
            one_of("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
            "how this process shows the brokers who it is",
        ),
        ("QIM_REDPANDA_SASL_USER", WORD, "its name there"),
        Variable(
            name="QIM_REDPANDA_SASL_PASSWORD",
            kind=WORD,
            group=_LOGS,
            conceal=secret_digest,
            meaning="its password there",
        ),
    ),
    *_in(
        _REGISTRY,
        ("QIM_ETCD_ENDPOINTS", ENDPOINTS, "etcd: leases, epochs, barriers, shared numbers"),
        (
            "QIM_ETCD_PREFIX",
            WORD,
            "what every key begins with: two deployments on one etcd differ here",
        ),
        ("QIM_ETCD_USER", WORD, "name at etcd; with its password or not at all"),
        Variable(
            name="QIM_ETCD_PASSWORD",
            kind=WORD,
            group=_REGISTRY,
            conceal=secret_digest,
            meaning="password at etcd",
        ),
        ("QIM_ETCD_TLS_CA", PATH, "CA of etcd; set, the connection is TLS"),
        ("QIM_ETCD_TLS_CERT", PATH, "client certificate towards etcd"),
        ("QIM_ETCD_TLS_KEY", PATH, "its key; both or neither"),
        ("QIM_LEASE_TTL_MS", whole(1_000, HOUR_MS), "how long a silent process keeps its leases"),
        ("QIM_LEASE_RENEW_MS", whole(1, HOUR_MS), "how often leases are renewed"),
        (
            "QIM_LEASE_MARGIN_MS",
            whole(1, HOUR_MS),
            "how much earlier than the registry an owner stops believing in its lease",
        ),
    ),
    *_in(
        _HISTORY,
        (
            "QIM_MESSAGE_STORE_BACKEND",
            one_of("tiered", "redis", more=NEVER_SCYLLA),
            "tiered: the archiver moves history into Scylla or Cassandra; redis: history stays hot for ever, for development and tests; the seed's `scylla` is refused (docs/decisions/0017)",
        ),
        (
            "QIM_MAILBOX_STORE_BACKEND",
            one_of("redis", more=NEVER_SCYLLA),
            "where mailboxes are",
        ),
        (
            "QIM_DEFAULT_HISTORY_RETENTION_DAYS",
            whole(1, 3650),
            "how long messages without a retention of their own are kept",
        ),
        (
            "QIM_TENANT_RETENTION_DAYS",
            TENANTS,
            "the same for messages of class TENANT_CUSTOM, by tenant",
        ),
        (
            "QIM_HISTORY_HOT_WINDOW_MS",
            whole(HOUR_MS, 3650 * DAY_MS),
            "how long history stays hot; what is older and archived is trimmed",
        ),
        ("QIM_ARCHIVER_BATCH_MAX", whole(1, 4096), "rows of one write to the archive"),
        ("QIM_SCYLLA_HOSTS", HOSTS, "contact points of the archive; needed where it is tiered"),
        ("QIM_SCYLLA_KEYSPACE", WORD, "its keyspace; needed where it is tiered"),
        ("QIM_SCYLLA_DC", WORD, "the local data centre; needed where it is tiered"),
        (
            "QIM_SCYLLA_RF",
            whole(1, 16),
            "the replication factor the keyspace must have; needed where it is tiered",
        ),
        (
            "QIM_SCYLLA_CONSISTENCY",
            one_of("LOCAL_QUORUM", "EACH_QUORUM", "QUORUM", "ALL"),
            "how many replicas confirm a write",
        ),
        (
            "QIM_SCYLLA_ALLOW_UNSAFE_DEV",
            SWITCH,
            "1 lets the keyspace have fewer than three replicas, for contact points on loopback alone",
        ),
        ("QIM_SCYLLA_USER", WORD, "name at the archive"),
        Variable(
            name="QIM_SCYLLA_PASSWORD",
            kind=WORD,
            group=_HISTORY,
            conceal=secret_digest,
            meaning="password at the archive",
        ),
        ("QIM_SCYLLA_TLS_CA", PATH, "CA of the archive; set, the connection is TLS"),
    ),
    *_in(
        _LISTENERS,
        ("QIM_GATEWAY_LISTEN", ADDRESS, "gateway: where clients connect"),
        ("QIM_GATEWAY_PUSH", ADDRESS, "gateway: where mailboxes, writers and sessions reach it"),
        ("QIM_WRITER_LISTEN", ADDRESS, "writer: where gateways and sessions reach it"),
        ("QIM_MAILBOX_LISTEN", ADDRESS, "mailbox: where gateways reach it"),
        ("QIM_SESSION_LISTEN", ADDRESS, "session: where gateways and writers reach it"),
        ("QIM_AUDITOR_LISTEN", ADDRESS, "auditor: where operators order, by Admin mTLS alone"),
        Variable(
            name="QIM_INTERNAL_ADVERTISE",
            kind=DIALLED,
            group=_LISTENERS,
            default_told="where it listens",
            meaning="where other processes dial this one; needed where it listens on every interface (0.0.0.0)",
        ),
        Variable(
            name="QIM_METRICS_LISTEN",
            kind=ADDRESS,
            group=_LISTENERS,
            default_told="127.0.0.1: gateway 9100, writer 9101, mailbox 9102, session 9103, fanout 9106, archiver 9107, auditor 9108",
            meaning="/metrics /healthz /readyz /livez",
        ),
        Variable(
            name="QIM_ARCHIVER_METRICS",
            kind=ADDRESS,
            group=_LISTENERS,
            default_told="127.0.0.1:9107",
            meaning="the archiver's own name for QIM_METRICS_LISTEN; goes before it",
        ),
    ),
    *_in(
        _TRUST,
        Variable(
            name="QIM_AUTH_SECRET",
            kind=WORD,
            group=_TRUST,
            conceal=secret_digest,
            default_told="one for development, refused outside loopback",
            meaning="signs tokens and cursors; the same for gateways and mailboxes",
        ),
        ("QIM_TLS_CERT", PATH, "gateway: certificate chain for clients (TLS 1.3, ALPN qim/1)"),
        ("QIM_TLS_KEY", PATH, "gateway: its key; both or neither"),
        (
            "QIM_GATEWAY_PLAINTEXT",
            SWITCH,
            "1 lets a gateway serve clients without TLS outside loopback: something in front of it speaks TLS",
        ),
        ("QIM_INTERNAL_TLS_CERT", PATH, "leaf certificate of this process towards others"),
        ("QIM_INTERNAL_TLS_KEY", PATH, "its key"),
        ("QIM_INTERNAL_TLS_CLIENT_CA", PATH, "CA of those who dial this process"),
        (
            "QIM_INTERNAL_TLS_SERVER_CA",
            PATH,
            "the only CA this process trusts in those it dials; never the system's",
        ),
        (
            "QIM_INTERNAL_TLS_SERVER_NAME",
            WORD,
            "the name (SNI) expected of those it dials; needed with mTLS, here or by role",
        ),
        ("QIM_INTERNAL_TLS_SERVER_NAME_WRITER", WORD, "the same for writers alone"),
        ("QIM_INTERNAL_TLS_SERVER_NAME_MAILBOX", WORD, "the same for mailboxes alone"),
        ("QIM_INTERNAL_TLS_SERVER_NAME_SESSION", WORD, "the same for sessions alone"),
        ("QIM_INTERNAL_TLS_SERVER_NAME_GATEWAY", WORD, "the same for gateways alone"),
        ("QIM_INTERNAL_TLS_SERVER_NAME_AUDITOR", WORD, "the same for auditors alone"),
        ("QIM_INTERNAL_GATEWAY_CERT_SHA256", FINGERPRINTS, "leaf certificates that are gateways"),
        ("QIM_INTERNAL_WRITER_CERT_SHA256", FINGERPRINTS, "leaf certificates that are writers"),
        ("QIM_INTERNAL_MAILBOX_CERT_SHA256", FINGERPRINTS, "leaf certificates that are mailboxes"),
        ("QIM_INTERNAL_SESSION_CERT_SHA256", FINGERPRINTS, "leaf certificates that are sessions"),
        (
            "QIM_INTERNAL_ADMIN_CERT_SHA256",
            FINGERPRINTS,
            "leaf certificates of operators; what changes a cluster needs one, on loopback too",
        ),
    ),
    *_in(
        _WRITER,
        Variable(
            name="QIM_WRITER_ID",
            kind=whole(1, 65535),
            group=_WRITER,
            default_told="leased from the registry",
            meaning="the writer's instance number in message ids; two writers never share one; a predecessor's lease is waited for",
        ),
        Variable(
            name="QIM_WEBHOOK_BEFORE_SEND_URL",
            kind=URL,
            group=_WRITER,
            conceal=host_alone,
            meaning="asked before a message is taken: 2xx lets pass, 403 rejects",
        ),
        Variable(
            name="QIM_WEBHOOK_AFTER_SEND_URL",
            kind=URL,
            group=_WRITER,
            conceal=host_alone,
            meaning="told after a message was committed; best effort",
        ),
        (
            "QIM_WEBHOOK_FAIL_POLICY",
            one_of("open", "closed"),
            "what happens while the hook can't be asked: open lets pass, closed rejects",
        ),
        Variable(
            name="QIM_WEBHOOK_SECRET",
            kind=WORD,
            group=_WRITER,
            conceal=secret_digest,
            meaning="signs hook requests (Standard Webhooks): whsec_ and base64, several with blanks between, the present one first",
        ),
        (
            "QIM_WEBHOOK_TIMEOUT_MS",
            whole(1, 8_000),
            "how long a hook may take; longer is no verdict",
        ),
        ("QIM_WEBHOOK_TLS_CA", PATH, "CA of https hooks; not set: the system's"),
    ),
    *_in(
        _PROCESS,
        ("QIM_LOG_FORMAT", one_of("text", "json"), "how log lines look, on standard error"),
        ("QIM_LOG_STAGES", SWITCH, "1 logs each stage of each message"),
        (
            "QIM_DRAIN_MS",
            whole(0, HOUR_MS),
            "how long SIGTERM waits for what is in flight before the process ends all the same",
        ),
    ),
)

BY_NAME: Final = {variable.name: variable for variable in VARIABLES}
