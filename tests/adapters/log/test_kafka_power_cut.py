"""A broker that loses its tail (a power cut: it doesn't fsync) and whose log grows again, under a consumer that runs."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qim.core.ports.log import Append, Appended, Fetched, LogRecord, OutOfRange, Topic
from qim.core.position import record_digest
from tests.adapters.log.kafka_asked import KafkaAsked, started
from tests.adapters.log.logs import Asker
from tests.integration.testbed.kafka import KafkaBroker

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("kafka")]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    chosen = KafkaBroker(tmp_path / "kafka")
    chosen.start()
    yield chosen
    chosen.kill()


@pytest.fixture
def kafka(broker: KafkaBroker) -> Iterator[KafkaAsked]:
    chosen = KafkaAsked(broker.address)
    yield chosen
    chosen.close()


def segment(root: Path, kafka: KafkaAsked) -> Path:
    (found,) = (root / "kafka" / "data" / f"{kafka.settings.outbox_topic}-0").glob("*.log")
    return found


def grown_again(kafka: KafkaAsked, broker: KafkaBroker, tmp_path: Path, *values: bytes) -> None:
    """The broker died without its two last records; another process, asked meanwhile, appends ``values``."""
    broker.kill()
    path = segment(tmp_path, kafka)
    os.truncate(path, path.stat().st_size // 2)
    answers: list[Any] = []
    broker.start()
    other = kafka.run(started(kafka.settings, kafka.loop))
    for value in values:
        record = LogRecord(key=b"k" * 16, value=value)
        one = kafka.loop.create_future()
        append = Append(op=1, topic=Topic.OUTBOX, partition=0, epoch=1, records=(record,))
        other.submit(append, one.set_result)
        answers.append(kafka.run(one))
    kafka.run(other.close())
    offsets = [one.offsets[0] for one in answers if isinstance(one, Appended)]
    assert offsets == list(range(2, 2 + len(values)))


def read_four(asker: Asker) -> list[bytes]:
    """Digests of what was appended and read."""
    for n in range(4):
        assert asker.append(b"r%d" % n).offsets == (n,)
    fetched = asker.fetch(0, wait_ms=60_000)
    assert [one.offset for one in fetched.records] == [0, 1, 2, 3]
    return [record_digest(one) for one in fetched.records]


@pytest.mark.parametrize("waits", [False, True])
def test_who_read_what_is_gone_is_told(
    broker: KafkaBroker, kafka: KafkaAsked, tmp_path: Path, waits: bool
) -> None:
    """``waits``: its fetch is with the broker as that dies; else the next one comes after all is up again."""
    asker = Asker(kafka)
    read = read_four(asker)
    op = asker.start_fetch(4, wait_ms=120_000, before=read[3]) if waits else None
    if waits:
        asker.ends()  # by now the fetch has been sent
    grown_again(kafka, broker, tmp_path, b"n2", b"n3", b"n4")
    told = kafka.answers(op)[0] if op is not None else None
    while not isinstance(told, OutOfRange | Fetched):
        told = asker.fetch(4, wait_ms=5_000, before=read[3])
    assert isinstance(told, OutOfRange), f"n2 and n3 are never seen: {told.records}"
    assert told.other_record or (waits and told.end < 4), "or before the log had grown again"
    assert kafka.gauge("kafka_positions_refused") >= 1


def test_who_stands_before_the_cut_reads_on(
    broker: KafkaBroker, kafka: KafkaAsked, tmp_path: Path
) -> None:
    asker = Asker(kafka)
    read = read_four(asker)
    grown_again(kafka, broker, tmp_path, b"n2")
    found: Any = asker.fetch(2, before=read[1])
    while not isinstance(found, Fetched):
        found = asker.fetch(2, before=read[1])
    assert [one.value for one in found.records] == [b"n2"]
