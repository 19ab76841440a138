"""Messages, overlays and conversations of the device's store: what an order does to the rows (core/client/conversation.py).

Runs inside the transaction that local_store.py opened; a u64 stands as 8 bytes big-endian, so that SQLite orders it.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final, assert_never

import msgspec

from qim.core.client import conversation as rules
from qim.core.client.conversation import CountedRow
from qim.core.contract.entities import MessageKind
from qim.core.contract.sequences import U64_MAX
from qim.core.ports.local_sessions import (
    ListedConversation,
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

_encode: Final = msgspec.msgpack.Encoder().encode
decode_message: Final = msgspec.msgpack.Decoder(LocalMessage).decode
decode_conversation: Final = msgspec.msgpack.Decoder(LocalConversation).decode


def u64(number: int) -> bytes:
    """As SQLite orders it."""
    return number.to_bytes(8, "big")


class StoreRows:
    """One a store; every method belongs to its thread."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._run = connection.execute
        (last,) = self._run("SELECT coalesce(max(arrival),0) FROM message").fetchone()
        self._arrival: int = last + 1

    # ---------------------------------------------------------------- messages

    def insert(
        self, messages: Sequence[LocalMessage], *, contiguous: bool = False, anchors: bool = False
    ) -> tuple[int, ...]:
        """Indexes of those that did not stand before; overlays among them, or waiting for them, are laid."""
        fresh: list[int] = []
        by_conversation: dict[bytes, list[LocalMessage]] = {}
        for index, message in enumerate(messages):
            if self._insert_one(message):
                fresh.append(index)
            by_conversation.setdefault(message.conversation_id, []).append(message)
        for message in messages:
            overlay = rules.overlay_of(message)
            if overlay is not None:
                self.lay(message.conversation_id, *overlay)
        for conversation_id, new in by_conversation.items():
            row = self.conversation(conversation_id)
            self._put(rules.met(row, new, contiguous=contiguous, anchors=anchors), row)
        return tuple(fresh)

    def _insert_one(self, message: LocalMessage) -> bool:
        at = (message.conversation_id, u64(message.conversation_seq))
        found = self._run(
            "SELECT bits FROM overlay WHERE conversation_id=? AND seq=?", at
        ).fetchone()
        hidden = found[0] if found else 0
        kept = rules.without_body(message) if hidden & rules.RECALLED else message
        inserted = self._run(
            "INSERT OR IGNORE INTO message VALUES (?,?,?,?,?,?,?,?,?,?)",
            (
                message.message_id,
                *at,
                u64(message.sender_id),
                self._arrival,
                int(bool(hidden & rules.DELETED)),
                _encode(kept),
                message.kind,
                hidden,
                u64(message.sent_at),
            ),
        )
        if inserted.rowcount:
            self._arrival += 1
        return bool(inserted.rowcount)

    def left_blank(self, messages: Sequence[LocalMessage]) -> bool:
        """Did an overlay among these leave a conversation with nothing to show."""
        laid = (one for one in messages if rules.overlay_of(one) is not None)
        return any(self.preview(self.conversation(one.conversation_id)) is None for one in laid)

    def left_unfilled(self, messages: Sequence[LocalMessage]) -> bool:
        """Did a batch of these begin a conversation whose unread can't be counted yet."""
        met = dict.fromkeys(one.conversation_id for one in messages)
        return any(rules.begins_unfilled(self.conversation(one), messages) for one in met)

    def lay(self, conversation_id: bytes, seq: int, bit: int) -> None:
        """An overlay on this seq, whether its message is here or not."""
        at = (conversation_id, u64(seq))
        if bit != rules.GONE:
            self._run(
                "INSERT INTO overlay VALUES (?,?,?) ON CONFLICT DO UPDATE SET bits=bits|excluded.bits",
                (*at, bit),
            )
        rows = self._run(
            "SELECT message_id, data FROM message WHERE conversation_id=? AND seq=? AND hidden&?=0",
            (*at, bit),
        ).fetchall()
        for message_id, data in rows:
            if bit == rules.RECALLED:
                data = _encode(rules.without_body(decode_message(data)))
            told = int(bit == rules.DELETED)
            self._run(
                "UPDATE message SET data=?, hidden=hidden|?, told=max(told,?) WHERE message_id=?",
                (data, bit, told, message_id),
            )

    def lay_own(self, row: PendingOverlay) -> None:
        """An own RECALL or DELETE_FOR_ME was acked."""
        bit = rules.RECALLED if row.kind == MessageKind.RECALL else rules.DELETED
        self.lay(row.conversation_id, row.target_seq, bit)

    def cover(self, request: SaveHistory) -> None:
        """What a page of history says about its range, and the anchor."""
        row = self.conversation(request.conversation_id)
        new = rules.covered(row, request.covers_from, request.covers_to, U64_MAX)
        if request.anchor > new.anchor:
            new = msgspec.structs.replace(new, anchor=request.anchor)
        self._put(new, row)
        if not request.gone_before:
            return
        shown = {message.message_id for message in request.messages}
        held = self._run(
            "SELECT message_id FROM message WHERE conversation_id=? AND seq>? AND seq<=? AND sent_at<? AND hidden=0",
            (
                request.conversation_id,
                u64(request.covers_from),
                u64(request.covers_to),
                u64(request.gone_before),
            ),
        ).fetchall()
        for (message_id,) in held:
            if message_id not in shown:
                self._run(
                    "UPDATE message SET hidden=hidden|? WHERE message_id=?",
                    (rules.GONE, message_id),
                )

    # ---------------------------------------------------------------- conversations

    def conversation(self, conversation_id: bytes) -> LocalConversation:
        """What is known of it; nothing, where it was never met."""
        found = self._run(
            "SELECT data FROM conversation WHERE conversation_id=?", (conversation_id,)
        ).fetchone()
        if found is None:
            return LocalConversation(conversation_id=conversation_id)
        return decode_conversation(found[0])

    def conversations(self) -> list[LocalConversation]:
        """All, the latest activity first."""
        rows = self._run("SELECT data FROM conversation ORDER BY activity DESC, conversation_id")
        return [decode_conversation(row[0]) for row in rows.fetchall()]

    def unread(self, row: LocalConversation, user_id: int, window: int) -> tuple[int, bool]:
        """(unread, exact) of what is here."""
        found = self._run(
            "SELECT sender_id, kind, hidden FROM message WHERE conversation_id=? AND seq>? "
            f"AND hidden&{rules.GONE}=0 ORDER BY seq LIMIT ?",
            (row.conversation_id, u64(row.read_seq), window + 1),
        )
        counted = (
            CountedRow(int.from_bytes(sender, "big"), kind, hidden)
            for sender, kind, hidden in found
        )
        return rules.unread_of(counted, user_id, window)

    def preview(self, row: LocalConversation) -> LocalMessage | None:
        """The newest message that may be shown, here or in the list; an overlay laid here takes the list's too."""
        found = self._run(
            "SELECT data FROM message WHERE conversation_id=? AND hidden=0 AND kind NOT IN (?,?) "
            "ORDER BY seq DESC LIMIT 1",
            (row.conversation_id, MessageKind.RECALL, MessageKind.DELETE_FOR_ME),
        ).fetchone()
        here = decode_message(found[0]) if found else None
        head = row.head
        if head is None or (here is not None and here.conversation_seq >= head.conversation_seq):
            return here
        at = (head.conversation_id, u64(head.conversation_seq))
        gone = self._run(
            "SELECT 1 FROM overlay WHERE conversation_id=? AND seq=? UNION ALL "
            "SELECT 1 FROM message WHERE conversation_id=? AND seq=? AND hidden>0",
            (*at, *at),
        ).fetchone()
        return here if gone else head

    def newest_seq(self, row: LocalConversation) -> int:
        """The greatest conversation_seq known."""
        (seq,) = self._run(
            "SELECT max(seq) FROM message WHERE conversation_id=?", (row.conversation_id,)
        ).fetchone()
        here = int.from_bytes(seq, "big") if seq else 0
        return max(here, row.head.conversation_seq if row.head else 0)

    def _put(self, row: LocalConversation, before: LocalConversation | None = None) -> None:
        if row == before and self._stands(row.conversation_id):
            return
        self._run(
            "INSERT INTO conversation VALUES (?,?,?,?,?) ON CONFLICT DO UPDATE SET "
            "activity=excluded.activity, unsent=excluded.unsent, unfilled=excluded.unfilled, data=excluded.data",
            conversation_values(row),
        )

    def _stands(self, conversation_id: bytes) -> bool:
        found = self._run("SELECT 1 FROM conversation WHERE conversation_id=?", (conversation_id,))
        return found.fetchone() is not None

    # ---------------------------------------------------------------- orders

    def is_anchored(self) -> bool:
        """Does any conversation have an anchor."""
        rows = self._run("SELECT data FROM conversation")
        return any(decode_conversation(row[0]).anchor for row in rows)

    def anchors(self, request: ReadAnchors) -> AnchorsRead:
        """A page of all conversations."""
        rows, more = self._page("", request.after, request.limit)
        anchors = tuple((row.conversation_id, row.anchor) for row in rows)
        return AnchorsRead(op=request.op, anchors=anchors, more=more)

    def session(self, request: LocalSessionRequest) -> LocalSessionReply:
        """An order of ports/local_sessions.py."""
        match request:
            case SaveSessions():
                for entry in request.conversations:
                    self._list(request, entry)
            case SaveStates():
                for state in request.states:
                    self._put(rules.synced(self.conversation(state.conversation_id), state))
                self._run(
                    "UPDATE device SET state_revision=max(state_revision,?)",
                    (u64(request.revision),),
                )
            case SaveStateSent():
                row = self.conversation(request.conversation_id)
                self._put(rules.sent(row, request.read_seq, request.version))
            case SaveRead() | SaveUserState():
                return self._own_change(request)
            case ReadUnsent():
                rows, more = self._page("AND unsent=1", request.after, request.limit)
                unsent = tuple(one for one in map(rules.unsent_of, rows) if one is not None)
                return UnsentRead(op=request.op, rows=unsent, more=more)
            case ReadUnfilled():
                rows, more = self._page("AND unfilled=1", request.after, request.limit)
                found = tuple((row.conversation_id, row.read_seq) for row in rows)
                return UnfilledRead(op=request.op, rows=found, more=more)
            case _:
                assert_never(request)
        return SessionsSaved(op=request.op)

    def _own_change(self, request: SaveRead | SaveUserState) -> StateSaved:
        row = self.conversation(request.conversation_id)
        if isinstance(request, SaveRead):
            self._put(rules.marked(row, request.read_seq))
            return StateSaved(op=request.op, version=0)
        new = rules.changed(row, request.version, request.device_id, request.flags, request.value)
        self._put(new)
        return StateSaved(op=request.op, version=new.version)

    def _list(self, request: SaveSessions, entry: ListedConversation) -> None:
        row = rules.listed(self.conversation(entry.conversation_id), entry)
        if rules.doubted(row, entry, self.unread(row, request.user_id, request.window)):
            row = msgspec.structs.replace(row, doubtful=True)
        self._put(row)

    def _page(self, which: str, after: bytes, limit: int) -> tuple[list[LocalConversation], bool]:
        rows = self._run(
            f"SELECT data FROM conversation WHERE conversation_id>? {which} ORDER BY conversation_id LIMIT ?",
            (after, limit + 1),
        ).fetchall()
        return [decode_conversation(row[0]) for row in rows[:limit]], len(rows) > limit


def conversation_values(row: LocalConversation) -> tuple[bytes, bytes, int, int, bytes]:
    """A row of the table."""
    return (
        row.conversation_id,
        row.last_activity_id,
        int(rules.unsent_of(row) is not None),
        int(rules.is_unfilled(row)),
        _encode(row),
    )


def conversation_of(
    conversation_id: bytes, anchor: int, messages: Iterable[LocalMessage]
) -> LocalConversation:
    """The row of a conversation of which an older schema kept only the anchor."""
    row = LocalConversation(conversation_id=conversation_id, anchor=anchor)
    return rules.met(row, messages, contiguous=False, anchors=False)
