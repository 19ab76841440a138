"""Records that the log names itself as the reason: out of the pending index, told to who sent them, and nothing else spoilt."""

from qim.core.contract.entities import CommitState, MembershipOp
from qim.core.contract.errors import ErrorCode
from qim.core.ports.completion import Failed, FailReason, Unknown
from qim.core.ports.log import Append, AppendRefused
from qim.core.ports.store_message import MarkLost, MarkRefused
from tests.core.writer.scene import Scene


def test_a_refused_record_spoils_nothing_else() -> None:
    scene = Scene()
    rids = [scene.send(1, 2, number=n) for n in (1, 2, 3)]
    scene.answer()
    append = scene.until(Append)
    assert isinstance(append, Append)
    while len(append.records) < 2:
        scene.step(scene.carry_out(append))
        append = scene.until(Append)
        assert isinstance(append, Append)
    scene.step(AppendRefused(op=append.op, index=0, why="size"))
    assert scene.pending(MarkRefused)
    assert not scene.pending(Append)  # its successors wait until it is out of the pending index
    scene.settle()
    outcome = [scene.said(rid) for rid in rids]
    codes = [getattr(said, "code", None) for said in outcome]
    assert codes.count(ErrorCode.INVALID_ARGUMENT) == 1
    assert len(scene.effective()) == 2
    refused = codes.index(ErrorCode.INVALID_ARGUMENT) + 1
    assert scene.commit_state(1, refused) is CommitState.REFUSED
    again = scene.send(1, 2, number=refused)
    scene.settle()
    assert scene.refused(again) is ErrorCode.INVALID_ARGUMENT
    assert scene.counts["record_refused"] == 1


def test_a_refused_mark_of_refusal_lost_with_the_tail_starts_anew() -> None:
    scene = Scene()
    rid = scene.send(1, 2)
    append = scene.until(Append)
    scene.step(AppendRefused(op=append.op, index=0, why="size"))
    refuse = scene.until(MarkRefused)
    scene.step(MarkLost(op=refuse.op, index=0))
    scene.settle()
    assert scene.sent(rid).conversation_seq == 1


def test_a_batch_too_large_is_appended_one_by_one() -> None:
    scene = Scene()
    rids = [scene.send(1, 2, number=n) for n in (1, 2, 3)]
    scene.answer()
    first = scene.until(Append)
    scene.step(scene.carry_out(first))
    append = scene.until(Append)
    assert isinstance(append, Append)
    assert len(append.records) == 2
    scene.step(Failed(op=append.op, why=FailReason.TOO_LARGE))
    single = scene.until(Append)
    assert isinstance(single, Append)
    assert len(single.records) == 1
    scene.step(Failed(op=single.op, why=FailReason.TOO_LARGE))  # a single record: it is named
    scene.settle()
    assert scene.refused(rids[1]) is ErrorCode.INVALID_ARGUMENT
    assert scene.sent(rids[0]).conversation_seq == 1
    assert scene.sent(rids[2]).conversation_seq == 3


def test_a_refused_membership_record_stops_the_shard() -> None:
    scene = Scene()
    rid = scene.group(1, MembershipOp.CREATE, (2,))
    append = scene.until(Append)
    scene.step(AppendRefused(op=append.op, index=0, why="size"))
    assert [v.check for v in scene.violations] == ["membership_refused"]
    assert scene.refused(rid) is ErrorCode.TIMEOUT_UNKNOWN
    assert not scene.pending(MarkRefused)


def test_a_refused_record_found_by_open_is_refused_there() -> None:
    scene = Scene()
    rid = scene.send(1, 2, number=1)
    append = scene.until(Append)
    scene.step(Unknown(op=append.op))
    scene.wanted.clear()
    scene.hold()
    appends = [scene.until(Append)]
    while len(appends[-1].records[0].key) == 0:  # type: ignore[union-attr]
        scene.step(scene.carry_out(appends[-1]))
        appends.append(scene.until(Append))
    scene.step(AppendRefused(op=appends[-1].op, index=0, why="size"))
    scene.settle()
    assert scene.refused(rid) is ErrorCode.INVALID_ARGUMENT
    assert scene.commit_state(1, 1) is CommitState.REFUSED
    assert scene.counts["shard_serving"] == 2
