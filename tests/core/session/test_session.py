"""SessionProjection by hand: list, marks, states, readers; each fault, each refusal, each bound."""

from typing import Any

import pytest
from msgspec.structs import replace

from qim.core.contract import routing
from qim.core.contract.entities import MessageKind
from qim.core.contract.errors import ErrorCode
from qim.core.contract.kinds import StateFlag
from qim.core.contract.rpc import (
    AskReadBy,
    AskSessionList,
    AskStates,
    ReadByAnswer,
    Refused,
    SessionListAnswer,
    StateDone,
    StatesAnswer,
    SubmitRead,
    SubmitState,
    SummariesAnswer,
)
from qim.core.contract.sequences import before_first
from qim.core.ports.completion import Failed, FailReason, StoreReset, StoreRole
from qim.core.ports.local import DrainRequested, LeaseGone
from qim.core.ports.log import Append, Fetch, Topic
from qim.core.ports.network import Received, Send
from qim.core.ports.registry import LeaseRead, ReadLease, Resource, Role
from qim.core.ports.store_session import (
    ApplyStates,
    OpenSession,
    ProjectDispatches,
    ReadSessions,
)
from tests.core.session.scene import CONFIG, SHARDS, WALL, WINDOW, Scene, conversation, shown

EVERYONE = {1: 0, 2: 0, 3: 0}


def refused(answer: Any, code: ErrorCode) -> None:
    assert isinstance(answer, Refused), answer
    assert answer.code == code, answer


# ------------------------------------------------------------ the list


def test_the_list_is_sorted_by_last_activity_with_unread_and_heads() -> None:
    scene = Scene()
    first, second = scene.group(1, EVERYONE), scene.group(2, EVERYONE)
    scene.say(first, 2)
    scene.say(second, 2)
    scene.say(second, 1)
    last = scene.say(first, 3)
    scene.run()
    page = scene.page(1)
    assert isinstance(page, SessionListAnswer)
    assert [row.conversation_id for row in page.rows] == [first, second]
    assert [(row.unread, row.unread_exact) for row in page.rows] == [(2, True), (1, True)]
    assert page.rows[0].head == last.stored
    assert (page.after, page.badge) == (b"", 3)
    for user in (1, 2, 3):
        assert shown(scene.pages(user)) == scene.expected(user, {})
    assert scene.page(4).rows == ()
    assert not scene.violations


def test_projected_through_names_the_last_dispatch_the_list_contains() -> None:
    scene = Scene()
    shard = routing.shard(1, SHARDS)
    assert scene.page(1).projected_through == before_first(1, 0)
    name = scene.group(1, EVERYONE)
    scene.say(name, 2)
    scene.say(name, 2)
    scene.run()
    assert scene.page(1).projected_through == 1 << 48 | 1
    assert len(scene.logs[Topic.DISPATCH, shard]) == 2
    scene.missing_versions[scene.group(2, EVERYONE)] = None
    scene.say(conversation(2), 2)
    scene.say(name, 2)
    scene.run(500)
    assert scene.page(1).projected_through == 1 << 48 | 1, (
        "a version is awaited, all behind it wait"
    )
    scene.missing_versions.clear()
    scene.run(1_000)
    assert scene.page(1).projected_through == 1 << 48 | 3
    assert shown(scene.pages(1)) == scene.expected(1, {})


def test_unread_beyond_the_window_is_the_window_and_not_exact() -> None:
    scene = Scene()
    name = scene.group(1, EVERYONE)
    for _ in range(WINDOW):
        scene.say(name, 2)
    scene.run()
    assert [(r.unread, r.unread_exact) for r in scene.pages(1)] == [(WINDOW, True)]
    scene.say(name, 2)
    scene.run()
    assert [(r.unread, r.unread_exact) for r in scene.pages(1)] == [(WINDOW, False)]


def test_pages_are_complete_without_repeats_at_every_limit() -> None:
    scene = Scene(replace(CONFIG, page_default=3, page_max=5))
    for number in range(10):
        scene.say(scene.group(number, EVERYONE), 2)
    scene.run()
    wanted = scene.expected(1, {})
    for limit in (0, 1, 2, 5, 6, 100):
        assert shown(scene.pages(1, limit)) == wanted
    assert len(scene.page(1).rows) == 3
    assert len(scene.page(1, limit=5).rows) == 5
    assert len(scene.page(1, limit=6).rows) == 5
    page = scene.page(1, limit=5)
    rest = scene.page(1, page.revision, page.after, 5)
    assert (len(rest.rows), rest.after) == (5, b""), "an exact multiple ends without an empty page"
    refused(scene.page(1, page.revision, b"short"), ErrorCode.INVALID_ARGUMENT)
    refused(scene.page(1, limit=-1), ErrorCode.INVALID_ARGUMENT)


def test_a_page_ends_at_its_size_and_holds_one_row_at_least() -> None:
    scene = Scene(replace(CONFIG, page_bytes_max=2_500))
    for number in range(4):
        scene.say(scene.group(number, EVERYONE), 2, body=b"b" * (3_000 if number == 2 else 500))
    scene.run()
    sizes = []
    page = scene.page(1)
    while True:
        sizes.append(len(page.rows))
        if not page.after:
            break
        page = scene.page(1, page.revision, page.after)
    assert sizes == [1, 1, 2]


def test_a_frozen_list_stays_as_it_was_and_a_gone_one_is_made_anew() -> None:
    scene = Scene()
    names = [scene.group(number, EVERYONE) for number in range(4)]
    for name in names:
        scene.say(name, 2)
    scene.run()
    page = scene.page(1, limit=2)
    before = scene.expected(1, {})
    scene.say(names[0], 2)
    scene.say(names[1], 2)
    scene.run()
    rest = scene.page(1, page.revision, page.after, 2)
    assert shown([*page.rows, *rest.rows]) == before
    assert rest.revision == page.revision
    scene.run(CONFIG.snapshot_ms)
    again = scene.page(1, page.revision, page.after, 2)
    assert again.revision not in (0, page.revision), "said in the answer: the client restarts"
    assert shown(list(again.rows)) == scene.expected(1, {})[:2]
    stranger = scene.page(2, again.revision, again.after, 2)
    assert stranger.revision != again.revision, "a revision is its user's own"


def test_only_dirty_conversations_are_computed_again() -> None:
    scene = Scene()
    names = [scene.group(number, EVERYONE) for number in range(6)]
    for name in names:
        scene.say(name, 2)
    scene.run()
    for name in names:
        scene.read(1, name, 1)
    scene.pages(1)
    scene.sent.clear()
    scene.pages(1)
    assert scene.sent == []
    scene.say(names[0], 2)
    scene.say(names[1], 2, MessageKind.RECALL, target=1)
    scene.read(1, names[2], 9)
    scene.say(names[3], 1, MessageKind.DELETE_FOR_ME, target=1)
    scene.run()
    marks = {(1, name): 1 for name in names} | {(1, names[2]): 9}
    assert shown(scene.pages(1)) == scene.expected(1, marks)
    asked = [item.conversation_id for ask in scene.sent for item in ask.items]
    assert sorted(asked) == sorted(names[:4])


def test_what_is_unread_is_asked_again_soon_and_a_head_when_its_time_is_up() -> None:
    scene = Scene()
    unread, read = scene.group(1, EVERYONE), scene.group(2, EVERYONE)
    for name in (unread, read):
        scene.say(name, 2)
    scene.run()
    scene.read(1, read, 1)
    scene.pages(1)
    scene.run(CONFIG.summary_reuse_ms)
    scene.sent.clear()
    scene.pages(1)
    assert [i.conversation_id for ask in scene.sent for i in ask.items] == [unread]
    scene.now += CONFIG.retention.default_ms
    scene.sent.clear()
    scene.pages(1)
    asked = [i.conversation_id for ask in scene.sent for i in ask.items]
    assert sorted(asked) == sorted([unread, read])


def test_overlays_touch_a_conversation_without_raising_it() -> None:
    scene = Scene()
    first, second = scene.group(1, EVERYONE), scene.group(2, EVERYONE)
    scene.say(first, 2)
    scene.say(second, 2)
    scene.run()
    scene.pages(1)
    scene.say(first, 2, MessageKind.RECALL, target=1)
    scene.run()
    assert [r.conversation_id for r in scene.pages(1)] == [second, first]
    assert [(r.unread, r.head) for r in scene.pages(1)][1] == (0, b"")


def test_a_summary_behind_the_projection_is_asked_again_and_never_kept() -> None:
    scene = Scene()
    name = scene.group(1, EVERYONE)
    scene.say(name, 2)
    late = scene.say(name, 2, pending=True)
    scene.run()
    rid = scene.ask(AskSessionList, 1, revision=0, after=b"", limit=0)
    scene.run()
    assert rid not in scene.answers, (
        "dispatched and not yet marked: the writer will show it at once"
    )
    late.pending = False
    scene.run(CONFIG.summary_retry_ms)
    assert scene.answers[rid].rows[0].unread == 2
    # a writer that doesn't come to it: the list is told as it is, and nothing of it is kept
    stuck = scene.say(name, 2, MessageKind.RECALL, target=1, pending=True)
    scene.run()
    assert scene.page(1).rows[0].unread == 2
    stuck.pending = False
    assert scene.page(1).rows[0].unread == 1


def test_old_records_that_the_writer_no_longer_shows_make_nobody_wait() -> None:
    scene = Scene()
    name = scene.group(1, EVERYONE)
    scene.say(name, 2)
    scene.run()
    scene.now += CONFIG.settle_ms
    scene.writer.conversations[name].rows.clear()
    before = scene.now
    page = scene.page(1)
    assert (page.rows[0].unread, page.rows[0].head, scene.now) == (0, b"", before)
    scene.sent.clear()
    scene.page(1)
    assert scene.sent == []


def test_the_badge_leaves_out_the_muted_and_counts_the_hidden() -> None:
    scene = Scene()
    names = [scene.group(number, EVERYONE) for number in range(3)]
    for name in names:
        scene.say(name, 2)
    scene.run()
    assert scene.page(1).badge == 3
    scene.state(1, names[0], 1, flags=StateFlag.MUTED)
    scene.state(1, names[1], 1, flags=StateFlag.ARCHIVED | StateFlag.PINNED)
    page = scene.page(1)
    assert (page.badge, len(page.rows)) == (2, 3)
    flags = {row.conversation_id: row.state_flags for row in page.rows}
    assert flags[names[1]] == StateFlag.ARCHIVED | StateFlag.PINNED


def test_a_joiner_sees_nothing_from_before() -> None:
    scene = Scene()
    name = scene.group(1, {1: 0, 2: 0, 3: 2})
    for _ in range(2):
        scene.say(name, 2)
    scene.run()
    assert scene.pages(3) == []
    scene.say(name, 2)
    scene.run()
    assert shown(scene.pages(3)) == scene.expected(3, {})


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


@pytest.mark.parametrize(("members", "more"), [(200, False), (201, True), (1_000, True)])
def test_readers_of_large_groups_are_capped(members: int, more: bool) -> None:
    scene = Scene()
    name = scene.group(1, dict.fromkeys(range(1, members + 1), 0))
    scene.say(name, 2)
    scene.run()
    scene.read(5, name, 1)
    answer = scene.answer(AskReadBy, 2, conversation_id=name, conversation_seq=1)
    assert (answer.users, answer.has_more) == ((5,), more)


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


def test_a_writer_that_is_silent_gone_or_elsewhere() -> None:
    scene = Scene()
    name = scene.group(1, EVERYONE)
    scene.say(name, 2)
    scene.run()

    def silent(effect: Any) -> str | None:
        asked = isinstance(effect, Send) and effect.address.startswith("writer-")
        return "swallowed" if asked else None

    scene.fault = silent
    refused(scene.page(1), ErrorCode.UNAVAILABLE)
    refused(scene.read(1, name, 1), ErrorCode.UNAVAILABLE)
    answer = scene.answer(AskReadBy, 1, conversation_id=name, conversation_seq=1)
    refused(answer, ErrorCode.UNAVAILABLE)
    scene.fault = lambda effect: "failed" if isinstance(effect, ReadLease) else None
    refused(scene.page(1), ErrorCode.UNAVAILABLE)
    scene.fault = lambda effect: None
    assert shown(scene.pages(1)) == scene.expected(1, {})


def answered(scene: Scene, rid: int, message: Any) -> None:
    scene.feed(Received(source="writer-0", wall=scene.wall(), message=replace(message, rid=rid)))


def asked_of(scene: Scene) -> tuple[list[Any], Any]:
    """Catch what is asked of writers instead of answering it."""
    caught: list[Any] = []

    def catch(effect: Any) -> str | None:
        if isinstance(effect, Send) and not effect.address.startswith("gateway"):
            caught.append(effect)
            return "swallowed"
        return None

    scene.fault = catch
    return caught, catch


def test_another_owner_is_asked_where_the_first_one_says_so() -> None:
    scene = Scene()
    name = scene.group(1, EVERYONE)
    scene.say(name, 2)
    scene.run()
    caught, _ = asked_of(scene)
    rid = scene.ask(AskSessionList, 1, revision=0, after=b"", limit=0)
    scene.run()
    moved = Refused(rid=0, code=ErrorCode.NOT_OWNER, message="", owner_address="elsewhere")
    answered(scene, caught[0].message.rid, moved)
    scene.run()
    assert caught[1].address == "elsewhere"
    assert caught[1].message.rid != caught[0].message.rid
    answered(scene, caught[1].message.rid, replace(moved, owner_address=""))
    scene.run()
    assert caught[2].address.startswith("writer-"), "looked up again"
    answered(scene, caught[2].message.rid, moved)
    scene.run()
    refused(scene.answers[rid], ErrorCode.UNAVAILABLE)
    late = scene.counts.get("session_answer_late", 0)
    answered(scene, caught[2].message.rid, moved)
    scene.run()
    assert scene.counts["session_answer_late"] == late + 1


def test_an_answer_that_doesnt_fit_is_no_answer() -> None:
    scene = Scene()
    name = scene.group(1, EVERYONE)
    scene.say(name, 2)
    scene.run()
    caught, _ = asked_of(scene)
    other = scene.writer.summary(conversation(2), 1, 0, 1)
    questions: tuple[tuple[Any, dict[str, Any]], ...] = (
        (AskSessionList, {"revision": 0, "after": b"", "limit": 0}),
        (SubmitRead, {"conversation_id": name, "read_seq": 1}),
        (AskReadBy, {"conversation_id": name, "conversation_seq": 1}),
    )
    for kind, fields in questions:
        rid = scene.ask(kind, 1, **fields)
        scene.run()
        answered(scene, caught[-1].message.rid, SummariesAnswer(rid=0, summaries=(other,)))
        scene.run()
        refused(scene.answers[rid], ErrorCode.UNAVAILABLE)


def test_nobody_owns_the_writer_shard() -> None:
    scene = Scene()
    name = scene.group(1, EVERYONE)
    scene.say(name, 2)
    scene.run()
    lookups: list[Any] = []

    def catch(effect: Any) -> str | None:
        if isinstance(effect, ReadLease):
            lookups.append(effect)
            return "swallowed"
        return None

    scene.fault = catch
    rids = [scene.ask(AskSessionList, 1, revision=0, after=b"", limit=0) for _ in range(2)]
    scene.run()
    assert len(lookups) == 1, "one lookup for both"
    nobody = LeaseRead(
        op=lookups[0].op,
        resource=lookups[0].resource,
        epoch=1,
        owner="",
        address="",
        barrier_epoch=0,
        barrier_offset=-1,
    )
    scene.feed(nobody)
    scene.run()
    for rid in rids:
        refused(scene.answers[rid], ErrorCode.UNAVAILABLE)


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


def test_a_message_store_that_was_reset_drops_what_came_from_it() -> None:
    scene = Scene()
    name = scene.group(1, EVERYONE)
    scene.say(name, 2)
    scene.run()
    scene.read(1, name, 1)
    scene.page(1)
    scene.sent.clear()
    scene.feed(StoreReset(op=None, store=StoreRole.MESSAGE))
    scene.page(1)
    assert len(scene.sent) == 1
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
        scene.put(topic, shard, b"\x7f" + b"0" * 20)
    scene.say(name, 2)
    scene.run()
    assert scene.counts["session_newer_format"] == 2
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
    names = [scene.group(number, EVERYONE) for number in range(4)]
    for name in names:
        scene.say(name, 2)
    scene.run()
    for user in (1, 2, 3):
        assert shown(scene.pages(user, 2)) == scene.expected(user, {})
        for name in names:
            assert isinstance(scene.read(user, name, 1), StateDone)
    scene.run(CONFIG.gauge_ms)
    scene.feed()
    scene.run()
    assert scene.gauges["session_snapshot_users"] == 1


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
    reads = ("ReadStates", "ReadMarks")
    scene.fault = lambda effect: "failed" if type(effect).__name__ in reads else None
    refused(scene.answer(AskStates, 1, since_revision=0, limit=1), ErrorCode.UNAVAILABLE)
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
        scene.feed(Failed(op=fetch.op, why=FailReason.CANCELLED))
    scene.run()
    assert scene.machine.serving() == SHARDS
