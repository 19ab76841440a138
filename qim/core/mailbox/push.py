"""Push hints to online devices after W moved: best effort, lossy, and unable to move a cursor (pipeline.md §3.5).

    delivered --queue has room--> waiting --ReadPresence--> with devices --ReadOverlays--> one PushBatch a gateway
        |--full: dropped, counted      |--no answer: dropped, counted            |--recalled, or nobody knows: no body
                                       |--no device online: PushTask, counted

Each body stands once in a batch. A mailbox that replays its log meets messages that were recalled or ran out since: their
bodies don't leave, and the device pulls the tombstone. What is dropped here the watermark in ONLINE_READY and PONG
repairs. Presence is read anew for every batch of users: an answer kept for even a second would send hints to a gateway
the user has left, and one read serves up to 256 users.
"""

from collections import deque
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from qim.core.contract import ids, routing
from qim.core.contract.entities import EMPTY_ID, GroupDispatch, MessageKind, PresenceEntry
from qim.core.contract.rpc import PulledEntry, Push, PushBatch, PushTarget
from qim.core.mailbox.bodies import body_of_dispatch, joined
from qim.core.mailbox.orders import Orders, What
from qim.core.mailbox.vocabulary import MailboxConfig
from qim.core.ports.network import Send
from qim.core.ports.observe import Count
from qim.core.ports.store_history import ReadOverlays
from qim.core.ports.store_mailbox import PresenceRead, ReadPresence
from qim.core.retention import RetentionPolicy

TRACES_MAX = 4
_RECALLABLE = (MessageKind.TEXT, MessageKind.CUSTOM)


class Hint(Struct, frozen=True):
    """One message that just became visible to these users of one shard."""

    shard: int
    seq: int
    dispatch: GroupDispatch
    users: tuple[int, ...]


class Aimed(Struct):
    """A hint with its devices by gateway. ``entry`` holds the body as long as nothing forbids it."""

    shard: int
    entry: PulledEntry
    targets: dict[str, list[PushTarget]]


class Pushes:
    """Hints on their way: a bounded queue, and one read of presence or of overlays in flight."""

    def __init__(self, config: MailboxConfig, orders: Orders) -> None:
        self._config = config
        self._orders = orders
        self._queue: deque[Hint] = deque()
        self._users = 0
        self._asked: tuple[Hint, ...] = ()
        self._aimed: list[Aimed] = []
        """With devices, while it is asked which of them are recalled."""

    def add(self, hint: Hint) -> None:
        """Queue a hint, or drop it where there is no room."""
        if self._users + len(hint.users) > self._config.push_users_max:
            self._orders.give(Count(name="mailbox_push_dropped", value=len(hint.users)))
            return
        self._users += len(hint.users)
        self._queue.append(hint)

    def flush(self, wall: int) -> None:
        """Ask where the next users are online, one read in flight."""
        if self._asked or self._aimed or not self._queue:
            return
        hints: list[Hint] = []
        users: dict[tuple[str, int], None] = {}
        while self._queue and (not hints or len(users) < self._config.presence_users_max):
            hint = self._cut(self._config.presence_users_max)
            hints.append(hint)
            users.update(((hint.dispatch.tenant_id, user), None) for user in hint.users)
        self._asked = tuple(hints)
        op = self._orders.op(What.PRESENCE)
        self._orders.give(ReadPresence(op=op, now_wall=wall, users=tuple(users)))

    def _cut(self, users_max: int) -> Hint:
        """The first hint, or as much of it as one read may ask for."""
        hint = self._queue.popleft()
        if len(hint.users) > users_max:
            head = tuple(islice(hint.users, users_max))
            rest = hint.users[users_max:]
            self._queue.appendleft(
                Hint(shard=hint.shard, seq=hint.seq, dispatch=hint.dispatch, users=rest)
            )
            hint = Hint(shard=hint.shard, seq=hint.seq, dispatch=hint.dispatch, users=head)
        self._users -= len(hint.users)
        return hint

    def on_failed(self) -> None:
        """Presence did not answer: these hints are lost, which is allowed."""
        lost = sum(len(hint.users) for hint in self._asked)
        self._asked = ()
        self._orders.give(Count(name="mailbox_push_dropped", value=lost))

    def on_presence(self, event: PresenceRead, wall: int) -> None:
        """Find the devices of each hint, then ask which messages were recalled meanwhile."""
        hints, self._asked = self._asked, ()
        users: dict[tuple[str, int], None] = {}
        for hint in hints:
            users.update(((hint.dispatch.tenant_id, user), None) for user in hint.users)
        online = dict(zip(users, event.entries, strict=True))
        offline = 0
        for hint in hints:
            targets, missed = _targets(hint, online)
            offline += missed
            if targets:
                entry = _entry(hint, self._config.retention, wall)
                self._aimed.append(Aimed(hint.shard, entry, targets))
        if offline:
            self._orders.give(Count(name="push_task", value=offline))
        names = tuple(self._name(aimed.entry) for aimed in self._bodies())
        if names:
            op = self._orders.op(What.PUSHED_OVERLAYS)
            self._orders.give(ReadOverlays(op=op, names=names))
        else:
            self._send()

    def _bodies(self) -> list[Aimed]:
        return [
            aimed
            for aimed in self._aimed
            if aimed.entry.body is not None and aimed.entry.kind in _RECALLABLE
        ]

    def _name(self, entry: PulledEntry) -> tuple[int, bytes, int]:
        count = self._config.outbox_partition_count
        shard = routing.writer_shard(entry.conversation_id, count)
        return shard, entry.conversation_id, entry.conversation_seq

    def on_overlays(self, recalled: tuple[int | None, ...] | None) -> None:
        """One a body; None, alone or for all: nobody knows. Only what surely stands goes with its body."""
        bodies = self._bodies()
        marks = recalled if recalled is not None else (None,) * len(bodies)
        for aimed, mark in zip(bodies, marks, strict=True):
            if mark != 0:
                aimed.entry = replace(aimed.entry, body=None)
        self._send()

    def _send(self) -> None:
        """Sorted by gateway and shard, to each its batch."""
        batches: dict[tuple[str, int], list[Push]] = {}
        for aimed in self._aimed:
            for gateway, devices in aimed.targets.items():
                push = Push(aimed.entry, tuple(devices))
                batches.setdefault((gateway, aimed.shard), []).append(push)
        self._aimed = []
        if batches:
            # What a device was really handed its gateway counts as PUSHED: here it is only on its way.
            hinted = sum(len(pushes) for pushes in batches.values())
            self._orders.give(Count(name="mailbox_push_hints", value=hinted))
        for (gateway, shard), pushes in batches.items():
            traces = tuple(push.entry.trace_id for push in pushes[:TRACES_MAX])
            batch = PushBatch(shard=shard, pushes=tuple(pushes))
            self._orders.give(Send(address=gateway, message=batch, traces=traces))

    def queued(self) -> int:
        """Users in the queue."""
        return self._users

    def check(self) -> None:
        """The users are counted and bounded."""
        assert self._users == sum([len(hint.users) for hint in self._queue])
        assert self._users <= self._config.push_users_max


def _targets(
    hint: Hint, online: dict[tuple[str, int], tuple[PresenceEntry, ...]]
) -> tuple[dict[str, list[PushTarget]], int]:
    """(devices by gateway, how many users are on none)."""
    targets: dict[str, list[PushTarget]] = {}
    offline = 0
    for user in hint.users:
        devices = online[hint.dispatch.tenant_id, user]
        if not devices:
            offline += 1
            continue
        event_id = ids.event_id(hint.shard, hint.seq, user)
        own = user == hint.dispatch.sender_id
        for device in devices:
            target = PushTarget(user, device.conn, device.session_epoch, hint.seq, event_id, own)
            targets.setdefault(device.gateway, []).append(target)
    return targets, offline


def _entry(hint: Hint, retention: RetentionPolicy, wall: int) -> PulledEntry:
    """The body once, if it is inline and still kept: any other is left to be pulled. event_id is each target's own."""
    dispatch = hint.dispatch
    body = body_of_dispatch(dispatch, retention)
    if body.kept_until <= wall:
        body = replace(body, body=None)
    return joined(
        body,
        mailbox_seq=hint.seq,
        event_id=EMPTY_ID,
        message_id=dispatch.message_id,
        conversation_id=dispatch.conversation_id,
        conversation_seq=dispatch.conversation_seq,
        kind=dispatch.kind,
        sender_id=dispatch.sender_id,
        client_message_id=dispatch.client_message_id,
    )
