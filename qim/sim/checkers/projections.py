"""Session shards: positions follow the logs' order, read marks and states only forward on every path (pipeline.md §4)."""

from typing import TYPE_CHECKING, Any

from qim.core.ports.store_session import (
    ApplyStates,
    DispatchesProjected,
    OpenSession,
    ProjectDispatches,
    ReadSessions,
    SessionOpened,
    SessionsRead,
    StatesApplied,
)
from qim.sim.history import History
from qim.sim.node import Host

if TYPE_CHECKING:
    from qim.sim.scene import Scene

Mark = tuple[int, int, bytes]
"""(read_seq, version, device_id)."""


class Projections:
    """Follows what the store answers; what an incarnation lost with its tail is read again from the next Open."""

    def __init__(self) -> None:
        self._marks: dict[tuple[int, bytes], tuple[bytes, int, Mark]] = {}

    def attach(self, history: History) -> None:
        self.history = history
        history.on_store.setdefault(OpenSession, []).append(self.on_open)
        history.on_store.setdefault(ProjectDispatches, []).append(self.on_projected)
        history.on_store.setdefault(ApplyStates, []).append(self.on_applied)
        history.on_store.setdefault(ReadSessions, []).append(self.on_read)

    def on_open(self, host: Host, request: OpenSession, answer: Any) -> None:
        """Where the store stands, whatever was known before."""
        if type(answer) is SessionOpened:
            at = self.history.projected[request.shard] = [-1, -1]
            for index, position in enumerate((answer.dispatch, answer.state)):
                at[index] = -1 if position is None else position.offset

    def on_projected(self, host: Host, request: ProjectDispatches, answer: Any) -> None:
        """A position moved."""
        if type(answer) is DispatchesProjected:
            self._move(request.shard, 0, request.to.offset)

    def on_applied(self, host: Host, request: ApplyStates, answer: Any) -> None:
        """A position moved, unless somebody lost."""
        if type(answer) is StatesApplied and not answer.losing:
            self._move(request.shard, 1, request.to.offset)

    def _move(self, shard: int, index: int, to: int) -> None:
        at = self.history.projected.get(shard)
        if at is None:
            return
        if to < at[index]:
            text = f"shard {shard}: position from {at[index]} back to {to}"
            self.history.found("projection_position", "session", text)
        at[index] = to

    def on_read(self, host: Host, request: ReadSessions, answer: Any) -> None:
        """Within one incarnation and one epoch's positions nothing goes back."""
        if type(answer) is not SessionsRead:
            return
        for record in answer.records:
            key = (request.user_id, record.conversation_id)
            mark = (record.read_seq, record.version, record.device_id)
            known = self._marks.get(key)
            offset = answer.state_offset
            self._marks[key] = (request.incarnation, offset, mark)
            if known is None or known[0] != request.incarnation or known[1] > offset:
                continue
            before = known[2]
            if mark[0] < before[0] or mark[1:] < before[1:]:
                text = f"user {request.user_id}: {before[:2]} became {mark[:2]}"
                self.history.found("mark_forward", "session", text)

    def finish(self, scene: "Scene") -> None:
        """Everything was judged as it came."""
