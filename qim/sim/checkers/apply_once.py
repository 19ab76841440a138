"""A device never applies a message twice, and a send settles once with the coordinates the log knows (pipeline.md §6)."""

from typing import TYPE_CHECKING, Final

from qim.core.client.vocabulary import GroupSettled, MessageApplied, SendSettled
from qim.core.contract.errors import ErrorCode
from qim.sim.history import History
from qim.sim.localstore import Device

if TYPE_CHECKING:
    from qim.sim.scene import Scene

OF_THE_MOMENT: Final = (ErrorCode.NOT_MEMBER, ErrorCode.NOT_FOUND, ErrorCode.TOO_MANY_MEMBERS)
"""A refusal by the state of a moment leaves no trace: the network's own double of the request may be judged otherwise."""


class ApplyOnce:
    """What clients tell their users."""

    def __init__(self) -> None:
        self.applied: dict[tuple[str, bytes], int] = {}
        self.settled: dict[bytes, int] = {}
        """client_message_id -> ErrorCode, 0 for sent."""

    def attach(self, history: History) -> None:
        self.history = history
        history.on_notice.setdefault(MessageApplied, []).append(self.on_applied)
        history.on_notice.setdefault(SendSettled, []).append(self.on_settled)
        history.on_notice.setdefault(GroupSettled, []).append(self.on_group_settled)

    def on_applied(self, device: Device, notice: MessageApplied) -> None:
        key = (device.name, notice.message.message_id)
        if key in self.applied:
            self.history.found("apply_once", "client", device.name, notice.message.message_id)
        self.applied[key] = self.history.now()

    def on_settled(self, device: Device, notice: SendSettled) -> None:
        coordinates = notice.coordinates
        if coordinates is None:
            self._once(device, notice.client_message_id, notice.code)
            return
        self._once(device, notice.client_message_id, 0)
        message = self.history.oracle.messages.get(coordinates.message_id)
        if message is None:
            text = f"{device.name}: settled, but not in the effective outbox"
            self.history.found("settled_without_commit", "client", text, coordinates.message_id)
            return
        record = message.record
        stands = (record.conversation_seq, record.client_message_id)
        if stands != (coordinates.conversation_seq, notice.client_message_id):
            text = f"{device.name}: told seq {coordinates.conversation_seq}, stands at {stands[0]}"
            self.history.found("settled_coordinates", "client", text, coordinates.message_id)

    def on_group_settled(self, device: Device, notice: GroupSettled) -> None:
        self._once(device, notice.client_message_id, notice.code)

    def _once(self, device: Device, client_message_id: bytes, code: int) -> None:
        before = self.settled.setdefault(client_message_id, code)
        if (before == 0) != (code == 0):
            text = f"{device.name}: settled as {before}, then as {code}"
            self.history.found("settled_twice", "client", text)

    def finish(self, scene: "Scene") -> None:
        """What was told as failed for good must never appear; what was told as sent must stand."""
        committed = {
            message.record.client_message_id for message in scene.history.oracle.messages.values()
        }
        doubled = scene.network.counts.get("network.repeat", 0) > 0
        for client_message_id, code in self.settled.items():
            if code in OF_THE_MOMENT and doubled:
                continue
            if code and client_message_id in committed:
                text = (
                    f"{client_message_id.hex()} was told failed ({code}) and stands in the outbox"
                )
                self.history.found("failed_but_committed", "client", text)
