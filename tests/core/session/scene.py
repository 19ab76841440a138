"""A world small enough to hold in mind: one SessionProjection over the real scripts, two toy logs, and a toy writer.

The writer model is the oracle too: what is visible, unread and newest is computed from its rows, by the definition.
"""

from collections.abc import Callable
from typing import Any

from qim.adapters.redis import codec
from qim.adapters.redis.scripts import load_scripts
from qim.core.contract.actor import Actor
from qim.core.contract.entities import MessageKind, encode_dispatch, encode_record, stored_record
from qim.core.contract.errors import ErrorCode
from qim.core.contract.hashing import H
from qim.core.contract.logvalue import dispatch_value
from qim.core.contract.rpc import AskMembers, Kick, PushBatch, Refused
from qim.core.contract.rpc_session import (
    AskSessionList,
    AskSummaries,
    SessionListAnswer,
    SubmitRead,
    SubmitState,
)
from qim.core.ports.completion import Failed, FailReason, Unknown
from qim.core.ports.local import FreshEpochWanted, LeaseHeld, Started
from qim.core.ports.log import (
    Append,
    Appended,
    EndsRead,
    Fetch,
    Fetched,
    OutOfRange,
    ReadEnds,
    StoredRecord,
    Topic,
)
from qim.core.ports.network import Received, Send
from qim.core.ports.observe import Count, StageReached, Violation, Warned
from qim.core.ports.registry import LeaseRead, ReadLease, Resource, Role
from qim.core.ports.store_reads import ReadVersions, VersionsRead
from qim.core.position import is_other
from qim.core.session import SessionConfig, SessionProjection
from qim.sim.keyspace import Keyspace, ScriptRuntime
from tests.core.session.spoken import SHARDS, TENANT, dispatches_of, record_of
from tests.core.session.toy_writer import (
    WALL,
    WRITERS,
    Conversation,
    Row,
    WriterModel,
    conversation,
)

WINDOW = 5
RUNTIME = ScriptRuntime(load_scripts())
CONFIG = SessionConfig(
    shard_count=SHARDS,
    outbox_partition_count=WRITERS,
    unread_window=WINDOW,
    fetch_wait_ms=100,
    retry_first_ms=10,
    retry_most_ms=50,
)
EVERYONE = {1: 0, 2: 0, 3: 0}


def actor(user_id: int, device: bytes = b"d") -> Actor:
    return Actor(TENANT, user_id, device)


Fault = Callable[[Any], str | None]


class Scene:
    """Effects in, events out, until nothing is left to do; a fault may name what becomes of an effect."""

    def __init__(self, config: SessionConfig = CONFIG, *, log_start: int = 0) -> None:
        """``log_start``: retention took all before it, from dispatch logs that are empty."""
        self.config = config
        self.log_start = log_start
        self.writer = WriterModel()
        self.keyspace = Keyspace(RUNTIME)
        self.run_id = b"run-1"
        self.logs: dict[tuple[Topic, int], list[StoredRecord]] = {
            (topic, shard): []
            for topic in (Topic.DISPATCH, Topic.USER_STATE)
            for shard in range(SHARDS)
        }
        self.compacted: dict[int, None] = {}
        self.now = 1_000
        self.epoch = 0
        self.answers: dict[int, Any] = {}
        self.violations: list[Violation] = []
        self.warned: list[Warned] = []
        self.counts: dict[str, int] = {}
        self.stages: list[tuple[int, str]] = []
        self.sent: list[Any] = []
        self.fault: Fault = lambda effect: None
        self.missing_versions: dict[bytes, None] = {}
        self.applied = 0
        self._rid = 0
        self.start()

    # ------------------------------------------------------------ life

    def start(self, shards: tuple[int, ...] = tuple(range(SHARDS))) -> None:
        """A new process: what the last one had in memory or in flight is gone."""
        self.machine = SessionProjection(self.config, choose=lambda site, key: 0)
        self.todo: list[Any] = []
        self.parked: list[Fetch] = []
        self.feed(Started(address="s", wall=self.wall()))
        for shard in shards:
            self.lease(shard)

    def lease(self, shard: int) -> None:
        self.epoch += 1
        self.feed(
            LeaseHeld(
                resource=Resource(role=Role.SESSION, number=shard),
                epoch=self.epoch,
                barrier_epoch=0,
                barrier_offset=-1,
                wall=self.wall(),
            )
        )

    def wall(self) -> int:
        return WALL + self.now

    def feed(self, *events: Any) -> None:
        self.todo.extend(self.machine.step(self.now, list(events)))
        self.machine.check()

    def run(self, until_ms: int = 0) -> None:
        """Do all there is to do; then let time pass, so far as anything is due."""
        end = self.now + until_ms
        while True:
            self._drain()
            at = self.machine.deadline()
            if at is None or at > end:
                break
            self.now = max(self.now, at)
            self.feed()
        self.now = max(self.now, end)

    def _drain(self) -> None:
        rounds = 0
        while self.todo:
            rounds += 1
            assert rounds < 20_000, "it never comes to rest"
            effect = self.todo.pop(0)
            reply = self._do(effect)
            if reply is not None:
                self.feed(reply)

    # ------------------------------------------------------------ the outside

    def _do(self, effect: Any) -> Any:
        fate = self.fault(effect)
        if fate == "failed":
            return Failed(op=effect.op, why=FailReason.UNREACHABLE)
        if fate == "lost":
            return Unknown(op=effect.op)
        if fate == "swallowed":
            return None
        reply = self.outside(effect)
        if fate == "unknown":
            return Unknown(op=effect.op)
        return reply

    def outside(self, effect: Any) -> Any:
        match effect:
            case Count():
                self.counts[effect.name] = self.counts.get(effect.name, 0) + effect.value
            case StageReached():
                self.stages.append((effect.trace_id, effect.stage))
            case Violation():
                self.violations.append(effect)
            case Warned():
                self.warned.append(effect)
            case FreshEpochWanted():
                self.epoch = max(self.epoch, effect.above)
                self.lease(effect.resource.number)
            case Send():
                return self._network(effect)
            case ReadLease():
                return LeaseRead(
                    op=effect.op,
                    resource=effect.resource,
                    epoch=1,
                    owner="w",
                    address=f"writer-{effect.resource.number}",
                    barrier_epoch=0,
                    barrier_offset=-1,
                )
            case ReadVersions():
                return self._versions(effect)
            case Append() | Fetch() | ReadEnds():
                return self._log(effect)
            case _:
                return self._store(effect)
        return None

    def _network(self, effect: Send) -> Any:
        message = effect.message
        if effect.address.startswith("writer-"):
            assert isinstance(message, AskSummaries | AskMembers)
            self.sent.append(message)
            answer = self.writer.answer(message)
            return Received(source=effect.address, wall=self.wall(), message=answer)
        assert not isinstance(message, PushBatch | Kick), "a projection pushes nothing"
        assert message.rid not in self.answers, "answered twice"
        self.answers[message.rid] = message
        return None

    def _store(self, request: Any) -> Any:
        call = codec.encode(request)
        assert not codec.too_large(call)
        if codec.run_id_named(request) not in (b"", self.run_id):
            return codec.decode(request, self.run_id, [b"R"])
        raw = self.keyspace.call(call.script, call.keys, call.args)
        return codec.decode(request, self.run_id, raw)

    def _versions(self, effect: ReadVersions) -> VersionsRead:
        versions = []
        for _, name, version, digest in effect.names:
            found = self.writer.frozen(name, version, digest)
            versions.append(None if name in self.missing_versions else found)
        applied = (self.applied,) * len(versions)
        return VersionsRead(op=effect.op, versions=tuple(versions), applied=applied)

    def _log(self, effect: Any) -> Any:
        records = self.logs[effect.topic, effect.partition]
        topic_id = H("test.topic", effect.topic.value)
        start = self.log_start if effect.topic is Topic.DISPATCH else 0
        end = records[-1].offset + 1 if records else start
        match effect:
            case ReadEnds():
                return EndsRead(op=effect.op, topic_id=topic_id, start=start, end=end)
            case Append():
                offsets = []
                for offset, record in enumerate(effect.records, start=end):
                    records.append(
                        StoredRecord(
                            offset=offset,
                            append_time=self.wall(),
                            key=record.key,
                            value=record.value,
                        )
                    )
                    offsets.append(offset)
                self.wake()
                return Appended(op=effect.op, offsets=tuple(offsets), append_time=self.wall())
            case _:
                if effect.offset > end:
                    return OutOfRange(op=effect.op, topic_id=topic_id, start=start, end=end)
                before = [r for r in records if r.offset == effect.offset - 1]
                if before and is_other(effect.before, before[0]):
                    return OutOfRange(
                        op=effect.op, topic_id=topic_id, start=start, end=end, other_record=True
                    )
                found = [r for r in records if r.offset >= effect.offset][: effect.limit]
                if not found and effect.wait_ms:
                    self.parked.append(effect)
                    return None
                return Fetched(
                    op=effect.op, topic_id=topic_id, start=start, end=end, records=tuple(found)
                )

    def wake(self) -> None:
        """Logs grew: parked fetches are looked at again."""
        parked, self.parked = self.parked, []
        self.todo.extend(parked)

    # ------------------------------------------------------------ what happens

    def group(self, number: int, members: dict[int, int]) -> bytes:
        name = conversation(number)
        self.writer.conversations[name] = Conversation(name, dict(members))
        return name

    def say(
        self,
        name: bytes,
        sender: int,
        kind: int = MessageKind.TEXT,
        target: int = 0,
        body: bytes = b"x",
        *,
        pending: bool = False,
        dispatched: bool = True,
    ) -> Row:
        """A record of the conversation, committed and dispatched."""
        talk = self.writer.conversations[name]
        seq = talk.rows[-1].seq + 1 if talk.rows else 1
        activity = self.writer.activity()
        record = record_of(name, sender, kind, target, body, activity, self.wall())
        stored = stored_record(seq, activity, encode_record(record))
        row = Row(seq, activity, kind, sender, stored, target, pending)
        talk.rows.append(row)
        if dispatched:
            self.dispatch(talk, row)
        return row

    def dispatch(self, talk: Conversation, row: Row) -> None:
        """Its dispatches stand in their logs."""
        for one in dispatches_of(talk, row, self.wall()):
            self.put(Topic.DISPATCH, one.shard, dispatch_value(1, encode_dispatch(one)))

    def put(self, topic: Topic, shard: int, value: bytes, key: bytes = b"k") -> int:
        records = self.logs[topic, shard]
        offset = records[-1].offset + 1 if records else 0
        records.append(StoredRecord(offset=offset, append_time=self.wall(), key=key, value=value))
        self.wake()
        return offset

    # ------------------------------------------------------------ questions

    def ask(self, kind: Any, user: int, device: bytes = b"d", **fields: Any) -> int:
        """Hand a question over; its rid."""
        self._rid += 1
        message = kind(rid=self._rid, actor=actor(user, device), **fields)
        self.feed(Received(source="gateway", wall=self.wall(), message=message))
        return self._rid

    def answer(self, kind: Any, user: int, device: bytes = b"d", **fields: Any) -> Any:
        """Its answer, with as much time as a question may take."""
        self.run()
        rid = self.ask(kind, user, device, **fields)
        self.run()
        if rid not in self.answers:
            self.run(self.config.question_ms)
        return self.answers[rid]

    def read(self, user: int, name: bytes, seq: int) -> Any:
        return self.answer(SubmitRead, user, conversation_id=name, read_seq=seq)

    def state(
        self, user: int, name: bytes, version: int, device: bytes = b"d", **fields: Any
    ) -> Any:
        return self.answer(
            SubmitState,
            user,
            device,
            conversation_id=name,
            version=version,
            **{"flags": 0, "value": b""} | fields,
        )

    def page(self, user: int, revision: int = 0, after: bytes = b"", limit: int = 0) -> Any:
        return self.answer(AskSessionList, user, revision=revision, after=after, limit=limit)

    def pages(self, user: int, limit: int = 0) -> list[Any]:
        """The whole list, page by page."""
        page = self.page(user, limit=limit)
        assert isinstance(page, SessionListAnswer), page
        rows = list(page.rows)
        while page.after:
            page = self.page(user, page.revision, page.after, limit)
            assert isinstance(page, SessionListAnswer), page
            rows += page.rows
        return rows

    # ------------------------------------------------------------ the oracle

    def expected(self, user: int, marks: dict[tuple[int, bytes], int]) -> list[Any]:
        """What the list must show, as the definition says."""
        return self.writer.listed(user, marks, self.config.unread_window)


def shown(rows: list[Any]) -> list[Any]:
    """A list in the oracle's words."""
    return [
        (r.last_activity_id, r.conversation_id, r.unread, r.unread_exact, r.head, r.read_seq)
        for r in rows
    ]


def refused(answer: Any, code: ErrorCode) -> None:
    """It was refused, for this reason."""
    assert isinstance(answer, Refused), answer
    assert answer.code == code, answer
