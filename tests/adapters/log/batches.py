"""Record batches as brokers answer them: ours, and what other producers and brokers make of theirs."""

import struct
from typing import Final

from aiokafka.record.util import calc_crc32c

from qim.adapters.kafka.append_job import Identity, build
from qim.core.ports.log import LogRecord, StoredRecord
from qim.core.position import record_digest

ATTRIBUTES_AT: Final = 21
CHECKSUM_AT: Final = 17
LENGTH_AT: Final = 8
RECORDS_AT: Final = 61
SNAPPY: Final = 2
TRANSACTION_MARK: Final = 0x30
"""Of a batch: transactional, and nobody's data."""


def batch(*values: bytes, first: int = 0) -> bytes:
    """From offset ``first`` on."""
    records = [LogRecord(key=b"k", value=value) for value in values]
    data = bytearray(build(records, Identity(1, 0), 0, 1_700_000_000_000))
    data[:8] = first.to_bytes(8, "big")  # not covered by the checksum
    return bytes(data)


def digest(offset: int, value: bytes) -> bytes:
    """Of the record of ``batch`` there."""
    return record_digest(StoredRecord(offset=offset, append_time=0, key=b"k", value=value))


def sealed(data: bytes, attributes: int) -> bytes:
    """The same batch under other attributes and a good checksum; the low three bits say how it is compressed."""
    changed = bytearray(data)
    changed[ATTRIBUTES_AT : ATTRIBUTES_AT + 2] = struct.pack(">h", attributes)
    changed[CHECKSUM_AT:ATTRIBUTES_AT] = struct.pack(
        ">I", calc_crc32c(bytes(changed[ATTRIBUTES_AT:]))
    )
    return bytes(changed)


def marked(*, first: int) -> bytes:
    """The end of somebody's transaction at offset ``first``."""
    return sealed(batch(bytes(6), first=first), TRANSACTION_MARK)


def snappy(*values: bytes) -> bytes:
    """As a producer sends it that compresses: nothing repeats, so the records stand in one literal."""
    data = batch(*values)
    plain = data[RECORDS_AT:]
    assert len(plain) <= 60, "as much as a tag of one byte can tell"
    packed = bytes((len(plain), len(plain) - 1 << 2)) + plain
    whole = bytearray(data[:RECORDS_AT] + packed)
    whole[LENGTH_AT : LENGTH_AT + 4] = struct.pack(">i", len(whole) - LENGTH_AT - 4)
    return sealed(bytes(whole), SNAPPY)
