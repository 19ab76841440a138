"""The client's local store in plain dicts: what ports/local_store.py promises, and what a checker can read afterwards."""

from typing import Any

from msgspec.structs import replace

from qim.core.ports.completion import Failed, FailReason
from qim.core.ports.local_sessions import LocalSessionRequest
from qim.core.ports.local_store import (
    Coordinates,
    LoadLocal,
    LocalLoaded,
    LocalMessage,
    LocalSaved,
    LocalState,
    MessagesSaved,
    PendingOverlay,
    PendingRow,
    ReadAnchors,
    SaveAck,
    SaveAttempt,
    SaveBatch,
    SaveFailed,
    SaveGroupOk,
    SaveHistory,
    SaveNotAfter,
    SavePending,
    SavePush,
    SaveState,
)
from qim.sim.local_rows import LocalRows


class ToyLocalStore:
    """Survives the Client that wrote it. `fail_next` names effect types to refuse once each."""

    def __init__(self) -> None:
        self.attempt = 0
        self.state = LocalState.ONLINE
        self.cursor: bytes | None = None
        self.covered = 0
        self.target = 0
        self.order_last = 0
        self.pending: dict[bytes, PendingRow] = {}
        self.sent: dict[bytes, Coordinates] = {}
        self.failed: dict[bytes, int] = {}
        self.groups: dict[bytes, tuple[bytes, int]] = {}
        self.rows = LocalRows()
        self.fail_next: list[type] = []

    @property
    def messages(self) -> dict[bytes, LocalMessage]:
        return self.rows.messages

    @property
    def anchors(self) -> dict[bytes, int]:
        return {c: row.anchor for c, row in self.rows.conversations.items() if row.anchor}

    @anchors.setter
    def anchors(self, anchors: dict[bytes, int]) -> None:
        for conversation_id, anchor in anchors.items():
            row = self.rows.conversation(conversation_id)
            self.rows.put(replace(row, anchor=anchor))

    def serve(self, effect: Any) -> Any:
        if type(effect) in self.fail_next:
            self.fail_next.remove(type(effect))
            return Failed(op=effect.op, why=FailReason.UNREACHABLE)
        match effect:
            case LoadLocal():
                return self._load(effect)
            case SavePush():
                return MessagesSaved(op=effect.op, fresh=self.rows.insert(effect.messages))
            case SaveBatch():
                return self._batch(effect)
            case SaveHistory():
                fresh = self.rows.insert(effect.messages)
                self.rows.cover(effect)
                return MessagesSaved(op=effect.op, fresh=fresh)
            case ReadAnchors():
                return self.rows.anchors(effect)
            case _ if isinstance(effect, LocalSessionRequest):
                return self.rows.session(effect)
            case _:
                self._row(effect)
                return LocalSaved(op=effect.op)

    def _row(self, effect: Any) -> None:
        match effect:
            case SavePending():
                self.pending.setdefault(effect.row.client_message_id, effect.row)
                self.order_last = max(self.order_last, effect.row.order)
            case SaveNotAfter():
                for key, not_after in effect.rows:
                    self.pending[key] = replace(self.pending[key], not_after=not_after)
            case SaveAttempt():
                self.attempt = max(self.attempt, effect.attempt)
            case SaveAck():
                self._sent(effect.coordinates)
            case SaveGroupOk():
                self.pending.pop(effect.client_message_id, None)
                self.groups[effect.client_message_id] = (effect.conversation_id, effect.version)
            case SaveFailed():
                self.pending.pop(effect.client_message_id, None)
                self.failed[effect.client_message_id] = effect.code
            case SaveState():
                self.state = LocalState(effect.state)
                self.target = effect.rebuild_target
                if effect.drop_cursor:
                    self.cursor, self.covered = None, 0
            case _:
                raise AssertionError(effect)

    def _load(self, effect: LoadLocal) -> LocalLoaded:
        return LocalLoaded(
            op=effect.op,
            attempt=self.attempt,
            state=self.state,
            cursor=self.cursor,
            covered_through=self.covered,
            rebuild_target=self.target,
            order_last=self.order_last,
            pending=tuple(sorted(self.pending.values(), key=lambda row: row.order)),
            state_revision=self.rows.state_revision,
            anchored=self.rows.is_anchored(),
        )

    def _batch(self, effect: SaveBatch) -> MessagesSaved:
        assert effect.covered_through >= self.covered, "the cursor went back"
        self.cursor, self.covered = effect.cursor, effect.covered_through
        fresh = self.rows.insert(effect.messages, contiguous=True, anchors=effect.moves_anchors)
        for coordinates in effect.settled:
            self._sent(coordinates)
        return MessagesSaved(
            op=effect.op,
            fresh=fresh,
            blank=self.rows.left_blank(effect.messages),
            unfilled=self.rows.left_unfilled(effect.messages),
        )

    def _sent(self, coordinates: Coordinates) -> None:
        row = self.pending.pop(coordinates.client_message_id, None)
        self.sent[coordinates.client_message_id] = coordinates
        if isinstance(row, PendingOverlay):
            self.rows.lay_own(row)
