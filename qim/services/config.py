"""What an embedded server is told: where its data is, where it listens, how hard it syncs. Read once, checked once."""

from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from qim.core.contract.params import DEFAULT, ParameterFault, Parameters, ParametersInvalid
from qim.core.retention import RetentionPolicy

EMBEDDED_SHARD_COUNT: Final = 4
"""Mailbox shards of an embedded server. Fixed at first start (resharding is not in this version): fewer shards batch
better in one process, more would let a later cluster spread further; --shards chooses otherwise."""
EMBEDDED_PARTITION_COUNT: Final = 2
LOG_RETENTION_MS: Final = 31 * 24 * 3600 * 1000
"""Logs are kept a day longer than mailboxes, so that whatever a mailbox holds can still be replayed and audited."""


Backend = Literal["tiered", "redis", "scylla"]
"""Where history lives: tiered = hot store and archive, redis = the hot store alone, never trimmed."""


class UpConfig(Struct, frozen=True, kw_only=True):
    """``tcp``/``metrics``: (host, port), port 0 takes a free one. ``fsync``: the private store's appendfsync.

    ``tenant_retention_ms``: (tenant_id, ms) of messages of class TENANT_CUSTOM; others fall to the default.
    """

    data: Path
    tcp: tuple[str, int] = ("127.0.0.1", 7000)
    metrics: tuple[str, int] = ("127.0.0.1", 9100)
    fsync: Literal["always", "everysec"] = "everysec"
    log_json: bool = False
    log_path: Path | None = None
    stage_logs: bool = True
    shard_count: int = EMBEDDED_SHARD_COUNT
    outbox_partition_count: int = EMBEDDED_PARTITION_COUNT
    message_store_backend: Backend = "tiered"
    hot_window_ms: int = DEFAULT.hot_window_ms
    default_retention_ms: int = DEFAULT.default_retention_ms
    tenant_retention_ms: tuple[tuple[str, int], ...] = ()
    ready_seconds_max: float = 30.0
    drain_seconds_max: float = 10.0

    def parameters(self) -> Parameters:
        """The contract's parameters with this server's numbers; raises on an illegal set-up, naming what to do."""
        self._refuse_scylla()
        parameters = Parameters(
            shard_count=self.shard_count,
            outbox_partition_count=self.outbox_partition_count,
            message_store_backend=self.message_store_backend,
            hot_window_ms=self.hot_window_ms,
            default_retention_ms=self.default_retention_ms,
            outbox_recovery_window_ms=LOG_RETENTION_MS,
            dispatch_recovery_window_ms=LOG_RETENTION_MS,
        )
        parameters.require_valid()
        return parameters

    def retention(self) -> RetentionPolicy:
        """How long each class is kept; the same for writer and archiver."""
        return RetentionPolicy(
            default_ms=self.default_retention_ms,
            ephemeral_ms=DEFAULT.ephemeral_retention_ms,
            tenants=self.tenant_retention_ms,
        )

    def _refuse_scylla(self) -> None:
        """An embedded server has no cluster to reach: refused with its own words, not as a typing error."""
        if self.message_store_backend == "scylla":
            fault = ParameterFault(
                name="message_store_backend",
                got="scylla",
                expected="tiered or redis",
                remedy="an embedded server keeps its archive in SQLite; take tiered",
            )
            raise ParametersInvalid((fault,))
