"""Bodies of a pull: where each is looked for, and what explains that it is nowhere (pipeline.md §3.3)."""

import pytest

from qim.core.contract.entities import MessageKind, RetentionClass
from qim.core.contract.kinds import Tombstone
from qim.core.contract.rpc import PullAnswer
from qim.core.contract.sequences import mailbox_seq
from qim.core.mailbox.bodies import BodyCache, body_of_dispatch
from qim.core.ports.archive import ReadArchiveBodies
from qim.core.ports.completion import StoreReset, StoreRole
from qim.core.ports.log import Fetch
from qim.core.ports.store_history import ReadOverlays
from qim.core.ports.store_mailbox import ReadMailboxes
from qim.core.ports.store_reads import ReadBodies
from qim.core.retention import RetentionPolicy
from tests.core.mailbox.bench import CONFIG, WALL, dispatch, record_of, replace
from tests.core.mailbox.pulled import (
    ARCHIVED,
    DAY,
    NO_CACHE,
    START,
    ask,
    cursor,
    numbered,
    pull,
    pull_in_vain,
    put_archived,
    put_hot,
    running,
)

# ------------------------------------------------------------ bodies


def test_one_read_a_distinct_message_however_many_wait() -> None:
    item = dispatch(0, users=(1, 2, 3), inline=False)
    bench = running(item, hot=b"body", config=NO_CACHE)
    for user in (1, 2, 3):
        ask(bench, cursor(START, user=user), user=user)
    while any(isinstance(effect, ReadMailboxes) for effect in bench.waiting):
        read = next(e for e in bench.waiting if isinstance(e, ReadMailboxes))
        bench.answer(read, "done")
    for overlays in [effect for effect in bench.waiting if isinstance(effect, ReadOverlays)]:
        bench.answer(overlays, "done")
    (bodies,) = [effect for effect in bench.waiting if isinstance(effect, ReadBodies)]
    assert len(bodies.names) == 1
    bench.run()
    answers = [send.message for send in bench.sent[-3:]]
    assert all(isinstance(a, PullAnswer) and a.entries[0].body == b"body" for a in answers)


def test_found_bodies_are_kept_within_bounds() -> None:
    item = dispatch(0, users=(1,), inline=False)
    bench = running(item, hot=b"body")
    pull(bench, cursor(START))
    bench.bodies.clear()
    assert pull(bench, cursor(START)).entries[0].body == b"body"


def test_the_body_unused_for_longest_makes_room() -> None:
    items = list(numbered(3))
    bodies = {item.message_id: body_of_dispatch(item, CONFIG.retention) for item in items}
    cache = BodyCache(sum(body.size() for body in list(bodies.values())[:2]))
    first, second, third = bodies
    for name in (first, second):
        cache.keep(name, bodies[name])
    assert cache.find(first) is not None
    cache.keep(third, bodies[third])
    cache.check()
    assert [cache.find(name) is not None for name in bodies] == [True, False, True]
    assert cache.find(second) is None


def test_bodies_of_a_store_that_was_reset_are_read_anew() -> None:
    bench = running(dispatch(0, users=(1,), inline=False), hot=b"body")
    pull(bench, cursor(START))
    bench.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    ask(bench, cursor(START))
    asked = 0
    while reads := [effect for effect in bench.waiting if not bench.parked(effect)]:
        asked += isinstance(reads[0], ReadBodies)
        bench.answer(reads[0], "done")
    assert asked == 1


def test_long_pages_are_joined_in_bounded_reads() -> None:
    items = [dispatch(n, users=(1,), inline=False) for n in range(9)]
    bench = running(*items, hot=b"body", config=replace(NO_CACHE, bodies_max=4))
    ask(bench, cursor(START))
    sizes: list[int] = []
    while ready := [effect for effect in bench.waiting if not bench.parked(effect)]:
        if isinstance(ready[0], ReadBodies):
            sizes.append(len(ready[0].names))
        bench.answer(ready[0], "done")
    assert sizes == [4, 4, 1]
    answer = bench.last_message()
    assert isinstance(answer, PullAnswer)
    assert [entry.mailbox_seq for entry in answer.entries] == [mailbox_seq(1, n) for n in range(9)]


def test_an_inline_body_is_found_in_its_dispatch_when_the_store_lost_it() -> None:
    bench = running(*numbered(2), config=NO_CACHE)
    assert [entry.body for entry in pull(bench, cursor(START)).entries] == [b"0", b"1"]


def test_a_miss_ends_the_batch_before_its_entry_and_is_not_remembered() -> None:
    items = [dispatch(n, users=(1,), inline=False) for n in range(3)]
    bench = running(*items, config=NO_CACHE)
    put_hot(bench, items[0], b"body")
    put_hot(bench, items[2], b"body")
    answer = pull(bench, cursor(START))
    assert [entry.mailbox_seq for entry in answer.entries] == [mailbox_seq(1, 0)]
    assert answer.covered_through_seq == mailbox_seq(1, 0)
    assert answer.has_more
    assert answer.retry_after_ms > 0
    assert bench.counts("mailbox_body_missing") == 1
    again = pull(bench, answer.cursor)
    assert again.entries == ()
    assert again.cursor == answer.cursor
    put_hot(bench, items[1], b"body")
    assert len(pull(bench, again.cursor).entries) == 2


@pytest.mark.parametrize("fault", ["failed", "unknown_lost"])
def test_an_unreachable_hot_store_is_no_miss_and_explains_nothing(fault: str) -> None:
    old = dispatch(0, users=(1,), inline=False, sent_at=WALL - 100 * DAY)
    bench = running(old, config=NO_CACHE)
    pull_in_vain(bench, ReadBodies, fault)


@pytest.mark.parametrize(
    ("kept_as", "age_days", "explained"),
    [
        (RetentionClass.DEFAULT, 31, True),
        (RetentionClass.DEFAULT, 29, False),
        (RetentionClass.EPHEMERAL, 2, True),
        (RetentionClass.EPHEMERAL, 0, False),
        (RetentionClass.TENANT_CUSTOM, 31, True),
        (RetentionClass.TENANT_CUSTOM, 29, False),
        (RetentionClass.COMPLIANCE_HOLD, 4_000, False),
    ],
)
def test_only_retention_of_its_class_makes_a_tombstone(
    kept_as: RetentionClass, age_days: int, explained: bool
) -> None:
    item = dispatch(0, users=(1,), inline=False, sent_at=WALL - age_days * DAY)
    bench = running(replace(item, retention_class=kept_as), config=NO_CACHE)
    answer = pull(bench, cursor(START))
    tombstones = [entry.tombstone for entry in answer.entries]
    assert tombstones == ([Tombstone.EXPIRED] if explained else [])
    assert all(entry.body is None for entry in answer.entries)


def test_a_tenant_s_own_policy_is_the_mailbox_s_too() -> None:
    item = replace(
        dispatch(0, users=(1,), inline=False, sent_at=WALL - 31 * DAY),
        retention_class=RetentionClass.TENANT_CUSTOM,
    )
    longer = RetentionPolicy(tenants=((item.tenant_id, 40 * DAY),))
    bench = running(item, config=replace(NO_CACHE, retention=longer))
    assert pull(bench, cursor(START)).entries == (), "a miss that nothing explains"
    shorter = RetentionPolicy(tenants=((item.tenant_id, DAY),))
    bench = running(item, config=replace(NO_CACHE, retention=shorter))
    assert [e.tombstone for e in pull(bench, cursor(START)).entries] == [Tombstone.EXPIRED]


@pytest.mark.parametrize("held", ["hot", "archived", "inline", "cached"])
def test_expiry_hides_what_still_stands_somewhere(held: str) -> None:
    """An ephemeral body lies in the hot store, the archive, its dispatch or a cache for longer than its day."""
    items = [
        replace(
            dispatch(n, users=(1,), inline=held in ("inline", "cached"), sent_at=sent_at),
            retention_class=RetentionClass.EPHEMERAL,
        )
        for n, sent_at in enumerate((WALL - DAY, WALL - DAY + 60_000))
    ]
    configs = {"archived": ARCHIVED, "cached": CONFIG}
    bench = running(*items, config=configs.get(held, NO_CACHE))
    for item in items:
        if held == "hot":
            put_hot(bench, item, b"body")
        if held == "archived":
            put_archived(bench, item, b"body")
    old, young = pull(bench, cursor(START)).entries
    assert (old.body, old.tombstone) == (None, Tombstone.EXPIRED)
    assert young.body is not None


@pytest.mark.parametrize("kind", [MessageKind.CONTROL, MessageKind.RECALL])
def test_membership_and_overlays_outlive_retention(kind: MessageKind) -> None:
    """What they speak of may be kept longer: a device that was away must still learn of it."""
    item = replace(dispatch(0, users=(1,), sent_at=WALL - 29 * DAY), kind=kind)
    short = RetentionPolicy(default_ms=DAY)
    bench = running(item, config=replace(NO_CACHE, retention=short))
    (entry,) = pull(bench, cursor(START)).entries
    assert entry.tombstone == Tombstone.NONE
    assert entry.body is not None


@pytest.mark.parametrize("lost", ["retention", "failed", "other"])
@pytest.mark.parametrize(("age_days", "explained"), [(31, True), (29, False)])
def test_without_its_dispatch_only_the_usual_retention_explains(
    age_days: int, explained: bool, lost: str
) -> None:
    item = dispatch(0, users=(1,), inline=False, sent_at=WALL - age_days * DAY)
    bench = running(item, config=NO_CACHE)
    ask(bench, cursor(START))

    def look_up() -> list[Fetch]:
        return [e for e in bench.waiting if isinstance(e, Fetch) and e.limit == 1]

    while not look_up():
        bench.answer(next(e for e in bench.waiting if not bench.parked(e)), "done")
    (fetch,) = look_up()
    if lost == "retention":
        bench.log.clear()
        bench.start = 1
        bench.answer(fetch, "done")
    elif lost == "failed":
        bench.answer(fetch, "failed")
    else:
        bench.log[0] = replace(bench.log[0], value=b"\x01\x03junk")
        bench.answer(fetch, "done")
    answer = bench.last_message()
    assert isinstance(answer, PullAnswer)
    # A log that doesn't answer explains nothing, however old the message is.
    assert len(answer.entries) == (explained and lost != "failed")


def test_another_message_s_bytes_are_never_delivered() -> None:
    item, other = (dispatch(n, users=(1,), inline=False) for n in range(2))
    bench = running(item, config=NO_CACHE)
    name = (item.conversation_id, item.conversation_seq, item.message_id)
    for stored in (record_of(other, b"other"), b"junk" * 10):
        bench.bodies[name] = stored
        assert pull(bench, cursor(START)).entries == ()
    assert bench.violations() == ["body_mismatch"] * 2


def test_an_inline_body_that_is_not_the_one_digested_is_never_delivered() -> None:
    item = replace(dispatch(0, users=(1,)), inline_body=b"another")
    bench = running(item, config=NO_CACHE)
    assert pull(bench, cursor(START)).entries == ()
    assert bench.violations() == ["body_mismatch"]


# ------------------------------------------------------------ archived bodies


def test_a_body_the_hot_store_trimmed_comes_from_the_archive() -> None:
    items = [dispatch(n, users=(1,), inline=False) for n in range(3)]
    bench = running(*items, config=ARCHIVED)
    for item in items:
        put_archived(bench, item, b"cold")
    assert [entry.body for entry in pull(bench, cursor(START)).entries] == [b"cold"] * 3


def test_what_the_archive_has_not_either_is_explained_by_retention_alone() -> None:
    old = dispatch(0, users=(1,), inline=False, sent_at=WALL - 100 * DAY)
    young = dispatch(1, users=(1,), inline=False)
    bench = running(old, young, config=ARCHIVED)
    answer = pull(bench, cursor(START))
    assert [entry.tombstone for entry in answer.entries] == [Tombstone.EXPIRED]
    assert answer.has_more


def test_what_the_archive_let_go_by_a_clock_ahead_is_gone_here_too() -> None:
    month = CONFIG.retention.default_ms
    items = [dispatch(n, users=(1,), inline=False, sent_at=WALL + n) for n in range(2)]
    bench = running(*items, config=ARCHIVED)
    assert pull(bench, cursor(START)).entries == ()
    bench.let_go = items[0].sent_at + month + 1
    answer = pull(bench, cursor(START))
    assert [entry.tombstone for entry in answer.entries] == [Tombstone.EXPIRED]
    assert answer.has_more


@pytest.mark.parametrize("fault", ["failed", "unknown_lost"])
def test_an_unreachable_archive_explains_nothing(fault: str) -> None:
    old = dispatch(0, users=(1,), inline=False, sent_at=WALL - 100 * DAY)
    bench = running(old, config=ARCHIVED)
    pull_in_vain(bench, ReadArchiveBodies, fault)
