"""Presence (pipeline.md §3.6): what stands of a device is its latest connection, and who is replaced was replaced by somebody.

The store's scripts are held against a model of their rules: an epoch above the one that stood, the replaced one handed out, a
lower attempt than a live entry's refused, refreshes by attempt, a stale close without effect, reads by the asker's clock. What
a lost tail brings back is read anew. Around it: only an entry that was replaced is kicked, no entry is kept for a connection
that is gone, and a device is told REPLACED only where a later attempt of it is known. After the heal every device whose user
wants it online has an entry that names its very connection.
"""

from typing import TYPE_CHECKING, Any

from qim.core.client.vocabulary import ClientState, StateChanged
from qim.core.contract.entities import PresenceEntry
from qim.core.contract.kinds import KickReason
from qim.core.contract.rpc import Kick
from qim.core.ports.completion import StoreRole
from qim.core.ports.local_store import SaveAttempt
from qim.core.ports.network import Send
from qim.core.ports.store_mailbox import (
    EnterPresence,
    LeavePresence,
    PresenceEntered,
    PresenceLeft,
    PresenceRead,
    PresenceRefreshed,
    ReadPresence,
    RefreshPresence,
)
from qim.sim.cast import TENANT
from qim.sim.history import History
from qim.sim.localstore import Device
from qim.sim.node import Host

if TYPE_CHECKING:
    from qim.sim.scene import Scene

Owner = tuple[int, bytes]
"""(user, device): the copies of a device that a twin makes count as one."""
Name = tuple[int, bytes, str, int, int]
"""(user, device, gateway, conn, session_epoch): what a kick says."""
EPOCH_BITS = 16


class Presence:
    """Follows the entries of the mailbox store, and the attempts on the disks of devices."""

    def __init__(self) -> None:
        self._held: dict[Owner, PresenceEntry] = {}
        self._users: dict[int, None] = {}
        self._replaced: dict[Name, None] = {}
        self._entered: dict[tuple[int, Owner, int], int] = {}
        """(gateway's process, device, session_epoch) -> attempt."""
        self._attempts: dict[Owner, dict[str, int]] = {}

    def attach(self, history: History) -> None:
        self.history = history
        history.on_store.setdefault(EnterPresence, []).append(self.on_enter)
        history.on_store.setdefault(RefreshPresence, []).append(self.on_refresh)
        history.on_store.setdefault(LeavePresence, []).append(self.on_leave)
        history.on_store.setdefault(ReadPresence, []).append(self.on_read)
        history.on_mailbox_lost.append(self.on_lost)
        history.on_refreshing.append(self.on_refreshing)
        history.on_sent.setdefault(Kick, []).append(self.on_kick)
        history.on_local.setdefault(SaveAttempt, []).append(self.on_attempt)
        history.on_notice.setdefault(StateChanged, []).append(self.on_state)

    # ------------------------------------------------------------ the store

    def on_enter(self, host: Host, request: EnterPresence, answer: Any) -> None:
        """Refused exactly where a live entry has a higher attempt; else above the one that stood, which is told."""
        if type(answer) is not PresenceEntered:
            return
        owner = (request.user_id, request.device_id)
        self._users[request.user_id] = None
        before = self._held.get(owner)
        live = before is not None and before.expires_at > request.now_wall
        barred = live and before is not None and request.attempt < before.attempt
        if answer.refused != barred:
            self._found(host, owner, f"attempt {request.attempt} over {before}: {answer}")
        if answer.refused:
            return
        stood = before.session_epoch if before is not None else -1
        epoch = max(stood + 1, request.now_wall << EPOCH_BITS)
        if answer.session_epoch != epoch:
            self._found(host, owner, f"epoch {answer.session_epoch:#x}, expected {epoch:#x}")
        own = before is None or (before.gateway, before.conn) == (request.gateway, request.conn)
        if answer.replaced != (None if own else before):
            self._found(host, owner, f"replaced {answer.replaced}, there stood {before}")
        if answer.replaced is not None:
            self._replaced[_name(answer.replaced)] = None
        self._entered[host.identity, owner, answer.session_epoch] = request.attempt
        self._held[owner] = PresenceEntry(
            user_id=request.user_id,
            device_id=request.device_id,
            gateway=request.gateway,
            conn=request.conn,
            session_epoch=answer.session_epoch,
            attempt=request.attempt,
            expires_at=request.now_wall + request.ttl_ms,
        )

    def on_refresh(self, host: Host, request: RefreshPresence, answer: Any) -> None:
        """Lost exactly to a later attempt, or to a higher epoch of the same one."""
        if type(answer) is not PresenceRefreshed:
            return
        for index, hold in enumerate(request.holds):
            owner = (hold.user_id, hold.device_id)
            before = self._held.get(owner)
            age = (hold.attempt, hold.session_epoch)
            later = before is not None and (before.attempt, before.session_epoch) > age
            if (index in answer.lost) != later:
                self._found(host, owner, f"refreshed {hold} over {before}: lost {answer.lost}")
            if index in answer.lost:
                continue
            self._users[hold.user_id] = None
            self._held[owner] = PresenceEntry(
                user_id=hold.user_id,
                device_id=hold.device_id,
                gateway=request.gateway,
                conn=hold.conn,
                session_epoch=hold.session_epoch,
                attempt=hold.attempt,
                expires_at=request.now_wall + request.ttl_ms,
            )

    def on_leave(self, host: Host, request: LeavePresence, answer: Any) -> None:
        """A close takes the entry of its own connection and no newer one."""
        if type(answer) is not PresenceLeft:
            return
        owner = (request.user_id, request.device_id)
        before = self._held.get(owner)
        if before is None or before.session_epoch != request.session_epoch:
            return
        del self._held[owner]
        attempt = self._entered.get((host.identity, owner, request.session_epoch), before.attempt)
        if attempt < before.attempt:
            self._found(host, owner, f"the close of attempt {attempt} took the entry {before}")

    def on_read(self, host: Host, request: ReadPresence, answer: Any) -> None:
        """Whoever is live by the asker's clock."""
        if type(answer) is not PresenceRead:
            return
        for (_, user_id), entries in zip(request.users, answer.entries, strict=True):
            live = tuple(
                entry for entry in self._of(user_id) if entry.expires_at > request.now_wall
            )
            if entries != live:
                self._found(host, (user_id, b""), f"{entries} are told, {live} are online")

    def on_lost(self) -> None:
        """Another incarnation: what it has is asked for, nothing is concluded."""
        self._held = {}
        users = tuple((TENANT, user_id) for user_id in self._users)
        read = self.history.peek_mailbox(ReadPresence(op=0, now_wall=0, users=users))
        if isinstance(read, PresenceRead):
            for entries in read.entries:
                self._held.update({(one.user_id, one.device_id): one for one in entries})

    def _of(self, user_id: int) -> list[PresenceEntry]:
        return [entry for (user, _), entry in sorted(self._held.items()) if user == user_id]

    def _found(self, host: Host, owner: Owner, text: str) -> None:
        named = f"user {owner[0]} {owner[1].decode()}"
        self.history.found("presence_entry", host.node.role, f"{named}: {text}")

    # ------------------------------------------------------------ around it

    def on_refreshing(self, host: Host, request: RefreshPresence) -> None:
        """What a zombie had checked before its pause goes out unchecked, and is bounded by its TTL."""
        if host.node.unchecked:
            return
        for hold in request.holds:
            if hold.conn not in host.conns:
                text = f"user {hold.user_id} {hold.device_id.decode()}, connection {hold.conn}"
                self.history.found("refreshed_for_nobody", "gateway", text)

    def on_kick(self, host: Host, effect: Send) -> None:
        """At the address of an entry that was replaced, by its epoch."""
        kick = effect.message
        assert isinstance(kick, Kick)
        name = (kick.user_id, kick.device_id, effect.address, kick.conn, kick.session_epoch)
        if name not in self._replaced:
            self.history.found("kick_of_nobody", "gateway", f"{effect.address}: {kick}")

    def on_attempt(self, device: Device, request: SaveAttempt, answer: Any) -> None:
        """On disk before its AUTH goes out."""
        owner = (device.user_id, device.device_id)
        self._attempts.setdefault(owner, {})[device.name] = request.attempt

    def on_state(self, device: Device, notice: StateChanged) -> None:
        """REPLACED is final until the user acts, so it must be true."""
        if (notice.state, notice.reason) != (ClientState.STOPPED, KickReason.REPLACED):
            return
        known = self._attempts.get((device.user_id, device.device_id), {})
        own = known.get(device.name, 0)
        if not any(attempt >= own for name, attempt in known.items() if name != device.name):
            text = f"{device.name}, attempt {own}: nobody has a later one, of {known}"
            self.history.found("replaced_by_nobody", "gateway", text)

    def finish(self, scene: "Scene") -> None:
        """The store as it stands is what was told all along; and who is online is listed."""
        self._compare()
        for text in unlisted(scene):
            self.history.found("online_unlisted", "gateway", text)

    def _compare(self) -> None:
        """Nothing but these scripts writes entries."""
        told = self._held
        self.on_lost()
        if told != self._held:
            text = f"{list(told.values())} were told, the store has {list(self._held.values())}"
            self.history.found("presence_entry", "gateway", text)


def unlisted(scene: "Scene") -> list[str]:
    """Devices that should be online and have no live entry naming a stream of theirs."""
    store = scene.stores[StoreRole.MAILBOX]
    owed: list[str] = []
    for device in scene.devices.values():
        node = scene.nodes[device.name]
        if not scene.workload.wanted[device.name] or not node.alive:
            continue
        users = ((TENANT, device.user_id),)
        read = store.ask(ReadPresence(op=0, now_wall=0, users=users))
        entries = read.entries[0] if isinstance(read, PresenceRead) else ()
        streams = [
            (end.other.host.node.name, end.other.conn) for end in node.hosts[0].conns.values()
        ]
        named = [
            entry
            for entry in entries
            if entry.device_id == device.device_id and (entry.gateway, entry.conn) in streams
        ]
        if not any(_is_live(scene, entry) for entry in named):
            owed.append(f"{device.name}: streams {streams}, entries {entries}")
    return owed


def _is_live(scene: "Scene", entry: PresenceEntry) -> bool:
    wall = scene.nodes[entry.gateway].wall.read(scene.world.now)
    return entry.expires_at > wall


def _name(entry: PresenceEntry) -> Name:
    return entry.user_id, entry.device_id, entry.gateway, entry.conn, entry.session_epoch
