"""The bytes of a fetch answer as stored records.

Offsets stay dense whoever wrote: the marker that ends somebody's transaction takes an offset, so it is a record here as well,
one that no version of ours can decode. A batch that this installation can't unpack is waited before, as a newer format is.
"""

import logging
from typing import Final

from aiokafka.errors import CorruptRecordException, UnsupportedCodecError
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.memory_records import MemoryRecords
from msgspec import Struct

from qim.core.ports.log import StoredRecord

LOG: Final = logging.getLogger(__name__)
CODEC_PACKAGE: Final = "cramjam"
"""Snappy, lz4 and zstd: what aiokafka undoes them with. We need none of them, as we compress nothing."""


class BatchesBroken(Exception):
    """A checksum or a length is wrong: to be fetched again."""


class BatchPacked(BatchesBroken):
    """Whole, but compressed in a way that this installation can't undo: to be fetched again by one that can."""


class Decoded(Struct, frozen=True, kw_only=True):
    """``next`` is behind the last whole batch, also where compaction left none of its records; ``whole`` counts batches."""

    records: list[StoredRecord]
    next: int
    whole: int


class UnreadBatches:
    """What was fetched and could not be read: counted, and told once a place. One entry a partition."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, int], int] = {}
        self.count = 0

    def met(self, key: tuple[str, int], offset: int, error: BatchesBroken) -> None:
        """By who asked for (topic name, partition) from ``offset`` on."""
        self.count += 1
        if self._places.get(key) != offset:
            self._places[key] = offset
            LOG.error("%s/%d is not read beyond %d: %s", *key, offset, error)

    def passed(self, key: tuple[str, int]) -> None:
        """The partition was read on."""
        self._places.pop(key, None)

    def stands(self, key: tuple[str, int], offset: int) -> bool:
        """Nothing was read there when it was fetched last."""
        return self._places.get(key) == offset


def decode(data: bytes, offset: int) -> Decoded:
    """Records from ``offset`` on; a batch may begin before it, and the last one may be cut off. Raises BatchesBroken.

    What stands before a batch that can't be unpacked is answered alone; BatchPacked is raised where that is the first one.
    """
    records: list[StoredRecord] = []
    following, whole = offset, 0
    try:
        batches = MemoryRecords(data)
        while batches.has_next():
            batch = batches.next_batch()
            if batch is None:
                break
            # Older formats have no sequence numbers and no time of the batch; a log of ours has none of them.
            if not isinstance(batch, DefaultRecordBatch) or not batch.validate_crc():
                raise BatchesBroken("a batch of another format, or its checksum is wrong")
            try:
                records += _unpacked(batch, offset)
            except BatchPacked:
                if whole:
                    break
                raise
            whole += 1
            following = max(following, batch.next_offset)
    except CorruptRecordException as error:
        raise BatchesBroken(str(error)) from error
    return Decoded(records=records, next=following, whole=whole)


def _unpacked(batch: DefaultRecordBatch, offset: int) -> list[StoredRecord]:
    try:
        return [
            StoredRecord(
                offset=record.offset,
                append_time=record.timestamp,
                key=record.key or b"",
                value=record.value or b"",
            )
            for record in batch
            if record.offset >= offset
        ]
    except UnsupportedCodecError as error:
        where = f"the batch at {batch.base_offset} is compressed (codec {batch.compression_type})"
        raise BatchPacked(f"{where}, which needs the Python package {CODEC_PACKAGE}") from error
    except CorruptRecordException:
        raise
    except Exception as error:
        # Whoever may write to the topic may have written anything under a good checksum.
        raise BatchPacked(
            f"the batch at {batch.base_offset} can't be unpacked: {error!r}"
        ) from error


def bytes_of(record: StoredRecord) -> int:
    """As Fetch.bytes_max counts."""
    return len(record.key) + len(record.value)


def within(
    records: list[StoredRecord], first: int, limit: int, bytes_max: int
) -> list[StoredRecord]:
    """From index ``first`` on as many as both limits allow, and at least one."""
    taken: list[StoredRecord] = []
    size = 0
    for record in records[first : first + limit]:
        size += bytes_of(record)
        if taken and size > bytes_max:
            break
        taken.append(record)
    return taken
