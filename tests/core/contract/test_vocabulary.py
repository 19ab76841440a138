"""Errors, invariants, stages and redaction: complete tables under fixed names and numbers."""

from enum import IntEnum

import pytest

from qim.core.contract.errors import ERROR_MEANINGS, ErrorCode, ProtocolError
from qim.core.contract.invariants import INVARIANT_MEANINGS, Invariant, Stage
from qim.core.contract.kinds import HistoryDirection, KickReason, StateFlag, Tombstone, WritePolicy
from qim.core.contract.redact import body_shape, secret_digest, text_shape


def test_errors_are_those_of_the_contract_in_its_order() -> None:
    assert [code.name for code in ErrorCode] == [
        "MALFORMED_FRAME",
        "FRAME_TOO_LARGE",
        "UNSUPPORTED",
        "UNAUTHENTICATED",
        "TOKEN_EXPIRED",
        "FORBIDDEN",
        "NOT_MEMBER",
        "INVALID_ARGUMENT",
        "IDEMPOTENCY_CONFLICT",
        "SEND_EXPIRED",
        "MEMBERSHIP_CHANGED",
        "CURSOR_INVALID",
        "CURSOR_EXPIRED",
        "CURSOR_REBASED",
        "RATE_LIMITED",
        "QUOTA_EXCEEDED",
        "MODERATION_REJECTED",
        "TOO_MANY_MEMBERS",
        "NOT_FOUND",
        "NOT_OWNER",
        "UNAVAILABLE",
        "TIMEOUT_UNKNOWN",
        "INTERNAL",
    ]
    assert [int(code) for code in ErrorCode] == list(range(1, 24))


def test_every_error_has_a_meaning_and_says_whether_a_retry_helps() -> None:
    assert list(ERROR_MEANINGS) == list(ErrorCode)
    assert all(entry.meaning for entry in ERROR_MEANINGS.values())
    assert [code.name for code, entry in ERROR_MEANINGS.items() if entry.retry] == [
        "MEMBERSHIP_CHANGED", "RATE_LIMITED", "NOT_OWNER", "UNAVAILABLE", "TIMEOUT_UNKNOWN",
    ]  # fmt: skip
    assert [code.name for code, entry in ERROR_MEANINGS.items() if entry.closes] == [
        "MALFORMED_FRAME", "FRAME_TOO_LARGE",
    ]  # fmt: skip


def test_a_protocol_error_knows_whom_it_answers() -> None:
    error = ProtocolError(
        ErrorCode.NOT_FOUND, "no such group", stream=3, request=4, client_message_id=b"x" * 16
    )
    assert str(error) == "NOT_FOUND: no such group"
    assert (error.stream, error.request, error.client_message_id, error.closes) == (
        3,
        4,
        b"x" * 16,
        False,
    )
    assert ProtocolError(ErrorCode.MALFORMED_FRAME, "").closes


def test_invariants() -> None:
    assert [invariant.value for invariant in Invariant] == [
        "mailbox_seq_regression_count", "cursor_advanced_by_push_total", "event_id_nondeterminism_total",
        "orphan_dispatch_total", "covered_through_gap_total",
    ]  # fmt: skip
    assert list(INVARIANT_MEANINGS) == list(Invariant)
    assert all(entry.meaning and entry.evidence for entry in INVARIANT_MEANINGS.values())


def test_stages_are_in_the_order_of_the_chain() -> None:
    assert [stage.value for stage in Stage] == (
        [
            "RESERVED",
            "RECORDED",
            "OUTBOXED",
            "COMMITTED",
            "DISPATCHED",
            "MAILBOXED",
            "PUSHED",
            "APPLIED",
            "NOTIFIED",
        ]
    )


@pytest.mark.parametrize(("kind", "numbers"), [
    (Tombstone, [("NONE", 0), ("EXPIRED", 1), ("RECALLED", 2)]),
    (KickReason, [("REPLACED", 1), ("REVOKED", 2), ("SHUTDOWN", 3), ("SLOW_CONSUMER", 4), ("IDLE", 5)]),
    (HistoryDirection, [("OLDER", 0), ("NEWER", 1), ("AROUND", 2)]),
    (WritePolicy, [("WRITE_FANOUT", 0), ("READ_FANOUT", 1)]),
    (StateFlag, [("PINNED", 1), ("MUTED", 2), ("ARCHIVED", 4)]),
])  # fmt: skip
def test_numbers_on_the_wire(kind: type[IntEnum], numbers: list[tuple[str, int]]) -> None:
    assert [(member.name, member.value) for member in kind] == numbers


def test_redaction_compares_and_sizes_and_shows_nothing() -> None:
    assert secret_digest("a" * 64) == "h:f6f9e78a/len=64"
    assert secret_digest(b"a" * 64) == secret_digest("a" * 64) != secret_digest("b" * 64)
    assert secret_digest("\ud800").endswith("/len=3")
    assert body_shape(b"x" * 17) == "<17 bytes>"
    assert text_shape("zwölf chars!") == "<12 chars>"
