"""Watermarks of the 64 lanes of a shard, and what the next AppendEntries may write (pipeline.md §3.2). Pure bookkeeping.

A shard keeps one base W; only lanes behind or ahead of it have a W of their own. Normally every lane stands at the base and
one call moves it over many records. A lane that a record doesn't touch passes it at once. ONE call is in flight a shard and
names every watermark it changes: the script runs on one thread of one server, a second call in flight would gain nothing,
and so the stored position is always exactly that of min W. A lane still delays no other:

    at the base --record too large for one call: some lanes stay--> behind --own chunks, reserved room--> at the base
    at the base --call refused for its rows--> alone: its rows go only into calls of its own, with back-off
    alone --own call stored--> no longer alone

A chunk larger than a call is stored in parts; its lane moves with the last one.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from qim.core.machine import Ms
from qim.core.timers import back_off

RESERVE_PART = 4
"""One row in four belongs to lanes behind the base as long as there are any."""


class Chunked(Protocol):
    """A record of the window: its mailbox_seq and how many rows it has for each lane it touches."""

    @property
    def seq(self) -> int:
        """Its mailbox_seq."""
        ...

    @property
    def counts(self) -> dict[int, int]:
        """Rows by lane, none with 0."""
        ...


class Pick(Struct, frozen=True):
    """Rows [start, stop) of one record's chunk for ``lane``; ``index`` is the record's place in the window."""

    index: int
    lane: int
    start: int
    stop: int


class LanePlan(Struct, frozen=True):
    """One call: the base's move, (lane, from, to) of each lane off the base before or after, and the rows."""

    base_from: int
    base_to: int
    moves: tuple[tuple[int, int, int], ...]
    picks: tuple[Pick, ...]
    done: tuple[tuple[int, int, int], ...]
    solo: int = -1

    def low(self) -> int:
        """min W once the call is stored."""
        return min([self.base_to, *(to for _, _, to in self.moves)])

    def high(self) -> int:
        """The greatest seq the call writes rows of or moves to."""
        tops = [self.base_to, *(to for _, _, to in self.moves), *(seq for _, seq, _ in self.done)]
        return max(tops)


class Alone(Struct):
    """A lane whose rows were in a refused call: tried by itself from ``due`` on."""

    due: Ms
    attempts: int = 0


class Lanes:
    """Where every lane stands. ``own`` holds only those off the base."""

    __slots__ = ("_alone", "_done", "_last_solo", "base", "own")

    def __init__(self, base: int, own: Sequence[tuple[int, int]] = ()) -> None:
        self.base = base
        self.own = {lane: seq for lane, seq in own if seq != base}
        self._done: dict[int, tuple[int, int]] = {}
        """lane -> (seq, rows already stored of its chunk there), where that chunk is larger than a call."""
        self._alone: dict[int, Alone] = {}
        self._last_solo = False

    def watermark(self, lane: int) -> int:
        """W of a lane."""
        return self.own.get(lane, self.base)

    def minimum(self) -> int:
        """min W: replay starts behind it."""
        return min(self.base, *self.own.values()) if self.own else self.base

    def plan(
        self, now: Ms, records: Sequence[Chunked], ready: int, rows_max: int
    ) -> LanePlan | None:
        """The next call for ``records`` (dense, from min W + 1), of which those up to ``ready`` may be written."""
        solo = next(
            (lane for lane in sorted(self._alone) if self._may_go_alone(now, ready, lane)), -1
        )
        if solo >= 0 and not self._last_solo:
            plan = self._solo(records, ready, rows_max, solo)
        else:
            plan = self._together(records, ready, rows_max)
            if plan is None and solo >= 0:
                plan = self._solo(records, ready, rows_max, solo)
        return plan

    def stored(self, plan: LanePlan) -> None:
        """The call is durable."""
        assert plan.base_from == self.base
        for lane, from_, _ in plan.moves:
            assert self.watermark(lane) == from_
        self.base = plan.base_to
        self.own.update((lane, to) for lane, _, to in plan.moves)
        self.own = {lane: seq for lane, seq in self.own.items() if seq != self.base}
        for pick in plan.picks:
            self._done.pop(pick.lane, None)
        self._done.update((lane, (seq, rows)) for lane, seq, rows in plan.done)
        self._last_solo = plan.solo >= 0
        self._alone.pop(plan.solo, None)

    def refused(self, now: Ms, plan: LanePlan, first_ms: Ms, most_ms: Ms) -> Ms:
        """The store surely did not apply the call and blames its rows: from now on each of its lanes goes alone.

        Answers when to plan again.
        """
        self._last_solo = plan.solo >= 0
        for pick in plan.picks:
            self._alone.setdefault(pick.lane, Alone(due=now))
        if plan.solo < 0:
            return now
        alone = self._alone[plan.solo]
        alone.attempts += 1
        alone.due = now + back_off(alone.attempts, first_ms, most_ms)
        return alone.due

    def check(self) -> None:
        """No lane's own W equals the base: the store would keep a field for nothing."""
        assert self.base not in self.own.values()

    # ------------------------------------------------------------ drafts

    def _may_go_alone(self, now: Ms, ready: int, lane: int) -> bool:
        alone = self._alone[lane]
        return alone.due <= now and self.watermark(lane) < min(self.base, ready)

    def _together(self, records: Sequence[Chunked], ready: int, rows_max: int) -> LanePlan | None:
        """The base over as many records as fit, the lanes behind it with the room reserved for them."""
        behind = sorted((seq, lane) for lane, seq in self.own.items() if seq < self.base)
        reserve = rows_max // RESERVE_PART if behind else 0
        room = _Room(rows_max - reserve)
        tos, target = self._base_group(records, ready, room)
        room.left += reserve
        for _, lane in behind:
            held = lane in self._alone
            tos[lane] = self._lane(records, lane, min(target, ready), None if held else room)
        return self._sealed(tos, target, room, -1)

    def _base_group(
        self, records: Sequence[Chunked], ready: int, room: "_Room"
    ) -> tuple[dict[int, int], int]:
        """(where each lane ends that may not end at the target, the target)."""
        stay: dict[int, int] = {}
        target = self.base
        for index, record in enumerate(records):
            if record.seq <= self.base:
                continue
            if record.seq > ready or room.left <= 0:
                break
            group = [lane for lane in record.counts if self._joins(lane, record.seq, stay)]
            rows = sum(record.counts[lane] - self._done_rows(lane, record.seq) for lane in group)
            if rows > room.left and target > self.base:
                break
            target = record.seq
            for lane in group:
                if lane in self._alone or not room.take(self, index, record, lane):
                    stay[lane] = record.seq - 1
        for lane, seq in self.own.items():
            if lane not in stay:
                stay[lane] = max(seq, target) if seq > self.base else seq
        return stay, target

    def _joins(self, lane: int, seq: int, stay: dict[int, int]) -> bool:
        """True where ``seq`` is a lane's own next chunk as the base passes: not behind the base, not past it already."""
        return lane not in stay and self.base <= self.watermark(lane) < seq

    def _lane(
        self, records: Sequence[Chunked], lane: int, target: int, room: "_Room | None"
    ) -> int:
        """Where a lane behind gets to: over what doesn't touch it at once, over its chunks as ``room`` allows.

        After a replay the base may stand beyond what is ready: what isn't in the window yet may touch the lane.
        """
        watermark = self.watermark(lane)
        for index, record in enumerate(records):
            if record.seq <= watermark or lane not in record.counts:
                continue
            if record.seq > target:
                break
            if room is None or not room.take(self, index, record, lane):
                return record.seq - 1
        return max(watermark, target)

    def _solo(
        self, records: Sequence[Chunked], ready: int, rows_max: int, solo: int
    ) -> LanePlan | None:
        """Only the rows of one lane, up to the base; everything else stays where it is."""
        room = _Room(rows_max)
        tos = dict(self.own)
        tos[solo] = self._lane(records, solo, min(self.base, ready), room)
        return self._sealed(tos, self.base, room, solo)

    def _sealed(
        self, tos: dict[int, int], target: int, room: "_Room", solo: int
    ) -> LanePlan | None:
        moves = tuple(
            (lane, self.watermark(lane), tos[lane])
            for lane in sorted(tos)
            if self.watermark(lane) != self.base or tos[lane] != target
        )
        moved = target != self.base or any(from_ != to for _, from_, to in moves)
        if not moved and not room.picks:
            return None
        return LanePlan(
            base_from=self.base,
            base_to=target,
            moves=moves,
            picks=tuple(room.picks),
            done=tuple(room.done),
            solo=solo,
        )

    def _done_rows(self, lane: int, seq: int) -> int:
        """Rows of the chunk at ``seq`` that are stored already."""
        at, rows = self._done.get(lane, (0, 0))
        return rows if at == seq else 0


class _Room:
    """Rows of one call: how many may still be taken, which were."""

    __slots__ = ("done", "left", "picks")

    def __init__(self, left: int) -> None:
        self.left = left
        self.picks: list[Pick] = []
        self.done: list[tuple[int, int, int]] = []

    def take(self, lanes: Lanes, index: int, record: Chunked, lane: int) -> bool:
        """Take the chunk, or what fits of it; True where that completes it and the lane may pass."""
        start = lanes._done_rows(lane, record.seq)
        stop = min(record.counts[lane], start + self.left)
        if stop > start:
            self.left -= stop - start
            self.picks.append(Pick(index=index, lane=lane, start=start, stop=stop))
        if stop == record.counts[lane]:
            return True
        if stop > start:
            self.done.append((lane, record.seq, stop))
        return False
