"""Reads and long polls against brokers that a test plays: stale leaders, lagging high watermarks, damaged batches."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka.conn import AIOKafkaConnection

from qim.adapters.kafka.append_job import Identity, build
from qim.adapters.kafka.cluster import BrokerGone, Cluster, Lane, Leader
from qim.adapters.kafka.consumer import Consumer
from qim.adapters.kafka.fetch_wire import AskFetch, FetchedPart, FetchResponse
from qim.adapters.kafka.reader import Ends, Outside, Reader, Span
from qim.adapters.kafka.wire import LATEST, AskOffsets
from qim.core.ports.completion import Failed, FailReason
from qim.core.ports.log import Fetch, Fetched, LogRecord, OutOfRange, StoredRecord, Topic
from qim.core.position import record_digest
from tests.adapters.log.kafka_asked import settings_for
from tests.adapters.log.played_cluster import TOPIC_ID, PlayedCluster, Said

NAME = "outbox"
KEY = (NAME, 0)
OUT_OF_RANGE, NOT_LEADER, UNAUTHORISED = 1, 6, 29


def batch(*values: bytes, first: int = 0) -> bytes:
    """From offset ``first`` on."""
    records = [LogRecord(key=b"k", value=value) for value in values]
    data = bytearray(build(records, Identity(1, 0), 0, 1_700_000_000_000))
    data[:8] = first.to_bytes(8, "big")  # not covered by the checksum
    return bytes(data)


def digest(offset: int, value: bytes) -> bytes:
    """Of the record of ``batch`` there."""
    return record_digest(StoredRecord(offset=offset, append_time=0, key=b"k", value=value))


class Stage:
    """Reader and consumer before played brokers."""

    def __init__(self, **limits: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.cluster = PlayedCluster()
        fields = {"backoff_ms": 1, "fetch_patience_ms": 20_000, **limits}
        settings = settings_for("127.0.0.1:1", **fields)
        self.reader = Reader(settings, self.loop, self.cluster)
        self.consumer = Consumer(settings, self.loop, self.cluster, self.reader)
        self.told: list[Any] = []

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def until(self, count: int) -> None:
        """So many answers have come."""
        rounds = 0
        while len(self.told) < count:
            rounds += 1
            assert rounds < 20_000, self.told
            self.run(asyncio.sleep(0.001))

    def read(self, offset: int, before: bytes = b"") -> None:
        self.reader.read(KEY, offset, 1_000, self.told.append, before)

    def fetch(self, offset: int, wait_ms: int = 60_000, before: bytes = b"") -> None:
        fetch = Fetch(
            op=len(self.told) + 1,
            topic=Topic.OUTBOX,
            partition=0,
            offset=offset,
            limit=10,
            bytes_max=1_000,
            wait_ms=wait_ms,
            before=before,
        )
        self.consumer.fetch(fetch, KEY, self.told.append)

    def asked(self, kind: type) -> Any:
        """The next request of this kind; it stays unanswered."""

        async def wait() -> None:
            async with asyncio.timeout(20):
                while not any(isinstance(one, kind) for one, _ in self.cluster.requests):
                    self.cluster.arrived.clear()
                    await self.cluster.arrived.wait()

        self.run(wait())
        return next(one for one, _ in self.cluster.requests if isinstance(one, kind))

    def answer(self, reply: Any, kind: type = AskFetch) -> None:
        """The oldest request of this kind."""
        request = self.asked(kind)
        place = next(n for n, (one, _) in enumerate(self.cluster.requests) if one is request)
        _, future = self.cluster.requests.pop(place)
        if isinstance(reply, Exception):
            future.set_exception(reply)
        else:
            future.set_result(reply)
        for _ in range(5):
            self.run(asyncio.sleep(0))

    def fetched(
        self, data: bytes = b"", *, error: int = 0, end: int = 0, start: int = 0, session: int = 0
    ) -> None:
        """The next fetch is answered for partition 0."""
        one = FetchedPart(
            topic=TOPIC_ID, partition=0, error=error, high_watermark=end, log_start=start, data=data
        )
        self.answer(FetchResponse(error=0, session_id=session, parts=[one]))

    def ends(self, start: int, end: int) -> None:
        """The next two questions for offsets."""
        for _ in range(2):
            request = self.asked(AskOffsets)
            ((_, ((_, _, timestamp),)),) = request._topics
            offset = end if timestamp == LATEST else start
            self.answer(Said(topics=[(NAME, [(0, 0, -1, offset, 0)])]), AskOffsets)

    def close(self) -> None:
        self.run(self.consumer.close())
        self.run(self.reader.close())
        self.loop.close()


@pytest.fixture
def stage() -> Iterator[Stage]:
    chosen = Stage()
    yield chosen
    chosen.close()


# ------------------------------------------------------------ reads


def test_a_position_beyond_a_stale_leader_s_end_is_looked_at_twice(stage: Stage) -> None:
    stage.read(10)
    stage.fetched(error=OUT_OF_RANGE)
    stage.ends(0, 4)
    assert stage.told == []
    assert stage.cluster.doubted == [1]
    stage.fetched(end=10)
    (span,) = stage.told
    assert isinstance(span, Span), "the second look found a leader that has it"


def test_a_position_that_is_beyond_twice_is_outside(stage: Stage) -> None:
    stage.read(10)
    for refreshes in (0, 0, 1):
        assert stage.told == [], "not before the cluster was looked at again"
        stage.cluster.refreshes = refreshes
        stage.fetched(error=OUT_OF_RANGE)
        stage.ends(0, 4)
    assert stage.told == [Outside(ends=Ends(topic_id=TOPIC_ID, start=0, end=4))]


def test_below_the_start_is_outside_at_once(stage: Stage) -> None:
    stage.read(1)
    stage.fetched(error=OUT_OF_RANGE)
    stage.ends(3, 4)
    assert stage.told == [Outside(ends=Ends(topic_id=TOPIC_ID, start=3, end=4))]
    assert stage.reader.positions_refused == 1


def test_a_single_copy_has_no_stale_leader(stage: Stage) -> None:
    stage.cluster.led = Leader(1, 0, 1)
    stage.read(10)
    stage.fetched(error=OUT_OF_RANGE)
    stage.ends(0, 4)
    assert len(stage.told) == 1


def test_a_high_watermark_that_lags_is_no_lost_position(stage: Stage) -> None:
    stage.read(10)
    stage.fetched(end=7)
    (span,) = stage.told
    assert (span.ends.end, span.records, span.next) == (10, [], 10)


@pytest.mark.parametrize("error", [NOT_LEADER, 3, 5, 56, 74, 75, 76, 100, -1])
def test_anything_else_is_asked_again(stage: Stage, error: int) -> None:
    stage.read(0)
    stage.fetched(error=error, end=-1)
    stage.answer(BrokerGone("cut", sent=True))
    stage.answer(FetchResponse(error=0, session_id=0, parts=[]))
    stage.fetched(batch(b"a"), end=1)
    assert [one.value for one in stage.told[0].records] == [b"a"]


def test_who_may_not_read_is_told_so(stage: Stage) -> None:
    stage.read(0)
    stage.fetched(error=UNAUTHORISED)
    assert stage.told == [FailReason.UNAUTHORISED]


def test_a_damaged_batch_is_counted_and_fetched_again(stage: Stage) -> None:
    stage.read(0)
    data = bytearray(batch(b"abc"))
    data[-3] ^= 1
    stage.fetched(bytes(data), end=1)
    assert stage.told == []
    stage.fetched(batch(b"abc"), end=1)
    assert stage.told[0].records[0].value == b"abc"
    assert stage.reader.broken_batches == 1


def test_a_batch_that_had_no_room_is_asked_for_with_more(stage: Stage) -> None:
    stage.read(0)
    first = stage.asked(AskFetch).parts[0].bytes_max
    stage.fetched(batch(b"abc")[:-4], end=1)
    assert stage.asked(AskFetch).parts[0].bytes_max > first
    stage.fetched(batch(b"abc"), end=1)
    assert len(stage.told[0].records) == 1


def test_nobody_leads_and_patience_ends() -> None:
    stage = Stage(fetch_patience_ms=20)
    stage.cluster.led = None
    stage.read(0)
    stage.reader.ends(KEY, stage.told.append)
    try:
        stage.until(2)
        assert stage.told == [FailReason.UNREACHABLE] * 2
    finally:
        stage.close()


def test_ends_of_a_topic_that_is_made_anew_meanwhile_are_not_mixed(stage: Stage) -> None:
    stage.reader.ends(KEY, stage.told.append)
    stage.asked(AskOffsets)
    stage.cluster.id = b"u" * 16
    stage.ends(0, 9)
    assert stage.told == [], "asked under the one, answered under the other"
    stage.ends(0, 2)
    stage.cluster.refreshed()
    stage.until(1)
    assert stage.told == [Ends(topic_id=b"u" * 16, start=0, end=2)]


# ------------------------------------------------------------ ends


def test_ends_of_who_led_before_it_slept_are_not_told(stage: Stage) -> None:
    """A resumed leader answers what stood when it was paused; the cluster, asked afterwards, names another."""
    stage.reader.ends(KEY, stage.told.append)
    stage.ends(0, 4)
    assert (stage.told, stage.cluster.doubted) == ([], [1]), "not by its own word"
    stage.cluster.led = Leader(2, 1, 3)
    stage.cluster.refreshed()
    stage.ends(0, 10)
    assert (stage.told, stage.cluster.doubted) == ([], [1, 2])
    stage.cluster.refreshed()
    stage.until(1)
    assert stage.told == [Ends(topic_id=TOPIC_ID, start=0, end=10)]


def test_ends_of_a_leader_that_was_elected_again_are_asked_again(stage: Stage) -> None:
    """The same broker, another leadership: what it said belongs to the one before."""
    stage.reader.ends(KEY, stage.told.append)
    stage.ends(0, 4)
    stage.cluster.led = Leader(1, 2, 3)
    stage.cluster.refreshed()
    stage.ends(0, 5)
    stage.cluster.refreshed()
    stage.until(1)
    assert stage.told == [Ends(topic_id=TOPIC_ID, start=0, end=5)]


def test_ends_of_a_single_copy_are_told_at_once(stage: Stage) -> None:
    stage.cluster.led = Leader(1, 0, 1)
    stage.reader.ends(KEY, stage.told.append)
    stage.ends(0, 4)
    assert stage.told == [Ends(topic_id=TOPIC_ID, start=0, end=4)]
    assert stage.cluster.doubted == []


def test_ends_that_need_not_be_sure_are_told_at_once(stage: Stage) -> None:
    stage.reader.ends(KEY, stage.told.append, sure=False)
    stage.ends(0, 4)
    assert stage.told == [Ends(topic_id=TOPIC_ID, start=0, end=4)]


def test_ends_that_nobody_confirms_are_unreachable_in_time() -> None:
    stage = Stage(fetch_patience_ms=200)
    stage.reader.ends(KEY, stage.told.append)
    stage.ends(0, 4)
    try:
        stage.until(1)
        assert stage.told == [FailReason.UNREACHABLE]
    finally:
        stage.close()


def test_closing_answers_what_waits() -> None:
    stage = Stage()
    stage.read(0)
    stage.asked(AskFetch)
    stage.read(1)
    stage.reader.ends(KEY, stage.told.append)
    stage.close()
    assert stage.told == [FailReason.CANCELLED] * 3


# ------------------------------------------------------------ long polls


def seated(stage: Stage) -> None:
    """A fetch that waits at offset 1 in a session."""
    stage.fetch(0)
    stage.fetched(batch(b"a"), end=1)
    assert isinstance(stage.told.pop(), Fetched)
    stage.fetch(1)
    assert stage.asked(AskFetch).wait_ms > 0


def test_a_poll_brings_what_comes_and_goes_on_behind_it(stage: Stage) -> None:
    seated(stage)
    stage.fetched(batch(b"b", first=1), end=2, session=8)
    assert [one.offset for one in stage.told[0].records] == [1]
    poll = stage.asked(AskFetch)
    assert (poll.session_id, poll.session_epoch) == (8, 1)
    assert [one.offset for one in poll.parts] == [2]


def test_a_poll_out_of_range_is_settled_by_a_read(stage: Stage) -> None:
    seated(stage)
    stage.fetched(error=OUT_OF_RANGE, session=8)
    assert stage.told == []
    stage.fetched(error=OUT_OF_RANGE)
    stage.ends(5, 9)
    (told,) = stage.told
    assert isinstance(told, OutOfRange)
    assert (told.start, told.end) == (5, 9)


def test_a_session_the_broker_dropped_is_begun_anew(stage: Stage) -> None:
    seated(stage)
    stage.fetched(end=1, session=8)
    assert stage.asked(AskFetch).parts == [], "nothing changed"
    stage.answer(FetchResponse(error=70, session_id=0, parts=[]))
    poll = stage.asked(AskFetch)
    assert (poll.session_id, poll.session_epoch, len(poll.parts)) == (0, 0, 1)


def test_a_leader_that_moved_is_polled_where_it_is(stage: Stage) -> None:
    seated(stage)
    stage.cluster.led = Leader(2, 1, 3)
    for listener in stage.cluster.on_refreshed:
        listener()
    stage.run(asyncio.sleep(0.01))
    assert [one.parts[0].leader_epoch for one, _ in stage.cluster.requests] == [0, 1]


def test_an_answer_for_another_offset_is_dropped(stage: Stage) -> None:
    seated(stage)
    stage.consumer._tails[KEY].next = 4
    stage.fetched(batch(b"x", b"y"), end=9, session=8)
    assert stage.told == []
    assert stage.consumer.answers_dropped == 1


def test_a_wait_that_no_broker_confirmed_is_failed(stage: Stage) -> None:
    seated(stage)
    stage.consumer._heard[1] = -1e9
    stage.fetch(1, wait_ms=5)
    stage.until(1)
    assert stage.told == [Failed(op=1, why=FailReason.UNREACHABLE)]


def test_a_window_is_bounded_and_a_slow_reader_is_not_read_ahead_for_ever() -> None:
    stage = Stage(read_ahead_bytes=10)
    stage.fetch(0)
    stage.fetched(batch(*(b"%d" % n * 20 for n in range(4))), end=99)
    assert len(stage.told) == 1
    stage.run(asyncio.sleep(0.02))
    assert not stage.cluster.requests, "the window is full until something is asked for"
    assert stage.consumer.bytes_ahead == 4 * 21
    stage.close()


def test_a_fault_of_ours_before_a_poll_does_not_end_the_polling(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, faults = Consumer._wanted, [RuntimeError("a bug")]

    def faulty(consumer: Consumer, node: int) -> Any:
        if faults:
            raise faults.pop()
        return wanted(consumer, node)

    monkeypatch.setattr(Consumer, "_wanted", faulty)
    seated(stage)
    assert not faults
    stage.fetched(batch(b"a", b"b"), end=2, session=8)
    stage.until(1)
    assert isinstance(stage.told[0], Fetched)


# ------------------------------------------------------------ the view of the cluster


def metadata(epoch: int, node: int, topic_id: bytes = TOPIC_ID, error: int = 0) -> Said:
    return Said(
        brokers=[(1, "a", 1, None, {}), (2, "b", 2, None, {})],
        topics=[
            (error, NAME, topic_id, False, [(0, 0, node, epoch, [1, 2, 3], [], [], {})], 0, {})
        ],
    )


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    loop = asyncio.new_event_loop()
    yield Cluster(settings_for("127.0.0.1:1"), loop, [NAME])
    loop.close()


def test_leaderships_never_go_back(cluster: Cluster) -> None:
    cluster._take(metadata(5, 2))
    cluster._take(metadata(4, 1))
    assert cluster.leader(*KEY) == Leader(2, 5, 3)
    cluster._take(metadata(6, 1))
    assert cluster.leader(*KEY) == Leader(1, 6, 3)
    cluster._take(metadata(7, -1))
    assert cluster.leader(*KEY) is None


def test_a_topic_made_anew_begins_its_leaderships_anew(cluster: Cluster) -> None:
    cluster._take(metadata(5, 2))
    cluster._take(metadata(0, 1, b"n" * 16))
    assert cluster.leader(*KEY) == Leader(1, 0, 3)
    assert cluster.topic_id(NAME) == b"n" * 16
    assert cluster.topics_recreated == 1


def test_a_topic_that_is_gone_keeps_its_id_to_be_compared_with(cluster: Cluster) -> None:
    cluster._take(metadata(5, 2))
    cluster._take(metadata(0, 0, bytes(16), error=3))
    assert cluster.leader(*KEY) is None
    assert cluster.topic_id(NAME) == TOPIC_ID
    cluster._take(metadata(0, 1, b"n" * 16))
    assert cluster.topics_recreated == 1


def test_who_is_doubted_is_asked_last(cluster: Cluster) -> None:
    cluster._take(metadata(5, 2))
    cluster._last_good = 2
    assert cluster._candidates()[0] == 2
    cluster.doubt(2)
    assert cluster._candidates()[-1] == 2


def test_a_look_under_way_settles_no_doubt(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the doubted one's own word; the look begun afterwards goes to another."""
    cluster._take(metadata(5, 2))
    asked: list[Any] = []

    async def ask(node: Any, lane: Lane, request: Any) -> Any:
        asked.append(node)
        if len(asked) == 1:
            needed.append(cluster.doubt(2))
        return metadata(5, 2)

    needed: list[int] = []
    cluster._last_good = 2
    monkeypatch.setattr(cluster, "ask", ask)
    for settled in (False, True):
        assert cluster._loop.run_until_complete(cluster.refresh())
        assert (cluster.looked >= needed[0]) is settled
    assert asked[0] == 2 and asked[1] != 2


def test_a_broker_that_is_not_there_is_surely_not_reached(cluster: Cluster) -> None:
    with pytest.raises(BrokerGone) as gone:
        cluster._loop.run_until_complete(cluster.ask(7, Lane.ASK, None))
    assert not gone.value.sent


def test_those_who_wait_for_a_broker_that_is_not_reached_are_told_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One after the other, each with a connect's patience, more would come than are answered."""
    dials: list[None] = []

    async def black_hole(connection: AIOKafkaConnection) -> None:
        dials.append(None)
        await asyncio.Event().wait()

    monkeypatch.setattr(AIOKafkaConnection, "connect", black_hole)

    async def main() -> list[Any]:
        settings = settings_for("127.0.0.1:1", connect_ms=20)
        cluster = Cluster(settings, asyncio.get_running_loop(), [NAME])
        cluster._take(metadata(5, 2))
        asked = [cluster.ask(2, Lane.ASK, None) for _ in range(50)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        with pytest.raises(BrokerGone):
            await cluster.ask(2, Lane.ASK, None)
        await cluster.close()
        return found

    found = asyncio.run(main())
    assert all(isinstance(one, BrokerGone) and not one.sent for one in found)
    assert len(dials) == 2, "once for all of them, and once for who came afterwards"
