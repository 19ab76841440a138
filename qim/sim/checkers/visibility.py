"""No visibility outside (joined_at, left_at], none before OUTBOXED; no body altered on its way (contract.md, Entities)."""

from typing import TYPE_CHECKING, Any

from qim.core.ports.local_store import LocalMessage, SaveBatch, SaveHistory, SavePush
from qim.sim.history import History
from qim.sim.localstore import Device

if TYPE_CHECKING:
    from qim.sim.scene import Scene


class Visibility:
    """Judges everything that reaches a device's disk."""

    def attach(self, history: History) -> None:
        self.history = history
        for kind in (SaveBatch, SavePush, SaveHistory):
            history.on_local.setdefault(kind, []).append(self.on_messages)

    def on_messages(self, device: Device, request: Any, answer: Any) -> None:
        for message in request.messages:
            self._judge(device, message, push=type(request) is SavePush)

    def _judge(self, device: Device, message: LocalMessage, *, push: bool) -> None:
        found = self.history.found
        effective = self.history.oracle.messages.get(message.message_id)
        if effective is None:
            found("visible_before_outboxed", "mailbox", device.name, message.message_id)
            return
        record = effective.record
        if device.user_id not in effective.audience:
            found(
                "visibility", "mailbox", f"{device.name} is not in the audience", message.message_id
            )
        if message.body is not None and message.body != record.body:
            found("body_altered", "mailbox", device.name, message.message_id)
        coordinates = (message.conversation_id, message.conversation_seq, message.sender_id)
        if coordinates != (record.conversation_id, record.conversation_seq, record.sender_id):
            found("entry_altered", "mailbox", f"{device.name}: {coordinates}", message.message_id)
        if message.body is None and not message.tombstone and not push:
            found("entry_without_body", "mailbox", device.name, message.message_id)

    def finish(self, scene: "Scene") -> None:
        """Everything was judged as it came."""
