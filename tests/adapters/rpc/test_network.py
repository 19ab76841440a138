"""Messages between two processes: there and back, in order, bounded; peers that stop, lag, come back or never were."""

import asyncio
from typing import Any

import pytest

from qim.adapters.rpc import RpcLimits, outgoing
from qim.adapters.rpc.frames import (
    Control,
    control_kind,
    frame,
)
from qim.core.contract.rpc import Kick, decode_message, encode_message
from qim.core.contract.rpc_session import SummariesAnswer
from tests.adapters.rpc.conftest import GATEWAY, SESSION, WRITER, Play, rids
from tests.adapters.rpc.raw import RawConnection, RawListener
from tests.adapters.rpc.stage import ACTOR, Process, answer, ask


def test_questions_and_answers_in_order(play: Play) -> None:
    async def scenario() -> None:
        async with Process(WRITER) as writer, Process(GATEWAY) as gateway:
            writer.answering = lambda event: answer(event.message.rid, event.message.rid * 100)  # type: ignore[union-attr]
            for rid in range(1, 501):
                gateway.say(writer.address, ask(rid))
            await gateway.until_heard(500)
            assert [event.message for event in writer.heard] == [ask(n) for n in range(1, 501)]
            assert {event.source for event in writer.heard} == {gateway.address}
            assert {event.wall for event in writer.heard} == {1234}
            assert rids(gateway) == list(range(1, 501))
            assert {event.source for event in gateway.heard} == {writer.address}
            assert gateway.gauge("rpc_queue_messages") == gateway.gauge("rpc_queue_bytes") == 0
            assert gateway.gauge("rpc_messages_sent") == writer.gauge("rpc_messages_received")
            assert gateway.gauge("rpc_peers_open") == gateway.gauge("rpc_accepted") == 1
            assert not gateway.told.lines and not writer.told.lines

    play(scenario)


def test_what_is_said_in_one_turn_is_one_write(play: Play) -> None:
    async def scenario() -> None:
        async with Process(WRITER) as writer, Process(GATEWAY) as gateway:
            gateway.say(writer.address, ask(1))
            await writer.until_heard(1)
            gateway.told.observed.clear()
            for rid in range(2, 102):
                gateway.say(writer.address, ask(rid))
            await writer.until_heard(101)
            writes = [one for one in gateway.told.observed if one[0] == "rpc_queue_wait_seconds"]
            assert len(writes) == 1 and writes[0][2] == "writer" and writes[0][1] >= 0

    play(scenario)


def test_to_oneself_without_a_wire(play: Play) -> None:
    async def scenario() -> None:
        async with Process(GATEWAY) as gateway:
            kick = Kick(conn=1, user_id=7, device_id=b"d", session_epoch=3, reason=1)
            gateway.say(gateway.address, kick)
            assert not gateway.heard, "not in the middle of the step that says it"
            await gateway.until_heard(1)
            assert gateway.heard[0].message == kick and gateway.heard[0].source == gateway.address
            assert gateway.gauge("rpc_peers") == 0

    play(scenario)


def test_who_was_away_is_reached_again(play: Play) -> None:
    """A writer that restarts at the same address gets what is said to it afterwards."""

    async def scenario() -> None:
        async with Process(GATEWAY) as gateway:
            async with Process(WRITER) as writer:
                gateway.say(writer.address, ask(1))
                await writer.until_heard(1)
                host, _, port = writer.address.rpartition(":")
            while not gateway.told.total("rpc_dials_failed"):
                # What is said before the loss is seen goes nowhere, and is nobody's to repeat.
                gateway.say(f"{host}:{port}", ask(2))
                await asyncio.sleep(0)
            async with Process(WRITER, listen=(host, int(port))) as again:
                gateway.say(again.address, ask(3))
                while rids(again)[-1:] != [3]:
                    await again.until_heard(len(again.heard) + 1)
                await gateway.told.until(lambda: "reached again" in gateway.told.text())
            assert gateway.told.total("rpc_reconnects") >= 1
            warnings = [line for line in gateway.told.lines if line[1] == "not reached"]
            assert len(warnings) == 1, "a peer that is away is told once, not at every dial"

    play(scenario)


def test_a_dial_that_fails_in_a_way_nobody_thought_of_is_tried_again(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = outgoing.connect
    faults: list[Exception] = []

    async def faulty(*told: Any) -> None:
        if faults:
            raise faults.pop()
        await connect(*told)

    async def scenario() -> None:
        faults[:] = [RuntimeError("the transport is closed")]
        async with Process(WRITER) as writer, Process(GATEWAY) as gateway:
            monkeypatch.setattr(outgoing, "connect", faulty)
            gateway.say(writer.address, ask(1))
            await writer.until_heard(1)
            assert gateway.told.total("rpc_dials_failed") == 1
            assert "the transport is closed" in gateway.told.text()

    play(scenario)


def test_nobody_is_dialled_for_messages_that_grew_old(play: Play) -> None:
    limits = RpcLimits(queue_seconds_max=0.05, backoff_seconds_max=0.05)

    async def scenario() -> None:
        listener = RawListener()
        listener.close()
        async with Process(GATEWAY, limits=limits) as gateway:
            gateway.say(listener.address, ask(1))
            stale = ("rpc_messages_dropped", "stale AskHistory")
            await gateway.told.until(lambda: gateway.told.counts.get(stale) == 1)
            assert gateway.gauge("rpc_queue_messages") == 0

    play(scenario)


def test_a_peer_that_reads_nothing_costs_a_bounded_queue(play: Play) -> None:
    limits = RpcLimits(queue_messages_max=50, queue_bytes_max=400_000, write_bytes_max=30_000)

    async def scenario() -> None:
        listener = RawListener()
        async with Process(WRITER, limits=limits) as writer:
            writer.knows(listener.address, GATEWAY)
            writer.say(listener.address, answer(0))
            peer = await listener.accept()
            await peer.welcome("gateway", listener.address)
            full = ("rpc_messages_dropped", "full HistoryAnswer")
            rid = 0
            while full not in writer.told.counts:
                rid += 1
                writer.say(listener.address, answer(rid, 10_000))
                assert writer.gauge("rpc_queue_bytes") <= 400_000
                assert writer.gauge("rpc_queue_messages") <= 50
                await asyncio.sleep(0)
            assert writer.told.counts[full] == 1
            # It reads again: what was kept comes whole and in order, what was dropped is the last alone.
            got: list[int] = []
            while not got or got[-1] < rid - 1:
                payload = await peer.receive()
                assert payload is not None
                if control_kind(payload) is None:
                    got.append(decode_message(payload).rid)  # type: ignore[union-attr]
            assert got == list(range(rid))
            waits = [one[1] for one in writer.told.observed if one[0] == "rpc_write_seconds"]
            assert max(waits) > 0
            peer.close()
        listener.close()

    play(scenario)


def test_a_cut_in_the_middle_of_a_frame(play: Play) -> None:
    """Both ways: half a frame read is no message, half a write lost is counted, and the next goes out anew."""

    async def scenario() -> None:
        async with Process(WRITER) as writer:
            peer = await RawConnection.dial(writer.address)
            assert await peer.greet("gateway", "127.0.0.1:9") is Control.WELCOME
            framed = frame(encode_message(ask(1)))
            await peer.send(framed + framed[: len(framed) // 2])
            await writer.until_heard(1)
            peer.close()
            other = await RawConnection.dial(writer.address)
            assert await other.greet("gateway", "127.0.0.1:9") is Control.WELCOME
            await other.send(frame(encode_message(ask(2))))
            await writer.until_heard(2)
            assert rids(writer) == [1, 2] and not writer.told.lines
            other.close()

    play(scenario)


def test_a_write_that_was_cut_is_counted(play: Play) -> None:
    async def scenario() -> None:
        listener = RawListener()
        async with Process(WRITER, limits=RpcLimits(frame_bytes_max=64 << 20)) as writer:
            writer.knows(listener.address, GATEWAY)
            writer.say(listener.address, answer(1, 30 << 20))
            peer = await listener.accept()
            await peer.welcome("gateway", listener.address)
            await peer.bytes()
            peer.close()
            cut = ("rpc_messages_dropped", "cut HistoryAnswer")
            await writer.told.until(lambda: writer.told.counts.get(cut) == 1)
        listener.close()

    play(scenario)


def test_an_answer_to_a_session_and_one_to_a_gateway(play: Play) -> None:
    """The role of an asker is learned from its HELLO, so an answer dials it as what it is."""

    async def scenario() -> None:
        async with (
            Process(WRITER) as writer,
            Process(SESSION) as session,
            Process(GATEWAY) as gateway,
        ):
            writer.answering = lambda event: (
                SummariesAnswer(rid=event.message.rid, summaries=())  # type: ignore[union-attr]
                if event.source == session.address
                else answer(event.message.rid)  # type: ignore[union-attr]
            )
            session.say(writer.address, ask_summaries(5))
            gateway.say(writer.address, ask(6))
            await session.until_heard(1)
            await gateway.until_heard(1)
            assert rids(session) == [5] and rids(gateway) == [6]

    play(scenario)


def ask_summaries(rid: int) -> Any:
    from qim.core.contract.rpc_session import AskSummaries

    return AskSummaries(rid=rid, actor=ACTOR, window=10, items=())
