"""From client to client through a process of each role, over real Redis, Kafka and etcd."""

import asyncio
from pathlib import Path

import pytest

from qim.client import Client, SendStatus
from tests.integration.cluster.cluster import PARTITIONS, SHARDS, Cluster
from tests.integration.load import Load
from tests.integration.people import PATIENCE_SECONDS, acked, arrived, seen, text_of
from tests.integration.raw_client import token
from tests.integration.testbed.server_process import ServerFailed

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("cluster")]


def device(cluster: Cluster, user: int, stores: Path) -> Client:
    return Client(
        user_id=user,
        access_token=token(cluster.target.secret, user),
        addresses=cluster.addresses,
        store_path=stores / f"{user}.db",
        device_id=b"phone",
    )


def test_what_one_writes_the_other_pulls_lists_and_looks_up(
    cluster: Cluster, stores: Path, first_user: int
) -> None:
    async def main() -> None:
        one, other = first_user, first_user + 1
        async with device(cluster, one, stores) as sender, device(cluster, other, stores) as reader:
            await sender.online(PATIENCE_SECONDS)
            await reader.online(PATIENCE_SECONDS)
            sent = [
                await sender.send(f"number {number}", to=other, timeout=PATIENCE_SECONDS)
                for number in range(3)
            ]
            assert {one.status for one in sent} == {SendStatus.ACKED}
            last = acked(sent[-1])
            await arrived(reader, last.conversation_id, last.conversation_seq)
            got = [message.body for message in await reader.take_new()]
            assert got == [b"number 0", b"number 1", b"number 2"]
            row = await seen(reader, last.conversation_id)
            assert (row.unread, row.unread_exact) == (3, True)
            assert text_of(row) == "number 2"
            page = await reader.history(last.conversation_id)
            assert [message.body for message in page.messages] == got

    asyncio.run(main())


def test_users_under_load_get_everything_once(
    cluster: Cluster, stores: Path, first_user: int
) -> None:
    async def main() -> int:
        load = Load(cluster, stores, first_user)
        async with load.running() as running:
            await running.acks(200)
            await running.every_lane()
        await load.check()
        return len(load.acked)

    assert asyncio.run(main()) >= 200


def test_each_process_serves_and_says_so(cluster: Cluster) -> None:
    held = {"writer": PARTITIONS, "fanout": PARTITIONS, "mailbox": SHARDS, "session": SHARDS}
    for process in cluster.processes.values():
        for path in ("/healthz", "/readyz", "/livez"):
            assert process.get(path)[0] == 200, (process.name, path, process.get(path))
        for role, count in held.items():
            wanted = count if role == process.role else 0
            assert process.metric("qim_leases_held", role) == wanted, process.name
        assert (process.role == "auditor") == (process.get("/audit")[0] == 405)


def test_other_shared_numbers_are_refused_by_name(cluster: Cluster) -> None:
    """Whoever came first has written them; this one would keep history for another time."""
    stranger = cluster.add("fanout", 9, QIM_HISTORY_HOT_WINDOW_MS="7200000")
    try:
        with pytest.raises(ServerFailed, match="hot_window_ms"):
            stranger.start()
        assert stranger.process.status == 2
    finally:
        del cluster.processes[stranger.name]
