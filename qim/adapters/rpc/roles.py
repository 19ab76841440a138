"""Which process may say what to whom: one table, judged on every message that comes in (issue: role separation).

The role of a peer is its certificate's, never its own word; where all listeners are loopback and nothing is encrypted,
its word is taken for every role but ADMIN.
"""

from enum import StrEnum
from typing import Final

from qim.core.contract.rpc import (
    AskHistory,
    AskMembers,
    AskPull,
    AskSync,
    AskWatermark,
    GroupDone,
    HistoryAnswer,
    Kick,
    MembersAnswer,
    PullAnswer,
    PushBatch,
    Refused,
    SendDone,
    SubmitGroup,
    SubmitOverlay,
    SubmitSend,
    SyncAnswer,
    WatermarkAnswer,
)
from qim.core.contract.rpc_admin import AdminDone, AdminOrder
from qim.core.contract.rpc_session import (
    AskReadBy,
    AskSessionList,
    AskStates,
    AskSummaries,
    ReadByAnswer,
    SessionListAnswer,
    StateDone,
    StatesAnswer,
    SubmitRead,
    SubmitState,
    SummariesAnswer,
)


class ProcessRole(StrEnum):
    """What a process is on the internal network: the services of `qim serve`, and an operator's tools."""

    GATEWAY = "gateway"
    WRITER = "writer"
    FANOUT = "fanout"
    MAILBOX = "mailbox"
    SESSION = "session"
    ARCHIVER = "archiver"
    AUDITOR = "auditor"
    ADMIN = "admin"


_GATEWAY: Final = ProcessRole.GATEWAY
_WRITER: Final = ProcessRole.WRITER
_MAILBOX: Final = ProcessRole.MAILBOX
_SESSION: Final = ProcessRole.SESSION
_AUDITOR: Final = ProcessRole.AUDITOR
_ADMIN: Final = ProcessRole.ADMIN
_NOTHING: Final[frozenset[type]] = frozenset()

_MAY_SAY: Final[dict[tuple[ProcessRole, ProcessRole], frozenset[type]]] = {
    (_GATEWAY, _WRITER): frozenset(
        {SubmitSend, SubmitGroup, SubmitOverlay, AskHistory, AskMembers}
    ),
    (_SESSION, _WRITER): frozenset({AskSummaries, AskMembers}),
    (_ADMIN, _WRITER): frozenset({SubmitGroup, AskHistory, AskMembers}),
    (_ADMIN, _AUDITOR): frozenset({AdminOrder}),
    (_GATEWAY, _MAILBOX): frozenset({AskSync, AskPull, AskWatermark}),
    (_GATEWAY, _SESSION): frozenset(
        {SubmitRead, SubmitState, AskSessionList, AskStates, AskReadBy}
    ),
    (_WRITER, _SESSION): frozenset({SummariesAnswer, MembersAnswer, Refused}),
    (_WRITER, _GATEWAY): frozenset({SendDone, GroupDone, HistoryAnswer, MembersAnswer, Refused}),
    (_MAILBOX, _GATEWAY): frozenset({SyncAnswer, PullAnswer, WatermarkAnswer, PushBatch, Refused}),
    (_SESSION, _GATEWAY): frozenset(
        {SessionListAnswer, StateDone, StatesAnswer, ReadByAnswer, Refused}
    ),
    (_GATEWAY, _GATEWAY): frozenset({Kick}),
}

_ON_ITS_CONNECTION: Final[dict[tuple[ProcessRole, ProcessRole], frozenset[type]]] = {
    (_AUDITOR, _ADMIN): frozenset({AdminDone}),
}
"""Said on a connection that the other side made: nobody dials an operator's tool."""

_ASKED: Final[dict[type, ProcessRole]] = {
    **dict.fromkeys((SubmitSend, SubmitGroup, SubmitOverlay), _WRITER),
    **dict.fromkeys((AskHistory, AskMembers, AskSummaries), _WRITER),
    **dict.fromkeys((AskSync, AskPull, AskWatermark), _MAILBOX),
    **dict.fromkeys((SubmitRead, SubmitState, AskSessionList), _SESSION),
    **dict.fromkeys((AskStates, AskReadBy), _SESSION),
    **dict.fromkeys((PushBatch, Kick), _GATEWAY),
    AdminOrder: _AUDITOR,
}


def may_say(sender: ProcessRole, receiver: ProcessRole) -> frozenset[type]:
    """Message types that ``sender`` may send to ``receiver``; empty: it has no business there."""
    pair = sender, receiver
    return _MAY_SAY.get(pair) or _ON_ITS_CONNECTION.get(pair, _NOTHING)


def dialled_by(role: ProcessRole) -> tuple[ProcessRole, ...]:
    """Roles that a process of ``role`` opens connections to, in the order of their names."""
    found = {to for sender, to in _MAY_SAY if sender is role}
    return tuple(sorted(found))


def callers_of(role: ProcessRole) -> tuple[ProcessRole, ...]:
    """Roles that have something to say to a process of ``role``, in the order of their names."""
    return tuple(sorted({sender for sender, to in _MAY_SAY if to is role}))


def addressee(kind: type) -> ProcessRole | None:
    """The role a message of this type is for; None where its asker decides (an answer)."""
    return _ASKED.get(kind)
