"""Reads that don't wait: what is asked in one turn of the loop is one request a broker.

Nothing is reset here. OFFSET_OUT_OF_RANGE is answered only after the ends were read too (ends.py), and a position beyond
the end of a partition with several copies only when a second look, at what the cluster says now, finds the same: a broker
that was paused believes to lead for a moment after it wakes, and would call a healthy position lost.

A read that names the record before its offset is asked from that record on, so that one answer of one leadership shows both:
a log that lost its tail and grew again has another there. What retention or compaction took of it can't be compared.
"""

from asyncio import AbstractEventLoop
from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec import Struct, structs

from qim.adapters.kafka.cluster import BrokerGone, Cluster, Lane
from qim.adapters.kafka.ends import NO_ERROR, Ends, EndsReader
from qim.adapters.kafka.fetch_wire import AskFetch, FetchedPart, FetchPart
from qim.adapters.kafka.pump import Pump
from qim.adapters.kafka.record_batches import (
    BatchesBroken,
    BatchPacked,
    Decoded,
    UnreadBatches,
    decode,
)
from qim.adapters.kafka.settings import KIB, KafkaSettings
from qim.core.ports.completion import FailReason
from qim.core.ports.log import StoredRecord
from qim.core.position import is_other, names_record

OUT_OF_RANGE: Final = 1
UNAUTHORISED: Final = (29, 31)
READ_BYTES_MIN: Final = 256 * KIB
"""A batch is sent whole; asking for less than a usual one would only have it asked again."""
READ_BYTES_MAX: Final = 1024 * KIB


class Span(Struct, frozen=True, kw_only=True):
    """Records from the asked offset on; ``next`` is where to go on."""

    ends: Ends
    records: list[StoredRecord]
    next: int
    epoch: int = -1
    """The leadership under which it was read."""


class Outside(Struct, frozen=True, kw_only=True):
    """The offset is not within the ends; or, ``other_record``, another record stands before it than the one named."""

    ends: Ends
    other_record: bool = False


ReadDone = Callable[[Span | Outside | FailReason], None]


class _Read(Struct):
    key: tuple[str, int]
    offset: int
    bytes_max: int
    deadline: float
    done: ReadDone
    before: bytes
    """Digest of the record before ``offset``, empty where it isn't to be compared."""
    compared: int | None = None
    """The leadership under which it was."""
    ready_at: float = 0.0
    seen_outside: tuple[int, int] | None = None
    """Who said so, and the doubt about it, where the offset was found beyond the end."""


class Reader:
    """``read`` calls ``done`` once, on the loop, within its patience and one request more."""

    def __init__(
        self, settings: KafkaSettings, loop: AbstractEventLoop, cluster: Cluster, ends: EndsReader
    ) -> None:
        self._settings = settings
        self._loop = loop
        self._cluster = cluster
        self._ends = ends
        self._reads: list[_Read] = []
        self._nodes_busy: set[int] = set()
        self._flying = 0
        self._pump = Pump(
            loop,
            pause_ms=settings.backoff_ms,
            what="the sending of reads",
            look=self._send_ready,
        )
        self.unread = UnreadBatches()
        self.positions_refused = 0
        """Reads outside the log; nothing is ever reset."""
        cluster.on_refreshed.append(self._pump.soon)

    @property
    def waiting(self) -> int:
        """Reads not yet answered; those in doubt wait for ends."""
        return len(self._reads) + self._flying

    def read(
        self,
        key: tuple[str, int],
        offset: int,
        bytes_max: int,
        done: ReadDone,
        before: bytes = b"",
    ) -> None:
        """Records of (topic name, partition) from ``offset`` on, at least one where there is one; ``before`` as in Fetch."""
        size = min(max(bytes_max, READ_BYTES_MIN), READ_BYTES_MAX)
        named = before if offset > 0 and names_record(before) else b""
        deadline = self._loop.time() + self._settings.fetch_patience_ms / 1000
        self._reads.append(_Read(key, offset, size, deadline, done, named))
        self._pump.soon()

    async def close(self) -> None:
        """What waits is answered CANCELLED."""
        await self._pump.close()
        reads, self._reads = self._reads, []
        for read in reads:
            read.done(FailReason.CANCELLED)

    # ---------------------------------------------------------------- going out

    def _send_ready(self) -> bool:
        now = self._loop.time()
        reads: dict[int, dict[tuple[str, int], _Read]] = {}
        rest: list[_Read] = []
        for read in self._reads:
            node = self._ready_node(read, now)
            if node is not None and read.key not in reads.setdefault(node, {}):
                reads[node][read.key] = read
            elif read.deadline > now:
                rest.append(read)
            else:
                self._loop.call_soon(read.done, FailReason.UNREACHABLE)
        self._reads = rest
        for node, chosen in reads.items():
            if chosen:
                self._nodes_busy.add(node)
                self._pump.begin(self._fetch(node, [*chosen.values()]))
        return bool(self._reads)

    def _ready_node(self, read: _Read, now: float) -> int | None:
        leader = self._cluster.leader(*read.key)
        if leader is None:
            self._cluster.want_refresh()
            return None
        if read.ready_at > now or read.deadline <= now or leader.node in self._nodes_busy:
            return None
        return leader.node

    def _again(self, read: _Read, *, after_ms: int) -> None:
        read.ready_at = self._loop.time() + after_ms / 1000
        self._reads.append(read)

    # ---------------------------------------------------------------- reads

    async def _fetch(self, node: int, reads: list[_Read]) -> None:
        """One request; whoever the answer doesn't settle is asked again."""
        backoff = self._settings.backoff_ms
        open_reads = {read.key: read for read in reads}
        self._flying += len(reads)
        parts = [self._part_of(read) for read in reads]
        asked = {(part.topic, part.partition): part for part in parts}
        names = {part.topic_id: part.topic for part in parts}
        request = AskFetch(parts, wait_ms=0, bytes_max=self._settings.request_bytes_max)
        pause = backoff
        try:
            answer = await self._cluster.ask(node, Lane.READ, request)
            if answer.error == NO_ERROR:
                pause = 0
            for part in answer.parts:
                name = part.topic if isinstance(part.topic, str) else names.get(part.topic, "")
                read = open_reads.pop((name, part.partition), None)
                if read is not None:
                    self._flying -= 1
                    self._take(read, part, asked[read.key])
        except BrokerGone:
            pass
        finally:
            self._nodes_busy.discard(node)
            self._flying -= len(open_reads)
            for read in open_reads.values():
                self._again(read, after_ms=pause or backoff)
            self._pump.soon()

    def _part_of(self, read: _Read) -> FetchPart:
        part = self.part(read.key, read.offset, read.bytes_max)
        if read.before and read.compared != part.leader_epoch:
            return structs.replace(part, offset=read.offset - 1)
        return part

    def part(self, key: tuple[str, int], offset: int, bytes_max: int) -> FetchPart:
        """One partition of a request, under the identity and leadership known now."""
        leader = self._cluster.leader(*key)
        return FetchPart(
            topic=key[0],
            topic_id=self._cluster.topic_id(key[0]),
            partition=key[1],
            leader_epoch=leader.epoch if leader is not None else -1,
            offset=offset,
            bytes_max=bytes_max,
        )

    def _take(self, read: _Read, part: FetchedPart, asked: FetchPart) -> None:
        if part.error == OUT_OF_RANGE:
            self._doubt_offset(read)
        elif part.error in UNAUTHORISED:
            read.done(FailReason.UNAUTHORISED)
        elif part.error != NO_ERROR:
            self._cluster.want_refresh()
            self._again(read, after_ms=self._settings.backoff_ms)
        else:
            self._take_data(read, part, asked)

    def _doubt_offset(self, read: _Read) -> None:
        self._ends.ask(
            read.key,
            partial(self._judge_outside, read),
            sure=False,  # what is found there is looked at twice all the same
            deadline=read.deadline,
        )

    def _take_data(self, read: _Read, part: FetchedPart, asked: FetchPart) -> None:
        try:
            decoded = decode(part.data, asked.offset)
        except BatchesBroken as error:
            self.unread.met(read.key, asked.offset, error)
            if isinstance(error, BatchPacked):
                read.done(FailReason.UNREACHABLE)
            else:
                self._again(read, after_ms=self._settings.backoff_ms)
            return
        if asked.offset < read.offset and decoded.whole:
            if decoded.records and decoded.records[0].offset == asked.offset:
                if is_other(read.before, decoded.records[0]):
                    self.positions_refused += 1
                    ends = _span(asked, part, decoded).ends
                    read.done(Outside(ends=ends, other_record=True))
                    return
                del decoded.records[0]
            read.compared = asked.leader_epoch
        elif asked.offset < read.offset and part.high_watermark <= asked.offset:
            # The log ends below us, or a new leader has not caught up with its own past: its ends tell.
            self._doubt_offset(read)
            return
        if decoded.records or (part.high_watermark <= read.offset and decoded.next >= read.offset):
            read.done(_span(asked, part, decoded))
            return
        # Something stands at or behind the offset, and this answer had no room for it, or nothing of its batch is left.
        if part.data and not decoded.whole:
            read.bytes_max = self._settings.request_bytes_max
        if decoded.next >= part.high_watermark:
            read.done(_span(asked, part, decoded))
            return
        if decoded.next > read.offset:
            # Compaction left nothing from here to there, so nothing is known of what stands before it.
            read.offset, read.before = decoded.next, b""
        self._again(read, after_ms=0 if part.data else self._settings.backoff_ms)

    def _judge_outside(self, read: _Read, ends: Ends | FailReason) -> None:
        if isinstance(ends, FailReason):
            read.done(ends)
            return
        leader = self._cluster.leader(*read.key)
        alone = leader is not None and leader.copies == 1
        if ends.start >= read.offset:
            # Retention took the record before it.
            read.before = b""
        if ends.start <= read.offset <= ends.end:
            self._again(read, after_ms=self._settings.backoff_ms)
        elif read.offset > ends.end and not alone and not self._looked_again(read):
            if read.seen_outside is None and leader is not None:
                read.seen_outside = leader.node, self._cluster.doubt(leader.node)
            self._again(read, after_ms=3 * self._settings.backoff_ms)
        else:
            self.positions_refused += 1
            read.done(Outside(ends=ends))
        self._pump.soon()

    def _looked_again(self, read: _Read) -> bool:
        return read.seen_outside is not None and self._cluster.settled(*read.seen_outside)


def _span(asked: FetchPart, part: FetchedPart, decoded: Decoded) -> Span:
    """A new leader's high watermark may lag for a moment behind what its predecessor confirmed: the end is never below
    what was read."""
    end = max(part.high_watermark, decoded.next)
    return Span(
        ends=Ends(topic_id=asked.topic_id, start=max(0, part.log_start), end=end),
        records=decoded.records,
        next=decoded.next,
        epoch=asked.leader_epoch,
    )
