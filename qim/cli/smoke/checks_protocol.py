"""Bad input: each a clear error with its code, on its own request, and nobody else's trouble."""

import asyncio
import os
import time

import msgspec

from qim.cli.smoke.checks_delivery import message_frame
from qim.cli.smoke.stage import Check, Stage
from qim.cli.smoke.wire import NO_TIME, Wire
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import (
    BODY_BYTES_MAX,
    Auth,
    Error,
    Kicked,
    KickReason,
    MailboxBatch,
    Ping,
    Pong,
    PullMailbox,
    SendAck,
    SendMessage,
    encode_frame,
)
from qim.core.contract.ids import NIL_ID
from qim.core.contract.params import DAY_MS, DEFAULT
from qim.core.contract.wire import FRAME_BYTES_MAX, HEADER, encode_raw

PULLS_AT_ONCE = 40
CLOSE_SLACK_SECONDS = 10.0
UNKNOWN_OPCODE = 0x7777


async def alive(wire: Wire) -> None:
    """The connection still answers."""
    assert (await wire.ask(Ping(client_time=7), Pong)).client_time == 7


async def malformed_bytes_end_their_connection_alone(stage: Stage) -> None:
    alice, bob = stage.people(2)
    bad, good = await alice.wire(), await bob.wire()
    bad.write(encode_raw(SendMessage.OPCODE, b"\xc1 no MessagePack", stream=1, request=9_999))
    assert (await bad.unasked(Error)).code == ErrorCode.MALFORMED_FRAME
    await bad.ended()
    await alive(good)


async def oversized_frames_end_their_connection_alone(stage: Stage) -> None:
    alice, bob = stage.people(2)
    bad, good = await alice.wire(), await bob.wire()
    bad.write(HEADER.pack(FRAME_BYTES_MAX + 1, SendMessage.OPCODE, 0, 1, 9_999))
    assert (await bad.unasked(Error)).code == ErrorCode.FRAME_TOO_LARGE
    await bad.ended()
    early = await stage.wire()
    early.write(HEADER.pack(DEFAULT.frame_bytes_before_auth_max + 1, Auth.OPCODE, 0, 0, 9_999))
    assert (await early.unasked(Error)).code == ErrorCode.FRAME_TOO_LARGE
    await early.ended()
    await alive(good)


async def bad_values_are_refused_and_the_connection_stays(stage: Stage) -> None:
    alice = stage.person()
    wire = await alice.wire()
    me = alice.user_id
    replaced = _replace(message_frame(me, ""), body=b"x" * (BODY_BYTES_MAX + 1))
    assert await wire.refused(replaced) is ErrorCode.INVALID_ARGUMENT, "a body too long"
    zero = _replace(message_frame(me, "x"), client_message_id=NIL_ID)
    assert await wire.refused(zero) is ErrorCode.INVALID_ARGUMENT, "a key of zeros"
    nobody = _replace(message_frame(me, "x"), peer_user_id=0)
    assert await wire.refused(nobody) is ErrorCode.INVALID_ARGUMENT, "a user 0"
    late = message_frame(me, "x", not_after=time.time_ns() // 1_000_000 + DAY_MS)
    assert await wire.refused(late) is ErrorCode.INVALID_ARGUMENT, "a not_after beyond the window"
    await alive(wire)


async def unknown_frames_are_refused_and_the_connection_stays(stage: Stage) -> None:
    alice = stage.person()
    wire = await alice.wire()
    wire.write(encode_raw(UNKNOWN_OPCODE, b"\x90", stream=3, request=9_999))
    assert (await wire.unasked(Error)).code == ErrorCode.UNSUPPORTED
    compressed = encode_frame(Ping(client_time=1), request=9_998, flags=1)
    wire.write(compressed)
    assert (await wire.unasked(Error)).code == ErrorCode.UNSUPPORTED
    await alive(wire)


async def a_key_means_one_request(stage: Stage) -> None:
    alice, bob = stage.people(2)
    wire = await alice.wire()
    frame = message_frame(bob.user_id, "this")
    first = await wire.ask(frame, SendAck)
    other = _replace(frame, body=b"that")
    assert await wire.refused(other) is ErrorCode.IDEMPOTENCY_CONFLICT
    assert await wire.ask(frame, SendAck) == first


async def a_late_send_is_refused(stage: Stage) -> None:
    alice = stage.person()
    wire = await alice.wire()
    past = message_frame(alice.user_id, "late", not_after=time.time_ns() // 1_000_000 - 60_000)
    assert await wire.refused(past) is ErrorCode.SEND_EXPIRED


async def wrong_tokens_are_refused(stage: Stage) -> None:
    alice = stage.person()
    wire = await stage.wire()
    for number, token in enumerate(("", "nonsense")):
        frame = Auth(access_token=token, device_id=b"d", attempt=number + 1)
        assert await wire.refused(frame) is ErrorCode.UNAUTHENTICATED
    if stage.grounds.sign is not None:
        old = stage.grounds.sign(alice.user_id, -1_000)
        frame = Auth(access_token=old, device_id=b"d", attempt=9)
        assert await (await stage.wire()).refused(frame) is ErrorCode.TOKEN_EXPIRED
    last = alice.token[-2]
    forged = alice.token[:-2] + ("A" if last != "A" else "B") + alice.token[-1]
    frame = Auth(access_token=forged, device_id=b"d", attempt=9)
    assert await (await stage.wire()).refused(frame) is ErrorCode.UNAUTHENTICATED


async def nothing_is_done_before_auth(stage: Stage) -> None:
    wire = await stage.wire()
    assert await wire.refused(message_frame(1, "x")) is ErrorCode.UNAUTHENTICATED
    assert await wire.refused(PullMailbox(cursor=b"")) is ErrorCode.UNAUTHENTICATED


async def silent_connections_are_closed(stage: Stage) -> None:
    wire = await stage.wire()
    at_most = DEFAULT.unauthenticated_max_ms / 1000 + CLOSE_SLACK_SECONDS
    await wire.ended(at_most)


async def foreign_cursors_are_refused(stage: Stage) -> None:
    alice = stage.person()
    wire = await stage.wire()
    device = os.urandom(8)
    cursor = await wire.enter(alice.token, device)
    forged = cursor[:-1] + bytes((cursor[-1] ^ 1,))
    for bad in (forged, b"", os.urandom(len(cursor))):
        assert await wire.refused(PullMailbox(cursor=bad)) is ErrorCode.CURSOR_INVALID
    other = await stage.wire()
    foreign = await other.enter(alice.token, os.urandom(8))
    assert await wire.refused(PullMailbox(cursor=foreign)) is ErrorCode.CURSOR_INVALID
    await wire.ask(PullMailbox(cursor=cursor), MailboxBatch)


async def a_newer_connection_replaces_the_device(stage: Stage) -> None:
    alice = stage.person()
    device = os.urandom(8)
    now = time.time_ns() // 1_000_000
    first, second, late = await stage.wire(), await stage.wire(), await stage.wire()
    await first.authenticate(alice.token, device, attempt=now)
    await second.authenticate(alice.token, device, attempt=now + 1)
    assert (await first.unasked(Kicked)).reason == KickReason.REPLACED
    await first.ended()
    frame = Auth(access_token=alice.token, device_id=device, attempt=now)
    late.send(frame)
    assert (await late.unasked(Kicked)).reason == KickReason.REPLACED, "a lower attempt loses"
    await alive(second)


async def pulls_at_once_are_bounded(stage: Stage) -> None:
    alice = stage.person()
    wire = await stage.wire()
    cursor = await wire.enter(alice.token, os.urandom(8))
    pulls = [wire.send(PullMailbox(cursor=cursor)) for _ in range(PULLS_AT_ONCE)]
    answers = [await wire.answer(pull) for pull in pulls]
    served = sum(isinstance(answer, MailboxBatch) for answer in answers)
    codes = {answer.code for answer in answers if isinstance(answer, Error)}
    assert served >= DEFAULT.pulls_inflight_max, "as many as are allowed are served"
    assert codes <= {ErrorCode.RATE_LIMITED, *NO_TIME}, "the others are told to slow down"
    assert len(answers) == PULLS_AT_ONCE, "each is answered"
    await alive(wire)


async def a_slow_frame_is_read_to_its_end(stage: Stage) -> None:
    alice = stage.person()
    wire = await alice.wire()
    frame = message_frame(alice.user_id, "byte by byte")
    for one in encode_frame(frame, request=9_999):
        wire.write(bytes((one,)))
        await asyncio.sleep(0)
    assert (await wire.unasked(SendAck)).client_message_id == frame.client_message_id


def _replace(frame: SendMessage, **changes: object) -> SendMessage:
    return msgspec.structs.replace(frame, **changes)


CHECKS = (
    Check(name="malformed-bytes-end-one", run=malformed_bytes_end_their_connection_alone),
    Check(name="oversized-frames-end-one", run=oversized_frames_end_their_connection_alone),
    Check(name="bad-values-are-refused", run=bad_values_are_refused_and_the_connection_stays),
    Check(
        name="unknown-frames-are-refused", run=unknown_frames_are_refused_and_the_connection_stays
    ),
    Check(name="idempotency-conflict", run=a_key_means_one_request),
    Check(name="late-send-is-refused", run=a_late_send_is_refused),
    Check(name="wrong-tokens-are-refused", run=wrong_tokens_are_refused),
    Check(name="nothing-before-auth", run=nothing_is_done_before_auth),
    Check(name="silent-connections-are-closed", run=silent_connections_are_closed),
    Check(name="foreign-cursors-are-refused", run=foreign_cursors_are_refused),
    Check(name="newer-connection-replaces", run=a_newer_connection_replaces_the_device),
    Check(name="pulls-at-once-are-bounded", run=pulls_at_once_are_bounded),
    Check(name="byte-by-byte", run=a_slow_frame_is_read_to_its_end),
)
