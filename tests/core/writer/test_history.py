"""Reads of hot history and members: intervals applied, pending left out, has_more exact (pipeline.md §5, contract Interval)."""

import pytest

from qim.core.contract.entities import MembershipOp, decode_stored_record
from qim.core.contract.errors import ErrorCode
from qim.core.contract.kinds import HistoryDirection
from qim.core.contract.rpc import AskHistory, AskMembers
from qim.core.ports.completion import Failed, FailReason, StoreReset, StoreRole, Unknown
from qim.core.ports.log import Append
from qim.core.ports.store_reads import ReadHistory, ReadMembership
from qim.core.writer import WriterConfig
from tests.core.writer.scene import Scene, actor, chat

OLDER, NEWER, AROUND = HistoryDirection


def filled(count: int, config: WriterConfig | None = None, body: bytes = b"hello") -> Scene:
    """A chat of 1 and 2 with ``count`` messages."""
    scene = Scene(config)
    for _ in range(count):
        scene.send(1, 2, body=body)
    scene.settle()
    return scene


def page(
    scene: Scene, user: int, conversation_id: bytes, anchor: int, direction: int, limit: int
) -> tuple[list[int], bool]:
    """seqs and has_more."""
    rid = scene.history(user, conversation_id, anchor, direction, limit)
    scene.settle()
    past = scene.past(rid)
    assert past.conversation_id == conversation_id
    return [decode_stored_record(row).conversation_seq for row in past.records], past.has_more


@pytest.mark.parametrize(
    ("anchor", "direction", "limit", "seqs", "more"),
    [
        (0, OLDER, 3, [8, 9, 10], True),
        (0, OLDER, 10, list(range(1, 11)), False),
        (0, OLDER, 0, list(range(1, 11)), False),
        (4, OLDER, 3, [1, 2, 3], False),
        (5, OLDER, 3, [2, 3, 4], True),
        (1, OLDER, 3, [], False),
        (0, NEWER, 3, [1, 2, 3], True),
        (7, NEWER, 3, [8, 9, 10], False),
        (6, NEWER, 3, [7, 8, 9], True),
        (10, NEWER, 3, [], False),
        (2**64 - 1, NEWER, 3, [], False),
        (5, AROUND, 4, [4, 5, 6, 7], True),
        (1, AROUND, 4, [1, 2, 3], False),
        (10, AROUND, 4, [9, 10], True),
        (5, AROUND, 1, [5], True),
        (5, AROUND, 500, list(range(1, 11)), False),
    ],
)
def test_pages(anchor: int, direction: int, limit: int, seqs: list[int], more: bool) -> None:
    scene = filled(10)
    assert page(scene, 2, chat(1, 2), anchor, direction, limit) == (seqs, more)


@pytest.mark.parametrize("direction", [OLDER, NEWER])
@pytest.mark.parametrize("size", [1, 3, 7, 11, 12])
def test_paging_is_complete_and_never_repeats(direction: int, size: int) -> None:
    scene = filled(11, WriterConfig(outbox_partition_count=1, history_rows_max=2))
    seen: list[int] = []
    anchor, more = 0, True
    while more:
        seqs, more = page(scene, 1, chat(1, 2), anchor, direction, size)
        assert seqs == sorted(seqs)
        seen += seqs if direction == NEWER else list(reversed(seqs))
        anchor = seqs[-1] if direction == NEWER else seqs[0]
    expected = list(range(1, 12))
    assert seen == (expected if direction == NEWER else expected[::-1])


def test_only_what_stands_in_ones_intervals() -> None:
    scene = Scene()
    group = scene.create(1, 2)  # 1
    scene.send(1, to=group)  # 2
    scene.settle()
    for op in (MembershipOp.ADD, MembershipOp.REMOVE, MembershipOp.ADD):
        scene.group(1, op, (3,), to=group)  # 3, 5, 7
        scene.settle()
        scene.send(1, to=group)  # 4, 6, 8
        scene.settle()
    assert page(scene, 3, group, 0, OLDER, 100) == ([3, 4, 5, 7, 8], False)
    assert page(scene, 3, group, 0, OLDER, 3) == ([5, 7, 8], True)
    assert page(scene, 3, group, 0, NEWER, 3) == ([3, 4, 5], True)
    assert page(scene, 3, group, 5, NEWER, 2) == ([7, 8], False)
    assert page(scene, 3, group, 6, AROUND, 4) == ([4, 5, 7, 8], True)
    assert page(scene, 1, group, 0, OLDER, 100) == (list(range(1, 9)), False)
    scene.group(3, MembershipOp.LEAVE, to=group)  # 9
    scene.settle()
    scene.send(1, to=group)  # 10
    scene.settle()
    assert page(scene, 3, group, 0, OLDER, 2) == ([8, 9], True)


def test_what_is_not_in_the_log_yet_is_not_shown() -> None:
    scene = filled(2)
    scene.send(1, 2)
    append = scene.until(Append)
    assert page(scene, 2, chat(1, 2), 0, OLDER, 10) == ([1, 2], False)
    scene.step(scene.carry_out(append))
    scene.settle()
    assert page(scene, 2, chat(1, 2), 0, OLDER, 10) == ([1, 2, 3], False)


def test_a_page_is_cut_by_bytes_and_holds_at_least_one_record() -> None:
    scene = filled(6, body=b"x" * 100_000)
    assert page(scene, 1, chat(1, 2), 0, OLDER, 10) == ([5, 6], True)
    assert page(scene, 1, chat(1, 2), 0, NEWER, 10) == ([1, 2], True)
    assert page(scene, 1, chat(1, 2), 3, AROUND, 10) == ([3, 4], True)
    tiny = filled(2, WriterConfig(outbox_partition_count=1, batch_bytes_max=10))
    assert page(tiny, 1, chat(1, 2), 0, OLDER, 10) == ([2], True)


def test_who_may_not_read() -> None:
    scene = filled(1)
    group = scene.create(1, 2)
    cases = [
        (scene.history(3, chat(1, 2)), ErrorCode.NOT_MEMBER),
        (scene.history(1, b"\x01" * 16), ErrorCode.NOT_FOUND),
        (scene.history(3, group), ErrorCode.NOT_MEMBER),
        (scene.members(3, group), ErrorCode.NOT_MEMBER),
        (scene.members(1, b"\x01" * 16), ErrorCode.NOT_FOUND),
        (scene.history(1, b"short"), ErrorCode.INVALID_ARGUMENT),
        (scene.history(1, group, direction=3), ErrorCode.INVALID_ARGUMENT),
        (scene.history(1, group, anchor=2**64), ErrorCode.INVALID_ARGUMENT),
        (scene.history(1, group, limit=-1), ErrorCode.INVALID_ARGUMENT),
    ]
    scene.rid += 1
    foreign = scene.rid
    scene.receive(
        AskHistory(
            rid=foreign,
            actor=actor(1, "other"),
            conversation_id=chat(1, 2),
            anchor=0,
            direction=OLDER,
            limit=0,
        )
    )
    stranger = AskMembers(
        rid=foreign + 1, actor=actor(1, "other"), conversation_id=chat(1, 2), since_version=0
    )
    scene.receive(stranger)
    cases += [(foreign, ErrorCode.NOT_MEMBER), (foreign + 1, ErrorCode.NOT_MEMBER)]
    scene.settle()
    assert [scene.refused(rid) for rid, _ in cases] == [code for _, code in cases]


def test_members_who_see_a_message_are_those_whose_interval_holds_it() -> None:
    scene = filled(1)
    group = scene.create(1, 2)
    scene.group(1, MembershipOp.ADD, (3,), to=group)
    scene.settle()
    asked = [scene.members(1, group, seeing=seq) for seq in (0, 1, 2, 3)]
    single = scene.members(2, chat(1, 2), seeing=9)
    scene.settle()
    found = [scene.member_list(rid).added for rid in asked]
    assert found == [(1, 2, 3), (1, 2), (1, 2, 3), (1, 2, 3)]
    assert scene.member_list(single).added == (1, 2)


def test_members_in_full_unless_nothing_has_changed() -> None:
    scene = filled(1)
    group = scene.create(1, 2, 3)
    full = scene.members(2, group)
    same = scene.members(2, group, since=1)
    single = scene.members(2, chat(1, 2))
    scene.settle()
    answer = scene.member_list(full)
    assert (answer.version, answer.since_version, answer.added) == (1, 0, (1, 2, 3))
    assert (answer.name, answer.creator) == ("team", 1)
    unchanged = scene.member_list(same)
    assert (unchanged.version, unchanged.since_version, unchanged.added) == (1, 1, ())
    assert scene.member_list(single).added == (1, 2)
    scene.group(1, MembershipOp.REMOVE, (3,), to=group)
    scene.settle()
    changed = scene.members(2, group, since=1)
    gone = scene.members(3, group)
    scene.settle()
    answer = scene.member_list(changed)
    assert (answer.version, answer.since_version, answer.added, answer.removed) == (
        2,
        0,
        (1, 2),
        (),
    )
    assert scene.refused(gone) is ErrorCode.NOT_MEMBER
    assert page(scene, 3, group, 0, OLDER, 10) == ([1, 2], False)  # a former member reads its past


def test_reads_while_the_shard_opens_and_when_it_opens_anew() -> None:
    scene = Scene(started=False)
    scene.hold()
    early = scene.history(1, chat(1, 2))
    assert scene.refused(early) is ErrorCode.UNAVAILABLE
    scene = filled(1)
    rid = scene.history(1, chat(1, 2))
    rows = scene.until(ReadHistory)
    scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    assert scene.refused(rid) is ErrorCode.UNAVAILABLE
    scene.step(scene.carry_out(rows))
    scene.settle()
    assert scene.writer.idle()


def test_reads_in_doubt_are_asked_again_and_given_up_when_nobody_waits() -> None:
    scene = filled(1)
    rid = scene.history(1, chat(1, 2))
    access = scene.until(ReadHistory)
    scene.step(Unknown(op=access.op))
    scene.advance(100)
    rows = scene.until(ReadHistory)
    scene.step(Failed(op=rows.op, why=FailReason.OVERLOADED))
    scene.advance(100)
    scene.settle()
    assert len(scene.past(rid).records) == 1
    late = scene.history(1, chat(1, 2))
    access = scene.until(ReadHistory)
    scene.advance(scene.config.request_timeout_ms)
    assert scene.refused(late) is ErrorCode.UNAVAILABLE
    scene.step(Failed(op=access.op, why=FailReason.OVERLOADED))
    assert scene.writer.idle()
    late = scene.members(1, chat(1, 2))
    members = scene.until(ReadMembership)
    scene.advance(scene.config.request_timeout_ms)
    scene.step(scene.carry_out(members))
    assert scene.refused(late) is ErrorCode.UNAVAILABLE
    assert scene.writer.idle()
    answered_late = scene.history(1, chat(1, 2))
    for passed in range(2):
        late = scene.history(1, chat(1, 2))
        question = scene.until(ReadHistory)
        for _ in range(passed):
            scene.step(scene.carry_out(question))
            question = scene.until(ReadHistory)
        scene.advance(scene.config.request_timeout_ms)
        assert scene.refused(late) is ErrorCode.UNAVAILABLE
        scene.step(scene.carry_out(question))
        scene.settle()
    assert scene.said(answered_late)
    assert scene.writer.idle()


def test_reads_in_flight_are_bounded() -> None:
    scene = Scene(WriterConfig(outbox_partition_count=1, queries_max=1))
    first = scene.history(1, chat(1, 2))
    second = scene.members(1, chat(1, 2))
    assert scene.refused(second) is ErrorCode.UNAVAILABLE
    scene.settle()
    assert scene.refused(first) is ErrorCode.NOT_FOUND


def test_a_read_that_was_given_up_is_not_answered_again_by_a_reset() -> None:
    scene = filled(1)
    assert scene.writer.serving() == 1
    rid = scene.history(1, chat(1, 2))
    access = scene.until(ReadHistory)
    scene.advance(scene.config.request_timeout_ms)
    assert scene.refused(rid) is ErrorCode.UNAVAILABLE
    scene.step(StoreReset(op=access.op, store=StoreRole.MESSAGE))
    assert scene.writer.serving() == 0
    scene.settle()
    assert scene.refused(rid) is ErrorCode.UNAVAILABLE
    assert scene.writer.idle()
