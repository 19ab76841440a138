"""Files of an older schema are upgraded with all they hold, or stay as they were."""

import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest

from qim.client import store_upgrade
from qim.client.local_store import LocalStore
from qim.client.store_file import SCHEMA_VERSION
from qim.core.contract.kinds import Tombstone
from qim.core.ports.local_store import (
    LoadLocal,
    LocalMessage,
    ReadAnchors,
    SavePush,
)
from tests.client.local_rows import pending
from tests.client.sessions_said import CHATS, USER, WINDOW, run, said


def old_file(path: Path) -> tuple[LocalMessage, ...]:
    """A device of schema 1 with two conversations, one message expired, one pending send."""
    kept = (said(1), said(2, tombstone=Tombstone.EXPIRED, body=None), said(3, chat=2))
    with sqlite3.connect(path) as connection:
        connection.executescript((Path(__file__).parent / "schema_1.sql").read_text())
        for place, one in enumerate(kept):
            at = (one.message_id, one.conversation_id, one.conversation_seq.to_bytes(8, "big"))
            data = msgspec.msgpack.encode(one)
            connection.execute(
                "INSERT INTO message VALUES (?,?,?,?,?,0,?)",
                (*at, one.sender_id.to_bytes(8, "big"), place + 1, data),
            )
        for chat, anchor in ((CHATS[0], 2), (CHATS[1], 3)):
            connection.execute(
                "INSERT INTO conversation VALUES (?,?)", (chat, anchor.to_bytes(8, "big"))
            )
        row = pending(1)
        connection.execute(
            "INSERT INTO outgoing VALUES (?,1,'pending',0,?,NULL)",
            (row.client_message_id, b"m" + msgspec.msgpack.encode(row)),
        )
        connection.execute(
            "UPDATE device SET attempt=9, cursor=x'aa', covered_through=?",
            ((7).to_bytes(8, "big"),),
        )
    connection.close()
    return kept


def test_an_old_file_is_upgraded_with_all_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "device.db"
    kept = old_file(path)
    store = LocalStore(path)
    loaded = run(store, LoadLocal(op=1))
    assert (loaded.attempt, loaded.cursor, loaded.covered_through) == (9, b"\xaa", 7)
    assert loaded.pending == (pending(1),)
    assert run(store, ReadAnchors(op=1, after=b"", limit=9)).anchors == (
        (CHATS[0], 2),
        (CHATS[1], 3),
    )
    assert [one.message_id for one in store.untold(9)] == [one.message_id for one in kept]
    known = {one.row.conversation_id: one for one in store.conversations(USER, WINDOW)}
    assert known[CHATS[0]].unread == (1, True), "the expired one does not count"
    assert not known[CHATS[0]].filled, "what the old file did not know is asked for"
    assert known[CHATS[1]].row.peers == (7, USER)
    run(store, SavePush(op=1, messages=(said(4),)))
    store.close()
    LocalStore(path).close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
        tables = {
            row[0]
            for row in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
        }
    connection.close()
    assert "conversation_1" not in tables


def test_an_upgraded_file_looks_like_a_new_one(tmp_path: Path) -> None:
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    old_file(old)
    for path in (old, new):
        LocalStore(path).close()

    def shape(path: Path) -> dict[str, list[tuple[Any, ...]]]:
        with sqlite3.connect(path) as connection:
            names = connection.execute(
                "SELECT name FROM sqlite_master WHERE type IN ('table','index') AND name NOT LIKE 'sqlite_%'"
            ).fetchall()
            found = {
                name: connection.execute(f"PRAGMA table_info({name})").fetchall()
                for (name,) in names
            }
        connection.close()
        return found

    assert shape(old) == shape(new)


def test_an_upgrade_that_is_cut_short_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "device.db"
    old_file(path)

    def cut(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store_upgrade, "conversation_values", cut)
        with pytest.raises(KeyboardInterrupt):
            LocalStore(path)
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    connection.close()
    store = LocalStore(path)
    assert len(store.conversations(USER, WINDOW)) == 2
    store.close()
