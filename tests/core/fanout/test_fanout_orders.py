"""FanoutCoordinator under any order of answers, lost, doubled and late appends, crashes and lost checkpoints."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from qim.core.audience import VersionAudience, audience_by_shard
from qim.core.contract.entities import MembershipVersion, MessageRecord, decode_receipt
from qim.core.fanout import FanoutConfig
from qim.core.ports.completion import StoreReset, StoreRole
from qim.core.ports.local import LeaseGone
from qim.core.ports.registry import Resource, Role
from tests.core.fanout.bench import Bench, record, replace, seq_of, version

SHARDS = 4
CONFIG = FanoutConfig(
    shard_count=SHARDS,
    fetch_records_max=3,
    window_records_max=5,
    append_records_max=2,
    commit_records_max=2,
)
FAULTS = ("done",) * 6 + ("failed", "unknown_applied", "unknown_lost", "unknown_late")
NAMED = tuple(version(n, tuple(range(n, n + 12))) for n in range(1, 4))


def drawn_record(chance: random.Random, number: int) -> MessageRecord:
    kind = chance.randrange(3)
    if kind == 0:
        return record(number, sender=chance.randrange(1, 30), peer=chance.randrange(1, 30))
    named = chance.choice(NAMED)
    if kind == 1:
        return record(number, named=named)
    users = tuple(chance.sample(range(1, 30), chance.randrange(1, 5)))
    return record(number, named=named, recipients=users)


class World:
    """The bench, two partitions, and what was really appended as effective."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.bench = Bench(CONFIG, partitions=2)
        self.effective: list[dict[int, MessageRecord]] = [{}, {}]
        self.barrier = [0, 0]
        self.epoch = 0
        self.number = 0

    def produce(self) -> None:
        partition = self.chance.randrange(2)
        source = self.bench.sources[partition]
        if self.chance.random() < 0.2:
            self.barrier[partition] += self.chance.randrange(2)
            self.bench.append_barrier(self.barrier[partition], partition)
            return
        if self.chance.random() < 0.05:
            self.bench.append_value(b"\x01\x01junk", partition=partition)
            return
        item = drawn_record(self.chance, self.number)
        self.number += 1
        epoch = self.barrier[partition] - (self.chance.random() < 0.2)
        if epoch >= self.barrier[partition]:
            self.effective[partition][source.end()] = item
        self.bench.append(item, epoch=max(epoch, 0), partition=partition)
        if epoch < 0:
            self.effective[partition][source.end() - 1] = item

    def hold(self, partition: int) -> None:
        self.epoch += 1
        self.bench.hold(epoch=self.epoch, partition=partition)

    def grant_wanted(self) -> None:
        for wanted in self.bench.wanted:
            self.hold(wanted.resource.number)
        self.bench.wanted.clear()

    def disturb(self) -> None:
        bench, what = self.bench, self.chance.randrange(5)
        if what == 0:
            bench.crash()
            self.hold(0)
            self.hold(1)
        elif what == 1:
            number = self.chance.randrange(2)
            bench.step(LeaseGone(resource=Resource(role=Role.FANOUT, number=number)))
            self.hold(number)
        elif what == 2:
            self.hold(self.chance.randrange(2))
        elif what == 3 and bench.late:
            bench.execute(bench.late.pop(self.chance.randrange(len(bench.late))))
        elif what == 4:
            self.lose_tail()

    def lose_tail(self) -> None:
        """Another incarnation whose checkpoints are older ones, or none."""
        self.bench.marker = b"run/%d" % self.chance.randrange(1 << 30)
        for source in self.bench.sources:
            if self.chance.random() < 0.5:
                source.position, source.filter_epoch = None, 0
        self.bench.step(StoreReset(op=None, store=StoreRole.MESSAGE))

    def act(self) -> None:
        bench, roll = self.bench, self.chance.random()
        if roll < 0.1:
            self.produce()
        elif roll < 0.14:
            self.disturb()
        elif roll < 0.2:
            missing = [named for named in NAMED if key(named) not in bench.versions]
            if missing:
                bench.know(missing[0])
        elif roll < 0.35:
            bench.now += self.chance.choice((10, 100, 3_000))
            bench.step()
        else:
            ready = [effect for effect in bench.waiting if not bench.parked(effect)]
            if ready:
                bench.answer(self.chance.choice(ready), self.chance.choice(FAULTS))
        self.grant_wanted()

    def heal(self) -> None:
        for named in NAMED:
            self.bench.know(named)
        for _ in range(200):
            self.bench.run()
            self.grant_wanted()
            if not self.bench.waiting or all(map(self.bench.parked, self.bench.waiting)):
                if all(source.offset() == source.end() for source in self.bench.sources):
                    return
            self.bench.now += 3_000
            self.bench.step()
        raise AssertionError("it doesn't come to rest")


def key(named: MembershipVersion) -> tuple[bytes, int, bytes]:
    return named.conversation_id, named.version, named.digest


@settings(max_examples=150, deadline=None)
@given(chance=st.randoms(use_true_random=False), steps=st.integers(20, 300))
def test_every_effective_record_is_dispatched_to_exactly_its_shards_in_order(
    chance: random.Random, steps: int
) -> None:
    world = World(chance)
    for number in (0, 1):
        world.hold(number)
    for _ in range(steps):
        world.act()
    world.heal()
    bench = world.bench
    audiences = {key(named): VersionAudience(named, SHARDS) for named in NAMED}
    for partition in (0, 1):
        expected: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        for offset, item in world.effective[partition].items():
            name = (item.conversation_id, item.version, item.membership_digest)
            seen = replace(item, conversation_seq=seq_of(item))
            targets = audience_by_shard(seen, audiences.get(name), SHARDS)
            receipt = decode_receipt(bench.sources[partition].receipts[offset])
            assert [place.shard for place in receipt.shards] == [shard for shard, _ in targets]
            for shard, users in targets:
                expected.setdefault(shard, []).append((offset, users))
        for shard in range(SHARDS):
            first = [d for d in bench.first_dispatches(shard) if d.source_partition == partition]
            assert [d.source_offset for d in first] == [o for o, _ in expected.get(shard, [])]
            for item, (_, users) in zip(first, expected.get(shard, []), strict=True):
                assert item.recipients in ((), users)
    assert not bench.violations()
