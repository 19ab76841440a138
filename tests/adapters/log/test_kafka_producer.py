"""What becomes of an append, answer by answer, against brokers that a test plays: Unknown is never Failed, and no
sequence number is used twice."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch

from qim.adapters import breakage
from qim.adapters.kafka.cluster import BrokerGone, Leader
from qim.adapters.kafka.outcomes import Outcome, outcome_of
from qim.adapters.kafka.producer import Producer
from qim.core.ports.completion import Failed, FailReason, Unknown
from qim.core.ports.log import Append, Appended, AppendRefused, LogRecord, Topic
from tests.adapters.log.kafka_asked import settings_for
from tests.adapters.log.played_cluster import TOPIC_ID, PlayedCluster, Said

NAME = "outbox"
NOT_ENOUGH_REPLICAS, AFTER_APPEND, NOT_LEADER, TIMED_OUT = 19, 20, 6, 7
UNAUTHORISED, TOO_LARGE, INVALID_RECORD, OUT_OF_ORDER, DUPLICATE = 29, 10, 87, 45, 46


class Stage:
    """A producer before played brokers, and what it answered."""

    def __init__(self, **limits: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.cluster = PlayedCluster()
        fields = {"delivery_ms": 60_000, "backoff_ms": 1, "close_ms": 20, **limits}
        settings = settings_for("127.0.0.1:1", **fields)
        self.producer = Producer(
            settings, self.loop, self.cluster, wall_ms=lambda: 1_700_000_000_000
        )
        self.run(self.producer.start({NAME: 4 << 20}))
        self.answers: dict[int, Any] = {}
        self._op = 0

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def append(self, *values: bytes, partition: int = 0) -> int:
        self._op += 1
        op = self._op
        records = tuple(LogRecord(key=b"k" * 16, value=value) for value in values)
        append = Append(op=op, topic=Topic.OUTBOX, partition=partition, epoch=1, records=records)
        self.producer.append(append, NAME, lambda reply: self.answers.update({op: reply}))
        return op

    def sent(self) -> dict[int, DefaultRecordBatch]:
        """The next request's batches by partition; it stays unanswered."""

        async def wait() -> None:
            async with asyncio.timeout(20):
                while not self.cluster.requests:
                    self.cluster.arrived.clear()
                    await self.cluster.arrived.wait()

        self.run(wait())
        parts = self.cluster.requests[0][0]._batches[NAME]
        return {number: DefaultRecordBatch(batch) for number, batch in parts}

    def answer(self, *parts: tuple[Any, ...]) -> None:
        """``parts``: (partition, error[, base offset, record errors]); the request in flight is answered with them."""
        self.sent()
        _, future = self.cluster.requests.pop(0)
        told = []
        for number, error, *more in parts:
            base = more[0] if more else -1
            told.append((number, error, base, 1_700_000_000_123, 0, more[1:] and more[1], None))
        future.set_result(Said(topics=[(TOPIC_ID, told, {})]))
        self.settle()

    def gone(self, *, sent: bool) -> None:
        """The connection ends instead."""
        self.sent()
        _, future = self.cluster.requests.pop(0)
        future.set_exception(BrokerGone("cut", sent=sent))
        self.settle()

    def settle(self) -> None:
        for _ in range(5):
            self.run(asyncio.sleep(0))

    def later(self) -> None:
        """Its time is up."""
        for line in self.producer._lines.values():
            for job in line.jobs:
                job.deadline = 0.0

    def close(self) -> None:
        self.run(self.producer.close())
        self.loop.close()


@pytest.fixture
def stage() -> Iterator[Stage]:
    chosen = Stage()
    yield chosen
    chosen.close()


def identity(batch: DefaultRecordBatch) -> tuple[int, int]:
    """Producer id and first sequence number."""
    return batch.producer_id, batch.base_sequence


# ------------------------------------------------------------ the ordinary way


def test_appends_of_one_turn_are_one_request_and_one_of_a_partition_is_in_flight(
    stage: Stage,
) -> None:
    ops = [stage.append(b"a", b"b"), stage.append(b"c"), stage.append(b"d", partition=1)]
    batches = stage.sent()
    assert {number: [one.value for one in batch] for number, batch in batches.items()} == {
        0: [b"a", b"b"],
        1: [b"d"],
    }
    assert {number: identity(batch) for number, batch in batches.items()} == {0: (1, 0), 1: (1, 0)}
    assert stage.producer.in_flight == 2
    stage.answer((0, 0, 40), (1, 0, 7))
    assert stage.answers[ops[0]].offsets == (40, 41)
    assert stage.answers[ops[2]] == Appended(op=ops[2], offsets=(7,), append_time=1_700_000_000_123)
    assert identity(stage.sent()[0]) == (1, 2)
    stage.answer((0, 0, 42))
    assert stage.answers[ops[1]].offsets == (42,)
    assert stage.producer.waiting == stage.producer.bytes_waiting == 0


def test_brokers_are_asked_apart(stage: Stage) -> None:
    leaders = {0: Leader(1, 0, 3), 1: Leader(2, 0, 3)}
    stage.cluster.leader = lambda name, partition: leaders[partition]  # type: ignore[method-assign]
    stage.append(b"a")
    op = stage.append(b"b", partition=1)
    assert list(stage.sent()) == [0]
    slow = stage.cluster.requests.pop(0)
    stage.answer((1, 0, 5))
    assert stage.answers[op].offsets == (5,), "the one doesn't wait for the other"
    stage.cluster.requests.append(slow)
    stage.answer((0, 0, 0))


# ------------------------------------------------------------ tried again


@pytest.mark.parametrize("code", [NOT_ENOUGH_REPLICAS, AFTER_APPEND, NOT_LEADER, TIMED_OUT])
def test_what_may_be_tried_again_goes_with_the_same_bytes(stage: Stage, code: int) -> None:
    op = stage.append(b"a")
    first = bytes(stage.cluster.requests[0][0]._batches[NAME][0][1]) if stage.sent() else b""
    stage.answer((0, code))
    assert op not in stage.answers
    stage.sent()
    assert stage.cluster.requests[0][0]._batches[NAME][0][1] == first
    stage.answer((0, 0, 9))
    assert stage.answers[op].offsets == (9,)
    following = stage.append(b"b")
    assert identity(stage.sent()[0]) == (1, 1), "nothing is open: the numbers go on"
    stage.answer((0, 0, 10))
    assert stage.answers[following].offsets == (10,)


def test_never_written_is_failed_when_its_time_is_up(stage: Stage) -> None:
    op = stage.append(b"a")
    stage.answer((0, NOT_ENOUGH_REPLICAS))
    stage.gone(sent=False)
    stage.sent()
    stage.later()
    stage.answer((0, NOT_ENOUGH_REPLICAS))
    assert stage.answers[op] == Failed(op=op, why=FailReason.UNREACHABLE)
    stage.append(b"b")
    assert identity(stage.sent()[0]) == (1, 0), "the number was never used"
    stage.answer((0, 0, 0))


def test_no_leader_at_all_is_failed(stage: Stage) -> None:
    stage.cluster.led = None
    op = stage.append(b"a")
    stage.settle()
    stage.later()
    stage.run(asyncio.sleep(0.01))
    assert stage.answers[op] == Failed(op=op, why=FailReason.UNREACHABLE)


@pytest.mark.parametrize("code", [AFTER_APPEND, NOT_LEADER, TIMED_OUT, 3, 56, -1, 999])
def test_perhaps_written_is_unknown_and_its_number_is_never_used_again(
    stage: Stage, code: int
) -> None:
    op, behind = stage.append(b"a"), stage.append(b"b")
    stage.answer((0, code))
    stage.sent()
    stage.producer._lines[NAME, 0].jobs[0].deadline = 0.0
    stage.answer((0, NOT_ENOUGH_REPLICAS))
    assert stage.answers[op] == Unknown(op=op), "one doubt is enough"
    assert identity(stage.sent()[0]) == (2, 0)
    stage.answer((0, 0, 3))
    assert stage.answers[behind].offsets == (3,)
    assert stage.producer.unknowns == 1


def test_a_cut_connection_is_a_doubt(stage: Stage) -> None:
    op = stage.append(b"a")
    stage.gone(sent=True)
    stage.later()
    stage.run(asyncio.sleep(0.01))
    if op not in stage.answers:
        stage.answer((0, NOT_ENOUGH_REPLICAS))
    assert stage.answers[op] == Unknown(op=op)


def test_an_answer_without_the_partition_is_a_doubt(stage: Stage) -> None:
    op = stage.append(b"a")
    stage.sent()
    stage.later()
    stage.answer()
    assert stage.answers[op] == Unknown(op=op)


# ------------------------------------------------------------ refused


def test_the_named_record_is_refused(stage: Stage) -> None:
    op = stage.append(b"a", b"b", b"c")
    stage.answer((0, INVALID_RECORD, -1, [(2, "no key")]))
    assert stage.answers[op] == AppendRefused(op=op, index=2, why="no key")
    stage.append(b"d")
    assert identity(stage.sent()[0]) == (1, 0)
    stage.answer((0, 0, 0))


def test_a_refusal_that_names_no_record_is_failed(stage: Stage) -> None:
    op, other = stage.append(b"a"), stage.append(b"b", partition=1)
    stage.answer((0, INVALID_RECORD), (1, UNAUTHORISED))
    assert stage.answers[op] == Failed(op=op, why=FailReason.INVALID)
    assert stage.answers[other] == Failed(op=other, why=FailReason.UNAUTHORISED)


@pytest.mark.parametrize("code", [UNAUTHORISED, INVALID_RECORD, TOO_LARGE])
def test_a_refusal_after_a_doubt_is_unknown(stage: Stage, code: int) -> None:
    """And the next batch may not have its number: the broker would take it for the first and confirm what isn't there."""
    op = stage.append(b"a")
    stage.answer((0, TIMED_OUT))
    stage.answer((0, code))
    assert stage.answers[op] == Unknown(op=op)
    stage.append(b"b")
    assert identity(stage.sent()[0]) == (2, 0)
    stage.answer((0, 0, 1))


def test_too_large_is_tried_in_halves_until_one_record_is_left(stage: Stage) -> None:
    op = stage.append(b"1", b"2", b"3")
    stage.answer((0, TOO_LARGE))
    assert [one.value for one in stage.sent()[0]] == [b"1"]
    stage.answer((0, 0, 0))
    batch = stage.sent()[0]
    assert [one.value for one in batch] == [b"2", b"3"]
    assert identity(batch) == (1, 1)
    stage.answer((0, 0, 1))
    assert stage.answers[op].offsets == (0, 1, 2)


def test_a_part_that_stands_makes_the_rest_unknown(stage: Stage) -> None:
    op = stage.append(b"1", b"2")
    stage.answer((0, TOO_LARGE))
    stage.answer((0, 0, 0))
    stage.answer((0, TOO_LARGE))
    assert stage.answers[op] == Unknown(op=op), "the first record is in the log"


# ------------------------------------------------------------ sequence numbers


def test_a_lost_sequence_is_begun_anew_where_nothing_is_open(stage: Stage) -> None:
    op = stage.append(b"a")
    stage.answer((0, OUT_OF_ORDER))
    assert identity(stage.sent()[0]) == (2, 0)
    stage.answer((0, 0, 8))
    assert stage.answers[op].offsets == (8,)


@pytest.mark.parametrize("code", [OUT_OF_ORDER, DUPLICATE])
def test_a_lost_sequence_after_a_doubt_is_unknown(stage: Stage, code: int) -> None:
    op = stage.append(b"a")
    stage.answer((0, TIMED_OUT))
    stage.answer((0, code))
    assert stage.answers[op] == Unknown(op=op)


def test_partitions_that_fail_together_share_the_next_identity(stage: Stage) -> None:
    for number in range(3):
        stage.append(b"a", partition=number)
    stage.sent()
    stage.later()
    stage.answer()
    for number in range(3):
        stage.append(b"b", partition=number)
    assert {identity(batch) for batch in stage.sent().values()} == {(2, 0)}
    assert stage.cluster.producer_ids == 2
    stage.answer(*((number, 0, 0) for number in range(3)))


# ------------------------------------------------------------ the end


def test_closing_tells_what_was_sent_from_what_was_not() -> None:
    stage = Stage()
    sent, never = stage.append(b"a"), stage.append(b"b")
    stage.sent()
    stage.close()
    assert stage.answers == {
        sent: Unknown(op=sent),
        never: Failed(op=never, why=FailReason.CANCELLED),
    }


def test_a_fault_of_ours_leaves_the_doubt(stage: Stage) -> None:
    op = stage.append(b"a")
    (first,) = stage.sent().values()
    _, future = stage.cluster.requests.pop(0)
    future.set_exception(RuntimeError("a bug"))
    stage.settle()
    assert not stage.cluster.requests, "not again before a pause"
    (again,) = stage.sent().values()
    assert identity(again) == identity(first)
    stage.later()
    stage.gone(sent=False)
    assert stage.answers[op] == Unknown(op=op)


def test_appends_that_cannot_be_sent_for_a_fault_of_ours_end_the_process(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(producer: Producer, lines: object) -> None:
        raise RuntimeError("a bug")

    broken: list[object] = []
    stage.loop.set_exception_handler(lambda _, told: broken.append(told.get(breakage.BROKEN)))
    with monkeypatch.context() as patched:
        patched.setattr(Producer, "_first", faulty)
        stage.append(b"a")
        stage.settle()
    assert broken == ["the sending of appends"]


def test_a_topic_made_anew_gets_nothing_and_blames_no_record(stage: Stage) -> None:
    """INVALID would: a writer moves what is refused so to REFUSED, for ever (pipeline.md §1.5)."""
    op = stage.append(b"a")
    stage.answer((0, 100))
    stage.cluster.id = b"u" * 16
    stage.run(asyncio.sleep(0.01))
    if stage.cluster.requests:
        stage.answer((0, 100))
        stage.run(asyncio.sleep(0.01))
    assert stage.answers[op] == Failed(op=op, why=FailReason.UNREACHABLE)
    again = stage.append(b"b")
    assert stage.answers[again] == Failed(op=again, why=FailReason.UNREACHABLE)


def test_codes_that_nobody_knows_are_doubts() -> None:
    sure = {code for code in range(-1, 200) if outcome_of(code) is not Outcome.UNSURE}
    assert sure == {0, 2, 10, 18, 19, 29, 31, 32, 45, 46, 47, 49, 59, 87, 100, 103}
