"""Every kind of orphan a record can become, by spoiling one thing about a message that was whole."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from qim.core.audit import OrphanKind, Verdict
from qim.core.contract.ids import dispatch_id
from qim.core.contract.invariants import Invariant
from qim.core.contract.sequences import mailbox_seq
from qim.core.ports.observe import Violation
from qim.core.ports.store_mailbox import Progress
from tests.core.audit.spoiling import GARBAGE, moved, only, orphans, receipt, spoiled
from tests.core.audit.toy import A, B, Toy, users_in
from tests.core.audit.toy_services import SHARDS


@pytest.fixture
def toy() -> Toy:
    """Two whole messages stand before whatever a test adds."""
    made = Toy()
    made.group(1, (A, B, *users_in(2, 3)))
    made.send()
    made.send(version=1)
    return made


# ------------------------------------------------------------ receipts


def test_a_checkpoint_without_a_receipt(toy: Toy) -> None:
    sent = toy.send()
    del toy.sources[0].receipts[sent.offset]
    one = only(toy.audit())
    assert (one.kind, one.offset) == (OrphanKind.RECEIPT_MISSING, sent.offset)
    assert one.message_id == sent.record.message_id
    violation = [seen for seen in toy.seen if isinstance(seen, Violation)]
    assert [seen.check for seen in violation] == [Invariant.ORPHAN_DISPATCH.value]
    assert "receipt_missing" in violation[0].detail


def test_a_receipt_of_another_message(toy: Toy) -> None:
    sent = toy.send()
    receipt(toy, sent, message_id=b"x" * 16)
    assert only(toy.audit()).kind is OrphanKind.RECEIPT_MISSING


def test_a_receipt_nobody_can_read(toy: Toy) -> None:
    sent = toy.send()
    toy.sources[0].receipts[sent.offset] = GARBAGE
    assert only(toy.audit()).kind is OrphanKind.RECEIPT_MISSING


def test_a_receipt_that_forgets_or_invents_a_shard(toy: Toy) -> None:
    first, second, third = toy.send(), toy.send(), toy.send()
    receipt(toy, first, shards=first.receipt.shards[:1])
    receipt(
        toy, second, shards=(*second.receipt.shards, replace(second.receipt.shards[0], shard=3))
    )
    receipt(toy, third, shards=(third.receipt.shards[0], *third.receipt.shards))
    kind = OrphanKind.WRONG_SHARD_SET
    assert orphans(toy.audit()) == [(kind, 0, one.offset, -1) for one in (first, second, third)]


def test_a_receipt_with_a_shard_that_cannot_be(toy: Toy) -> None:
    sent = toy.send()
    moved(toy, sent, 1, shard=SHARDS)
    assert only(toy.audit()).kind is OrphanKind.WRONG_SHARD_SET


def test_a_receipt_whose_digest_is_not_its_records(toy: Toy) -> None:
    sent = toy.send()
    moved(toy, sent, 1, digest=b"d" * 16)
    assert orphans(toy.audit()) == [(OrphanKind.WRONG_DIGEST, 0, sent.offset, 1)]


# ------------------------------------------------------------ dispatches


@pytest.mark.parametrize("where", ["beyond the end", "another's", "garbage"])
def test_no_dispatch_where_the_receipt_points(toy: Toy, where: str) -> None:
    sent = toy.send()
    if where == "beyond the end":
        moved(toy, sent, 0, offset=99)
    elif where == "another's":
        moved(toy, sent, 0, offset=0)
    else:
        toy.dispatch(0).spoil(sent.place(0), GARBAGE)
    found = orphans(toy.audit())
    assert (OrphanKind.RECORD_WITHOUT_DISPATCH, 0, sent.offset, 0) in found
    others = [kind for kind, *_ in found if kind is not OrphanKind.RECORD_WITHOUT_DISPATCH]
    assert others == ([OrphanKind.DEAD_LETTERED] if where == "garbage" else [])


def test_a_dispatch_of_other_content_than_its_receipt(toy: Toy) -> None:
    sent = toy.send()
    spoiled(toy, sent, 1, body_digest=b"b" * 16)
    assert orphans(toy.audit()) == [
        (OrphanKind.WRONG_DIGEST, 0, sent.offset, 1),
        (OrphanKind.WRONG_DIGEST, 0, sent.place(1), 1),
    ]


# ------------------------------------------------------------ mailboxes


def test_an_entry_that_is_not_there(toy: Toy) -> None:
    sent = toy.send(version=1)
    user = sent.users[2][1]
    toy.boxes[2].rows["t", user].pop()
    one = only(toy.audit())
    assert (one.kind, one.shard, one.offset) == (OrphanKind.NOT_MATERIALISED, 2, sent.offset)
    assert f"user {user}" in one.detail


def test_several_missing_entries_of_a_dispatch_are_one_finding(toy: Toy) -> None:
    sent = toy.send(version=1)
    for user in sent.users[2]:
        toy.boxes[2].rows["t", user].pop()
    assert only(toy.audit()).kind is OrphanKind.NOT_MATERIALISED


def test_an_entry_that_is_there_twice(toy: Toy) -> None:
    sent = toy.send()
    toy.put(0, A, sent.record, mailbox_seq(1, sent.place(0)) - 1)
    one = only(toy.audit())
    assert (one.kind, one.shard) == (OrphanKind.NOT_MATERIALISED, 0)


def test_an_entry_behind_its_dispatch(toy: Toy) -> None:
    sent = toy.send()
    toy.boxes[0].rows["t", A].pop()
    toy.put(0, A, sent.record, mailbox_seq(1, sent.place(0)) + 1)
    toy.passed(0, sent.place(0) + 1)
    assert only(toy.audit()).kind is OrphanKind.NOT_MATERIALISED


def test_a_repetition_above_trim_does_not_excuse_a_lost_entry(toy: Toy) -> None:
    """Only a dispatch that first stands at or below trim may have no entry."""
    sent = toy.send()
    repeated = toy.append_dispatch(0, sent.dispatches[0])
    toy.passed(0, repeated)
    moved(toy, sent, 0, offset=repeated)
    toy.boxes[0].rows["t", A].pop()
    toy.trim(0, 0)
    assert orphans(toy.audit()) == [(OrphanKind.NOT_MATERIALISED, 0, sent.offset, 0)]


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        (OrphanKind.NOT_MATERIALISED, lambda mark: replace_mark(mark, entry_count=2)),
        (OrphanKind.NOT_MATERIALISED, lambda mark: replace_mark(mark, offset=mark.offset + 1)),
        (OrphanKind.WRONG_DIGEST, lambda mark: replace_mark(mark, digest=b"d" * 16)),
    ],
    ids=["count", "offset", "digest"],
)
def test_a_progress_mark_that_stands_must_agree(
    toy: Toy, kind: OrphanKind, spoil: Callable[[Progress], Progress]
) -> None:
    """More entries than the audience has is a leak that no reading of the audience's mailboxes shows."""
    sent = toy.send()
    one = dispatch_id(sent.record.message_id, 0)
    toy.boxes[0].progress[one] = spoil(toy.boxes[0].progress[one])
    assert orphans(toy.audit()) == [(kind, 0, sent.offset, 0)]


def replace_mark(mark: Progress, **changes: object) -> Progress:
    changed: Progress = replace(mark, **changes)
    return changed


# ------------------------------------------------------------ dead letters


def test_a_dead_letter_is_an_orphan_under_the_key_it_had(toy: Toy) -> None:
    offset = toy.outbox().append(GARBAGE, b"m" * 16)
    toy.sources[0].dead_letters[offset] = GARBAGE
    toy.sources[0].checkpoint = offset + 1
    one = only(toy.audit())
    assert (one.kind, one.offset, one.message_id) == (
        OrphanKind.DEAD_LETTERED,
        offset,
        b"m" * 16,
    )


def test_what_an_older_fanout_could_not_read_is_a_dead_letter_too(toy: Toy) -> None:
    sent = toy.send()
    del toy.sources[0].receipts[sent.offset]
    toy.sources[0].dead_letters[sent.offset] = b"kept"
    assert only(toy.audit()).kind is OrphanKind.DEAD_LETTERED


def test_with_an_orphan_no_fact_is_dropped_and_no_cursor_moves(toy: Toy) -> None:
    sent = toy.send()
    del toy.sources[0].receipts[sent.offset]
    for _ in range(2):
        assert only(toy.audit()).kind is OrphanKind.RECEIPT_MISSING, "it stays in every report"
    assert len(toy.sources[0].facts) == 3
    assert toy.sources[0].covered_to == 0


# ------------------------------------------------------------ bounds


def test_findings_are_counted_beyond_those_kept(toy: Toy) -> None:
    for sent in [toy.send() for _ in range(6)]:
        del toy.sources[0].receipts[sent.offset]
    report = toy.audit(orphans_max=2)
    assert (report.verdict, report.orphans_total, len(report.orphans)) == (Verdict.ORPHANS, 6, 2)


def test_suspects_beyond_their_bound_are_orphans(toy: Toy) -> None:
    sent = [toy.send() for _ in range(4)]
    grouped = toy.send(version=1)
    toy.boxes[0].rows["t", A] = toy.boxes[0].rows["t", A][:2]
    for user in grouped.users[2]:
        toy.boxes[2].rows["t", user].pop()
    missing = len(sent) + 1 + len(grouped.users[2])
    dispatches = len(sent) + 2
    for limit, total in ((1, missing), (5, missing), (6, dispatches), (9, dispatches)):
        report = toy.audit(orphans_max=limit)
        assert (report.orphans_total, len(report.orphans)) == (total, min(limit, total))


def test_a_shard_that_is_behind_hides_no_orphan_of_another(toy: Toy) -> None:
    late, sent = toy.send(), toy.send()
    toy.boxes[1].rows["t", B] = toy.boxes[1].rows["t", B][:-1]
    toy.passed(0, late.place(0) - 1)
    report = toy.audit()
    assert orphans(report) == [(OrphanKind.NOT_MATERIALISED, 0, sent.offset, 1)]
    assert report.incomplete == (
        f"outbox 0 offsets {late.offset}..{sent.offset}: mailbox shard 0 has not passed its dispatch",
    )
