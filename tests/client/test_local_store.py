"""The device's store on SQLite keeps what core/ports/local_store.py promises, order by order."""

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from qim.client.local_store import LocalStore, Outgoing
from qim.client.store_file import LocalStoreBusy, LocalStoreTooNew, LocalStoreUnusable
from qim.core.ports.completion import Failed, FailReason
from qim.core.ports.local_store import (
    AnchorsRead,
    LoadLocal,
    LocalLoaded,
    LocalSaved,
    LocalState,
    LocalStoreRequest,
    MessagesSaved,
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
from tests.client.local_rows import change, coordinates, id16, message, pending

Reply = TypeVar("Reply")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "clients" / "device.db"


@pytest.fixture
def store(path: Path) -> Iterator[LocalStore]:
    opened = LocalStore(path)
    yield opened
    opened.close()


def one(store: LocalStore, request: LocalStoreRequest, kind: type[Reply]) -> Reply:
    (reply,) = store.execute([request])
    assert isinstance(reply, kind), reply
    return reply


def saved(store: LocalStore, *requests: LocalStoreRequest) -> None:
    for request in requests:
        assert one(store, request, LocalSaved).op == request.op


def loaded(store: LocalStore) -> LocalLoaded:
    return one(store, LoadLocal(op=99), LocalLoaded)


def batch(op: int, *messages: Any, moves_anchors: bool = True, settled: Any = ()) -> SaveBatch:
    return SaveBatch(
        op=op,
        messages=messages,
        cursor=b"cursor%d" % op,
        covered_through=(1 << 64) - op,
        moves_anchors=moves_anchors,
        settled=settled,
    )


def anchors(store: LocalStore, after: bytes = b"", limit: int = 10) -> AnchorsRead:
    return one(store, ReadAnchors(op=1, after=after, limit=limit), AnchorsRead)


def test_a_new_store_is_a_new_device(store: LocalStore) -> None:
    assert loaded(store) == LocalLoaded(
        op=99,
        attempt=0,
        state=LocalState.ONLINE,
        cursor=None,
        covered_through=0,
        rebuild_target=0,
        order_last=0,
        pending=(),
    )


def test_rows_come_back_in_their_order_and_both_kinds(store: LocalStore) -> None:
    rows = (pending(3), change(1), pending(2))
    saved(store, *[SavePending(op=n, row=row) for n, row in enumerate(rows, start=1)])
    found = loaded(store)
    assert found.pending == (change(1), pending(2), pending(3))
    assert found.order_last == 3


def test_a_client_message_id_that_stands_keeps_its_row(store: LocalStore) -> None:
    other = SavePending(op=2, row=change(1))
    saved(store, SavePending(op=1, row=pending(1)), other)
    assert loaded(store).pending == (pending(1),)


def test_not_after_is_overwritten_and_taken_back(store: LocalStore) -> None:
    key = id16(4, 1)
    saved(
        store,
        SavePending(op=1, row=pending(1)),
        SaveNotAfter(op=2, rows=((key, 500), (id16(4, 77), 1))),
        SaveNotAfter(op=3, rows=((key, 900),)),
    )
    assert [row.not_after for row in loaded(store).pending] == [900]
    saved(store, SaveNotAfter(op=4, rows=((key, 0),)))
    assert [row.not_after for row in loaded(store).pending] == [0]


def test_settled_rows_are_no_longer_pending_and_tell_their_end(store: LocalStore) -> None:
    saved(
        store,
        *[SavePending(op=n, row=pending(n)) for n in (1, 2)],
        SavePending(op=3, row=change(3)),
        SavePending(op=4, row=pending(4)),
        SaveAck(op=5, coordinates=coordinates(1)),
        SaveFailed(op=6, client_message_id=id16(4, 2), code=10),
        SaveGroupOk(
            op=7, client_message_id=id16(4, 3), conversation_id=id16(2, 9), version=2, control_seq=5
        ),
    )
    assert loaded(store).pending == (pending(4),)
    assert store.pending_count() == 1
    assert loaded(store).order_last == 4
    assert store.outgoing(id16(4, 1)) == Outgoing(status="sent", code=0, coordinates=coordinates(1))
    assert store.outgoing(id16(4, 2)) == Outgoing(status="failed", code=10, coordinates=None)
    assert store.outgoing(id16(4, 3)) == Outgoing(status="sent", code=0, coordinates=None)
    assert store.outgoing(id16(4, 4)) == Outgoing(status="pending", code=0, coordinates=None)
    assert store.outgoing(id16(4, 5)) is None


def test_a_failed_row_found_on_the_server_was_sent(store: LocalStore) -> None:
    saved(
        store,
        SavePending(op=1, row=pending(1)),
        SaveFailed(op=2, client_message_id=id16(4, 1), code=10),
        SaveAck(op=3, coordinates=coordinates(1)),
        SaveFailed(op=4, client_message_id=id16(4, 1), code=10),
    )
    row = store.outgoing(id16(4, 1))
    assert row is not None
    assert row.status == "sent"


def test_an_attempt_never_goes_back(store: LocalStore) -> None:
    saved(store, SaveAttempt(op=1, attempt=9), SaveAttempt(op=2, attempt=4))
    assert loaded(store).attempt == 9


def test_a_batch_moves_cursor_anchors_and_rows_together(store: LocalStore) -> None:
    saved(store, SavePending(op=1, row=pending(5)))
    request = batch(2, message(5), message(3), settled=(coordinates(5),))
    assert one(store, request, MessagesSaved).fresh == (0, 1)
    found = loaded(store)
    assert (found.cursor, found.covered_through) == (b"cursor2", (1 << 64) - 2)
    assert found.pending == ()
    assert anchors(store).anchors == ((id16(2, 1), 5),)


def test_what_stands_is_not_fresh(store: LocalStore) -> None:
    one(store, SavePush(op=1, messages=(message(1),)), MessagesSaved)
    request = batch(2, message(1), message(2), message(2))
    assert one(store, request, MessagesSaved).fresh == (1,)


def test_a_push_moves_no_cursor_and_no_anchor(store: LocalStore) -> None:
    one(store, SavePush(op=1, messages=(message(8),)), MessagesSaved)
    assert loaded(store).cursor is None
    assert anchors(store).anchors == ((id16(2, 1), 0),)


def test_while_rebuilding_a_batch_moves_no_anchor(store: LocalStore) -> None:
    one(store, batch(1, message(8), moves_anchors=False), MessagesSaved)
    assert anchors(store).anchors == ((id16(2, 1), 0),)


def test_history_raises_the_anchor_it_names_and_never_lowers(store: LocalStore) -> None:
    conversation = id16(2, 1)
    for op, anchor in ((1, 1 << 63), (2, 4), (3, 0)):
        request = SaveHistory(
            op=op, conversation_id=conversation, messages=(message(op),), anchor=anchor
        )
        assert one(store, request, MessagesSaved).fresh == (0,)
    assert anchors(store).anchors == ((conversation, 1 << 63),)


def test_anchors_come_in_pages(store: LocalStore) -> None:
    one(store, batch(1, *[message(n, conversation=n) for n in range(1, 6)]), MessagesSaved)
    first = anchors(store, limit=3)
    assert first.more
    rest = anchors(store, after=first.anchors[-1][0], limit=3)
    assert not rest.more
    assert [seq for _, seq in first.anchors + rest.anchors] == [1, 2, 3, 4, 5]


def test_anchors_are_told_of_at_a_start_with_and_without_a_cursor(store: LocalStore) -> None:
    one(store, batch(1), MessagesSaved)
    one(store, SavePush(op=2, messages=(message(8),)), MessagesSaved)
    assert not loaded(store).anchored, "neither an empty batch nor a push moves one"
    one(store, batch(3, message(9)), MessagesSaved)
    assert loaded(store).anchored
    state = LocalState.REBUILDING
    saved(store, SaveState(op=4, state=state, drop_cursor=True, rebuild_target=0))
    assert loaded(store).anchored


def test_a_state_and_a_dropped_cursor_are_one(store: LocalStore) -> None:
    one(store, batch(1, message(1)), MessagesSaved)
    state = LocalState.REBUILDING
    saved(store, SaveState(op=2, state=state, drop_cursor=True, rebuild_target=(1 << 64) - 1))
    found = loaded(store)
    assert (found.state, found.cursor, found.covered_through) == (state, None, 0)
    assert found.rebuild_target == (1 << 64) - 1


def test_everything_survives_a_restart(path: Path) -> None:
    store = LocalStore(path)
    saved(store, SavePending(op=1, row=pending(1)), SaveAttempt(op=2, attempt=3))
    one(store, batch(3, message(2), message(1)), MessagesSaved)
    before = loaded(store)
    store.close()
    again = LocalStore(path)
    assert loaded(again) == before
    assert again.untold(10) == [message(2), message(1)]
    assert again.messages(id16(2, 1), 10) == [message(1), message(2)]
    again.close()


def test_a_bad_order_does_not_spoil_its_neighbours(store: LocalStore) -> None:
    replies = store.execute(
        [
            SavePending(op=1, row=pending(1)),
            SaveAttempt(op=2, attempt=1 << 64),
            SavePending(op=3, row=pending(2)),
        ]
    )
    assert replies == [
        LocalSaved(op=1),
        Failed(op=2, why=FailReason.INVALID),
        LocalSaved(op=3),
    ]
    assert loaded(store).pending == (pending(1), pending(2))


def test_messages_are_told_once_in_order_of_arrival(store: LocalStore) -> None:
    one(store, batch(1, message(9), message(4), message(7)), MessagesSaved)
    assert store.untold(2) == [message(9), message(4)]
    assert store.untold(2) == [message(9), message(4)]
    store.mark_told([message(9).message_id])
    assert store.take_untold(1) == [message(4)]
    assert store.take_untold(10) == [message(7)]
    assert store.take_untold(10) == []


def test_a_later_schema_is_refused_and_left_alone(path: Path) -> None:
    LocalStore(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version=3")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(LocalStoreTooNew, match="schema 3"):
        LocalStore(path)
    assert path.read_bytes() == before
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version=2")
    connection.close()
    LocalStore(path).close()  # the refusal gave the lock up


def test_two_owners_are_refused_with_the_holder(path: Path, store: LocalStore) -> None:
    with pytest.raises(LocalStoreBusy) as refused:
        LocalStore(path)
    assert refused.value.pid == os.getpid()


def test_what_is_no_store_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"not a database, but longer than a header of SQLite" * 20)
    with pytest.raises(LocalStoreUnusable, match="not a database"):
        LocalStore(tmp_path / "x.db")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(LocalStoreUnusable):
        LocalStore(tmp_path / "file" / "x.db")
