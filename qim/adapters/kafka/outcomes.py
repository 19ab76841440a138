"""What the error code of a produce answer means for the batch: in the log, surely not, or who knows (ports/log.py).

Kafka's own clients retry all of these alike. Here the difference decides between Failed and Unknown, so it is read from
where the broker raises them: before the batch is written to the leader's log, or also afterwards. NOT_LEADER, for one, is
answered for a request to the wrong broker, and as well to a batch that was written and then waited for its followers
while the leadership went elsewhere.
"""

from enum import StrEnum
from typing import Final, assert_never

from qim.core.ports.completion import FailReason


class Outcome(StrEnum):
    """Of one attempt with one batch."""

    DONE = "done"
    TOO_LARGE = "too_large"
    """Not written: the batch is larger than the topic takes."""
    INVALID = "invalid"
    """Not written: a record of it, or the batch, is not what the topic takes."""
    UNAUTHORISED = "unauthorised"
    """Not written."""
    NOT_WRITTEN = "not_written"
    """Not written, and may be tried again."""
    OUT_OF_SEQUENCE = "out_of_sequence"
    """Not written: the broker doesn't know what our sequence number goes on from."""
    UNSURE = "unsure"
    """Written or not; the same sequence number may be tried again, and the broker sorts a double out."""
    WRITTEN_SOMEWHERE = "written_somewhere"
    """Written once before, and the broker no longer knows where."""


_OUTCOMES: Final = {
    0: Outcome.DONE,
    2: Outcome.NOT_WRITTEN,  # CORRUPT_MESSAGE: damaged on the way
    10: Outcome.TOO_LARGE,  # MESSAGE_TOO_LARGE
    18: Outcome.TOO_LARGE,  # RECORD_LIST_TOO_LARGE
    19: Outcome.NOT_WRITTEN,  # NOT_ENOUGH_REPLICAS (20, "after append", is another thing)
    29: Outcome.UNAUTHORISED,  # TOPIC_AUTHORIZATION_FAILED
    31: Outcome.UNAUTHORISED,  # CLUSTER_AUTHORIZATION_FAILED
    32: Outcome.INVALID,  # INVALID_TIMESTAMP
    45: Outcome.OUT_OF_SEQUENCE,  # OUT_OF_ORDER_SEQUENCE_NUMBER
    46: Outcome.WRITTEN_SOMEWHERE,  # DUPLICATE_SEQUENCE_NUMBER
    47: Outcome.OUT_OF_SEQUENCE,  # INVALID_PRODUCER_EPOCH
    49: Outcome.OUT_OF_SEQUENCE,  # INVALID_PRODUCER_ID_MAPPING
    59: Outcome.OUT_OF_SEQUENCE,  # UNKNOWN_PRODUCER_ID
    87: Outcome.INVALID,  # INVALID_RECORD
    100: Outcome.NOT_WRITTEN,  # UNKNOWN_TOPIC_ID: the topic was made anew
    103: Outcome.NOT_WRITTEN,  # INCONSISTENT_TOPIC_ID
}


def outcome_of(code: int) -> Outcome:
    """UNSURE for everything that is not known to be otherwise."""
    return _OUTCOMES.get(code, Outcome.UNSURE)


def why_failed(outcome: Outcome) -> FailReason:
    """The port's word for a batch that is surely not in the log."""
    match outcome:
        case Outcome.TOO_LARGE:
            return FailReason.TOO_LARGE
        case Outcome.INVALID:
            return FailReason.INVALID
        case Outcome.UNAUTHORISED:
            return FailReason.UNAUTHORISED
        case (
            Outcome.DONE
            | Outcome.NOT_WRITTEN
            | Outcome.OUT_OF_SEQUENCE
            | Outcome.UNSURE
            | Outcome.WRITTEN_SOMEWHERE
        ):
            return FailReason.UNREACHABLE
        case _:
            assert_never(outcome)
