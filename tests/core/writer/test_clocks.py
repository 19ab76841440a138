"""A writer's clock and the ids that come of it (contract.md, message_id)."""

from qim.core.contract.errors import ErrorCode
from qim.core.contract.rpc import Refused
from qim.core.ports.completion import StoreReset, StoreRole
from qim.core.ports.local import LeaseGone, LeaseHeld
from qim.core.ports.log import Append
from qim.core.ports.registry import Resource, Role
from tests.core.writer.scene import WALL, Scene, cmid

HOUR_MS = 3_600_000


def test_a_clock_far_ahead_of_the_logs_refuses_and_recovers() -> None:
    scene = Scene()
    scene.wall_offset += 6 * 60_000
    ahead = scene.send(1, 2)
    scene.settle()
    assert scene.sent(ahead)  # the append that told us
    assert scene.counts["clock_refused"] == 1
    refused = scene.send(1, 2)
    scene.settle()
    assert scene.refused(refused) is ErrorCode.UNAVAILABLE
    again = scene.send(1, 2, number=ahead)
    scene.settle()
    assert scene.sent(again).message_id == scene.sent(ahead).message_id
    scene.wall_offset = WALL
    scene.advance(scene.config.clock_probe_ms)
    scene.settle()
    assert scene.counts["shard_refresh.clock_probe"] == 1
    rid = scene.send(1, 2)
    scene.settle()
    assert scene.sent(rid).message_id > scene.sent(ahead).message_id


def test_a_slow_answer_is_no_fast_clock() -> None:
    scene = Scene()
    rid = scene.send(1, 2)
    append = scene.until(Append)
    answer = scene.carry_out(append)
    scene.now += 60 * 60_000  # the process was paused
    scene.step(answer)
    assert "clock_refused" not in scene.counts
    assert scene.said(rid) is None or isinstance(scene.said(rid), Refused)


def test_another_instance_lease_gives_other_ids_that_still_rise() -> None:
    scene = Scene()
    first = scene.send(1, 2)
    scene.settle()
    instance = Resource(role=Role.INSTANCE, number=0x1234)
    scene.step(
        LeaseHeld(resource=instance, epoch=0x50007, barrier_epoch=0, barrier_offset=-1, wall=WALL)
    )
    other = Resource(role=Role.MAILBOX, number=0)
    scene.step(LeaseHeld(resource=other, epoch=3, barrier_epoch=0, barrier_offset=-1, wall=WALL))
    scene.step(LeaseGone(resource=instance))
    second = scene.send(1, 2)
    scene.settle()
    earlier, later = scene.sent(first).message_id, scene.sent(second).message_id
    assert later > earlier
    assert later[8:12] == bytes.fromhex("12340007")


def test_ids_rise_though_the_wall_clock_steps_back() -> None:
    scene = Scene()
    rids = []
    for step_ms in (0, -5_000, -86_400_000, 1_000, 0):
        scene.wall_offset = WALL + step_ms
        rids.append(scene.send(1, 2))
        scene.settle()
    ids = [scene.sent(rid).message_id for rid in rids]
    assert ids == sorted(set(ids))


def test_trace_is_the_head_of_the_dedupe_key() -> None:
    scene = Scene()
    scene.send(1, 2, number=5)
    scene.settle()
    record = scene.effective()[0]
    assert record.client_message_id == cmid(5)
    assert {trace for trace, _ in scene.stages} == {record.trace_id}
    assert scene.traces == [(record.trace_id,)]


def test_an_open_under_a_fast_clock_restores_what_clients_may_repeat() -> None:
    """By its own clock the first send is hours past its window; by the log's its client still tries: a cmid commits once, ever."""
    scene = Scene()
    not_after = scene.wall() + 3_500_000
    scene.send(1, 2, number=7, not_after=not_after)
    scene.settle()
    scene.restart_store(-1)
    scene.wall_offset += 4 * HOUR_MS
    scene.send(5, 6, number=1)
    scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    scene.settle()
    assert scene.counts["clock_refused"] == 1
    scene.wall_offset -= 4 * HOUR_MS
    for pause_ms in (1_000, scene.config.clock_probe_ms, 5_000):
        scene.advance(pause_ms)
        scene.settle()
    again = scene.send(1, 2, number=7, not_after=not_after)
    scene.settle()
    assert scene.sent(again).conversation_seq == 1
    assert [one.conversation_seq for one in scene.effective() if one.sender_id == 1] == [1]
