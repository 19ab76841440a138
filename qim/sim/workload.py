"""What the users of a world do: plan operations become commands to client machines, as soon as those can take them."""

from typing import TYPE_CHECKING, Final

from qim.core.client.vocabulary import (
    ClientState,
    GroupChangeRequested,
    HistoryRequested,
    MarkReadRequested,
    MembersRequested,
    OfflineWanted,
    OnlineWanted,
    OverlayRequested,
    SendRequested,
    StateChanged,
    StateRequested,
)
from qim.core.contract.entities import MembershipOp, MessageKind
from qim.core.contract.hashing import H
from qim.core.contract.ids import group_conversation_id, single_conversation_id
from qim.core.contract.kinds import HistoryDirection, KickReason
from qim.sim.cast import TENANT
from qim.sim.localstore import Device
from qim.sim.node import Node
from qim.sim.plan import (
    QUERY_MEMBERS,
    ChangeGroup,
    Connect,
    Disconnect,
    MarkRead,
    Operation,
    Overlay,
    Query,
    Send,
    SetState,
)

if TYPE_CHECKING:
    from qim.sim.scene import Scene

AGAIN_MS: Final = 100
USER_MS: Final = 3_000
_ALL_BYTES: Final = bytes(range(256))


def client_message_id(number: int) -> bytes:
    """16 bytes, the same for operation ``number`` of every plan."""
    return H("qim.sim.cmid", number)


def body_of(number: int, size: int) -> bytes:
    """A body that tells its operation; at least 8 bytes, all byte values occur."""
    filler = _ALL_BYTES[number % 256 :] + _ALL_BYTES * (size // 256 + 1)
    return number.to_bytes(8, "big") + filler[: max(0, size - 8)]


class Workload:
    """Hands out operations at their time; a device whose process is down gets them when it is back."""

    def __init__(self, scene: "Scene") -> None:
        self.scene = scene
        self.names = list(scene.devices)
        self.wanted = dict.fromkeys(self.names, True)
        self.open = len(scene.plan.operations)
        self.groups: dict[int, bytes] = {}
        scene.history.on_notice.setdefault(StateChanged, []).append(self.told)
        self.asked: dict[bytes, Send | ChangeGroup | Overlay] = {}
        """client_message_id -> the operation, once a client was told of it."""
        for operation in scene.plan.operations:
            if isinstance(operation, ChangeGroup) and operation.operation == MembershipOp.CREATE:
                creator = scene.plan.devices[operation.device].user_id
                self.groups[operation.group] = group_conversation_id(
                    TENANT, creator, client_message_id(operation.number)
                )
            scene.world.at(operation.at_ms, operation.device, self._due, operation)

    def started(self, node: Node) -> None:
        """A client process begins: its user wants what they wanted before."""
        if self.wanted.get(node.name, True):
            node.hosts[0].take(OnlineWanted(wall=node.wall.read(self.scene.world.now)))

    def told(self, device: Device, notice: StateChanged) -> None:
        """REPLACED is final until the user acts: who has had a twin looks at the device again after a while."""
        replaced = notice.state == ClientState.STOPPED and notice.reason == KickReason.REPLACED
        if replaced and device.name in self.scene.twinned:
            self.scene.world.at(self.scene.world.now + USER_MS, 0, self.wake, device.name)

    def wake(self, name: str) -> None:
        """The user looks at the device and asks for a connection, whatever it was told before."""
        node = self.scene.nodes[name]
        if node.alive and self.wanted[name]:
            wall = node.wall.read(self.scene.world.now)
            node.hosts[0].take(OnlineWanted(wall=wall))

    def _due(self, operation: Operation) -> None:
        name = self.names[operation.device]
        node = self.scene.nodes[name]
        if not node.alive or node.paused:
            self.scene.world.at(
                self.scene.world.now + AGAIN_MS, operation.device, self._due, operation
            )
            return
        self.open -= 1
        host = node.hosts[0]
        wall = node.wall.read(self.scene.world.now)
        match operation:
            case Send():
                self._send(operation, node, wall)
            case ChangeGroup():
                self._change_group(operation, node, wall)
            case Connect():
                self.wanted[name] = True
                host.take(OnlineWanted(wall=wall))
            case Disconnect():
                self.wanted[name] = False
                host.take(OfflineWanted())
            case Query():
                user_id = self.scene.devices[name].user_id
                named = self._conversation(user_id, operation.peer, operation.group)
                host.take(_question(operation, named))
            case MarkRead() | SetState() | Overlay():
                self._own_view(operation, name, wall)

    def _send(self, operation: Send, node: Node, wall: int) -> None:
        cmid = client_message_id(operation.number)
        self.asked[cmid] = operation
        grouped = operation.group >= 0
        node.hosts[0].take(
            SendRequested(
                client_message_id=cmid,
                conversation_id=self.groups[operation.group] if grouped else None,
                peer_user_id=None if grouped else operation.peer,
                kind=MessageKind.TEXT,
                custom_type="",
                body=body_of(operation.number, operation.body_bytes),
                retention_class=operation.retention_class,
                wall=wall,
            )
        )

    def _change_group(self, operation: ChangeGroup, node: Node, wall: int) -> None:
        cmid = client_message_id(operation.number)
        self.asked[cmid] = operation
        created = operation.operation == MembershipOp.CREATE
        node.hosts[0].take(
            GroupChangeRequested(
                client_message_id=cmid,
                operation=operation.operation,
                conversation_id=None if created else self.groups[operation.group],
                members=operation.users,
                name=f"group {operation.group}" if created else "",
                wall=wall,
            )
        )

    def _own_view(self, operation: MarkRead | SetState | Overlay, name: str, wall: int) -> None:
        """What a user does to their own view of a conversation, as far as their device knows it."""
        device, host = self.scene.devices[name], self.scene.nodes[name].hosts[0]
        conversation_id = self._conversation(device.user_id, operation.peer, operation.group)
        held = sorted(
            message.conversation_seq
            for message in device.messages.values()
            if message.conversation_id == conversation_id
        )
        match operation:
            case MarkRead():
                seq = held[-1 - operation.behind] if len(held) > operation.behind else 1
                host.take(
                    MarkReadRequested(
                        ticket=operation.number, conversation_id=conversation_id, read_seq=seq
                    )
                )
            case SetState():
                host.take(
                    StateRequested(
                        ticket=operation.number,
                        conversation_id=conversation_id,
                        flags=operation.flags,
                        value=b"",
                        wall=wall,
                    )
                )
            case Overlay():
                target = self._target(operation, device, conversation_id)
                if target:
                    cmid = client_message_id(operation.number)
                    self.asked[cmid] = operation
                    host.take(
                        OverlayRequested(
                            client_message_id=cmid,
                            kind=operation.kind,
                            conversation_id=conversation_id,
                            target_seq=target,
                            wall=wall,
                        )
                    )

    def _target(self, operation: Overlay, device: Device, conversation_id: bytes) -> int:
        """A message of one's own for a recall, any for a deletion; 0: there is none yet."""
        seqs = [
            message.conversation_seq
            for message in device.messages.values()
            if message.conversation_id == conversation_id
            and message.kind == MessageKind.TEXT
            and (operation.kind != MessageKind.RECALL or message.sender_id == device.user_id)
        ]
        return max(seqs, default=0)

    def _conversation(self, user_id: int, peer: int, group: int) -> bytes:
        if group >= 0:
            return self.groups[group]
        return single_conversation_id(TENANT, user_id, peer)


def _question(operation: Query, conversation_id: bytes) -> HistoryRequested | MembersRequested:
    if operation.kind == QUERY_MEMBERS:
        return MembersRequested(ticket=operation.at_ms, conversation_id=conversation_id)
    return HistoryRequested(
        ticket=operation.at_ms,
        conversation_id=conversation_id,
        anchor=0,
        direction=HistoryDirection.NEWER,
    )
