"""Lane bookkeeping under random records, refusals and replays: each row once, in lane order, none above its W."""

import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qim.core.mailbox.lanes import LanePlan, Lanes, Pick

LANES = 5


@dataclass
class Record:
    seq: int
    counts: dict[int, int]


class Shard:
    """What the store would hold: rows by lane, watermarks by compare-and-set."""

    def __init__(self, records: list[Record], base: int, own: dict[int, int]) -> None:
        self.records = records
        self.base = base
        self.own = own
        self.rows: dict[int, list[tuple[int, int]]] = {lane: [] for lane in range(LANES)}

    def window(self, lanes: Lanes) -> list[Record]:
        return [record for record in self.records if record.seq > lanes.minimum()]

    def store(self, lanes: Lanes, plan: LanePlan) -> None:
        """All or nothing, demanding every watermark it names and every one off the base."""
        window = self.window(lanes)
        before = {lane: from_ for lane, from_, _ in plan.moves if from_ != plan.base_from}
        assert (self.base, self.own) == (plan.base_from, before)
        for pick in plan.picks:
            record = window[pick.index]
            assert 0 <= pick.start < pick.stop <= record.counts[pick.lane]
            self.rows[pick.lane] += [(record.seq, n) for n in range(pick.start, pick.stop)]
        self.base = plan.base_to
        self.own = {lane: to for lane, _, to in plan.moves if to != plan.base_to}
        lanes.stored(plan)
        assert (lanes.base, lanes.own) == (self.base, self.own)

    def judge(self, replayed_from: dict[int, int]) -> None:
        """Each lane holds exactly the rows between where it began and its W, and at most a part of the next chunk."""
        for lane, rows in self.rows.items():
            watermark = self.own.get(lane, self.base)
            due = [
                (record.seq, n)
                for record in self.records
                if replayed_from[lane] < record.seq
                for n in range(record.counts.get(lane, 0))
            ]
            assert rows == due[: len(rows)]
            assert len(rows) >= sum(seq <= watermark for seq, _ in due), "W passed an undurable row"


COUNTS = st.dictionaries(st.integers(0, LANES - 1), st.integers(1, 9), max_size=LANES)


@settings(max_examples=200, deadline=None)
@given(
    counts=st.lists(COUNTS, max_size=14),
    rows_max=st.integers(4, 12),
    offsets=st.dictionaries(st.integers(0, LANES - 1), st.integers(-4, 4)),
    bad=st.sets(st.integers(0, LANES - 1)),
    seed=st.integers(0, 1 << 32),
)
def test_every_row_once_in_lane_order_whatever_is_refused(
    counts: list[dict[int, int]],
    rows_max: int,
    offsets: dict[int, int],
    bad: set[int],
    seed: int,
) -> None:
    chance = random.Random(seed)
    base = 104
    own = {lane: base + offset for lane, offset in offsets.items() if offset}
    lanes = Lanes(base, tuple(sorted(own.items())))
    start = lanes.minimum()
    records = [Record(start + 1 + n, count) for n, count in enumerate(counts)]
    last = start + len(records)
    if any(seq > last for seq in (base, *own.values())):
        return
    shard = Shard(records, base, dict(lanes.own))
    began = {lane: lanes.watermark(lane) for lane in range(LANES)}
    ready, now = start, 0
    for _ in range(400):
        if chance.random() < 0.3:
            ready = chance.randint(ready, last)
        if chance.random() < 0.02:
            bad = set()
        plan = lanes.plan(now, shard.window(lanes), ready, rows_max)
        if plan is None:
            now += 50
            continue
        assert sum(pick.stop - pick.start for pick in plan.picks) <= rows_max
        assert plan.base_to <= max(ready, base)
        if bad & {pick.lane for pick in plan.picks}:
            now = lanes.refused(now, plan, 10, 40)
        else:
            shard.store(lanes, plan)
        lanes.check()
        shard.judge(began)
    for lane in range(LANES):
        if lane not in bad and ready == last:
            assert lanes.watermark(lane) == last, "a refused lane delays another"
    if not bad and ready == last:
        assert lanes.own == {}


def test_the_normal_case_is_one_call_over_many_records() -> None:
    lanes = Lanes(9)
    records = [Record(10, {0: 2}), Record(11, {}), Record(12, {0: 1, 3: 4}), Record(13, {1: 1})]
    plan = lanes.plan(0, records, 12, 1_000)
    assert plan == LanePlan(
        base_from=9,
        base_to=12,
        moves=(),
        picks=(Pick(0, 0, 0, 2), Pick(2, 0, 0, 1), Pick(2, 3, 0, 4)),
        done=(),
    )
    lanes.stored(plan)
    assert lanes.plan(0, records[3:], 12, 1_000) is None


def test_a_record_too_large_for_a_call_holds_only_some_of_its_lanes() -> None:
    lanes = Lanes(9)
    records = [Record(10, {0: 6, 1: 6, 2: 1}), Record(11, {3: 1})]
    plan = lanes.plan(0, records, 11, 8)
    assert plan is not None
    assert plan.base_to == 10
    assert plan.moves == ((1, 9, 9), (2, 9, 9))
    assert plan.done == ((1, 10, 2),)
    lanes.stored(plan)
    second = lanes.plan(0, records, 11, 8)
    assert second is not None
    assert second.base_to == 11
    assert second.moves == ((1, 9, 11), (2, 9, 11))
    assert second.picks == (Pick(1, 3, 0, 1), Pick(0, 1, 2, 6), Pick(0, 2, 0, 1))


def test_a_refused_call_lets_untouched_lanes_pass_at_once() -> None:
    lanes = Lanes(9)
    records = [Record(10, {0: 1, 1: 1}), Record(11, {2: 1}), Record(12, {0: 1})]
    plan = lanes.plan(0, records, 10, 8)
    assert plan is not None
    assert lanes.refused(0, plan, 10, 40) == 0
    base = lanes.plan(0, records, 12, 8)
    assert base is not None
    assert (base.base_to, base.moves) == (12, ((0, 9, 9), (1, 9, 9)))
    assert base.picks == (Pick(1, 2, 0, 1),)
    lanes.stored(base)
    alone = lanes.plan(0, records, 12, 8)
    assert alone is not None
    assert alone.solo == 0
    assert alone.moves == ((0, 9, 12), (1, 9, 9))
    assert lanes.refused(0, alone, 10, 40) == 10
    other = lanes.plan(0, records, 12, 8)
    assert other is not None
    # Lane 1 stands in front of its own chunk, and nothing else can move: it goes alone in its turn.
    assert other.solo == 1


@pytest.mark.parametrize("own", [(3, 15), (3, 4)])
def test_lanes_off_the_base_are_named_in_every_call(own: tuple[int, int]) -> None:
    lanes = Lanes(9, (own, (4, 9)))
    assert lanes.own == {3: own[1]}
    start = lanes.minimum()
    records = [Record(seq, {0: 1, 3: 1}) for seq in range(start + 1, 12)]
    plan = lanes.plan(0, records, 11, 100)
    assert plan is not None
    assert [move[0] for move in plan.moves] == [3]
