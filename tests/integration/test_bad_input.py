"""Bad bytes, bad moments, bad tokens and bad cursors over a real socket: a code each, and nobody else hears of it.

Before and after each case two healthy users exchange a message (``Bystanders``).
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from qim.core.contract.cursor import SIGNATURE_BYTES, Cursor, encode_cursor
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import (
    FRAMES,
    Auth,
    AuthOk,
    Error,
    Kicked,
    Members,
    Ping,
    Pong,
    PullHistory,
    PullMailbox,
    SyncComplete,
    encode_frame,
)
from qim.core.contract.wire import FRAME_BYTES_BEFORE_AUTH_MAX, FRAME_BYTES_MAX, HEADER, encode_raw
from tests.integration.raw_client import (
    Bystanders,
    RawClient,
    Target,
    message,
    next_attempt,
    token,
)
from tests.integration.served import CANARY, Served

USER = 71
Case = Callable[[RawClient], Awaitable[None]]


def in_company(served: Served, case: Case, *, online: bool = True) -> None:
    """Run a case on a connection of its own while two others go on."""

    async def main() -> None:
        async with Bystanders.of(served.target) as others:
            await others.go_on()
            if online:
                client = await RawClient.log_in(served.target, USER)
            else:
                client = await RawClient.connect(served.tcp)
            async with client:
                await case(client)
                await others.go_on()

    asyncio.run(main())


async def ends_with(client: RawClient, code: ErrorCode, request: int = 0) -> None:
    """One ERROR that can be read, then the end."""
    told = [
        (heard.request, heard.frame.code)
        for heard in await client.rest()
        if isinstance(heard.frame, Error)
    ]
    assert told == [(request, code)]


async def stays(client: RawClient) -> None:
    """The connection still answers."""
    assert (await client.ask(Ping(client_time=7), Pong)).client_time == 7


# ---------------------------------------------------------------- bytes

MALFORMED = {
    "no MessagePack": b"\xc1\xc1\xc1",
    "empty": b"",
    "no array": msgspec.msgpack.encode({"client_time": 1}),
    "a field missing": msgspec.msgpack.encode([]),
    "another type": msgspec.msgpack.encode(["soon"]),
    "an array that lies about its length": b"\xdd\xff\xff\xff\xff\x01",
    "bytes that lie about their length": b"\x91\xc6\xff\xff\xff\xff",
    "deeply nested": b"\x91" * 3000 + b"\x01",
    "trailing bytes": msgspec.msgpack.encode([1]) + b"\x00",
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_bodies_get_one_error_and_the_end(served: Served, body: bytes) -> None:
    async def case(client: RawClient) -> None:
        client.say_bytes(encode_raw(Ping.OPCODE, body, request=41))
        client.say_bytes(encode_frame(Ping(client_time=1), request=42))
        await ends_with(client, ErrorCode.MALFORMED_FRAME, 41)

    in_company(served, case)


@pytest.mark.parametrize("online", [False, True], ids=["before AUTH", "after AUTH"])
@pytest.mark.parametrize("follows", [False, True], ids=["header alone", "whole frame"])
def test_oversized_frames_are_refused_by_their_header(
    served: Served, online: bool, follows: bool
) -> None:
    """Also where the peer is still writing its megabytes, the ERROR reaches it: no RST overtakes it."""
    limit = FRAME_BYTES_MAX if online else FRAME_BYTES_BEFORE_AUTH_MAX

    async def case(client: RawClient) -> None:
        client.say_bytes(HEADER.pack(limit + 1, Ping.OPCODE, 0, 0, 43))
        if follows:
            client.say_bytes(bytes(limit + 1))
        await ends_with(client, ErrorCode.FRAME_TOO_LARGE, 43)
        assert not client.reset

    in_company(served, case, online=online)


def test_a_length_lie_of_four_gigabytes(served: Served) -> None:
    async def case(client: RawClient) -> None:
        before = served.resident_bytes()
        client.say_bytes(HEADER.pack(2**32 - 1, Ping.OPCODE, 0, 0, 44) + b"x" * 1000)
        await ends_with(client, ErrorCode.FRAME_TOO_LARGE, 44)
        assert served.resident_bytes() - before < 64 << 20

    in_company(served, case)


@pytest.mark.parametrize("cut_at", [1, 15, 16, 17, 40])
def test_truncated_frames_are_never_acted_upon(served: Served, cut_at: int) -> None:
    """A frame whose tail never comes is no frame; its connection goes, its message was never sent."""

    async def case(client: RawClient) -> None:
        whole = encode_frame(message(CANARY, peer_user_id=USER), request=45)
        client.say_bytes(whole[:cut_at])
        await client.flush()
        await client.close()
        async with await RawClient.log_in(served.target, USER, device=b"other") as after:
            assert await after.pull() == []

    in_company(served, case)


def test_a_frame_in_single_bytes_is_a_frame(served: Served) -> None:
    async def case(client: RawClient) -> None:
        for byte in encode_frame(Ping(client_time=9), request=46):
            client.say_bytes(bytes([byte]))
            await client.flush()
        pong = await client.answer(46)
        assert isinstance(pong, Pong)

    in_company(served, case)


@pytest.mark.parametrize("opcode", [0x0000, 0x0003, 0x00FF, 0x8010, 0xFFFF])
def test_unknown_opcodes_are_refused_alone(served: Served, opcode: int) -> None:
    async def case(client: RawClient) -> None:
        client.say_bytes(encode_raw(opcode, b"\x90", request=47))
        error = await client.answer(47)
        assert isinstance(error, Error)
        assert error.code == ErrorCode.UNSUPPORTED
        await stays(client)

    in_company(served, case)


@pytest.mark.parametrize("flags", [0x0001, 0x0002, 0x0010, 0x8000])
def test_unknown_flags_are_refused_alone(served: Served, flags: int) -> None:
    async def case(client: RawClient) -> None:
        error = await client.refused(Ping(client_time=1), flags=flags)
        assert error.code == ErrorCode.UNSUPPORTED
        await stays(client)

    in_company(served, case)


def test_frames_of_the_wrong_direction_are_refused_alone(served: Served) -> None:
    async def case(client: RawClient) -> None:
        wrong = [frame.OPCODE for frame in FRAMES if frame.DIRECTION == "s→c"]
        assert len(wrong) > 10
        for request, opcode in enumerate(wrong, 1000):
            client.say_bytes(encode_raw(opcode, b"\x90", request=request))
            error = await client.answer(request)
            assert isinstance(error, Error)
            assert error.code == ErrorCode.UNSUPPORTED
        await stays(client)

    in_company(served, case)


# ---------------------------------------------------------------- moments


def test_frames_before_auth_are_refused_and_not_acted_upon(served: Served) -> None:
    async def case(client: RawClient) -> None:
        early = [
            Ping(client_time=1),
            SyncComplete(sync_to_seq=0),
            message(CANARY, peer_user_id=USER),
            PullMailbox(cursor=b""),
            PullHistory(conversation_id=b"c" * 16, anchor=0, direction=0),
            Members(conversation_id=b"c" * 16),
        ]
        for frame in early:
            assert (await client.refused(frame)).code == ErrorCode.UNAUTHENTICATED
        await client.authenticate(served.target, USER)
        assert await client.pull() == []

    in_company(served, case, online=False)


def test_a_second_auth_and_a_second_sync_complete_do_not_fit(served: Served) -> None:
    async def case(client: RawClient) -> None:
        again = Auth(
            access_token=token(served.target.secret, USER + 1),
            device_id=b"raw",
            attempt=next_attempt(),
        )
        assert (await client.refused(again)).code == ErrorCode.INVALID_ARGUMENT
        sync = SyncComplete(sync_to_seq=client.auth_ok.sync_to_seq)
        assert (await client.refused(sync)).code == ErrorCode.INVALID_ARGUMENT
        await stays(client)

    in_company(served, case)


def test_frames_after_the_kick_change_nothing(served: Served) -> None:
    """What a replaced device still says is not heard: its message is in no mailbox."""

    async def case(client: RawClient) -> None:
        async with await RawClient.log_in(served.target, USER) as newer:
            for _ in range(50):
                client.say(message(CANARY, peer_user_id=USER))
            heard = await client.rest()
            assert [type(one.frame) for one in heard if not one.request] == [Kicked]
            assert [one for one in heard if one.request] == []
            assert await newer.pull() == []

    in_company(served, case)


# ---------------------------------------------------------------- tokens


def _flipped(text: str, at: int) -> str:
    return text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]


def bad_tokens(target: Target) -> dict[str, tuple[str, ErrorCode]]:
    good = token(target.secret, USER)
    return {
        "empty": ("", ErrorCode.UNAUTHENTICATED),
        "garbage": ("qim1.é\0.x", ErrorCode.UNAUTHENTICATED),
        "mac altered": (_flipped(good, len(good) - 5), ErrorCode.UNAUTHENTICATED),
        "payload altered": (_flipped(good, 8), ErrorCode.UNAUTHENTICATED),
        "another secret": (token(b"s" * 32, USER), ErrorCode.UNAUTHENTICATED),
        "truncated": (good[:-1], ErrorCode.UNAUTHENTICATED),
        "another spelling": (good + "=", ErrorCode.UNAUTHENTICATED),
        "expired": (token(target.secret, USER, expires_at=1_000), ErrorCode.TOKEN_EXPIRED),
        "of another device": (
            token(target.secret, USER, device_id=b"phone"),
            ErrorCode.UNAUTHENTICATED,
        ),
    }


def test_wrong_tokens(served: Served) -> None:
    """Each says why; the connection may try again, three times in all."""

    async def case(_: RawClient) -> None:
        for name, (text, code) in bad_tokens(served.target).items():
            async with await RawClient.connect(served.tcp) as client:
                auth = Auth(access_token=text, device_id=b"raw", attempt=next_attempt())
                assert (await client.refused(auth)).code == code, name
                await client.authenticate(served.target, USER)

    in_company(served, case, online=False)


def test_three_wrong_tokens_are_enough(served: Served) -> None:
    async def case(client: RawClient) -> None:
        for request in (1, 2, 3, 4):
            auth = Auth(access_token="qim1.no.no", device_id=b"raw", attempt=next_attempt())
            client.say(auth, request=request)
        heard = await client.rest()
        assert [(one.request, type(one.frame)) for one in heard] == [
            (request, Error) for request in (1, 2, 3)
        ]

    in_company(served, case, online=False)


# ---------------------------------------------------------------- cursors


def bad_cursors(secret: bytes, good: bytes) -> dict[str, tuple[bytes, ErrorCode]]:
    own = msgspec.msgpack.decode(good[SIGNATURE_BYTES:], type=Cursor)

    def signed(**changes: Any) -> bytes:
        return encode_cursor(msgspec.structs.replace(own, **changes), secret)

    invalid = ErrorCode.CURSOR_INVALID
    later = own.shard_epoch + 1
    return {
        "empty": (b"", invalid),
        "garbage": (os.urandom(60), invalid),
        "longest": (b"\xff" * 512, invalid),
        "tampered": (good[:-1] + bytes([good[-1] ^ 1]), invalid),
        "signature tampered": (bytes([good[0] ^ 1]) + good[1:], invalid),
        "another secret": (encode_cursor(own, b"s" * 32), invalid),
        "another user's": (signed(user_id=USER + 1), invalid),
        "another device's": (signed(device_id=b"phone"), invalid),
        "another tenant's": (signed(tenant_id="other"), invalid),
        "another shard's": (signed(shard=own.shard ^ 1), invalid),
        "another lane's": (signed(lane=own.lane ^ 1), invalid),
        "of a future epoch": (signed(shard_epoch=later, seq=later << 48), invalid),
        "beyond the log": (signed(seq=(own.shard_epoch << 48) + 10**12), invalid),
        "of epoch 0": (signed(shard_epoch=0, seq=5), invalid),
    }


def test_foreign_and_tampered_cursors(served: Served) -> None:
    """At PULL_MAILBOX and at AUTH alike; a good cursor serves on the same connection right after."""

    async def case(client: RawClient) -> None:
        secret = served.target.secret
        for name, (cursor, code) in bad_cursors(secret, client.cursor).items():
            error = await client.refused(PullMailbox(cursor=cursor))
            assert error.code == code, name
            async with await RawClient.connect(served.tcp) as other:
                auth = Auth(
                    access_token=token(secret, USER),
                    device_id=b"raw2",
                    attempt=next_attempt(),
                    cursor=cursor,
                )
                assert (await other.refused(auth)).code == code, name
                # REBUILD: the same connection comes in without a cursor.
                again = msgspec.structs.replace(auth, cursor=None, attempt=next_attempt())
                await other.ask(again, AuthOk)
        assert await client.pull() == []

    in_company(served, case)


def test_the_cursor_of_another_device_of_the_same_user(served: Served) -> None:
    async def case(client: RawClient) -> None:
        async with await RawClient.log_in(served.target, USER, device=b"tablet") as tablet:
            error = await client.refused(PullMailbox(cursor=tablet.cursor))
            assert error.code == ErrorCode.CURSOR_INVALID

    in_company(served, case)
