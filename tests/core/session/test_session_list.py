"""The conversation list: sorted, exact, frozen, paged; what is dirty and what still holds."""

from msgspec.structs import replace

from qim.core.contract import routing
from qim.core.contract.entities import MessageKind
from qim.core.contract.errors import ErrorCode
from qim.core.contract.invariants import SideStage
from qim.core.contract.kinds import StateFlag
from qim.core.contract.rpc_session import AskSessionList, SessionListAnswer
from qim.core.contract.sequences import before_first
from qim.core.ports.log import Topic
from tests.core.session.scene import CONFIG, EVERYONE, WINDOW, Scene, refused, shown
from tests.core.session.spoken import SHARDS
from tests.core.session.toy_writer import WALL, conversation

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
    assert {stage for _, stage in scene.stages} == {SideStage.PROJECTED}


def test_a_list_without_a_position_has_all_before_the_logs_start() -> None:
    """A shard that was bumped where nothing is left of its log begins so: its rebuilding devices wait for the list to get there."""
    scene = Scene(log_start=5)
    assert scene.page(1).projected_through == before_first(1, 5)


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


def test_a_summary_ends_when_retention_takes_the_first_of_what_it_rests_on() -> None:
    scene = Scene()
    scene.say(scene.group(1, EVERYONE), 2)
    scene.run()
    scene.writer.valid_until = scene.wall() + 1_000
    scene.pages(1)
    scene.run(998)
    scene.sent.clear()
    scene.pages(1)
    assert scene.sent == []
    scene.now = scene.writer.valid_until - WALL
    scene.writer.valid_until += 10_000
    scene.pages(1)
    assert len(scene.sent) == 1


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


def test_what_was_asked_again_in_vain_is_not_waited_for_by_the_next_list() -> None:
    """A deletion for oneself beyond one's leaving touches a row and is in no summary, ever."""
    scene = Scene()
    name = scene.group(1, EVERYONE)
    scene.say(name, 2)
    scene.say(name, 2, MessageKind.RECALL, target=1, pending=True)
    scene.run()
    before = scene.now
    scene.page(1)
    assert scene.now > before
    waited = scene.now
    assert scene.page(1).rows[0].unread == 1
    assert scene.now == waited
    late = scene.say(name, 2, pending=True)
    scene.run()
    rid = scene.ask(AskSessionList, 1, revision=0, after=b"", limit=0)
    scene.run()
    assert rid not in scene.answers, "the row was touched again: that is worth waiting for"
    late.pending = False
    scene.run(CONFIG.summary_retry_ms)
    assert scene.answers[rid].rows[0].unread == 2


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
