"""No visibility outside (joined_at, left_at], none before OUTBOXED; no body altered on its way (contract.md, Entities).

Mailbox and push give exactly the frozen audience; history gives what was said within the user's intervals, also the change of
a great group that was sent to few. Who those few are is judged too: all of both versions, or where the new one is greater than
a broadcast may be, the changed users and the actor (pipeline.md §1.9).
"""

from typing import TYPE_CHECKING, Any

from qim.core.contract.entities import MessageRecord
from qim.core.ports.local_store import LocalMessage, SaveBatch, SaveHistory, SavePush
from qim.sim.history import History
from qim.sim.localstore import Device
from qim.sim.oracle import NOBODY, Effective
from qim.sim.visible import Visible

if TYPE_CHECKING:
    from qim.sim.scene import Scene


class Visibility:
    """Judges everything that reaches a device's disk."""

    def attach(self, history: History) -> None:
        self.history = history
        history.on_effective.append(self.on_effective)
        for kind in (SaveBatch, SavePush, SaveHistory):
            history.on_local.setdefault(kind, []).append(self.on_messages)

    def on_effective(self, effective: Effective) -> None:
        """A change of members names whom it is sent to."""
        record, limit = effective.record, self.history.broadcast_max
        delta = record.delta
        if delta is None or not limit:
            return
        versions = self.history.oracle.versions[record.conversation_id]
        before, after = versions.get(delta.previous_version, NOBODY), versions[delta.version]
        wide = len(after) <= limit
        told = (*before, *after) if wide else (*delta.users, record.sender_id)
        told = tuple(sorted(dict.fromkeys(told)))
        if len(told) < len(after):
            self.history.count("change_sent_to_few")
        if tuple(sorted(record.recipients)) != told:
            text = f"{len(record.recipients)} are sent a change to {len(after)} members"
            self.history.found("change_audience", "writer", text, record.message_id)

    def on_messages(self, device: Device, request: Any, answer: Any) -> None:
        for message in request.messages:
            self._judge(device, message, type(request))

    def _judge(self, device: Device, message: LocalMessage, kind: type) -> None:
        found = self.history.found
        effective = self.history.oracle.messages.get(message.message_id)
        if effective is None:
            found("visible_before_outboxed", "mailbox", device.name, message.message_id)
            return
        record = effective.record
        if not self._may_see(device, effective, kind):
            found("visibility", "mailbox", f"{device.name} may not see it", message.message_id)
        if message.body is not None and message.body != record.body:
            found("body_altered", "mailbox", device.name, message.message_id)
        coordinates = (message.conversation_id, message.conversation_seq, message.sender_id)
        if coordinates != (record.conversation_id, record.conversation_seq, record.sender_id):
            found("entry_altered", "mailbox", f"{device.name}: {coordinates}", message.message_id)
        if message.body is None and not message.tombstone and kind is not SavePush:
            found("entry_without_body", "mailbox", device.name, message.message_id)

    def _may_see(self, device: Device, effective: Effective, kind: type) -> bool:
        if device.user_id in effective.audience:
            return True
        if kind is not SaveHistory:
            return False
        self.history.count("change_read_in_history")
        return seen_in_history(self.history, device.user_id, effective.record)

    def finish(self, scene: "Scene") -> None:
        """Everything was judged as it came."""


def seen_in_history(history: History, user: int, record: MessageRecord) -> bool:
    """It reaches this user by no mailbox, and a page of history may give it all the same."""
    return Visible(history.oracle, record.conversation_id).within(user, record)
