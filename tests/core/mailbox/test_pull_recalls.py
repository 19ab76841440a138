"""Recalls in a pull: nothing leaves before it is known what was taken back (pipeline.md §5)."""

import pytest

from qim.core.contract.entities import GroupDispatch
from qim.core.contract.kinds import Tombstone
from qim.core.contract.rpc import PullAnswer
from qim.core.ports.store_history import ReadOverlays
from qim.core.ports.store_reads import ReadBodies
from tests.core.mailbox.bench import Bench, dispatch, replace
from tests.core.mailbox.pulled import (
    NO_CACHE,
    START,
    ask,
    cursor,
    numbered,
    pull,
    pull_in_vain,
    running,
)


def recall(bench: Bench, item: GroupDispatch) -> None:
    bench.recalls[item.conversation_id, item.conversation_seq] = item.conversation_seq + 1


def test_a_recalled_message_is_a_tombstone_and_its_body_is_not_even_read() -> None:
    items = [dispatch(n, users=(1,), inline=False) for n in range(3)]
    bench = running(*items, hot=b"body", config=NO_CACHE)
    recall(bench, items[1])
    ask(bench, cursor(START))
    names: list[bytes] = []
    while ready := [effect for effect in bench.waiting if not bench.parked(effect)]:
        if isinstance(ready[0], ReadBodies):
            names += [name[2] for name in ready[0].names]
        bench.answer(ready[0], "done")
    answer = bench.last_message()
    assert isinstance(answer, PullAnswer)
    assert [entry.body for entry in answer.entries] == [b"body", None, b"body"]
    assert answer.entries[1].tombstone == Tombstone.RECALLED
    assert items[1].message_id not in names


def test_a_recall_hides_what_a_cache_still_holds() -> None:
    items = list(numbered(2))
    bench = running(*items)
    assert [entry.body for entry in pull(bench, cursor(START)).entries] == [b"0", b"1"]
    recall(bench, items[0])
    hidden = pull(bench, cursor(START)).entries[0]
    assert (hidden.body, hidden.tombstone) == (None, Tombstone.RECALLED)


@pytest.mark.parametrize("fault", ["failed", "unknown_lost"])
def test_while_nobody_knows_what_is_recalled_nothing_leaves(fault: str) -> None:
    bench = running(*numbered(2))
    answer = pull_in_vain(bench, ReadOverlays, fault)
    assert len(pull(bench, answer.cursor).entries) == 2


def test_a_batch_ends_before_what_no_open_has_restored() -> None:
    items = [dispatch(n, users=(1,)) for n in range(3)]
    bench = running(*items)
    name = (items[1].conversation_id, items[1].conversation_seq)
    bench.recalls[name] = None
    answer = pull(bench, cursor(START))
    assert [entry.message_id for entry in answer.entries] == [items[0].message_id]
    assert answer.retry_after_ms > 0
    assert answer.has_more
    assert pull(bench, answer.cursor).entries == ()
    bench.recalls[name] = 9
    rest = pull(bench, answer.cursor).entries
    assert [entry.tombstone for entry in rest] == [Tombstone.RECALLED, Tombstone.NONE]


def test_overlays_of_many_pulls_are_read_together_within_bounds() -> None:
    bench = running(*numbered(3), config=replace(NO_CACHE, overlay_names_max=4))
    for _ in range(3):
        ask(bench, cursor(START))
    sizes: list[int] = []
    while ready := [effect for effect in bench.waiting if not bench.parked(effect)]:
        if isinstance(ready[0], ReadOverlays):
            sizes.append(len(ready[0].names))
        bench.answer(ready[0], "done")
    assert sum(sizes) == 9
    assert max(sizes) <= 4
