"""OPEN when retention has cut what the store lacks (pipeline.md §1.8): restored from archive and outbox, or refused by name."""

import pytest

from qim.core.contract.entities import MembershipOp, MessageKind, decode_stored_record
from qim.core.contract.errors import ErrorCode
from qim.core.contract.logvalue import barrier_value
from qim.core.ports.archive import ReadArchivedConversations
from qim.core.ports.completion import Failed, FailReason, StoreReset, StoreRole, Unknown
from qim.core.ports.log import Append, Fetch, LogRecord, OutOfRange
from qim.core.ports.registry import ReadLease
from qim.core.ports.store_history import RestoreConversations
from qim.core.writer import WriterConfig
from tests.core.writer.scene import Scene, chat

CHAT = chat(1, 2)
TIERED = WriterConfig(
    outbox_partition_count=1, tiered=True, restore_page_max=2, apply_records_max=2
)


def lived(config: WriterConfig = TIERED) -> tuple[Scene, bytes]:
    """Chats and a group with a history of members, overlays among them; all of it committed."""
    scene = Scene(config)
    for _ in range(3):
        scene.send(1, 2)
    for peer in (3, 4, 5):
        scene.send(1, peer)
    scene.settle()
    group = scene.create(1, 2, 3)  # 1
    scene.send(2, to=group)  # 2
    scene.settle()
    for op, user in ((MembershipOp.ADD, 4), (MembershipOp.REMOVE, 3), (MembershipOp.ADD, 3)):
        scene.group(1, op, (user,), to=group)  # 3, 4, 5
        scene.settle()
    scene.recall(1, CHAT, 2)
    scene.delete(2, group, 2)
    scene.settle()
    return scene, group


def shown(scene: Scene, user: int, name: bytes) -> tuple[list[int], tuple[int, ...]]:
    rid = scene.history(user, name)
    scene.settle()
    past = scene.past(rid)
    seqs = [decode_stored_record(row).conversation_seq for row in past.records]
    return seqs, past.recalled


def everything(scene: Scene, group: bytes) -> list[object]:
    """All that can be asked about it."""
    answers: list[object] = []
    for user in (1, 2, 3, 4):
        answers.append(shown(scene, user, group))
        summary = scene.summary(user, group)
        answers.append((summary.unread, summary.head, summary.last_activity_id))
    for name, user in ((CHAT, 1), (CHAT, 2), (chat(1, 5), 5)):
        answers.append(shown(scene, user, name))
        summary = scene.summary(user, name)
        answers.append((summary.unread, summary.head, summary.peer_user_id))
    rid = scene.members(1, group)
    scene.settle()
    members = scene.member_list(rid)
    answers.append((members.version, members.added, members.name, members.creator))
    return answers


def emptied(scene: Scene, log_start: int) -> None:
    """The store comes back EMPTY, and the log begins later."""
    scene.restart_store(-1)
    scene.trim_log(log_start)
    scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    scene.settle()


@pytest.mark.parametrize("archived", [0, 1, 4])
def test_an_empty_store_is_what_it_was(archived: int) -> None:
    """The archive stands ``archived`` records beyond where the log now begins; the rest comes from the log."""
    scene, group = lived()
    before = everything(scene, group)
    end = scene.log_start + len(scene.log)
    scene.archive_to(end - 4 + archived)
    emptied(scene, end - 4)
    assert not scene.violations
    assert scene.counts["conversations_restored"] == 5
    assert everything(scene, group) == before
    rid = scene.send(1, 2)
    other = scene.send(3, to=group)
    scene.settle()
    assert scene.sent(rid).conversation_seq == 5
    assert scene.sent(other).conversation_seq == 7
    ids = [record.message_id for record in scene.effective()]
    assert ids == sorted(ids)
    gone = scene.recall(1, CHAT, 2)
    assert scene.refused_after_settle(gone) is ErrorCode.NOT_FOUND, "recalled already"


def test_an_archive_that_is_ahead_of_the_log_was_filled_from_another() -> None:
    """An outbox topic made anew: once it is as long as the old one, the archive would vouch for what it has never seen."""
    scene, _ = lived()
    scene.archive_to()
    stands = scene.archive.position
    emptied(scene, scene.log_start + len(scene.log))
    scene.log, scene.log_start = [], 0
    scene.restart_store(-1)
    scene.barriers.clear()
    scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    scene.settle()
    assert [violation.check for violation in scene.violations] == ["outbox_truncated"]
    assert f"archive at {stands}, log ends at 0" in scene.violations[0].detail
    assert not scene.log, (
        "not even a barrier: nothing may stand below the archive's position but padding"
    )
    while len(scene.log) < stands:
        scene.put(LogRecord(key=b"", value=barrier_value(1)))
    scene.hold()
    scene.settle()
    rid = scene.send(1, 2)
    scene.settle()
    assert scene.sent(rid).message_id


def test_an_archive_that_gains_while_a_shard_opens_is_no_violation() -> None:
    """It is asked before the log is: what it archives meanwhile stands below the end that is read then."""
    scene, group = lived()
    scene.archive_to()
    before = everything(scene, group)
    scene.restart_store(-1)
    scene.grants = False
    scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    scene.wanted.clear()
    scene.hold()
    kinds = []
    while type(scene.inflight[0]) is not ReadLease:
        kinds.append(type(scene.inflight[0]).__name__)
        scene.answer()
    assert kinds == ["OpenShard", "ReadArchivedConversations", "ReadEnds"]
    scene.settle()
    assert not scene.violations
    assert everything(scene, group) == before


@pytest.mark.parametrize("lost", [True, False])
def test_an_archive_that_does_not_answer_is_asked_again(lost: bool) -> None:
    scene, group = lived()
    scene.archive_to()
    before = everything(scene, group)
    scene.restart_store(-1)
    scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    scene.wanted.clear()
    scene.hold()
    question = scene.until(ReadArchivedConversations)
    why = FailReason.UNREACHABLE
    scene.step(Unknown(op=question.op) if lost else Failed(op=question.op, why=why))
    assert not scene.inflight
    scene.advance(scene.config.retry_delay_max_ms * 2)
    scene.settle()
    assert everything(scene, group) == before


def test_batches_are_bounded_by_what_a_script_takes() -> None:
    config = WriterConfig(outbox_partition_count=1, tiered=True, apply_args_max=1)
    scene, group = lived(config)
    before = everything(scene, group)
    scene.archive_to()
    scene.restart_store(-1)
    scene.trim_log(scene.log_start + len(scene.log))
    scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    scene.wanted.clear()
    scene.hold()
    sizes = []
    while scene.inflight:
        if isinstance(scene.inflight[0], RestoreConversations):
            sizes.append((len(scene.inflight[0].conversations), scene.inflight[0].applied_to))
        scene.answer()
    assert sizes == [(1, 0)] * 4 + [(1, scene.log_start)]
    assert everything(scene, group) == before


def test_all_of_the_log_is_gone() -> None:
    scene, group = lived()
    before = everything(scene, group)
    scene.archive_to()
    emptied(scene, scene.log_start + len(scene.log))
    assert everything(scene, group) == before
    last = max(record for rows in scene.archive.kept.values() for record in ids_of(rows))
    rid = scene.send(1, 2)
    scene.settle()
    assert scene.sent(rid).message_id > last


def ids_of(records: object) -> list[bytes]:
    return [record.message_id for record in records]  # type: ignore[attr-defined]


def test_an_archive_that_does_not_reach_the_log_is_refused_by_name() -> None:
    scene, _ = lived()
    scene.archive_to(5)
    emptied(scene, 7)
    assert [v.check for v in scene.violations] == ["outbox_range_lost"]
    assert "[5, 7)" in scene.violations[0].detail
    assert scene.refused(scene.send(1, 2)) is ErrorCode.UNAVAILABLE
    assert "conversations_restored" not in scene.counts


def test_without_an_archive_it_is_refused_as_ever() -> None:
    scene, _ = lived(WriterConfig(outbox_partition_count=1))
    scene.archive_to()
    emptied(scene, 7)
    assert "[0, 7)" in scene.violations[0].detail


def test_an_intent_below_the_cut_is_refused_for_nobody_knows_what_became_of_it() -> None:
    scene, _ = lived()
    scene.send(1, 2)
    append = scene.until(Append)
    scene.carry_out(append)
    scene.inflight.clear()
    scene.archive_to()
    scene.restart_store()
    scene.trim_log(scene.log_start + len(scene.log))
    scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    scene.settle()
    assert [v.check for v in scene.violations] == ["outbox_range_lost"]
    assert len(scene.archive.rows[CHAT]) == 5, "it was appended, and would have been again"


def test_a_store_that_lost_a_long_tail_is_brought_forward() -> None:
    scene = Scene(TIERED)
    scene.send(1, 2)
    scene.settle()
    group = scene.create(1, 2)
    mark = scene.keyspace.mark()
    scene.send(1, 2)
    scene.group(1, MembershipOp.ADD, (3,), to=group)
    scene.settle()
    before = (shown(scene, 2, CHAT), shown(scene, 3, group))
    scene.archive_to()
    scene.restart_store(mark)
    scene.trim_log(scene.log_start + len(scene.log))
    scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    scene.settle()
    assert not scene.violations
    assert (shown(scene, 2, CHAT), shown(scene, 3, group)) == before


def test_each_step_is_asked_again_until_it_is_done() -> None:
    scene, group = lived()
    before = everything(scene, group)
    scene.archive_to()
    scene.restart_store(-1)
    scene.trim_log(scene.log_start + len(scene.log) - 2)
    scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    scene.wanted.clear()
    scene.hold()
    for kind in (ReadArchivedConversations, RestoreConversations):
        step = scene.until(kind)
        scene.step(Failed(op=step.op, why=FailReason.UNREACHABLE))
        scene.advance(50)
        step = scene.until(kind)
        if kind is RestoreConversations:
            scene.carry_out(step)
        scene.step(Unknown(op=step.op))
        scene.advance(100)
    scene.settle()
    assert everything(scene, group) == before


def test_the_barrier_below_the_logs_start_is_the_registrys() -> None:
    scene, _ = lived()
    scene.archive_to()
    end = scene.log_start + len(scene.log)
    scene.restart_store(-1)
    scene.trim_log(end)
    scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    scene.wanted.clear()
    scene.hold()
    lease = scene.until(ReadLease)
    assert isinstance(lease, ReadLease)
    assert lease.barriers_below == end


def test_retention_that_overtakes_the_walk() -> None:
    """The log's start moves behind our barrier while we fetch: what went is restored, and the walk goes on."""
    scene, group = lived()
    before = everything(scene, group)
    scene.archive_to()
    scene.restart_store(-1)
    scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    scene.wanted.clear()
    scene.hold()
    fetch = scene.until(Fetch)
    scene.trim_log(scene.log_start + len(scene.log) - 3)
    answer = scene.carry_out(fetch)
    assert isinstance(answer, OutOfRange)
    scene.step(answer)
    scene.settle()
    assert not scene.violations
    assert everything(scene, group) == before
    barriers = [r for r in scene.log if r.value == barrier_value(scene.epoch)]
    assert len(barriers) == 1, "one barrier an epoch"


@pytest.mark.parametrize("config", [TIERED, WriterConfig(outbox_partition_count=1)])
def test_an_idle_shard_outlives_retention(config: WriterConfig) -> None:
    """Its last barrier went with everything before it; ``applied`` stands at that barrier, and nothing is lost."""
    scene = Scene(config)
    scene.send(1, 2)
    scene.settle()
    scene.lose()
    scene.hold()
    scene.settle()
    scene.trim_log(scene.log_start + len(scene.log))
    scene.lose()
    scene.hold()
    scene.settle()
    assert not scene.violations
    rid = scene.send(1, 2)
    scene.settle()
    assert scene.sent(rid).conversation_seq == 2
    assert shown(scene, 2, CHAT) == ([1, 2], ())


def test_one_lost_record_is_no_barrier() -> None:
    scene = Scene(WriterConfig(outbox_partition_count=1))
    mark = scene.keyspace.mark()
    scene.send(1, 2)
    scene.settle()
    scene.restart_store(mark)
    scene.trim_log(scene.log_start + len(scene.log))
    scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    scene.settle()
    assert [v.check for v in scene.violations] == ["outbox_range_lost"]


def test_an_archive_with_nothing_in_it_but_barriers() -> None:
    scene = Scene(TIERED, started=False)
    for epoch in (1, 2, 3):
        scene.put(LogRecord(key=b"", value=barrier_value(epoch)))
    scene.barriers += [(1, 0), (2, 1), (3, 2)]
    scene.epoch = 3
    scene.archive.position = 3
    scene.trim_log(2)
    scene.hold()
    scene.settle()
    assert scene.counts["shard_serving"] == 1
    rid = scene.send(1, 2)
    scene.settle()
    assert scene.sent(rid).conversation_seq == 1
    assert [r.kind for r in scene.effective()] == [MessageKind.TEXT]
