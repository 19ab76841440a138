"""A device's messages, overlays and conversations in plain dicts: the same rules as the SQLite store (core/client/conversation.py)."""

from bisect import insort
from collections.abc import Iterable
from typing import assert_never

from msgspec.structs import replace

from qim.core.client import conversation as rules
from qim.core.client.conversation import CountedRow
from qim.core.contract.entities import MessageKind
from qim.core.contract.sequences import U64_MAX
from qim.core.ports.local_sessions import (
    LocalSessionReply,
    LocalSessionRequest,
    ReadUnfilled,
    ReadUnsent,
    SaveRead,
    SaveSessions,
    SaveStates,
    SaveStateSent,
    SaveUserState,
    SessionsSaved,
    StateSaved,
    UnfilledRead,
    UnsentRead,
)
from qim.core.ports.local_store import (
    AnchorsRead,
    LocalConversation,
    LocalMessage,
    PendingOverlay,
    ReadAnchors,
    SaveHistory,
)


class LocalRows:
    """``hidden``: bits of a message that may not be shown; ``overlays``: laid on (conversation, seq), met or not."""

    def __init__(self) -> None:
        self.messages: dict[bytes, LocalMessage] = {}
        self.hidden: dict[bytes, int] = {}
        self.overlays: dict[tuple[bytes, int], int] = {}
        self.conversations: dict[bytes, LocalConversation] = {}
        self.state_revision = 0
        self._in_order: dict[bytes, list[tuple[int, bytes]]] = {}

    # ------------------------------------------------------------ messages

    def insert(
        self,
        messages: tuple[LocalMessage, ...],
        *,
        contiguous: bool = False,
        anchors: bool = False,
    ) -> tuple[int, ...]:
        """Indexes of those that did not stand before."""
        fresh: list[int] = []
        by_conversation: dict[bytes, list[LocalMessage]] = {}
        for index, message in enumerate(messages):
            by_conversation.setdefault(message.conversation_id, []).append(message)
            if message.message_id in self.messages:
                continue
            fresh.append(index)
            at = (message.conversation_id, message.conversation_seq)
            hidden = self.overlays.get(at, 0)
            gone = hidden & rules.RECALLED
            self.messages[message.message_id] = rules.without_body(message) if gone else message
            self.hidden[message.message_id] = hidden
            order = self._in_order.setdefault(message.conversation_id, [])
            insort(order, (message.conversation_seq, message.message_id))
        for message in messages:
            overlay = rules.overlay_of(message)
            if overlay is not None:
                self.lay(message.conversation_id, *overlay)
        for conversation_id, new in by_conversation.items():
            row = self.conversation(conversation_id)
            self.put(rules.met(row, new, contiguous=contiguous, anchors=anchors))
        return tuple(fresh)

    def left_blank(self, messages: tuple[LocalMessage, ...]) -> bool:
        """Did an overlay among these leave a conversation with nothing to show."""
        laid = (one for one in messages if rules.overlay_of(one) is not None)
        return any(self.preview(one.conversation_id) is None for one in laid)

    def left_unfilled(self, messages: tuple[LocalMessage, ...]) -> bool:
        """Did a batch of these begin a conversation whose unread can't be counted yet."""
        met = dict.fromkeys(one.conversation_id for one in messages)
        return any(rules.begins_unfilled(self.conversation(one), messages) for one in met)

    def lay(self, conversation_id: bytes, seq: int, bit: int) -> None:
        """An overlay, whether its message is here or not."""
        if bit != rules.GONE:
            at = (conversation_id, seq)
            self.overlays[at] = self.overlays.get(at, 0) | bit
        for found, message_id in self._in_order.get(conversation_id, ()):
            if found == seq and not self.hidden[message_id] & bit:
                self.hidden[message_id] |= bit
                if bit == rules.RECALLED:
                    message = self.messages[message_id]
                    self.messages[message_id] = rules.without_body(message)

    def lay_own(self, row: PendingOverlay) -> None:
        """An own one was acked."""
        bit = rules.RECALLED if row.kind == MessageKind.RECALL else rules.DELETED
        self.lay(row.conversation_id, row.target_seq, bit)

    def cover(self, effect: SaveHistory) -> None:
        """What a page of history says about its range, and the anchor."""
        row = self.conversation(effect.conversation_id)
        row = rules.covered(row, effect.covers_from, effect.covers_to, U64_MAX)
        self.put(replace(row, anchor=max(row.anchor, effect.anchor)))
        shown = dict.fromkeys(message.message_id for message in effect.messages)
        for seq, message_id in self._in_order.get(effect.conversation_id, ()):
            old = self.messages[message_id].sent_at < effect.gone_before
            inside = effect.covers_from < seq <= effect.covers_to
            if old and inside and not self.hidden[message_id] and message_id not in shown:
                self.hidden[message_id] |= rules.GONE

    # ------------------------------------------------------------ conversations

    def conversation(self, conversation_id: bytes) -> LocalConversation:
        """What is known of it."""
        found = self.conversations.get(conversation_id)
        return found or LocalConversation(conversation_id=conversation_id)

    def put(self, row: LocalConversation) -> None:
        """The row as it is now."""
        self.conversations[row.conversation_id] = row

    def unread(self, conversation_id: bytes, user_id: int, window: int) -> tuple[int, bool]:
        """(unread, exact) of what is here."""
        row = self.conversation(conversation_id)
        counted: Iterable[CountedRow] = (
            CountedRow(self.messages[one].sender_id, self.messages[one].kind, self.hidden[one])
            for seq, one in self._in_order.get(conversation_id, ())
            if seq > row.read_seq and not self.hidden[one] & rules.GONE
        )
        return rules.unread_of(counted, user_id, window)

    def preview(self, conversation_id: bytes) -> LocalMessage | None:
        """The newest message that may be shown, here or in the list."""
        head = self.conversation(conversation_id).head
        if head is not None:
            hidden = self.overlays.get((conversation_id, head.conversation_seq), 0)
            head = None if hidden | self.hidden.get(head.message_id, 0) else head
        for seq, one in reversed(self._in_order.get(conversation_id, ())):
            if rules.is_preview(self.messages[one].kind, self.hidden[one]):
                return head if head and head.conversation_seq > seq else self.messages[one]
        return head

    # ------------------------------------------------------------ orders

    def is_anchored(self) -> bool:
        """Does any conversation have an anchor."""
        return any(row.anchor for row in self.conversations.values())

    def anchors(self, effect: ReadAnchors) -> AnchorsRead:
        """A page of all conversations."""
        rows, more = _page(list(self.conversations.values()), effect.after, effect.limit)
        anchors = tuple((row.conversation_id, row.anchor) for row in rows)
        return AnchorsRead(op=effect.op, anchors=anchors, more=more)

    def session(self, effect: LocalSessionRequest) -> LocalSessionReply:
        """An order of ports/local_sessions.py."""
        match effect:
            case SaveSessions():
                self._list(effect)
            case SaveStates():
                for state in effect.states:
                    self.put(rules.synced(self.conversation(state.conversation_id), state))
                self.state_revision = max(self.state_revision, effect.revision)
            case SaveStateSent():
                row = self.conversation(effect.conversation_id)
                self.put(rules.sent(row, effect.read_seq, effect.version))
            case SaveRead() | SaveUserState():
                return self._own_change(effect)
            case ReadUnsent() | ReadUnfilled():
                return self._read(effect)
            case _:
                assert_never(effect)
        return SessionsSaved(op=effect.op)

    def _own_change(self, effect: SaveRead | SaveUserState) -> StateSaved:
        row = self.conversation(effect.conversation_id)
        if isinstance(effect, SaveRead):
            self.put(rules.marked(row, effect.read_seq))
            return StateSaved(op=effect.op, version=0)
        row = rules.changed(row, effect.version, effect.device_id, effect.flags, effect.value)
        self.put(row)
        return StateSaved(op=effect.op, version=row.version)

    def _list(self, effect: SaveSessions) -> None:
        for entry in effect.conversations:
            row = rules.listed(self.conversation(entry.conversation_id), entry)
            self.put(row)
            counted = self.unread(entry.conversation_id, effect.user_id, effect.window)
            if rules.doubted(row, entry, counted):
                self.put(replace(row, doubtful=True))

    def _read(self, effect: ReadUnsent | ReadUnfilled) -> UnsentRead | UnfilledRead:
        if isinstance(effect, ReadUnfilled):
            wanted = [row for row in self.conversations.values() if rules.is_unfilled(row)]
            rows, more = _page(wanted, effect.after, effect.limit)
            found = tuple((row.conversation_id, row.read_seq) for row in rows)
            return UnfilledRead(op=effect.op, rows=found, more=more)
        wanted = [row for row in self.conversations.values() if rules.unsent_of(row)]
        rows, more = _page(wanted, effect.after, effect.limit)
        unsent = tuple(one for one in map(rules.unsent_of, rows) if one is not None)
        return UnsentRead(op=effect.op, rows=unsent, more=more)


def _page(
    rows: list[LocalConversation], after: bytes, limit: int
) -> tuple[list[LocalConversation], bool]:
    rest = [row for row in rows if row.conversation_id > after]
    rest.sort(key=lambda row: row.conversation_id)
    return rest[:limit], len(rest) > limit
