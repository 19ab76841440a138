"""What a connection may say when: states × client frames, as data (contract.md, Frames; pipeline.md §6).

    ACCEPTED ──► AUTHENTICATING ──AUTH──► ENTERING ──AUTH_OK──► SYNCING ──SYNC_COMPLETE──► READYING
                      ▲   │                  │                     ▲                          │
                      │   └──10 s──► CLOSING │                     └──no watermark in time────┤
                      └──ERROR (cursor, …)───┘                                                ▼
    any state ──bad bytes, KICKED, idle, stop──► CLOSING ──SocketClosed──► gone            ONLINE

AUTHENTICATING takes AUTH alone. ENTERING waits for the mailbox's judgement of the cursor and for the presence entry.
SYNCING and READYING may pull, send and ask; pushes start with ONLINE_READY and never before. CLOSING hears nothing:
its last frame is written and what still arrives is thrown away.
"""

from enum import IntEnum
from typing import Final

from qim.core.contract.errors import ErrorCode, ProtocolError
from qim.core.contract.frames import (
    Auth,
    ClientFrame,
    CreateGroup,
    DeleteForMe,
    GroupAdd,
    GroupRemove,
    LeaveGroup,
    MarkRead,
    Members,
    Ping,
    Pong,
    PullHistory,
    PullMailbox,
    PullSessionList,
    ReadBy,
    Recall,
    RoomJoin,
    RoomLeave,
    SendMessage,
    SetState,
    Signal,
    StateSync,
    SyncComplete,
)


class ConnectionState(IntEnum):
    """The states of the diagram."""

    AUTHENTICATING = 1
    ENTERING = 2
    SYNCING = 3
    READYING = 4
    ONLINE = 5
    CLOSING = 6


class Action(IntEnum):
    """What the machine does with a frame. REFUSE_* answer an ERROR with the frame's request id and stay."""

    AUTHENTICATE = 1
    PONG = 2
    IGNORE = 3
    COMPLETE_SYNC = 4
    BATCH = 5
    SUBMIT = 6
    QUERY = 7
    REFUSE_UNAUTHENTICATED = 8
    REFUSE_STATE = 9
    REFUSE_UNSUPPORTED = 10


_SUBMITTED: Final = (
    SendMessage,
    CreateGroup,
    GroupAdd,
    GroupRemove,
    LeaveGroup,
    Recall,
    DeleteForMe,
)
_BATCHED: Final = (PullMailbox, PullHistory, PullSessionList, StateSync)
_QUERIED: Final = (Members, MarkRead, SetState, ReadBy)
_NOT_SERVED: Final = (RoomJoin, RoomLeave, Signal)
"""Frames of the protocol whose services this version does not have: UNSUPPORTED, never silence."""

CLIENT_FRAMES: Final[tuple[type[ClientFrame], ...]] = (
    Ping,
    Pong,
    Auth,
    SyncComplete,
    *_SUBMITTED,
    *_BATCHED,
    *_QUERIED,
    *_NOT_SERVED,
)

Row = dict[type[ClientFrame], Action]


def _before_auth(auth: Action) -> Row:
    row: Row = dict.fromkeys(CLIENT_FRAMES, Action.REFUSE_UNAUTHENTICATED)
    row[Auth] = auth
    return row


def _after_auth(sync_complete: Action) -> Row:
    row: Row = dict.fromkeys(_NOT_SERVED, Action.REFUSE_UNSUPPORTED)
    row.update(dict.fromkeys(_SUBMITTED, Action.SUBMIT))
    row.update(dict.fromkeys(_BATCHED, Action.BATCH))
    row.update(dict.fromkeys(_QUERIED, Action.QUERY))
    row[Ping] = Action.PONG
    row[Pong] = Action.IGNORE
    row[Auth] = Action.REFUSE_STATE
    row[SyncComplete] = sync_complete
    return row


TABLE: Final[dict[ConnectionState, Row]] = {
    ConnectionState.AUTHENTICATING: _before_auth(Action.AUTHENTICATE),
    ConnectionState.ENTERING: _before_auth(Action.REFUSE_STATE),
    ConnectionState.SYNCING: _after_auth(Action.COMPLETE_SYNC),
    ConnectionState.READYING: _after_auth(Action.REFUSE_STATE),
    ConnectionState.ONLINE: _after_auth(Action.REFUSE_STATE),
    ConnectionState.CLOSING: dict.fromkeys(CLIENT_FRAMES, Action.IGNORE),
}


def refusal(action: Action, frame: ClientFrame) -> ProtocolError:
    """What a REFUSE_* answers; only the request ends."""
    key = getattr(frame, "client_message_id", None)
    if action is Action.REFUSE_UNSUPPORTED:
        return ProtocolError(
            ErrorCode.UNSUPPORTED, f"{frame.NAME} is not served here", client_message_id=key
        )
    if action is Action.REFUSE_UNAUTHENTICATED:
        return ProtocolError(
            ErrorCode.UNAUTHENTICATED, f"{frame.NAME} before AUTH", client_message_id=key
        )
    return ProtocolError(
        ErrorCode.INVALID_ARGUMENT, f"{frame.NAME} does not fit here", client_message_id=key
    )
