"""What a person mends, on an embedded server of this process: afterwards everybody has everything once, audit CLEAN."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from qim.core.audit import OrphanKind, Verdict
from qim.core.contract.frames import SendAck
from qim.core.contract.invariants import Invariant
from qim.core.contract.logvalue import Outboxed, Undecodable, barrier_value, read_outbox
from qim.core.contract.routing import shard as shard_of
from qim.core.contract.routing import writer_shard
from qim.core.contract.sequences import split_mailbox_seq
from qim.core.fanout import admitting
from qim.core.mending.asking import NotMended
from qim.core.ports.log import Topic
from qim.services.mending import as_json
from tests.integration.ground import ALICE, BOB, Ground, Running, over
from tests.integration.raw_client import RawClient

HIDDEN = b"an older fanout cannot read this"


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Callable[[Ground], Coroutine[Any, Any, None]]], None]:
    return over(tmp_path / "data")


# ------------------------------------------------------------ dead letters


def blind(value: bytes) -> Any:
    """An older version of read_outbox, to which the record is rubbish."""
    entry = read_outbox(value)
    hidden = isinstance(entry, Outboxed) and entry.record.body == HIDDEN
    return Undecodable("the test hides it") if hidden else entry


def test_a_dead_letter_is_redriven_once_somebody_can_read_it(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def case(ground: Ground) -> None:
        with monkeypatch.context() as older:
            older.setattr(admitting, "read_outbox", blind)
            async with ground.serving() as running:
                hidden, last = await running.say(HIDDEN, b"in the clear")
                await running.heard(last.message_id)
                report = await running.audited()
                assert [one.kind for one in report.orphans] == [OrphanKind.DEAD_LETTERED]
                # a running server is mended as it runs: nothing here needs a lease
                mender = running.server.mender
                (letter,) = await mender.dead_letters()
                assert (letter.state, letter.message_id) == ("readable", hidden.message_id.hex())
                (told,) = await mender.redrive([letter], apply=False)
                assert (told.outcome, told.recipients) == ("would_dispatch", 2)
                assert (await mender.dead_letters()) == (letter,), "a dry run writes nothing"
                (done,) = await mender.redrive([letter], apply=True)
                assert (done.outcome, done.shards) == ("dispatched", told.shards)
                (after,) = await mender.dead_letters()
                assert after.state == "resolved"
                (again,) = await mender.redrive([after], apply=True)
                assert again.outcome == "resolved"
                heard = await running.heard(hidden.message_id, b"another")
                assert sorted(heard) == sorted([HIDDEN, b"in the clear"])
                assert (await running.audited()).verdict is Verdict.CLEAN
                (more,) = await running.say(b"and on it goes")
                assert len(await running.heard(more.message_id, b"third")) == 3

    run(case)


RUBBISH = """INSERT INTO record SELECT topic, partition, max(position) + 1, time, x'00', x'01ff'
  FROM record WHERE topic = 'outbox' GROUP BY partition"""
ENDS = """UPDATE span SET last_end = coalesce((SELECT max(position) + 1 FROM record AS r
  WHERE r.topic = 'outbox' AND r.partition = span.partition), first) WHERE topic = 'outbox'"""


def test_rubbish_stays_a_dead_letter(run: Any) -> None:
    async def case(ground: Ground) -> None:
        async with ground.serving() as running:
            (ack,) = await running.say(b"one")
            await running.heard(ack.message_id)
        ground.log((RUBBISH, ()), (ENDS, ()))
        async with ground.serving() as running:
            report = await running.audited()
            assert {one.kind for one in report.orphans} == {OrphanKind.DEAD_LETTERED}
            letters = await running.server.mender.dead_letters()
            assert {one.state for one in letters} == {"undecodable"}
            assert all(one.detail for one in letters)
            outcomes = await running.server.mender.redrive(letters, apply=True)
            assert {one.outcome for one in outcomes} == {"undecodable"}
            assert (await running.audited()).orphans_total == len(letters)

    run(case)


# ------------------------------------------------------------ a dispatch log that is gone


async def bumped(ground: Ground, shards: list[int]) -> None:
    async with ground.parts() as (server, _):
        for number in shards:
            plan = await server.mender.bump(number, apply=False)
            assert not plan.applied
            done = await server.mender.bump(number, apply=True)
            assert (done.applied, done.new_shard_epoch) == (True, plan.shard_epoch + 1)
            assert as_json(done)["shard"] == number
            with pytest.raises(NotMended, match="nothing is to be mended"):
                await server.mender.bump(number, apply=True)


def test_a_bumped_shard_gets_what_no_mailbox_had_and_counts_on_above(run: Any) -> None:
    async def case(ground: Ground) -> None:
        async with ground.serving() as running:
            acks = await running.say(*(b"delivered %d" % n for n in range(5)))
            await running.heard(acks[-1].message_id)
            await running.audited()
            late = await running.say(
                *(b"only dispatched %d" % n for n in range(3)), without="mailbox"
            )
            await running.until(lambda: passed_by_fanout(running, late[-1]))
        ground.forget(Topic.DISPATCH)
        async with ground.broken() as running:
            checks = {check for check, _ in running.observer.violations}
            assert checks <= {Invariant.MAILBOX_SEQ_REGRESSION.value, "position_mismatch"}
            with pytest.raises(NotMended, match="is held by test"):
                await running.server.mender.bump(0, apply=True)
        await bumped(ground, sorted({shard_of(user, 4) for user in (ALICE, BOB)}))
        async with ground.serving() as running:
            assert running.observer.healthy
            heard = await running.heard(late[-1].message_id)
            assert heard == [b"only dispatched %d" % n for n in range(3)]
            assert (await running.audited()).verdict is Verdict.CLEAN
            client = await RawClient.log_in(running.target, BOB)
            conversation = late[0].conversation_id
            assert len(await client.history(conversation)) == 8, "the rest comes from history"
            assert split_mailbox_seq(client.auth_ok.sync_to_seq)[0] == 2
            await client.close()
            (more,) = await running.say(b"and on it goes")
            assert (await running.heard(more.message_id, b"third"))[-1] == b"and on it goes"

    run(case)


def passed_by_fanout(running: Running, ack: SendAck) -> bool:
    """Dispatched and its receipt written: the checkpoint is at the log's end."""
    gauges = running.server.runtime.hosted["fanout"].machine.gauges(0)  # type: ignore[attr-defined]
    lags = [one.value for one in gauges if one.name == "fanout_lag_records"]
    return bool(lags) and not any(lags)


def test_a_shard_that_is_whole_is_left_alone(run: Any) -> None:
    async def case(ground: Ground) -> None:
        async with ground.serving() as running:
            (ack,) = await running.say(b"one")
            await running.heard(ack.message_id)
            await running.audited()
        async with ground.parts() as (server, _):
            number = shard_of(BOB, 4)
            assert (await server.mender.bump(number, apply=False)).whole
            with pytest.raises(NotMended, match="nothing is to be mended"):
                await server.mender.bump(number, apply=True)
        async with ground.serving() as running:
            assert await running.heard(ack.message_id) == [b"one"]

    run(case)


# ------------------------------------------------------------ an outbox that lost its tail


CUT = """DELETE FROM record WHERE topic = 'outbox' AND position >= (SELECT max(position) + 1 - ?
  FROM record AS r WHERE r.topic = 'outbox' AND r.partition = record.partition)"""


def cut_outbox(ground: Ground, keep: int) -> None:
    """Each partition ends ``keep`` records earlier."""
    ground.log((CUT, (keep,)), (ENDS, ()))


def test_an_outbox_without_its_tail_is_filled_up_from_hot_store_and_facts(run: Any) -> None:
    async def case(ground: Ground) -> None:
        async with ground.serving() as running:
            acks = await running.say(*(b"delivered %d" % n for n in range(6)))
            await running.heard(acks[-1].message_id)
            await running.until(lambda: passed_by_fanout(running, acks[-1]))
            late = await running.say(*(b"acked %d" % n for n in range(3)), without="fanout")
        cut_outbox(ground, 5)
        async with ground.broken() as running:
            # Whoever had read what is gone tells of it too, and may be sooner.
            told = running.observer.violations
            await running.until(lambda: "outbox_truncated" in {check for check, _ in told})
        async with ground.parts() as (server, _):
            plans = [await server.mender.repair_outbox(number, apply=False) for number in (0, 1)]
            assert sum(plan.lost_undispatched for plan in plans) == 3
            assert sum(plan.lost_dispatched for plan in plans) == 2
            assert not any(plan.unreadable for plan in plans)
            for number in (0, 1):
                done = await server.mender.repair_outbox(number, apply=True)
                assert done.applied_repair is not plans[number].nothing()
                assert (await server.mender.repair_outbox(number, apply=True)).nothing()
        async with ground.serving() as running:
            assert running.observer.healthy
            heard = await running.heard(late[-1].message_id)
            wanted = [b"delivered %d" % n for n in range(6)] + [b"acked %d" % n for n in range(3)]
            assert heard == wanted, "each once, in order"
            assert (await running.audited()).verdict is Verdict.CLEAN
            (more,) = await running.say(b"and on it goes")
            assert (await running.heard(more.message_id, b"third"))[-1] == b"and on it goes"
            assert (await running.audited()).verdict is Verdict.CLEAN

    run(case)


# ------------------------------------------------------------ both logs, one after the other


def test_a_bump_and_then_a_repair_of_what_no_audit_has_seen(run: Any) -> None:
    """Both topics are lost. What was delivered before the bump is published again behind the bump's mark."""

    async def case(ground: Ground) -> None:
        async with ground.serving() as running:
            acks = await running.say(*(b"delivered %d" % n for n in range(6)))
            await running.heard(acks[-1].message_id)
            await running.until(lambda: passed_by_fanout(running, acks[-1]))
        ground.forget(Topic.DISPATCH)
        await bumped(ground, sorted({shard_of(user, 4) for user in (ALICE, BOB)}))
        ground.forget(Topic.OUTBOX)
        async with ground.parts() as (server, _):
            done = [await server.mender.repair_outbox(number, apply=True) for number in (0, 1)]
            assert sum(one.lost_dispatched for one in done) == 6
        async with ground.serving() as running:
            (more,) = await running.say(b"and on it goes")
            assert await running.heard(more.message_id) == [b"and on it goes"]
            report = await running.audited()
            assert (report.verdict, report.orphans) == (Verdict.CLEAN, ())
            assert running.observer.healthy
            client = await RawClient.log_in(running.target, BOB)
            assert len(await client.history(acks[0].conversation_id)) == 7
            await client.close()

    run(case)


OTHERS = """UPDATE record SET key = x'', value = ? WHERE topic = 'outbox' AND partition = ? AND position >
  (SELECT max(position) - 2 FROM record AS r WHERE r.topic = 'outbox' AND r.partition = record.partition)"""
"""A dead owner's late appends, which mean nothing, stand where records were lost."""


def test_an_outbox_that_grew_again_over_its_lost_tail_is_found_out_and_filled_up(run: Any) -> None:
    async def case(ground: Ground) -> None:
        async with ground.serving() as running:
            acks = await running.say(*(b"delivered %d" % n for n in range(4)))
            await running.heard(acks[-1].message_id)
            await running.until(lambda: passed_by_fanout(running, acks[-1]))
            late = await running.say(*(b"acked %d" % n for n in range(2)), without="fanout")
            number = writer_shard(late[0].conversation_id, 2)
        ground.log((OTHERS, (barrier_value(1), number)))
        async with ground.broken() as running:
            # The writer at its open, and the archiver, which had read what is gone.
            told = running.observer.violations
            await running.until(lambda: len({check for check, _ in told}) == 2)
            assert {check for check, _ in told} == {"outbox_truncated", "position_mismatch"}
        async with ground.parts() as (server, _):
            plan = await server.mender.repair_outbox(number, apply=False)
            assert (plan.lost_undispatched, plan.trusted, plan.padding) == (2, False, 0)
            await server.mender.repair_outbox(number, apply=True)
            assert (await server.mender.repair_outbox(number, apply=False)).nothing()
        async with ground.serving() as running:
            heard = await running.heard(late[-1].message_id)
            assert heard == [b"delivered %d" % n for n in range(4)] + [b"acked 0", b"acked 1"]
            assert (await running.audited()).verdict is Verdict.CLEAN
            assert running.observer.healthy

    run(case)


# ------------------------------------------------------------ a dispatch log that lost single records


def test_a_dispatch_that_is_gone_is_dispatched_again(run: Any) -> None:
    async def case(ground: Ground) -> None:
        async with ground.serving() as running:
            acks = await running.say(b"one", b"two", b"three")
            await running.heard(acks[-1].message_id)
            await running.audited()
        # a bit that rotted: the record is rubbish now, where the mailbox has long passed
        ground.log(
            (
                "UPDATE record SET value = x'01ff' WHERE topic = 'dispatch' AND key = ?",
                (acks[1].message_id,),
            )
        )
        async with ground.serving() as running:
            report = await running.audited()
            mendable = [one for one in report.orphans if one.partition >= 0]
            assert {one.kind for one in mendable} == {OrphanKind.RECORD_WITHOUT_DISPATCH}
            mender = running.server.mender
            (told,) = await mender.redispatch(report.orphans, apply=False)
            assert (told.outcome, told.message_id) == ("would_dispatch", acks[1].message_id.hex())
            (done,) = await mender.redispatch(report.orphans, apply=True)
            assert done.outcome == "dispatched"
            after = await running.audited()
            assert not [one for one in after.orphans if one.partition >= 0]
            heard = await running.heard(acks[-1].message_id)
            assert heard == [b"one", b"two", b"three"], "the second copy was claimed away"

    run(case)
