"""A device's own store: what survives the client process, one transaction an order, in the order given.

An order takes effect when it arrives, whole or not at all; a client that dies before then never wrote it, one that dies
after finds it at its next start, though nobody answered.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, get_args

from msgspec.structs import replace

from qim.core.ports.local_sessions import LocalSessionRequest
from qim.core.ports.local_store import (
    Coordinates,
    LoadLocal,
    LocalLoaded,
    LocalSaved,
    LocalState,
    LocalStoreReply,
    LocalStoreRequest,
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
from qim.sim.choice import TIEBREAK_SHIFT, Way
from qim.sim.local_rows import LocalRows
from qim.sim.node import Host
from qim.sim.sites import LOCAL

if TYPE_CHECKING:
    from qim.sim.world import World

FSYNC: Final = Way(base_ms=1, spread_ms=3)
LocalHeard = Callable[["Device", LocalStoreRequest, LocalStoreReply], None]


class Device:
    """The disk of one device of one user."""

    def __init__(self, world: "World", user_id: int, device_id: bytes, name: str) -> None:
        self.world = world
        self.user_id = user_id
        self.device_id = device_id
        self.name = name
        self.attempt = 0
        self.state: int = LocalState.ONLINE
        self.cursor: bytes | None = None
        self.covered_through = 0
        self.rebuild_target = 0
        self.order_last = 0
        self.pending: dict[bytes, PendingRow] = {}
        self.sent: dict[bytes, Coordinates] = {}
        self.changed: dict[bytes, SaveGroupOk] = {}
        self.failed: dict[bytes, int] = {}
        self.rows = LocalRows()
        self.messages = self.rows.messages
        self.rebuilds = 0
        self.heard: LocalHeard | None = None
        self._apply: dict[type, Callable[[Any], LocalStoreReply]] = {
            LoadLocal: self._load,
            SavePending: self._save_pending,
            SaveNotAfter: self._save_not_after,
            SaveAttempt: self._save_attempt,
            SaveBatch: self._save_batch,
            SavePush: self._save_push,
            SaveHistory: self._save_history,
            SaveAck: self._save_ack,
            SaveGroupOk: self._save_group_ok,
            SaveFailed: self._save_failed,
            SaveState: self._save_state,
            ReadAnchors: self.rows.anchors,
            **dict.fromkeys(get_args(LocalSessionRequest), self.rows.session),
        }

    def request(self, host: Host, effect: LocalStoreRequest) -> None:
        """One lane a process: orders apply as they were given, each answered once."""
        world = self.world
        traces = getattr(effect, "traces", ())
        draw = world.dice.draw(LOCAL[type(effect)], traces[0] if traces else host.identity)
        arrival = world.now + FSYNC.there(draw)
        at, order = host.in_line("local", arrival, draw >> TIEBREAK_SHIFT)
        world.at(at, order, self._arrive, (host, effect))

    def _arrive(self, payload: tuple[Host, LocalStoreRequest]) -> None:
        host, effect = payload
        if host.dead:
            return
        answer = self.take_order(effect)
        if self.heard is not None:
            self.heard(self, effect, answer)
        self.world.at(self.world.now + 1, 0, host.take, answer)

    # ------------------------------------------------------------ orders

    def take_order(self, effect: LocalStoreRequest) -> LocalStoreReply:
        """Carry it out, whole; also the shadow of a real device's store (chaos)."""
        return self._apply[type(effect)](effect)

    def _load(self, effect: LoadLocal) -> LocalLoaded:
        rows = sorted(self.pending.values(), key=lambda row: row.order)
        return LocalLoaded(
            op=effect.op,
            attempt=self.attempt,
            state=self.state,
            cursor=self.cursor,
            covered_through=self.covered_through,
            rebuild_target=self.rebuild_target,
            order_last=self.order_last,
            pending=tuple(rows),
            state_revision=self.rows.state_revision,
            anchored=self.rows.is_anchored(),
        )

    def _save_pending(self, effect: SavePending) -> LocalSaved:
        row = effect.row
        known = row.client_message_id in self.sent or row.client_message_id in self.failed
        if not known and row.client_message_id not in self.changed:
            self.pending.setdefault(row.client_message_id, row)
        self.order_last = max(self.order_last, row.order)
        return LocalSaved(op=effect.op)

    def _save_not_after(self, effect: SaveNotAfter) -> LocalSaved:
        for client_message_id, not_after in effect.rows:
            row = self.pending.get(client_message_id)
            if row is not None:
                self.pending[client_message_id] = replace(row, not_after=not_after)
        return LocalSaved(op=effect.op)

    def _save_attempt(self, effect: SaveAttempt) -> LocalSaved:
        self.attempt = effect.attempt
        return LocalSaved(op=effect.op)

    def _save_batch(self, effect: SaveBatch) -> MessagesSaved:
        fresh = self.rows.insert(effect.messages, contiguous=True, anchors=effect.moves_anchors)
        self.cursor = effect.cursor
        self.covered_through = effect.covered_through
        for coordinates in effect.settled:
            self._settle(coordinates)
        return MessagesSaved(
            op=effect.op,
            fresh=fresh,
            blank=self.rows.left_blank(effect.messages),
            unfilled=self.rows.left_unfilled(effect.messages),
        )

    def _save_push(self, effect: SavePush) -> MessagesSaved:
        return MessagesSaved(op=effect.op, fresh=self.rows.insert(effect.messages))

    def _save_history(self, effect: SaveHistory) -> MessagesSaved:
        fresh = self.rows.insert(effect.messages)
        self.rows.cover(effect)
        for coordinates in effect.settled:
            self._settle(coordinates)
        return MessagesSaved(op=effect.op, fresh=fresh)

    def _save_ack(self, effect: SaveAck) -> LocalSaved:
        self._settle(effect.coordinates)
        return LocalSaved(op=effect.op)

    def _save_group_ok(self, effect: SaveGroupOk) -> LocalSaved:
        self.pending.pop(effect.client_message_id, None)
        self.changed[effect.client_message_id] = effect
        return LocalSaved(op=effect.op)

    def _save_failed(self, effect: SaveFailed) -> LocalSaved:
        if self.pending.pop(effect.client_message_id, None) is not None:
            self.failed[effect.client_message_id] = effect.code
        return LocalSaved(op=effect.op)

    def _save_state(self, effect: SaveState) -> LocalSaved:
        if effect.state == LocalState.REBUILDING and self.state != LocalState.REBUILDING:
            self.rebuilds += 1
        self.state = effect.state
        if effect.drop_cursor:
            self.cursor, self.covered_through = None, 0
        self.rebuild_target = effect.rebuild_target
        return LocalSaved(op=effect.op)

    def _settle(self, coordinates: Coordinates) -> None:
        row = self.pending.pop(coordinates.client_message_id, None)
        if row is not None:
            self.sent[coordinates.client_message_id] = coordinates
        if isinstance(row, PendingOverlay):
            self.rows.lay_own(row)
