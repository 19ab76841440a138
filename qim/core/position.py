"""Positions: (topic id, offset, digest of the record before it), and when a stored one may be trusted (pipeline.md §7).

There is no automatic reset: a mismatch stops the partition with a Violation. A missing checkpoint starts at the log's
start, never at its end.
"""

from enum import IntEnum
from typing import Final

from qim.core.contract.hashing import H
from qim.core.ports.log import OutOfRange, Position, StoredRecord

NO_DIGEST: Final = b"\0" * 16
"""Digest of a position that stands at the very first offset a topic ever had, or whose predecessor retention took."""


def record_digest(record: StoredRecord) -> bytes:
    """16 bytes that name a record's place and content, as a position keeps it of its predecessor."""
    return H("qim.position", record.offset, record.key, record.value)


def names_record(before: bytes) -> bool:
    """``Fetch.before`` is to be compared."""
    return before not in (b"", NO_DIGEST)


def is_other(before: bytes, predecessor: StoredRecord) -> bool:
    """``Fetch.before`` names another record than the one that stands there."""
    return names_record(before) and record_digest(predecessor) != before


def why_out_of_range(offset: int, answer: OutOfRange) -> str:
    """What a stopped partition says of a running fetch at ``offset``."""
    if answer.other_record:
        return f"{Verdict.OTHER_RECORD.name}: another record stands before {offset} than was read"
    return f"offset {offset} is outside {answer.start}..{answer.end}"


class Verdict(IntEnum):
    """What a stored position is worth against the log at hand."""

    TRUSTED = 0
    NEEDS_PREDECESSOR = 1
    OTHER_TOPIC = 2
    BELOW_START = 3
    BEYOND_END = 4
    OTHER_RECORD = 5


def judge_ends(position: Position, topic_id: bytes, start: int, end: int) -> Verdict:
    """First judgement, from the ends alone; NEEDS_PREDECESSOR asks for the record at ``position.offset - 1``."""
    if position.topic_id != topic_id:
        return Verdict.OTHER_TOPIC
    if position.offset < start:
        return Verdict.BELOW_START
    if position.offset > end:
        return Verdict.BEYOND_END
    if position.offset == start or position.digest == NO_DIGEST:
        return Verdict.TRUSTED
    return Verdict.NEEDS_PREDECESSOR


def judge_predecessor(position: Position, predecessor: StoredRecord) -> Verdict:
    """Second judgement, once the predecessor was fetched."""
    if record_digest(predecessor) == position.digest:
        return Verdict.TRUSTED
    return Verdict.OTHER_RECORD
