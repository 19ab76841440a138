"""After the heal everything ends well: every intent settled, every consumer at the end of its log, each committed message
on each device of exactly its frozen audience. The ledgers are equalities (simulator.md, "Checkers")."""

from typing import TYPE_CHECKING, Any

from qim.core.client.conversation import unsent_of
from qim.core.contract.sequences import before_first, mailbox_seq
from qim.core.ports.completion import StoreRole
from qim.core.ports.log import Topic
from qim.core.ports.store_history import ArchivePositionRead, ReadArchivePosition
from qim.core.ports.store_mailbox import ReadShardState, ShardStateRead
from qim.core.ports.store_source import ReadSource, SourceRead
from qim.core.retention import RetentionPolicy
from qim.sim.begun import is_before
from qim.sim.checkers.visibility import seen_in_history
from qim.sim.history import History
from qim.sim.localstore import Device
from qim.sim.oracle import Effective
from qim.sim.visible import CLOCKS_APART_MS, Clock, Visible

if TYPE_CHECKING:
    from qim.sim.scene import Scene


class Liveness:
    """Judges the end; ``unsettled`` is also how a world knows that nothing more is to be waited for."""

    def attach(self, history: History) -> None:
        self.history = history

    def finish(self, scene: "Scene") -> None:
        for check, role, text, message_id in unsettled(scene):
            self.history.found(check, role, text, message_id)


def unsettled(scene: "Scene") -> list[tuple[str, str, str, bytes]]:
    """(check, role, text, message_id) of everything still owed."""
    owed: list[tuple[str, str, str, bytes]] = []
    if scene.workload.open:
        owed.append(("workload", "client", f"{scene.workload.open} operations not taken", b""))
    for device in scene.devices.values():
        if scene.workload.wanted[device.name]:
            owed += _of_device(scene, device)
    if not owed:
        owed += owed_by_services(scene)
    return owed


def _of_device(scene: "Scene", device: Device) -> list[tuple[str, str, str, bytes]]:
    oracle = scene.history.oracle
    owed = [
        ("intent_settled", "client", f"{device.name}: pending {row.client_message_id.hex()}", b"")
        for row in device.pending.values()
    ]
    owed += [
        ("state_settled", "client", f"{device.name}: {row.conversation_id.hex()[:8]} unsent", b"")
        for row in device.rows.conversations.values()
        if unsent_of(row) is not None
    ]
    expected = 0
    for message_id, message in oracle.messages.items():
        if device.user_id not in message.audience:
            held = message_id in device.messages
            expected += held and seen_in_history(scene.history, device.user_id, message.record)
            continue
        if message_id in device.messages:
            expected += 1
        elif _is_owed(scene, device, message):
            expected += 1
            text = f"{device.name} lacks seq {message.record.conversation_seq}"
            owed.append(("delivered", "mailbox", text, message_id))
    if not owed and len(device.messages) != expected:
        text = f"{device.name} holds {len(device.messages)} messages, {expected} are its user's"
        owed.append(("ledger", "client", text, b""))
    return owed


def _is_owed(scene: "Scene", device: Device, message: Effective) -> bool:
    """Not to a new device what lies before its first cursor; before a rebuild's, what history surely shows (pipeline.md §6)."""
    history = scene.history
    began = history.begun.of(device.name)
    entry = history.oracle.entry_of(message, device.user_id)
    if entry is None:
        return True
    if is_before(entry, began.first):
        return False
    if not is_before(entry, began.rebuilt):
        return True
    record = message.record
    policy = RetentionPolicy(ephemeral_ms=history.ephemeral_ms)
    wall = scene.plan.beginnings.wall_ms + scene.world.now
    # What any clock of the world could take for expired, some owner may have let go.
    clock = Clock(earliest=wall, latest=wall + CLOCKS_APART_MS, policy=policy)
    visible = Visible(history.oracle, record.conversation_id)
    rows = visible.rows(device.user_id, record.conversation_id, clock)
    return any(row.seq == record.conversation_seq for row in rows)


def owed_by_services(scene: "Scene") -> list[tuple[str, str, str, bytes]]:
    """Consumers that are not at the end of their logs."""
    owed: list[tuple[str, str, str, bytes]] = []
    store = scene.stores[StoreRole.MESSAGE]
    for number in range(scene.plan.topology.outbox_partitions):
        end = scene.log.partitions[Topic.OUTBOX, number].end
        read: Any = store.ask(ReadSource(op=0, partition=number, low=0, high=1 << 62, limit=1))
        at = read.checkpoint if isinstance(read, SourceRead) else -1
        if at < end and not (at < 0 and end == scene.plan.beginnings.outbox_offset):
            owed.append(("fanout_at_end", "fanout", f"partition {number}: {at} of {end}", b""))
        archived: Any = store.ask(ReadArchivePosition(op=0, partition=number))
        at = archived.offset if isinstance(archived, ArchivePositionRead) else -1
        archived_here = scene.plan.topology.archivers > 0
        untouched = at < 0 and end == scene.plan.beginnings.outbox_offset
        if archived_here and at < end and not untouched:
            owed.append(("archiver_at_end", "archiver", f"partition {number}: {at} of {end}", b""))
    boxes = scene.stores[StoreRole.MAILBOX]
    for number in range(scene.plan.topology.shards):
        partition = scene.log.partitions[Topic.DISPATCH, number]
        shown: Any = boxes.ask(ReadShardState(op=0, shard=number))
        if partition.end == partition.start:
            continue
        shard_epoch = scene.history.oracle.epoch(number)
        last = mailbox_seq(shard_epoch, partition.end - 1)
        at = shown.min_watermark if isinstance(shown, ShardStateRead) else before_first(1, 0)
        if at != last:
            text = f"shard {number}: min W {at:#x}, the log's last is {last:#x}"
            owed.append(("mailbox_at_end", "mailbox", text, b""))
    return owed + _owed_by_sessions(scene)


def _owed_by_sessions(scene: "Scene") -> list[tuple[str, str, str, bytes]]:
    owed: list[tuple[str, str, str, bytes]] = []
    for number in range(scene.plan.topology.shards):
        reached = scene.history.projected.get(number, (-1, -1))
        for topic, at in zip((Topic.DISPATCH, Topic.USER_STATE), reached, strict=True):
            partition = scene.log.partitions[topic, number]
            if partition.end != partition.start and at != partition.end:
                text = f"shard {number}, {topic}: {at} of {partition.end}"
                owed.append(("session_at_end", "session", text, b""))
    return owed
