"""What the server says, frame by frame, to the part it concerns (contract.md, Frames). Nothing is decided here."""

from typing import assert_never

from qim.core.client.context import WaitKind
from qim.core.client.parts import Parts
from qim.core.contract.errors import ErrorCode, ProtocolError
from qim.core.contract.frames import (
    AuthOk,
    Error,
    GroupOk,
    HistoryBatch,
    Kicked,
    MailboxBatch,
    MembersBatch,
    Ok,
    OnlineReady,
    Ping,
    Pong,
    PushEvents,
    ReadBy,
    Redirect,
    SendAck,
    SessionListBatch,
    StateBatch,
    decode_server_frame,
)
from qim.core.contract.wire import RawFrame


def hear(parts: Parts, raw: RawFrame) -> None:
    """One frame of the server; what can't be read or doesn't fit is passed over or ends the connection."""
    try:
        frame = decode_server_frame(raw)
    except ProtocolError as error:
        # A newer server's frame is passed over; bytes that make no sense end the connection.
        parts.context.count("frames_ignored", error.code.name)
        if error.closes:
            parts.lose()
        return
    context = parts.context
    match frame:
        case SendAck():
            parts.sending.settling.acked(frame, raw.request)
        case PushEvents():
            if context.is_live():
                parts.pulling.pushed(frame)
        case MailboxBatch():
            if context.answered(raw.request, WaitKind.PULL) is not None:
                parts.pulling.pulled(frame, moves_anchors=parts.rebuilding.is_done())
        case Pong():
            parts.link.pong(frame)
            parts.pulling.saw(frame.watermark)
        case GroupOk():
            parts.sending.settling.group_done(frame, raw.request)
        case HistoryBatch() | MembersBatch() | Error() | ReadBy():
            _on_answer(parts, frame, raw.request)
        case SessionListBatch() | StateBatch() | Ok():
            _on_answer(parts, frame, raw.request)
        case AuthOk() | OnlineReady() | Kicked() | Redirect() | Ping():
            _on_link_frame(parts, frame, raw.request)
        case _:
            context.count("frames_ignored", frame.NAME)


Answer = HistoryBatch | MembersBatch | Error | ReadBy | SessionListBatch | StateBatch | Ok


def _on_answer(parts: Parts, frame: Answer, request: int) -> None:
    """Frames whose meaning lies in what was asked."""
    wait = parts.context.waits.pop(request, None)
    if wait is None:
        parts.context.count("answers_ignored", frame.NAME)
        return
    match frame, wait.kind:
        case Error(), _:
            parts.refused(wait, frame.code, frame.retry_after_ms, frame.message)
        case HistoryBatch(), WaitKind.LOOKUP:
            parts.sending.settling.looked(wait, frame)
        case HistoryBatch(), WaitKind.HISTORY:
            parts.queries.history(wait, frame)
        case HistoryBatch(), WaitKind.WALK:
            parts.sessions.walk.arrived(wait, frame)
        case SessionListBatch(), WaitKind.SESSIONS:
            parts.sessions.listing.arrived(frame)
        case StateBatch(), WaitKind.STATE_SYNC:
            parts.sessions.states.arrived(frame)
        case Ok(), WaitKind.MARK:
            parts.sessions.marking.done(request)
        case ReadBy(), WaitKind.READ_BY:
            parts.queries.read_by(wait, frame)
        case MembersBatch(), WaitKind.MEMBERS:
            parts.queries.members(wait, frame)
        case _:
            # Another answer than was asked for: as good as none.
            parts.refused(wait, ErrorCode.INTERNAL, 0)


def _on_link_frame(
    parts: Parts, frame: AuthOk | OnlineReady | Kicked | Redirect | Ping, request: int
) -> None:
    context = parts.context
    match frame:
        case AuthOk():
            if context.answered(request, WaitKind.AUTH) is not None:
                parts.authenticated(frame)
        case OnlineReady():
            if context.answered(request, WaitKind.SYNC_COMPLETE) is not None:
                parts.link.ready()
                parts.pulling.saw(frame.watermark)
        case Kicked():
            parts.before_loss()
            parts.link.kicked(frame)
        case Redirect():
            parts.before_loss()
            parts.link.redirected(frame)
        case Ping():
            parts.link.ping(frame)
        case _:
            assert_never(frame)
