"""The five invariants that are always zero, and the stages of a message (contract.md)."""

from enum import StrEnum

import msgspec


class Stage(StrEnum):
    """How far a message has come; each stage is durable before the next is reported."""

    RESERVED = "RESERVED"
    RECORDED = "RECORDED"
    OUTBOXED = "OUTBOXED"
    COMMITTED = "COMMITTED"
    DISPATCHED = "DISPATCHED"
    MAILBOXED = "MAILBOXED"
    PUSHED = "PUSHED"
    APPLIED = "APPLIED"
    NOTIFIED = "NOTIFIED"


class SideStage(StrEnum):
    """Where a message is beside its way to devices; observed like a stage, and part of no promise about delivery."""

    PROJECTED = "PROJECTED"
    ARCHIVED = "ARCHIVED"


class Invariant(StrEnum):
    """Names of the five counters; non-zero turns /healthz and /readyz to 503, /livez stays green."""

    MAILBOX_SEQ_REGRESSION = "mailbox_seq_regression_count"
    CURSOR_ADVANCED_BY_PUSH = "cursor_advanced_by_push_total"
    EVENT_ID_NONDETERMINISM = "event_id_nondeterminism_total"
    ORPHAN_DISPATCH = "orphan_dispatch_total"
    COVERED_THROUGH_GAP = "covered_through_gap_total"


class InvariantMeaning(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """meaning: what non-zero says; evidence: who can see it."""

    meaning: str
    evidence: str


INVARIANT_MEANINGS: dict[Invariant, InvariantMeaning] = {
    Invariant.MAILBOX_SEQ_REGRESSION: InvariantMeaning(
        meaning="a shard's counter was reset while its data remains, or its dispatch topic was recreated under the "
        "same shard_epoch",
        evidence="store self-check at start-up",
    ),
    Invariant.CURSOR_ADVANCED_BY_PUSH: InvariantMeaning(
        meaning="a cursor moved by PUSH_EVENTS instead of MAILBOX_BATCH", evidence="client lane"
    ),
    Invariant.EVENT_ID_NONDETERMINISM: InvariantMeaning(
        meaning="a replay or another node materialised something else", evidence="replay digests"
    ),
    Invariant.ORPHAN_DISPATCH: InvariantMeaning(
        meaning="a MessageRecord without its dispatches, or the reverse", evidence="orphan audit"
    ),
    Invariant.COVERED_THROUGH_GAP: InvariantMeaning(
        meaning="covered_through_seq crossed a range that is not materialised", evidence="pull path"
    ),
}
