"""No script accepted below the fence of its incarnation, and no two owners at it (pipeline.md §0): the fake store's word is
checked by a count."""

from typing import TYPE_CHECKING, Any

from qim.core.ports.completion import Failed, Fenced, StoreReset
from qim.core.ports.store_audit import AdvanceCoverage, OpenCoverage
from qim.core.ports.store_history import (
    CommitArchive,
    OpenArchive,
    RestoreConversations,
    TrimHot,
)
from qim.core.ports.store_mailbox import (
    AppendEntries,
    ClaimDispatches,
    FinishDispatches,
    OpenMailbox,
    RaiseFloor,
    TrimMailbox,
)
from qim.core.ports.store_message import (
    ApplyOutbox,
    LookupCommits,
    MarkCommitted,
    MarkRefused,
    MembershipChange,
    OpenShard,
    ReadPending,
    ReserveAndRecord,
    WriteHeads,
)
from qim.core.ports.store_reads import ReadHistory, ReadMembership
from qim.core.ports.store_session import ApplyStates, OpenSession, ProjectDispatches
from qim.core.ports.store_source import CommitSource, OpenSource
from qim.sim.history import History
from qim.sim.node import Host

if TYPE_CHECKING:
    from qim.sim.scene import Scene

OPENS = (OpenShard, OpenSource, OpenMailbox, OpenSession, OpenArchive, OpenCoverage)
_WRITER = (
    ApplyOutbox,
    LookupCommits,
    MarkCommitted,
    MarkRefused,
    MembershipChange,
    ReadHistory,
    ReadMembership,
    ReadPending,
    ReserveAndRecord,
    RestoreConversations,
    TrimHot,
    WriteHeads,
)
_MAILBOX = (AppendEntries, ClaimDispatches, FinishDispatches, RaiseFloor, TrimMailbox)

_SOURCES = (OpenSource, CommitSource)
_AUDITS = (OpenCoverage, AdvanceCoverage)
_SESSIONS = (OpenSession, ProjectDispatches, ApplyStates)
_ARCHIVES = (OpenArchive, CommitArchive)
FENCED = (
    *_WRITER,
    CommitSource,
    *_MAILBOX,
    *_SESSIONS[1:],
    CommitArchive,
    AdvanceCoverage,
)
_FAMILY: dict[type, str] = {
    **dict.fromkeys((OpenShard, *_WRITER), "writer"),
    **dict.fromkeys(_SOURCES, "fanout"),
    **dict.fromkeys(_AUDITS, "auditor"),
    **dict.fromkeys((OpenMailbox, *_MAILBOX), "mailbox"),
    **dict.fromkeys(_SESSIONS, "session"),
    **dict.fromkeys(_ARCHIVES, "archiver"),
}
_REFUSED = (Failed, Fenced, StoreReset)


class Fences:
    """The highest epoch each Open was granted in each incarnation, and to whom."""

    def __init__(self) -> None:
        self.highest: dict[tuple[str, int, bytes], int] = {}
        self.owner: dict[tuple[str, int, bytes], bytes] = {}

    def attach(self, history: History) -> None:
        self.history = history
        for kind in OPENS:
            history.on_store.setdefault(kind, []).append(self.on_open)
        for fenced in FENCED:
            history.on_store.setdefault(fenced, []).append(self.on_request)

    def on_open(self, host: Host, request: Any, answer: Any) -> None:
        incarnation = getattr(answer, "incarnation", None)
        if incarnation is not None:
            family = _FAMILY[type(request)]
            key = (family, _number(request), incarnation)
            if request.epoch < self.highest.get(key, 0):
                text = f"{type(request).__name__} under epoch {request.epoch} below the fence"
                self.history.found("fences", family, text)
            raised = request.epoch > self.highest.get(key, -1)
            if not raised and not request.opener and host.node.role == "operator":
                return  # it owns nothing and disturbs nobody (decision 0030)
            if request.epoch == self.highest.get(key, 0) and request.opener != self.owner[key]:
                text = f"{type(request).__name__} under epoch {request.epoch}, which is another's"
                self.history.found("fences", family, text)
            self.highest[key] = max(request.epoch, self.highest.get(key, 0))
            self.owner[key] = request.opener

    def on_request(self, host: Host, request: Any, answer: Any) -> None:
        if type(answer) in _REFUSED:
            return
        family = _FAMILY[type(request)]
        key = (family, _number(request), request.incarnation)
        fence = self.highest.get(key, 0)
        if request.epoch != fence:
            text = f"{type(request).__name__} under epoch {request.epoch}, the fence is {fence}"
            self.history.found("fences", family, text)

    def finish(self, scene: "Scene") -> None:
        """Everything was judged as it came."""


def _number(request: Any) -> int:
    number: int = getattr(request, "partition", -1)
    return number if number >= 0 else request.shard
