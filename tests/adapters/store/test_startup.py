"""What a server must be: every refusal says what was found, what is needed and the command that puts it right."""

import asyncio
import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from qim.adapters.redis import startup
from qim.adapters.redis.address import StoreAddress
from qim.adapters.redis.connection import ConnectionConfig
from qim.adapters.redis.startup import (
    ServerFacts,
    StoreRefused,
    judge_self_test,
    judge_server,
)
from qim.adapters.redis.store import RedisStore
from qim.adapters.start_refused import StartRefused
from tests.adapters.store.adapter_asked import PATIENT, READY_MS
from tests.adapters.store.servers import LOCALE, Store, has_locale, running
from tests.adapters.store.stand_in import GOOD_SETTINGS, StandIn, info, standing_in
from tests.integration.testbed.redis import RedisCluster, RedisServer, valkey_binary

HERE = StoreAddress(host="127.0.0.1", port=6390)
ON_SERVERS = (pytest.mark.servers, pytest.mark.xdist_group("redis"))


def facts(text: bytes | None = None, **settings: str) -> ServerFacts:
    named = {name.replace("_", "-"): value for name, value in settings.items()}
    return ServerFacts(info=info() if text is None else text, settings=GOOD_SETTINGS | named)


@pytest.mark.parametrize(
    "good",
    [
        facts(),
        facts(info(redis_version="7.2.4")),
        facts(info(redis_version="10.0.0")),
        facts(info(redis_version="8.0.0-rc1")),
        facts(info(redis_mode="", server_mode="standalone", valkey_version="9.1.2")),
        facts(appendfsync="always"),
    ],
)
def test_good_servers(good: ServerFacts) -> None:
    assert judge_server(good, HERE) == ()


@pytest.mark.parametrize(
    ("code", "got", "command", "bad"),
    [
        ("redis_version_old", "6.2.14", "apt-get", facts(info(redis_version="6.2.14"))),
        ("redis_version_unproven", "7.0", "info server", facts(info(redis_version="7.0"))),
        ("redis_version_unproven", "v7.0.0", "info", facts(info(redis_version="v7.0.0"))),
        ("redis_version_unproven", "absent", "info", facts(info(redis_version=""))),
        ("redis_version_unproven", "and", "info", facts(info("redis_version:7.0.0"))),
        ("redis_cluster", "cluster", "--cluster-enabled no", facts(info(redis_mode="cluster"))),
        ("redis_cluster", "unknown", "--cluster-enabled no", facts(info(redis_mode=""))),
        ("redis_aof_off", "no", "config set appendonly yes", facts(appendonly="no")),
        (
            "redis_appendfsync_no",
            "no",
            "config set appendfsync everysec",
            facts(appendfsync="no"),
        ),
        (
            "redis_evicts",
            "allkeys-lru",
            "config set maxmemory-policy noeviction",
            facts(maxmemory_policy="allkeys-lru"),
        ),
        ("redis_evicts", "unknown", "config set maxmemory-policy", facts(maxmemory_policy="")),
    ],
)
def test_bad_servers(code: str, got: str, command: str, bad: ServerFacts) -> None:
    with pytest.raises(StoreRefused) as refusal:
        judge_server(bad, HERE)
    error = refusal.value
    assert error.code == code
    assert got in error.got
    assert command in error.command
    for part in (error.got, error.expected, error.command, str(HERE)):
        assert part
        assert part in str(error)
    if "config set" in command:
        assert error.command.startswith(f"redis-cli -p 6390 {command}")


@pytest.mark.parametrize(
    ("text", "fsync", "told"),
    [
        (info(redis_version="7.0.15"), "everysec", True),
        (info(redis_version="7.0.15"), "always", False),
        (info(redis_version="7.2.0"), "everysec", False),
        (info("valkey_version:9.1.2", redis_version="7.0.4"), "everysec", False),
    ],
)
def test_a_server_that_may_leave_a_hole_is_told_of(text: bytes, fsync: str, told: bool) -> None:
    advice = startup.advice(facts(text, appendfsync=fsync), HERE)
    assert bool(advice) is told
    for found, do in advice:
        assert "7.0.15" in found
        assert "redis-cli -p 6390 config set appendfsync always" in do


def test_the_self_test_passes_everywhere(store: Store) -> None:
    call = startup.self_test_call()
    judge_self_test(call, store.raw(*call), HERE)


def test_the_self_test_can_fail(store: Store) -> None:
    call = startup.self_test_call()
    raw = store.raw(*call)
    for place in (1, 2, 3, len(raw) - 1):
        wrong = list(raw)
        wrong[place] = b"1" if wrong[place] == b"0" else b"0"
        with pytest.raises(StoreRefused, match="1 wrong answer"):
            judge_self_test(call, wrong, HERE)
    for nonsense in (None, [], raw[:-1]):
        with pytest.raises(StoreRefused):
            judge_self_test(call, nonsense, HERE)


def test_the_other_locale_is_one_that_matters() -> None:
    """Else the suite's run under it would prove nothing: there Lua's own `<` goes wrong."""
    if not has_locale():
        pytest.skip(f"locale {LOCALE} is not installed (apt-get install locales)")
    with running(valkey_binary(), locale=LOCALE) as client:
        assert client.eval("return 'a' < 'B' and 1 or 0", 0) == 1
    with running(valkey_binary()) as client:
        assert client.eval("return 'a' < 'B' and 1 or 0", 0) == 0


# Stand-ins -------------------------------------------------------------------------------------------


async def tried(address: StoreAddress, **how: Any) -> tuple[str, ...]:
    where = ConnectionConfig(address=address, **PATIENT)
    store = await RedisStore.open(
        where, on_reset=lambda reset: None, **{"ready_timeout_ms": READY_MS, **how}
    )
    await store.close()
    return store.waived


def stood_in(server: StandIn, **how: Any) -> StoreRefused:
    async def main() -> None:
        async with standing_in(server) as address:
            await tried(address, **how)

    with pytest.raises(StoreRefused) as refusal:
        asyncio.run(main())
    assert b"SET" not in server.asked
    return refusal.value


@pytest.mark.parametrize("unsafe_dev", [False, True])
@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("redis_version_old", info(redis_version="6.2.14")),
        ("redis_version_unproven", info(redis_version="")),
        ("redis_version_unproven", info("redis_version:7.2.0")),
        ("redis_version_unproven", info(redis_version="7.x.0")),
        ("redis_cluster", info(redis_mode="cluster")),
    ],
)
def test_what_is_never_waived(code: str, text: bytes, unsafe_dev: bool) -> None:
    server = StandIn(info_text=text, settings={"appendonly": "no"})
    assert stood_in(server, unsafe_dev=unsafe_dev).code == code
    assert b"EVALSHA" not in server.asked


@pytest.mark.parametrize("unsafe_dev", [False, True])
def test_a_server_whose_lua_compares_otherwise_is_refused(unsafe_dev: bool) -> None:
    refused = stood_in(
        StandIn(info_text=info(), script=b"*1\r\n$1\r\nK\r\n"), unsafe_dev=unsafe_dev
    )
    assert refused.code == "redis_comparison"


class GoneOnce(StandIn):
    """Ends the connection at its first question about settings."""

    def answer(self, words: list[bytes]) -> bytes:
        if words[0] == b"CONFIG" and len(self.connections) == 1:
            raise ConnectionResetError
        return super().answer(words)


def test_a_server_that_goes_away_while_it_is_looked_at_is_looked_at_again() -> None:
    server = GoneOnce(info_text=info())
    # The stand-in's Lua is none: that it comes to be judged shows that the look was taken again.
    assert stood_in(server).code == "redis_comparison"
    assert len(server.connections) == 2


def test_an_info_without_a_run_is_no_server_to_talk_to() -> None:
    async def main() -> None:
        async with standing_in(StandIn(info_text=info(run_id=""))) as address:
            await tried(address, ready_timeout_ms=300)

    with pytest.raises(Exception, match="INFO names no run_id"):
        asyncio.run(main())


# Real servers ----------------------------------------------------------------------------------------


@pytest.fixture(params=["valkey", pytest.param("redis", marks=ON_SERVERS)])
def binary(request: pytest.FixtureRequest) -> str | None:
    return valkey_binary() if request.param == "valkey" else None


@pytest.fixture
def servers(binary: str | None, tmp_path: Path) -> Iterator["Servers"]:
    servers = Servers(tmp_path, binary)
    yield servers
    for server in servers.started:
        server.kill()


class Servers:
    """Starts as many as a test needs."""

    def __init__(self, directory: Path, binary: str | None) -> None:
        self._directory = directory
        self._binary = binary
        self.started: list[RedisServer] = []

    def start(self, **settings: str) -> RedisServer:
        named = {name.replace("_", "-"): value for name, value in settings.items()}
        place = self._directory / str(len(self.started))
        server = RedisServer(place, binary=self._binary, settings=named)
        server.start()
        self.started.append(server)
        return server


def refused_by(server: RedisServer, **how: Any) -> StoreRefused:
    address = how.pop("address", None) or StoreAddress.parse(server.address)
    with pytest.raises(StoreRefused) as refusal:
        asyncio.run(tried(address, **how))
    return refusal.value


LOSING = {
    "redis_aof_off": {"appendonly": "no"},
    "redis_appendfsync_no": {"appendfsync": "no"},
    "redis_evicts": {"maxmemory_policy": "allkeys-lru"},
}


@pytest.mark.parametrize("code", LOSING)
def test_a_server_that_may_lose_data_is_refused(servers: Servers, code: str) -> None:
    server = servers.start(**LOSING[code])
    assert refused_by(server).code == code
    with server.client() as client:
        assert client.dbsize() == 0, "refused before any write"


@pytest.mark.parametrize("code", LOSING)
@pytest.mark.parametrize("binary", [pytest.param(None, marks=ON_SERVERS)])
def test_the_command_of_a_refusal_puts_it_right(servers: Servers, code: str) -> None:
    server = servers.start(**LOSING[code])
    subprocess.run(refused_by(server).command, shell=True, check=True)
    assert asyncio.run(tried(StoreAddress.parse(server.address))) == ()


def test_a_developer_may_lose_what_is_his(servers: Servers) -> None:
    server = servers.start(appendonly="no", appendfsync="no", maxmemory_policy="allkeys-lru")
    waived = asyncio.run(tried(StoreAddress.parse(server.address), unsafe_dev=True))
    assert [words.partition(":")[0] for words in waived] == [
        "appendonly no",
        "appendfsync no",
        "maxmemory-policy allkeys-lru",
    ]


@pytest.mark.parametrize("host", ["redis.example.org", "10.1.2.3", "0.0.0.0", "localhost.evil.org"])
def test_losing_data_elsewhere_is_nobodys_own(host: str) -> None:
    """Refused before anything is dialled."""
    with pytest.raises(StoreRefused) as refusal:
        asyncio.run(tried(StoreAddress(host=host), unsafe_dev=True))
    assert refusal.value.code == "redis_unsafe_dev_elsewhere"
    assert refusal.value.command == "export QIM_REDIS_ALLOW_UNSAFE_DEV=0"


@pytest.mark.parametrize("unsafe_dev", [False, True])
def test_a_cluster_without_slots_is_refused(servers: Servers, unsafe_dev: bool) -> None:
    refused = refused_by(servers.start(cluster_enabled="yes"), unsafe_dev=unsafe_dev)
    assert (refused.code, refused.got) == ("redis_cluster", "cluster")


@pytest.mark.servers
@pytest.mark.xdist_group("redis")
def test_every_master_of_a_real_cluster_is_refused(tmp_path: Path) -> None:
    """Also the one whose slot holds qim:incarnation: it answers the whole first exchange like any other server."""
    cluster = RedisCluster(tmp_path)
    cluster.start()
    try:
        owners = 0
        for master in cluster.masters:
            for unsafe_dev in (False, True):
                refused = refused_by(master, unsafe_dev=unsafe_dev)
                assert (refused.code, refused.got) == ("redis_cluster", "cluster")
                assert "standalone" in refused.expected
            with master.client() as client:
                with contextlib.suppress(redis.exceptions.MovedError):
                    owners += client.get("qim:incarnation") is None
                assert client.dbsize() == 0
        assert owners == 1
    finally:
        cluster.stop()


def test_a_user_who_may_not_look_is_refused(servers: Servers) -> None:
    server = servers.start()
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "q", "on", ">hunter2", "~*", "+@all", "-config")
    who = StoreAddress(host="127.0.0.1", port=server.port, username="q", password="hunter2")
    refused = refused_by(server, address=who)
    assert refused.code == "redis_config_unreadable"
    assert "hunter2" not in str(refused)
    assert "--askpass" in refused.command
    assert "--user q" not in refused.command, "it may change nothing, least of all its own rights"
    assert asyncio.run(tried(who, unsafe_dev=True)), "what can't be read is what may be waived"


@pytest.mark.parametrize(
    ("username", "password", "said"),
    [("q", "wrong-one", "WRONGPASS"), ("q", "hunter2", "NOPERM"), ("", "", "NOAUTH")],
)
def test_a_login_that_fails_is_told_at_once(
    servers: Servers, username: str, password: str, said: str
) -> None:
    server = servers.start()
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "q", "on", ">hunter2", "~*", "+@all", "-info")
        client.config_set("requirepass", "hunter3")
    who = StoreAddress(host="127.0.0.1", port=server.port, username=username, password=password)
    refused = refused_by(server, address=who, ready_timeout_ms=3_600_000)
    assert refused.code == "redis_login"
    assert said in refused.got
    for secret in ("wrong-one", "hunter2", "hunter3"):
        assert secret not in str(refused)


@pytest.mark.parametrize("denied", ["-config", "-info"])
@pytest.mark.parametrize("binary", [pytest.param(None, marks=ON_SERVERS)])
def test_the_command_for_a_user_puts_it_right(servers: Servers, denied: str) -> None:
    """As an operator pastes it, who knows the server's own password and the one the user is to have."""
    server = servers.start()
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "q", "on", ">hunter2", "~*", "+@all", denied)
        client.config_set("requirepass", "hunter3")
    who = StoreAddress(host="127.0.0.1", port=server.port, username="q", password="hunter2")
    command = refused_by(server, address=who).command.replace("SECRET", "hunter2")
    done = subprocess.run(command, shell=True, input="hunter3\n", capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["OK"], (command, done.stdout, done.stderr)
    assert asyncio.run(tried(who)) == ()


def test_a_refusal_is_a_start_refused() -> None:
    assert issubclass(StoreRefused, StartRefused)
