"""SessionProjection under faults: lost answers, leases that go, resets, foreign positions, bounds, drain."""

from typing import Any

import pytest
from msgspec.structs import replace

from qim.core.contract import routing
from qim.core.contract.errors import ErrorCode
from qim.core.contract.kinds import StateFlag
from qim.core.contract.rpc_session import (
    AskReadBy,
    AskSessionList,
    AskStates,
    StateDone,
    SubmitRead,
)
from qim.core.ports.completion import StoreReset, StoreRole
from qim.core.ports.local import DrainRequested, LeaseGone
from qim.core.ports.log import Append, Fetch, OutOfRange, Topic
from qim.core.ports.network import Received
from qim.core.ports.registry import Resource, Role
from qim.core.ports.store_session import OpenSession, ProjectDispatches, ReadSessions
from tests.core.newer_format import NEWER, halted, told
from tests.core.session.scene import CONFIG, EVERYONE, Scene, refused, shown
from tests.core.session.spoken import SHARDS
from tests.core.session.toy_writer import WALL

# ------------------------------------------------------------ faults


def test_large_groups_are_projected_in_several_calls() -> None:
    scene = Scene(replace(CONFIG, rows_max=7))
    name, other = scene.group(1, dict.fromkeys(range(1, 61), 0)), scene.group(2, {1: 0, 2: 0})
    scene.say(other, 2)
    calls: list[ProjectDispatches] = []

    def faulty(effect: Any) -> str | None:
        if isinstance(effect, ProjectDispatches):
            calls.append(effect)
            return ("unknown", None, "lost", "failed")[len(calls) % 4]
        return None

    scene.fault = faulty
    scene.say(name, 2)
    scene.say(name, 3)
    scene.run(3_000)
    assert all(len(call.rows) <= 7 for call in calls)
    for user in range(1, 61):
        assert shown(scene.pages(user)) == scene.expected(user, {})


def test_a_lost_answer_to_an_append_is_settled_by_the_same_batch() -> None:
    scene = Scene()
    name = scene.group(1, EVERYONE)
    scene.say(name, 2)
    scene.run()
    fates = iter(["unknown", "lost"])
    scene.fault = lambda effect: next(fates, None) if isinstance(effect, Append) else None
    assert isinstance(scene.read(1, name, 1), StateDone)
    assert len(scene.logs[Topic.USER_STATE, routing.shard(1, SHARDS)]) == 2
    assert scene.pages(1)[0].read_seq == 1


def test_no_answer_in_time_says_whether_it_may_have_been_done() -> None:
    scene = Scene()
    name = scene.group(1, EVERYONE)
    scene.say(name, 2)
    scene.run()
    scene.fault = lambda effect: "lost" if isinstance(effect, Append) else None
    refused(scene.read(1, name, 1), ErrorCode.TIMEOUT_UNKNOWN)
    scene.fault = lambda effect: "failed" if isinstance(effect, ReadSessions) else None
    refused(scene.page(2), ErrorCode.UNAVAILABLE)


def test_a_shard_that_is_not_here_or_opening() -> None:
    scene = Scene()
    shard = routing.shard(1, SHARDS)
    scene.fault = lambda effect: "failed" if isinstance(effect, OpenSession) else None
    refused(scene.page(1), ErrorCode.UNAVAILABLE)
    assert scene.machine.serving() == 0
    scene.fault = lambda effect: None
    scene.run(100)
    assert scene.machine.serving() == SHARDS
    scene.feed(LeaseGone(resource=Resource(role=Role.SESSION, number=shard)))
    scene.feed(LeaseGone(resource=Resource(role=Role.MAILBOX, number=1 - shard)))
    refused(scene.page(1), ErrorCode.NOT_OWNER)
    assert scene.machine.serving() == SHARDS - 1
    resource = Resource(role=Role.SESSION, number=shard)
    scene.feed(LeaseGone(resource=resource, owner_address="session-2:1"))
    assert scene.page(1).owner_address == "session-2:1"


def test_a_lease_that_goes_tells_everybody_who_waits() -> None:
    scene = Scene()
    name = scene.group(1, EVERYONE)
    scene.say(name, 2)
    scene.run()
    scene.read(1, name, 0)
    scene.fault = lambda effect: "lost" if isinstance(effect, Append) else None
    sent = scene.ask(SubmitRead, 1, conversation_id=name, read_seq=1)
    scene.run()
    queued = scene.ask(SubmitRead, 1, conversation_id=name, read_seq=2)
    scene.feed(LeaseGone(resource=Resource(role=Role.SESSION, number=routing.shard(1, SHARDS))))
    scene.run()
    refused(scene.answers[sent], ErrorCode.TIMEOUT_UNKNOWN)
    refused(scene.answers[queued], ErrorCode.UNAVAILABLE)


def test_another_owner_fences_this_one() -> None:
    scene = Scene()
    name = scene.group(1, EVERYONE)
    scene.run()
    zombie, todo, parked = scene.machine, scene.todo, scene.parked
    scene.start()
    scene.say(name, 2)
    scene.run()
    current = scene.machine
    scene.machine, scene.todo, scene.parked = zombie, todo, parked
    scene.wake()
    scene.run()
    assert scene.epoch > 2 * SHARDS, "it asked for a fresh epoch"
    assert shown(scene.pages(1)) == scene.expected(1, {})
    scene.machine = current


@pytest.mark.parametrize("noticed", [True, False])
def test_a_store_that_was_emptied_is_filled_again_from_the_logs(noticed: bool) -> None:
    scene = Scene()
    names = [scene.group(number, EVERYONE) for number in range(3)]
    for name in names:
        scene.say(name, 2)
    scene.run()
    scene.read(1, names[0], 1)
    scene.state(1, names[1], 3, flags=StateFlag.PINNED)
    old = scene.page(1, limit=1)
    scene.keyspace.flush()
    scene.run_id = b"run-2"
    if noticed:
        scene.feed(StoreReset(op=None, store=StoreRole.MAILBOX))
    else:
        scene.page(1)
    scene.run(1_000)
    assert shown(scene.pages(1)) == scene.expected(1, {(1, names[0]): 1})
    assert scene.page(1, old.revision, old.after, 1).revision != old.revision
    flags = {row.conversation_id: row.state_flags for row in scene.pages(1)}
    assert flags[names[1]] == StateFlag.PINNED


def test_every_try_to_open_brings_another_key() -> None:
    scene = Scene()
    opens: list[OpenSession] = []

    def faulty(effect: Any) -> str | None:
        if isinstance(effect, OpenSession):
            opens.append(effect)
            return ("unknown", "failed", None)[min((len(opens) - 1) // SHARDS, 2)]
        return None

    scene.fault = faulty
    scene.run(1_000)
    assert scene.machine.serving() == SHARDS
    assert len(opens) == 3 * SHARDS
    assert len({one.fresh_key for one in opens}) == len(opens), "the same entropy each time"
    assert len({one.opener for one in opens}) == 1 and len(opens[0].opener) == 16


def test_an_open_that_lands_late_in_an_emptied_store_marks_another_incarnation() -> None:
    """An empty answer of ReadSessions would pass for the list of somebody who has no conversation."""
    scene = Scene()
    name = scene.group(1, EVERYONE)
    scene.say(name, 2)
    late: list[OpenSession] = []

    def faulty(effect: Any) -> str | None:
        if isinstance(effect, OpenSession) and len(late) < SHARDS:
            late.append(effect)
            return "lost"
        return None

    scene.fault = faulty
    scene.run(1_000)
    assert shown(scene.pages(1)) == scene.expected(1, {})
    scene.keyspace.flush()
    for effect in late:
        scene.outside(effect)
    scene.page(1)
    scene.run(1_000)
    assert shown(scene.pages(1)) == scene.expected(1, {})


def test_a_message_store_that_was_reset_drops_what_came_from_it() -> None:
    scene = Scene()
    name = scene.group(1, EVERYONE)
    scene.say(name, 2)
    scene.run()
    scene.read(1, name, 1)
    scene.page(1)
    scene.sent.clear()
    scene.read(1, name, 2)
    assert not scene.sent, "known to be a member"
    scene.feed(StoreReset(op=None, store=StoreRole.MESSAGE))
    scene.page(1)
    assert len(scene.sent) == 1
    scene.read(1, name, 3)
    assert len(scene.sent) == 1, "the list has said it again"
    scene.feed(StoreReset(op=None, store=StoreRole.MESSAGE))
    scene.read(1, name, 4)
    assert len(scene.sent) == 2, "a membership may have been lost with the tail"
    assert scene.machine.serving() == SHARDS


def test_a_failed_store_call_comes_again() -> None:
    scene = Scene()
    name = scene.group(1, EVERYONE)
    failures = dict.fromkeys(("ProjectDispatches", "Fetch", "ReadEnds", "ReadVersions"), 2)

    def faulty(effect: Any) -> str | None:
        kind = type(effect).__name__
        failures[kind] = failures.get(kind, 0) - 1
        return "failed" if failures[kind] >= 0 else None

    scene.start()
    scene.fault = faulty
    scene.say(name, 2)
    scene.run(1_000)
    assert shown(scene.pages(1)) == scene.expected(1, {})


# ------------------------------------------------------------ positions


def test_a_position_in_another_log_stops_the_shard() -> None:
    scene = Scene()
    name = scene.group(1, EVERYONE)
    scene.say(name, 2)
    scene.say(name, 2)
    scene.run()
    shard = routing.shard(1, SHARDS)
    log = scene.logs[Topic.DISPATCH, shard]
    log[-1] = replace(log[-1], value=log[-1].value + b"other")
    scene.start()
    scene.run()
    assert [v.check for v in scene.violations] == ["position_mismatch"]
    refused(scene.page(1), ErrorCode.UNAVAILABLE)
    del log[-1:]
    scene.start()
    scene.run()
    assert [v.check for v in scene.violations] == ["position_mismatch"] * 2
    scene.feed(StoreReset(op=None, store=StoreRole.MAILBOX))
    refused(scene.page(1), ErrorCode.UNAVAILABLE)


def test_a_position_behind_a_compacted_record_is_trusted() -> None:
    scene = Scene()
    name = scene.group(1, EVERYONE)
    scene.say(name, 2)
    scene.run()
    shard = routing.shard(1, SHARDS)
    scene.read(1, name, 1)
    log = scene.logs[Topic.USER_STATE, shard]
    log[0] = replace(log[0], offset=5)
    scene.start()
    scene.run()
    assert scene.machine.serving() == SHARDS
    assert scene.violations == []


def test_records_of_a_newer_format_halt_and_rubbish_is_passed() -> None:
    scene = Scene()
    name = scene.group(1, EVERYONE)
    shard = routing.shard(1, SHARDS)
    for topic in (Topic.DISPATCH, Topic.USER_STATE):
        scene.put(topic, shard, b"")
    scene.say(name, 2)
    scene.run()
    assert scene.counts["session_dead_letter"] == 2
    assert shown(scene.pages(1)) == scene.expected(1, {})
    for topic in (Topic.DISPATCH, Topic.USER_STATE):
        scene.put(topic, shard, NEWER)
    scene.say(name, 2)
    scene.run()
    assert scene.counts["session_newer_format"] == 2
    assert sorted(one.detail for one in scene.warned) == [
        told(log, shard, offset).detail for log, offset in (("dispatch", 2), ("user_state", 1))
    ]
    assert halted(scene.machine.gauges(scene.now))[str(shard)] == 2
    assert scene.page(1).projected_through == 1 << 48 | 1


# ------------------------------------------------------------ bounds and ends


def test_bounds_refuse_with_a_hint_to_come_again() -> None:
    scene = Scene(replace(CONFIG, questions_max=1))
    name = scene.group(1, EVERYONE)
    scene.say(name, 2)
    scene.run()
    scene.fault = lambda effect: "swallowed" if isinstance(effect, ReadSessions) else None
    scene.ask(AskSessionList, 1, revision=0, after=b"", limit=0)
    rid = scene.ask(AskSessionList, 1, revision=0, after=b"", limit=0)
    scene.run()
    refused(scene.answers[rid], ErrorCode.UNAVAILABLE)
    assert scene.answers[rid].retry_after_ms > 0
    for limits in ({"asks_max": 0}, {"submissions_max": 0}):
        scene = Scene(replace(CONFIG, **limits))
        name = scene.group(1, EVERYONE)
        scene.say(name, 2)
        scene.run()
        refused(scene.read(1, name, 1), ErrorCode.UNAVAILABLE)
    refused(Scene(replace(CONFIG, asks_max=0)).read(1, name, 1), ErrorCode.UNAVAILABLE)


def test_books_are_bounded() -> None:
    scene = Scene(replace(CONFIG, known_max=2, owners_max=1, snapshot_bytes_max=1_500))
    names = [scene.group(number, EVERYONE) for number in (3, 4, 5, 6)]
    writers = {routing.writer_shard(name, CONFIG.outbox_partition_count) for name in names}
    assert len(writers) == 2, "more owners than are kept"
    for name in names:
        scene.say(name, 2)
    scene.run()
    for user in (1, 2, 3):
        assert shown(scene.pages(user, 2)) == scene.expected(user, {})
        for name in names:
            assert isinstance(scene.read(user, name, 1), StateDone)
    scene.run()
    gauges = {(one.name, one.label): one.value for one in scene.machine.gauges(scene.now)}
    assert gauges["session_snapshot_users", ""] == 1
    assert gauges["queue_depth", "session.questions"] == 0
    assert gauges["queue_depth", "session.snapshots_cached_bytes"] > 0
    assert gauges["queue_capacity", "session.snapshots_cached_bytes"] == 1_500
    assert gauges["session_lag_records", "0"] == gauges["session_state_lag_records", "0"] == 0


def test_the_list_of_who_asked_longest_ago_makes_room() -> None:
    def listed(scene: Scene) -> tuple[Any, Any]:
        for number in range(4):
            scene.say(scene.group(number, EVERYONE), 2)
        scene.run()
        return scene.page(1, limit=1), scene.page(2, limit=1)

    measured = Scene()
    listed(measured)
    gauges = {(one.name, one.label): one.value for one in measured.machine.gauges(measured.now)}
    room = gauges["queue_depth", "session.snapshots_cached_bytes"]
    scene = Scene(replace(CONFIG, snapshot_bytes_max=room))
    first, second = listed(scene)
    assert scene.page(1, first.revision, first.after, 1).revision == first.revision
    scene.page(3, limit=1)
    assert scene.page(1, first.revision, first.after, 1).revision == first.revision
    assert scene.page(2, second.revision, second.after, 1).revision != second.revision


def test_drain_finishes_what_is_in_flight_and_takes_nothing_new() -> None:
    scene = Scene()
    name = scene.group(1, EVERYONE)
    scene.say(name, 2)
    scene.run()
    rid = scene.ask(SubmitRead, 1, conversation_id=name, read_seq=1)
    scene.feed(DrainRequested())
    assert not scene.machine.idle()
    refused(scene.page(1), ErrorCode.NOT_OWNER)
    scene.run()
    assert scene.answers[rid] == StateDone(rid=rid)
    assert scene.machine.idle()
    scene.say(name, 2)
    scene.run(500)
    assert scene.machine.idle()


def test_strange_messages_and_answers_are_counted() -> None:
    scene = Scene()
    scene.run()
    stray = StateDone(rid=1)
    scene.feed(Received(source="x", wall=WALL, message=stray))
    scene.run()
    assert scene.counts["session_message_ignored"] == 1


def test_failed_reads_of_the_store_refuse_and_a_reset_one_reopens() -> None:
    scene = Scene()
    name = scene.group(1, EVERYONE)
    scene.say(name, 2)
    scene.run()
    for read in ("ReadStates", "ReadDelivered"):
        scene.fault = lambda effect, read=read: "failed" if type(effect).__name__ == read else None
        refused(scene.answer(AskStates, 1, since_revision=0, limit=1), ErrorCode.UNAVAILABLE)
    scene.fault = lambda effect: "failed" if type(effect).__name__ == "ReadMarks" else None
    answer = scene.answer(AskReadBy, 1, conversation_id=name, conversation_seq=1)
    refused(answer, ErrorCode.UNAVAILABLE)


def test_answers_to_a_shard_of_the_past_change_nothing() -> None:
    scene = Scene()
    scene.run()
    parked = list(scene.parked)
    scene.lease(0)
    scene.lease(1)
    scene.run()
    for fetch in parked:
        assert isinstance(fetch, Fetch)
        scene.feed(OutOfRange(op=fetch.op, topic_id=b"another topic's.", start=0, end=0))
    scene.run()
    assert scene.violations == []
    assert scene.machine.serving() == SHARDS
