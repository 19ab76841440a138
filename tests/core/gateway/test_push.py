"""PUSH_EVENTS: hints to exactly one session, ONLINE only, never a cursor, cut rather than queued without bound."""

import pytest

from qim.core.contract.frames import Kicked, KickReason, OnlineReady, Ping, PushEvents, SyncComplete
from qim.core.contract.params import DEFAULT
from qim.core.ports.network import Received
from qim.core.ports.observe import StageReached
from qim.core.ports.sockets import Backlog, SocketClosed, Write
from tests.core.gateway.gate import MAILBOX_SEQ, Gate, Kernel, key, pushed, target


def test_each_device_sees_its_own_place_and_only_the_sender_its_key() -> None:
    gate = Gate()
    first, second = gate.online(5, user=1), gate.online(6, user=9)
    gate.effects.clear()
    gate.tell(pushed(target(5, first), target(6, second, user=9, seq=2, own=True)))
    (one,) = gate.frames(5)
    (two,) = gate.frames(6)
    assert isinstance(one, PushEvents)
    (ours,), (theirs,) = one.entries, two.entries
    assert (ours.mailbox_seq, ours.event_id) == (MAILBOX_SEQ + 1, key(505))
    assert (theirs.mailbox_seq, theirs.event_id) == (MAILBOX_SEQ + 2, key(506))
    assert ours.client_message_id is None
    assert theirs.client_message_id == key(99)
    assert ours.body == theirs.body == b"hint"
    (stage,) = gate.take(StageReached)
    assert (stage.trace_id, stage.stage) == (1234, "PUSHED")


@pytest.mark.parametrize(
    "wrong", [{"epoch": 99}, {"user": 2}, {"conn": 6}], ids=["epoch", "user", "conn"]
)
def test_a_push_for_another_session_reaches_nobody(wrong: dict[str, int]) -> None:
    gate = Gate()
    epoch = gate.online(5)
    gate.effects.clear()
    gate.tell(pushed(target(**({"conn": 5, "epoch": epoch} | wrong))))
    assert gate.frames(5) == []
    assert not gate.take(StageReached)
    assert gate.counts["gateway_pushes_dropped.session"] == 1


def test_no_push_before_online_ready_which_then_tells_of_it() -> None:
    gate = Gate()
    epoch = gate.syncing(5)
    gate.tell(pushed(target(5, epoch, seq=4)))
    assert gate.frames(5) == []
    gate.say(5, SyncComplete(sync_to_seq=MAILBOX_SEQ), request=2)
    gate.tell(pushed(target(5, epoch, seq=6)))
    gate.watermark(MAILBOX_SEQ + 5)
    (ready,) = gate.frames(5)
    assert isinstance(ready, OnlineReady)
    assert ready.watermark == MAILBOX_SEQ + 6, "W was read before the dropped push"
    assert gate.counts["gateway_pushes_dropped.state"] == 2
    assert not gate.take(StageReached), "nobody was pushed to, and nobody is told so"
    gate.tell(pushed(target(5, epoch, seq=7)))
    assert [type(frame) for frame in gate.frames(5)] == [PushEvents]


def test_pushes_of_a_step_are_one_frame() -> None:
    gate = Gate()
    epoch = gate.online(5)
    batches = [pushed(target(5, epoch, seq=n), number=n) for n in range(1, 21)]
    effects = gate.step(*(Received(source="m", wall=1, message=b) for b in batches))
    assert len([e for e in effects if isinstance(e, Write)]) == 1
    (frame,) = gate.frames(5)
    assert [e.mailbox_seq for e in frame.entries] == [MAILBOX_SEQ + n for n in range(1, 21)]


def test_big_pushes_are_split_into_frames_of_a_batch_at_most() -> None:
    gate = Gate()
    epoch = gate.online(5)
    body = bytes(100 * 1024)
    batches = [pushed(target(5, epoch, seq=n), number=n, body=body) for n in range(1, 6)]
    gate.step(*(Received(source="m", wall=1, message=b) for b in batches))
    assert [len(frame.entries) for frame in gate.frames(5)] == [2, 2, 1]


def test_a_hot_group_cuts_who_does_not_read_and_nobody_else() -> None:
    """BR-088: bounded, closed with a code, the others unaffected."""
    gate = Gate()
    slow, quick = gate.online(5, user=1), gate.online(6, user=2)
    kernel = Kernel(gate, 5, room=0)
    body = bytes(16 * 1024)
    most = 4 * DEFAULT.batch_bytes_max + DEFAULT.outbound_bytes_max
    number = 0
    while not gate.closed:
        number += 1
        assert number < 2_000, "never cut: it would take all memory"
        both = (target(5, slow, seq=number), target(6, quick, user=2, seq=number))
        batch = pushed(*both, number=number, body=body)
        effects = gate.step(Received(source="m", wall=1, message=batch))
        kernel.after([e for e in effects if isinstance(e, Write) and e.conn == 5])
    assert most <= kernel.queued <= most + 3 * (len(body) + 256)
    frames = gate.frames(5)
    assert isinstance(frames[-1], Kicked)
    assert frames[-1].reason == KickReason.SLOW_CONSUMER
    assert number - 1 <= len(gate.frames(6)) <= number
    assert gate.closed == [5]


def test_cut_in_the_middle_of_its_own_pushes() -> None:
    gate = Gate()
    epoch = gate.online(5)
    gate.step(Backlog(conn=5, bytes_queued=1))
    body = bytes(128 * 1024)
    batches = [pushed(target(5, epoch, seq=n), number=n, body=body) for n in range(1, 30)]
    gate.step(*(Received(source="m", wall=1, message=b) for b in batches))
    frames = gate.frames(5)
    assert [type(f) for f in frames[:-1]] == [PushEvents] * (len(frames) - 1)
    assert isinstance(frames[-1], Kicked)
    assert gate.closed == [5]


def test_hints_of_a_connection_that_ends_in_the_same_step_go_with_it() -> None:
    gate = Gate()
    epoch = gate.online(5)
    gate.step(Received(source="m", wall=1, message=pushed(target(5, epoch))), SocketClosed(conn=5))
    assert gate.frames(5) == []
    gate.say(5, Ping(client_time=1))
