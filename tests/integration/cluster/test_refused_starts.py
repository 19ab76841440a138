"""A start that is refused wrote nothing: neither to the stores nor to the registry, and nobody was listened to."""

import json
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from urllib.request import Request, urlopen

import pytest

from tests.integration.cluster import commands
from tests.integration.cluster.cluster import Cluster
from tests.integration.cluster.role_process import RoleProcess
from tests.integration.testbed.redis import RedisCluster
from tests.integration.testbed.server_process import ServerFailed, accepts, free_port

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("cluster")]

READERS = ("writer", "fanout", "mailbox", "session", "auditor")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Servers alone, and no topics."""
    cluster = Cluster(tmp_path_factory.mktemp("bare"), counts={})
    try:
        cluster.start_servers(topics=False)
        yield cluster
    finally:
        cluster.end()


def refused(process: RoleProcess) -> str:
    """What it said; it must have ended with 2."""
    with pytest.raises(ServerFailed):
        process.start()
    assert process.process.status == 2, process.log()
    return process.log()


def wrote_nothing(cluster: Cluster) -> bool:
    """Both stores are empty, and the registry knows nothing of this deployment."""
    for store in (cluster.message_redis, cluster.mailbox_redis):
        with store.client() as client:
            if client.dbsize():
                return False
    endpoint, prefix = (
        cluster.settings()[name].encode() for name in ("QIM_ETCD_ENDPOINTS", "QIM_ETCD_PREFIX")
    )
    behind = prefix[:-1] + bytes((prefix[-1] + 1,))
    asked = {"key": b64encode(prefix).decode(), "range_end": b64encode(behind).decode()}
    request = Request(
        f"http://{endpoint.decode()}/v3/kv/range", data=json.dumps(asked).encode(), method="POST"
    )
    with urlopen(request, timeout=30) as answer:
        return "kvs" not in json.load(answer)


@pytest.mark.parametrize("role", READERS)
def test_without_topics(bare: Cluster, role: str) -> None:
    process = bare.add(role, 1)
    assert "[kafka_topic_missing]" in refused(process)
    assert wrote_nothing(bare)
    for name in ("QIM_WRITER_LISTEN", "QIM_MAILBOX_LISTEN", "QIM_SESSION_LISTEN"):
        address = process.settings.get(name)
        assert address is None or not accepts(int(address.rpartition(":")[2]))


@pytest.mark.parametrize("role", ["gateway", *READERS])
def test_with_a_store_that_forgets(bare: Cluster, role: str) -> None:
    """appendonly was switched off by somebody."""
    with bare.mailbox_redis.client() as client, bare.message_redis.client() as other:
        for one in (client, other):
            one.config_set("appendonly", "no")
        try:
            assert "[redis_aof_off" in refused(bare.add(role, 2))
        finally:
            for one in (client, other):
                one.config_set("appendonly", "yes")
    assert wrote_nothing(bare)


def test_with_a_registry_that_is_not_there(bare: Cluster) -> None:
    process = bare.add("gateway", 3, QIM_ETCD_ENDPOINTS="127.0.0.1:1")
    assert "[etcd_unreachable]" in refused(process)
    assert not accepts(int(process.settings["QIM_GATEWAY_LISTEN"].rpartition(":")[2]))
    assert wrote_nothing(bare)


def test_a_redis_cluster_of_three_masters(
    bare: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    masters = RedisCluster(tmp_path_factory.mktemp("masters"))
    masters.start()
    try:
        for number, name in enumerate(("QIM_REDIS_ADDR", "QIM_MAILBOX_REDIS_ADDR"), 4):
            process = bare.add("session", number, **{name: masters.addresses[0]})
            assert "[redis_cluster]" in refused(process)
    finally:
        masters.stop()
    assert wrote_nothing(bare)


def shared(bare: Cluster, *words: str, **told: str) -> subprocess.CompletedProcess[str]:
    """`qim config share` of this deployment, told this beside."""
    return commands.told(bare.operator("admin") | told, "config", "share", *words)


def test_shared_numbers_are_changed_by_an_operator_alone(bare: Cluster) -> None:
    """Last, as it writes: the first time all of them, then what may change, never what data is laid out by."""
    days = {"QIM_DEFAULT_HISTORY_RETENTION_DAYS": "60"}
    assert shared(bare).returncode == 1, "all of them differ from nothing"
    assert wrote_nothing(bare), "a dry run"
    words = ("config", "share", "--apply")
    writers = commands.told(bare.operator("writer"), *words)
    assert (writers.returncode, "[admin_wrong_role]" in writers.stderr) == (2, True)
    nobody = commands.told(bare.settings(), *words)
    assert (nobody.returncode, "[admin_certificate_missing]" in nobody.stderr) == (2, True)
    assert wrote_nothing(bare), "only an admin may"
    assert shared(bare, "--apply").returncode == 0
    same = shared(bare)
    assert (same.returncode, same.stdout) == (0, "the registry has the same\n")
    assert shared(bare, **days).returncode == 1
    dry = shared(bare, "--json", **days)
    assert dry.returncode == 1
    told = json.loads(dry.stdout)
    assert set(told["differences"]) == {"default_retention_ms", "shared_digest"}
    assert told["applied"] is False
    assert shared(bare, "--apply", **days).returncode == 0
    assert shared(bare, **days).stdout == "the registry has the same\n"
    unlawful = shared(bare, "--apply", QIM_HISTORY_HOT_WINDOW_MS="7200000", **days)
    assert (unlawful.returncode, "[config_parameters]" in unlawful.stderr) == (2, True)
    nobody = shared(bare, QIM_ETCD_ENDPOINTS=f"127.0.0.1:{free_port()}", **days)
    assert (nobody.returncode, "[etcd_unreachable]" in nobody.stderr) == (3, True)
    more = shared(bare, "--apply", QIM_MAILBOX_SHARD_COUNT="8", **days)
    assert more.returncode == 2
    assert "shard_count=4: stored data is laid out by it" in more.stderr
    assert "export QIM_MAILBOX_SHARD_COUNT=4 [shared_parameters_fixed]" in more.stderr
