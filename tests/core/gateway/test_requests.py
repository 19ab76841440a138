"""Questions and answers: owners, time-outs, doubles, bounds, admission, batches held for room."""

from typing import Any

import pytest

from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import LeaveGroup, Members, Ping, PullHistory, encode_frame
from qim.core.contract.rpc import AskPull, Refused, SubmitSend
from qim.core.ports.completion import Failed, FailReason, Unknown
from qim.core.ports.local import Started
from qim.core.ports.network import Received, Send
from qim.core.ports.observe import Measured
from qim.core.ports.registry import ReadLease
from qim.core.ports.sockets import Backlog, PauseReading, ResumeReading, Write
from tests.core.gateway.gate import WALL, Gate, key, lease_read, pull, send
from tests.core.gateway.services import GROUP, asked, online, pulled, sent

# ---------------------------------------------------------------- owners


def test_one_lookup_serves_all_that_wait_and_is_remembered() -> None:
    gate = online()
    for number in (1, 2, 3):
        gate.say(5, send(number))
    (read,) = gate.take(ReadLease)
    gate.step(lease_read(read.op, read.resource, "w"))
    assert [s.message.client_message_id for s in gate.take(Send)] == [key(1), key(2), key(3)]
    gate.say(5, send(4))
    assert not gate.take(ReadLease)
    gate.now += 30_000
    gate.say(5, send(5))
    assert gate.take(ReadLease)


@pytest.mark.parametrize("how", ["nobody", "failed", "unknown"])
def test_no_owner_is_unavailable_and_never_remembered(how: str) -> None:
    gate = online()
    gate.say(5, send(), request=8)
    (read,) = gate.take(ReadLease)
    completion: Any = {
        "nobody": lease_read(read.op, read.resource, ""),
        "failed": Failed(op=read.op, why=FailReason.UNREACHABLE),
        "unknown": Unknown(op=read.op),
    }[how]
    gate.step(completion)
    ((error, request),) = gate.frames_with_requests(5)
    assert (error.code, request) == (ErrorCode.UNAVAILABLE, 8)
    assert error.retry_after_ms > 0
    assert error.client_message_id == key(1)
    gate.say(5, send())
    assert gate.take(ReadLease)


@pytest.mark.parametrize("hint", ["", "writer-2", "old"])
def test_a_wrong_owner_is_asked_again_elsewhere_once(hint: str) -> None:
    gate = online()
    gate.say(5, send(), request=8)
    (read,) = gate.take(ReadLease)
    gate.step(lease_read(read.op, read.resource, "old"))
    (order,) = gate.take(Send)
    no = Refused(
        rid=order.message.rid,
        code=ErrorCode.NOT_OWNER,
        message="moved",
        owner_address=hint,
    )
    gate.tell(no, no)
    for again in gate.take(ReadLease):
        gate.step(lease_read(again.op, again.resource, "writer-2"))
    (second,) = gate.take(Send)
    assert second.address == "writer-2"
    assert second.message.rid != order.message.rid, "a doubled NOT_OWNER must not hit it"
    assert gate.frames(5) == []
    gate.tell(Refused(rid=second.message.rid, code=ErrorCode.NOT_OWNER, message="moved"))
    ((error, request),) = gate.frames_with_requests(5)
    assert (error.code, request) == (ErrorCode.UNAVAILABLE, 8)
    assert error.retry_after_ms > 0


def test_the_cache_of_owners_is_bounded() -> None:
    gate = online(owners_max=2)
    for peer in range(2, 40):
        gate.say(5, send(peer, peer_user_id=peer))
        gate.owners()
        gate.take(Send)
    gate.node.check()


def test_waiters_for_owners_are_bounded() -> None:
    gate = online(owner_waiters_max=2)
    for number in (1, 2, 3):
        gate.say(5, send(number), request=number)
    assert gate.refusal(5) == (ErrorCode.UNAVAILABLE, 3)


def test_a_request_that_timed_out_while_it_waited_is_not_sent() -> None:
    gate = online()
    gate.say(5, send(), request=8)
    (read,) = gate.take(ReadLease)
    gate.now += 5_000
    gate.step()
    assert gate.refusal(5) == (ErrorCode.UNAVAILABLE, 8), "surely not done"
    gate.step(lease_read(read.op, read.resource, "w"))
    assert not gate.take(Send)


# ---------------------------------------------------------------- ends of waits


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (send(), ErrorCode.TIMEOUT_UNKNOWN),
        (LeaveGroup(client_message_id=key(7), not_after=1, conversation_id=GROUP), ErrorCode.TIMEOUT_UNKNOWN),
        (pull(), ErrorCode.UNAVAILABLE),
        (Members(conversation_id=GROUP), ErrorCode.UNAVAILABLE),
        (PullHistory(conversation_id=GROUP, anchor=0, direction=0), ErrorCode.UNAVAILABLE),
    ],
)  # fmt: skip
def test_every_wait_ends(frame: Any, code: ErrorCode) -> None:
    gate = online()
    gate.say(5, frame, request=8)
    gate.owners()
    (order,) = gate.take(Send)
    assert gate.node.deadline() == gate.now + 5_000
    gate.now += 5_000
    gate.step()
    assert gate.refusal(5) == (code, 8)
    gate.say(5, frame, request=9)
    assert gate.take(ReadLease), "who didn't answer is looked up anew"
    late = Refused(rid=order.message.rid, code=ErrorCode.FORBIDDEN, message="late")
    gate.tell(late)
    assert gate.frames(5) == []
    assert gate.counts["gateway_answers_ignored"] == 1


def test_doubled_late_and_misfit_answers_reach_nobody() -> None:
    gate = online()
    gate.say(5, send(), request=8)
    ask = asked(gate, SubmitSend)
    gate.tell(pulled(ask))  # an answer to another kind of question under the same rid
    assert gate.frames(5) == []
    gate.tell(sent(ask), sent(ask))
    assert len(gate.frames(5)) == 1
    gate.tell(sent(ask, rid=12345))
    assert gate.frames(5) == []
    gate.tell(ask)  # a question is no answer
    assert gate.counts["gateway_messages_ignored.SubmitSend"] == 1


def test_rids_of_a_new_instance_meet_no_answer_of_the_old() -> None:
    old, new = online(), Gate()
    old.say(5, send())
    old_ask = asked(old, SubmitSend)
    new.now += 60_000
    new.step(Started(address="gw-1", wall=WALL + new.now))
    new.online(5)
    new.say(5, send())
    assert asked(new, SubmitSend).rid > old_ask.rid


def test_refusals_pass_with_their_words() -> None:
    gate = online()
    gate.say(5, send(), request=8)
    ask = asked(gate, SubmitSend)
    gate.tell(Refused(rid=ask.rid, code=ErrorCode.NOT_MEMBER, message="x" * 5_000))
    ((error, request),) = gate.frames_with_requests(5)
    assert (error.code, request, error.client_message_id) == (ErrorCode.NOT_MEMBER, 8, key(1))
    assert len(error.message) == 512
    gate.say(5, send(2), request=9)
    gate.tell(Refused(rid=asked(gate, SubmitSend).rid, code=999, message="newer"))
    assert gate.refusal(5) == (ErrorCode.INTERNAL, 9)


def test_answers_for_a_connection_that_is_gone_are_dropped() -> None:
    gate = online()
    gate.say(5, send())
    ask = asked(gate, SubmitSend)
    gate.say(5, pull())
    late_pull = asked(gate, AskPull)
    gate.hang_up(5)
    gate.tell(sent(ask))
    gate.tell(Refused(rid=late_pull.rid, code=ErrorCode.UNAVAILABLE, message="no"))
    assert gate.frames(5) == []


# ---------------------------------------------------------------- bounds


def test_admission_comes_before_any_work_and_says_when() -> None:
    """BR-090."""
    gate = online(admission_per_second=10, admission_burst=5)
    gate.now += 10_000
    gate.say_bytes(5, b"".join(encode_frame(send(n), request=n) for n in range(1, 9)))
    refused = gate.frames_with_requests(5)
    assert [request for _, request in refused] == [6, 7, 8]
    assert {frame.code for frame, _ in refused} == {ErrorCode.RATE_LIMITED}
    assert refused[0][0].retry_after_ms == 100
    gate.now += refused[0][0].retry_after_ms
    gate.say(5, Ping(client_time=1))
    assert not gate.frames(5), "its PONG waits for the watermark, but it was let in"
    assert gate.counts["gateway_refused.RATE_LIMITED"] == 3


def test_a_connection_with_much_in_flight_is_not_read_until_half_is_done() -> None:
    gate = online(connection_pause_at=4, connection_requests_max=6)
    for number in range(1, 9):
        gate.say(5, send(number), request=number)
    assert [e.conn for e in gate.take(PauseReading)] == [5]
    refused = gate.frames_with_requests(5)
    assert [request for _, request in refused] == [7, 8]
    assert {frame.code for frame, _ in refused} == {ErrorCode.RATE_LIMITED}
    gate.owners()
    asks = gate.asked(SubmitSend)
    for ask in asks[:3]:
        gate.tell(sent(ask))
    assert not gate.take(ResumeReading)
    gate.tell(sent(asks[3]))
    assert [e.conn for e in gate.take(ResumeReading)] == [5]


def test_requests_of_all_connections_are_bounded() -> None:
    gate = online(requests_max=2)
    for number in (1, 2, 3):
        gate.say(5, send(number), request=number)
    assert gate.refusal(5) == (ErrorCode.UNAVAILABLE, 3)


def test_four_pulls_at_once_and_no_more() -> None:
    gate = online()
    for number in range(1, 6):
        gate.say(5, pull(), request=number)
    assert gate.refusal(5) == (ErrorCode.RATE_LIMITED, 5)
    gate.owners()
    assert len(gate.asked(AskPull)) == 4


def test_a_pull_is_asked_only_when_there_is_room_for_its_answer() -> None:
    gate = online()
    gate.step(Backlog(conn=5, bytes_queued=10_000))
    for number in range(1, 5):
        gate.say(5, pull(), request=number)
    gate.owners()
    for ask in gate.asked(AskPull):
        gate.tell(pulled(ask))
    gate.say(5, pull(), request=9)
    assert not gate.asked(AskPull), "four batches wait for the reader"
    gate.step(Backlog(conn=5, bytes_queued=0))
    assert len(gate.asked(AskPull)) == 1
    assert gate.closed == []


def test_a_refused_pull_makes_room_for_the_held_one() -> None:
    gate = online()
    gate.step(Backlog(conn=5, bytes_queued=10_000))
    for number in range(1, 4):
        gate.say(5, pull(), request=number)
    gate.owners()
    for ask in gate.asked(AskPull):
        gate.tell(pulled(ask))
    gate.say(5, pull(), request=7)
    gate.say(5, pull(), request=8)
    (ask,) = gate.asked(AskPull)
    gate.frames(5)
    gate.tell(Refused(rid=ask.rid, code=ErrorCode.CURSOR_EXPIRED, message="no"))
    assert gate.refusal(5) == (ErrorCode.CURSOR_EXPIRED, 7)
    assert len(gate.asked(AskPull)) == 1


def test_all_frames_of_a_step_travel_in_one_write() -> None:
    gate = online()
    gate.say_bytes(5, b"".join(encode_frame(send(n), request=n) for n in range(1, 7)))
    gate.owners()
    asks = gate.asked(SubmitSend)
    effects = gate.step(*(Received(source="w", wall=1, message=sent(ask)) for ask in asks))
    (write,) = [e for e in effects if isinstance(e, Write)]
    assert len(gate.frames(5)) == 6
    assert len(write.traces) == 4, "a batch draws once: a few identities suffice"


def test_gauges_show_what_waits_and_an_answer_how_long_it_took() -> None:
    gate = online()
    gate.say(5, send())
    ask = asked(gate, SubmitSend)

    def gauges() -> dict[tuple[str, str], int]:
        return {(one.name, one.label): one.value for one in gate.node.gauges(gate.now)}

    assert gauges()["queue_depth", "gateway.requests"] == 1
    assert gauges()["queue_depth", "gateway.connections"] == 1
    gate.now += 40
    effects = gate.step(Received(source="w", wall=1, message=sent(ask)))
    assert gauges()["queue_depth", "gateway.requests"] == 0
    (took,) = [e for e in effects if isinstance(e, Measured)]
    assert (took.name, took.label, took.ms) == ("gateway_request", "SEND", 40)
