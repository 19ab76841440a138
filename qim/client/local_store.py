"""The device's own store on SQLite (core/ports/local_store.py): every order one transaction, durable before its answer.

One thread owns the connection and takes orders in the order given; orders that wait together share a commit, which keeps
each of them atomic and durable and costs one fsync. One process owns the file: two that count attempts and orders in it
would replace each other at the server for ever.
"""

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final, assert_never

import msgspec

from qim.client.store_file import LocalStoreUnusable, Owner, locked_file, opened_file
from qim.client.store_rows import StoreRows, decode_message, u64
from qim.core.client.conversation import is_unfilled
from qim.core.ports.completion import Failed, FailReason, Unknown
from qim.core.ports.local_store import (
    Coordinates,
    LoadLocal,
    LocalConversation,
    LocalLoaded,
    LocalMessage,
    LocalSaved,
    LocalState,
    LocalStoreReply,
    LocalStoreRequest,
    MessagesSaved,
    PendingGroupChange,
    PendingMessage,
    PendingOverlay,
    PendingRow,
    ReadAnchors,
    SaveAck,
    SaveAttempt,
    SaveBatch,
    SaveFailed,
    SaveGroupOk,
    SaveHistory,
    SaveNotAfter,
    SavePending,
    SavePush,
    SaveState,
)

_ZERO: Final = b"\0" * 8
_encode: Final = msgspec.msgpack.Encoder().encode
_decode_pending: Final = msgspec.msgpack.Decoder(PendingMessage).decode
_decode_change: Final = msgspec.msgpack.Decoder(PendingGroupChange).decode
_MESSAGE_TAG: Final = b"m"
_CHANGE_TAG: Final = b"g"
_OVERLAY_TAG: Final = b"o"
_decode_overlay: Final = msgspec.msgpack.Decoder(PendingOverlay).decode
_decode_coordinates: Final = msgspec.msgpack.Decoder(Coordinates).decode


class Outgoing(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A row of the device: status 'pending', 'sent' (coordinates, or None for a group change) or 'failed' (ErrorCode)."""

    status: str
    code: int
    coordinates: Coordinates | None


class KnownConversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation's row and what its messages here say; ``filled``: they suffice to count its unread."""

    row: LocalConversation
    preview: LocalMessage | None
    unread: tuple[int, bool]
    filled: bool
    newest_seq: int


class LocalStore:
    """Owns the SQLite file; every method runs on the one thread that the driver gives it."""

    def __init__(self, path: Path, owner: Owner | None = None) -> None:
        """Creates the file and its folder (0700: the rows are private). Raises LocalStoreUnusable and its kinds.

        owner None: whoever's it is.
        """
        self.fault = ""
        """Why the last orders were not carried out, in words; empty once some were."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = locked_file(path)
        except OSError as error:
            raise LocalStoreUnusable(f"{path}: {error.strerror or error}") from None
        try:
            self._connection = opened_file(path, owner)
            self._rows = StoreRows(self._connection)
        except sqlite3.Error as error:
            os.close(self._lock)
            raise LocalStoreUnusable(f"{path}: {error}") from None
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Close the file and give it up to others."""
        self._connection.close()
        os.close(self._lock)

    def execute(
        self, requests: Sequence[LocalStoreRequest]
    ) -> list[LocalStoreReply | Failed | Unknown]:
        """Carry out in order, one commit for all; a failed commit answers Unknown to each."""
        replies: list[LocalStoreReply | Failed | Unknown] = []
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            for request in requests:
                self._connection.execute("SAVEPOINT one")
                try:
                    replies.append(self._one(request))
                except (sqlite3.Error, OverflowError):
                    # OverflowError: an integer that SQLite can't hold; the order is at fault, not its neighbours.
                    self._connection.execute("ROLLBACK TO one")
                    replies.append(Failed(op=request.op, why=FailReason.INVALID))
                self._connection.execute("RELEASE one")
            self._connection.execute("COMMIT")
            self.fault = ""
        except sqlite3.Error as error:
            self._roll_back()
            self.fault = f"local store: {error}"
            return [Unknown(op=request.op) for request in requests]
        except BaseException:
            self._roll_back()
            raise
        return replies

    def untold(self, limit: int) -> list[LocalMessage]:
        """Messages applied and not yet handed to the user, in order of arrival."""
        rows = self._connection.execute(
            "SELECT data FROM message WHERE told=0 ORDER BY arrival LIMIT ?", (limit,)
        ).fetchall()
        return [decode_message(row[0]) for row in rows]

    def mark_told(self, message_ids: Sequence[bytes]) -> None:
        """These were handed to the user. Not fsynced: a power cut shows some of them once more, and loses none."""
        self._connection.execute("PRAGMA synchronous=NORMAL")
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(
                "UPDATE message SET told=1 WHERE message_id=?", [(one,) for one in message_ids]
            )
            self._connection.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        finally:
            self._connection.execute("PRAGMA synchronous=FULL")

    def take_untold(self, limit: int) -> list[LocalMessage]:
        """``untold`` and ``mark_told`` in one."""
        messages = self.untold(limit)
        if messages:
            self.mark_told([message.message_id for message in messages])
        return messages

    def outgoing(self, client_message_id: bytes) -> Outgoing | None:
        """What became of a row, None where there never was one."""
        found = self._connection.execute(
            "SELECT status, code, coordinates FROM outgoing WHERE client_message_id=?",
            (client_message_id,),
        ).fetchone()
        if found is None:
            return None
        status, code, coordinates = found
        told = None if coordinates is None else _decode_coordinates(coordinates)
        return Outgoing(status=status, code=code, coordinates=told)

    def settled_row(self, client_message_id: bytes) -> tuple[PendingRow, Outgoing] | None:
        """A row that is pending no more, and what became of it."""
        found = self._connection.execute(
            "SELECT row FROM outgoing WHERE client_message_id=? AND status!='pending'",
            (client_message_id,),
        ).fetchone()
        told = self.outgoing(client_message_id)
        return None if found is None or told is None else (_decode_row(found[0]), told)

    def pending_count(self) -> int:
        """Rows not settled yet."""
        (count,) = self._connection.execute(
            "SELECT count(*) FROM outgoing WHERE status='pending'"
        ).fetchone()
        return int(count)

    def messages(self, conversation_id: bytes, limit: int) -> list[LocalMessage]:
        """The newest ``limit`` messages of a conversation, ascending by conversation_seq; deleted ones left out."""
        rows = self._connection.execute(
            "SELECT data FROM message WHERE conversation_id=? AND hidden&2=0 ORDER BY seq DESC LIMIT ?",
            (conversation_id, limit),
        ).fetchall()
        return [decode_message(row[0]) for row in reversed(rows)]

    def conversation(self, conversation_id: bytes) -> LocalConversation:
        """What is known of a conversation."""
        return self._rows.conversation(conversation_id)

    def conversations(self, user_id: int, window: int) -> list[KnownConversation]:
        """All, the latest activity first, with unread and preview as of now."""
        return [
            KnownConversation(
                row=row,
                preview=self._rows.preview(row),
                unread=self._rows.unread(row, user_id, window),
                filled=not is_unfilled(row),
                newest_seq=self._rows.newest_seq(row),
            )
            for row in self._rows.conversations()
        ]

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _one(self, request: LocalStoreRequest) -> LocalStoreReply:
        match request:
            case SaveBatch():
                return self._save_batch(request)
            case SavePending():
                return self._save_pending(request)
            case SaveNotAfter():
                return self._save_not_after(request)
            case SaveAck():
                return self._settle(request.op, request.coordinates)
            case SavePush():
                return MessagesSaved(op=request.op, fresh=self._rows.insert(request.messages))
            case SaveHistory() | SaveGroupOk() | SaveFailed():
                return self._save_outcome(request)
            case LoadLocal() | SaveAttempt() | SaveState():
                return self._device(request)
            case ReadAnchors():
                return self._rows.anchors(request)
            case _:
                return self._rows.session(request)

    def _device(self, request: LoadLocal | SaveAttempt | SaveState) -> LocalStoreReply:
        run = self._connection.execute
        match request:
            case LoadLocal():
                return self._load(request.op)
            case SaveAttempt():
                run("UPDATE device SET attempt=max(attempt,?)", (request.attempt,))
            case SaveState():
                target = request.rebuild_target.to_bytes(8, "big")
                run("UPDATE device SET state=?, rebuild_target=?", (request.state, target))
                if request.drop_cursor:
                    run("UPDATE device SET cursor=NULL, covered_through=?", (_ZERO,))
        return LocalSaved(op=request.op)

    def _save_outcome(self, request: SaveHistory | SaveGroupOk | SaveFailed) -> LocalStoreReply:
        match request:
            case SaveHistory():
                fresh = self._rows.insert(request.messages)
                self._rows.cover(request)
                for coordinates in request.settled:
                    self._settle(request.op, coordinates)
                return MessagesSaved(op=request.op, fresh=fresh)
            case SaveGroupOk():
                self._status(request.client_message_id, "sent", 0)
            case SaveFailed():
                self._status(request.client_message_id, "failed", request.code)
        return LocalSaved(op=request.op)

    def _load(self, op: int) -> LocalLoaded:
        attempt, state, cursor, covered, target, revision = self._connection.execute(
            "SELECT attempt, state, cursor, covered_through, rebuild_target, state_revision FROM device"
        ).fetchone()
        rows = self._connection.execute(
            "SELECT row FROM outgoing WHERE status='pending' ORDER BY place"
        )
        (last,) = self._connection.execute("SELECT coalesce(max(place),0) FROM outgoing").fetchone()
        return LocalLoaded(
            op=op,
            attempt=attempt,
            state=int(LocalState(state)),
            cursor=cursor,
            covered_through=int.from_bytes(covered, "big"),
            rebuild_target=int.from_bytes(target, "big"),
            order_last=last,
            pending=tuple(_decode_row(row[0]) for row in rows),
            state_revision=int.from_bytes(revision, "big"),
            anchored=self._rows.is_anchored(),
        )

    def _save_pending(self, request: SavePending) -> LocalSaved:
        row = request.row
        self._connection.execute(
            "INSERT OR IGNORE INTO outgoing VALUES (?,?,'pending',0,?,NULL)",
            (row.client_message_id, row.order, _encode_row(row)),
        )
        return LocalSaved(op=request.op)

    def _save_not_after(self, request: SaveNotAfter) -> LocalSaved:
        for client_message_id, not_after in request.rows:
            found = self._connection.execute(
                "SELECT row FROM outgoing WHERE client_message_id=?", (client_message_id,)
            ).fetchone()
            if found is None:
                continue
            row = msgspec.structs.replace(_decode_row(found[0]), not_after=not_after)
            self._connection.execute(
                "UPDATE outgoing SET row=? WHERE client_message_id=?",
                (_encode_row(row), client_message_id),
            )
        return LocalSaved(op=request.op)

    def _save_batch(self, request: SaveBatch) -> MessagesSaved:
        fresh = self._rows.insert(request.messages, contiguous=True, anchors=request.moves_anchors)
        self._connection.execute(
            "UPDATE device SET cursor=?, covered_through=?",
            (request.cursor, u64(request.covered_through)),
        )
        for coordinates in request.settled:
            self._settle(request.op, coordinates)
        return MessagesSaved(
            op=request.op,
            fresh=fresh,
            blank=self._rows.left_blank(request.messages),
            unfilled=self._rows.left_unfilled(request.messages),
        )

    def _settle(self, op: int, coordinates: Coordinates) -> LocalSaved:
        self._connection.execute(
            "UPDATE outgoing SET status='sent', coordinates=? WHERE client_message_id=?",
            (_encode(coordinates), coordinates.client_message_id),
        )
        found = self._connection.execute(
            "SELECT row FROM outgoing WHERE client_message_id=?", (coordinates.client_message_id,)
        ).fetchone()
        if found is not None and found[0][:1] == _OVERLAY_TAG:
            self._rows.lay_own(_decode_overlay(found[0][1:]))
        return LocalSaved(op=op)

    def _status(self, client_message_id: bytes, status: str, code: int) -> None:
        self._connection.execute(
            "UPDATE outgoing SET status=?, code=? WHERE client_message_id=? AND status='pending'",
            (status, code, client_message_id),
        )


def _encode_row(row: PendingRow) -> bytes:
    """One tag byte, so that a row says what it is, then the row."""
    match row:
        case PendingMessage():
            tag = _MESSAGE_TAG
        case PendingGroupChange():
            tag = _CHANGE_TAG
        case PendingOverlay():
            tag = _OVERLAY_TAG
        case _:
            assert_never(row)
    return tag + _encode(row)


def _decode_row(data: bytes) -> PendingRow:
    match data[:1]:
        case b"m":
            return _decode_pending(data[1:])
        case b"o":
            return _decode_overlay(data[1:])
        case _:
            return _decode_change(data[1:])
