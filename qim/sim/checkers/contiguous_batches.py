"""Batches are the contiguous prefix (pipeline.md §3.3): when a device's covered_through moves from a to b, every entry of
its user in (a, b] is on the device. And a push moves no cursor; a cursor never goes back except into a rebuild."""

from typing import TYPE_CHECKING, Any

from qim.core.ports.local_store import (
    LoadLocal,
    LocalLoaded,
    LocalState,
    SaveBatch,
    SaveHistory,
    SavePush,
    SaveState,
)
from qim.sim.history import History
from qim.sim.localstore import Device

if TYPE_CHECKING:
    from qim.sim.scene import Scene

_OFFSET_MASK = (1 << 48) - 1


class ContiguousBatches:
    """Follows covered_through of every device's disk."""

    def __init__(self) -> None:
        self.covered: dict[str, int] = {}
        self.cursors: dict[str, bytes | None] = {}

    def attach(self, history: History) -> None:
        self.history = history
        history.on_local.setdefault(LoadLocal, []).append(self.on_load)
        history.on_local.setdefault(SaveBatch, []).append(self.on_batch)
        history.on_local.setdefault(SavePush, []).append(self.on_push)
        history.on_local.setdefault(SaveHistory, []).append(self.on_push)
        history.on_local.setdefault(SaveState, []).append(self.on_state)

    def on_load(self, device: Device, request: LoadLocal, answer: LocalLoaded) -> None:
        # What the disk says at a start holds, also when somebody has laid hands on it meanwhile.
        self.covered[device.name] = answer.covered_through
        self.cursors[device.name] = answer.cursor

    def on_state(self, device: Device, request: SaveState, answer: Any) -> None:
        if request.drop_cursor:
            self.covered.pop(device.name, None)
            self.cursors[device.name] = None

    def on_push(self, device: Device, request: Any, answer: Any) -> None:
        if self.cursors.get(device.name) != device.cursor:
            self.history.found(
                "cursor_by_push", "client", f"{device.name}: a push moved the cursor"
            )
            self.cursors[device.name] = device.cursor

    def on_batch(self, device: Device, request: SaveBatch, answer: Any) -> None:
        self.cursors[device.name] = device.cursor
        before = self.covered.get(device.name, 0)
        after = request.covered_through
        self.covered[device.name] = after
        if after < before:
            text = f"{device.name}: covered_through went from {before:#x} to {after:#x}"
            self.history.found("covered_back", "client", text)
            return
        if not before:
            began = self.history.begun.of(device.name).last
            if began is None and device.state == LocalState.REBUILDING:
                return  # from the read-back position on, but nobody heard where that was
            before = began or 0  # what lies before is history's, and the end of the world judges it
        shard_number = self.history.oracle.place(device.user_id)[0]
        dispatches = self.history.oracle.rows(shard_number, after >> 48)
        if not dispatches or after >> 48 == 0:
            return
        # The predecessor of the first record has another epoch in its top bits: nothing was covered before.
        first, last = next(iter(dispatches)), next(reversed(dispatches))
        if before >> 48 == after >> 48:
            first = max(first, (before & _OFFSET_MASK) + 1)
        for offset in range(first, min(last, after & _OFFSET_MASK) + 1):
            expected = dispatches.get(offset)
            if expected is None or device.user_id not in expected.users:
                continue
            if expected.dispatch.message_id not in device.messages:
                text = f"{device.name}: covered through {after:#x} without offset {offset}"
                self.history.found(
                    "covered_through_gap", "mailbox", text, expected.dispatch.message_id
                )

    def finish(self, scene: "Scene") -> None:
        """Everything was judged as it came."""
