"""Fanout's checkpoint, receipts and dead letters (docs: pipeline §2)."""

from typing import Any

from qim.core.ports.completion import Fenced, StoreReset
from qim.core.ports.log import Position
from qim.core.ports.store_source import (
    CommitSource,
    OpenSource,
    ReadSource,
    SourceCommitted,
    SourceOpened,
)
from tests.adapters.store.requests import MARKER, Shard
from tests.adapters.store.servers import RUN_ID, Store, ask


def at(offset: int) -> Position:
    return Position(b"topic-id", offset, b"digest%10d" % offset)


def opened(store: Store, epoch: int = 7) -> Any:
    return ask(store, OpenSource(op=1, partition=2, epoch=epoch, fresh_key=MARKER))


def commit(store: Store, low: int, to: Position, **other: Any) -> Any:
    fields = {
        "epoch": 7,
        "incarnation": RUN_ID + b"/" + MARKER,
        "filter_epoch": 3,
        "receipts": (),
        "dead_letters": (),
    } | other
    return ask(store, CommitSource(op=2, partition=2, from_offset=low, to=to, **fields))


def read(store: Store, low: int = 0, high: int = 100, limit: int = 50) -> Any:
    return ask(store, ReadSource(op=3, partition=2, low=low, high=high, limit=limit))


def test_a_missing_checkpoint_is_none(store: Store) -> None:
    first = opened(store)
    assert first == SourceOpened(
        op=1, incarnation=RUN_ID + b"/" + MARKER, position=None, filter_epoch=0
    )
    assert read(store).checkpoint == -1
    assert read(store).applied == 0
    assert read(store).incarnation == first.incarnation, "the auditor binds its own writing to it"


def test_receipts_of_what_the_log_has_let_go_go_a_bounded_number_a_call(store: Store) -> None:
    opened(store)
    low = 0
    for first in range(0, 1_500, 500):
        receipts = tuple((offset, b"r%d" % offset) for offset in range(first, first + 500))
        commit(store, low, at(first + 500), receipts=receipts, dead_letters=((first, b"bad"),))
        low = first + 500
    commit(store, low, at(1_501), log_start=1_400)
    left = [offset for offset, _ in read(store, high=5_000, limit=5_000).receipts]
    assert left == list(range(1_024, 1_500))
    commit(store, 1_501, at(1_502), log_start=1_400)
    page = read(store, high=5_000, limit=5_000)
    assert [offset for offset, _ in page.receipts] == list(range(1_400, 1_500))
    assert [offset for offset, _ in page.dead_letters] == [0, 500, 1_000], "evidence stays"


def test_the_checkpoint_moves_by_compare_and_set(store: Store) -> None:
    opened(store)
    receipts = ((10, b"ten"), (11, b"eleven"))
    assert commit(store, 10, at(12), receipts=receipts) == SourceCommitted(op=2)
    assert (opened(store).position, opened(store).filter_epoch) == (at(12), 3)
    before = store.dump()
    assert commit(store, 10, at(12), receipts=receipts) == SourceCommitted(op=2), "a retry"
    for low, to in ((10, at(13)), (11, at(14)), (13, at(14)), (10, Position(b"topic-id", 12, b""))):
        assert commit(store, low, to, receipts=((99, b"x"),)) == Fenced(op=2, epoch=0)
    assert store.dump() == before
    assert commit(store, 12, at(13), dead_letters=((12, b"bad"),)) == SourceCommitted(op=2)
    seen = read(store)
    assert (seen.checkpoint, seen.receipts, seen.dead_letters, seen.more) == (
        13, receipts, ((12, b"bad"),), False,
    )  # fmt: skip


def test_fence_of_a_source(store: Store) -> None:
    opened(store)
    opened(store, 8)
    assert commit(store, 0, at(1)) == Fenced(op=2, epoch=8)
    assert isinstance(commit(store, 0, at(1), epoch=9), StoreReset)
    assert opened(store, 7) == Fenced(op=1, epoch=8)
    assert commit(store, 0, at(1), epoch=8) == SourceCommitted(op=2)


def test_both_lists_end_at_the_same_offset(store: Store) -> None:
    opened(store)
    receipts = tuple((n, b"r%d" % n) for n in range(0, 20, 2))
    letters = tuple((n, b"d%d" % n) for n in (1, 3, 13))
    commit(store, 0, at(20), receipts=receipts, dead_letters=letters)
    gathered_receipts: list[Any] = []
    gathered_letters: list[Any] = []
    low, more = 0, True
    while more:
        page = read(store, low, 20, 2)
        gathered_receipts += page.receipts
        gathered_letters += page.dead_letters
        more = page.more
        low = max(row[0] for row in (*page.receipts, *page.dead_letters)) + 1
    assert (tuple(gathered_receipts), tuple(gathered_letters)) == (receipts, letters)
    assert read(store, 4, 6).receipts == ((4, b"r4"),)


def test_applied_of_the_writer_shard(store: Store) -> None:
    Shard(store, shard=2).mark(applied_to=77)
    opened(store)
    assert read(store).applied == 77
