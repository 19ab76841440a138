"""Sessions in the device's store on SQLite, one by one: order, overlays, states and marks over a restart."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from qim.client.local_store import LocalStore
from qim.core.client.conversation import DELETED, GONE, RECALLED
from qim.core.contract.entities import MessageKind
from qim.core.contract.kinds import Tombstone
from qim.core.contract.sequences import U64_MAX
from qim.core.ports.local_sessions import (
    ReadUnsent,
    SaveRead,
    SaveStates,
    SaveUserState,
    StateSaved,
    UnsentRead,
)
from qim.core.ports.local_store import (
    LoadLocal,
    LocalLoaded,
    PendingOverlay,
    SaveAck,
    SavePending,
    SavePush,
)
from tests.client.local_rows import coordinates, id16
from tests.client.sessions_said import CHATS, USER, WINDOW, run, said


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    opened = LocalStore(tmp_path / "device.db")
    yield opened
    opened.close()


def test_the_order_is_that_of_the_latest_activity(store: LocalStore) -> None:
    run(store, SavePush(op=1, messages=(said(1), said(2, chat=2), said(3))))
    assert [one.row.conversation_id for one in store.conversations(USER, WINDOW)] == list(CHATS)
    run(store, SavePush(op=1, messages=(said(4, chat=2),)))
    found = [one.row.conversation_id for one in store.conversations(USER, WINDOW)]
    assert found == [CHATS[1], CHATS[0]]


def test_a_recalled_body_is_gone_from_the_file(store: LocalStore, tmp_path: Path) -> None:
    secret = b"this must not stay"
    run(store, SavePush(op=1, messages=(said(1, body=secret),)))
    recall = said(2, kind=MessageKind.RECALL, body=(1).to_bytes(8, "big"))
    run(store, SavePush(op=1, messages=(recall,)))
    (one, _) = store.messages(CHATS[0], 10)
    assert (one.body, one.tombstone) == (None, Tombstone.RECALLED)
    with sqlite3.connect(tmp_path / "device.db") as connection:
        rows = connection.execute("SELECT data FROM message").fetchall()
    connection.close()
    assert all(secret not in row[0] for row in rows)


def test_an_own_overlay_lies_when_it_is_acked_and_survives(store: LocalStore) -> None:
    run(store, SavePush(op=1, messages=(said(1), said(2))))
    row = PendingOverlay(
        order=1,
        client_message_id=id16(4, 1),
        kind=MessageKind.RECALL,
        conversation_id=CHATS[0],
        target_seq=2,
        created_at=1,
    )
    run(store, SavePending(op=1, row=row))
    loaded = run(store, LoadLocal(op=2))
    assert isinstance(loaded, LocalLoaded)
    assert loaded.pending == (row,)
    run(store, SaveAck(op=1, coordinates=coordinates(1)))
    assert [one.body for one in store.messages(CHATS[0], 10)] == [b"1", None]


def test_what_was_deleted_before_it_was_shown_is_not_shown(store: LocalStore) -> None:
    deletion = said(2, kind=MessageKind.DELETE_FOR_ME, sender_id=USER, body=(1).to_bytes(8, "big"))
    run(store, SavePush(op=1, messages=(said(1), deletion)))
    assert [one.conversation_seq for one in store.take_untold(10)] == [2]
    run(
        store,
        SavePush(
            op=1,
            messages=(
                said(4, kind=MessageKind.DELETE_FOR_ME, body=(3).to_bytes(8, "big")),
                said(3),
            ),
        ),
    )
    assert [one.conversation_seq for one in store.take_untold(10)] == [4]


def test_states_and_marks_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "device.db"
    store = LocalStore(path)
    run(store, SaveRead(op=1, conversation_id=CHATS[0], read_seq=U64_MAX))
    saved = run(
        store,
        SaveUserState(
            op=1, conversation_id=CHATS[0], version=U64_MAX - 1, device_id=b"d", flags=3, value=b"v"
        ),
    )
    assert isinstance(saved, StateSaved)
    run(store, SaveStates(op=1, states=(), revision=U64_MAX))
    store.close()
    store = LocalStore(path)
    loaded = run(store, LoadLocal(op=1))
    assert loaded.state_revision == U64_MAX
    unsent = run(store, ReadUnsent(op=1, after=b"", limit=5))
    assert isinstance(unsent, UnsentRead)
    ((_, read_seq, version, flags, value),) = [msgspec.structs.astuple(row) for row in unsent.rows]
    assert (read_seq, version, flags, value) == (U64_MAX, U64_MAX - 1, 3, b"v")
    store.close()


def test_bits_are_what_the_queries_say() -> None:
    """The SQL names them by number in places."""
    assert (RECALLED, DELETED, GONE) == (1, 2, 4)
