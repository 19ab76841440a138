"""What a process of each role needs to be told, and what refuses one that is told more."""

from qim.adapters.start_refused import StartRefused
from qim.services.roles import ServiceRole
from qim.services.settings import check_settings, read_settings

NEEDED = {
    "QIM_REDPANDA_BROKERS": "127.0.0.1:9092",
    "QIM_OUTBOX_TOPIC": "qim.outbox",
    "QIM_OUTBOX_RECOVERY_WINDOW_MS": "86400000",
    "QIM_DISPATCH_TOPIC": "qim.dispatch",
    "QIM_DISPATCH_RECOVERY_WINDOW_MS": "3000000",
    "QIM_SCYLLA_HOSTS": "127.0.0.1",
    "QIM_SCYLLA_KEYSPACE": "qim",
    "QIM_SCYLLA_DC": "dc1",
    "QIM_SCYLLA_RF": "3",
}
ABROAD = "10.0.0.5:7001"
MTLS = {
    "QIM_INTERNAL_TLS_CERT": "leaf.pem",
    "QIM_INTERNAL_TLS_KEY": "leaf.key",
    "QIM_INTERNAL_TLS_CLIENT_CA": "clients.pem",
    "QIM_INTERNAL_TLS_SERVER_CA": "servers.pem",
    "QIM_INTERNAL_TLS_SERVER_NAME": "qim.internal",
    "QIM_INTERNAL_GATEWAY_CERT_SHA256": "ab" * 32,
    "QIM_INTERNAL_WRITER_CERT_SHA256": "ac" * 32,
    "QIM_INTERNAL_MAILBOX_CERT_SHA256": "ad" * 32,
    "QIM_INTERNAL_SESSION_CERT_SHA256": "ae" * 32,
}


def faults(role: str, **told: str) -> list[StartRefused]:
    """Everything that refuses a process of the role, told this beside what it needs."""
    reading = read_settings(NEEDED | told)
    return [*reading.faults, *check_settings(reading.settings, ServiceRole(role))]


def codes(role: str, **told: str) -> list[str]:
    return [refused.code for refused in faults(role, **told)]
