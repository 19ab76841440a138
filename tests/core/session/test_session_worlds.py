"""Random worlds: messages, overlays, marks, states; lost answers, crashes, emptied stores, doubled dispatches, compaction.

After each heals, every user's list equals the oracle's, and every mark and state is the greatest that was answered (or may
have been done): computed from the workload alone.
"""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from qim.core.contract.entities import MessageKind
from qim.core.contract.logvalue import StateLogged, read_user_state
from qim.core.contract.rpc_session import AskReadBy, AskStates, StateDone
from qim.core.contract.statelog import user_state_key
from qim.core.ports.log import Append, StoredRecord, Topic
from qim.core.ports.store_session import ApplyStates, ProjectDispatches, ReadSessions
from tests.core.session.scene import Scene, shown
from tests.core.session.spoken import SHARDS
from tests.core.session.toy_writer import conversation

USERS = (1, 2, 3, 4, 5)
TALKS = (0, 1, 2)
MEMBERS = ({1: 0, 2: 0, 3: 0}, {1: 0, 2: 0, 3: 0, 4: 2, 5: 0}, {4: 0, 5: 1})
USER, TALK, SEQ = st.sampled_from(USERS), st.sampled_from(TALKS), st.integers(0, 8)
ACTIONS = st.one_of(
    st.tuples(st.just("say"), USER, TALK, st.booleans()),
    st.tuples(st.just("say"), USER, TALK, st.just(True)),
    st.tuples(st.just("recall"), USER, TALK, SEQ),
    st.tuples(st.just("delete"), USER, TALK, SEQ),
    st.tuples(st.just("read"), USER, TALK, SEQ),
    st.tuples(st.just("read"), USER, TALK, SEQ),
    st.tuples(st.just("state"), USER, TALK, st.integers(1, 4), st.sampled_from([b"a", b"b"])),
    st.tuples(st.just("pull"), USER),
    st.tuples(st.just("crash")),
    st.tuples(st.just("empty")),
    st.tuples(st.just("double"), st.integers(0, SHARDS - 1), st.integers(0, 20)),
    st.tuples(st.just("late"), st.integers(0, SHARDS - 1), st.integers(0, 20)),
    st.tuples(st.just("compact"), st.integers(0, SHARDS - 1)),
    st.tuples(st.just("wait"), st.sampled_from([1, 100, 5_000])),
)
FATES = st.lists(
    st.sampled_from([None, None, None, None, "failed", "unknown", "lost"]), max_size=30
)
FALLIBLE = (Append, ApplyStates, ProjectDispatches, ReadSessions)


class Run:
    """One world and what its workload allows."""

    def __init__(self, fates: list[str | None]) -> None:
        self.scene = Scene()
        self.fates = list(fates)
        for number in TALKS:
            self.scene.group(number, MEMBERS[number])
        self.done: dict[tuple[int, bytes], int] = {}
        self.maybe: dict[tuple[int, bytes], list[int]] = {}
        self.states: dict[tuple[int, bytes], tuple[int, bytes]] = {}
        self.scene.fault = self._fate

    def _fate(self, effect: Any) -> str | None:
        if not isinstance(effect, FALLIBLE) or not self.fates:
            return None
        return self.fates.pop(0)

    def act(self, action: tuple[Any, ...]) -> None:
        getattr(self, action[0])(*action[1:])

    def say(self, user: int, talk: int, settle: bool) -> None:
        members = list(MEMBERS[talk])
        self.scene.say(conversation(talk), members[user % len(members)])
        if settle:
            self.scene.run()

    def _overlay(self, user: int, talk: int, seq: int, kind: int) -> None:
        rows = self.scene.writer.conversations[conversation(talk)].rows
        plain = [row.seq for row in rows if row.kind == MessageKind.TEXT]
        members = list(MEMBERS[talk])
        if plain:
            actor = members[user % len(members)]
            self.scene.say(conversation(talk), actor, kind, target=plain[-1 - seq % len(plain)])

    def recall(self, user: int, talk: int, seq: int) -> None:
        self._overlay(user, talk, seq, MessageKind.RECALL)

    def delete(self, user: int, talk: int, seq: int) -> None:
        self._overlay(user, talk, seq, MessageKind.DELETE_FOR_ME)

    def read(self, user: int, talk: int, seq: int) -> None:
        members = list(MEMBERS[talk])
        user = members[user % len(members)] if seq else user
        name = (user, conversation(talk))
        answer = self.scene.read(user, name[1], seq)
        if isinstance(answer, StateDone):
            assert user in MEMBERS[talk]
            self.done[name] = max(self.done.get(name, 0), seq)
            if not self.fates:
                listed = self._listed(user, name[1])
                assert listed is None or listed >= self._mark(name), "answered and not in the list"
        else:
            self.maybe.setdefault(name, []).append(seq)

    def state(self, user: int, talk: int, version: int, device: bytes) -> None:
        name = (user, conversation(talk))
        answer = self.scene.state(user, name[1], version, device, value=device + b"%d" % version)
        if isinstance(answer, StateDone):
            self.states[name] = max(self.states.get(name, (0, b"")), (version, device))

    def pull(self, user: int) -> None:
        self.scene.page(user, limit=1)

    def crash(self) -> None:
        self.scene.start()

    def empty(self) -> None:
        self.scene.keyspace.flush()
        self.scene.start()

    def double(self, shard: int, index: int) -> None:
        """A dispatch stands at a second offset."""
        log = self.scene.logs[Topic.DISPATCH, shard]
        if log:
            self.scene.put(Topic.DISPATCH, shard, log[index % len(log)].value)

    def late(self, shard: int, index: int) -> None:
        """An old user-state record lands once more, long after."""
        log = self.scene.logs[Topic.USER_STATE, shard]
        if log:
            old = log[index % len(log)]
            self.scene.put(Topic.USER_STATE, shard, old.value, old.key)

    def compact(self, shard: int) -> None:
        """As the log does: only what was superseded long enough ago, which every applier has passed."""
        self.fates.clear()
        self.scene.run(10_000)
        log = self.scene.logs[Topic.USER_STATE, shard]
        last = {record.key: record.offset for record in log}
        log[:] = [record for record in log if last[record.key] == record.offset]

    def wait(self, ms: int) -> None:
        self.scene.run(ms)

    # ------------------------------------------------------------ healed

    def _listed(self, user: int, name: bytes) -> int | None:
        rows = self.scene.pages(user)
        return next((r.read_seq for r in rows if r.conversation_id == name), None)

    def _mark(self, name: tuple[int, bytes]) -> int:
        return self.done.get(name, 0)

    def healed(self) -> None:
        """Twice: with all that the process remembers, and with nothing of it."""
        self.fates.clear()
        self.scene.run(30_000)
        self._compare()
        self.scene.start()
        self.scene.run(1_000)
        self._compare()

    def _compare(self) -> None:
        scene = self.scene
        assert not scene.violations
        assert scene.machine.serving() == SHARDS
        for user in USERS:
            rows = scene.pages(user)
            marks = {(user, row.conversation_id): row.read_seq for row in rows}
            assert shown(rows) == scene.expected(user, marks)
            for row in rows:
                self._check(user, row)
            self._check_sync(user, rows)
        self._last_of_each_key_wins()

    def _check(self, user: int, row: Any) -> None:
        name = (user, row.conversation_id)
        allowed = [self._mark(name)] + [s for s in self.maybe.get(name, []) if s > self._mark(name)]
        assert row.read_seq in allowed
        assert (row.state_version, row.state_value[:1]) >= self.states.get(name, (0, b""))

    def _check_sync(self, user: int, rows: list[Any]) -> None:
        synced: dict[bytes, Any] = {}
        revision, more = 0, True
        while more:
            answer = self.scene.answer(AskStates, user, since_revision=revision, limit=2)
            synced |= {row.conversation_id: row for row in answer.rows}
            revision, more = answer.revision, answer.has_more
        for row in rows:
            state = synced.get(row.conversation_id)
            held = (state.version, state.read_seq, state.value) if state else (0, 0, b"")
            assert held == (row.state_version, row.read_seq, row.state_value)

    def _last_of_each_key_wins(self) -> None:
        """What compaction would keep is what stands."""
        last: dict[bytes, StoredRecord] = {}
        for shard in range(SHARDS):
            for record in self.scene.logs[Topic.USER_STATE, shard]:
                last[record.key] = record
        for record in last.values():
            logged = read_user_state(record.value)
            assert isinstance(logged, StateLogged)
            entry = logged.record
            assert user_state_key(entry) == record.key
            rows = {r.conversation_id: r for r in self.scene.pages(entry.user_id)}
            row = rows.get(entry.conversation_id)
            if row is not None and entry.version:
                assert (row.state_version, row.state_value) == (entry.version, entry.value)
            elif row is not None:
                assert row.read_seq == entry.read_seq
        for talk in TALKS:
            user = next(iter(MEMBERS[talk]))
            answer = self.scene.answer(
                AskReadBy, user, conversation_id=conversation(talk), conversation_seq=1
            )
            for reader in answer.users:
                mark = self._listed(reader, conversation(talk))
                assert mark is None or mark >= 1


@settings(max_examples=250, deadline=None)
@given(st.lists(ACTIONS, min_size=8, max_size=40), FATES)
def test_every_list_equals_the_oracle_after_the_world_has_healed(
    actions: list[tuple[Any, ...]], fates: list[str | None]
) -> None:
    run = Run(fates)
    for action in actions:
        run.act(action)
    run.healed()
