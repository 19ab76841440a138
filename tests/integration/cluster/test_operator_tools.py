"""The operator's tools on real servers: a doctor that finds what is broken, orders that leave a serving cluster alone."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from qim.core.contract.frames import Error
from qim.core.contract.ids import dedupe_key
from qim.core.ports.log import Topic
from tests.integration.cluster.cluster import Cluster, make_topics
from tests.integration.cluster.commands import commanded
from tests.integration.cluster.operating import (
    HEARS,
    SAYS,
    audited,
    cut_outbox,
    delete_topic,
    examined,
    heard,
    hinted,
    ordered,
    passed_by_fanout,
    say,
)
from tests.integration.cluster.role_process import RoleProcess
from tests.integration.raw_client import RawClient, message
from tests.integration.served import eventually
from tests.integration.testbed.server_process import ServerFailed

TRACED = ("writer", "fanout", "mailbox", "session", "gateway")
"""One grep shows a message in each of them."""
pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("cluster")]


def test_the_doctor_and_the_orders_on_a_cluster_that_serves_and_one_that_lost_its_writer(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path / "cluster") as cluster:

        async def talk() -> str:
            async with await RawClient.log_in(cluster.target, HEARS) as peer:
                # Pulled sooner, and gone, it would be pushed to nobody: of a gateway only a push is traced.
                sent = await hinted(cluster, (SAYS, HEARS), (peer,))
                return dedupe_key("default", SAYS, sent.client_message_id)[:8].hex()

        trace = asyncio.run(talk())
        asyncio.run(eventually(lambda: all(trace in one.log() for one in cluster.roles(*TRACED))))
        assert audited(cluster)["verdict"] == "CLEAN"
        status, found = examined(cluster, "--deep")
        failed = [one for one in found if one["state"] == "fail"]
        # The configuration says where a gateway listens as a rule; this one has a free port.
        assert {one["subject"].split(" at ")[0] for one in failed} <= {
            "gateway",
            "configuration of gateway",
        }, failed
        subjects = {one["subject"] for one in found if one["state"] == "ok"}
        assert {"shared parameters", "leases of writer", "leases of mailbox", "lag"} <= subjects
        assert {"outbox 0 against its facts", "mailbox shard 0 against its log"} <= subjects
        for words in (("deadletter", "list"), ("repair", "dispatch"), ("repair", "outbox")):
            status, report = ordered(cluster, *words)
            assert (status, report.get("refused")) == (0, None), report
        status, report = ordered(cluster, "shard", "bump", "--shard", "0", "--apply")
        assert status == 1
        assert "is held by mailbox" in report["refused"]
        orders_of_others_are_refused(cluster)
        (writer,) = cluster.roles("writer")
        writer.kill()
        status, found = examined(cluster)
        assert status == 1
        silent = [one for one in found if one["subject"].startswith("writer at ")]
        assert [one["page"] for one in silent] == ["shards-not-serving"]
        assert "--process writer=HOST:PORT" in silent[0]["do"]


def orders_of_others_are_refused(cluster: Cluster) -> None:
    """In plaintext and on loopback everything else; what changes something still needs the admin's certificate and key."""
    (auditor,) = cluster.roles("auditor")
    words = ("shard", "bump", "--shard", "0", "--apply")
    writers = commanded(cluster.operator("writer"), *words)
    assert (writers.returncode, "[admin_wrong_role]" in writers.stderr) == (2, True), writers.stderr
    nobodys = commanded(cluster.settings(), *words)
    assert (nobodys.returncode, "[admin_certificate_missing]" in nobodys.stderr) == (2, True)
    for role, code in (("writer", "[admin_wrong_role]"), ("admin", "is held by mailbox")):
        alone = commanded(cluster.operator(role), *words, "--without-auditor")
        assert code in alone.stderr + alone.stdout

    def refusals() -> list[dict[str, Any]]:
        return [one for one in auditor.log_records() if one.get("code") == "wrong_role"]

    asyncio.run(eventually(lambda: bool(refusals())))
    orders = [one for one in auditor.log_records() if one["event"] == "admin order"]
    assert {one["certificate_sha256"] for one in orders} == {cluster.chain.fingerprints["admin"]}
    (refused,) = refusals()
    assert refused["certificate_sha256"] == cluster.chain.fingerprints["writer"]


# ------------------------------------------------------------ a topic made anew


def test_a_dispatch_topic_made_anew_is_a_bump_away_from_serving(tmp_path: Path) -> None:
    """Nobody starts over it until the operator's word; then every device has everything, and the audit is CLEAN."""
    with Cluster(tmp_path / "cluster") as cluster:
        last = asyncio.run(say(cluster, b"one", b"two"))
        assert asyncio.run(heard(cluster, last, b"d1")) == [b"one", b"two"]
        readers = cluster.roles("fanout", "mailbox", "session")
        for process in readers:
            assert process.stop() == 0
        asyncio.run(delete_topic(cluster, Topic.DISPATCH))
        asyncio.run(make_topics(cluster.kafka_settings()))
        status, found = examined(cluster)
        assert status == 1
        anew = [one for one in found if one["subject"] == "shared topic_id_dispatch"]
        assert [one["page"] for one in anew] == ["position-mismatch"]
        refused = RoleProcess("mailbox-9", "mailbox", tmp_path / "refused", readers[1].settings)
        with pytest.raises(ServerFailed, match="topic_id_dispatch"):
            refused.start()
        status, report = ordered(cluster, "shard", "bump", "--apply")
        assert (status, report.get("refused")) == (0, None), report
        assert all(one["new_shard_epoch"] == 2 for one in report["found"] if one["applied"])
        cluster.start_processes(readers)
        last = asyncio.run(say(cluster, b"three"))
        assert asyncio.run(heard(cluster, last, b"d2"))[-1] == b"three"
        assert audited(cluster)["verdict"] == "CLEAN"


def test_an_outbox_topic_made_anew_gets_back_what_the_hot_store_has(tmp_path: Path) -> None:
    """Acked messages nobody had dispatched are delivered once; those that were delivered are delivered no second time."""
    with Cluster(tmp_path / "cluster") as cluster:
        last = asyncio.run(say(cluster, b"one", b"two"))
        asyncio.run(heard(cluster, last, b"d1"))
        (writer,), (fanout,) = cluster.roles("writer"), cluster.roles("fanout")
        asyncio.run(eventually(lambda: passed_by_fanout(cluster)))
        assert fanout.stop() == 0
        last = asyncio.run(say(cluster, b"acked, not dispatched"))
        assert writer.stop() == 0
        asyncio.run(delete_topic(cluster, Topic.OUTBOX))
        asyncio.run(make_topics(cluster.kafka_settings()))
        status, report = ordered(cluster, "repair", "outbox")
        assert status == 1
        lost = [(one["lost_dispatched"], one["lost_undispatched"]) for one in report["found"]]
        assert tuple(map(sum, zip(*lost, strict=True))) == (2, 1)
        (auditor,) = cluster.roles("auditor")
        auditor.kill()  # as after a power cut: none can start before the repair, as the topic is another
        unasked = commanded(cluster.operator("admin"), "repair", "outbox", "--apply")
        assert (unasked.returncode, unasked.stdout) == (3, ""), unasked.stderr
        words = ("repair", "outbox", "--apply", "--without-auditor")
        status, report = ordered(cluster, *words)
        assert (status, report.get("refused")) == (0, None), report
        cluster.start_processes([writer, fanout, auditor])
        assert asyncio.run(heard(cluster, last, b"d2")) == [
            b"one",
            b"two",
            b"acked, not dispatched",
        ]
        last = asyncio.run(say(cluster, b"and on"))
        assert asyncio.run(heard(cluster, last, b"d3"))[-1] == b"and on"
        assert audited(cluster)["verdict"] == "CLEAN"


def test_an_outbox_that_lost_its_tail_under_running_processes_is_told_and_filled_up(
    tmp_path: Path,
) -> None:
    """A broker's power cut. Fanout had read what is gone, and stops; the writer had confirmed it, and stops at its next append."""
    with Cluster(tmp_path / "cluster", lent=False) as cluster:
        last = asyncio.run(say(cluster, b"one", b"two"))
        assert asyncio.run(heard(cluster, last, b"d1")) == [b"one", b"two"]
        asyncio.run(eventually(lambda: passed_by_fanout(cluster)))
        (writer,), (fanout,), (broker,) = (
            cluster.roles("writer"),
            cluster.roles("fanout"),
            cluster.kafka,
        )
        broker.kill()
        number = cut_outbox(cluster, tmp_path / "cluster", b"two")
        broker.process.launch()
        broker.process.wait_ready()

        async def refused() -> None:
            async with await RawClient.log_in(cluster.target, SAYS) as sender:
                answer = await sender.answer(sender.say(message(b"three", peer_user_id=HEARS)))
                assert isinstance(answer, Error), "whatever its code: it was not taken"

        asyncio.run(eventually(lambda: told(fanout, "position_mismatch")))
        asyncio.run(refused())
        asyncio.run(eventually(lambda: told(writer, "outbox_truncated")))
        for process in (writer, fanout):
            assert process.get("/readyz")[0] == 503
            assert process.stop() == 0
        words = ("repair", "outbox", "--partition", str(number))
        status, report = ordered(cluster, *words)
        assert (status, report["found"][0]["lost_dispatched"]) == (1, 1), report
        status, report = ordered(cluster, *words, "--apply")
        assert (status, report.get("refused")) == (0, None), report
        cluster.start_processes([writer, fanout])
        last = asyncio.run(say(cluster, b"and on"))
        found = asyncio.run(heard(cluster, last, b"d2"))
        assert found.count(b"three") <= 1, "it was never acked, and stands in the log"
        assert [body for body in found if body != b"three"] == [b"one", b"two", b"and on"]
        assert audited(cluster)["verdict"] == "CLEAN"


def told(process: RoleProcess, check: str) -> bool:
    """It says so where Prometheus and a balancer look."""
    return process.metric("qim_violation_total", check) > 0


def test_both_topics_made_anew_one_after_the_other_leave_no_orphan(tmp_path: Path) -> None:
    """What was delivered and never audited is published again behind the mark of the bump: nothing of it is an orphan."""
    with Cluster(tmp_path / "cluster") as cluster:
        last = asyncio.run(say(cluster, *(b"delivered %d" % n for n in range(20))))
        assert len(asyncio.run(heard(cluster, last, b"d1"))) == 20
        stopped = cluster.roles("writer", "fanout", "mailbox", "session", "auditor")
        for process in stopped:
            assert process.stop() == 0
        for topic, words in (
            (Topic.DISPATCH, ("shard", "bump")),
            (Topic.OUTBOX, ("repair", "outbox")),
        ):
            asyncio.run(delete_topic(cluster, topic))
            asyncio.run(make_topics(cluster.kafka_settings()))
            status, report = ordered(cluster, *words, "--apply", "--without-auditor")
            assert (status, report.get("refused")) == (0, None), report
        cluster.start_processes(stopped)
        last = asyncio.run(say(cluster, b"and on"))
        assert asyncio.run(heard(cluster, last, b"d2"))[-1] == b"and on"
        report = audited(cluster)
        assert (report["verdict"], report["orphans"]) == ("CLEAN", [])
        (auditor,) = cluster.roles("auditor")
        assert auditor.get("/healthz")[0] == 200
