"""Messages between two processes: there and back, in order, bounded; peers that stop, lag, come back or never were."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest
import uvloop

from qim.adapters.rpc import ProcessRole, RpcLimits, RpcNetwork, incoming, outgoing
from qim.adapters.rpc.frames import (
    CONTROL,
    RPC_VERSION,
    Control,
    Hello,
    clock_frame,
    control_kind,
    frame,
    hello_frame,
    read_sorry,
    sorry_frame,
)
from qim.adapters.start_refused import StartRefused
from qim.core.contract.rpc import Kick, SummariesAnswer, decode_message, encode_message
from tests.adapters.rpc.raw import RawConnection, RawListener
from tests.adapters.rpc.stage import ACTOR, Process, answer, ask

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
WRITER, GATEWAY, SESSION = ProcessRole.WRITER, ProcessRole.GATEWAY, ProcessRole.SESSION
Scenario = Callable[[], Coroutine[Any, Any, None]]
Play = Callable[[Scenario], None]


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def play(request: pytest.FixtureRequest) -> Play:
    """Run a scenario on both kinds of event loop."""

    def run(scenario: Scenario) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(scenario())

    return run


def rids(process: Process) -> list[int]:
    return [event.message.rid for event in process.heard]  # type: ignore[union-attr]


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
    from qim.core.contract.rpc import AskSummaries

    return AskSummaries(rid=rid, actor=ACTOR, window=10, items=())


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
