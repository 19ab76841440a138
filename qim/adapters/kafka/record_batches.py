"""The bytes of a fetch answer as stored records."""

from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.memory_records import MemoryRecords
from msgspec import Struct

from qim.core.ports.log import StoredRecord


class BatchesBroken(Exception):
    """A checksum or a length is wrong: to be fetched again."""


class Decoded(Struct, frozen=True, kw_only=True):
    """``next`` is behind the last whole batch, also where compaction left none of its records; ``whole`` counts batches."""

    records: list[StoredRecord]
    next: int
    whole: int


def decode(data: bytes, offset: int) -> Decoded:
    """Records from ``offset`` on; a batch may begin before it, and the last one may be cut off. Raises BatchesBroken."""
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
            whole += 1
            following = max(following, batch.next_offset)
            if batch.is_control_batch:
                continue
            for record in batch:
                if record.offset >= offset:
                    records.append(
                        StoredRecord(
                            offset=record.offset,
                            append_time=record.timestamp,
                            key=record.key or b"",
                            value=record.value or b"",
                        )
                    )
    except CorruptRecordException as error:
        raise BatchesBroken(str(error)) from error
    return Decoded(records=records, next=following, whole=whole)


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
