"""Session lists, unread, previews, visibility, history and mailboxes equal the model computed from the logs, for every user
(simulator.md); what is asked after a recall never has the recalled body."""

from typing import TYPE_CHECKING

from qim.core.contract.cursor import decode_cursor
from qim.core.contract.entities import EMPTY_ID, MessageKind, decode_stored_record
from qim.core.contract.errors import ProtocolError
from qim.core.contract.kinds import StateFlag, Tombstone
from qim.core.contract.logvalue import StateLogged, read_user_state
from qim.core.contract.rpc import PulledEntry
from qim.core.contract.rpc_session import SessionRow
from qim.core.ports.log import Topic
from qim.sim.cast import TENANT
from qim.sim.history import History
from qim.sim.localstore import Device
from qim.sim.secret import SECRET
from qim.sim.told import Told
from qim.sim.visible import WINDOW, ExpectedConversation, Visible

if TYPE_CHECKING:
    from qim.sim.scene import Scene

Marks = dict[tuple[int, bytes], int]
States = dict[tuple[int, bytes], tuple[int, bytes, int, bytes]]


class Sessions:
    """Judges at the end, what every user was told."""

    def attach(self, history: History) -> None:
        self.history = history

    def finish(self, scene: "Scene") -> None:
        """Compare by equality."""
        visible = Visible(self.history.oracle)
        for user, told in scene.told.items():
            number = self.history.oracle.place(user)[0]
            marks, states = _user_states(scene, number, told.states_end)
            for text in told.unanswered:
                self.history.found("unanswered", "session", text)
            if not told.unanswered:
                self._list(user, told, visible, marks, states)
                self._through(user, told)
                self._histories(user, told, visible)
                self._mailbox(user, told, visible)
                for device in scene.devices.values():
                    if device.user_id == user and scene.workload.wanted[device.name]:
                        self._device(device, told, visible)

    def _list(self, user: int, told: Told, visible: Visible, marks: Marks, states: States) -> None:
        found = self.history.found
        mine = {key[1]: mark for key, mark in marks.items() if key[0] == user}
        expected = visible.listed(user, mine, told.listed)
        order = [one.conversation_id for one in expected]
        shown = [row for row in told.rows if row.last_activity_id != EMPTY_ID]
        if [row.conversation_id for row in shown] != order:
            text = f"user {user}: {[r.conversation_id.hex()[:6] for r in shown]}, expected {[c.hex()[:6] for c in order]}"
            found("session_order", "session", text)
            return
        counted = sum(r.unread for r in told.rows if not r.state_flags & StateFlag.MUTED)
        if told.badge != counted:
            found("badge", "session", f"user {user}: {told.badge}, the rows say {counted}")
        for row, one in zip(shown, expected, strict=True):
            name = f"user {user}, conversation {one.conversation_id.hex()[:8]}"
            if not visible.unsure(one.conversation_id, told.listed[one.conversation_id]):
                self._summary(name, row, one)
            if row.read_seq != mine.get(one.conversation_id, 0):
                found("read_mark", "session", f"{name}: read {row.read_seq}")
            state = states.get((user, one.conversation_id), (0, b"", 0, b""))
            if (row.state_version, row.state_flags, row.state_value) != (state[0], *state[2:]):
                found("user_state", "session", f"{name}: version {row.state_version}")

    def _summary(self, name: str, row: SessionRow, one: ExpectedConversation) -> None:
        found = self.history.found
        if row.last_activity_id != one.last_activity_id:
            found("session_order", "session", f"{name}: activity {row.last_activity_id.hex()}")
        if (row.unread, row.unread_exact) != (one.unread, one.unread_exact):
            text = f"{name}: unread {row.unread} {row.unread_exact}, expected {one.unread}"
            found("unread", "session", text)
        head = decode_stored_record(row.head).conversation_seq if row.head else 0
        if head not in one.heads:
            found("preview", "session", f"{name}: head {head}, expected one of {one.heads}")

    def _through(self, user: int, told: Told) -> None:
        """projected_through is never more than the store has, nor less than it had when the question came."""
        for before, said, after in told.projections:
            if not before <= said <= after:
                text = f"user {user}: {said:#x}, the store had {before:#x} to {after:#x}"
                self.history.found("projected_through", "session", text)

    def _histories(self, user: int, told: Told, visible: Visible) -> None:
        for conversation_id in visible.conversations(user):
            clock = told.clocks[conversation_id]
            if visible.unsure(conversation_id, clock):
                continue
            expected = visible.rows(user, conversation_id, clock)
            seqs = [row.seq for row in expected]
            name = f"user {user}, conversation {conversation_id.hex()[:8]}"
            for way, rows in (("newer", told.newer), ("older", told.older)):
                got = [seq for seq, _ in rows.get(conversation_id, [])]
                if got != seqs:
                    text = f"{name}, {way}: {got}, expected {seqs}"
                    self.history.found("history", "writer", text)
            recalled = sorted(told.recalled.get(conversation_id, {}))
            if recalled != [row.seq for row in expected if row.recalled]:
                self.history.found("recalled", "writer", f"{name}: {recalled}")
            for row, (_, stored) in zip(
                expected, told.newer.get(conversation_id, []), strict=False
            ):
                if decode_stored_record(stored).message_id != row.record.message_id:
                    self.history.found("history", "writer", f"{name}: seq {row.seq} is another's")

    def _mailbox(self, user: int, told: Told, visible: Visible) -> None:
        """Every record of the user's frozen audiences once, its body iff nobody took it back."""
        messages = self.history.oracle.messages
        before = self._before(user, told.first_cursor)
        owed = {
            name: None
            for name, message in messages.items()
            if user in message.audience and name not in before
        }
        got = [entry.message_id for entry in told.mailbox]
        if len(got) != len(owed) or any(name not in owed for name in got):
            text = f"user {user}: {len(got)} entries, {len(owed)} owed"
            self.history.found("mailbox", "mailbox", text)
            return
        for entry in told.mailbox:
            self._entry(user, entry, visible)

    def _before(self, user: int, cursor: bytes) -> dict[bytes, None]:
        """What was dispatched to the user's shard before a new device's first cursor: read-back or trim has passed it."""
        oracle = self.history.oracle
        try:
            begins = decode_cursor(cursor, SECRET).seq
        except ProtocolError:
            return {}  # real servers sign with a secret of their own, and keep for days
        return {
            message_id: None
            for message_id, message in oracle.messages.items()
            if (entry := oracle.entry_of(message, user)) is not None and entry.seq <= begins
        }

    def _device(self, device: Device, told: Told, visible: Visible) -> None:
        """Where a device thinks that it knows all beyond the mark, it counts what the list counts (pipeline.md §6).

        Who has left isn't told of later recalls, nor who was away of those meanwhile: the next login's list tells; and what
        retention took a device learns with the next page.
        """
        for row in told.rows:
            name = row.conversation_id
            local = device.rows.conversation(name)
            knows = local.floor is not None and local.floor <= local.read_seq and not local.doubtful
            if not knows or local.read_seq != row.read_seq:
                continue
            if visible.has_left(device.user_id, name) or visible.expires(name):
                continue
            if visible.recalled_unheard(device.user_id, name):
                continue
            self.history.count("local_unread_judged")
            counted = device.rows.unread(name, device.user_id, WINDOW)
            if counted != (row.unread, row.unread_exact):
                text = f"{device.name}, {name.hex()[:8]}: {counted}, the list says {row.unread}"
                self.history.found("local_unread", "client", text)

    def _entry(self, user: int, entry: PulledEntry, visible: Visible) -> None:
        record = self.history.oracle.messages[entry.message_id].record
        recalled = visible.recalled(record) and record.kind != MessageKind.CONTROL
        if recalled and entry.body is not None:
            text = f"user {user}: the mailbox still gives seq {record.conversation_seq}"
            self.history.found("recalled_body", "mailbox", text, entry.message_id)
        elif not recalled and entry.tombstone == Tombstone.RECALLED:
            text = f"user {user}: seq {record.conversation_seq} was never recalled"
            self.history.found("recalled_body", "mailbox", text, entry.message_id)
        elif entry.body is not None and entry.body != record.body:
            self.history.found("body_altered", "mailbox", f"user {user}", entry.message_id)


def _user_states(scene: "Scene", number: int, count: int) -> tuple[Marks, States]:
    """The winners of the user-state log: greatest mark, greatest (version, device)."""
    marks: Marks = {}
    states: States = {}
    for stored in scene.log.partitions[Topic.USER_STATE, number].records[:count]:
        read = read_user_state(stored.value)
        if not isinstance(read, StateLogged):
            continue
        record = read.record
        assert record.tenant_id == TENANT
        key = (record.user_id, record.conversation_id)
        marks[key] = max(marks.get(key, 0), record.read_seq)
        state = (record.version, record.device_id, record.flags, record.value)
        states[key] = max(states.get(key, (0, b"", 0, b"")), state)
    return marks, states
