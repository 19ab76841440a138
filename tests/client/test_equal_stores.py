"""The device's store on SQLite does with sessions what the store in plain dicts does, order by order."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qim.client.local_store import LocalStore
from qim.core.client.conversation import DELETED
from qim.core.contract.entities import MessageKind
from qim.core.contract.kinds import Tombstone
from qim.core.contract.sequences import U64_MAX
from qim.core.ports.local_sessions import (
    ListedConversation,
    ReadUnfilled,
    ReadUnsent,
    SaveRead,
    SaveSessions,
    SaveStates,
    SaveStateSent,
    SaveUserState,
    SyncedState,
)
from qim.core.ports.local_store import (
    LocalMessage,
    ReadAnchors,
    SaveBatch,
    SaveHistory,
    SavePush,
)
from qim.sim.local_rows import LocalRows
from tests.client.local_rows import id16
from tests.client.sessions_said import CHATS, USER, WINDOW, run, said

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
