"""A delivered watermark never leads its device (pipeline.md §4): what is noted, the device's disk held when it asked.

A device holds what its saved cursors cover, and what lies before the cursor it was given to begin with.
"""

from typing import TYPE_CHECKING, Any

from qim.core.contract.cursor import decode_cursor
from qim.core.contract.rpc import SyncAnswer
from qim.core.ports.local_store import SaveBatch
from qim.core.ports.network import Send
from qim.core.ports.store_session import DeliveredNoted, NoteDelivered
from qim.sim.history import History
from qim.sim.localstore import Device
from qim.sim.node import Host
from qim.sim.secret import SECRET

if TYPE_CHECKING:
    from qim.sim.scene import Scene

Owner = tuple[int, bytes]
"""(user, device): the copies of a device that a twin makes count as one."""


class DeliveredNeverLeads:
    """Follows disks and first cursors, judges each note that a store took."""

    def __init__(self) -> None:
        self._held: dict[Owner, int] = {}

    def attach(self, history: History) -> None:
        self.history = history
        history.on_local.setdefault(SaveBatch, []).append(self.on_batch)
        history.on_sent.setdefault(SyncAnswer, []).append(self.on_sync)
        history.on_store.setdefault(NoteDelivered, []).append(self.on_note)

    def on_batch(self, device: Device, request: SaveBatch, answer: Any) -> None:
        """On disk: entries and cursor in one transaction."""
        owner = (device.user_id, device.device_id)
        self._held[owner] = max(self._held.get(owner, 0), request.covered_through)

    def on_sync(self, host: Host, effect: Send) -> None:
        """Where a new device begins; an old one's own cursor comes back to it."""
        answer = effect.message
        assert isinstance(answer, SyncAnswer)
        cursor = decode_cursor(answer.cursor, SECRET)
        owner = (cursor.user_id, cursor.device_id)
        self._held[owner] = max(self._held.get(owner, 0), cursor.seq)

    def on_note(self, host: Host, request: NoteDelivered, answer: Any) -> None:
        """One a device."""
        if type(answer) is not DeliveredNoted:
            return
        for _, user_id, device_id, seq in request.items:
            held = self._held.get((user_id, device_id), 0)
            self.history.count("delivered_judged")
            if seq > held and device_id != JUDGE:
                text = f"user {user_id}, {device_id.decode()}: noted {seq:#x}, held {held:#x}"
                self.history.found("delivered_leads", host.node.role, text)

    def finish(self, scene: "Scene") -> None:
        """Everything was judged as it came."""


JUDGE = b"judge"
"""Asks for every user at the end, and keeps nothing."""
