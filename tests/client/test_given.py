"""What a caller may hand to the SDK and may not: a wrong type is his error by name, a wrong value a refusal with words.

Whatever was given, the client goes on.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from qim.client import (
    Client,
    ClientState,
    ErrorCode,
    LocalStoreForeign,
    SendFailed,
    SendStatus,
)
from tests.client.scripted_server import CONVERSATION, PEER, USER, ScriptedServer

Call = Callable[[Client], Coroutine[Any, Any, object]]
OBJECT: Any = object()
ANY: Any = None


def client(address: str, store: Path, **changes: Any) -> Client:
    fields: dict[str, Any] = {
        "user_id": USER,
        "access_token": "token",
        "addresses": (address,),
        "store_path": store,
    }
    return Client(**(fields | changes))


def beside_a_good_send(tmp_path: Path, call: Callable[[Client], Awaitable[None]]) -> None:
    """``call`` on a client that is online, and can send afterwards as before."""

    async def run() -> None:
        async with (
            ScriptedServer() as server,
            asyncio.timeout(60),
            client(server.address, tmp_path / "device.db") as me,
        ):
            await me.online()
            await call(me)
            assert me.state.state == ClientState.ONLINE
            assert (await me.send("good", to=PEER)).status is SendStatus.ACKED
            assert await me.pending_count() == 0

    asyncio.run(run())


WRONG_TYPES: dict[str, Call] = {
    "body object": lambda me: me.send(OBJECT, to=PEER),
    "body None": lambda me: me.send(ANY, to=PEER),
    "body int": lambda me: me.send(ANY or 5, to=PEER),
    "to str": lambda me: me.send("x", to=ANY or "2"),
    "to float": lambda me: me.send("x", to=ANY or 2.0),
    "to bool": lambda me: me.send("x", to=ANY or True),
    "conversation_id str": lambda me: me.send("x", conversation_id=ANY or "ab" * 16),
    "client_message_id str": lambda me: me.send("x", to=PEER, client_message_id=ANY or "a" * 16),
    "custom_type None": lambda me: me.send("x", to=PEER, custom_type=ANY),
    "kind str": lambda me: me.send("x", to=PEER, kind=ANY or "text"),
    "members int": lambda me: me.create_group(ANY or 2),
    "members str": lambda me: me.create_group(ANY or "23"),
    "members of str": lambda me: me.create_group(ANY or ("2", "3")),
    "group name None": lambda me: me.create_group((PEER,), ANY),
    "group meta str": lambda me: me.create_group((PEER,), "name", ANY or "meta"),
    "group None": lambda me: me.leave(ANY),
    "history of None": lambda me: me.history(ANY),
    "anchor float": lambda me: me.history(CONVERSATION, anchor=ANY or 1.0),
    "members of str id": lambda me: me.members(ANY or "ab" * 16),
    "read_by object": lambda me: me.read_by(CONVERSATION, OBJECT),
    "mark str id": lambda me: me.mark_read(ANY or "ab" * 16, 1),
    "mark float": lambda me: me.mark_read(CONVERSATION, ANY or 1.5),
    "state str id": lambda me: me.set_state(ANY or "ab" * 16, pinned=True),
    "draft object": lambda me: me.set_state(CONVERSATION, draft=OBJECT),
    "mute_until float": lambda me: me.set_state(CONVERSATION, mute_until=ANY or 1.5),
    "recall str": lambda me: me.recall(CONVERSATION, ANY or "1"),
    "token bytes": lambda me: me.renew_token(ANY or b"token"),
}


@pytest.mark.parametrize("call", WRONG_TYPES.values(), ids=WRONG_TYPES.keys())
def test_a_wrong_type_is_the_caller_s_error(tmp_path: Path, call: Call) -> None:
    async def refused(me: Client) -> None:
        with pytest.raises(TypeError, match="must be"):
            await call(me)

    beside_a_good_send(tmp_path, refused)


OUT_OF_BOUNDS: dict[str, tuple[Call, str]] = {
    "to nobody": (lambda me: me.send("x"), "peer_user_id"),
    "to 0": (lambda me: me.send("x", to=0), ">= 1"),
    "to below": (lambda me: me.send("x", to=-1), ">= 1"),
    "to beyond": (lambda me: me.send("x", to=2**64), r"2\*\*64"),
    "short id": (lambda me: me.send("x", conversation_id=b"ab"), "16"),
    "zero key": (lambda me: me.send("x", to=PEER, client_message_id=bytes(16)), "zero"),
    "long body": (lambda me: me.send(b"x" * 131_073, to=PEER), "131072"),
    "no such kind": (lambda me: me.send("x", to=PEER, kind=ANY or 99), "<= 5"),
    "long type": (lambda me: me.send("x", to=PEER, custom_type="x" * 65), "64"),
    "long type in bytes": (lambda me: me.send("x", to=PEER, custom_type="é" * 33), "66 bytes"),
    "surrogate type": (lambda me: me.send("x", to=PEER, custom_type="\ud800"), "surrogates"),
    "member 0": (lambda me: me.create_group((0,)), ">= 1"),
    "long name": (lambda me: me.create_group((PEER,), "x" * 257), "256"),
    "limit": (lambda me: me.history(CONVERSATION, limit=70_000), "65535"),
    "direction": (lambda me: me.history(CONVERSATION, direction=7), "<= 2"),
    "short group": (lambda me: me.members(b"x"), "16"),
    "mark below": (lambda me: me.mark_read(CONVERSATION, -1), ">= 0"),
    "mark beyond": (lambda me: me.mark_read(CONVERSATION, 2**64), r"2\*\*64"),
    "recall below": (lambda me: me.recall(CONVERSATION, -1), ">= 0"),
}


@pytest.mark.parametrize(("call", "words"), OUT_OF_BOUNDS.values(), ids=OUT_OF_BOUNDS.keys())
def test_a_wrong_value_is_refused_with_words(tmp_path: Path, call: Call, words: str) -> None:
    async def refused(me: Client) -> None:
        with pytest.raises(SendFailed, match=words) as told:
            await call(me)
        assert told.value.code == ErrorCode.INVALID_ARGUMENT

    beside_a_good_send(tmp_path, refused)


def test_more_than_a_frame_is_refused_with_words(tmp_path: Path) -> None:
    async def refused(me: Client) -> None:
        with pytest.raises(SendFailed, match="524288") as told:
            await me.send(bytes(600_000), to=PEER)
        assert told.value.code == ErrorCode.FRAME_TOO_LARGE

    beside_a_good_send(tmp_path, refused)


def test_texts_that_are_no_utf8_are_value_errors(tmp_path: Path) -> None:
    async def refused(me: Client) -> None:
        with pytest.raises(ValueError, match="surrogates"):
            await me.send("\ud800", to=PEER)
        with pytest.raises(ValueError, match="surrogates"):
            await me.set_state(CONVERSATION, draft="\ud800")

    beside_a_good_send(tmp_path, refused)


def test_buffers_and_sequences_are_taken_as_they_are(tmp_path: Path) -> None:
    async def taken(me: Client) -> None:
        for body in (bytearray(b"a"), memoryview(b"a")):
            assert (await me.send(ANY or body, to=PEER)).status is SendStatus.ACKED
        for members in ([PEER, 3], {PEER, 3}, (user for user in (PEER, 3))):
            assert (await me.create_group(members)).version == 1

    beside_a_good_send(tmp_path, taken)


WRONG_CLIENTS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "one address as text": ({"addresses": "localhost:7000"}, TypeError, "tuple"),
    "no address": ({"addresses": ()}, ValueError, "a server"),
    "no port": ({"addresses": ("localhost",)}, ValueError, "HOST:PORT"),
    "port beyond": ({"addresses": ("localhost:99999",)}, ValueError, "HOST:PORT"),
    "a URL": ({"addresses": ("ws://localhost:7000",)}, ValueError, "HOST:PORT"),
    "bare IPv6": ({"addresses": ("::1:7000",)}, ValueError, r"\[::1\]:PORT"),
    "user as text": ({"user_id": "1"}, TypeError, "user_id"),
    "user 0": ({"user_id": 0}, ValueError, "user_id"),
    "device as text": ({"device_id": "phone"}, TypeError, "device_id"),
    "long device": ({"device_id": b"x" * 65}, ValueError, "64 bytes"),
    "no device": ({"device_id": b""}, ValueError, "1 to 64"),
    "token None": ({"access_token": None}, TypeError, "access_token"),
    "long token": ({"access_token": "x" * 2_049}, ValueError, "2048"),
    "no tenant": ({"tenant_id": ""}, ValueError, "tenant_id"),
}


@pytest.mark.parametrize(
    ("changes", "error", "words"), WRONG_CLIENTS.values(), ids=WRONG_CLIENTS.keys()
)
def test_a_client_no_server_could_take_is_refused_at_once(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        client("127.0.0.1:7000", tmp_path / "device.db", **changes)
    assert not list(tmp_path.iterdir()), "nothing was opened"


def test_a_file_is_one_user_s(tmp_path: Path) -> None:
    """Pending sends of one would go out in the name of the other, who would be shown the messages."""
    path = tmp_path / "device.db"

    async def run() -> None:
        async with ScriptedServer() as server, asyncio.timeout(60):
            async with client(server.address, path) as me:
                await me.send("mine", to=PEER)
            for changes in ({"user_id": USER + 1}, {"tenant_id": "other"}):
                with pytest.raises(LocalStoreForeign, match=f"the store of user {USER}"):
                    await client(server.address, path, **changes).__aenter__()
            async with client(server.address, path, device_id=b"renamed") as me:
                await me.online()

    asyncio.run(run())
