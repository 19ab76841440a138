"""What an operator does to a cluster of the tests, and what two users say and hear meanwhile."""

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiokafka.protocol.admin import DeleteTopicsRequest

from qim.adapters.kafka.cluster import Cluster as Brokers
from qim.adapters.kafka.log import KafkaLog
from qim.core.contract.frames import PushEvents, SendAck, SendMessage
from qim.core.ports.log import EndsRead, Fetch, Fetched, ReadEnds, Topic
from tests.integration.cluster.cluster import PARTITIONS, Cluster
from tests.integration.cluster.commands import commanded
from tests.integration.raw_client import RawClient, message

SAYS, HEARS = 31, 32
THROUGH_SECONDS_MAX = 180.0
HINT_SECONDS = 10.0
FETCH_RECORDS, FETCH_BYTES = 512, 1 << 20


def ordered(cluster: Cluster, *words: str, role: str = "admin") -> tuple[int, dict[str, Any]]:
    """Status and JSON of a command that is told of the cluster by its environment, and has the certificate of ``role``."""
    ended = commanded(cluster.operator(role), *words)
    assert ended.stdout, ended.stderr
    return ended.returncode, json.loads(ended.stdout)


def examined(cluster: Cluster, *more: str) -> tuple[int, list[dict[str, str]]]:
    """The doctor's findings."""
    words: list[str] = []
    for process in cluster.processes.values():
        words += ["--process", f"{process.role}={process.ready['metrics']}"]
    status, report = ordered(cluster, "doctor", *words, *more)
    return status, report["findings"]


async def say(cluster: Cluster, *bodies: bytes) -> bytes:
    """One user to the other; the last message_id."""
    async with await RawClient.log_in(cluster.target, SAYS) as sender:
        for body in bodies:
            ack = await sender.send(body, peer_user_id=HEARS)
    return ack.message_id


def passed_by_fanout(cluster: Cluster) -> bool:
    """What it has read of the outbox is dispatched, and its receipts are written."""
    lags = [
        value
        for process in cluster.roles("fanout")
        for (name, _), value in process.metrics().items()
        if name == "qim_fanout_lag_records"
    ]
    return len(lags) == PARTITIONS and not any(lags)


async def heard(cluster: Cluster, last: bytes, device: bytes) -> list[bytes]:
    """What a new device of the other one pulls, up to the message ``last``."""
    client = await RawClient.connect(cluster.target.tcp)
    await client.authenticate(cluster.target, HEARS, device=device)
    entries = await client.pull_until(last)
    await client.close()
    return [entry.body or b"" for entry in entries]


async def hinted(
    cluster: Cluster, users: tuple[int, int], readers: Sequence[RawClient]
) -> SendMessage:
    """The first says something to the other, whose devices ``readers`` are online, until one message was pushed to each.

    A push is a hint that may be lost: a gateway that the mailbox is only dialling gets none, where that takes too long.
    """
    said: dict[bytes, SendMessage] = {}
    hints: list[set[bytes]] = [set() for _ in readers]
    async with (
        asyncio.timeout(THROUGH_SECONDS_MAX),
        await RawClient.log_in(cluster.target, users[0]) as sender,
    ):
        while True:
            sent = message(b"hello", peer_user_id=users[1])
            said[(await sender.ask(sent, SendAck)).message_id] = sent
            for known, reader in zip(hints, readers, strict=True):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(HINT_SECONDS):
                        while not known & said.keys():
                            pushed = await reader.until(PushEvents)
                            known |= {entry.message_id for entry in pushed.entries}
            if everywhere := set(said).intersection(*hints):
                return said[min(everywhere)]


def audited(cluster: Cluster, name: str = "auditor-1") -> dict[str, Any]:
    """The report of an audit once every consumer is through."""
    deadline = time.monotonic() + THROUGH_SECONDS_MAX
    report: dict[str, Any] = cluster.audited(name)
    while report["verdict"] == "INCOMPLETE":
        assert time.monotonic() < deadline, report
        report = cluster.audited(name)
    return report


async def append_times(cluster: Cluster, topic: Topic) -> list[int]:
    """When the log took each record it has, wall ms by its own clock."""
    settings, found = cluster.kafka_settings(), []
    log = KafkaLog(settings, asyncio.get_running_loop())

    async def asked(request: ReadEnds | Fetch) -> Any:
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        log.submit(request, answered.set_result)
        return await answered

    await log.start()
    try:
        for partition in range(settings.partitions_of(topic)):
            ends = await asked(ReadEnds(op=1, topic=topic, partition=partition))
            assert isinstance(ends, EndsRead), ends
            offset = ends.start
            while offset < ends.end:
                fetch = Fetch(
                    op=2,
                    topic=topic,
                    partition=partition,
                    offset=offset,
                    limit=FETCH_RECORDS,
                    bytes_max=FETCH_BYTES,
                    wait_ms=0,
                )
                read = await asked(fetch)
                assert isinstance(read, Fetched) and read.records, read
                found += [record.append_time for record in read.records]
                offset = read.records[-1].offset + 1
    finally:
        await log.close()
    return found


def cut_outbox(cluster: Cluster, directory: Path, body: bytes) -> int:
    """The outbox partition of a broker that is down loses its tail from the message ``body`` on, as by a power cut; its number.

    Not its last batch alone: that is a barrier where a writer had to open anew meanwhile.
    """
    topic = cluster.kafka_settings().outbox_topic
    (path,) = [one for one in directory.glob(f"**/{topic}-*/*.log") if body in one.read_bytes()]
    at = path.read_bytes().rindex(body)
    os.truncate(path, max(begin for begin in batches_of(path) if begin < at))
    return int(path.parent.name.rpartition("-")[2])


def batches_of(segment: Path) -> list[int]:
    """Where each record batch of a Kafka segment begins."""
    data, at, found = segment.read_bytes(), 0, []
    while at + 12 <= len(data) and (size := int.from_bytes(data[at + 8 : at + 12], "big")):
        found.append(at)
        at += 12 + size
    return found


async def delete_topic(cluster: Cluster, topic: Topic) -> None:
    """By the brokers' own word; returns when it is gone."""
    settings = cluster.kafka_settings()
    name = settings.name_of(topic)
    brokers = Brokers(settings, asyncio.get_running_loop(), [name])
    await brokers.start()
    try:
        answer = await brokers.ask_any(DeleteTopicsRequest([name], 15_000))
        assert answer.topic_error_codes[0][1] == 0, answer
        async with asyncio.timeout(60):
            while brokers.leader(name, 0) is not None:
                await brokers.refresh()
                await asyncio.sleep(0.05)
    finally:
        await brokers.close()
