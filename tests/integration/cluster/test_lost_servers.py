"""Servers under the processes fail: a store loses its tail, the registry sleeps, the broker is killed; nothing acked goes."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qim.core.ports.log import Topic
from tests.integration.cluster.cluster import PARTITIONS, SHARDS, Cluster
from tests.integration.cluster.conftest import drained
from tests.integration.cluster.operating import append_times
from tests.integration.cluster.role_process import RoleProcess
from tests.integration.load import Load
from tests.integration.served import eventually
from tests.integration.testbed.redis import RedisServer

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.xdist_group("cluster")]
HELD = {"writer": PARTITIONS, "fanout": PARTITIONS, "mailbox": SHARDS, "session": SHARDS}
TAIL_BYTES = 20_000
END_SECONDS_MAX = 120.0
AWAY_SECONDS = 60.0
LEASE_TTL_MS, LEASE_MARGIN_MS = 8_000, 4_000
LEASES = {"QIM_LEASE_TTL_MS": str(LEASE_TTL_MS), "QIM_LEASE_MARGIN_MS": str(LEASE_MARGIN_MS)}
"""A margin so wide that a busy broker's delay stays inside it."""
LOOK_SECONDS = 0.01


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Its servers are ours to harm."""
    with Cluster(tmp_path_factory.mktemp("own"), settings=LEASES, lent=False) as running:
        yield running
        drained(running)


def all_serve(cluster: Cluster) -> bool:
    """Every process holds what it should, and says so."""
    return all(process.get("/readyz")[0] == 200 for process in cluster.processes.values())


def leases(cluster: Cluster) -> float:
    """Held by all processes, by their own belief."""
    return sum(one.metric("qim_leases_held", one.role) for one in cluster.roles(*HELD))


def in_file(server: RedisServer) -> int:
    """Bytes of it that ``lose_tail`` may take."""
    return sum(path.stat().st_size for path in server.aof_files())


@pytest.mark.parametrize("store", ["message_redis", "mailbox_redis"])
def test_a_store_is_killed_and_its_tail_is_gone(
    own: Cluster, stores: Path, first_user: int, store: str
) -> None:
    """Nor does anything of that tail come back at the next start, which is an orderly one (decision 0024)."""

    async def main() -> None:
        load, server = Load(own, stores, first_user), getattr(own, store)
        async with load.running() as running:
            await running.acks(200)
            # Written behind a sync that is under way, it comes to the file later than to whoever asked.
            await eventually(lambda: in_file(server) > TAIL_BYTES)
            server.kill()
            assert server.lose_tail(bytes_lost=TAIL_BYTES) == TAIL_BYTES
            server.start()
            await running.every_lane()
            await eventually(lambda: all_serve(own))
        await load.check()
        await asyncio.to_thread(server.stop)
        server.process.launch()
        await asyncio.to_thread(server.process.wait_ready)
        await eventually(lambda: all_serve(own))
        await load.check("fresher")

    asyncio.run(main())


def test_the_registry_is_away_for_a_minute(own: Cluster, stores: Path, first_user: int) -> None:
    """Owners stop before the registry could give what they hold to others, accept nothing for as long as it is away, and
    take it up again afterwards (issue: etcd down for a minute).

    The last renewal was sent before etcd stood still, so what counts is the outbox: half a margin before others could own
    its partitions, and from then on, nobody appends.
    """

    async def main() -> None:
        load, loop = Load(own, stores, first_user), asyncio.get_running_loop()
        assert own.etcd is not None
        async with load.running() as running:
            await running.acks(50)
            await eventually(lambda: leases(own) == sum(HELD.values()))
            own.etcd.pause()
            back_at, paused_ms = loop.time() + AWAY_SECONDS, time.time_ns() // 1_000_000
            try:
                await eventually(lambda: leases(own) == 0)
                expired = [
                    one.metric("qim_lease_expired_total", one.role) for one in own.roles(*HELD)
                ]
                assert all(count > 0 for count in expired), expired
                # What was committed before may still be told; from the middle of the minute on nothing is left of that.
                await asyncio.sleep(back_at - AWAY_SECONDS / 2 - loop.time())
                accepted = len(running.acked)
                await asyncio.sleep(back_at - loop.time())
                assert (len(running.acked), leases(own)) == (accepted, 0)
                appended = [ms - paused_ms for ms in await append_times(own, Topic.OUTBOX)]
                last = max(appended)
                assert last < LEASE_TTL_MS - LEASE_MARGIN_MS // 2, f"one appended after {last} ms"
                assert last > 0, "they had stopped before: nothing is proved"
            finally:
                own.etcd.resume()
            await running.every_lane()
            await eventually(lambda: all_serve(own) and leases(own) == sum(HELD.values()))
        await load.check()

    asyncio.run(main())


def test_the_broker_is_killed_and_comes_back(own: Cluster, stores: Path, first_user: int) -> None:
    async def main() -> None:
        load, (broker,) = Load(own, stores, first_user), own.kafka
        async with load.running() as running:
            await running.acks(50)
            broker.kill()
            broker.process.launch()
            await asyncio.to_thread(broker.process.wait_ready)
            await running.every_lane()
            await eventually(lambda: all_serve(own))
        await load.check()

    asyncio.run(main())


def told_of(process: RoleProcess, server: str) -> list[str]:
    """What its log says became of its connection to that server."""
    records = [one for one in process.log_records() if one.get("to") == server]
    return [record["event"] for record in records]


def refuses(process: RoleProcess, why: str) -> bool:
    """It is not ready, and names this."""
    status, words = process.get("/readyz")
    return status == 503 and why in words


def test_an_outage_is_told_by_log_and_readyz_of_everybody_it_concerns(own: Cluster) -> None:
    """One line each way. Without the message store nobody but gateways is of any use; leases end a while after etcd."""
    writer, fanout, mailbox, session = (own.roles(role)[0] for role in HELD)
    needing = (writer, fanout, mailbox, session)

    async def main() -> None:
        await eventually(lambda: all_serve(own))
        etcd = own.etcd
        assert etcd is not None
        before = {one.name: told_of(one, "the message store") for one in needing}
        own.message_redis.kill()
        for process in needing:
            # Its shards may be closed before the store has been away for long enough to be named.
            await eventually(
                lambda process=process: refuses(process, "the message store is out of reach")
            )
        own.message_redis.start()
        await eventually(lambda: all_serve(own))
        for process in needing:
            wanted = [*before[process.name], "connection lost", "connection back"]
            await eventually(
                lambda process=process, wanted=wanted: (
                    told_of(process, "the message store") == wanted
                )
            )
        known = len(told_of(writer, "the registry"))
        await asyncio.to_thread(etcd.stop)
        await eventually(lambda: told_of(writer, "the registry")[known:] == ["connection lost"])
        await eventually(lambda: writer.get("/readyz")[0] == 503)
        await eventually(
            lambda: "leases expired" in {record["event"] for record in writer.log_records()}
        )
        etcd.process.launch()
        await asyncio.to_thread(etcd.process.wait_ready)
        await eventually(lambda: all_serve(own))
        both = ["connection lost", "connection back"]
        await eventually(lambda: told_of(writer, "the registry")[known:] == both)

    asyncio.run(main())


def test_a_broker_that_is_away_is_told_by_everybody_who_reads_or_writes_the_log(
    own: Cluster,
) -> None:
    async def main() -> None:
        await eventually(lambda: all_serve(own))
        (broker,) = own.kafka
        broker.kill()
        for process in own.roles(*HELD):
            await eventually(
                lambda process=process: "the log is out of reach" in process.get("/readyz")[1]
            )
            await eventually(
                lambda process=process: "no broker tells of the topics" in process.log()
            )
        broker.process.launch()
        await asyncio.to_thread(broker.process.wait_ready)
        await eventually(lambda: all_serve(own))

    asyncio.run(main())


def test_every_server_is_restarted_in_turn(own: Cluster, stores: Path, first_user: int) -> None:
    """As an operator upgrades them: each ends in order and comes back under the same address."""

    async def main() -> None:
        load = Load(own, stores, first_user)
        assert own.etcd is not None
        (broker,) = own.kafka
        servers = (own.message_redis, own.mailbox_redis, own.etcd, broker)
        async with load.running() as running:
            for server in servers:
                await running.acks(20)
                await asyncio.to_thread(server.stop)
                server.process.launch()
                await asyncio.to_thread(server.process.wait_ready)
                await running.every_lane()
            await eventually(lambda: all_serve(own))
        await load.check()

    asyncio.run(main())


def in_flight(mailbox: RoleProcess) -> float:
    """Calls at the mailbox store that are not answered."""
    return mailbox.metric("qim_store_calls_inflight", "mailbox_mailbox")


def test_a_drain_has_an_end_and_waits_without_spinning(
    own: Cluster, stores: Path, first_user: int
) -> None:
    """What a mailbox has in flight can't be finished while its store sleeps: SIGTERM ends it all the same, with status 1."""

    async def main() -> None:
        load = Load(own, stores, first_user)
        (mailbox,) = own.roles("mailbox")
        assert await asyncio.to_thread(mailbox.stop) == 0
        # In its place, until it has ended: one that drains as long as in life.
        brief = own.add("mailbox", 1, QIM_DRAIN_MS="10000")
        await brief.started()
        async with load.running() as running:
            await running.acks(20)
            own.mailbox_redis.pause()
            try:
                await eventually(lambda: in_flight(brief) > 0)
                await asyncio.to_thread(ends_in_time, brief)
            finally:
                own.mailbox_redis.resume()
            own.processes[mailbox.name] = mailbox
            await mailbox.started()
            await running.every_lane()
            await eventually(lambda: all_serve(own))
        await load.check()

    asyncio.run(main())


def ends_in_time(mailbox: RoleProcess) -> None:
    """By SIGTERM: not drained (1, docs/operations.md), and without work for the processor meanwhile."""
    before, wanted_before = mailbox.cpu_seconds(), mailbox.wanted_seconds()
    mailbox.terminate()
    spent, wanted, began = before, wanted_before, time.monotonic()
    while (now := mailbox.cpu_seconds()) is not None:
        assert time.monotonic() < began + END_SECONDS_MAX, "it goes on"
        spent, wanted = now, mailbox.wanted_seconds() or wanted
        time.sleep(LOOK_SECONDS)
    took = time.monotonic() - began
    assert mailbox.process.status == 1
    last = mailbox.log_records()[-1]
    assert (last["level"], last["event"]) == ("error", "not drained")
    assert last["in_flight"].startswith("mailbox: ")
    assert spent is not None and before is not None and wanted is not None
    assert spent - before < 3.0, "it spun while it waited"
    assert wanted - (wanted_before or 0.0) < 0.9 * took, "it spun, on a machine too busy to show it"
