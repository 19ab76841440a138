"""The pull path: cursors judged, contiguous prefixes, bodies joined, and nothing covered that isn't there."""

import pytest

from qim.core.contract import routing
from qim.core.contract.cursor import decode_cursor
from qim.core.contract.errors import ErrorCode
from qim.core.contract.invariants import Invariant
from qim.core.contract.rpc import AskPull, AskSync, AskWatermark, PullAnswer, SendDone, SyncAnswer
from qim.core.contract.sequences import mailbox_seq
from qim.core.ports.completion import Failed, FailReason, StoreReset, StoreRole, Unknown
from qim.core.ports.local import FreshEpochWanted, LeaseGone
from qim.core.ports.store_mailbox import MailboxesRead, ReadMailboxes
from tests.core.mailbox.bench import CONFIG, RESOURCE, SECRET, WALL, Bench, dispatch, replace
from tests.core.mailbox.pulled import (
    DAY,
    START,
    actor,
    ask,
    cursor,
    named_owner,
    numbered,
    pull,
    refusal,
    running,
)

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


def test_a_new_device_begins_no_further_than_its_lane_has_come() -> None:
    """A day has begun for the shard, and one lane is still at work on the rows of the last one."""
    lane = routing.lane(1)
    crowd = [user for user in range(1, 200_000) if routing.lane(user) == lane][:6]
    other = next(user for user in range(2, 100) if routing.lane(user) != lane)
    bench = Bench(replace(CONFIG, rows_max=2))
    bench.append(dispatch(0, users=tuple(crowd)), at=WALL)
    bench.append(dispatch(1, users=(other,)), at=WALL + 9 * DAY)
    bench.now = 10 * DAY
    bench.hold()
    while len(bench.store.days) < 2:
        bench.answer(next(e for e in bench.waiting if not bench.parked(e)), "done")
    bench.receive(AskSync(rid=1, actor=actor(), cursor=None))
    answer = bench.last_message()
    assert isinstance(answer, SyncAnswer)
    assert answer.sync_to_seq == START
    assert decode_cursor(answer.cursor, SECRET).seq == START


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
