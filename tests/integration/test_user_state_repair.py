"""A user-state log that lost its tail or was made anew: the shard stands until a person fills the log up, and serves on then."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from qim.core.contract.frames import MarkRead, Ok, StateBatch, StateSync
from qim.core.contract.routing import shard as shard_of
from qim.core.mending.user_state import UserStatePlan
from qim.core.ports.log import Topic
from tests.integration.ground import BOB, Ground, Running, over
from tests.integration.raw_client import RawClient

SHARDS = 4
SHARD = shard_of(BOB, SHARDS)


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Callable[[Ground], Coroutine[Any, Any, None]]], None]:
    return over(tmp_path / "data")


async def mark(running: Running, conversation_id: bytes, *seqs: int) -> None:
    async with await RawClient.log_in(running.target, BOB) as bob:
        for seq in seqs:
            await bob.ask(MarkRead(conversation_id=conversation_id, read_seq=seq), Ok)


async def changed_since(running: Running, revision: int) -> tuple[list[int], int]:
    """What another device of Bob's is told that knows everything before ``revision``: marks, and how far it knows now."""
    async with await RawClient.log_in(running.target, BOB, device=b"other") as bob:
        told = await bob.ask(StateSync(since_revision=revision), StateBatch)
    return [state.read_seq for state in told.states], told.revision


def cut(ground: Ground, count: int) -> None:
    """The last records are gone, as after a power cut of a broker."""
    where = "topic = 'user_state' AND partition = ?"
    end = f"SELECT max(position) + 1 FROM record WHERE {where}"
    ground.log(
        (
            f"DELETE FROM record WHERE {where} AND position >= ({end}) - ?",
            (SHARD, SHARD, count),
        )
    )


async def mended(ground: Ground, *, apply: bool) -> dict[int, UserStatePlan]:
    """Those that are not whole."""
    async with ground.parts() as (server, _):
        plans = [await server.mender.repair_states(number, apply=apply) for number in range(SHARDS)]
    return {plan.shard: plan for plan in plans if not plan.whole}


@pytest.mark.parametrize("anew", [False, True])
def test_marks_go_on_behind_where_they_stood(run: Any, anew: bool) -> None:
    async def case(ground: Ground) -> None:
        async with ground.serving() as running:
            acks = await running.say(*(b"%d" % n for n in range(5)))
            await running.heard(acks[-1].message_id)
            conversation = acks[0].conversation_id
            await mark(running, conversation, 1, 2, 3)
            marks, known = await changed_since(running, 0)
            assert (marks, known) == ([3], 3)
        if anew:
            ground.forget(Topic.USER_STATE)
        else:
            cut(ground, 2)
        async with ground.broken() as running:
            assert "position_mismatch" in {check for check, _ in running.observer.violations}
        (plan,) = (await mended(ground, apply=False)).values()
        assert (plan.shard, plan.applied_to, plan.log_end) == (SHARD, 3, 0 if anew else 1)
        assert (plan.padding, plan.applied) == (plan.applied_to - plan.log_end, False)
        assert (await mended(ground, apply=True))[SHARD].applied
        assert await mended(ground, apply=True) == {}, "again, and nothing is left to do"
        async with ground.serving() as running:
            assert await changed_since(running, 0) == ([3], known), "the store has it still"
            await mark(running, conversation, 2, 4)
            marks, _ = await changed_since(running, known)
            assert marks == [4], "who knew everything before hears of what came"
            assert running.observer.healthy

    run(case)
