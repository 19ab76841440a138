"""Store requests <-> script calls (pure): the only place that knows which script serves which request.

``encode(request)`` gives the call; ``decode(request, run_id, raw)`` turns the server's raw reply into the typed one.
Production and simulator use the same two, over the same scripts (docs: architecture, "One meaning for the store").
A request names the incarnation it was bound to; its server half must be compared with the connection's BEFORE sending
(``run_id_named``), its keyspace half is compared by the script.

Every script answers ``K`` and its result, or one of: R another incarnation · F epoch8 a higher epoch (0: only a position
differed) · U an unmarked keyspace with data · X a version the store lacks · L index, T trim8, N as their scripts say.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from qim.adapters.redis import codec_history as history
from qim.adapters.redis import codec_mailbox as mailbox
from qim.adapters.redis import codec_membership as membership
from qim.adapters.redis import codec_message as message
from qim.adapters.redis import codec_operator as operator
from qim.adapters.redis import codec_presence as presence
from qim.adapters.redis import codec_reads as reads
from qim.adapters.redis import codec_session as session
from qim.adapters.redis import codec_source as source
from qim.adapters.redis.layout import (
    ARGUMENTS_MAX,
    Call,
    MalformedReply,
    number,
    run_id_of,
)
from qim.core.ports import store_audit as audit_port
from qim.core.ports import store_history as history_port
from qim.core.ports import store_mailbox as mailbox_port
from qim.core.ports import store_message as message_port
from qim.core.ports import store_operator as operator_port
from qim.core.ports import store_reads as reads_port
from qim.core.ports import store_session as session_port
from qim.core.ports import store_source as source_port
from qim.core.ports.completion import Completion, Failed, FailReason, Fenced, StoreReset
from qim.core.ports.store import StoreReply, StoreRequest, store_role

Encode = Callable[[Any], Call]
Decode = Callable[[Any, bytes, Sequence[Any]], StoreReply]

_CODECS: Final[dict[type, tuple[Encode, Decode]]] = {
    message_port.OpenShard: (message.encode_open_shard, message.decode_open_shard),
    message_port.ApplyOutbox: (source.encode_apply, source.decode_apply),
    message_port.ReserveAndRecord: (message.encode_reserve, message.decode_reserve),
    message_port.MembershipChange: (membership.encode_change, message.decode_reserve),
    message_port.LookupCommits: (message.encode_lookup, message.decode_lookup),
    message_port.MarkCommitted: (message.encode_mark, message.decode_mark),
    message_port.MarkRefused: (message.encode_refuse, message.decode_refuse),
    message_port.ReadPending: (source.encode_pending, source.decode_pending),
    reads_port.ReadMembership: (
        membership.encode_read_membership,
        membership.decode_read_membership,
    ),
    reads_port.ReadVersions: (membership.encode_read_versions, membership.decode_read_versions),
    reads_port.ReadHistory: (reads.encode_history, reads.decode_history),
    reads_port.ReadBodies: (source.encode_bodies, source.decode_bodies),
    message_port.WriteHeads: (message.encode_heads, message.decode_heads),
    source_port.OpenSource: (source.encode_open_source, source.decode_open_source),
    source_port.CommitSource: (source.encode_commit_source, source.decode_commit_source),
    source_port.ReadSource: (source.encode_read_source, source.decode_read_source),
    source_port.ReadFacts: (source.encode_read_facts, source.decode_read_facts),
    audit_port.OpenCoverage: (source.encode_open_coverage, source.decode_open_coverage),
    audit_port.AdvanceCoverage: (source.encode_coverage, source.decode_coverage),
    history_port.OpenArchive: (history.encode_open_archive, history.decode_open_archive),
    history_port.CommitArchive: (history.encode_commit_archive, history.decode_commit_archive),
    history_port.ReadArchivePosition: (
        history.encode_archive_position,
        history.decode_archive_position,
    ),
    history_port.TrimHot: (history.encode_trim_hot, history.decode_trim_hot),
    history_port.RestoreConversations: (history.encode_restore, history.decode_restore),
    history_port.ReadOverlays: (history.encode_overlays, history.decode_overlays),
    mailbox_port.OpenMailbox: (mailbox.encode_open_mailbox, mailbox.decode_open_mailbox),
    mailbox_port.ClaimDispatches: (mailbox.encode_claim, mailbox.decode_claim),
    mailbox_port.AppendEntries: (mailbox.encode_append, mailbox.decode_append),
    mailbox_port.FinishDispatches: (mailbox.encode_finish, mailbox.decode_finish),
    mailbox_port.ReadProgress: (mailbox.encode_progress, mailbox.decode_progress),
    mailbox_port.RaiseFloor: (mailbox.encode_floor, mailbox.decode_floor),
    mailbox_port.ReadMailboxes: (mailbox.encode_read, mailbox.decode_read),
    mailbox_port.TrimMailbox: (mailbox.encode_trim, mailbox.decode_trim),
    mailbox_port.EnterPresence: (presence.encode_enter, presence.decode_enter),
    mailbox_port.RefreshPresence: (presence.encode_refresh, presence.decode_refresh),
    mailbox_port.LeavePresence: (presence.encode_leave, presence.decode_leave),
    mailbox_port.ReadPresence: (presence.encode_presence, presence.decode_presence),
    mailbox_port.ReadShardState: (mailbox.encode_shard_state, mailbox.decode_shard_state),
    session_port.OpenSession: (session.encode_open_session, session.decode_open_session),
    session_port.ProjectDispatches: (session.encode_project, session.decode_project),
    session_port.ApplyStates: (session.encode_apply_states, session.decode_apply_states),
    session_port.ReadSessions: (session.encode_read_sessions, session.decode_read_sessions),
    session_port.ReadStates: (session.encode_read_states, session.decode_read_states),
    session_port.ReadMarks: (session.encode_read_marks, session.decode_read_marks),
    session_port.NoteDelivered: (session.encode_note_delivered, session.decode_note_delivered),
    session_port.ReadDelivered: (session.encode_read_delivered, session.decode_read_delivered),
    operator_port.AmendSource: (operator.encode_amend, operator.decode_amend),
    operator_port.ReadHot: (operator.encode_read_hot, operator.decode_read_hot),
    operator_port.BumpShard: (operator.encode_bump, operator.decode_bump),
    operator_port.RestartProjection: (operator.encode_restart, operator.decode_restart),
}


def encode(request: StoreRequest) -> Call:
    """The script call of a request. Raises KeyError for what is no store request, OverflowError for a number out of range."""
    return _CODECS[type(request)][0](request)


def too_large(call: Call) -> bool:
    """More keys and arguments than a script call can take: to be answered Failed(TOO_LARGE) without sending."""
    return len(call.keys) + len(call.args) > ARGUMENTS_MAX


def run_id_named(request: StoreRequest) -> bytes:
    """The server a request was bound to; b"" where it names none and any server will do."""
    incarnation: bytes = getattr(request, "incarnation", b"")
    return run_id_of(incarnation)


def decode(request: StoreRequest, run_id: bytes, raw: Any) -> StoreReply | Completion:
    """The typed reply; ``run_id`` is that of the server that answered. Raises MalformedReply for what no script answers."""
    if not isinstance(raw, list) or not raw:
        raise MalformedReply(f"{type(request).__name__}: {raw!r}")
    if raw[0] == b"K":
        return _CODECS[type(request)][1](request, run_id, raw)
    return _refusal(request, raw)


def _refusal(request: StoreRequest, raw: Sequence[Any]) -> StoreReply | Completion:
    match raw[0]:
        case b"R":
            return StoreReset(op=request.op, store=store_role(request))
        case b"F":
            return Fenced(op=request.op, epoch=number(raw[1]))
        case b"U":
            return Failed(op=request.op, why=FailReason.KEYSPACE_UNMARKED)
        case b"X":
            return Failed(op=request.op, why=FailReason.INVALID)
        case b"L" if isinstance(request, message_port.MarkCommitted | message_port.MarkRefused):
            return message.lost(request, raw)
        case b"T" if isinstance(request, mailbox_port.AppendEntries):
            return mailbox.trimmed(request, raw)
        case b"N" if isinstance(request, mailbox_port.EnterPresence):
            return presence.refused(request)
    raise MalformedReply(f"{type(request).__name__}: {raw[:2]!r}")


__all__ = [
    "ARGUMENTS_MAX",
    "Call",
    "MalformedReply",
    "decode",
    "encode",
    "run_id_named",
    "too_large",
]
