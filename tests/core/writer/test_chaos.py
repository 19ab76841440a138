"""Random weather around writers over the real scripts: what must hold whatever is lost, late, doubled or dead.

Actions are small integers, so that a failure shrinks to a story a person can read. Every question may be answered, fail,
stay in doubt (done, not done, or done later, after its machine died), the store may restart with a lost tail or empty,
and a process may die or live on as a zombie whose questions land whenever they like.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from qim.core.contract.entities import CommitState, MembershipOp, MessageKind, MessageRecord
from qim.core.contract.ids import dedupe_key, group_conversation_id
from qim.core.contract.rpc import GroupDone, SendDone
from qim.core.ports.completion import Failed, FailReason, StoreReset, StoreRole, Unknown
from qim.core.ports.local import LeaseHeld
from qim.core.ports.log import Append
from qim.core.ports.network import Send
from qim.core.ports.store_reads import ReadHistory, ReadMembership
from qim.core.writer import Writer, WriterConfig, WriterEvent
from qim.core.writer.vocabulary import Question
from tests.core.writer.outside import SHARD
from tests.core.writer.scene import Scene, benign, cmid

CONFIG = WriterConfig(
    outbox_partition_count=1,
    reserve_items_max=3,
    append_records_max=2,
    mark_items_max=2,
    lookup_keys_max=2,
    apply_records_max=2,
    fetch_records_max=3,
    pending_page_max=2,
    unavailable_after_attempts=2,
    request_timeout_ms=3_000,
)
GROUP = group_conversation_id("default", 1, cmid(100))

ACTIONS = st.tuples(st.integers(0, 31), st.integers(0, 7), st.integers(0, 7))
OVERLAYS = st.tuples(st.just(4), st.integers(0, 7), st.integers(0, 7))


class Weather(Scene):
    """A scene whose questions may outlive their machine."""

    def __init__(self, *, talked: bool = False) -> None:
        self.strays: list[Question] = []
        self.zombie: Writer | None = None
        self.zombie_questions: list[Question] = []
        self.acked: dict[tuple[int, bytes], tuple[bytes, int]] = {}
        super().__init__(CONFIG, started=False)
        self.grants = False
        self.on_send = self._judge_ack
        self.hold()
        self._request(0, 0)  # the group that most requests are about
        if talked:
            # Something that overlays can lie on before the weather begins.
            self.settle()
            for number in range(6):
                self.send(1 + number % 2, to=GROUP, number=200 + number)
            self.settle()

    # -------------------------------------------------------------- what may happen

    def act(self, kind: int, first: int, second: int) -> None:
        """One action."""
        if kind <= 3:
            self._request(first, second)
        elif kind == 4:
            self._overlay(first, second)
        elif kind <= 21:
            self._answer(first)
        elif kind == 22:
            self._doubt(first, second)
        elif kind == 23:
            self._fail(first)
        elif kind <= 25:
            self._land(first)
        elif kind == 26:
            self._shake_store(first)
        elif kind == 27:
            self._move_lease(first)
        elif kind <= 29:
            self._grant()
        else:
            self.advance((1, 40, 500, 3_000)[first % 4])

    def _request(self, first: int, second: int) -> None:
        sender = 1 + first % 3
        if second == 0:
            self.group(1, MembershipOp.CREATE, (2,), number=100)
        elif second == 1:
            op = (MembershipOp.ADD, MembershipOp.REMOVE)[first % 2]
            self.group(1, op, (3,), to=GROUP, number=101 + first)
        elif second <= 4:
            self.send(sender, to=GROUP, number=10 + second + first // 3)
        else:
            self.send(sender, 1 + (sender + second) % 3, number=20 + first, body=b"%d" % second)

    def _overlay(self, first: int, second: int) -> None:
        lay = self.recall if second % 2 else self.delete
        lay(1 + first % 2, GROUP, 1 + second, number=60 + 8 * first + second)

    def _answer(self, first: int) -> None:
        if self.inflight:
            self.answer(first % len(self.inflight))

    def _doubt(self, first: int, second: int) -> None:
        if not self.inflight:
            return
        question = self.inflight.pop(first % len(self.inflight))
        if second % 3 == 0:
            self.carry_out(question)
        elif second % 3 == 1:
            self.strays.append(question)
        self.step(Unknown(op=question.op))

    def _fail(self, first: int) -> None:
        if self.inflight:
            question = self.inflight.pop(first % len(self.inflight))
            self.step(Failed(op=question.op, why=FailReason.UNREACHABLE))

    def _land(self, first: int) -> None:
        """A question in doubt or of a dead process takes effect now, or the zombie goes on."""
        if self.zombie is not None and self.zombie_questions and first < 6:
            question = self.zombie_questions.pop(first % len(self.zombie_questions))
            self._step_zombie(self.carry_out(question))
        elif self.strays:
            self.carry_out(self.strays.pop(first % len(self.strays)))

    def _step_zombie(self, *events: WriterEvent) -> None:
        """It was told nothing of its lost lease and believes what it hears."""
        assert self.zombie is not None
        effects = self.zombie.step(self.now, events)
        self.zombie.check()
        for effect in effects:
            if isinstance(effect, Send):
                self._judge_ack(effect)
            elif hasattr(effect, "op"):
                self.zombie_questions.append(effect)  # type: ignore[arg-type]

    def _shake_store(self, first: int) -> None:
        if first == 0:
            self.restart_store(-1)
        elif first <= 4:
            least = self.keyspace.forgotten()
            self.restart_store(max(least, self.keyspace.mark() - 2 * first))
        elif first == 5:
            self.keyspace.flush()  # FLUSHALL: the server and its run_id stay
        if first % 2:
            self.step(StoreReset(op=None, store=StoreRole.MESSAGE))

    def _move_lease(self, first: int) -> None:
        if first <= 1:
            self.lose()
            self._leave_behind()
            self.writer = Writer(CONFIG, choose=benign)
            self.wanted.clear()
            self.hold()
        elif first <= 3:
            self.lose()
            self.hold()
        elif first <= 5:
            # Paused, replaced, and one day resumed.
            self.strays.extend(self.zombie_questions)
            self.zombie, self.zombie_questions = self.writer, self.inflight
            self.inflight = []
            self.writer = Writer(CONFIG, choose=benign)
            self.wanted.clear()
            self.hold()

    def _leave_behind(self) -> None:
        self.strays.extend(q for q in self.inflight if not isinstance(q, ReadHistory))
        self.inflight.clear()

    def _grant(self) -> None:
        if self.wanted:
            self.epoch = max(self.epoch, self.wanted.pop(0).above)
            self.hold()

    def hold(self) -> None:
        """A grant is always above every epoch granted."""
        self.epoch += 1
        grant = LeaseHeld(
            resource=SHARD, epoch=self.epoch, barrier_epoch=0, barrier_offset=-1, wall=self.wall()
        )
        self.step(grant)

    # -------------------------------------------------------------- what must hold

    def _judge_ack(self, send: Send) -> None:
        """An ack names a record that stands in the effective outbox, and never another than before."""
        message = send.message
        if isinstance(message, SendDone):
            found = [r for r in self.effective() if r.message_id == message.message_id]
            assert len(found) == 1, "acknowledged, not in the log"
            assert found[0].conversation_seq == message.conversation_seq
            key = (found[0].sender_id, found[0].client_message_id)
            coordinates = (message.message_id, message.conversation_seq)
            assert self.acked.setdefault(key, coordinates) == coordinates
        elif isinstance(message, GroupDone):
            made = [r for r in self.effective() if r.version == message.version]
            assert any(
                r.kind == MessageKind.CONTROL and r.conversation_seq == message.control_seq
                for r in made
            ), "a version acknowledged that is not in the log"

    def judge_log(self) -> list[MessageRecord]:
        """Once each, in the order of conversation_seq, versions before what is frozen at them."""
        records = self.effective()
        ids = [r.message_id for r in records]
        assert len(ids) == len(frozenset(ids)), "a message stands twice in the effective outbox"
        keys = [(r.sender_id, r.client_message_id) for r in records]
        assert len(keys) == len(frozenset(keys)), "a client_message_id committed twice"
        last: dict[bytes, int] = {}
        versions = {(b"", 0)}
        for record in records:
            assert record.conversation_seq > last.get(record.conversation_id, 0), "order"
            last[record.conversation_id] = record.conversation_seq
            if record.kind == MessageKind.CONTROL:
                versions.add((record.conversation_id, record.version))
            elif record.version:
                assert (record.conversation_id, record.version) in versions, "unborn version"
        return records

    def heal(self) -> None:
        """No more faults: everything settles, and what was in flight lands late."""
        self.grants = True
        for _ in range(400):
            self.settle()
            due = self.writer.deadline()
            if due is None:
                break
            self.advance(max(0, due - self.now))
        assert self.writer.idle()
        while self.zombie_questions or self.strays:
            self._land(0)
        self.step(StoreReset(op=None, store=StoreRole.MESSAGE))
        self.settle()

    def judge_end(self) -> None:
        """Every request answered, every effective record COMMITTED, every ack repeatable."""
        records = self.judge_log()
        for record in records:
            number = int.from_bytes(record.client_message_id, "big")
            assert self.commit_state(record.sender_id, number) is CommitState.COMMITTED
        dump = self.keyspace.dump()
        states = [
            content[0]
            for key, (_, content) in dump.items()
            if key.startswith(b"d:") and isinstance(content, bytes)
        ]
        assert states == [CommitState.COMMITTED] * len(records)
        assert not dump.get(b"wp:" + bytes(4), ("zset", ()))[1], "intents left pending"
        held = {(r.sender_id, r.client_message_id): r for r in records}
        for (sender, key), (message_id, seq) in self.acked.items():
            assert (held[sender, key].message_id, held[sender, key].conversation_seq) == (
                message_id,
                seq,
            )
            assert b"d:" + dedupe_key("default", sender, key) in dump
        assert not self.violations
        self._judge_overlays(records)

    def _judge_overlays(self, records: list[MessageRecord]) -> None:
        """What lies in the store is what the records say: nothing of an intent that never was outboxed, nothing lost."""
        expected: dict[bytes, dict[bytes, bytes]] = {}
        for record in records:
            if not record.target_seq:
                continue
            target = record.target_seq.to_bytes(8, "big")
            if record.kind == MessageKind.RECALL:
                key, field = b"ov:" + record.conversation_id, target
            else:
                sender = record.sender_id.to_bytes(8, "big")
                key, field = b"od:" + record.conversation_id, sender + target
            laid = expected.setdefault(key, {})
            laid[field] = laid.get(field, b"") + record.conversation_seq.to_bytes(8, "big")
        dump = self.keyspace.dump()
        found = {
            key: {field: _in_order(seqs) for field, seqs in content}  # type: ignore[misc,union-attr]
            for key, (_, content) in dump.items()
            if key[:3] in (b"ov:", b"od:")
        }
        assert found == expected
        assert b"wo:" + bytes(4) not in dump
        hot = dump.get(b"ho:" + bytes(4), ("zset", ()))[1]
        assert len(hot) == len(records), "one place in the order of hot rows a record"


def _in_order(seqs: bytes) -> bytes:
    """A restored overlay may stand behind one that was laid later."""
    return b"".join(sorted(seqs[at : at + 8] for at in range(0, len(seqs), 8)))


@settings(max_examples=150)
@given(st.lists(ACTIONS, min_size=20, max_size=150))
def test_whatever_happens(actions: list[tuple[int, int, int]]) -> None:
    weather = Weather()
    for action in actions:
        weather.act(*action)
    weather.judge_log()
    weather.heal()
    weather.judge_end()


@settings(max_examples=150)
@given(st.lists(ACTIONS | OVERLAYS, min_size=20, max_size=150))
def test_whatever_happens_to_overlays(actions: list[tuple[int, int, int]]) -> None:
    weather = Weather(talked=True)
    for action in actions:
        weather.act(*action)
    weather.judge_log()
    weather.heal()
    weather.judge_end()


def test_overlays_are_among_what_happens() -> None:
    weather = Weather(talked=True)
    for second in range(8):
        weather.act(4, 0, second)
    weather.heal()
    laid = [record for record in weather.judge_log() if record.target_seq]
    assert {record.kind for record in laid} == {MessageKind.RECALL, MessageKind.DELETE_FOR_ME}
    weather.judge_end()


def test_the_weather_reaches_what_it_is_for() -> None:
    """A calm run of the same machinery commits; without this the properties above could hold for nothing."""
    weather = Weather()
    weather.act(0, 0, 0)
    for number in range(8):
        weather.act(0, number, 5)
        weather.act(0, number, 2)
    assert any(isinstance(question, Append) for question in weather.inflight) or weather.inflight
    weather.heal()
    weather.judge_end()
    assert len(weather.acked) >= 8
    assert not [q for q in weather.inflight if isinstance(q, ReadMembership)]
