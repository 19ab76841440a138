"""ONLINE_READY and PONG carry the lane's watermark: one question for many, bounded, never below what is known."""

from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import OnlineReady, Ping, Pong, SyncComplete, encode_frame
from qim.core.contract.params import Parameters
from qim.core.contract.rpc import AskWatermark, Refused, WatermarkAnswer
from qim.core.ports.sockets import BytesReceived
from tests.core.gateway.gate import MAILBOX_SEQ, WALL, Gate


def test_online_ready_carries_the_watermark_asked_after_sync_complete() -> None:
    gate = Gate()
    gate.readying(5)
    gate.watermark(MAILBOX_SEQ + 9)
    ((frame, request),) = gate.frames_with_requests(5)
    assert isinstance(frame, OnlineReady)
    assert (frame.watermark, request) == (MAILBOX_SEQ + 9, 2)


def test_no_watermark_no_ready_but_another_try() -> None:
    gate = Gate()
    gate.readying(5)
    (ask,) = gate.asked(AskWatermark)
    gate.tell(Refused(rid=ask.rid, code=ErrorCode.UNAVAILABLE, message="no"))
    assert gate.refusal(5) == (ErrorCode.UNAVAILABLE, 2)
    gate.say(5, SyncComplete(sync_to_seq=MAILBOX_SEQ), request=3)
    gate.watermark()
    ((frame, request),) = gate.frames_with_requests(5)
    assert isinstance(frame, OnlineReady)
    assert request == 3


def test_pings_of_one_shard_are_one_question() -> None:
    gate = Gate(parameters=Parameters(shard_count=1))
    for conn in range(1, 5):
        gate.online(conn, user=conn)
    pings = [
        BytesReceived(conn=conn, wall=WALL, data=encode_frame(Ping(client_time=conn), request=conn))
        for conn in range(1, 5)
    ]
    gate.step(*pings)
    (ask,) = gate.asked(AskWatermark)
    assert ask.users == (1, 2, 3, 4)
    gate.say(1, Ping(client_time=70), request=70)
    ((pong, request),) = gate.frames_with_requests(1)
    assert (pong.client_time, request) == (70, 70), "a second PING doesn't wait"
    gate.tell(WatermarkAnswer(rid=ask.rid, watermarks=(11, MAILBOX_SEQ + 2, 13, 14)))
    ((pong, request),) = gate.frames_with_requests(2)
    assert isinstance(pong, Pong)
    assert (pong.client_time, pong.watermark, request) == (2, MAILBOX_SEQ + 2, 2)
    assert pong.server_time == WALL + gate.now
    assert gate.frames(1)[0].watermark == MAILBOX_SEQ, "never below what is known"


def test_a_watermark_question_is_bounded_and_goes_on() -> None:
    gate = Gate(parameters=Parameters(shard_count=1), watermark_users_max=2)
    for conn in range(1, 6):
        gate.online(conn, user=conn)
    gate.step(
        *(
            BytesReceived(conn=conn, wall=WALL, data=encode_frame(Ping(client_time=conn)))
            for conn in range(1, 6)
        )
    )
    sizes = []
    for _ in range(3):
        (ask,) = gate.asked(AskWatermark)
        sizes.append(len(ask.users))
        gate.tell(Refused(rid=ask.rid, code=ErrorCode.UNAVAILABLE, message="no"))
    assert sizes == [2, 2, 1]
    assert all(isinstance(gate.frames(conn)[0], Pong) for conn in range(1, 6))


def test_a_misfit_watermark_answer_is_as_good_as_none() -> None:
    gate = Gate()
    gate.online(5)
    gate.say(5, Ping(client_time=1))
    gate.watermark(1, 2, 3)
    assert gate.frames(5)[0].watermark == MAILBOX_SEQ


def test_ping_of_a_closed_connection_is_forgotten() -> None:
    gate = Gate()
    gate.online(5)
    gate.say(5, Ping(client_time=1))
    gate.hang_up(5)
    gate.watermark()
    assert gate.frames(5) == []
