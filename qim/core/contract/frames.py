"""All frames of `qim/1`, and the way between them and bytes (contract.md, Frames).

Body: MessagePack array of the fields in declared order. New fields go to the end with defaults; unknown trailing
fields are ignored. Hostile bytes give a ProtocolError and never another exception:
  not MessagePack, no array, a field missing or of another type → MALFORMED_FRAME (the connection closes);
  unknown opcode, compressed or fragmented frame                → UNSUPPORTED (this request alone);
  a field outside its bounds                                    → INVALID_ARGUMENT (this request alone).
"""

from typing import Annotated, Any, Final, TypeVar, Union, cast, get_args, get_origin

import msgspec

from qim.core.contract.entities import ConversationKind, MessageKind, RetentionClass
from qim.core.contract.errors import ErrorCode, ProtocolError
from qim.core.contract.frame_fields import BODY_BYTES_MAX, CUSTOM_TYPE_BYTES_MAX, WireFrame
from qim.core.contract.frames_connection import (
    Auth,
    AuthOk,
    Error,
    Kicked,
    Ok,
    OnlineReady,
    Ping,
    Pong,
    Redirect,
    ServerLimits,
    Signal,
    SyncComplete,
)
from qim.core.contract.frames_group import (
    CreateGroup,
    GroupAdd,
    GroupOk,
    GroupRemove,
    LeaveGroup,
    Members,
    MembersBatch,
)
from qim.core.contract.frames_history import (
    ConversationState,
    DeleteForMe,
    DeviceDelivered,
    HistoryBatch,
    HistoryRecord,
    MarkRead,
    PullHistory,
    PullSessionList,
    ReadBy,
    Recall,
    SessionEntry,
    SessionListBatch,
    SetState,
    StateBatch,
    StateSync,
)
from qim.core.contract.frames_message import (
    MailboxBatch,
    MailboxEntry,
    PullMailbox,
    PushEvents,
    SendAck,
    SendMessage,
)
from qim.core.contract.frames_room import RoomEvent, RoomJoin, RoomLeave, RoomMessage, RoomState
from qim.core.contract.kinds import HistoryDirection, KickReason, StateFlag, Tombstone, WritePolicy
from qim.core.contract.wire import RawFrame, encode_raw, refuse_unsupported_flags

__all__ = [
    "BODY_BYTES_MAX",
    "BY_OPCODE",
    "CUSTOM_TYPE_BYTES_MAX",
    "FRAMES",
    "Auth",
    "AuthOk",
    "ClientFrame",
    "ConversationKind",
    "ConversationState",
    "CreateGroup",
    "DeleteForMe",
    "DeviceDelivered",
    "Error",
    "Frame",
    "GroupAdd",
    "GroupOk",
    "GroupRemove",
    "HistoryBatch",
    "HistoryDirection",
    "HistoryRecord",
    "KickReason",
    "Kicked",
    "LeaveGroup",
    "MailboxBatch",
    "MailboxEntry",
    "MarkRead",
    "Members",
    "MembersBatch",
    "MessageKind",
    "Ok",
    "OnlineReady",
    "Ping",
    "Pong",
    "PullHistory",
    "PullMailbox",
    "PullSessionList",
    "PushEvents",
    "ReadBy",
    "Recall",
    "Redirect",
    "RetentionClass",
    "RoomEvent",
    "RoomJoin",
    "RoomLeave",
    "RoomMessage",
    "RoomState",
    "SendAck",
    "SendMessage",
    "ServerFrame",
    "ServerLimits",
    "SessionEntry",
    "SessionListBatch",
    "SetState",
    "Signal",
    "StateBatch",
    "StateFlag",
    "StateSync",
    "SyncComplete",
    "Tombstone",
    "WireFrame",
    "WritePolicy",
    "decode_client_frame",
    "decode_frame",
    "decode_server_frame",
    "encode_frame",
    "error_frame",
    "remaining_fields",
]

ClientFrame = (
    Ping
    | Pong
    | Auth
    | SyncComplete
    | SendMessage
    | PullMailbox
    | PullSessionList
    | MarkRead
    | PullHistory
    | SetState
    | StateSync
    | ReadBy
    | Recall
    | DeleteForMe
    | CreateGroup
    | GroupAdd
    | GroupRemove
    | LeaveGroup
    | Members
    | RoomJoin
    | RoomLeave
    | Signal
)
"""What a client may send."""

ServerFrame = (
    Ping
    | Pong
    | AuthOk
    | OnlineReady
    | Kicked
    | Redirect
    | SendAck
    | MailboxBatch
    | PushEvents
    | SessionListBatch
    | HistoryBatch
    | StateBatch
    | ReadBy
    | GroupOk
    | MembersBatch
    | RoomState
    | RoomEvent
    | Signal
    | Ok
    | Error
)
"""What a server may send."""

Frame = ClientFrame | ServerFrame

_F = TypeVar("_F", bound=WireFrame)


def _opcode_of(frame: type[WireFrame]) -> int:
    return frame.OPCODE


FRAMES: Final[tuple[type[WireFrame], ...]] = tuple(sorted(get_args(Frame), key=_opcode_of))
"""Every frame in the order of its opcode."""

BY_OPCODE: Final[dict[int, type[WireFrame]]] = {frame.OPCODE: frame for frame in FRAMES}

_encoder: Final = msgspec.msgpack.Encoder()


def encode_frame(
    frame: WireFrame, *, stream: int | None = None, request: int = 0, flags: int | None = None
) -> bytes:
    """Header and body. stream and flags are the frame's own (STREAM, FLAGS) unless given; request 0: unasked."""
    return encode_raw(
        frame.OPCODE,
        _encoder.encode(frame),
        flags=frame.FLAGS if flags is None else flags,
        stream=frame.STREAM if stream is None else stream,
        request=request,
    )


def decode_frame(raw: RawFrame) -> Frame:
    """The frame in `raw`, from either side. Raises ProtocolError with its stream, request and client_message_id."""
    return cast(Frame, _decode(raw, _ALL_DECODERS))


def decode_client_frame(raw: RawFrame) -> ClientFrame:
    """The frame in `raw` as a server takes it: what only a server may send is UNSUPPORTED."""
    return cast(ClientFrame, _decode(raw, _CLIENT_DECODERS))


def decode_server_frame(raw: RawFrame) -> ServerFrame:
    """The frame in `raw` as a client takes it: what only a client may send is UNSUPPORTED."""
    return cast(ServerFrame, _decode(raw, _SERVER_DECODERS))


def error_frame(error: ProtocolError, *, retry_after_ms: int = 0) -> Error:
    """The ERROR that answers; send it on the error's stream and request."""
    return Error(
        code=error.code,
        message=error.message,
        retry_after_ms=retry_after_ms,
        client_message_id=error.client_message_id,
    )


def remaining_fields(frame: WireFrame) -> bytes:
    """The fields besides client_message_id and not_after, as encoded: what `ids.control_digest` is taken over."""
    keyed = ("client_message_id", "not_after")
    return _encoder.encode(
        [getattr(frame, name) for name in frame.__struct_fields__ if name not in keyed]
    )


# ---------------------------------------------------------------- decoding

_Decoder = msgspec.msgpack.Decoder[Any]


def _loosen(field_type: Any) -> Any:
    """The type without the bounds of its scalars, those in an array too. Bounds of arrays stay: they guard memory, not
    meaning."""
    if get_origin(field_type) is Annotated:
        bare, *bounds = get_args(field_type)
        if bare in (int, bytes, str):
            return bare
        if get_origin(bare) is tuple:
            return Annotated[(tuple[_loosen(get_args(bare)[0]), ...], *bounds)]  # type: ignore[misc] # built
    if get_origin(field_type) is Union or isinstance(field_type, type(int | None)):
        return Union[tuple(_loosen(member) for member in get_args(field_type))]  # noqa: UP007 - built, not written
    return field_type


def _loose_decoder(frame: type[WireFrame]) -> _Decoder:
    """Decodes what has the frame's shape whatever its bounds: tells a bad value from bad bytes."""
    fields: list[Any] = []
    for field in msgspec.structs.fields(frame):
        loose = (field.name, _loosen(field.type))
        fields.append(loose if field.required else (*loose, field.default))
    return msgspec.msgpack.Decoder(
        msgspec.defstruct(frame.__name__, fields, array_like=True, kw_only=True)
    )


_ALL_DECODERS: Final[dict[int, _Decoder]] = {
    frame.OPCODE: msgspec.msgpack.Decoder(frame) for frame in FRAMES
}
_CLIENT_DECODERS: Final[dict[int, _Decoder]] = {
    frame.OPCODE: _ALL_DECODERS[frame.OPCODE] for frame in FRAMES if frame.DIRECTION != "s→c"
}
_SERVER_DECODERS: Final[dict[int, _Decoder]] = {
    frame.OPCODE: _ALL_DECODERS[frame.OPCODE] for frame in FRAMES if frame.DIRECTION != "c→s"
}
_LOOSE_DECODERS: Final[dict[int, _Decoder]] = {
    frame.OPCODE: _loose_decoder(frame) for frame in FRAMES
}


def _decode(raw: RawFrame, decoders: dict[int, _Decoder]) -> WireFrame:
    refuse_unsupported_flags(raw)
    decoder = decoders.get(raw.opcode)
    if decoder is None:
        raise _fault(raw, ErrorCode.UNSUPPORTED, f"opcode {raw.opcode:#06x} is not expected here")
    try:
        frame: WireFrame = decoder.decode(raw.body)
    except msgspec.ValidationError as error:
        raise _judge_values(raw, str(error)) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise _fault(raw, ErrorCode.MALFORMED_FRAME, _shape(raw, str(error))) from None
    why = frame.fault()
    if why is not None:
        raise _fault(
            raw, ErrorCode.INVALID_ARGUMENT, why, getattr(frame, "client_message_id", None)
        )
    return frame


def _judge_values(raw: RawFrame, why: str) -> ProtocolError:
    """A ValidationError is a bad value where the loose shape fits, else bad bytes."""
    try:
        loose = _LOOSE_DECODERS[raw.opcode].decode(raw.body)
    except (msgspec.DecodeError, RecursionError):
        return _fault(raw, ErrorCode.MALFORMED_FRAME, _shape(raw, why))
    key = getattr(loose, "client_message_id", None)
    return _fault(raw, ErrorCode.INVALID_ARGUMENT, why, key if key and len(key) == 16 else None)


def _shape(raw: RawFrame, why: str) -> str:
    return f"{BY_OPCODE[raw.opcode].NAME} of {len(raw.body)} bytes: {why}"


def _fault(
    raw: RawFrame, code: ErrorCode, message: str, client_message_id: bytes | None = None
) -> ProtocolError:
    return ProtocolError(
        code, message, stream=raw.stream, request=raw.request, client_message_id=client_message_id
    )
