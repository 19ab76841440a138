"""History as a client is given it: tombstones, both ends, and what doesn't fit a frame."""

from typing import Any

import pytest

from qim.core.contract.frames import HistoryBatch, HistoryDirection, PullHistory, Tombstone
from qim.core.contract.rpc import AskHistory, HistoryAnswer
from tests.core.gateway.gate import Gate
from tests.core.gateway.services import GROUP, asked, online_with_sessions, stored


def history(gate: Gate, direction: int, anchor: int, *records: bytes, **more: Any) -> HistoryBatch:
    gate.say(5, PullHistory(conversation_id=GROUP, anchor=anchor, direction=direction), request=8)
    ask = asked(gate, AskHistory)
    fields: dict[str, Any] = {"has_more": False}
    gate.tell(HistoryAnswer(rid=ask.rid, conversation_id=GROUP, records=records, **(fields | more)))
    (batch,) = gate.frames(5)
    assert isinstance(batch, HistoryBatch)
    return batch


def test_recalled_records_leave_as_tombstones() -> None:
    batch = history(
        online_with_sessions(),
        HistoryDirection.OLDER,
        0,
        stored(1),
        stored(2, b"secret", custom_type="app/secret"),
        stored(3),
        recalled=(2,),
    )
    assert batch.records[1].custom_type == "", "it may tell what the body was"
    told = [(r.conversation_seq, r.body, r.tombstone) for r in batch.records]
    assert told == [(1, b"hello", 0), (2, None, Tombstone.RECALLED), (3, b"hello", 0)]


def test_around_says_both_ends() -> None:
    batch = history(
        online_with_sessions(),
        HistoryDirection.AROUND,
        2,
        stored(1),
        stored(2),
        has_more=False,
        has_more_newer=True,
    )
    assert (batch.has_more, batch.has_more_newer) == (False, True)


@pytest.mark.parametrize(
    ("direction", "anchor", "kept", "older", "newer"),
    [
        (HistoryDirection.OLDER, 0, [4, 5], True, False),
        (HistoryDirection.NEWER, 0, [1, 2], True, False),
        (HistoryDirection.AROUND, 3, [2, 3], True, True),
        (HistoryDirection.AROUND, 1, [1, 2], False, True),
        (HistoryDirection.AROUND, 5, [4, 5], True, False),
    ],
)
def test_what_does_not_fit_a_frame_is_cut_at_the_far_end(
    direction: int, anchor: int, kept: list[int], older: bool, newer: bool
) -> None:
    records = [stored(seq, bytes(100 * 1024)) for seq in range(1, 6)]
    batch = history(online_with_sessions(), direction, anchor, *records)
    assert [record.conversation_seq for record in batch.records] == kept
    assert (batch.has_more, batch.has_more_newer) == (older, newer)
