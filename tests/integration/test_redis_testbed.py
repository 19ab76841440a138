"""The test bed's own claims about Redis: a lost tail is what it says, and somebody's server is not harmed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.testbed import redis as testbed
from tests.integration.testbed.redis import (
    GIVEN,
    GivenServerRefused,
    RedisServer,
    empty_redis,
    given_redis,
    valkey_binary,
)


@pytest.fixture(
    params=[
        "valkey",
        pytest.param("redis", marks=(pytest.mark.servers, pytest.mark.xdist_group("redis"))),
    ]
)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    # Under everysec a write waits for a sync that is under way, and a kill alone may take it: nothing to count by.
    settings = {"appendfsync": "always"}
    binary = valkey_binary() if request.param == "valkey" else None
    server = RedisServer(tmp_path, binary=binary, settings=settings)
    server.start()
    yield server
    server.kill()


def values(server: RedisServer) -> list[bytes]:
    with server.client() as client:
        return sorted(client.keys("*"))


def written(server: RedisServer, *names: str) -> None:
    with server.client() as client:
        for name in names:
            client.set(name, "v" * 50)


def test_a_kill_alone_loses_nothing_and_is_another_run(server: RedisServer) -> None:
    written(server, "a", "b")
    with server.client() as client:
        before = client.info("server")["run_id"]
    assert server.restart() == 0
    assert values(server) == [b"a", b"b"]
    with server.client() as client:
        assert client.info("server")["run_id"] != before


def test_a_tail_is_lost_from_its_end(server: RedisServer) -> None:
    written(server, "a", "b", "c")
    assert server.restart(lose_bytes=1) == 1
    assert values(server) == [b"a", b"b"], "half a command is no command"
    assert server.restart(lose_fraction=0.3) > 0
    assert values(server) == [b"a"]
    assert server.restart(lose_fraction=1.0) > 0
    assert values(server) == []


def test_a_script_is_lost_whole_or_not_at_all(server: RedisServer) -> None:
    written(server, "a")
    with server.client() as client:
        client.eval("for n = 1, 9 do redis.call('SET', 's' .. n, n) end", 0)
    server.restart(lose_bytes=60)
    assert values(server) == [b"a"]


def test_the_base_of_a_rewritten_file_stays(server: RedisServer) -> None:
    written(server, "a", "b")
    with server.client() as client:
        client.bgrewriteaof()
        while client.info("persistence")["aof_rewrite_in_progress"]:
            pass
    written(server, "c")
    server.kill()
    (last,) = server.aof_files()
    size = last.stat().st_size
    assert server.lose_tail(bytes_lost=1 << 30) == size, "no more than there is"
    server.start()
    assert values(server) == [b"a", b"b"]


def test_a_running_server_is_not_cut(server: RedisServer) -> None:
    with pytest.raises(AssertionError, match="running"):
        server.lose_tail(bytes_lost=1)


@pytest.fixture
def lent(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisServer]:
    """As if an operator had named it."""
    monkeypatch.setenv(GIVEN, server.address)
    monkeypatch.setattr(testbed, "_claimed", {})
    yield server
    for claim in testbed._claimed.values():
        claim.close()


def test_a_given_server_with_data_is_refused_and_untouched(lent: RedisServer) -> None:
    written(lent, "precious")
    with pytest.raises(GivenServerRefused, match="holds 1 keys"):
        given_redis()
    assert values(lent) == [b"precious"]


def test_a_given_server_is_left_empty(lent: RedisServer, tmp_path: Path) -> None:
    with empty_redis(tmp_path / "unused") as server, server.client() as client:
        assert server.address == lent.address
        client.set("a", "b")
    assert values(lent) == []
    assert not (tmp_path / "unused").exists()


def test_a_given_server_serves_one_run_of_tests(
    lent: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert given_redis() is not None
    assert given_redis() is not None, "the same process may ask again"
    held, other = testbed._claimed, {}  # type: ignore[var-annotated]
    monkeypatch.setattr(testbed, "_claimed", other)
    with pytest.raises(GivenServerRefused, match="WORKERS=1"):
        given_redis()
    for claim in held.values():
        claim.close()


def test_a_missing_server_is_told_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(testbed.ServerMissing, match="apt-get install redis-server"):
        testbed.redis_server_binary()


def test_no_server_named_means_one_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(GIVEN, raising=False)
    assert given_redis() is None
