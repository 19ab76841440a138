"""Who is not spoken to between processes: strangers, other roles and versions, nonsense, too much and too long."""

import asyncio
import contextlib

import msgspec
import pytest

from qim.adapters.rpc import ProcessRole, RpcLimits, RpcNetwork
from qim.adapters.rpc.frames import (
    CONTROL,
    RPC_VERSION,
    Control,
    Hello,
    frame,
    hello_frame,
    read_sorry,
    sorry_frame,
)
from qim.adapters.start_refused import StartRefused
from qim.core.contract.rpc import encode_message
from tests.adapters.rpc.conftest import GATEWAY, WRITER, Play
from tests.adapters.rpc.raw import RawConnection, RawListener
from tests.adapters.rpc.stage import Process, answer, ask
from tests.adapters.tls.chain import internal


def test_a_message_too_long_and_peers_too_many(play: Play) -> None:
    limits = RpcLimits(frame_bytes_max=10_000, peers_max=2)

    async def scenario() -> None:
        async with Process(WRITER, limits=limits) as writer:
            writer.say("127.0.0.1:9", answer(1, 10_000))
            assert writer.told.counts["rpc_messages_dropped", "too_long HistoryAnswer"] == 1
            for port in (10, 11, 12):
                writer.say(f"127.0.0.1:{port}", answer(1))
            assert writer.told.counts["rpc_messages_dropped", "peers HistoryAnswer"] == 1
            for address in ("", "nobody", "host:", ":9", "host:0", "a b:9", "@7", "@x", "::1:9"):
                writer.say(address, answer(1))
            assert writer.told.total("rpc_messages_dropped") == 11
            assert writer.gauge("rpc_peers") == 2

    play(scenario)


@pytest.mark.parametrize(
    ("listen", "advertise", "code"),
    [
        (("0.0.0.0", 7001), "", "internal_plaintext"),
        (("10.0.0.1", 7001), "", "internal_plaintext"),
        (("writer.example.org", 7001), "", "internal_plaintext"),
        (("127.0.0.1", 0), "writer", "internal_address_unknown"),
        (("127.0.0.1", 0), "0.0.0.0:7001", "internal_address_unknown"),
        (None, "", "internal_plaintext"),
    ],
)
def test_a_listener_that_may_not_be(
    listen: tuple[str, int] | None, advertise: str, code: str
) -> None:
    async def scenario() -> None:
        role = ProcessRole.ADMIN if listen is None else WRITER
        network = RpcNetwork(listen, role, lambda _: None, advertise=advertise)
        with pytest.raises(StartRefused) as refused:
            await network.start()
        assert refused.value.code == code and refused.value.command

    asyncio.run(scenario())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0::0"])
def test_a_listener_on_every_interface_says_where_it_is_dialled(host: str) -> None:
    async def scenario() -> None:
        network = RpcNetwork((host, 0), WRITER, lambda _: None, security=internal(WRITER))
        with pytest.raises(StartRefused) as refused:
            await network.start()
        assert refused.value.code == "internal_address_unknown" and refused.value.command

    asyncio.run(scenario())


def test_a_crowd_of_strangers(play: Play) -> None:
    """Beyond the bound they are turned away; who said hello is not of them; a stranger has its time."""
    limits = RpcLimits(strangers_max=3, hello_seconds_max=0.1)

    async def scenario() -> None:
        async with Process(WRITER, limits=limits) as writer:
            known = await RawConnection.dial(writer.address)
            assert await known.greet("gateway", "127.0.0.1:9") is Control.WELCOME
            crowd = [await RawConnection.dial(writer.address) for _ in range(5)]
            await writer.told.until(
                lambda: writer.told.counts.get(("rpc_refused", "too_many")) == 2
            )
            await writer.told.until(
                lambda: writer.told.counts.get(("rpc_refused", "no_hello")) == 3
            )
            await known.send(frame(encode_message(ask(1))))
            await writer.until_heard(1)
            for one in [known, *crowd]:
                one.close()

    play(scenario)


def test_refused_by_role(play: Play) -> None:
    async def scenario() -> None:
        async with Process(WRITER) as writer:
            for role, code in (
                ("fanout", "wrong_role"),
                ("king", "wrong_role"),
                ("admin", "admin_plaintext"),
                ("writer", "wrong_role"),
            ):
                peer = await RawConnection.dial(writer.address)
                assert await peer.greet(role, "127.0.0.1:9") is Control.SORRY
                assert await peer.receive() is None
                peer.close()
                assert f"'code': '{code}'" in writer.told.text().splitlines()[-1]
            assert not writer.heard

    play(scenario)


def other_version(kind: Control) -> bytes:
    words = Hello(version=RPC_VERSION + 1, role="writer", address="127.0.0.1:9")
    return frame(bytes((CONTROL, kind)) + msgspec.msgpack.encode(words))


def test_another_version_is_refused_on_both_sides(play: Play) -> None:
    async def scenario() -> None:
        listener = RawListener()
        async with Process(GATEWAY) as gateway:
            stranger = await RawConnection.dial(gateway.address)
            await stranger.send(other_version(Control.HELLO))
            payload = await stranger.receive()
            assert payload is not None and read_sorry(payload).code == "version"
            gateway.say(listener.address, ask(1))
            peer = await listener.accept()
            await peer.receive()
            await peer.send(other_version(Control.WELCOME))
            await gateway.told.until(lambda: "it speaks version 2" in gateway.told.text())
            for one in (stranger, peer):
                one.close()
        listener.close()

    play(scenario)


@pytest.mark.parametrize("said", [b"\xc1\x09", b"\xc1\x02junk", encode_message(ask(1))])
def test_a_dialled_peer_that_talks_nonsense_is_left(play: Play, said: bytes) -> None:
    async def scenario() -> None:
        listener = RawListener()
        async with Process(GATEWAY) as gateway:
            gateway.say(listener.address, ask(1))
            peer = await listener.accept()
            await peer.welcome("writer", listener.address)
            await peer.send(frame(said))
            words = f"{'control frame' if said[1] == 9 else 'a dialled peer said'} {said[:2].hex()}"
            await gateway.told.until(lambda: words in gateway.told.text())
            peer.close()
        listener.close()

    play(scenario)


def test_thrown_out_again_and_again_it_waits_longer_each_time(play: Play) -> None:
    """WELCOME and then SORRY: not dialled without a pause, and told each time."""
    limits = RpcLimits(backoff_seconds_min=0.01, backoff_seconds_max=5.0)

    async def scenario() -> None:
        listener = RawListener()
        async with Process(GATEWAY, limits=limits) as gateway:
            for turn in range(3):
                gateway.say(listener.address, ask(turn))
                peer = await listener.accept()
                await peer.welcome("writer", listener.address)
                await peer.receive()
                await peer.send(sorry_frame("wrong_role", "go away"))
                await gateway.told.until(
                    lambda turn=turn: gateway.told.text().count("go away") > turn
                )
                peer.close()
            [peer_state] = gateway.network._peers.values()
            assert peer_state._backoff >= 0.01
        listener.close()

    play(scenario)


def test_a_peer_of_another_role_is_not_spoken_to(play: Play) -> None:
    async def scenario() -> None:
        listener = RawListener()
        async with Process(GATEWAY) as gateway:
            gateway.say(listener.address, ask(1))
            peer = await listener.accept()
            await peer.welcome("mailbox", listener.address)
            await gateway.told.until(lambda: "it is a mailbox, not a writer" in gateway.told.text())
            payload = await peer.receive()
            assert payload is None
            peer.close()
        listener.close()

    play(scenario)


def test_hello_twice_is_hostile(play: Play) -> None:
    async def scenario() -> None:
        async with Process(WRITER) as writer:
            peer = await RawConnection.dial(writer.address)
            assert await peer.greet("gateway", "127.0.0.1:9") is Control.WELCOME
            with contextlib.suppress(ConnectionError):
                await peer.send(hello_frame(Control.HELLO, "gateway", "127.0.0.1:9"))
            await writer.told.until(lambda: "a dialler said HELLO" in writer.told.text())
            peer.close()

    play(scenario)
