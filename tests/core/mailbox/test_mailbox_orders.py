"""MailboxNode under any order of answers: Unknowns in each truth, crashes, fresh epochs, lost tails, doubled dispatches."""

import copy
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from qim.core.audience import VersionAudience, named_version, recipients_in_shard
from qim.core.contract import routing
from qim.core.contract.actor import Actor
from qim.core.contract.entities import NO_SOURCE, GroupDispatch, decode_entry
from qim.core.contract.rpc import AskPull, AskSync, PullAnswer, Refused, SyncAnswer
from qim.core.contract.sequences import mailbox_seq
from qim.core.mailbox import MailboxConfig
from qim.core.ports.completion import StoreReset, StoreRole
from qim.core.ports.local import LeaseGone
from tests.core.mailbox.bench import (
    RESOURCE,
    SECRET,
    TENANT,
    WALL,
    Bench,
    dispatch,
    record_of,
    replace,
    version,
)
from tests.core.mailbox.store_model import MailboxStoreModel

CONFIG = MailboxConfig(
    shard_count=1,
    outbox_partition_count=1,
    secret=SECRET,
    fetch_records_max=3,
    window_records_max=8,
    claims_max=2,
    rows_max=6,
    finish_items_max=2,
    floor_ms=100,
    floor_claims_max=2,
    bodies_max=2,
    batch_bytes_max=1_500,
    body_cache_bytes_max=600,
)
FAULTS = ("done",) * 8 + ("failed", "unknown_applied", "unknown_lost", "unknown_late", "too_large")
NAMED = tuple(version(b"g" * 16, n, tuple(range(n, n + 14))) for n in range(1, 4))
AUDIENCES = {named.version: VersionAudience(named, 1) for named in NAMED}
USERS = range(1, 20)


class World:
    """The bench, the sender's side, one client that pulls, and what should stand in every mailbox."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.bench = Bench(CONFIG)
        self.items: list[GroupDispatch] = []
        self.expected: dict[int, dict[int, GroupDispatch]] = {user: {} for user in USERS}
        self.first: dict[bytes, int] = {}
        self.snapshots: list[MailboxStoreModel] = []
        self.reader = chance.choice(USERS)
        self.cursor: bytes | None = None
        self.read_to = 0
        self.pulling = False
        self.heard = 0

    # ------------------------------------------------------------ the log

    def produce(self) -> None:
        roll = self.chance.random()
        if roll < 0.06:
            self.bench.append_value(b"\x01\x03junk", at=self.append_time())
        elif roll < 0.3 and self.items:
            again = self.chance.choice(self.items)
            f = self.chance.randint(0, len(self.items))
            change = {"source_checkpoint": f, "source_epoch": 9, "trace_id": 7_000}
            self.put(replace(again, **change))
        else:
            number = len(self.items)
            named = self.chance.choice((None, *NAMED))
            users = () if named else tuple(self.chance.sample(USERS, self.chance.randrange(1, 6)))
            body = b"b" * self.chance.choice((3, 700))
            item = dispatch(
                number,
                users=users,
                named=named,
                body=body,
                inline=self.chance.random() < 0.5,
                sender=self.chance.choice(USERS),
                checkpoint=self.chance.randint(0, number),
            )
            if self.chance.random() < 0.1:
                # Redriven: nothing but its claim may decide about it, and the claim stays.
                item = replace(item, source_partition=NO_SOURCE, source_offset=0)
            self.items.append(item)
            name = (item.conversation_id, item.conversation_seq, item.message_id)
            self.bench.bodies[name] = record_of(item, body)
            self.put(item)

    def append_time(self) -> int:
        return WALL + self.chance.randrange(-3, 4) * 43_200_000

    def put(self, item: GroupDispatch) -> None:
        offset = self.bench.end()
        self.bench.append(item, at=self.append_time())
        if item.dispatch_id in self.first:
            return
        self.first[item.dispatch_id] = offset
        audience = AUDIENCES[item.version] if named_version(item) else None
        for user in recipients_in_shard(item, audience, 1):
            self.expected[user][mailbox_seq(1, offset)] = item

    # ------------------------------------------------------------ faults

    def disturb(self) -> None:
        bench, what = self.bench, self.chance.randrange(6)
        if what == 0:
            bench.crash()
            bench.hold()
            self.pulling = False
        elif what == 1:
            bench.step(LeaseGone(resource=RESOURCE))
            bench.hold()
        elif what == 2:
            bench.hold()
        elif what == 3 and bench.late:
            bench.execute(bench.late.pop(self.chance.randrange(len(bench.late))))
        elif what == 4:
            self.snapshots.append(copy.deepcopy(bench.store))
        elif what == 5:
            self.lose_tail()

    def lose_tail(self) -> None:
        """Another incarnation that holds an older state, or nothing at all."""
        older = self.chance.choice((*self.snapshots, MailboxStoreModel()))
        self.bench.store = copy.deepcopy(older)
        self.bench.store.marker = b"run/%d" % self.chance.randrange(1 << 30)
        self.bench.step(StoreReset(op=None, store=StoreRole.MAILBOX))

    def grant_wanted(self) -> None:
        if self.bench.wanted:
            self.bench.wanted.clear()
            self.bench.hold()

    # ------------------------------------------------------------ the reader

    def read(self) -> None:
        if self.pulling:
            return
        actor = Actor(TENANT, self.reader, b"phone")
        self.pulling = True
        if self.cursor is None:
            self.bench.receive(AskSync(rid=1, actor=actor, cursor=None))
        else:
            up_to = self.chance.choice((0, 0, mailbox_seq(1, self.chance.randrange(40))))
            ask = AskPull(rid=2, actor=actor, cursor=self.cursor, up_to_seq=up_to, limit=3)
            self.bench.receive(ask)

    def listen(self) -> None:
        """Batches are the contiguous prefix: exactly what the log holds for the reader between the two cursors."""
        for send in self.bench.sent[self.heard :]:
            message = send.message
            if isinstance(message, SyncAnswer):
                self.cursor, self.read_to = message.cursor, mailbox_seq(1, 0) - 1
            elif isinstance(message, PullAnswer):
                self.hear(message)
            else:
                assert isinstance(message, Refused), message
            self.pulling = False
        self.heard = len(self.bench.sent)

    def hear(self, answer: PullAnswer) -> None:
        covered = answer.covered_through_seq
        assert covered >= self.read_to
        mine = self.expected[self.reader]
        due = [seq for seq in sorted(mine) if self.read_to < seq <= covered]
        assert [entry.mailbox_seq for entry in answer.entries] == due
        for entry in answer.entries:
            item = mine[entry.mailbox_seq]
            assert entry.message_id == item.message_id
            assert entry.body is not None
            assert item.inline_body in (None, entry.body)
        self.cursor, self.read_to = answer.cursor, covered

    # ------------------------------------------------------------ time

    def act(self) -> None:
        bench, roll = self.bench, self.chance.random()
        if roll < 0.1:
            self.produce()
        elif roll < 0.14:
            self.disturb()
        elif roll < 0.18:
            for named in NAMED[: self.chance.randrange(4)]:
                bench.know(named)
        elif roll < 0.24:
            self.read()
        elif roll < 0.36:
            bench.now += self.chance.choice((10, 100, 3_000))
            bench.step()
        else:
            ready = [effect for effect in bench.waiting if not bench.parked(effect)]
            if ready:
                bench.answer(self.chance.choice(ready), self.chance.choice(FAULTS))
        self.grant_wanted()
        self.listen()
        self.judge()

    def judge(self) -> None:
        """W never passes an undurable chunk: below it stands, in every lane, exactly what should."""
        store = self.bench.store
        if store.base is None:
            return
        for user in USERS:
            watermark = store.watermark(routing.lane(user))
            held = store.rows.get((TENANT, user), {})
            below = [seq for seq in sorted(held) if seq <= watermark]
            assert below == [seq for seq in sorted(self.expected[user]) if seq <= watermark]

    def heal(self) -> None:
        bench = self.bench
        for named in NAMED:
            bench.know(named)
        for _ in range(300):
            bench.run()
            self.grant_wanted()
            self.listen()
            settled = all(map(bench.parked, bench.waiting)) and bench.store.base is not None
            if settled and bench.store.minimum() == mailbox_seq(1, bench.end()) - 1:
                if self.cursor is not None and self.read_to == bench.store.base:
                    return
                self.read()
                bench.run()
            bench.now += 3_000
            bench.step()
        raise AssertionError("it doesn't come to rest")


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 1 << 32), steps=st.integers(20, 400))
def test_every_recipient_has_exactly_one_row_a_message(seed: int, steps: int) -> None:
    world = World(random.Random(seed))
    world.bench.hold()
    for _ in range(steps):
        world.act()
    world.heal()
    for user in USERS:
        held = world.bench.mailbox(user)
        assert sorted(held) == sorted(world.expected[user])
        for seq, row in held.items():
            entry = decode_entry(row)
            assert entry.message_id == world.expected[user][seq].message_id
            assert (entry.client_message_id is not None) == (entry.sender_id == user)
    assert not world.bench.violations()
    assert world.bench.store.own == {}
