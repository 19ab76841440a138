"""SessionProjection: answers that come too late, logs that changed under it, foreign completions."""

from typing import Any

import pytest
from msgspec.structs import replace

from qim.core.contract import routing
from qim.core.contract.errors import ErrorCode
from qim.core.contract.rpc_session import AskReadBy, AskSessionList, StateDone, SubmitRead
from qim.core.ports.completion import Fenced, StoreReset, StoreRole
from qim.core.ports.local import LeaseGone, LeaseHeld
from qim.core.ports.log import Append, AppendRefused, Fetch, Fetched, OutOfRange, ReadEnds, Topic
from qim.core.ports.network import Received, Send
from qim.core.ports.observe import Violation
from qim.core.ports.registry import LeaseRead, ReadLease, Resource, Role
from qim.core.ports.store_reads import VersionsRead
from qim.core.ports.store_session import ApplyStates, MarksRead, ProjectDispatches, ReadSessions
from tests.core.session.scene import CONFIG, EVERYONE, Scene, refused, shown
from tests.core.session.spoken import SHARDS
from tests.core.session.toy_writer import conversation

SHARD = routing.shard(1, SHARDS)
QUESTIONS: tuple[tuple[Any, dict[str, Any]], ...] = (
    (AskSessionList, {"revision": 0, "after": b"", "limit": 0}),
    (SubmitRead, {"conversation_id": conversation(1), "read_seq": 1}),
    (AskReadBy, {"conversation_id": conversation(1), "conversation_seq": 1}),
)


def talking() -> Scene:
    scene = Scene()
    scene.say(scene.group(1, EVERYONE), 2)
    scene.run()
    return scene


def caught(scene: Scene, kind: type, most: int = 1_000) -> list[Any]:
    """Effects of a type that get no answer."""
    held: list[Any] = []

    def catch(effect: Any) -> str | None:
        if isinstance(effect, kind) and len(held) < most:
            held.append(effect)
            return "swallowed"
        return None

    scene.fault = catch
    return held


@pytest.mark.parametrize(("kind", "fields"), QUESTIONS)
def test_a_writer_answers_after_the_asker_has_gone(kind: Any, fields: dict[str, Any]) -> None:
    scene = talking()
    scene.config = replace(scene.config, ask_ms=60_000)
    scene.start()
    scene.run()
    held: list[Any] = []

    def catch(effect: Any) -> str | None:
        if isinstance(effect, Send) and effect.address.startswith("writer-"):
            held.append(effect)
            return "swallowed"
        return None

    scene.fault = catch
    rid = scene.ask(kind, 1, **fields)
    scene.run(CONFIG.question_ms)
    refused(scene.answers[rid], ErrorCode.UNAVAILABLE)
    answer = scene.writer.answer(held[0].message)
    scene.feed(Received(source="writer", wall=scene.wall(), message=answer))
    scene.run()
    assert not scene.logs[Topic.USER_STATE, SHARD]


@pytest.mark.parametrize(("kind", "fields"), QUESTIONS)
def test_a_writer_answers_after_the_shard_has_moved(kind: Any, fields: dict[str, Any]) -> None:
    scene = talking()
    held: list[Any] = []

    def catch(effect: Any) -> str | None:
        if isinstance(effect, Send) and effect.address.startswith("writer-"):
            held.append(effect)
            return "swallowed"
        return None

    scene.fault = catch
    rid = scene.ask(kind, 1, **fields)
    scene.run()
    scene.feed(LeaseGone(resource=Resource(role=Role.SESSION, number=SHARD)))
    answer = scene.writer.answer(held[0].message)
    scene.feed(Received(source="writer", wall=scene.wall(), message=answer))
    scene.run()
    refused(scene.answers[rid], ErrorCode.UNAVAILABLE)


def test_a_store_answers_after_the_asker_has_gone() -> None:
    scene = talking()
    held = caught(scene, ReadSessions)
    rid = scene.ask(AskSessionList, 1, revision=0, after=b"", limit=0)
    scene.run(CONFIG.question_ms)
    refused(scene.answers[rid], ErrorCode.UNAVAILABLE)
    scene.feed(scene.outside(held[0]))
    scene.run()
    assert scene.sent == []


def test_the_registry_answers_after_the_asker_has_gone() -> None:
    scene = talking()
    held = caught(scene, ReadLease)
    rids = [scene.ask(AskSessionList, user, revision=0, after=b"", limit=0) for user in (1, 2)]
    scene.run(CONFIG.question_ms)
    for rid in rids:
        refused(scene.answers[rid], ErrorCode.UNAVAILABLE)
    for one in held:
        answer = scene.outside(one)
        assert isinstance(answer, LeaseRead)
        scene.feed(answer)
    scene.run()
    assert scene.sent == []


def test_too_many_questions_to_writers_refuse_a_list() -> None:
    scene = Scene(replace(CONFIG, asks_max=1))
    for number in range(12):
        scene.say(scene.group(number, EVERYONE), 2)
    scene.run()
    refused(scene.page(1), ErrorCode.UNAVAILABLE)


def test_owners_are_bounded() -> None:
    scene = Scene(replace(CONFIG, owners_max=1))
    for number in range(12):
        scene.say(scene.group(number, EVERYONE), 2)
    scene.run()
    for _ in range(2):
        assert shown(scene.pages(1)) == scene.expected(1, {})
        scene.feed(StoreReset(op=None, store=StoreRole.MESSAGE))


def test_a_conversation_its_writer_doesnt_know_is_left_out() -> None:
    scene = Scene(replace(CONFIG, settle_ms=0))
    name = scene.group(1, EVERYONE)
    scene.say(name, 2)
    scene.run()
    del scene.writer.conversations[name]
    assert scene.page(1).rows == ()
    assert scene.counts["session_row_unknown"] == 1


def test_a_mark_whose_asker_has_gone_before_it_was_sent_is_not_appended() -> None:
    scene = talking()
    scene.read(1, conversation(1), 0)
    before = len(scene.logs[Topic.USER_STATE, SHARD])
    scene.fault = lambda effect: "failed" if isinstance(effect, Append) else None
    first = scene.ask(SubmitRead, 1, conversation_id=conversation(1), read_seq=1)
    scene.run()
    second = scene.ask(SubmitRead, 1, conversation_id=conversation(1), read_seq=9)
    scene.run(CONFIG.question_ms)
    refused(scene.answers[first], ErrorCode.TIMEOUT_UNKNOWN)
    refused(scene.answers[second], ErrorCode.UNAVAILABLE)
    scene.fault = lambda effect: None
    scene.run(1_000)
    assert len(scene.logs[Topic.USER_STATE, SHARD]) == before + 1
    assert scene.pages(1)[0].read_seq == 1


def test_a_durable_mark_that_isnt_applied_when_the_shard_moves_may_have_been_done() -> None:
    scene = talking()
    scene.fault = lambda effect: "failed" if isinstance(effect, ApplyStates) else None
    rid = scene.ask(SubmitRead, 1, conversation_id=conversation(1), read_seq=1)
    scene.run()
    scene.feed(LeaseGone(resource=Resource(role=Role.SESSION, number=SHARD)))
    scene.run()
    refused(scene.answers[rid], ErrorCode.TIMEOUT_UNKNOWN)
    scene.fault = lambda effect: None
    scene.lease(SHARD)
    scene.run()
    assert scene.pages(1)[0].read_seq == 1


def test_a_record_the_log_refuses_stops_the_shard() -> None:
    scene = talking()
    held = caught(scene, Append)
    scene.ask(SubmitRead, 1, conversation_id=conversation(1), read_seq=1)
    scene.run()
    scene.feed(AppendRefused(op=held[0].op, index=0, why="too large"))
    scene.run()
    assert [v.check for v in scene.violations] == ["state_refused"]
    refused(scene.page(1), ErrorCode.UNAVAILABLE)


@pytest.mark.parametrize("strange", ["topic", "range", "hole"])
def test_a_log_that_changed_under_the_feed_stops_the_shard(strange: str) -> None:
    scene = Scene()
    held = caught(scene, Fetch, 2 * SHARDS)
    scene.run()
    fetch = next(f for f in held if (f.topic, f.partition) == (Topic.DISPATCH, SHARD))
    scene.say(scene.group(1, EVERYONE), 2)
    found = scene.outside(fetch)
    assert isinstance(found, Fetched)
    answers: dict[str, Any] = {
        "topic": replace(found, topic_id=b"other"),
        "range": OutOfRange(op=fetch.op, topic_id=found.topic_id, start=5, end=9),
        "hole": replace(found, records=(replace(found.records[0], offset=3),)),
    }
    scene.feed(answers[strange])
    scene.run()
    assert [v.check for v in scene.violations] == ["position_mismatch"]


@pytest.mark.parametrize("topic", [Topic.DISPATCH, Topic.USER_STATE])
def test_a_log_that_grew_again_over_what_was_read_stops_the_shard(topic: Topic) -> None:
    scene = talking()
    scene.read(1, conversation(1), 1)
    scene.run()
    number = next(number for (of, number), log in scene.logs.items() if of is topic and log)
    log = scene.logs[topic, number]
    log[-1] = replace(log[-1], value=b"another")
    log.append(replace(log[-1], offset=log[-1].offset + 1))
    scene.wake()
    scene.run()
    (violation,) = scene.violations
    assert violation.check == "position_mismatch"
    assert f"{topic.value}/{number}: OTHER_RECORD" in violation.detail


def test_a_mark_that_lands_below_what_was_read_is_not_said_to_stand() -> None:
    """At such an offset it would pass for applied."""
    scene = talking()
    scene.read(1, conversation(1), 1)
    scene.run()
    number = next(
        number for (of, number), log in scene.logs.items() if of is Topic.USER_STATE and log
    )
    scene.logs[Topic.USER_STATE, number].clear()
    scene.parked = []  # the fetches that wait there hear of nothing
    rid = scene.ask(SubmitRead, 1, conversation_id=conversation(1), read_seq=2)
    scene.run()
    (violation,) = scene.violations
    assert violation.check == "position_mismatch"
    assert "appended at 0, and was read up to 1" in violation.detail
    assert not isinstance(scene.answers.get(rid), StateDone)


def test_compaction_takes_the_record_before_a_position_and_the_feed_goes_on() -> None:
    scene = talking()
    scene.read(1, conversation(1), 1)
    scene.run()
    number = next(
        number for (of, number), log in scene.logs.items() if of is Topic.USER_STATE and log
    )
    log = scene.logs[Topic.USER_STATE, number]
    log.append(replace(log[-1], offset=log[-1].offset + 1))
    del log[-2]
    scene.wake()
    scene.run()
    assert scene.violations == []
    assert scene.machine.serving() == SHARDS


def test_retention_that_moves_on_while_a_position_is_judged() -> None:
    scene = talking()
    scene.read(1, conversation(1), 1)
    fetched: list[Fetch] = []

    def overtaken(effect: Any) -> str | None:
        if isinstance(effect, Fetch) and effect.limit == 1 and len(fetched) < 2:
            fetched.append(effect)
            return "swallowed"
        return None

    scene.start()
    scene.fault = overtaken
    scene.run()
    for fetch in fetched:
        topic_id = scene.outside(ReadEnds(op=1, topic=fetch.topic, partition=0)).topic_id
        scene.feed(OutOfRange(op=fetch.op, topic_id=topic_id, start=0, end=1))
    scene.run()
    assert len(fetched) == 2
    assert scene.machine.serving() == SHARDS


def test_a_dispatch_log_that_lost_the_record_before_the_position_stops() -> None:
    scene = talking()
    scene.say(conversation(1), 2)
    scene.run()
    log = scene.logs[Topic.DISPATCH, SHARD]
    log[-1] = replace(log[-1], offset=5)
    scene.start()
    scene.run()
    assert [v.check for v in scene.violations] == ["position_mismatch"]


@pytest.mark.parametrize(("store", "epoch"), [(True, 0), (False, 50)])
def test_a_shard_call_that_is_fenced_or_reset_asks_for_a_fresh_epoch(
    store: bool, epoch: int
) -> None:
    scene = talking()
    held = caught(scene, ProjectDispatches, 1)
    scene.say(conversation(1), 2)
    scene.run()
    op = held[0].op
    answer = StoreReset(op=op, store=StoreRole.MAILBOX) if store else Fenced(op=op, epoch=epoch)
    scene.feed(answer)
    scene.run()
    assert scene.epoch > epoch
    assert shown(scene.pages(1)) == scene.expected(1, {})


def test_a_version_unknown_for_good_is_told_once_and_waited_for() -> None:
    scene = Scene()
    name = scene.group(1, EVERYONE)
    scene.missing_versions[name] = None
    scene.applied = 1
    scene.say(name, 2)
    scene.run(3_000)
    assert [v.check for v in scene.violations] == ["version_unknown"]
    scene.missing_versions.clear()
    scene.run(3_000)
    assert shown(scene.pages(1)) == scene.expected(1, {})


def test_leases_of_others_and_answers_to_nobody() -> None:
    scene = talking()
    other = Resource(role=Role.MAILBOX, number=SHARD)
    held = LeaseHeld(resource=other, epoch=9, barrier_epoch=0, barrier_offset=-1, wall=scene.wall())
    scene.feed(held)
    scene.feed(LeaseGone(resource=Resource(role=Role.SESSION, number=99)))
    assert scene.machine.serving() == SHARDS
    fetch = caught(scene, ProjectDispatches, 1)
    scene.say(conversation(1), 2)
    scene.run()
    for strange in (MarksRead(op=0, read_seqs=()), VersionsRead(op=0, versions=(), applied=())):
        with pytest.raises(AssertionError):
            scene.feed(replace(strange, op=fetch[0].op))
        fetch = caught(scene, ProjectDispatches, 1)
        scene.start()
        scene.run()


def test_a_violation_names_the_partition() -> None:
    scene = talking()
    log = scene.logs[Topic.DISPATCH, SHARD]
    log[-1] = replace(log[-1], value=log[-1].value + b"other")
    scene.say(conversation(1), 2)
    scene.start()
    scene.run()
    violation = scene.violations[0]
    assert isinstance(violation, Violation)
    assert f"dispatch/{SHARD}" in violation.detail
    assert isinstance(
        scene.read(2 if routing.shard(2, SHARDS) != SHARD else 3, conversation(1), 1), StateDone
    )
