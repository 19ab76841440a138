"""From client to client through a process of each role, over real Redis, Kafka and etcd."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from qim.client import Client, SendStatus
from tests.integration.cluster.cluster import PARTITIONS, SHARDS, Cluster, make_topics
from tests.integration.cluster.commands import commanded, told
from tests.integration.cluster.operating import audited, hinted
from tests.integration.cluster.role_process import RoleProcess
from tests.integration.load import Load
from tests.integration.people import PATIENCE_SECONDS, acked, arrived, seen, text_of
from tests.integration.raw_client import RawClient, token
from tests.integration.served import eventually
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
            # By number: a push that was lost lets a later one be told first.
            new = sorted(await reader.take_new(), key=lambda message: message.conversation_seq)
            got = [message.body for message in new]
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


def test_the_audit_command_asks_the_auditor(cluster: Cluster) -> None:
    assert audited(cluster)["verdict"] == "CLEAN"
    ended = commanded(cluster.operator("admin"), "audit")
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert report["verdict"] == "CLEAN", report
    assert report["records"] > 0


def test_each_process_serves_and_says_so(cluster: Cluster) -> None:
    held = {"writer": PARTITIONS, "fanout": PARTITIONS, "mailbox": SHARDS, "session": SHARDS}
    for process in cluster.processes.values():
        for path in ("/healthz", "/readyz", "/livez"):
            asyncio.run(eventually(lambda ask=(process, path): ask[0].get(ask[1])[0] == 200))
        for role, count in held.items():
            wanted = count if role == process.role else 0
            asyncio.run(eventually(lambda ask=(process, role, wanted): holds(*ask)))
        assert process.get("/audit")[0] == 404, "an operator's endpoint only tells"


def holds(process: RoleProcess, role: str, count: int) -> bool:
    return process.metric("qim_leases_held", role) == count


STAGES = {
    "writer": {"RECORDED", "OUTBOXED", "COMMITTED"},
    "fanout": {"DISPATCHED"},
    "mailbox": {"MAILBOXED"},
    "session": {"PROJECTED"},
    "gateway": {"PUSHED"},
}


def test_one_trace_id_goes_through_all_processes(
    cluster: Cluster, stores: Path, first_user: int
) -> None:
    async def main() -> None:
        one, other = first_user, first_user + 1
        async with device(cluster, one, stores) as sender, device(cluster, other, stores) as reader:
            await sender.online(PATIENCE_SECONDS)
            await reader.online(PATIENCE_SECONDS)
            async with await RawClient.log_in(cluster.target, other) as hinted_too:
                # Of a gateway only a push is traced, and the first may be lost while the gateway is dialled.
                await hinted(cluster, (one + 2, other), (hinted_too,))
            where = acked(await sender.send("follow me", to=other, timeout=PATIENCE_SECONDS))
            await arrived(reader, where.conversation_id, where.conversation_seq)
            await eventually(lambda: any(stages == STAGES for stages in traced(cluster).values()))

    asyncio.run(main())


def traced(cluster: Cluster) -> dict[str, dict[str, set[str]]]:
    """By trace id: which stages which role's log tells of it."""
    found: dict[str, dict[str, set[str]]] = {}
    for process in cluster.roles(*STAGES):
        for record in process.log_records():
            if (trace_id := record.get("trace_id")) is not None:
                by_role = found.setdefault(trace_id, {})
                by_role.setdefault(process.role, set()).add(record["event"])
    return found


def test_a_topic_made_anew_is_noticed_by_its_id(cluster: Cluster) -> None:
    """Another topic under the name this deployment was begun with: offsets would begin again, and mean other messages."""
    other = f"{cluster.name}.another"
    asyncio.run(make_topics(replace(cluster.kafka_settings(), outbox_topic=other)))
    with refused_start(cluster, "fanout", QIM_OUTBOX_TOPIC=other) as log:
        assert "topic_id_outbox" in log


def test_a_writer_number_that_is_taken_is_refused(cluster: Cluster) -> None:
    """Under the TTL of the one that holds it, which renews it: waiting does not help."""
    taken = cluster.process("writer-1").ready["writer_id"]
    with refused_start(cluster, "writer", QIM_WRITER_ID=str(taken)) as log:
        assert "[writer_id_taken]" in log


@contextmanager
def refused_start(cluster: Cluster, role: str, **told: str) -> Iterator[str]:
    """A process that must be refused, with its log."""
    stranger = cluster.add(role, 9, **told)
    try:
        with pytest.raises(ServerFailed):
            stranger.start()
        assert stranger.process.status == 2, stranger.log()
        yield stranger.log()
    finally:
        stranger.kill()
        del cluster.processes[stranger.name]


def test_other_shared_numbers_are_refused_by_name(cluster: Cluster) -> None:
    """Whoever came first has written them; this one would keep history for another time."""
    with refused_start(cluster, "fanout", QIM_HISTORY_HOT_WINDOW_MS="14400000") as log:
        assert "hot_window_ms" in log
        assert "export QIM_HISTORY_HOT_WINDOW_MS=604800000" in log


def test_shared_numbers_are_not_changed_under_processes_at_work(cluster: Cluster) -> None:
    settings = cluster.operator("admin") | {"QIM_HISTORY_HOT_WINDOW_MS": "14400000"}
    ended = told(settings, "config", "share", "--apply")
    assert ended.returncode == 2
    assert "[cluster_at_work]" in ended.stderr
