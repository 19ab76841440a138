"""What the log on Kafka is told: brokers, topics, windows, limits (operations.md has the variables)."""

import ssl
from typing import Final

from msgspec import Struct

from qim.core.ports.log import Topic

KIB: Final = 1024
MIB: Final = 1024 * 1024
HOUR_MS: Final = 3_600_000

BODY_MARGIN_BYTES: Final = 64 * KIB
"""What a record may hold beside the body: coordinates, audience, webhook annotations."""
RECORD_BYTES_MAX: Final = 1 * MIB
"""The value of a record, as in every log of Q-IM; a topic that takes less makes it less."""
BATCH_OVERHEAD_BYTES: Final = 128
"""A record batch's header (61) and the framing of its first record with a key, rounded up."""


class KafkaSettings(Struct, frozen=True, kw_only=True):
    """Times in ms, sizes in bytes. Three topics, one broker list (``host:port,…``)."""

    brokers: str
    outbox_topic: str = "qim.outbox"
    dispatch_topic: str = "qim.dispatch"
    user_state_topic: str = "qim.user_state"
    outbox_partitions: int
    dispatch_partitions: int
    user_state_partitions: int
    outbox_recovery_ms: int
    dispatch_recovery_ms: int
    user_state_lag_ms: int = HOUR_MS
    """A superseded user state stays this long: an applier whose store lost its tail meets again what it met before."""
    body_bytes_max: int
    allow_single_broker: bool = False
    """Development only, and only on loopback: one copy of every record is one disk away from loss."""

    client_id: str = "qim"
    ssl_context: ssl.SSLContext | None = None
    sasl_mechanism: str | None = None
    """PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512."""
    sasl_username: str = ""
    sasl_password: str = ""

    start_ms: int = 15_000
    """So long a start waits for the first broker that answers."""
    connect_ms: int = 4_000
    ask_ms: int = 4_000
    """Metadata, offsets, producer ids: small questions."""
    acks_ms: int = 4_000
    """How long the broker may wait for its followers before it answers a produce request."""
    delivery_ms: int = 25_000
    """An append is tried again under its sequence number for so long; longer than an election after a dead broker."""
    fetch_patience_ms: int = 12_000
    """A fetch that finds no leader is tried again for so long beyond its own wait."""
    poll_wait_ms: int = 250
    """A long poll ends after this even if nothing came: partitions that joined meanwhile are in the next one."""
    stall_ms: int = 10_000
    """A partition whose end is ahead of us and that delivers nothing for so long gets new connections."""
    identity_ms: int = 5_000
    """Leaders and topic ids are asked again at least this often."""
    backoff_ms: int = 100
    close_ms: int = 5_000

    batch_bytes_max: int = 4 * MIB
    """Our own limit on a record batch; the topic's max.message.bytes may make it less."""
    request_bytes_max: int = 8 * MIB
    appends_waiting_max: int = 4_096
    append_bytes_waiting_max: int = 64 * MIB
    fetches_waiting_max: int = 8_192
    read_ahead_bytes: int = 256 * KIB
    """A partition that is read from has so much fetched before it is asked for."""
    read_ahead_ms: int = 30_000
    """For so long after it was last asked for."""

    def name_of(self, topic: Topic) -> str:
        """The topic's name on the brokers."""
        match topic:
            case Topic.OUTBOX:
                return self.outbox_topic
            case Topic.DISPATCH:
                return self.dispatch_topic
            case Topic.USER_STATE:
                return self.user_state_topic

    def partitions_of(self, topic: Topic) -> int:
        """How many partitions the topic must have."""
        match topic:
            case Topic.OUTBOX:
                return self.outbox_partitions
            case Topic.DISPATCH:
                return self.dispatch_partitions
            case Topic.USER_STATE:
                return self.user_state_partitions

    def bootstrap(self) -> list[tuple[str, int]]:
        """The brokers to begin with. Raises ValueError with the word that is no host:port."""
        found = []
        for word in self.brokers.split(","):
            host, _, port = word.strip().rpartition(":")
            if not host or not port.isdecimal():
                raise ValueError(f"{word.strip()!r} is not host:port")
            found.append((host.strip("[]"), int(port)))
        return found
