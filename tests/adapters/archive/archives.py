"""The archives the conformance suite runs on, behind one set of verbs: the simulator's, SQLite's, a real Cassandra's."""

import asyncio
import time
from pathlib import Path
from typing import Any, Final, Protocol

from qim.adapters.cassandra import CassandraArchive, CassandraSettings
from qim.adapters.cassandra.schema import TABLES
from qim.adapters.cassandra.session import open_session
from qim.adapters.embedded.sqlite_archive import SqliteArchive
from qim.core.ports.archive import (
    ArchivedConversationsRead,
    ArchiveExpired,
    ArchiveRead,
    ArchiveRow,
    ArchiveWritten,
    ExpireArchive,
    ReadArchive,
    ReadArchiveBodies,
    ReadArchivedConversations,
    WriteArchive,
)
from qim.core.ports.completion import Failed, Unknown
from qim.sim.archive import Archive
from qim.sim.clock import Curve, Piece
from qim.sim.network import Cuts
from qim.sim.node import Host, Node
from qim.sim.world import World

PATIENT: Final = {"request_timeout_ms": 60_000, "connect_timeout_ms": 60_000}
"""A busy machine is no failure of a cluster: only who waits for an end makes these short."""
AGAIN_SECONDS: Final = 240.0
PATIENCE_MS: Final = 60_000
"""Simulated time after which an answer is taken to never come."""


class AskedArchive(Protocol):
    """What a test may do with an archive."""

    name: str
    expires_by_itself: bool
    """Rows leave when their time is up, and ExpireArchive finds nothing to do."""

    def ask(self, request: Any) -> Any:
        """The one answer."""
        ...

    def reopen(self) -> None:
        """The process that used the archive ends and another one begins."""
        ...

    def close(self) -> None: ...


class _Listener:
    """A machine that only listens."""

    def __init__(self, replies: dict[int, Any]) -> None:
        self._replies = replies

    def step(self, now: int, events: Any) -> tuple[()]:
        for event in events:
            if hasattr(event, "op"):
                assert event.op not in self._replies, f"answered twice: {event}"
                self._replies[event.op] = event
        return ()

    def deadline(self) -> None:
        return None

    def check(self) -> None: ...

    def idle(self) -> bool:
        return True


class SimulatedArchive:
    """The smallest world around qim/sim/archive.py: one process; faults only where a test sets rates."""

    name = "simulator"
    expires_by_itself = False

    def __init__(self) -> None:
        self.world = World(1)
        self.archive = Archive(self.world, Cuts(), base_ms=1, spread_ms=5)
        wall, monotonic = (Curve((Piece(0, 0),), monotone=flag) for flag in (False, True))
        self._node = Node(self.world, "archiver-1", "archiver", monotonic=monotonic, wall=wall)
        self._node.crashed = lambda _: None
        self._replies: dict[int, Any] = {}
        self._start()

    def _start(self) -> None:
        machine = _Listener(self._replies)
        name = "archiver-1/archive"
        self._host = Host(self._node, name, machine, {}, identity=self._node.generation)
        self._node.start([self._host])

    def ask(self, request: Any) -> Any:
        self.archive.request(self._host, request)
        until = self.world.now + PATIENCE_MS
        while request.op not in self._replies:
            assert self.world.now < until, f"no answer to {request}"
            self.world.run(self.world.now + 1)
        return self._replies.pop(request.op)

    def settle(self) -> None:
        """Whatever is still to come late, comes."""
        self.world.run(self.world.now + PATIENCE_MS)

    def reopen(self) -> None:
        self._node.crash()
        self._start()

    def close(self) -> None: ...


class _OnLoop:
    """An adapter with an event loop of its own."""

    archive: Any

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()

    def ask(self, request: Any) -> Any:
        async def wait() -> Any:
            future: asyncio.Future[Any] = self.loop.create_future()
            self.archive.submit(request, future.set_result)
            return await future

        reply = self.loop.run_until_complete(wait())
        assert reply.op == request.op
        return reply


class SqliteAsked(_OnLoop):
    """qim/adapters/embedded/sqlite_archive.py over a real file."""

    name = "sqlite"
    expires_by_itself = False

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.archive = SqliteArchive(path, self.loop)

    def reopen(self) -> None:
        self.loop.run_until_complete(self.archive.close())
        self.archive = SqliteArchive(self.path, self.loop)

    def close(self) -> None:
        self.loop.run_until_complete(self.archive.close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


class CassandraAsked(_OnLoop):
    """qim/adapters/cassandra/archive.py in a keyspace that stands already; emptied at the beginning."""

    name = "cassandra"
    expires_by_itself = True

    def __init__(self, settings: CassandraSettings) -> None:
        super().__init__()
        self.settings = settings
        cluster, session = open_session(settings)
        names = [name for name in TABLES if name != "schema_version"]
        sent = [session.execute_async(f"TRUNCATE {settings.keyspace}.{name}") for name in names]
        for one in sent:
            one.result()
        cluster.shutdown()
        self._start()

    def _start(self) -> None:
        self.archive = CassandraArchive(self.settings, self.loop)
        try:
            self.loop.run_until_complete(self.archive.start())
        except BaseException:
            self.close()
            raise

    def reopen(self) -> None:
        self.loop.run_until_complete(self.archive.close())
        self._start()

    def close(self) -> None:
        self.loop.run_until_complete(self.archive.close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


class KeptCassandra(CassandraAsked):
    """Opens what stands, and empties nothing."""

    def __init__(self, settings: CassandraSettings) -> None:
        _OnLoop.__init__(self)
        self.settings = settings
        self._start()


class Asker:
    """Questions in the words of the port; ops are numbered here."""

    def __init__(self, archive: AskedArchive) -> None:
        self.archive = archive
        self.examples = 0
        """Of a property: how many have been tried on this archive."""
        self._op = 0

    def _ask(self, kind: Any, **fields: Any) -> Any:
        self._op += 1
        reply = self.archive.ask(kind(op=self._op, **fields))
        assert reply.op == self._op
        return reply

    def write(self, *rows: ArchiveRow, partition: int = 0, through: int = 0) -> Any:
        """The answer to one batch, whatever it is."""
        return self._ask(WriteArchive, partition=partition, rows=rows, through=through)

    def written(self, *rows: ArchiveRow, **more: Any) -> tuple[tuple[bytes, int], ...]:
        """A batch that is confirmed; its reused places."""
        reply = self.write(*rows, **more)
        assert isinstance(reply, ArchiveWritten), reply
        return reply.reused

    def page(
        self,
        conversation_id: bytes,
        low: int = -1,
        high: int = 1 << 64,
        *,
        newest_first: bool = False,
        limit: int = 1_000,
    ) -> ArchiveRead:
        reply = self._ask(
            ReadArchive,
            conversation_id=conversation_id,
            low=low,
            high=high,
            newest_first=newest_first,
            limit=limit,
        )
        assert isinstance(reply, ArchiveRead), reply
        return reply

    def seqs(self, conversation_id: bytes, *bounds: int, **more: Any) -> list[int]:
        """The seqs of a page."""
        page = self.page(conversation_id, *bounds, **more)
        return [int.from_bytes(stored[:8], "big") for stored in page.stored]

    def bodies(self, *names: tuple[bytes, int, bytes]) -> tuple[bytes | None, ...]:
        stored: tuple[bytes | None, ...] = self._ask(ReadArchiveBodies, names=names).stored
        return stored

    def let_go(self) -> int:
        """Before which time rows may be gone."""
        answer: int = self._ask(ReadArchiveBodies, names=((b"nobody", 1, b"none"),)).let_go
        return answer

    def conversations(
        self, partition: int = 0, after: bytes = b"", limit: int = 1_000
    ) -> ArchivedConversationsRead:
        reply = self._ask(ReadArchivedConversations, partition=partition, after=after, limit=limit)
        assert isinstance(reply, ArchivedConversationsRead), reply
        return reply

    def expire(self, before_wall: int, limit: int = 1_000) -> tuple[int, bool]:
        reply = self._ask(ExpireArchive, before_wall=before_wall, limit=limit)
        assert isinstance(reply, ArchiveExpired), reply
        return reply.removed, reply.more


class PatientAsker(Asker):
    """Asks again what failed or isn't known, as readers and the archiver do: of nodes that come and go nobody is told more."""

    def _ask(self, kind: Any, **fields: Any) -> Any:
        deadline = time.monotonic() + AGAIN_SECONDS
        while isinstance(reply := super()._ask(kind, **fields), Failed | Unknown):
            assert time.monotonic() < deadline, reply
        return reply
