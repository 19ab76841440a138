"""What stands around a Writer: the real scripts over the simulated keyspace, a list as the log, a list as the registry."""

from functools import cache

from qim.adapters.redis import codec
from qim.adapters.redis.scripts import load_scripts
from qim.core.contract.entities import MessageRecord
from qim.core.contract.logvalue import Outboxed, read_outbox
from qim.core.effective import EffectiveFilter
from qim.core.ports.archive import ReadArchive, ReadArchivedConversations
from qim.core.ports.completion import StoreReset, StoreRole
from qim.core.ports.log import (
    Append,
    Appended,
    EndsRead,
    Fetch,
    Fetched,
    LogRecord,
    OutOfRange,
    Position,
    ReadEnds,
    StoredRecord,
)
from qim.core.ports.registry import (
    BarrierRegistered,
    LeaseRead,
    ReadLease,
    RegisterBarrier,
    Resource,
    Role,
)
from qim.core.ports.store_history import ArchiveOpened, CommitArchive, OpenArchive
from qim.core.position import is_other
from qim.core.writer import WriterEvent
from qim.core.writer.vocabulary import Question
from qim.sim.keyspace import Keyspace, ScriptRuntime
from tests.core.writer.toy_archive import ToyArchive

SHARD = Resource(role=Role.WRITER, number=0)


@cache
def runtime() -> ScriptRuntime:
    """Compiling the scripts takes milliseconds; every scene shares them."""
    return ScriptRuntime(load_scripts())


class Outside:
    """One partition, one store, one registry, one archive; each carries out what it is asked, at once and rightly."""

    def __init__(self, log_offset: int) -> None:
        self.now = 1000
        self.log_offset = log_offset
        self.keyspace = Keyspace(runtime())
        self.run_id = b"run-1"
        self.log: list[StoredRecord] = []
        self.log_start = 0
        self.archive = ToyArchive()
        self.archive_epoch = 0
        self.epoch = 0
        self.barriers: list[tuple[int, int]] = []

    def carry_out(self, question: Question) -> WriterEvent:
        """What the world does and answers."""
        match question:
            case Append():
                return self._append(question)
            case Fetch():
                return self._fetch(question)
            case ReadEnds():
                end = self.log_start + len(self.log)
                return EndsRead(op=question.op, topic_id=b"t", start=self.log_start, end=end)
            case ReadLease():
                return self._read_lease(question)
            case RegisterBarrier():
                self.barriers.append((question.epoch, question.offset))
                return BarrierRegistered(op=question.op)
            case ReadArchive():
                return self.archive.read(question)
            case ReadArchivedConversations():
                return self.archive.conversations(question)
            case _:
                return self._store(question)

    def _store(self, question: Question) -> WriterEvent:
        named = codec.run_id_named(question)  # type: ignore[arg-type]
        if named and named != self.run_id:
            return StoreReset(op=question.op, store=StoreRole.MESSAGE)
        call = codec.encode(question)  # type: ignore[arg-type]
        assert not codec.too_large(call)
        raw = self.keyspace.call(call.script, call.keys, call.args)
        return codec.decode(question, self.run_id, raw)  # type: ignore[arg-type, return-value]

    def put(self, record: LogRecord) -> int:
        """Append to the log; its offset."""
        offset = self.log_start + len(self.log)
        time = self.now + self.log_offset
        self.log.append(
            StoredRecord(offset=offset, append_time=time, key=record.key, value=record.value)
        )
        return offset

    def _append(self, question: Append) -> Appended:
        offsets = tuple(self.put(record) for record in question.records)
        return Appended(op=question.op, offsets=offsets, append_time=self.now + self.log_offset)

    def _fetch(self, question: Fetch) -> Fetched | OutOfRange:
        end = self.log_start + len(self.log)
        if not self.log_start <= question.offset <= end:
            return OutOfRange(op=question.op, topic_id=b"t", start=self.log_start, end=end)
        first = question.offset - self.log_start
        if first > 0 and is_other(question.before, self.log[first - 1]):
            return OutOfRange(
                op=question.op, topic_id=b"t", start=self.log_start, end=end, other_record=True
            )
        records = tuple(self.log[first : first + question.limit])
        return Fetched(
            op=question.op, topic_id=b"t", start=self.log_start, end=end, records=records
        )

    def _read_lease(self, question: ReadLease) -> LeaseRead:
        known = [b for b in self.barriers if b[1] < question.barriers_below]
        epoch, offset = max(known, default=(0, -1))
        return LeaseRead(
            op=question.op,
            resource=SHARD,
            epoch=self.epoch,
            owner="writer-1",
            address="writer-1",
            barrier_epoch=epoch,
            barrier_offset=offset,
        )

    def restart_store(self, mark: int | None = None) -> None:
        """The server restarts with the tail after ``mark`` lost; None: nothing is lost, -1: it comes back empty."""
        self.run_id = b"run-" + str(int(self.run_id[4:]) + 1).encode()
        if mark == -1:
            self.keyspace.flush()
        elif mark is not None:
            self.keyspace.rollback_to(mark)

    def archive_to(self, offset: int | None = None) -> None:
        """The archiver takes every effective record below ``offset`` (None: all) and publishes its watermark."""
        to = self.log_start + len(self.log) if offset is None else offset
        admitted = EffectiveFilter(0)
        for stored in self.log:
            entry = read_outbox(stored.value)
            wanted = self.archive.position <= stored.offset < to
            if admitted.admits(entry) and wanted and isinstance(entry, Outboxed):  # type: ignore[arg-type]
                self.archive.write(entry.stored)
        self.archive.position = max(to, self.archive.position)
        self.archive_epoch += 1
        epoch = self.archive_epoch
        opened = self._store(OpenArchive(op=1, partition=0, epoch=epoch, fresh_key=b"k" * 16))  # type: ignore[arg-type]
        assert isinstance(opened, ArchiveOpened)
        self._store(
            CommitArchive(  # type: ignore[arg-type]
                op=1,
                partition=0,
                epoch=epoch,
                incarnation=opened.incarnation,
                from_offset=0 if opened.position is None else opened.position.offset,
                to=Position(b"t", self.archive.position, b"d" * 16),
                filter_epoch=0,
            )
        )

    def trim_log(self, start: int) -> None:
        """Retention takes everything below ``start``."""
        self.log = self.log[start - self.log_start :]
        self.log_start = start

    def effective(self) -> list[MessageRecord]:
        """Effective records of the outbox in order."""
        admitted = EffectiveFilter(0)
        records = []
        for stored in self.log:
            entry = read_outbox(stored.value)
            assert not isinstance(entry, Exception)
            if admitted.admits(entry) and isinstance(entry, Outboxed):  # type: ignore[arg-type]
                records.append(entry.record)
        return records
