"""The pull path: cursors judged, contiguous prefixes, bodies joined, and nothing covered that isn't there."""

from collections.abc import Iterator

import pytest

from qim.core.contract import routing
from qim.core.contract.cursor import Cursor, decode_cursor, encode_cursor
from qim.core.contract.entities import GroupDispatch, MessageKind, RetentionClass
from qim.core.contract.errors import ErrorCode
from qim.core.contract.invariants import Invariant
from qim.core.contract.kinds import Tombstone
from qim.core.contract.rpc import (
    Actor,
    AskPull,
    AskSync,
    AskWatermark,
    PullAnswer,
    Refused,
    SendDone,
    SyncAnswer,
)
from qim.core.contract.sequences import before_first, mailbox_seq
from qim.core.mailbox import MailboxConfig
from qim.core.ports.archive import ReadArchiveBodies
from qim.core.ports.completion import Failed, FailReason, StoreReset, StoreRole, Unknown
from qim.core.ports.local import FreshEpochWanted, LeaseGone
from qim.core.ports.log import Fetch
from qim.core.ports.store_history import ReadOverlays
from qim.core.ports.store_mailbox import MailboxesRead, ReadMailboxes
from qim.core.ports.store_message import ReadBodies
from qim.core.retention import RetentionPolicy
from tests.core.mailbox.bench import (
    CONFIG,
    RESOURCE,
    SECRET,
    TENANT,
    WALL,
    Bench,
    dispatch,
    record_of,
    replace,
)

DAY = 86_400_000
NO_CACHE = replace(CONFIG, body_cache_bytes_max=0)
ARCHIVED = replace(NO_CACHE, archived=True)


def actor(user: int = 1, device: bytes = b"phone") -> Actor:
    return Actor(TENANT, user, device)


def cursor(seq: int, user: int = 1, epoch: int = 1) -> bytes:
    return encode_cursor(
        Cursor(
            tenant_id=TENANT,
            user_id=user,
            device_id=b"phone",
            shard=0,
            shard_epoch=epoch,
            lane=routing.lane(user),
            seq=seq,
        ),
        SECRET,
    )


START = before_first(1, 0)


def ask(bench: Bench, data: bytes, *, up_to: int = 0, limit: int = 0, user: int = 1) -> None:
    bench.receive(AskPull(rid=2, actor=actor(user), cursor=data, up_to_seq=up_to, limit=limit))


def pull(bench: Bench, data: bytes, *, up_to: int = 0, limit: int = 0) -> PullAnswer:
    ask(bench, data, up_to=up_to, limit=limit)
    bench.run()
    answer = bench.last_message()
    assert isinstance(answer, PullAnswer), answer
    return answer


def refusal(bench: Bench) -> ErrorCode:
    answer = bench.last_message()
    assert isinstance(answer, Refused), answer
    return ErrorCode(answer.code)


def named_owner(bench: Bench) -> str:
    answer = bench.last_message()
    assert isinstance(answer, Refused), answer
    return answer.owner_address


def running(
    *items: GroupDispatch, config: MailboxConfig = CONFIG, hot: bytes | None = None
) -> Bench:
    bench = Bench(config)
    bench.append(*items)
    if hot is not None:
        for item in items:
            put_hot(bench, item, hot)
    bench.hold()
    bench.run()
    return bench


def put_hot(bench: Bench, item: GroupDispatch, body: bytes) -> None:
    name = (item.conversation_id, item.conversation_seq, item.message_id)
    bench.bodies[name] = record_of(item, body)


def numbered(count: int) -> Iterator[GroupDispatch]:
    return (dispatch(n, users=(1,), body=b"%d" % n) for n in range(count))


# ------------------------------------------------------------ cursors


def test_forged_foreign_and_future_cursors_are_invalid() -> None:
    bench = running(*numbered(2))
    good = cursor(START)
    for data in (
        b"",
        good[:-1],
        bytes([good[0] ^ 1]) + good[1:],
        cursor(START, user=2),
        cursor(mailbox_seq(1, 2)),
        cursor(mailbox_seq(2, 0), epoch=2),
    ):
        ask(bench, data)
        assert refusal(bench) is ErrorCode.CURSOR_INVALID
    ask(bench, cursor(mailbox_seq(1, 1)))
    bench.run()
    assert isinstance(bench.last_message(), PullAnswer)


def test_a_cursor_of_an_earlier_shard_epoch_is_rebased() -> None:
    bench = Bench(replace(CONFIG, shard_epoch=3))
    bench.append(*numbered(1))
    bench.hold()
    bench.run()
    ask(bench, cursor(mailbox_seq(2, 0), epoch=2))
    assert refusal(bench) is ErrorCode.CURSOR_REBASED


def test_a_cursor_below_trim_is_expired_also_when_only_the_store_knows() -> None:
    bench = running(*numbered(3))
    ask(bench, cursor(START))
    bench.store.trim = mailbox_seq(1, 1)
    bench.run()
    assert refusal(bench) is ErrorCode.CURSOR_EXPIRED
    bench.crash()
    bench.hold()
    bench.run()
    ask(bench, cursor(START))
    assert refusal(bench) is ErrorCode.CURSOR_EXPIRED
    assert [e.mailbox_seq for e in pull(bench, cursor(mailbox_seq(1, 1))).entries] == [
        mailbox_seq(1, 2)
    ]


def test_a_shard_that_is_not_here_is_not_owned_and_one_being_opened_is_unavailable() -> None:
    bench = running(*numbered(1))
    bench.step(LeaseGone(resource=RESOURCE))
    for message in (
        AskPull(rid=1, actor=actor(), cursor=cursor(START), up_to_seq=0, limit=0),
        AskSync(rid=1, actor=actor(), cursor=cursor(START)),
        AskSync(rid=1, actor=actor(), cursor=None),
        AskWatermark(rid=1, shard=0, users=(1,)),
    ):
        bench.receive(message)
        assert refusal(bench) is ErrorCode.NOT_OWNER
        assert named_owner(bench) == ""
        bench.step(LeaseGone(resource=RESOURCE, owner_address="mailbox-2:1"))
        bench.receive(message)
        assert named_owner(bench) == "mailbox-2:1"
        bench.step(LeaseGone(resource=RESOURCE))
    bench.hold()
    ask(bench, cursor(START))
    assert refusal(bench) is ErrorCode.UNAVAILABLE
    ask(bench, b"")
    assert refusal(bench) is ErrorCode.UNAVAILABLE


def test_other_messages_are_ignored() -> None:
    bench = running()
    bench.receive(
        SendDone(
            rid=1,
            client_message_id=b"",
            message_id=b"",
            conversation_id=b"",
            conversation_seq=0,
            last_activity_id=b"",
            sent_at=0,
        )
    )
    assert bench.counts("mailbox_message_ignored") == 1


# ------------------------------------------------------------ sync


def test_a_known_device_goes_on_from_its_cursor_and_learns_what_it_missed() -> None:
    bench = running(*numbered(3))
    for seq, offline in ((mailbox_seq(1, 1), True), (mailbox_seq(1, 2), False)):
        bench.receive(AskSync(rid=1, actor=actor(), cursor=cursor(seq)))
        assert bench.last_message() == SyncAnswer(
            rid=1, sync_to_seq=mailbox_seq(1, 2), has_offline=offline, cursor=cursor(seq)
        )
    bench.receive(AskSync(rid=1, actor=actor(), cursor=b"forged"))
    assert refusal(bench) is ErrorCode.CURSOR_INVALID


@pytest.mark.parametrize(
    ("days", "trim", "begins_at"),
    [((0, 0, 9), 0, 2), ((0, 3, 9), 0, 1), ((0, 1), 0, 2), ((8, 9), 0, 0), ((8, 9), 1, 1)],
)
def test_a_new_device_reads_back_seven_days_or_from_trim(
    days: tuple[int, ...], trim: int, begins_at: int
) -> None:
    bench = Bench()
    for number, day in enumerate(days):
        bench.append(dispatch(number, users=(1,)), at=WALL + day * DAY)
    bench.store.trim = mailbox_seq(1, trim) - 1 if trim else 0
    bench.store.base = bench.store.trim or None
    bench.now = 10 * DAY
    bench.hold()
    bench.run()
    bench.receive(AskSync(rid=1, actor=actor(), cursor=None))
    answer = bench.last_message()
    assert isinstance(answer, SyncAnswer)
    assert decode_cursor(answer.cursor, SECRET).seq == mailbox_seq(1, begins_at) - 1
    assert answer.sync_to_seq == mailbox_seq(1, len(days)) - 1


# ------------------------------------------------------------ batches


def test_a_batch_is_cut_at_its_limit_and_goes_on_where_it_ended() -> None:
    bench = running(*numbered(5))
    first = pull(bench, cursor(START), limit=2)
    assert [entry.body for entry in first.entries] == [b"0", b"1"]
    assert (first.covered_through_seq, first.has_more) == (mailbox_seq(1, 1), True)
    second = pull(bench, first.cursor, limit=3)
    assert [entry.body for entry in second.entries] == [b"2", b"3", b"4"]
    assert (second.covered_through_seq, second.has_more) == (mailbox_seq(1, 4), False)


def test_the_page_is_bounded() -> None:
    bench = running(*numbered(7), config=replace(CONFIG, page_default=2, page_max=4))
    assert len(pull(bench, cursor(START)).entries) == 2
    assert len(pull(bench, cursor(START), limit=1_000).entries) == 4


def test_up_to_bounds_what_is_covered() -> None:
    bench = running(*numbered(4))
    answer = pull(bench, cursor(START), up_to=mailbox_seq(1, 1))
    assert len(answer.entries) == 2
    assert (answer.covered_through_seq, answer.has_more) == (mailbox_seq(1, 1), False)
    beyond = pull(bench, cursor(START), up_to=mailbox_seq(1, 9))
    assert (beyond.covered_through_seq, beyond.has_more) == (mailbox_seq(1, 3), False)
    assert beyond.retry_after_ms > 0


def test_a_quiet_mailbox_is_covered_up_to_w() -> None:
    bench = running(*(dispatch(n, users=(2,)) for n in range(3)))
    answer = pull(bench, cursor(START))
    assert answer.entries == ()
    assert answer.covered_through_seq == mailbox_seq(1, 2)


def test_a_cursor_beyond_w_but_inside_the_log_gets_an_empty_batch_and_stays() -> None:
    bench = running(*numbered(3))
    bench.store.base = mailbox_seq(1, 0)
    answer = pull(bench, cursor(mailbox_seq(1, 2)))
    assert answer.entries == ()
    assert answer.covered_through_seq == mailbox_seq(1, 2)
    assert answer.cursor == cursor(mailbox_seq(1, 2))
    assert not answer.has_more
    assert answer.retry_after_ms > 0
    assert not bench.violations()


def test_a_batch_is_cut_at_its_bytes_but_holds_at_least_one_entry() -> None:
    items = [dispatch(n, users=(1,), inline=False) for n in range(3)]
    config = replace(CONFIG, batch_bytes_max=5_000)
    bench = running(*items, config=config, hot=b"b" * 4_000)
    data, sizes = cursor(START), []
    for _ in range(3):
        answer = pull(bench, data)
        sizes.append(len(answer.entries))
        data = answer.cursor
    assert sizes == [1, 1, 1]
    assert len(pull(bench, data).entries) == 0
    alone = running(items[0], config=replace(CONFIG, batch_bytes_max=100), hot=b"b" * 4_000)
    assert len(pull(alone, cursor(START)).entries) == 1


def test_reads_of_one_step_are_one_request_and_pulls_are_bounded() -> None:
    bench = running(*numbered(2), config=replace(CONFIG, reads_max=2, pulls_inflight_max=3))
    node, asked = (
        bench.node,
        [
            AskPull(rid=n, actor=actor(), cursor=cursor(START), up_to_seq=0, limit=0)
            for n in range(4)
        ],
    )
    from qim.core.ports.network import Received

    bench.step(*(Received(source="gateway", wall=bench.wall(), message=one) for one in asked))
    reads = [effect for effect in bench.waiting if isinstance(effect, ReadMailboxes)]
    assert [len(read.reads) for read in reads] == [2, 1]
    assert refusal(bench) is ErrorCode.UNAVAILABLE
    assert not node.idle()
    bench.run()
    assert node.idle()


@pytest.mark.parametrize("answer", ["failed", "unknown"])
def test_a_read_that_fails_may_simply_be_asked_again(answer: str) -> None:
    bench = running(*numbered(1))
    ask(bench, cursor(START))
    (read,) = [effect for effect in bench.waiting if isinstance(effect, ReadMailboxes)]
    bench.waiting.remove(read)
    failed = Failed(op=read.op, why=FailReason.OVERLOADED)
    bench.step(failed if answer == "failed" else Unknown(op=read.op))
    assert refusal(bench) is ErrorCode.UNAVAILABLE
    assert len(pull(bench, cursor(START)).entries) == 1


def test_a_read_that_finds_another_store_reopens_the_shard() -> None:
    bench = running(*numbered(1))
    ask(bench, cursor(START))
    bench.store.marker = b"run/2"
    bench.run()
    assert refusal(bench) is ErrorCode.UNAVAILABLE
    assert bench.wanted == [FreshEpochWanted(resource=RESOURCE, above=0)]
    bench.hold()
    bench.run()
    bench.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    assert len(bench.wanted) == 1


# ------------------------------------------------------------ gaps


def tampered(bench: Bench, **change: object) -> None:
    ask(bench, cursor(START))
    (read,) = [effect for effect in bench.waiting if isinstance(effect, ReadMailboxes)]
    bench.waiting.remove(read)
    reply = bench.execute(read)
    assert isinstance(reply, MailboxesRead)
    bench.step(replace(reply, results=(replace(reply.results[0], **change),)))
    bench.run()


def test_a_batch_that_covers_more_than_w_is_never_sent() -> None:
    bench = running(*numbered(3))
    tampered(bench, watermark=mailbox_seq(1, 1))
    assert bench.violations() == [Invariant.COVERED_THROUGH_GAP]
    assert refusal(bench) is ErrorCode.INTERNAL


def test_rows_out_of_order_are_never_sent() -> None:
    bench = running(*numbered(2))
    rows = tuple(reversed([bench.mailbox(1)[mailbox_seq(1, n)] for n in range(2)]))
    tampered(bench, entries=rows)
    assert bench.violations() == [Invariant.COVERED_THROUGH_GAP]


def test_a_row_nobody_can_decode_is_told() -> None:
    bench = running(*numbered(1))
    tampered(bench, entries=(b"junk",))
    assert bench.violations() == ["body_mismatch"]
    assert refusal(bench) is ErrorCode.INTERNAL


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
    ask(bench, cursor(START))
    while not (reads := [e for e in bench.waiting if isinstance(e, ReadBodies)]):
        bench.answer(next(e for e in bench.waiting if not bench.parked(e)), "done")
    bench.answer(reads[0], fault)
    answer = bench.last_message()
    assert isinstance(answer, PullAnswer)
    assert answer.entries == ()
    assert answer.retry_after_ms > 0


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


# ------------------------------------------------------------ recalls


def recall(bench: Bench, item: GroupDispatch) -> None:
    bench.recalls[item.conversation_id, item.conversation_seq] = item.conversation_seq + 1


def test_a_recalled_message_is_a_tombstone_and_its_body_is_not_even_read() -> None:
    items = [dispatch(n, users=(1,), inline=False) for n in range(3)]
    bench = running(*items, hot=b"body", config=NO_CACHE)
    recall(bench, items[1])
    ask(bench, cursor(START))
    names: list[bytes] = []
    while ready := [effect for effect in bench.waiting if not bench.parked(effect)]:
        if isinstance(ready[0], ReadBodies):
            names += [name[2] for name in ready[0].names]
        bench.answer(ready[0], "done")
    answer = bench.last_message()
    assert isinstance(answer, PullAnswer)
    assert [entry.body for entry in answer.entries] == [b"body", None, b"body"]
    assert answer.entries[1].tombstone == Tombstone.RECALLED
    assert items[1].message_id not in names


def test_a_recall_hides_what_a_cache_still_holds() -> None:
    items = list(numbered(2))
    bench = running(*items)
    assert [entry.body for entry in pull(bench, cursor(START)).entries] == [b"0", b"1"]
    recall(bench, items[0])
    hidden = pull(bench, cursor(START)).entries[0]
    assert (hidden.body, hidden.tombstone) == (None, Tombstone.RECALLED)


@pytest.mark.parametrize("fault", ["failed", "unknown_lost"])
def test_while_nobody_knows_what_is_recalled_nothing_leaves(fault: str) -> None:
    bench = running(*numbered(2))
    ask(bench, cursor(START))
    while not (reads := [e for e in bench.waiting if isinstance(e, ReadOverlays)]):
        bench.answer(next(e for e in bench.waiting if not bench.parked(e)), "done")
    bench.answer(reads[0], fault)
    answer = bench.last_message()
    assert isinstance(answer, PullAnswer)
    assert answer.entries == ()
    assert answer.retry_after_ms > 0
    assert len(pull(bench, answer.cursor).entries) == 2


def test_a_batch_ends_before_what_no_open_has_restored() -> None:
    items = [dispatch(n, users=(1,)) for n in range(3)]
    bench = running(*items)
    name = (items[1].conversation_id, items[1].conversation_seq)
    bench.recalls[name] = None
    answer = pull(bench, cursor(START))
    assert [entry.message_id for entry in answer.entries] == [items[0].message_id]
    assert answer.retry_after_ms > 0
    assert answer.has_more
    assert pull(bench, answer.cursor).entries == ()
    bench.recalls[name] = 9
    rest = pull(bench, answer.cursor).entries
    assert [entry.tombstone for entry in rest] == [Tombstone.RECALLED, Tombstone.NONE]


def test_overlays_of_many_pulls_are_read_together_within_bounds() -> None:
    bench = running(*numbered(3), config=replace(NO_CACHE, overlay_names_max=4))
    for _ in range(3):
        ask(bench, cursor(START))
    sizes: list[int] = []
    while ready := [effect for effect in bench.waiting if not bench.parked(effect)]:
        if isinstance(ready[0], ReadOverlays):
            sizes.append(len(ready[0].names))
        bench.answer(ready[0], "done")
    assert sum(sizes) == 9
    assert max(sizes) <= 4


# ------------------------------------------------------------ archived bodies


def put_archived(bench: Bench, item: GroupDispatch, body: bytes) -> None:
    put_hot(bench, item, body)
    bench.archive.update(bench.bodies)
    bench.bodies.clear()


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
    ask(bench, cursor(START))
    while not (reads := [e for e in bench.waiting if isinstance(e, ReadArchiveBodies)]):
        bench.answer(next(e for e in bench.waiting if not bench.parked(e)), "done")
    bench.answer(reads[0], fault)
    answer = bench.last_message()
    assert isinstance(answer, PullAnswer)
    assert answer.entries == ()
    assert answer.retry_after_ms > 0
