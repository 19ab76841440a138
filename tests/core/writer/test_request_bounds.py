"""How much a writer takes at a time, and from whom: bounds and admission (pipeline.md §1.1)."""

from qim.core.contract.errors import ErrorCode
from qim.core.contract.rpc import AskHistory, Refused
from qim.core.ports.completion import Unknown
from qim.core.ports.log import Append
from qim.core.ports.store_message import MarkCommitted, ReserveAndRecord
from qim.core.writer import WriterConfig
from tests.core.writer.scene import Scene, actor

ONE = {"outbox_partition_count": 1}


def ask_nobody(number: int) -> AskHistory:
    """A question about a conversation that doesn't exist."""
    return AskHistory(
        rid=10_000 + number,
        actor=actor(1),
        conversation_id=b"\x01" * 16,
        anchor=0,
        direction=0,
        limit=0,
    )


# ---------------------------------------------------------------- bounds


def test_the_queue_is_bounded_by_count_and_by_bytes() -> None:
    scene = Scene(WriterConfig(**ONE, commits_max=2))
    rids = [scene.send(1, 2) for _ in range(3)]
    refused = scene.said(rids[2])
    assert isinstance(refused, Refused)
    assert refused.code == ErrorCode.UNAVAILABLE
    assert refused.retry_after_ms > 0
    scene.settle()
    assert scene.sent(rids[0]).conversation_seq == 1
    assert scene.sent(rids[1]).conversation_seq == 2
    small = Scene(WriterConfig(**ONE, commit_bytes_max=1000))
    small.send(1, 2, body=b"x" * 800)
    assert small.refused(small.send(1, 2)) is ErrorCode.UNAVAILABLE


def test_waiting_requests_are_bounded_and_answered_ones_make_room() -> None:
    scene = Scene(WriterConfig(**ONE, waiting_requests_max=2))
    scene.send(1, 2)
    scene.settle()
    stuck = scene.send(3, 4)
    scene.until(Append)
    scene.now += 1
    assert scene.said(scene.send(5, 6)) is None
    scene.now += 1
    assert scene.refused(scene.send(7, 8)) is ErrorCode.UNAVAILABLE
    assert scene.refused(scene.send(7, 8)) is ErrorCode.UNAVAILABLE
    assert scene.said(stuck) is None


def test_who_was_answered_behind_one_who_waits_makes_room_too() -> None:
    scene = Scene(WriterConfig(**ONE, waiting_requests_max=3))
    scene.send(1, 2, number=7)
    scene.settle()
    stuck = scene.send(3, 4)
    scene.until(Append)
    repeated = scene.send(1, 2, number=7)
    scene.answer()
    assert scene.sent(repeated).conversation_seq == 1
    scene.now += 1
    assert scene.said(scene.send(5, 6)) is None
    scene.now += 1
    assert scene.said(scene.send(7, 8)) is None
    scene.now += 1
    assert scene.refused(scene.send(9, 10)) is ErrorCode.UNAVAILABLE
    assert scene.said(stuck) is None


def test_marks_are_bounded_by_items() -> None:
    scene = Scene(WriterConfig(**ONE, mark_items_max=2))
    rids = [scene.send(1, 2) for _ in range(6)]
    marked: list[int] = []
    while scene.inflight:
        question = scene.inflight[0]
        if isinstance(question, MarkCommitted):
            marked.append(len(question.items))
        scene.answer()
    assert (sum(marked), max(marked)) == (6, 2)
    assert [scene.sent(rid).conversation_seq for rid in rids] == [1, 2, 3, 4, 5, 6]


def test_intents_do_not_pile_up_behind_a_log_that_stands() -> None:
    scene = Scene(WriterConfig(**ONE, unappended_max=1))
    scene.send(1, 2)
    append = scene.until(Append)
    scene.send(1, 2)
    scene.answer()
    scene.send(1, 2)
    assert not scene.inflight
    scene.step(scene.carry_out(append))
    scene.settle()
    assert len(scene.effective()) == 3


def test_batches_are_bounded_by_items_and_bytes() -> None:
    scene = Scene(WriterConfig(**ONE, reserve_items_max=2, append_records_max=1, mark_items_max=1))
    rids = [scene.send(1, 2) for _ in range(6)]
    scene.settle()
    assert [scene.sent(rid).conversation_seq for rid in rids] == [1, 2, 3, 4, 5, 6]
    big = Scene(WriterConfig(**ONE, reserve_bytes_max=1000, append_bytes_max=1000))
    rids = [big.send(1, 2, body=b"x" * 600) for _ in range(4)]
    while big.inflight:
        question = big.inflight[0]
        if isinstance(question, ReserveAndRecord):
            assert len(question.items) == 1
        if isinstance(question, Append):
            assert len(question.records) == 1
        big.answer()
    assert [big.sent(rid).conversation_seq for rid in rids] == [1, 2, 3, 4]


def test_appends_are_bounded_by_bytes() -> None:
    scene = Scene(WriterConfig(**ONE, append_bytes_max=2000))
    rids = [scene.send(1, 2, body=b"x" * 600) for _ in range(6)]
    sizes = []
    while scene.inflight:
        if isinstance(scene.inflight[0], Append):
            sizes.append(len(scene.inflight[0].records))
        scene.answer()
    assert max(sizes) == 2
    assert [scene.sent(rid).conversation_seq for rid in rids] == [1, 2, 3, 4, 5, 6]


def test_answered_waiters_do_not_pile_up() -> None:
    scene = Scene()
    stuck = scene.send(1, 1)  # the front of the line stays, those behind it are answered
    reserve = scene.until(ReserveAndRecord)
    scene.step(Unknown(op=reserve.op))
    for number in range(2000):
        scene.receive(ask_nobody(number))
        scene.settle()
    assert scene.said(stuck) is None
    assert scene.writer.deadline() is not None


# ---------------------------------------------------------------- admission


def test_a_device_has_its_rate_and_forgotten_keys_start_full() -> None:
    scene = Scene(
        WriterConfig(**ONE, device_rate_per_s=1, device_burst_max=1, admission_keys_max=1)
    )
    scene.send(1, 2)
    assert scene.refused(scene.send(1, 3)) is ErrorCode.RATE_LIMITED
    assert scene.said(scene.send(2, 3)) is None
    assert scene.said(scene.send(1, 4)) is None  # its bucket made room for the other device's


def test_a_conversation_and_a_tenant_have_their_rates() -> None:
    scene = Scene(WriterConfig(**ONE, conversation_rate_per_s=10, conversation_burst_max=2))
    rids = [scene.send(1, 2) for _ in range(3)]
    refused = scene.said(rids[2])
    assert isinstance(refused, Refused)
    assert (refused.code, refused.retry_after_ms) == (ErrorCode.RATE_LIMITED, 100)
    other = scene.send(1, 3)
    assert scene.said(other) is None
    scene.advance(100)
    assert scene.said(scene.send(1, 2)) is None
    tenant = Scene(WriterConfig(**ONE, tenant_rate_per_s=1, tenant_burst_max=1))
    tenant.send(1, 2)
    assert tenant.refused(tenant.send(3, 4)) is ErrorCode.RATE_LIMITED
    assert tenant.said(tenant.send(3, 4, actor=actor(3, "other"))) is None


def test_a_refused_rate_costs_no_seq() -> None:
    scene = Scene(WriterConfig(**ONE, conversation_rate_per_s=1, conversation_burst_max=1))
    scene.send(1, 2)
    scene.send(1, 2)
    scene.settle()
    scene.advance(1000)
    rid = scene.send(1, 2)
    scene.settle()
    assert scene.sent(rid).conversation_seq == 2
