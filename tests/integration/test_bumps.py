"""`qim shard bump` beyond the simple case: a second one, a session that lagged, shards that had come to different places.

Whatever came before, nobody gets an old message as a new one, nobody misses one, and the audit is CLEAN.
"""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from qim.core.audit import Verdict
from qim.core.contract.routing import shard as shard_of
from qim.core.ports.log import Fetch, Topic
from tests.integration.ground import ALICE, BOB, Ground, Running, over
from tests.integration.raw_client import RawClient

SHARDS = 4
THEIRS = sorted({shard_of(user, SHARDS) for user in (ALICE, BOB)})


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Callable[[Ground], Coroutine[Any, Any, None]]], None]:
    return over(tmp_path / "data")


def forget_dispatches(ground: Ground) -> None:
    """The topic is made anew at the next start."""
    name = (Topic.DISPATCH.value,)
    ground.log(
        ("DELETE FROM record WHERE topic = ?", name),
        ("DELETE FROM span WHERE topic = ?", name),
        ("DELETE FROM topic WHERE name = ?", name),
    )


async def bumped(ground: Ground, shards: list[int]) -> list[Any]:
    async with ground.parts() as (server, _):
        return [await server.mender.bump(number, apply=True) for number in shards]


def machine(running: Running, role: str) -> Any:
    return running.server.runtime.hosted[role].machine


def lags(running: Running, name: str) -> list[int]:
    gauges = machine(running, name.split("_")[0]).gauges(0)
    return [one.value for one in gauges if one.name == f"{name}_lag_records"]


def passed_by_fanout(running: Running) -> bool:
    """Dispatched, receipts written: the checkpoint is at the log's end."""
    found = lags(running, "fanout")
    return bool(found) and not any(found)


async def floors_are_up(running: Running, shards: list[int]) -> None:
    """Claims are collected up to all but the last few messages."""
    held = machine(running, "mailbox")._shards
    await running.until(
        lambda: all(not held[number].passed and held[number].floors for number in shards)
    )


async def projected(running: Running) -> None:
    """The lists know what the mailbox has passed: nobody waits for the one because of the other."""
    mailbox, session = machine(running, "mailbox"), machine(running, "session")

    def all_known() -> bool:
        ends = {number: mailbox._shards[number].end_offset for number in THEIRS}
        return all((session.projected_below(n) or 0) >= end for n, end in ends.items())

    await running.until(all_known)


async def settled_talk(running: Running, *bodies: bytes) -> None:
    """Delivered, receipted, and claims of it collected."""
    acks = await running.say(*bodies)
    await running.heard(acks[-1].message_id)
    await running.until(lambda: passed_by_fanout(running))
    await floors_are_up(running, THEIRS)


async def whole(running: Running, said: int) -> None:
    """History has everything, the audit finds nothing."""
    report = await running.audited()
    assert (report.verdict, report.orphans) == (Verdict.CLEAN, ())
    assert running.observer.healthy
    client = await RawClient.log_in(running.target, BOB)
    (last,) = await running.say(b"the last")
    assert len(await client.history(last.conversation_id)) == said + 1
    await client.close()


def test_a_second_bump_brings_back_nothing_that_the_first_had_settled(run: Any) -> None:
    async def case(ground: Ground) -> None:
        async with ground.serving() as running:
            await settled_talk(running, *(b"old %d" % n for n in range(6)))
            await projected(running)
        forget_dispatches(ground)
        await bumped(ground, THEIRS)
        async with ground.serving() as running:
            await settled_talk(running, *(b"between %d" % n for n in range(3)))
            await projected(running)
        forget_dispatches(ground)
        for plan in await bumped(ground, THEIRS):
            assert all(first == checkpoint for _, checkpoint, first in plan.redo), plan.redo
        async with ground.serving() as running:
            (last,) = await running.say(b"last")
            assert await running.heard(last.message_id, b"anew") == [b"last"]
            await whole(running, 10)

    run(case)


def test_a_session_that_lagged_gets_its_part_and_the_mailbox_nothing_twice(run: Any) -> None:
    async def case(ground: Ground) -> None:
        async with ground.serving() as running:
            await settled_talk(running, b"listed 0", b"listed 1")
            await projected(running)
            running.server.runtime.hosted["session"].stop()
            await settled_talk(running, *(b"not listed %d" % n for n in range(6)))
        forget_dispatches(ground)
        plans = await bumped(ground, THEIRS)
        assert any(first < checkpoint for one in plans for _, checkpoint, first in one.redo)
        async with ground.serving() as running:
            (last,) = await running.say(b"last")
            assert await running.heard(last.message_id, b"anew") == [b"last"]
            await projected(running)
            await whole(running, 9)

    run(case)


@pytest.mark.parametrize("slow_first", [True, False])
def test_a_shard_that_lagged_makes_no_other_shard_deliver_again(run: Any, slow_first: bool) -> None:
    """Fanout goes back for the one, and what it dispatches again to the other is known there."""

    async def case(ground: Ground) -> None:
        slow, quick = shard_of(ALICE, SHARDS), shard_of(BOB, SHARDS)
        assert slow != quick
        async with ground.serving() as running:
            await settled_talk(running, b"delivered to both")
            deaf(running, slow)
            await settled_talk(running, b"wakes the fetch that was under way")
            acks = await running.say(*(b"to bob alone %d" % n for n in range(6)))
            await running.heard(acks[-1].message_id)
            await running.until(lambda: passed_by_fanout(running))
            await floors_are_up(running, [quick])
        forget_dispatches(ground)
        await bumped(ground, [slow, quick] if slow_first else [quick, slow])
        async with ground.serving() as running:
            (last,) = await running.say(b"last")
            assert await running.heard(last.message_id, b"anew") == [b"last"]
            alice = await RawClient.connect(running.target.tcp)
            await alice.authenticate(running.target, ALICE, device=b"anew")
            entries = await alice.pull_until(last.message_id)
            await alice.close()
            wanted = [b"to bob alone %d" % n for n in range(6)] + [b"last"]
            assert [entry.body for entry in entries] == wanted
            await whole(running, 9)

    run(case)


def deaf(running: Running, shard: int) -> None:
    """From its next fetch on the mailbox reads nothing of this shard's log."""
    hosted = running.server.runtime.hosted["mailbox"]
    route = hosted.routes[Fetch]

    def heard(effect: Any, by: Any) -> None:
        if effect.partition != shard:
            route(effect, by)

    hosted.routes[Fetch] = heard
