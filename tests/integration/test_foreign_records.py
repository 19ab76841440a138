"""What somebody else wrote to the logs, and what a later version did: one is passed and kept, the other is waited for."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from qim.core.mending.asking import Procedure
from qim.core.mending.dead_letters import DeadLetter
from qim.core.ports.log import Append, Appended, LogRecord, Topic
from qim.services.doctor import processes
from qim.services.doctor.findings import Finding, State
from qim.services.doctor.halted import halted
from tests.core.newer_format import NEWER, told
from tests.integration.ground import Ground, Running, over
from tests.integration.raw_client import patient

SHARDS, PARTITIONS = 4, 2
LOGS = [
    *((Topic.OUTBOX, number) for number in range(PARTITIONS)),
    *((Topic.DISPATCH, number) for number in range(SHARDS)),
    *((Topic.USER_STATE, number) for number in range(SHARDS)),
]
HALTS = 2 * PARTITIONS + 2 * SHARDS + SHARDS
"""Outbox and dispatch log have two readers each, the user-state log one."""
STRANGERS = (b"\xff\xfegarbage\xe2\x80\xa6", b"hello stranger")


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Callable[[Ground], Coroutine[Any, Any, None]]], None]:
    return over(tmp_path / "data")


async def put(running: Running, topic: Topic, number: int, value: bytes) -> int:
    """As a foreign producer, past every epoch; the offset."""

    def produced() -> Procedure[Any]:
        record = LogRecord(key=b"whose", value=value)
        return (yield Append(op=0, topic=topic, partition=number, epoch=0, records=(record,)))

    reply = await running.server.mender.carry_out(produced())
    assert isinstance(reply, Appended), reply
    return reply.offsets[0]


async def kept(running: Running, count: int) -> list[DeadLetter]:
    """So many dead letters, once fanout has passed them all: who pulled a message knows of its own partition alone."""

    async def all_kept() -> list[DeadLetter]:
        while len(letters := await running.server.mender.dead_letters()) < count:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        return list(letters)

    return await patient(all_kept())


def samples(running: Running) -> dict[tuple[str, str], float]:
    registry = CollectorRegistry()
    registry.register(running.observer)
    return processes.samples_of(generate_latest(registry).decode())


def failing(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(one.subject, one.page) for one in findings if one.state is State.FAIL]


def warnings(ground: Ground) -> list[str]:
    lines = (ground.directory.root / "log").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return [one["detail"] for one in records if one["event"] == "halted before a newer format"]


def test_a_strangers_records_stop_nobody(run: Any) -> None:
    async def case(ground: Ground) -> None:
        async with ground.serving() as running:
            await running.say(b"before")
            for topic, number in LOGS:
                for value in STRANGERS:
                    await put(running, topic, number, value)
            (last,) = await running.say(b"behind")
            assert await running.heard(last.message_id) == [b"before", b"behind"]
            letters = await kept(running, len(STRANGERS) * PARTITIONS)
            found = samples(running)
            assert [name for name in found if name[0].endswith("_halted") and found[name]] == []
            assert [one.state for one in letters] == ["undecodable"] * len(STRANGERS) * PARTITIONS
            assert failing(await halted(running.server.mender)) == []
            told = [*processes.judged("up", found)]
            assert {(one.state, one.page) for one in told} == {(State.WARN, "dead-letters")}
            assert running.observer.healthy
        async with ground.serving() as running:
            (more,) = await running.say(b"and after a restart")
            assert (await running.heard(more.message_id, b"another"))[-1] == b"and after a restart"
        assert warnings(ground) == []

    run(case)


def test_whoever_halts_before_a_newer_format_is_found_in_log_metrics_and_doctor(run: Any) -> None:
    async def case(ground: Ground) -> None:
        async with ground.serving() as running:
            (ack,) = await running.say(b"before")
            await running.heard(ack.message_id)
            places = [
                (topic, number, await put(running, topic, number, NEWER)) for topic, number in LOGS
            ]

            def all_halted() -> bool:
                told = [
                    value
                    for (name, _), value in samples(running).items()
                    if name.endswith("_halted")
                ]
                return sum(told) == HALTS

            await running.until(all_halted)
            await running.say(b"behind")
            mender = running.server.mender
            letters = await mender.dead_letters()
            assert {(one.state, one.size_bytes) for one in letters} == {("halting", len(NEWER))}
            assert len(letters) == PARTITIONS
            by_logs = failing(await halted(mender))
            assert {page for _, page in by_logs} == {"newer-format"}
            assert len(by_logs) == 2 * PARTITIONS + SHARDS
            by_metrics = failing([*processes.judged("up", samples(running))])
            assert by_metrics == [("up", "newer-format")] * (2 * PARTITIONS + 2 * SHARDS)
            assert running.observer.healthy, "nothing is lost: it waits"
        details = warnings(ground)
        expected = [told(topic.value, number, offset).detail for topic, number, offset in places]
        assert set(details) == set(expected)
        assert len(details) == HALTS

    run(case)
