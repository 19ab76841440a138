"""`qim up` as a process: one holder of its data, refusals with a reason, draining on a signal, leftovers of the dead."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from qim.core.contract.frames import Error, Kicked, KickReason, SendAck
from tests.integration.load import Load, audit
from tests.integration.raw_client import NO_TIME, Bystanders, RawClient, message
from tests.integration.served import CANARY, Served, newest_file
from tests.integration.testbed.signalled import die, stand_still


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Served]:
    """A server of the test's own, not yet started."""
    server = Served(tmp_path / "data")
    try:
        yield server
    finally:
        server.close()


def refused_start(*options: str) -> str:
    """What a start says that must be refused with status 2, without a traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "qim", "up", "--metrics", "127.0.0.1:0", *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert "Traceback" not in done.stderr, done.stderr
    return done.stderr


def test_a_second_server_on_the_same_data_is_refused(served: Served) -> None:
    async def main() -> None:
        async with Bystanders.of(served.target) as others:
            data = str(served.data)
            said = await asyncio.to_thread(refused_start, "--data", data, "--tcp", "127.0.0.1:0")
            assert str(served.pid) in said, said
            await others.go_on()
        assert served.get("/readyz")[0] == 200

    asyncio.run(main())


def test_a_port_that_is_taken_is_refused_by_name(served: Served, tmp_path: Path) -> None:
    said = refused_start("--data", str(tmp_path / "other"), "--tcp", served.tcp)
    assert served.tcp.rpartition(":")[2] in said, said
    taken = served.ready["metrics"]
    said = refused_start(
        "--data", str(tmp_path / "other"), "--tcp", "127.0.0.1:0", "--metrics", taken
    )
    assert "ddress" in said, said


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (("--shards", "8"), "shard_count"),
        (("--partitions", "4"), "outbox_partition_count"),
        (("--shards", "3"), "shard_count"),
    ],
)
def test_other_numbers_on_the_same_data_are_refused(
    own: Served, options: tuple[str, ...], name: str
) -> None:
    own.start()
    assert own.stop() == 0
    data = str(own.data)
    assert name in refused_start("--data", data, "--tcp", "127.0.0.1:0", *options)
    own.start()
    own.end()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_nothing_happens(own: Served, number: signal.Signals) -> None:
    own.start()
    assert own.process is not None
    own.process.send_signal(number)
    assert own.ended() == 0
    assert not (own.data / "server.json").exists()
    own.judge()


def test_a_second_signal_while_draining_changes_nothing(own: Served) -> None:
    own.start()
    assert own.process is not None
    own.process.terminate()
    own.process.terminate()
    assert own.ended() == 0


def test_a_signal_before_it_is_ready(own: Served) -> None:
    """It ends by itself, whether it came to serve or not, and the next start finds nothing in its way."""
    own.start()
    assert own.stop() == 0
    command = [sys.executable, "-m", "qim", "up", "--data", str(own.data), "--tcp", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, "--metrics", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    process.stderr.readline()  # "started": its handlers stand, its shards are not open yet
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 0
    own.start()
    own.end()


def test_draining_finishes_what_is_in_flight_and_says_goodbye(own: Served) -> None:
    """Each send is acked or told to come again before KICKED(SHUTDOWN), also to a client that never closes; exit 0."""

    async def main() -> list[bytes]:
        client = await RawClient.log_in(own.target, 1)
        idle = await RawClient.log_in(own.target, 2)
        frames = [message(CANARY, peer_user_id=2) for _ in range(200)]
        sent = [client.say(frame) for frame in frames]
        first = await client.answered(frames[0], sent[0], SendAck)
        assert own.process is not None
        own.process.terminate()
        heard = await client.rest()
        answers = {one.request: one.frame for one in heard if one.request}
        assert set(answers) >= set(sent[1:]), "a request was left without an answer"
        refused = [one.code for one in answers.values() if isinstance(one, Error)]
        assert set(refused) <= NO_TIME
        for one in (heard[-1], (await idle.rest())[-1]):
            assert isinstance(one.frame, Kicked)
            assert (one.frame.reason, one.frame.reconnect) == (KickReason.SHUTDOWN, True)
        status = await asyncio.to_thread(own.ended)  # both clients still hold their ends open
        assert status == 0
        await client.close()
        await idle.close()
        acks = [first, *(one for one in answers.values() if isinstance(one, SendAck))]
        return [one.message_id for one in acks]

    async def after(acked: list[bytes]) -> None:
        async with await RawClient.log_in(own.target, 2, device=b"new") as reader:
            await reader.pull_until(*acked)

    own.start()
    acked = asyncio.run(main())
    own.judge()
    own.start()
    asyncio.run(after(acked))
    own.end()


def test_a_store_that_dies_while_draining(own: Served) -> None:
    """What is in flight can't be finished without it: it is started once more, and all is acked, exit 0."""

    async def main() -> None:
        async with await RawClient.log_in(own.target, 1) as client:
            sent = [client.say(message(CANARY, peer_user_id=2)) for _ in range(50)]
            await client.answer(sent[0])
            os.kill(own.store_pid, signal.SIGKILL)
            assert own.process is not None
            own.process.terminate()
            answers = {one.request: one.frame for one in await client.rest()}
            assert set(answers) >= set(sent[1:])
            assert await asyncio.to_thread(own.ended) == 0

    own.start()
    asyncio.run(main())
    own.judge()


def test_a_store_that_cannot_be_started_again_ends_the_server(own: Served) -> None:
    """Damaged files: it says so and exits 1, a start on them is refused; without them all comes back from the logs."""

    async def talk() -> bytes:
        async with await RawClient.log_in(own.target, 1) as client:
            return (await client.send(CANARY, peer_user_id=2)).message_id

    async def there(message_id: bytes) -> None:
        async with await RawClient.log_in(own.target, 2) as reader:
            await reader.pull_until(message_id)

    own.start()
    message_id = asyncio.run(talk())
    stand_still(own.pid)  # it must not start the store before its file is damaged
    die(own.store_pid)
    tail = newest_file(own.data)
    tail.write_bytes(b"not what a store writes\r\n" * 100 + tail.read_bytes())
    os.kill(own.pid, signal.SIGCONT)
    assert own.ended() == 1
    (death,) = [one for one in own.log_records() if one["event"] == "machine died"]
    assert "store" in death["service"]
    said = refused_start("--data", str(own.data), "--tcp", "127.0.0.1:0")
    assert "store process ended" in said, said
    shutil.rmtree(own.data / "store")
    own.start()
    asyncio.run(there(message_id))
    assert own.stop() == 0


def test_stopped_and_started_under_load(own: Served, tmp_path: Path) -> None:
    async def main() -> None:
        load = Load(own, tmp_path)
        async with load.running():
            for _ in range(2):
                await load.acks(30)
                assert await asyncio.to_thread(own.stop) == 0
                await asyncio.to_thread(own.start)
            await load.acks(30)
        await load.check()

    own.start()
    asyncio.run(main())
    own.end()


def test_leftovers_of_a_killed_server(own: Served) -> None:
    """Its store killed with it, half-written files, pids of the past: all in nobody's way."""

    async def talk() -> bytes:
        async with await RawClient.log_in(own.target, 1) as client:
            return (await client.send(CANARY, peer_user_id=2)).message_id

    async def there(message_id: bytes) -> None:
        async with await RawClient.log_in(own.target, 2) as reader:
            await reader.pull_until(message_id)

    own.start()
    message_id = asyncio.run(talk())
    store = own.store_pid
    own.kill()
    with contextlib.suppress(ProcessLookupError):
        os.kill(store, signal.SIGKILL)  # it may be ending already, as its parent did
    for name in ("server.json", "server.new", "secret.new", "store/s.new"):
        (own.data / name).write_text("left behind")
    (own.data / "lock").write_text(f"{os.getpid()}\n")
    own.start()
    assert own.store_pid != store
    asyncio.run(there(message_id))
    assert '"CLEAN"' in audit(own.data)
    own.end()


def test_a_socket_that_says_nothing_delays_no_end(own: Served) -> None:
    own.start()
    host, _, port = own.tcp.rpartition(":")
    with socket.create_connection((host, int(port))):
        assert own.stop() == 0
