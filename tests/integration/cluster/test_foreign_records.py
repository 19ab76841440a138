"""What another producer wrote to the topics of a real broker: passed, kept and told, or waited for where it looks like ours."""

import asyncio
import time
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from qim.core.ports.log import Topic
from tests.core.newer_format import NEWER, told
from tests.integration.cluster.cluster import PARTITIONS, Cluster
from tests.integration.cluster.operating import (
    THROUGH_SECONDS_MAX,
    examined,
    heard,
    ordered,
    say,
)
from tests.integration.served import eventually

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("cluster")]
STRANGERS = (b"\xff\xfegarbage\xe2\x80\xa6", b"hello stranger")


async def produce(cluster: Cluster, topic: Topic, partition: int, *values: bytes) -> int:
    """As any client of the broker's may, compressed and in a transaction, whose end is a record of its own; the last offset."""
    settings = cluster.kafka_settings()
    producer = AIOKafkaProducer(
        bootstrap_servers=settings.brokers, compression_type="gzip", transactional_id="stranger"
    )
    await producer.start()
    try:
        async with producer.transaction():
            for value in values:
                name = settings.name_of(topic)
                sent = await producer.send_and_wait(name, value, partition=partition)
        return int(sent.offset)
    finally:
        await producer.stop()


def listed(cluster: Cluster, count: int) -> tuple[int, list[str]]:
    """So many dead letters, once fanout has passed them all: who pulled a message knows of its own partition alone."""
    deadline = time.monotonic() + THROUGH_SECONDS_MAX
    while True:
        status, report = ordered(cluster, "deadletter", "list")
        letters = [one["state"] for one in report["found"]]
        if len(letters) >= count or time.monotonic() > deadline:
            return status, letters


def test_a_foreign_producer_stops_no_partition_and_what_looks_like_ours_is_told(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path / "cluster") as cluster:
        last = asyncio.run(say(cluster, b"before"))
        asyncio.run(heard(cluster, last, b"d1"))
        for number in range(PARTITIONS):
            asyncio.run(produce(cluster, Topic.OUTBOX, number, *STRANGERS))
        asyncio.run(produce(cluster, Topic.DISPATCH, 0, *STRANGERS))
        last = asyncio.run(say(cluster, b"behind"))
        assert asyncio.run(heard(cluster, last, b"d2")) == [b"before", b"behind"]
        status, letters = listed(cluster, (len(STRANGERS) + 1) * PARTITIONS)
        assert (status, letters) == (1, ["undecodable"] * (len(STRANGERS) + 1) * PARTITIONS)
        (fanout,) = cluster.roles("fanout")
        _, found = examined(cluster, "--deep")
        pages = {one["page"] for one in found if one["subject"].startswith(("fanout at", "dead"))}
        assert pages == {"", "dead-letters"}, "ready, and warned of"

        offset = asyncio.run(produce(cluster, Topic.OUTBOX, 1, NEWER))
        asyncio.run(eventually(lambda: fanout.metric("qim_fanout_halted", "1") == 1))
        assert fanout.get("/readyz")[0] == 200
        asyncio.run(eventually(lambda: told("outbox", 1, offset).detail in fanout.log()))
        status, found = examined(cluster)
        failed = [one for one in found if one["page"] == "newer-format"]
        assert (status, {one["state"] for one in failed}) == (1, {"fail"})
        assert f"it halts at offset {offset}" in next(
            one["found"] for one in failed if one["subject"] == "fanout of outbox 1"
        )
        status, report = ordered(cluster, "deadletter", "list", "--partition", "1")
        (halting,) = [one for one in report["found"] if one["state"] == "halting"]
        assert (status, halting["offset"]) == (1, str(offset))
