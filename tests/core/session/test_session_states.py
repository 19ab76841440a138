"""Read marks and user state through their log; who has read."""

from typing import Any

import pytest

from qim.core.contract import routing
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frame_fields import DEVICES_MAX
from qim.core.contract.rpc_session import (
    AskReadBy,
    AskStates,
    DeviceRow,
    ReadByAnswer,
    StateDone,
    StatesAnswer,
    SubmitRead,
    SubmitState,
)
from qim.core.ports.log import Append, Topic
from qim.core.ports.network import Send
from qim.core.ports.store_session import (
    ApplyStates,
    NoteDelivered,
    OpenSession,
)
from tests.core.session.scene import EVERYONE, Scene, refused, shown
from tests.core.session.spoken import SHARDS, TENANT
from tests.core.session.toy_writer import conversation

# ------------------------------------------------------------ marks and states


def test_a_mark_is_in_the_log_and_applied_before_it_is_answered() -> None:
    scene = Scene()
    name = scene.group(1, EVERYONE)
    scene.say(name, 2)
    scene.say(name, 2)
    scene.run()
    scene.fault = lambda effect: "failed" if isinstance(effect, ApplyStates) else None
    rid = scene.ask(SubmitRead, 1, conversation_id=name, read_seq=1)
    scene.run(1_000)
    assert len(scene.logs[Topic.USER_STATE, routing.shard(1, SHARDS)]) == 1
    assert rid not in scene.answers
    scene.fault = lambda effect: None
    scene.run(100)
    assert scene.answers[rid] == StateDone(rid=rid)
    assert shown(scene.pages(1)) == scene.expected(1, {(1, name): 1})


def test_a_mark_makes_no_dispatch_no_push_and_no_unread() -> None:
    scene = Scene()
    name = scene.group(1, dict.fromkeys(range(1, 1_001), 0))
    scene.say(name, 2)
    scene.run()
    dispatched = sum(len(scene.logs[Topic.DISPATCH, n]) for n in range(SHARDS))
    before = scene.pages(3)
    everything: list[Any] = []
    scene.fault = lambda effect: everything.append(effect)
    assert isinstance(scene.read(1, name, 1), StateDone)
    sends = [effect for effect in everything if isinstance(effect, Send)]
    assert all(s.address.startswith("writer-") or s.address == "gateway" for s in sends)
    appends = [effect for effect in everything if isinstance(effect, Append)]
    assert [(a.topic, len(a.records)) for a in appends] == [(Topic.USER_STATE, 1)]
    assert dispatched == sum(len(scene.logs[Topic.DISPATCH, n]) for n in range(SHARDS))
    assert scene.pages(3) == before


def test_marks_only_rise() -> None:
    scene = Scene()
    name = scene.group(1, EVERYONE)
    for _ in range(4):
        scene.say(name, 2)
    scene.run()
    assert isinstance(scene.read(1, name, 3), StateDone)
    appended = len(scene.logs[Topic.USER_STATE, routing.shard(1, SHARDS)])
    assert isinstance(scene.read(1, name, 2), StateDone)
    assert isinstance(scene.read(1, name, 3), StateDone)
    log = scene.logs[Topic.USER_STATE, routing.shard(1, SHARDS)]
    assert len(log) == appended, "it stands already: no record"
    assert scene.pages(1)[0].read_seq == 3
    scene.start()
    assert isinstance(scene.read(1, name, 1), StateDone), "a new process doesn't know that"
    assert scene.pages(1)[0].read_seq == 3
    assert len(log) == appended + 2, "the loser, and the winner again"
    scene.keyspace.flush()
    scene.logs[Topic.USER_STATE, routing.shard(1, SHARDS)] = log[-1:]
    scene.start()
    scene.run(100)
    assert scene.pages(1)[0].read_seq == 3, "compaction keeps the last record: it is the winner"


def test_a_loser_is_not_passed_before_its_winner_is_durable() -> None:
    scene = Scene()
    name = scene.group(1, EVERYONE)
    scene.say(name, 2)
    scene.run()
    scene.state(1, name, 5, value=b"new")
    scene.start()
    scene.run()
    shard = routing.shard(1, SHARDS)
    scene.fault = lambda effect: (
        "failed"
        if isinstance(effect, Append) and len(scene.logs[effect.topic, shard]) > 1
        else None
    )
    rid = scene.ask(SubmitState, 1, conversation_id=name, version=4, flags=0, value=b"old")
    scene.run(1_000)
    assert rid not in scene.answers
    opened = OpenSession(op=1, shard=shard, epoch=scene.epoch, fresh_key=b"k")
    assert scene.outside(opened).state.offset == 1, "the loser at offset 1 is not passed"
    scene.fault = lambda effect: None
    scene.run(100)
    assert scene.answers[rid] == StateDone(rid=rid)
    assert [r.state_value for r in scene.pages(1)] == [b"new"]
    assert scene.counts["session_state_lost"] == 1


def test_a_mark_before_the_first_projection_is_kept_and_shows_with_the_first_message() -> None:
    scene = Scene()
    name = scene.group(1, EVERYONE)
    row = scene.say(name, 2, dispatched=False)
    scene.say(name, 2, dispatched=False)
    assert isinstance(scene.read(1, name, 1), StateDone)
    assert scene.pages(1) == []
    for row in scene.writer.conversations[name].rows:
        scene.dispatch(scene.writer.conversations[name], row)
    scene.run()
    assert shown(scene.pages(1)) == scene.expected(1, {(1, name): 1})


@pytest.mark.parametrize("kind", [SubmitRead, SubmitState])
def test_strangers_change_nothing(kind: Any) -> None:
    scene = Scene()
    name = scene.group(1, EVERYONE)
    scene.run()
    fields: dict[str, Any] = {"read_seq": 1}
    if kind is SubmitState:
        fields = {"version": 1, "flags": 0, "value": b""}
    for other in (name, conversation(99)):
        answer = scene.answer(kind, 4, conversation_id=other, **fields)
        refused(answer, ErrorCode.NOT_MEMBER)
    assert not any(scene.logs[Topic.USER_STATE, n] for n in range(SHARDS))


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (SubmitRead, {"conversation_id": b"short", "read_seq": 1}),
        (SubmitRead, {"read_seq": -1}),
        (SubmitRead, {"read_seq": 1 << 64}),
        (SubmitState, {"version": 0, "flags": 0, "value": b""}),
        (SubmitState, {"version": 1 << 64, "flags": 0, "value": b""}),
        (SubmitState, {"version": 1, "flags": 1 << 32, "value": b""}),
        (SubmitState, {"version": 1, "flags": -1, "value": b""}),
        (SubmitState, {"version": 1, "flags": 0, "value": b"v" * 1_025}),
        (AskReadBy, {"conversation_seq": -1}),
        (AskReadBy, {"conversation_seq": 1 << 64}),
        (AskStates, {"since_revision": -1, "limit": 1}),
        (AskStates, {"since_revision": 1 << 63, "limit": 1}),
        (AskStates, {"since_revision": 0, "limit": -1}),
    ],
)
def test_fields_outside_their_bounds_are_refused(kind: Any, fields: dict[str, Any]) -> None:
    scene = Scene()
    scene.run()
    if kind is not AskStates:
        fields = {"conversation_id": scene.group(1, EVERYONE)} | fields
    refused(scene.answer(kind, 1, **fields), ErrorCode.INVALID_ARGUMENT)


def test_a_device_without_a_name_sets_no_state() -> None:
    scene = Scene()
    scene.run()
    name = scene.group(1, EVERYONE)
    for device in (b"", b"d" * 65):
        refused(scene.state(1, name, 1, device), ErrorCode.INVALID_ARGUMENT)


def test_states_are_synced_by_revision_in_pages() -> None:
    scene = Scene()
    names = [scene.group(number, EVERYONE) for number in range(5)]
    for name in names:
        scene.state(1, name, 1, value=name[:4])
    scene.read(1, names[0], 7)
    seen: list[bytes] = []
    revision, more = 0, True
    while more:
        answer = scene.answer(AskStates, 1, since_revision=revision, limit=2)
        assert isinstance(answer, StatesAnswer)
        seen += [row.conversation_id for row in answer.rows]
        revision, more = answer.revision, answer.has_more
    assert seen == [*names[1:], names[0]]
    last = scene.answer(AskStates, 1, since_revision=revision, limit=0)
    assert (last.rows, last.revision, last.has_more) == ((), revision, False)
    scene.state(1, names[2], 2, b"e", flags=1)
    (row,) = scene.answer(AskStates, 1, since_revision=revision, limit=0).rows
    assert (row.version, row.device_id, row.flags, row.read_seq) == (2, b"e", 1, 0)


def test_two_devices_agree_on_the_greater_version_then_device() -> None:
    scene = Scene()
    name = scene.group(1, EVERYONE)
    scene.say(name, 2)
    scene.run()
    scene.state(1, name, 2, b"a", value=b"2a")
    scene.state(1, name, 1, b"z", value=b"1z")
    assert [r.state_value for r in scene.pages(1)] == [b"2a"]
    scene.state(1, name, 2, b"b", value=b"2b")
    scene.state(1, name, 2, b"a", value=b"2a")
    assert [(r.state_version, r.state_value) for r in scene.pages(1)] == [(2, b"2b")]


# ------------------------------------------------------------ who has read


def test_who_has_read_up_to_a_message() -> None:
    scene = Scene()
    name = scene.group(1, EVERYONE)
    for _ in range(3):
        scene.say(name, 2)
    scene.run()
    scene.read(1, name, 2)
    scene.read(3, name, 3)
    for seq, wanted in ((1, (1, 3)), (2, (1, 3)), (3, (3,)), (4, ())):
        answer = scene.answer(AskReadBy, 2, conversation_id=name, conversation_seq=seq)
        assert answer == ReadByAnswer(rid=answer.rid, users=wanted, has_more=False)
    answer = scene.answer(AskReadBy, 4, conversation_id=name, conversation_seq=1)
    refused(answer, ErrorCode.NOT_MEMBER)


def test_who_joined_later_has_not_read_what_was_said_before() -> None:
    scene = Scene()
    name = scene.group(1, {1: 0, 2: 0, 3: 2})
    for _ in range(3):
        scene.say(name, 2)
    scene.run()
    scene.read(1, name, 3)
    scene.read(3, name, 3)
    for seq, wanted in ((1, (1,)), (2, (1,)), (3, (1, 3))):
        answer = scene.answer(AskReadBy, 2, conversation_id=name, conversation_seq=seq)
        assert answer.users == wanted


@pytest.mark.parametrize(("members", "more"), [(200, False), (201, True), (1_000, True)])
def test_readers_of_large_groups_are_capped(members: int, more: bool) -> None:
    scene = Scene()
    name = scene.group(1, dict.fromkeys(range(1, members + 1), 0))
    scene.say(name, 2)
    scene.run()
    scene.read(5, name, 1)
    answer = scene.answer(AskReadBy, 2, conversation_id=name, conversation_seq=1)
    assert (answer.users, answer.has_more) == ((5,), more)


def test_every_state_sync_tells_how_far_the_own_devices_are() -> None:
    scene = Scene()
    name = scene.group(1, EVERYONE)
    scene.state(1, name, 1)
    shard = routing.shard(1, SHARDS)
    opened = scene.outside(OpenSession(op=1, shard=shard, epoch=scene.epoch, fresh_key=b"k"))
    devices = [(b"d%02d" % n, 100 + n) for n in range(DEVICES_MAX + 3)]
    items = tuple((TENANT, 1, device, seq) for device, seq in devices)
    other = (TENANT, 2, b"not mine", 9)
    scene.outside(
        NoteDelivered(op=1, shard=shard, incarnation=opened.incarnation, items=(*items, other))
    )
    for since in (0, 1):
        answer = scene.answer(AskStates, 1, since_revision=since, limit=0)
        assert isinstance(answer, StatesAnswer)
        assert answer.devices == tuple(DeviceRow(*told) for told in devices[3:]), (
            "the ones furthest behind are left out"
        )
