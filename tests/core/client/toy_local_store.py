"""The client's local store in plain dicts: what ports/local_store.py promises, and what a checker can read afterwards."""

from typing import Any

from msgspec.structs import replace

from qim.core.ports.completion import Failed, FailReason
from qim.core.ports.local_store import (
    AnchorsRead,
    Coordinates,
    LoadLocal,
    LocalLoaded,
    LocalMessage,
    LocalSaved,
    LocalState,
    MessagesSaved,
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
        self.messages: dict[bytes, LocalMessage] = {}
        self.anchors: dict[bytes, int] = {}
        self.fail_next: list[type] = []

    def serve(self, effect: Any) -> Any:
        if type(effect) in self.fail_next:
            self.fail_next.remove(type(effect))
            return Failed(op=effect.op, why=FailReason.UNREACHABLE)
        match effect:
            case LoadLocal():
                return self._load(effect)
            case SavePush():
                return MessagesSaved(op=effect.op, fresh=self._insert(effect.messages))
            case SaveBatch():
                return self._batch(effect)
            case SaveHistory():
                fresh = self._insert(effect.messages)
                if effect.anchor:
                    self._raise(effect.conversation_id, effect.anchor)
                return MessagesSaved(op=effect.op, fresh=fresh)
            case ReadAnchors():
                return self._read_anchors(effect)
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
        )

    def _batch(self, effect: SaveBatch) -> MessagesSaved:
        assert effect.covered_through >= self.covered, "the cursor went back"
        self.cursor, self.covered = effect.cursor, effect.covered_through
        fresh = self._insert(effect.messages)
        for message in effect.messages if effect.moves_anchors else ():
            self._raise(message.conversation_id, message.conversation_seq)
        for coordinates in effect.settled:
            self._sent(coordinates)
        return MessagesSaved(op=effect.op, fresh=fresh)

    def _read_anchors(self, effect: ReadAnchors) -> AnchorsRead:
        known = sorted({m.conversation_id for m in self.messages.values()} | set(self.anchors))
        later = [c for c in known if c > effect.after]
        page = tuple((c, self.anchors.get(c, 0)) for c in later[: effect.limit])
        return AnchorsRead(op=effect.op, anchors=page, more=len(later) > len(page))

    def _insert(self, messages: tuple[LocalMessage, ...]) -> tuple[int, ...]:
        fresh = []
        for index, message in enumerate(messages):
            if message.message_id not in self.messages:
                self.messages[message.message_id] = message
                fresh.append(index)
        return tuple(fresh)

    def _raise(self, conversation_id: bytes, seq: int) -> None:
        self.anchors[conversation_id] = max(self.anchors.get(conversation_id, 0), seq)

    def _sent(self, coordinates: Coordinates) -> None:
        self.pending.pop(coordinates.client_message_id, None)
        self.sent[coordinates.client_message_id] = coordinates
