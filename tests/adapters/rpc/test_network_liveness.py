"""Peers that stop, fall silent or lag, and ends that wait for nobody: who is found gone, and when a wire is let go."""

import asyncio
import contextlib
from typing import Any

import pytest

from qim.adapters.rpc import RpcLimits, incoming
from qim.adapters.rpc.frames import (
    Control,
    clock_frame,
    control_kind,
)
from tests.adapters.rpc.conftest import GATEWAY, WRITER, Play, rids
from tests.adapters.rpc.raw import RawConnection, RawListener
from tests.adapters.rpc.stage import Process, answer, ask


def test_a_stopped_peer_is_found(play: Play) -> None:
    """It took the connection and answers nothing: WELCOME in time, then no PONG, and it is dialled anew."""
    limits = RpcLimits(ping_seconds=0.02, silent_seconds_max=0.1, dial_seconds_max=0.2)

    async def scenario() -> None:
        listener = RawListener()
        async with Process(GATEWAY, limits=limits) as gateway:
            gateway.say(listener.address, ask(1))
            peer = await listener.accept()
            await peer.welcome("writer", listener.address)
            await gateway.told.until(lambda: "nothing heard for 0.1 s" in gateway.told.text())
            gateway.say(listener.address, ask(2))
            stopped = await listener.accept()
            await gateway.told.until(lambda: "no WELCOME within 0.2 s" in gateway.told.text())
            peer.close()
            stopped.close()
        listener.close()

    play(scenario)


def test_pings_keep_a_silent_pair_together(play: Play) -> None:
    limits = RpcLimits(ping_seconds=0.02, silent_seconds_max=5.0, idle_seconds_max=60.0)

    async def scenario() -> None:
        async with Process(WRITER) as writer, Process(GATEWAY, limits=limits) as gateway:
            gateway.say(writer.address, ask(1))
            await gateway.told.until(
                lambda: sum(one[0] == "rpc_ping_seconds" for one in gateway.told.observed) >= 3
            )
            assert gateway.gauge("rpc_peers_open") == 1 and not gateway.told.lines

    play(scenario)


def test_a_dialler_that_takes_no_answers_is_refused(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming, "ANSWER_BYTES_MAX", 1_000)

    async def scenario() -> None:
        async with Process(WRITER) as writer:
            peer = await RawConnection.dial(writer.address)
            assert await peer.greet("gateway", "127.0.0.1:9") is Control.WELCOME
            questions = clock_frame(Control.PING, 1) * 10_000
            with contextlib.suppress(ConnectionError):
                while not writer.told.total("rpc_refused"):
                    await peer.send(questions)
            await writer.told.until(lambda: writer.told.counts.get(("rpc_refused", "deaf")))
            peer.close()

    play(scenario)


def test_a_dialler_gone_silent_is_let_go(play: Play) -> None:
    limits = RpcLimits(silent_seconds_max=0.05)

    async def scenario() -> None:
        async with Process(WRITER, limits=limits) as writer:
            peer = await RawConnection.dial(writer.address)
            assert await peer.greet("gateway", "127.0.0.1:9") is Control.WELCOME
            await writer.told.until(lambda: "peer silent" in writer.told.text())
            assert await peer.receive() is None
            assert writer.gauge("rpc_accepted") == 0
            peer.close()

    play(scenario)


def test_an_idle_connection_is_closed_and_made_again(play: Play) -> None:
    limits = RpcLimits(ping_seconds=0.02, idle_seconds_max=0.03)

    async def scenario() -> None:
        listener = RawListener()
        async with Process(GATEWAY, limits=limits) as gateway:
            for rid in (1, 2):
                gateway.say(listener.address, ask(rid))
                peer = await listener.accept()
                await peer.welcome("writer", listener.address)
                kinds = []
                while (payload := await peer.receive()) is not None:
                    kinds.append(control_kind(payload))
                assert kinds[0] is None
                peer.close()
            assert not gateway.told.lines
        listener.close()

    play(scenario)


def test_what_waits_at_the_end_still_goes_out(play: Play) -> None:
    async def scenario() -> None:
        async with Process(WRITER) as writer:
            async with Process(GATEWAY) as gateway:
                gateway.say(writer.address, ask(0))
                await writer.until_heard(1)
                for rid in range(1, 200):
                    gateway.say(writer.address, ask(rid))
            await writer.until_heard(200)
            assert rids(writer) == list(range(200))
            gateway.say(writer.address, ask(1000))
            assert gateway.told.total("rpc_messages_dropped") == 1, (
                "after the end nothing is dialled"
            )

    play(scenario)


def test_the_end_does_not_wait_for_a_peer_that_reads_nothing(play: Play) -> None:
    async def scenario() -> None:
        listener = RawListener()
        limits = RpcLimits(frame_bytes_max=64 << 20, close_seconds_max=0.05)
        async with Process(WRITER, limits=limits) as writer:
            writer.knows(listener.address, GATEWAY)
            writer.say(listener.address, answer(1, 30 << 20))
            peer = await listener.accept()
            await peer.welcome("gateway", listener.address)
            await peer.bytes()
        peer.close()
        listener.close()

    play(scenario)


def test_an_idle_network_sleeps() -> None:
    """Counted by turns of the loop: connected and silent there are none but those of the timer that ends the test."""
    import selectors

    class Counting(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
        turns = 0

        def select(self, timeout: float | None = None) -> Any:
            Counting.turns += 1
            return super().select(timeout)

    async def scenario() -> None:
        async with Process(WRITER) as writer, Process(GATEWAY) as gateway:
            writer.answering = lambda event: answer(event.message.rid)  # type: ignore[union-attr]
            gateway.say(writer.address, ask(1))
            await gateway.until_heard(1)
            for _ in range(5):
                await asyncio.sleep(0)
            before = Counting.turns
            await asyncio.sleep(0.2)
            assert Counting.turns - before <= 3

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(Counting())) as runner:
        runner.run(scenario())
