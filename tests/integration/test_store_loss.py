"""The private store killed, emptied, restarted, its scripts flushed, its files gone: what was acked stays (pipeline §0)."""

import asyncio
import contextlib
import os
import random
import resource
import shutil
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from qim.adapters.embedded.data_directory import DataDirectory
from qim.adapters.embedded.private_valkey import PrivateValkey
from qim.adapters.redis.blocking import BlockingConnection
from tests.integration.load import Load, audit
from tests.integration.raw_client import RawClient
from tests.integration.served import CANARY, Served, eventually, newest_file
from tests.integration.testbed.signalled import die, stand_still

STORE_KILLS = 5


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Served]:
    """A server of the test's own, that it may maim."""
    server = Served(tmp_path / "data")
    try:
        server.start()
        yield server
    finally:
        server.close()


# ---------------------------------------------------------------- under load


def store_is_another(server: Served, killed: int) -> bool:
    """The killed store is gone and its successor is there."""
    return server.store_pids() not in ([], [killed])


def test_the_store_killed_five_times_under_load(own: Served, tmp_path: Path) -> None:
    async def main() -> None:
        load = Load(own, tmp_path)
        dice = random.Random(20261129)
        async with load.running():
            for _ in range(STORE_KILLS):
                await load.acks()
                await asyncio.sleep(dice.uniform(0.0, 0.2))  # any moment of its work
                killed = own.store_pid
                os.kill(killed, signal.SIGKILL)
                await load.acks()
                await eventually(partial(store_is_another, own, killed))
                await load.acks(20)
        await load.check()
        assert own.get("/readyz")[0] == 200

    asyncio.run(main())
    own.end()


def ended_leases(server: Served) -> float:
    """Of writer shards, under their owner."""
    names = ("qim_lease_expired_total", "qim_lease_lost_total")
    return sum(server.metric(name, "writer") for name in names)


def test_scripts_flushed_and_files_rewritten_under_load(own: Served, tmp_path: Path) -> None:
    """No send fails, no shard opens anew: a script that is gone is loaded again (BR-099)."""

    async def main() -> None:
        load = Load(own, tmp_path)
        async with load.running():
            await load.acks(20)
            opened, ended = own.metric("qim_shard_open_total"), ended_leases(own)
            for number in range(30):
                with own.store_connection() as store:
                    assert store.ask(b"SCRIPT", b"FLUSH") == b"OK"
                    if number % 10 == 0:
                        store.ask(b"BGREWRITEAOF")
                await load.acks(5)
            # Only a lease that was not renewed in time, on a machine that stood still, is a reason to open again.
            anew = own.metric("qim_shard_open_total") - opened
            assert anew <= ended_leases(own) - ended
        await load.check()

    asyncio.run(main())
    own.end()


def test_the_store_emptied_under_load(own: Served, tmp_path: Path) -> None:
    """FLUSHALL: the same server, another incarnation; everything comes back from the logs."""

    async def main() -> None:
        load = Load(own, tmp_path)
        async with load.running():
            for _ in range(2):
                await load.acks(50)
                with own.store_connection() as store:
                    assert store.ask(b"FLUSHALL") == b"OK"
                await load.acks(50)
        await load.check()
        assert own.get("/readyz")[0] == 200

    asyncio.run(main())
    own.end()


def test_the_stores_tail_lost_under_load(own: Served, tmp_path: Path) -> None:
    """It dies and its file ends earlier than what it had answered, as after a machine's crash; five times."""

    async def main() -> None:
        load = Load(own, tmp_path)
        dice = random.Random(20261129)
        async with load.running():
            for kept in (0.5, 0.99, 0.0, 0.9, 1.0):
                await load.acks(30)
                await asyncio.sleep(dice.uniform(0.0, 0.1))  # any moment of its work
                stand_still(own.pid)  # it must not start the store before the file is cut
                die(own.store_pid)
                tail = newest_file(own.data)
                os.truncate(tail, int(tail.stat().st_size * kept))
                os.kill(own.pid, signal.SIGCONT)
                await load.acks(30)
        await load.check()

    asyncio.run(main())
    own.end()


def test_answers_of_the_store_lost_under_load(own: Served, tmp_path: Path) -> None:
    """Its connections cut while answers are on their way: done or not, nobody knows, and it is settled by retry."""

    async def main() -> None:
        load = Load(own, tmp_path)
        async with load.running():
            for _ in range(20):
                with own.store_connection() as store:
                    store.ask(b"CLIENT", b"KILL", b"TYPE", b"normal", b"SKIPME", b"yes")
                await load.acks(5)
        await load.check()

    asyncio.run(main())
    own.end()


def no_room_beyond(server: Served, size: int) -> None:
    """No file of the server may grow beyond ``size`` bytes, as on a full disk."""
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def without_writers(server: Served) -> bool:
    """It says that it is not ready, and why."""
    status, words = server.get("/readyz")
    return status == 503 and "writer shards" in words


def test_a_full_disk_is_told_by_readyz_and_loses_nothing(own: Served, tmp_path: Path) -> None:
    async def main() -> None:
        load = Load(own, tmp_path)
        async with load.running():
            await load.acks(30)
            no_room_beyond(own, 100_000)
            await eventually(lambda: without_writers(own))
            assert own.get("/livez")[0] == 200
            assert own.get("/healthz")[0] == 200, "no rule is broken by a full disk"
            no_room_beyond(own, resource.RLIM_INFINITY)
            await eventually(lambda: own.get("/readyz")[0] == 200)
            await load.acks(30)
        await load.check()

    asyncio.run(main())
    assert own.stop() == 0


# ---------------------------------------------------------------- while stopped


async def talk(server: Served, count: int) -> list[bytes]:
    """A few messages to user 2; their ids."""
    async with await RawClient.log_in(server.target, 1) as writer:
        acks = [await writer.send(CANARY, peer_user_id=2) for _ in range(count)]
        async with await RawClient.log_in(server.target, 2) as reader:
            await reader.pull_until(acks[-1].message_id)
    return [ack.message_id for ack in acks]


async def mailbox_of(server: Served, user: int, last: bytes) -> list[bytes]:
    """Everything a new device gets; seqs rise, none is there twice."""
    async with await RawClient.log_in(server.target, user, device=b"new") as reader:
        entries = await reader.pull_until(last)
    for seqs in ([one.mailbox_seq for one in entries], [one.conversation_seq for one in entries]):
        assert seqs == sorted(set(seqs))
    return [one.message_id for one in entries]


def test_the_stores_files_deleted_while_stopped(own: Served) -> None:
    """Recovered from the log, seqs go on where they were, nothing is lost or doubled."""
    sent = asyncio.run(talk(own, 30))
    assert own.stop() == 0
    shutil.rmtree(own.data / "store")
    own.start()
    assert asyncio.run(mailbox_of(own, 2, sent[-1])) == sent
    more = asyncio.run(talk(own, 5))
    assert asyncio.run(mailbox_of(own, 2, more[-1])) == sent + more
    assert '"CLEAN"' in audit(own.data)
    own.end()


def test_a_cursor_outlives_the_store(own: Served) -> None:
    """The rebuilt mailbox has the same numbers: a device that comes back gets what is new, and nothing again."""

    async def cursor() -> bytes:
        async with await RawClient.log_in(own.target, 2) as reader:
            await reader.pull()
            return reader.cursor

    async def since(kept: bytes, last: bytes) -> list[bytes]:
        async with await RawClient.log_in(own.target, 2, cursor=kept) as reader:
            assert reader.cursor == kept, "the cursor is taken as it was"
            return [one.message_id for one in await reader.pull_until(last)]

    asyncio.run(talk(own, 30))
    kept = asyncio.run(cursor())
    assert own.stop() == 0
    shutil.rmtree(own.data / "store")
    own.start()
    more = asyncio.run(talk(own, 5))
    assert asyncio.run(since(kept, more[-1])) == more
    own.end()


def test_an_older_copy_of_the_store_put_back(own: Served) -> None:
    """A backup restored behind the server's back: no seq is given twice, nothing is lost (BR-013)."""
    first = asyncio.run(talk(own, 20))
    assert own.stop() == 0
    shutil.copytree(own.data / "store", own.data / "copy")
    own.start()
    second = asyncio.run(talk(own, 20))
    assert own.stop() == 0
    shutil.rmtree(own.data / "store")
    (own.data / "copy").rename(own.data / "store")
    own.start()
    third = asyncio.run(talk(own, 5))
    assert asyncio.run(mailbox_of(own, 2, third[-1])) == first + second + third
    assert '"CLEAN"' in audit(own.data)
    own.end()


@pytest.mark.parametrize("kept", [0.0, 0.5])
def test_the_stores_tail_lost_while_stopped(own: Served, kept: float) -> None:
    """The append-only file cut in the middle, as a machine that lost power leaves it."""
    sent = asyncio.run(talk(own, 60))
    store = own.store_pid
    own.kill()
    with contextlib.suppress(ProcessLookupError):
        die(store)  # it follows its parent by itself, and might write behind the cut until then
    tail = newest_file(own.data)
    os.truncate(tail, int(tail.stat().st_size * kept))
    own.start()
    assert asyncio.run(mailbox_of(own, 2, sent[-1])) == sent
    more = asyncio.run(talk(own, 5))
    assert asyncio.run(mailbox_of(own, 2, more[-1])) == sent + more
    assert '"CLEAN"' in audit(own.data)
    own.end()


def edit_store(data: Path, pattern: bytes) -> int:
    """Delete keys of a stopped server's store; how many."""
    with DataDirectory(data) as directory:
        valkey = PrivateValkey.start(directory)
        try:
            with BlockingConnection(valkey.socket_path, timeout_s=30) as store:
                keys = store.ask(b"KEYS", pattern)
                return int(store.ask(b"DEL", *keys))
        finally:
            valkey.stop()


def test_counters_gone_while_their_data_remains(own: Served) -> None:
    """A start on such a store is refused by the name of the invariant (BR-011); the data is left as it is."""
    asyncio.run(talk(own, 5))
    assert own.stop() == 0
    assert edit_store(own.data, b"ms:*") > 0
    for _ in range(2):
        with pytest.raises(AssertionError, match="mailbox_seq_regression_count"):
            own.start()
        assert own.ended() == 2
    assert edit_store(own.data, b"mh:*") > 0, "the traces of its data must still be there"


def test_a_violation_turns_health_to_503_and_leaves_livez(own: Served) -> None:
    """Counters lost under a running server, seen as its store comes back."""

    async def main() -> None:
        await talk(own, 5)
        with own.store_connection() as store:
            for key in store.ask(b"KEYS", b"ms:*"):
                store.ask(b"HDEL", key, b"w")
            # Under everysec a kill may take what was answered: what is to be seen must be in the file.
            assert store.ask(b"WAITAOF", b"1", b"0", b"20000") == [1, 0]
        os.kill(own.store_pid, signal.SIGKILL)
        await eventually(lambda: own.metric("qim_mailbox_seq_regression_total") > 0)
        for path, status in (("/healthz", 503), ("/readyz", 503), ("/livez", 200)):
            assert own.get(path)[0] == status, path
        assert "mailbox_seq_regression_count" in own.get("/readyz")[1]

    asyncio.run(main())
    assert own.stop() == 0


def test_a_stores_keyspace_of_somebody_else_is_refused(own: Served) -> None:
    """Data without our incarnation key: not ours to write into."""
    asyncio.run(talk(own, 1))
    assert own.stop() == 0
    assert edit_store(own.data, b"qim:incarnation") == 1
    with pytest.raises(AssertionError, match="keyspace_unmarked"):
        own.start()
    assert own.ended() == 2
