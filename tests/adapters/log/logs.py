"""The logs the conformance suite runs on, behind one set of verbs: the simulator's and the SQLite one."""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

from qim.adapters.embedded.sqlite_log import SqliteLog
from qim.core.ports.completion import Failed, Unknown
from qim.core.ports.log import (
    Append,
    EndsRead,
    Fetch,
    Fetched,
    LogRecord,
    LogRequest,
    ReadEnds,
    StoredRecord,
    Topic,
)
from qim.sim.clock import Curve, Piece
from qim.sim.log import Log
from qim.sim.network import Cuts
from qim.sim.node import Host, Node
from qim.sim.world import World

PARTITIONS: Final = {Topic.OUTBOX: 2, Topic.DISPATCH: 3, Topic.USER_STATE: 2}
WALL_MS: Final = 1_700_000_000_000
FAR_MS: Final = 1 << 52
AGAIN_SECONDS: Final = 120.0
PATIENCE_MS: Final = 60_000
"""Simulated time after which an answer is taken to never come."""


class AskedLog(Protocol):
    """What a test may do with a log."""

    name: str

    def submit(self, request: LogRequest) -> None:
        """Hand over without waiting."""
        ...

    def answers(self, *ops: int) -> list[Any]:
        """The one answer of each op, once all have come."""
        ...

    def pending(self, op: int) -> bool:
        """Whether the op is still unanswered after everything submitted before it was."""
        ...

    def reopen(self) -> None:
        """The process that used the log ends and another one begins."""
        ...

    def retain(self, topic: Topic, partition: int, start: int) -> None:
        """Retention moves the start up."""
        ...

    def compact(self, partition: int, before: int) -> None:
        """Compaction of the user-state log takes what a record below ``before`` supersedes."""
        ...

    def close(self) -> None: ...


class Replies:
    """Answers by op; a second one to the same op is an error of the log."""

    def __init__(self) -> None:
        self.by_op: dict[int, Any] = {}

    def take(self, reply: Any) -> None:
        assert reply.op not in self.by_op, f"answered twice: {self.by_op[reply.op]} and {reply}"
        self.by_op[reply.op] = reply


class _Listener:
    """A machine that only listens."""

    def __init__(self, replies: Replies) -> None:
        self._replies = replies

    def step(self, now: int, events: Any) -> tuple[()]:
        for event in events:
            if hasattr(event, "op"):
                self._replies.take(event)
        return ()

    def deadline(self) -> None:
        return None

    def check(self) -> None: ...

    def idle(self) -> bool:
        return True


class SimulatedLog:
    """The smallest world around qim/sim/log.py: one process, no faults."""

    name = "simulator"

    def __init__(self) -> None:
        self._world = World(1)
        wall = Curve((Piece(0, WALL_MS),), monotone=False)
        self._log = Log(self._world, wall, Cuts(), base_ms=1, spread_ms=5)
        for topic, count in PARTITIONS.items():
            self._log.create(topic, count, 0)
        monotonic = Curve((Piece(0, 0),), monotone=True)
        self._node = Node(self._world, "writer-1", "writer", monotonic=monotonic, wall=wall)
        self._node.crashed = lambda _: None
        self._replies = Replies()
        self._start()

    def _start(self) -> None:
        self._host = Host(
            self._node, "writer-1/log", _Listener(self._replies), {}, identity=self._node.generation
        )
        self._node.start([self._host])

    def submit(self, request: LogRequest) -> None:
        match request:
            case Append():
                self._log.append(self._host, request)
            case Fetch():
                self._log.fetch(self._host, request)
            case ReadEnds():
                self._log.read_ends(self._host, request)

    def answers(self, *ops: int) -> list[Any]:
        until = self._world.now + PATIENCE_MS
        while any(op not in self._replies.by_op for op in ops):
            assert self._world.now < until, f"no answer to {ops}"
            self._world.run(self._world.now + 1)
        return [self._replies.by_op[op] for op in ops]

    def pending(self, op: int) -> bool:
        return op not in self._replies.by_op

    def reopen(self) -> None:
        self._node.crash()
        self._start()

    def retain(self, topic: Topic, partition: int, start: int) -> None:
        self._log.retain(self._log.partitions[topic, partition], start)

    def compact(self, partition: int, before: int) -> None:
        self._log.compact(self._log.partitions[Topic.USER_STATE, partition], before)

    def close(self) -> None: ...


class SqliteAsked:
    """qim/adapters/embedded/sqlite_log.py over a real file, with an event loop of its own."""

    name = "sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.loop = asyncio.new_event_loop()
        self._replies = Replies()
        self._arrived: asyncio.Event
        self._open()

    def _open(self) -> None:
        self.log = SqliteLog(self.path, self.loop, partitions=PARTITIONS)

    def _take(self, reply: Any) -> None:
        self._replies.take(reply)
        self._arrived.set()

    def submit(self, request: LogRequest) -> None:
        self._arrived = getattr(self, "_arrived", None) or asyncio.Event()
        self.log.submit(request, self._take)

    def answers(self, *ops: int) -> list[Any]:
        async def wait() -> None:
            while any(op not in self._replies.by_op for op in ops):
                self._arrived.clear()
                await self._arrived.wait()

        self.loop.run_until_complete(wait())
        return [self._replies.by_op[op] for op in ops]

    def pending(self, op: int) -> bool:
        return op not in self._replies.by_op

    def trimmed(self, *, keep_from: int, older_than: int, topic: Topic, partition: int) -> object:
        """One retention job by age, and its result."""
        return self.wait_for(
            lambda done: self.log.trim_older(
                topic, partition, older_than=older_than, keep_from=keep_from, done=done
            )
        )

    def wait_for(self, begin: Any) -> object:
        """``begin(done)``, then what ``done`` was given."""

        async def wait() -> object:
            future: asyncio.Future[object] = self.loop.create_future()
            begin(future.set_result)
            return await future

        return self.loop.run_until_complete(wait())

    def retain(self, topic: Topic, partition: int, start: int) -> None:
        result = self.wait_for(
            lambda done: self.log.trim(topic, partition, before=start, done=done)
        )
        assert isinstance(result, int), result

    def compact(self, partition: int, before: int) -> None:
        """Everything here is older than the far future: the limit is where the job stands when it has gone so far."""
        connection = sqlite3.connect(self.path)
        connection.execute(
            "UPDATE record SET time=CASE WHEN position<? THEN 0 ELSE ? END WHERE topic='user_state'",
            (before, FAR_MS),
        )
        connection.commit()
        connection.close()
        self.compacted(partition, older_than=FAR_MS)

    def compacted(self, partition: int, *, older_than: int) -> object:
        """One compaction job, and its result."""
        return self.wait_for(
            lambda done: self.log.compact(partition, older_than=older_than, done=done)
        )

    def reopen(self) -> None:
        self.loop.run_until_complete(self.log.close())
        self._open()

    def close(self) -> None:
        self.loop.run_until_complete(self.log.close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


class Asker:
    """Questions in the words of the port; ops are numbered here."""

    def __init__(self, log: AskedLog) -> None:
        self.log = log
        self._op = 0

    def _next(self) -> int:
        self._op += 1
        return self._op

    def start_append(
        self,
        *values: bytes,
        topic: Topic = Topic.OUTBOX,
        partition: int = 0,
        key: bytes = b"k" * 16,
    ) -> int:
        """An Append handed over; its op."""
        op = self._next()
        records = tuple(LogRecord(key=key, value=value) for value in values)
        self.log.submit(Append(op=op, topic=topic, partition=partition, epoch=1, records=records))
        return op

    def append(self, *values: bytes, **more: Any) -> Any:
        """Its answer."""
        return self.log.answers(self.start_append(*values, **more))[0]

    def start_fetch(
        self,
        offset: int,
        *,
        topic: Topic = Topic.OUTBOX,
        partition: int = 0,
        limit: int = 1_000,
        bytes_max: int = 1 << 20,
        wait_ms: int = 0,
        before: bytes = b"",
    ) -> int:
        """A Fetch handed over; its op."""
        op = self._next()
        self.log.submit(
            Fetch(
                op=op,
                topic=topic,
                partition=partition,
                offset=offset,
                limit=limit,
                bytes_max=bytes_max,
                wait_ms=wait_ms,
                before=before,
            )
        )
        return op

    def fetch(self, offset: int, **more: Any) -> Any:
        """Its answer."""
        return self.log.answers(self.start_fetch(offset, **more))[0]

    def until(self, kind: type, ask: Callable[..., Any], *words: Any, **more: Any) -> Any:
        """Asked again until it is answered so, as whoever reads or writes a log does where it failed or isn't known."""
        deadline = time.monotonic() + AGAIN_SECONDS
        while not isinstance(reply := ask(*words, **more), kind):
            assert isinstance(reply, Failed | Unknown), reply
            assert time.monotonic() < deadline, reply
        return reply

    def read_ends(self, topic: Topic = Topic.OUTBOX, partition: int = 0) -> Any:
        """The answer, whatever it is."""
        op = self._next()
        self.log.submit(ReadEnds(op=op, topic=topic, partition=partition))
        return self.log.answers(op)[0]

    def ends(self, topic: Topic = Topic.OUTBOX, partition: int = 0) -> EndsRead:
        """Topic id, start and end."""
        reply = self.read_ends(topic, partition)
        assert isinstance(reply, EndsRead), reply
        return reply

    def whole(self, topic: Topic = Topic.OUTBOX) -> list[StoredRecord]:
        """Every record of partition 0."""
        found: list[StoredRecord] = []
        position = self.until(EndsRead, self.read_ends, topic).start
        while records := self.until(Fetched, self.fetch, position, topic=topic).records:
            found += records
            position = records[-1].offset + 1
        return found
