"""What every archive must do (docs: pipeline §§1.8, 5)."""

from itertools import pairwise, permutations
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qim.core.contract.entities import (
    Interval,
    Member,
    MemberHistoryRow,
    MembershipOp,
    MessageKind,
    decode_stored_record,
)
from qim.core.ports.archive import ArchivedConversation
from tests.adapters.archive.archives import AskedArchive, Asker, SimulatedArchive
from tests.adapters.archive.records import (
    ALWAYS,
    CHAT,
    FOREVER,
    GROUP,
    WALL,
    control,
    digest_of,
    grouped,
    message,
    mid,
)

CREATE, ADD, REMOVE, LEAVE = (
    MembershipOp.CREATE, MembershipOp.ADD, MembershipOp.REMOVE, MembershipOp.LEAVE,
)  # fmt: skip
BUCKET = 4_096


# ------------------------------------------------------------ rows


def test_an_empty_archive_knows_nothing(asker: Asker) -> None:
    assert (asker.page(CHAT).stored, asker.page(CHAT).more) == ((), False)
    assert asker.page(CHAT, limit=0).more is False
    assert asker.bodies((CHAT, 1, mid(1))) == (None,)
    read = asker.conversations()
    assert (read.conversations, read.more, read.position) == ((), False, 0)
    assert asker.expire(FOREVER) == (0, False)


def test_a_batch_may_be_repeated(asker: Asker, archive: AskedArchive) -> None:
    rows = [message(n) for n in (1, 2, 3)]
    assert asker.written(*rows, through=1_004) == ()
    once = (asker.page(CHAT), asker.conversations())
    for again in (rows, rows[::-1], rows[1:], rows + rows):
        assert asker.written(*again) == ()
    archive.reopen()
    assert asker.written(*rows[:1], message(4), through=9) == ()
    assert asker.seqs(CHAT) == [1, 2, 3, 4]
    assert asker.page(CHAT, high=4).stored == once[0].stored == tuple(row.stored for row in rows)
    assert asker.conversations().position == 1_004, "only forward"


def test_a_reused_seq_shows_as_two_rows(asker: Asker) -> None:
    assert asker.written(message(1), message(2)) == ()
    assert asker.written(message(2, 70), message(3)) == ((CHAT, 2),)
    assert asker.written(message(2)) == ((CHAT, 2),), "told again, whoever asks again"
    assert asker.seqs(CHAT) == [1, 2, 2, 3]
    assert asker.bodies((CHAT, 2, mid(2)), (CHAT, 2, mid(70)), (CHAT, 2, mid(3))) == (
        message(2).stored,
        message(2, 70).stored,
        None,
    )
    assert asker.written(message(9), message(9, 71)) == ((CHAT, 9),), "in one batch"


def test_pages_in_both_directions(asker: Asker) -> None:
    asker.written(*[message(n) for n in range(1, 11)])
    for limit in range(13):
        page = asker.seqs(CHAT, limit=limit)
        assert page == list(range(1, 11))[:limit]
        assert asker.page(CHAT, limit=limit).more is (limit < 10)
        back = asker.seqs(CHAT, limit=limit, newest_first=True)
        assert back == list(range(10, 0, -1))[:limit]
    assert asker.seqs(CHAT, 3, 7) == [4, 5, 6], "both bounds are exclusive"
    assert asker.seqs(CHAT, 3, 7, newest_first=True) == [6, 5, 4]
    for low, high in ((5, 6), (7, 3), (10, 1 << 64), (-9, 1), (-1, -1), (1 << 64, 1 << 65)):
        assert (asker.seqs(CHAT, low, high), asker.page(CHAT, low, high).more) == ([], False)


@pytest.mark.parametrize("newest_first", [False, True])
def test_pages_join_without_gap_or_repeat_across_buckets(asker: Asker, newest_first: bool) -> None:
    edges = [1, 255, 256, BUCKET - 1, BUCKET, BUCKET + 1, 3 * BUCKET, 900 * BUCKET + 5, 1 << 63]
    edges += [(1 << 64) - 2, (1 << 64) - 1]
    asker.written(*[message(seq, at + 1) for at, seq in enumerate(edges)])
    wanted = edges[::-1] if newest_first else edges
    for limit in (1, 2, 3, 11):
        found: list[int] = []
        low, high, more = -1, 1 << 64, True
        while more:
            page = asker.page(CHAT, low, high, newest_first=newest_first, limit=limit)
            more = page.more
            assert len(page.stored) == limit or not more
            found += [int.from_bytes(stored[:8], "big") for stored in page.stored]
            low, high = (low, found[-1]) if newest_first else (found[-1], high)
        assert found == wanted
    for low, high in pairwise(edges):
        assert asker.seqs(CHAT, low, high, newest_first=newest_first) == []
        assert asker.seqs(CHAT, low - 1, high + 1, newest_first=newest_first) == (
            [high, low] if newest_first else [low, high]
        )


def test_ids_are_bytes_and_prefixes_are_strangers(asker: Asker) -> None:
    names = [b"\0" * 16, b"\0" * 15 + b"\1", b"a\0%_'\"\\;--" + b"\xff" * 6, b"\xff" * 16]
    for at, name in enumerate(names):
        asker.written(message(at + 1, conversation_id=name), partition=1)
    for at, name in enumerate(names):
        assert asker.seqs(name) == [at + 1]
        assert asker.bodies((name, at + 1, mid(at + 1)), (names[at - 1], at + 1, mid(at + 1))) == (
            message(at + 1, conversation_id=name).stored,
            None,
        )
    for missing in (b"", b"\0", b"\0" * 15, b"\0" * 17, b"\xff" * 15):
        assert asker.page(missing).stored == ()
    read = asker.conversations(1)
    assert [c.conversation_id for c in read.conversations] == sorted(names)


@pytest.mark.parametrize("archive", ["simulator", "sqlite"], indirect=True)
def test_expiry_takes_what_has_run_out_and_never_a_hold(asker: Asker) -> None:
    rows = [message(n, retained_until=WALL + n) for n in range(1, 6)]
    asker.written(*rows, message(6, retained_until=FOREVER), through=7_000)
    assert asker.expire(WALL + 1) == (0, False), "not yet before it"
    assert asker.expire(WALL + 4, limit=2) == (2, True)
    assert asker.seqs(CHAT) == [3, 4, 5, 6]
    assert asker.expire(WALL + 4, limit=2) == (1, False)
    assert asker.expire(FOREVER + 5, limit=100) == (2, False)
    assert asker.seqs(CHAT) == [6]
    assert asker.bodies((CHAT, 5, mid(5)), (CHAT, 6, mid(6)))[0] is None
    read = asker.conversations()
    assert [(c.greatest_seq, c.last_activity_id) for c in read.conversations] == [(6, mid(6))]
    assert read.position == 7_000


@pytest.mark.parametrize("archive", ["simulator", "sqlite"], indirect=True)
def test_who_misses_a_body_is_told_what_was_let_go(asker: Asker, archive: AskedArchive) -> None:
    """By whatever clock, and for ever: a reader whose own clock is behind would wait for what never comes back."""
    assert asker.let_go() == 0
    asker.expire(WALL + 5)
    asker.expire(WALL + 3)
    archive.reopen()
    assert asker.let_go() == WALL + 5


# ------------------------------------------------------------ facts


def test_greatest_seq_and_activity_rise_apart_and_stay(asker: Asker, archive: AskedArchive) -> None:
    asker.written(message(5, activity=mid(900)), message(6, 6))
    asker.written(message(2))
    archive.reopen()
    assert asker.conversations().conversations == (
        ArchivedConversation(
            conversation_id=CHAT,
            conversation_kind=1,
            greatest_seq=6,
            last_activity_id=mid(900),
            single_users=(1, 2),
            versions=(),
            everyone=(),
            creator=0,
            name="",
            meta=b"",
            overlays=(),
        ),
    )


def test_conversations_page_by_id_within_their_partition(asker: Asker) -> None:
    names = sorted(bytes((n * 51, n)) * 8 for n in range(5))
    for name in names[::-1]:
        asker.written(message(1, conversation_id=name), partition=1, through=40)
    asker.written(message(1), partition=2, through=50)
    for limit in range(1, 7):
        found: list[bytes] = []
        more, after = True, b""
        while more:
            read = asker.conversations(1, after, limit)
            assert read.position == 40
            more = read.more
            found += [one.conversation_id for one in read.conversations]
            after = found[-1]
        assert found == names
    assert asker.conversations(1, names[-1]).conversations == ()
    only = asker.conversations(2, limit=0)
    assert (only.conversations, only.more, only.position) == ((), True, 50)
    assert asker.conversations(3).position == 0


def test_a_position_moves_without_rows(asker: Asker, archive: AskedArchive) -> None:
    assert asker.written(through=12) == ()
    archive.reopen()
    assert asker.conversations().position == 12


STEPS = (
    control(1, 1, CREATE, (1, 3, ALWAYS)),
    control(3, 2, ADD, (2, 9)),
    control(4, 3, REMOVE, (3, 9)),
    control(7, 4, ADD, (3,)),
    control(8, 5, LEAVE, (1,)),
)
MEMBERS = ((1, 3, ALWAYS), (1, 2, 3, 9, ALWAYS), (1, 2, ALWAYS), (1, 2, 3, ALWAYS), (2, 3, ALWAYS))
INTERVALS: dict[int, tuple[tuple[int, int], ...]] = {
    1: ((0, 8),),
    2: ((2, ALWAYS),),
    3: ((0, 4), (6, ALWAYS)),
    9: ((2, 4),),
    ALWAYS: ((0, ALWAYS),),
}


def group_facts(asker: Asker) -> ArchivedConversation:
    (found,) = asker.conversations().conversations
    return found


def assert_whole(group: ArchivedConversation) -> None:
    assert (group.creator, group.name, group.meta) == (1, "name ü", b"\x00meta")
    assert (group.conversation_kind, group.single_users, group.greatest_seq) == (2, None, 8)
    assert [(v.version, v.digest, v.control_seq) for v in group.versions] == [
        (at + 1, digest_of(at + 1), row.conversation_seq) for at, row in enumerate(STEPS)
    ]
    assert group.everyone == tuple(
        MemberHistoryRow(user, INTERVALS[user]) for user in sorted(INTERVALS)
    )
    for version, users in zip(group.versions, MEMBERS, strict=True):
        assert version.members == tuple(
            Member(user, tuple(Interval(*pair) for pair in INTERVALS[user])) for user in users
        )


def test_versions_and_intervals_of_a_group(asker: Asker, archive: AskedArchive) -> None:
    asker.written(STEPS[0], grouped(2), *STEPS[1:3], grouped(5), grouped(6))
    asker.written(*STEPS[2:])
    asker.written(*STEPS)
    assert_whole(group_facts(asker))
    asker.expire(FOREVER)
    archive.reopen()
    assert archive.expires_by_itself or asker.seqs(GROUP) == []
    assert_whole(group_facts(asker))


def test_steps_in_any_order_make_the_same_versions(asker: Asker) -> None:
    for at, order in enumerate(list(permutations(STEPS))[::17]):
        name = b"%016d" % at
        for row in order:
            record = decode_stored_record(row.stored)
            asker.written(
                control(
                    row.conversation_seq,
                    record.version or record.delta.version,  # type: ignore[union-attr]
                    MembershipOp(record.delta.op),  # type: ignore[union-attr]
                    record.delta.users,  # type: ignore[union-attr]
                    conversation_id=name,
                )
            )
    for group in asker.conversations().conversations:
        assert_whole(group)


def test_a_chain_with_a_gap_is_taken_as_far_as_it_reaches(asker: Asker) -> None:
    asker.written(STEPS[0], STEPS[1], STEPS[3])
    group = group_facts(asker)
    assert [version.version for version in group.versions] == [1, 2]
    assert (group.greatest_seq, [row.user_id for row in group.everyone]) == (
        7,
        [1, 2, 3, 9, ALWAYS],
    )


def test_overlays_are_facts(asker: Asker, archive: AskedArchive) -> None:
    recall: dict[str, Any] = {"kind": MessageKind.RECALL}
    hide: dict[str, Any] = {"kind": MessageKind.DELETE_FOR_ME, "sender_id": ALWAYS}
    rows = [
        message(1),
        message(2, target_seq=1, **recall),
        message(3, target_seq=1, **hide),
        message(4, target_seq=1, **recall),
        message(5, target_seq=(1 << 64) - 1, **recall),
    ]
    for again in (rows, rows[1:3]):
        asker.written(*again)
    asker.expire(FOREVER)
    archive.reopen()
    (chat,) = asker.conversations().conversations
    assert chat.overlays == ((1, 2, 0), (1, 3, ALWAYS), (1, 4, 0), ((1 << 64) - 1, 5, 0))


# ------------------------------------------------------------ against a model

ROWS = st.lists(
    st.tuples(
        st.sampled_from([CHAT, GROUP, CHAT[:-1] + b"\xff"]),
        st.sampled_from([1, 2, 3, 255, 256, BUCKET - 1, BUCKET, BUCKET + 1, (1 << 64) - 1]),
        st.integers(1, 40),
    ),
    max_size=8,
)


@given(st.lists(ROWS, max_size=5), st.integers(-1, BUCKET + 2), st.integers(0, 6))
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_any_batches_read_as_the_set_of_their_rows(
    asker: Asker, batches: list[Any], low: int, limit: int
) -> None:
    asker.examples += 1
    model: dict[tuple[bytes, int, bytes], bytes] = {}

    def named(conversation: bytes) -> bytes:
        return b"%08d" % asker.examples + conversation[-8:]  # every example has its own

    for batch in batches:
        rows = [message(seq, number, conversation_id=named(conv)) for conv, seq, number in batch]
        for row in rows:
            model[row.conversation_id, row.conversation_seq, row.message_id] = row.stored
        told = asker.written(*rows)
        places = {(row.conversation_id, row.conversation_seq) for row in rows}
        doubled = {p for p in places if len([k for k in model if k[:2] == p]) > 1}
        assert set(told) == doubled and len(told) == len(doubled)
    for conv in (named(CHAT), named(GROUP)):
        keys = sorted(key for key in model if key[0] == conv and key[1] > low)
        for newest_first in (False, True):
            ordered = keys[::-1] if newest_first else keys
            page = asker.page(conv, low, newest_first=newest_first, limit=limit)
            assert page.stored == tuple(model[key] for key in ordered[:limit])
            assert page.more is (len(keys) > limit)


# ------------------------------------------------------------ only the simulator's faults


def test_a_batch_in_part_claims_nothing(simulated: SimulatedArchive) -> None:
    asker = Asker(simulated)
    simulated.archive.rated = True
    rates = simulated.archive.rates
    seen = set()
    for number in range(30):
        name = b"%016d" % number
        rows = [message(seq, conversation_id=name) for seq in range(1, 11)]
        rates.partial = 1 << 16
        reply = asker.write(*rows, through=number + 1)
        assert type(reply).__name__ == "Unknown"
        rates.partial = 0
        partial = asker.seqs(name)
        seen.add(len(partial))
        assert asker.conversations(limit=0).position <= number
        rates.stale = 1 << 16
        assert asker.seqs(name) in ([], list(range(1, 11))), "settled rows alone"
        rates.stale = 0
        if partial != list(range(1, 11)):
            held = [c for c in asker.conversations().conversations if c.conversation_id == name]
            assert held == [], "a greatest seq before all rows of its batch"
        assert asker.written(*rows, through=number + 1) == ()
        assert asker.seqs(name) == list(range(1, 11))
    assert len(seen) > 3, "really in part"
    simulated.settle()
    assert asker.conversations().position == 30
    assert [c.greatest_seq for c in asker.conversations().conversations] == [10] * 30


@pytest.mark.parametrize("fault", ["late", "reply_lost", "unreachable"])
def test_what_an_unanswered_write_became(simulated: SimulatedArchive, fault: str) -> None:
    asker = Asker(simulated)
    simulated.archive.rated = True
    setattr(simulated.archive.rates, fault, 1 << 16)
    reply = asker.write(message(1), through=5)
    assert type(reply).__name__ == ("Failed" if fault == "unreachable" else "Unknown")
    setattr(simulated.archive.rates, fault, 0)
    assert asker.seqs(CHAT) == ([1] if fault == "reply_lost" else [])
    simulated.settle()
    assert asker.seqs(CHAT) == ([] if fault == "unreachable" else [1])
    assert simulated.archive.counts == {f"archive.{fault}": 1}
