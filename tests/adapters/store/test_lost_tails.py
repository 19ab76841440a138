"""From any earlier state of the store, OPEN's scripts and the outbox make the same conversations again (pipeline.md §1.6).

A writer reserves, appends and marks; the store falls back by any number of calls; another epoch opens, applies the outbox
and finishes what is pending. Then the store must hold exactly the outbox: nothing lost, nothing twice, nothing pending.
"""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from qim.adapters.redis.scripts import load_scripts
from qim.core.contract.entities import CommitState, MembershipOp
from qim.core.ports import store_message as message
from qim.core.ports import store_reads as reads
from qim.sim.keyspace import ScriptRuntime
from tests.adapters.store.requests import (
    GROUP,
    SINGLE,
    Shard,
    applied,
    digest_of,
    grouped,
    mid,
    single,
    step,
    stored_as,
)
from tests.adapters.store.servers import SimulatedStore, ask

USERS = st.sets(st.integers(1, 9), min_size=1, max_size=5)
Entry = tuple[message.ReserveItem, int, bytes, message.MembershipWrite | None]


class Writer(RuleBasedStateMachine):
    """One writer shard with a single chat and a group; ``outbox`` is what stands in the log."""

    def __init__(self, runtime: ScriptRuntime) -> None:
        super().__init__()
        self.store = SimulatedStore(runtime)
        self.outbox: list[Entry] = []
        self.reserved: list[Entry] = []
        self.known: dict[bytes, Entry] = {}
        self.marked = 0
        self.number = 0
        self.epoch = 1

    @initialize()
    def first_open(self) -> None:
        self.open()

    def open(self) -> None:
        self.epoch += 1
        self.shard = Shard(self.store, epoch=self.epoch)
        self.reserved.clear()
        low, end = self.shard.opened.applied, len(self.outbox)
        records = [self.record(offset) for offset in range(low, end)]
        self.shard.ask(
            message.ApplyOutbox,
            applied_from=low,
            applied_to=end,
            filter_epoch=self.epoch,
            records=tuple(records),
        )
        for stored in self.shard.pending():
            self.outbox.append(self.known[stored])
        self.marked = end
        self.mark()
        self.same_as_outbox()

    def record(self, offset: int) -> message.AppliedRecord:
        item, seq, activity, write = self.outbox[offset]
        made = applied(item, seq, offset, write)
        return message.AppliedRecord(
            **{name: getattr(made, name) for name in made.__struct_fields__}
            | {"last_activity_id": activity, "stored": stored_as(item, seq, activity)}
        )

    def took(self, items: list[message.ReserveItem], results: Any, write: Any = None) -> None:
        for item, result in zip(items, results, strict=True):
            assert isinstance(result, message.Fresh), result
            entry = (item, result.conversation_seq, result.last_activity_id, write)
            self.known[stored_as(*entry[:3])] = entry
            self.reserved.append(entry)

    def next_number(self) -> int:
        self.number += 1
        return self.number

    @rule(count=st.integers(1, 3))
    def reserve(self, count: int) -> None:
        version = self.version()
        items = [single(self.next_number()) for _ in range(count)]
        if version:
            items.append(grouped(self.next_number(), version, digest_of(version)))
        self.took(items, self.shard.reserve(*items))

    def version(self) -> int:
        read = self.shard.membership()
        return 0 if read.version is None else read.version.version

    @rule(users=USERS, joining=st.booleans())
    def change(self, users: set[int], joining: bool) -> None:
        before = self.shard.membership().version
        version = self.version() + 1
        present = set() if before is None else {m.user_id for m in before.members}
        changed = sorted(users - present if joining or before is None else users & present)
        if not changed:
            return
        joining_op = MembershipOp.CREATE if before is None else MembershipOp.ADD
        operation = joining_op if joining or before is None else MembershipOp.REMOVE
        # The digest names the whole chain in production; here every version has one.
        write = step(version, operation, tuple(changed))
        item = grouped(self.next_number(), write.previous_version, write.previous_digest)
        result = self.shard.ask(message.MembershipChange, item=item, membership=write).results[0]
        self.took([item], [result], write)

    @rule(count=st.integers(1, 4), marked=st.booleans())
    def append(self, count: int, marked: bool) -> None:
        self.outbox += self.reserved[:count]
        del self.reserved[:count]
        if marked:
            self.mark()

    def mark(self) -> None:
        items = [
            message.MarkItem(
                dedupe_key=item.dedupe_key,
                message_id=item.message_id,
                conversation_id=item.conversation_id,
                conversation_seq=seq,
                offset=offset,
            )
            for offset, (item, seq, _, _) in enumerate(self.outbox)
            if offset >= self.marked
        ]
        if items:
            reply = self.shard.mark(*items)
            assert isinstance(reply, message.MarkedCommitted), reply
            self.marked = len(self.outbox)

    @rule(lost=st.sampled_from([0, 0, 0, 1, 2, 3, 5, 8, 13]))
    def crash(self, lost: int) -> None:
        keyspace = self.store.keyspace
        keyspace.rollback_to(max(keyspace.forgotten(), keyspace.mark() - lost))
        self.open()

    @rule(often=st.integers(0, 9))
    def emptied(self, often: int) -> None:
        if often == 9:
            self.store.flush()
            self.open()

    def same_as_outbox(self) -> None:
        shard = self.shard
        assert shard.pending() == ()
        for conversation_id in (SINGLE, GROUP):
            rows = [
                stored_as(item, seq, activity)
                for item, seq, activity, _ in self.outbox
                if item.conversation_id == conversation_id
            ]
            seqs = [row[:8] for row in rows]
            assert seqs == sorted(set(seqs)), "append order is seq order, and no seq is used twice"
            read = shard.history(conversation_id=conversation_id, limit=10_000)
            assert read.stored == tuple(rows)
        assert [(f.message_id, f.outbox_offset) for f in shard.facts()] == sorted(
            (item.message_id, offset) for offset, (item, _, _, _) in enumerate(self.outbox)
        )
        assert all(f.state == CommitState.COMMITTED for f in shard.facts())
        found = shard.lookup(*range(1, self.number + 1))
        sent = {item.dedupe_key for item, _, _, _ in self.outbox}
        assert sum(f is not None for f in found) == len(sent)
        assert all(f is None or f.state == CommitState.COMMITTED for f in found)
        self.same_membership()

    def same_membership(self) -> None:
        intervals: dict[int, list[list[int]]] = {}
        names: list[tuple[int, bytes, int, bytes]] = []
        present: list[list[int]] = []
        forever = (1 << 64) - 1
        for _, seq, _, write in self.outbox:
            if write is None:
                continue
            for user in write.users:
                held = intervals.setdefault(user, [])
                if write.operation == MembershipOp.REMOVE:
                    held[-1][1] = seq
                else:
                    founder = write.operation == MembershipOp.CREATE
                    held.append([0 if founder else seq - 1, forever])
            names.append((3, GROUP, write.version, write.digest))
            present.append(sorted(u for u, held in intervals.items() if held[-1][1] == forever))
        versions = ask(self.store, reads.ReadVersions(op=1, names=tuple(names))).versions
        assert [[m.user_id for m in v.members] for v in versions] == present
        everyone = self.shard.membership().everyone
        assert {m.user_id: [list(i) for i in m.intervals] for m in everyone} == intervals

    def teardown(self) -> None:
        if hasattr(self, "shard"):
            self.crash(0)
            assert mid(self.number) >= self.shard.opened.hlc_floor


def test_the_outbox_is_the_truth() -> None:
    runtime = ScriptRuntime(load_scripts())
    run_state_machine_as_test(
        lambda: Writer(runtime),
        settings=settings(max_examples=100, stateful_step_count=40, deadline=None),
    )
