"""Positions: (topic id, offset, digest of the record before it), and when a stored one may be trusted (pipeline.md §7).

There is no automatic reset: a mismatch stops the partition with a Violation. A missing checkpoint starts at the log's
start, never at its end.
"""

from enum import IntEnum
from typing import Final

from qim.core.contract.hashing import H
from qim.core.ports.log import Fetched, OutOfRange, Position, StoredRecord

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


def why_strange(
    topic_id: bytes, offset: int, answer: Fetched | OutOfRange, *, compacted: bool = False
) -> str | None:
    """What a partition stops with that read up to ``offset`` and is answered so; None: it may go on.

    A topic made anew, or an offset that is no longer (or not yet) in the log; of one that is not ``compacted`` a hole, too.
    """
    if answer.topic_id != topic_id:
        return "the topic was created anew"
    if isinstance(answer, OutOfRange):
        if answer.other_record:
            return (
                f"{Verdict.OTHER_RECORD.name}: another record stands before {offset} than was read"
            )
        return f"offset {offset} is outside {answer.start}..{answer.end}"
    if answer.end < offset:
        return f"the log ends at {answer.end}, and was read up to {offset}"
    if not compacted:
        for expected, stored in enumerate(answer.records, start=offset):
            if stored.offset != expected:
                return f"the log has {stored.offset} where {expected} was asked for"
    return None


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
