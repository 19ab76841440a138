"""Frozen membership versions, read once and kept while there is room."""

from collections.abc import Iterable

from qim.core.audience import VersionAudience, VersionKey, audience_by_shard, named_version
from qim.core.audit.reads import Reads, VersionsOf
from qim.core.audit.vocabulary import AuditConfig
from qim.core.contract.entities import MessageRecord
from qim.core.ports.store_reads import ReadVersions, VersionsRead

Targets = dict[int, tuple[int, ...]]
"""shard -> recipients there."""


class Versions:
    """``targets(record)``: whom a record must reach, by the version it was frozen at."""

    def __init__(self, reads: Reads, config: AuditConfig) -> None:
        self._reads = reads
        self._config = config
        self._known: dict[VersionKey, VersionAudience] = {}
        self._members = 0

    def want(self, records: Iterable[tuple[int, MessageRecord]]) -> None:
        """Read the versions that these records of writer shards name and that are not known."""
        if self._members > self._config.version_members_max:
            self._known.clear()
            self._members = 0
        wanted: dict[tuple[int, bytes, int, bytes], None] = {}
        for shard, record in records:
            name = named_version(record)
            if name is not None and name not in self._known:
                wanted[shard, *name] = None
        names = tuple(wanted)
        step = self._config.window_records_max
        for first in range(0, len(names), step):
            page = names[first : first + step]
            self._reads.ask(ReadVersions(op=0, names=page), VersionsOf(page))

    def take(self, reply: VersionsRead) -> None:
        """Those the store has."""
        for version in reply.versions:
            if version is not None:
                audience = VersionAudience(version, self._config.shard_count)
                self._known[version.conversation_id, version.version, version.digest] = audience
                self._members += audience.size

    def targets(self, record: MessageRecord) -> Targets | None:
        """None: the version is not known."""
        name = named_version(record)
        audience = self._known.get(name) if name is not None else None
        if name is not None and audience is None:
            return None
        return dict(audience_by_shard(record, audience, self._config.shard_count))
