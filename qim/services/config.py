"""What an embedded server is told: where its data is, where it listens, how hard it syncs. Read once, checked once."""

from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from qim.core.contract.params import Parameters

EMBEDDED_SHARD_COUNT: Final = 4
"""Mailbox shards of an embedded server. Fixed at first start (resharding is not in this version): fewer shards batch
better in one process, more would let a later cluster spread further; --shards chooses otherwise."""
EMBEDDED_PARTITION_COUNT: Final = 2
LOG_RETENTION_MS: Final = 31 * 24 * 3600 * 1000
"""Logs are kept a day longer than mailboxes, so that whatever a mailbox holds can still be replayed and audited."""


class UpConfig(Struct, frozen=True, kw_only=True):
    """``tcp``/``metrics``: (host, port), port 0 takes a free one. ``fsync``: the private store's appendfsync."""

    data: Path
    tcp: tuple[str, int] = ("127.0.0.1", 7000)
    metrics: tuple[str, int] = ("127.0.0.1", 9100)
    fsync: Literal["always", "everysec"] = "everysec"
    log_json: bool = False
    log_path: Path | None = None
    stage_logs: bool = True
    shard_count: int = EMBEDDED_SHARD_COUNT
    outbox_partition_count: int = EMBEDDED_PARTITION_COUNT
    ready_seconds_max: float = 30.0
    drain_seconds_max: float = 10.0

    def parameters(self) -> Parameters:
        """The contract's parameters with this server's numbers; raises on an illegal set-up, naming what to do."""
        parameters = Parameters(
            shard_count=self.shard_count,
            outbox_partition_count=self.outbox_partition_count,
            outbox_recovery_window_ms=LOG_RETENTION_MS,
            dispatch_recovery_window_ms=LOG_RETENTION_MS,
        )
        parameters.require_valid()
        return parameters
