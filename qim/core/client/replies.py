"""What the local store answers, op by op, to the part that ordered it."""

from typing import assert_never

from qim.core.client.context import (
    AckSaving,
    AttemptSaving,
    BatchSaving,
    FailureSaving,
    HistorySaving,
    Loading,
    MarkSaving,
    NotAfterSaving,
    PendingOp,
    PushSaving,
    RowSaving,
    RowsReading,
    SentSaving,
    SessionOp,
    SessionsSaving,
    StateSaving,
    StatesSaving,
    UnsentReading,
)
from qim.core.client.parts import Parts
from qim.core.ports.local_sessions import (
    LocalSessionReply,
    SessionsSaved,
    StateSaved,
    UnfilledRead,
    UnsentRead,
)
from qim.core.ports.local_store import AnchorsRead, LoadLocal, LocalSaved, MessagesSaved

StoredReply = LocalSaved | MessagesSaved | AnchorsRead | LocalSessionReply


def stored(parts: Parts, pending: PendingOp, reply: StoredReply) -> None:
    """A typed reply."""
    match pending, reply:
        case BatchSaving(), MessagesSaved():
            parts.pulling.batch_saved(pending, reply.fresh)
            if reply.blank:
                parts.sessions.listing.refresh(pending.covered_through)
            if reply.unfilled:
                parts.sessions.refill()
            for coordinates in pending.settled:
                parts.sending.settling.settled(AckSaving(coordinates=coordinates))
        case PushSaving(), MessagesSaved():
            parts.pulling.push_saved(pending, reply.fresh)
        case HistorySaving(), MessagesSaved():
            parts.pulling.applied(pending.messages, reply.fresh)
            if pending.ticket:
                parts.queries.page_saved(pending)
            else:
                parts.sessions.walk.page_saved(pending)
        case _, LocalSaved():
            _saved(parts, pending)
        case _, AnchorsRead() | SessionsSaved() | StateSaved() | UnsentRead() | UnfilledRead():
            _session_stored(parts, pending, reply)
        case _:
            raise AssertionError(f"{reply!r} answers {pending!r}")


def _session_stored(
    parts: Parts, pending: PendingOp, reply: AnchorsRead | LocalSessionReply
) -> None:
    sessions = parts.sessions
    match pending, reply:
        case RowsReading(), AnchorsRead():
            sessions.walk.rows_read(pending, reply.anchors, reply.more)
        case RowsReading(), UnfilledRead():
            sessions.walk.rows_read(pending, reply.rows, reply.more)
        case UnsentReading(), UnsentRead():
            sessions.marking.unsent_read(pending, reply.rows, reply.more)
        case MarkSaving(), StateSaved():
            sessions.marking.kept(pending, reply.version)
            sessions.refill()
        case SentSaving(), SessionsSaved():
            sessions.marking.confirmed(pending)
        case SessionsSaving(), SessionsSaved():
            sessions.listing.page_saved(pending)
            sessions.refill()
            sessions.marking.changed()
        case StatesSaving(), SessionsSaved():
            sessions.states.batch_saved(pending)
            if pending.count:
                sessions.refill()
                sessions.marking.changed()
        case _:
            raise AssertionError(f"{reply!r} answers {pending!r}")


def _saved(parts: Parts, pending: PendingOp) -> None:
    match pending:
        case AckSaving():
            parts.sending.settling.settled(pending)
        case RowSaving():
            parts.sending.row_saved(pending)
        case NotAfterSaving():
            parts.sending.dated(pending, done=True)
        case AttemptSaving():
            parts.link.attempt_saved(pending)
        case FailureSaving():
            parts.sending.settling.failed(pending)
        case StateSaving():
            parts.rebuilding.state_saved(pending)
        case _:
            raise AssertionError(f"LocalSaved answers {pending!r}")


def not_stored(parts: Parts, pending: PendingOp, surely: bool) -> None:
    """Failed (``surely``) or Unknown: every order may be given again."""
    parts.context.count("local_store_failed", type(pending).__name__)
    match pending:
        case Loading() | StateSaving():
            parts.context.repeat(pending)
        case RowSaving():
            parts.sending.row_not_saved(pending, surely=surely)
        case NotAfterSaving():
            parts.sending.dated(pending, done=False)
        case AckSaving():
            parts.sending.settling.not_settled(pending.coordinates.client_message_id)
        case FailureSaving():
            parts.sending.settling.not_settled(pending.client_message_id)
        case BatchSaving():
            parts.pulling.batch_not_saved()
            for coordinates in pending.settled:
                parts.sending.settling.not_settled(coordinates.client_message_id)
        case PushSaving() | HistorySaving():
            _hint_not_stored(parts, pending)
        case AttemptSaving():
            if pending.conn == parts.context.conn:
                parts.lose()
        case _:
            _session_not_stored(parts, pending, surely)


def repeat_due(parts: Parts) -> None:
    """Orders that must succeed one day are given again after a pause."""
    for pending in parts.context.take_repeats():
        match pending:
            case Loading():
                parts.context.order(LoadLocal(op=parts.context.expect(pending)))
            case StateSaving():
                parts.rebuilding.save_again(pending)
            case RowSaving():
                parts.sending.save_again(pending)
            case _:
                assert_never(pending)


def _hint_not_stored(parts: Parts, pending: PushSaving | HistorySaving) -> None:
    if isinstance(pending, PushSaving):
        parts.pulling.push_not_saved()
    elif pending.ticket:
        parts.queries.page_not_saved(pending)
    else:
        parts.sessions.walk.not_stored(pending.walk)


def _session_not_stored(parts: Parts, pending: SessionOp, surely: bool) -> None:
    sessions = parts.sessions
    match pending:
        case RowsReading():
            sessions.walk.not_stored(pending.walk)
        case SessionsSaving():
            sessions.listing.not_stored(pending)
        case StatesSaving():
            sessions.states.not_stored(pending)
        case MarkSaving():
            sessions.marking.not_kept(pending, surely=surely)
        case SentSaving():
            sessions.marking.not_confirmed()
        case UnsentReading():
            sessions.marking.unsent_not_read()
        case _:
            assert_never(pending)
