"""What the log on Kafka or Redpanda is told, from the settings of a process or of `qim topics`."""

import ssl
from typing import TYPE_CHECKING

from qim.core.contract.params import DEFAULT
from qim.services.roles import ServiceRole
from qim.services.settings import Settings

if TYPE_CHECKING:
    from qim.adapters.kafka.settings import KafkaSettings
    from qim.adapters.tls.outgoing import OutgoingFiles

NEEDED = (
    "QIM_REDPANDA_BROKERS",
    "QIM_OUTBOX_TOPIC",
    "QIM_OUTBOX_RECOVERY_WINDOW_MS",
    "QIM_DISPATCH_TOPIC",
    "QIM_DISPATCH_RECOVERY_WINDOW_MS",
)
"""Without a default; a mailbox has one for the brokers and the dispatch topic."""


def log_settings(
    settings: Settings,
    role: ServiceRole,
    *,
    client_id: str,
    tls: ssl.SSLContext | None = None,
) -> "KafkaSettings":
    """Everything of NEEDED must be there for this role (settings/checks.py judges that). Raises StartRefused: no such CA.

    ``tls``: instead of one made of QIM_REDPANDA_TLS_CA, where somebody reads that again.
    """
    # Here: `qim up` and the commands of a client do without the extra `cluster`.
    from qim.adapters.kafka.settings import KafkaSettings

    brokers, dispatches = settings.brokers(role), settings.dispatches(role)
    outbox_ms, dispatch_ms = (
        settings.outbox_recovery_window_ms,
        settings.dispatch_recovery_window_ms,
    )
    assert brokers and dispatches and settings.outbox_topic, "check_settings came before"
    assert outbox_ms is not None and dispatch_ms is not None, "check_settings came before"
    return KafkaSettings(
        brokers=",".join(brokers),
        outbox_topic=settings.outbox_topic,
        dispatch_topic=dispatches,
        user_state_topic=settings.user_state_topic,
        outbox_partitions=settings.outbox_partition_count,
        dispatch_partitions=settings.mailbox_shard_count,
        user_state_partitions=settings.mailbox_shard_count,
        outbox_recovery_ms=outbox_ms,
        dispatch_recovery_ms=dispatch_ms,
        body_bytes_max=DEFAULT.body_bytes_max,
        allow_single_broker=settings.redpanda_allow_single_broker,
        client_id=client_id,
        ssl_context=tls or _client_context(settings),
        sasl_mechanism=settings.redpanda_sasl_mechanism,
        sasl_username=settings.redpanda_sasl_user or "",
        sasl_password=settings.redpanda_sasl_password or "",
    )


def broker_files(settings: Settings) -> "OutgoingFiles | None":
    """None: plaintext."""
    if settings.redpanda_tls_ca is None:
        return None
    from qim.adapters.tls.outgoing import OutgoingFiles

    return OutgoingFiles(ca=settings.redpanda_tls_ca, names=("QIM_REDPANDA_TLS_CA", "", ""))


def _client_context(settings: Settings) -> ssl.SSLContext | None:
    files = broker_files(settings)
    if files is None:
        return None
    from qim.adapters.tls.outgoing import read_outgoing

    return read_outgoing(files)[0].context
