"""Whatever becomes of orders and processes: what lies below the watermark is archived, and every message once."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qim.core.archiver import ArchiverConfig
from qim.core.contract.logvalue import Outboxed, read_outbox
from qim.core.effective import EffectiveFilter
from qim.core.ports.archive import WriteArchive
from qim.core.ports.completion import StoreReset, StoreRole
from qim.core.ports.store_history import CommitArchive
from tests.core.archiver.scene import Outbox, Scene, failed, unknown

CHAOS = ArchiverConfig(
    batch_rows_max=3, fetch_records_max=4, window_records_max=8, expire_every_ms=10_000_000
)
WRITES = (WriteArchive, CommitArchive)


class Chaos:
    """A scene in which answers get lost and writes are applied late, in part, or twice."""

    def __init__(self, chance: Any) -> None:
        self.chance = chance
        self.outbox = Outbox()
        self.scene = Scene(self.outbox, config=CHAOS)
        self.numbers = 0
        self.late: list[Any] = []
        self.writer_epoch = 1
        self.scene.grant()

    def pick(self, *choices: Any) -> Any:
        return choices[self.chance(len(choices))]

    # ------------------------------------------------------------ one move

    def move(self) -> None:
        self.pick(
            self.answer, self.answer, self.answer, self.answer, self.answer, self.answer,
            self.append, self.append, self.zombie, self.barrier,
            self.restart, self.lose_store, self.land, self.wait,
        )()  # fmt: skip
        self.grant_wanted()
        self.check()

    def append(self) -> None:
        for _ in range(self.chance(4)):
            self.numbers += 1
            self.outbox.message(self.numbers, epoch=self.writer_epoch)

    def zombie(self) -> None:
        """A dead writer's append lands behind a barrier; its seq is taken again by an effective record."""
        self.numbers += 1
        record = self.outbox.message(self.numbers, epoch=0)
        self.outbox.seqs[record.conversation_id] -= 1
        if self.writer_epoch == 1:
            self.outbox.records.pop()

    def barrier(self) -> None:
        self.writer_epoch += 1
        offset = self.outbox.barrier(self.writer_epoch)
        self.scene.barriers.setdefault(0, []).append((self.writer_epoch, offset))

    def answer(self) -> None:
        scene = self.scene
        waiting = [effect for effect in scene.queue if not scene.parked(effect)]
        if not waiting:
            return
        effect = waiting[self.chance(len(waiting))]
        scene.queue.remove(effect)
        how = self.pick("well", "well", "well", "failed", "lost", "late", "part")
        if how == "well":
            scene.give(scene.answer(effect))
        elif how == "failed":
            scene.give(failed(effect.op))
        else:
            if how == "lost":
                scene.answer(effect)
            elif how == "late" and isinstance(effect, WRITES):
                self.late.append(effect)
            elif how == "part" and isinstance(effect, WriteArchive):
                rows = [row for row in effect.rows if self.chance(2)]
                scene.rows.insert(effect.partition, rows, settled=False)
            scene.give(unknown(effect.op))

    def restart(self) -> None:
        """kill -9: some of what was in flight still lands, at some time."""
        self.late += [e for e in self.scene.queue if isinstance(e, WRITES) and self.chance(2)]
        self.scene.wanted.clear()
        self.scene.start()
        self.scene.grant()

    def lose_store(self) -> None:
        """The hot store comes back without its newest writes, or without any."""
        scene = self.scene
        scene.hot.empty()
        scene.give(StoreReset(op=None, store=StoreRole.MESSAGE))

    def land(self) -> None:
        if self.late:
            self.scene.answer(self.late.pop(self.chance(len(self.late))))

    def wait(self) -> None:
        self.scene.tick(self.pick(10, 200, 5_000))

    def grant_wanted(self) -> None:
        while self.scene.wanted:
            want = self.scene.wanted.pop(0)
            self.scene.epoch = max(self.scene.epoch, want.above)
            self.scene.grant()

    # ------------------------------------------------------------ what must hold

    def effective(self) -> list[tuple[int, bytes]]:
        judge, found = EffectiveFilter(0), []
        for stored in self.outbox.records:
            entry = read_outbox(stored.value)
            assert not hasattr(entry, "why")
            if judge.admits(entry) and isinstance(entry, Outboxed):  # type: ignore[arg-type]
                found.append((stored.offset, entry.record.message_id))
        return found

    def check(self) -> None:
        scene = self.scene
        settled = {
            cell.row.outbox_offset
            for held in scene.rows.conversations.values()
            for cell in held.cells.values()
            if cell.settled
        }
        archived = scene.rows.positions.get(0, 0)
        assert scene.watermark() <= archived
        for offset, _ in self.effective():
            assert offset in settled or offset >= archived, "a claim above a hole"
        assert scene.violations == []

    def end(self) -> None:
        while self.late:
            self.land()
        self.scene.settle()
        self.check()
        rows = [(row.outbox_offset, row.message_id) for row in self.scene.archived()]
        assert rows == self.effective()
        assert len(rows) == len({message_id for _, message_id in rows})
        assert self.scene.watermark() == self.outbox.end
        assert self.scene.archiver.idle()


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_any_story_ends_with_every_record_once(data: st.DataObject) -> None:
    chaos = Chaos(lambda n: data.draw(st.integers(0, n - 1)))
    for _ in range(data.draw(st.integers(0, 60))):
        chaos.move()
    chaos.end()


@pytest.mark.parametrize("seed", range(16))
def test_long_stories(seed: int) -> None:
    chaos = Chaos(random.Random(seed).randrange)
    for _ in range(600):
        chaos.move()
    chaos.end()


@pytest.mark.parametrize("seed", range(5))
def test_twenty_restarts_in_the_middle_of_a_batch(seed: int) -> None:
    chaos = Chaos(random.Random(1_000 + seed).randrange)
    for _ in range(20):
        for _ in range(5):
            chaos.append()
        while not any(isinstance(effect, WriteArchive) for effect in chaos.scene.queue):
            chaos.scene.run(1_000) if not chaos.scene.queue else chaos.scene.give(
                chaos.scene.answer(chaos.scene.queue.pop(0))
            )
        (write,) = chaos.scene.taken(WriteArchive)
        fate = chaos.pick("applied", "part", "late")
        if fate == "applied":
            chaos.scene.answer(write)
        elif fate == "part":
            chaos.scene.rows.insert(0, write.rows[: len(write.rows) // 2], settled=False)
        else:
            chaos.late.append(write)
        chaos.restart()
        chaos.check()
    chaos.end()
    assert len(chaos.scene.archived()) == chaos.numbers > 50
