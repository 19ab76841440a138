"""The device's store on SQLite does with sessions what the store in plain dicts does, order by order; old files are upgraded."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from qim.client import store_upgrade
from qim.client.local_store import LocalStore
from qim.client.store_file import SCHEMA_VERSION
from qim.core.client.conversation import DELETED, GONE, RECALLED
from qim.core.contract.entities import MessageKind
from qim.core.contract.kinds import Tombstone
from qim.core.contract.sequences import U64_MAX
from qim.core.ports.completion import Failed
from qim.core.ports.local_sessions import (
    ListedConversation,
    ReadUnfilled,
    ReadUnsent,
    SaveRead,
    SaveSessions,
    SaveStates,
    SaveStateSent,
    SaveUserState,
    StateSaved,
    SyncedState,
    UnsentRead,
)
from qim.core.ports.local_store import (
    LoadLocal,
    LocalLoaded,
    LocalMessage,
    PendingOverlay,
    ReadAnchors,
    SaveAck,
    SaveBatch,
    SaveHistory,
    SavePending,
    SavePush,
)
from qim.sim.local_rows import LocalRows
from tests.client.local_rows import coordinates, id16, message, pending

USER = 5
WINDOW = 3
CHATS = (id16(2, 1), id16(2, 2))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    opened = LocalStore(tmp_path / "device.db")
    yield opened
    opened.close()


def run(store: LocalStore, request: Any) -> Any:
    (reply,) = store.execute([request])
    assert not isinstance(reply, Failed), request
    return reply


def said(seq: int, *, chat: int = 1, **more: Any) -> LocalMessage:
    one = message(chat * 1_000 + seq, conversation=chat, seq=seq)
    fields = {"sender_id": 7, "body": b"%d" % seq, "sent_at": seq, "peer_user_id": USER}
    return replace(one, last_activity_id=id16(3, seq), **(fields | more))


# ---------------------------------------------------------------- equal worlds


seqs = st.integers(1, 9)
kinds = st.sampled_from([int(kind) for kind in MessageKind])


@st.composite
def messages(draw: st.DrawFn) -> LocalMessage:
    seq, chat, kind = draw(seqs), draw(st.integers(1, 2)), draw(kinds)
    tombstone = draw(st.sampled_from([0, 0, 0, Tombstone.RECALLED, Tombstone.EXPIRED]))
    body: bytes | None = b"%d" % seq
    if kind in (MessageKind.RECALL, MessageKind.DELETE_FOR_ME):
        body = draw(seqs).to_bytes(8, "big")
    return said(
        seq,
        chat=chat,
        kind=kind,
        sender_id=draw(st.sampled_from([USER, 7])),
        tombstone=int(tombstone),
        body=None if tombstone else body,
    )


batches = st.lists(messages(), max_size=4).map(tuple)
chats = st.sampled_from(CHATS)


@st.composite
def histories(draw: st.DrawFn) -> SaveHistory:
    chat = draw(chats)
    found = tuple(one for one in draw(batches) if one.conversation_id == chat)
    begin = draw(st.integers(0, 9))
    return SaveHistory(
        op=1,
        conversation_id=chat,
        messages=found,
        anchor=draw(st.integers(0, 9)),
        covers_from=begin,
        covers_to=draw(st.sampled_from([0, begin, begin + 3, U64_MAX])),
        gone_before=draw(st.sampled_from([0, 5, 100])),
    )


@st.composite
def lists(draw: st.DrawFn) -> SaveSessions:
    rows = []
    for chat in draw(st.lists(chats, unique=True)):
        heads = [None, said(draw(seqs), chat=1 + CHATS.index(chat))]
        rows.append(
            ListedConversation(
                conversation_id=chat,
                conversation_kind=1,
                peer_user_id=7,
                last_activity_id=id16(3, draw(seqs)),
                head=draw(st.sampled_from(heads)),
                unread=draw(st.integers(0, WINDOW)),
                unread_exact=draw(st.booleans()),
                read_seq=draw(st.integers(0, 9)),
                version=draw(st.integers(0, 3)),
                flags=draw(st.integers(0, 7)),
                value=b"l",
            )
        )
    return SaveSessions(op=1, user_id=USER, window=WINDOW, conversations=tuple(rows))


states = st.lists(
    st.builds(
        SyncedState,
        conversation_id=chats,
        version=st.integers(0, 3),
        device_id=st.sampled_from([b"a", b"b"]),
        read_seq=st.integers(0, 9),
        flags=st.integers(0, 7),
        value=st.just(b"s"),
    ),
    max_size=3,
).map(tuple)
orders = st.one_of(
    st.builds(
        SaveBatch,
        op=st.just(1),
        messages=batches,
        cursor=st.just(b"c"),
        covered_through=st.just(1),
        moves_anchors=st.booleans(),
        settled=st.just(()),
    ),
    st.builds(SavePush, op=st.just(1), messages=batches),
    histories(),
    lists(),
    st.builds(SaveRead, op=st.just(1), conversation_id=chats, read_seq=st.integers(0, 9)),
    st.builds(
        SaveUserState,
        op=st.just(1),
        conversation_id=chats,
        version=st.integers(0, 3),
        device_id=st.just(b"a"),
        flags=st.integers(0, 7),
        value=st.just(b"u"),
    ),
    st.builds(SaveStates, op=st.just(1), states=states, revision=st.integers(0, 5)),
    st.builds(
        SaveStateSent,
        op=st.just(1),
        conversation_id=chats,
        read_seq=st.integers(0, 9),
        version=st.integers(0, 4),
    ),
    st.builds(
        ReadUnsent, op=st.just(1), after=st.sampled_from([b"", *CHATS]), limit=st.integers(1, 2)
    ),
    st.builds(
        ReadUnfilled, op=st.just(1), after=st.sampled_from([b"", *CHATS]), limit=st.integers(1, 2)
    ),
    st.builds(ReadAnchors, op=st.just(1), after=st.just(b""), limit=st.integers(1, 2)),
)


def in_dicts(rows: LocalRows, order: Any) -> Any:
    match order:
        case SaveBatch():
            return rows.insert(order.messages, contiguous=True, anchors=order.moves_anchors)
        case SavePush():
            return rows.insert(order.messages)
        case SaveHistory():
            fresh = rows.insert(order.messages)
            rows.cover(order)
            return fresh
        case ReadAnchors():
            return rows.anchors(order)
        case _:
            return rows.session(order)


@settings(max_examples=60, deadline=None)
@given(st.lists(orders, max_size=25))
def test_both_stores_answer_alike(
    tmp_path_factory: pytest.TempPathFactory, script: list[Any]
) -> None:
    store = LocalStore(tmp_path_factory.mktemp("equal") / "device.db")
    rows = LocalRows()
    try:
        for order in script:
            reply, expected = run(store, order), in_dicts(rows, order)
            assert getattr(reply, "fresh", reply) == expected, order
            if isinstance(order, SaveBatch):
                assert reply.unfilled == rows.left_unfilled(order.messages)
                assert reply.blank == rows.left_blank(order.messages)
        known = {one.row.conversation_id: one for one in store.conversations(USER, WINDOW)}
        assert {c: one.row for c, one in known.items()} == rows.conversations
        for chat, one in known.items():
            assert one.unread == rows.unread(chat, USER, WINDOW)
            assert one.preview == rows.preview(chat)
            shown = {m.message_id: m for m in store.messages(chat, 100)}
            expected = {
                message_id: found
                for message_id, found in rows.messages.items()
                if found.conversation_id == chat and not rows.hidden[message_id] & DELETED
            }
            assert shown == expected
    finally:
        store.close()


# ---------------------------------------------------------------- one by one


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


# ---------------------------------------------------------------- old files


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


def test_bits_are_what_the_queries_say() -> None:
    """The SQL names them by number in places."""
    assert (RECALLED, DELETED, GONE) == (1, 2, 4)
