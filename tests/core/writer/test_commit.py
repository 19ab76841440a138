"""The commit path in calm weather: one ack a message, after its mark, in the order of conversation_seq."""

from qim.core.contract.entities import CommitState
from qim.core.ports.log import Append
from qim.core.ports.store_message import MarkCommitted, ReserveAndRecord
from tests.core.writer.scene import Scene, chat


def test_a_message_is_acknowledged_only_after_its_mark() -> None:
    scene = Scene()
    rid = scene.send(1, 2, number=7)
    scene.answer()  # reserve
    assert scene.pending(Append)
    assert scene.said(rid) is None
    scene.answer()  # append
    assert scene.pending(MarkCommitted)
    assert scene.said(rid) is None
    scene.answer()
    done = scene.sent(rid)
    assert (done.conversation_id, done.conversation_seq) == (chat(1, 2), 1)
    assert scene.commit_state(1, 7) is CommitState.COMMITTED
    assert [stage for _, stage in scene.stages] == ["RECORDED", "OUTBOXED", "COMMITTED"]
    scene.settle()
    assert scene.writer.idle()


def test_a_step_makes_one_batch_and_the_next_gathers_meanwhile() -> None:
    scene = Scene()
    first = scene.send(1, 2)
    others = [scene.send(1, 2) for _ in range(5)]
    reserves = scene.pending(ReserveAndRecord)
    assert len(reserves) == 1
    scene.answer()
    scene.settle()
    acks = [scene.sent(rid) for rid in (first, *others)]
    assert [ack.conversation_seq for ack in acks] == [1, 2, 3, 4, 5, 6]
    assert [r.conversation_seq for r in scene.effective()] == [1, 2, 3, 4, 5, 6]
    assert scene.counts["messages"] == 6
