"""What a server must be: every refusal says what was found, what is expected and what to do."""

import asyncio
from typing import Any

import pytest

from qim.adapters.redis import startup
from qim.adapters.redis.connection import ConnectionConfig
from qim.adapters.redis.startup import ServerFacts, StoreRefused, judge_self_test, judge_server
from qim.adapters.redis.store import RedisStore
from tests.adapters.store.servers import (
    LOCALE,
    Store,
    has_locale,
    redis_binary,
    running,
    socket_of,
    valkey_binary,
)

INFO = {"redis_version": "7.0.0", "redis_mode": "standalone"}
SETTINGS = {"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction"}
DURABLE = ("--appendonly", "yes")


def facts(
    info: dict[str, str] | None = None, settings: dict[str, str] | None = None
) -> ServerFacts:
    return ServerFacts(info=INFO | (info or {}), settings=SETTINGS | (settings or {}))


@pytest.mark.parametrize(
    "good",
    [
        facts(),
        facts({"redis_version": "7.2.4"}),
        facts({"redis_version": "10.0.0"}),
        facts({"redis_version": "8.0.0-rc1"}),
        facts({"redis_mode": "", "server_mode": "standalone"}),
        facts(settings={"appendfsync": "always"}),
    ],
)
def test_good_servers(good: ServerFacts) -> None:
    judge_server(good)


@pytest.mark.parametrize(
    ("what", "got", "bad"),
    [
        ("redis_version", "6.2.14", facts({"redis_version": "6.2.14"})),
        ("redis_version", "7.0", facts({"redis_version": "7.0"})),
        ("redis_version", "unknown", facts({"redis_version": ""})),
        ("mode", "cluster", facts({"redis_mode": "cluster"})),
        ("mode", "unknown", facts({"redis_mode": ""})),
        ("appendonly", "no", facts(settings={"appendonly": "no"})),
        ("appendfsync", "no", facts(settings={"appendfsync": "no"})),
        ("maxmemory-policy", "allkeys-lru", facts(settings={"maxmemory-policy": "allkeys-lru"})),
        ("maxmemory-policy", "unknown", facts(settings={"maxmemory-policy": ""})),
    ],
)
def test_bad_servers(what: str, got: str, bad: ServerFacts) -> None:
    with pytest.raises(StoreRefused) as refusal:
        judge_server(bad)
    error = refusal.value
    assert what in error.what
    assert error.got == got
    for part in (error.got, error.expected, error.advice):
        assert part
        assert part in str(error)


def test_the_self_test_passes_everywhere(store: Store) -> None:
    call = startup.self_test_call()
    judge_self_test(call, store.raw(*call))


def test_the_self_test_can_fail(store: Store) -> None:
    call = startup.self_test_call()
    raw = store.raw(*call)
    for place in (1, 2, 3, len(raw) - 1):
        wrong = list(raw)
        wrong[place] = b"1" if wrong[place] == b"0" else b"0"
        with pytest.raises(StoreRefused, match="1 wrong answer"):
            judge_self_test(call, wrong)
    for nonsense in (None, [], raw[:-1]):
        with pytest.raises(StoreRefused):
            judge_self_test(call, nonsense)


def test_the_other_locale_is_one_that_matters() -> None:
    """Else the suite's run under it would prove nothing: there Lua's own `<` goes wrong."""
    binary = redis_binary() or valkey_binary()
    if not has_locale() or binary is None:
        pytest.skip(f"locale {LOCALE} is not installed")
    with running(binary, locale=LOCALE) as client:
        assert client.eval("return 'a' < 'B' and 1 or 0", 0) == 1
    with running(binary) as client:
        assert client.eval("return 'a' < 'B' and 1 or 0", 0) == 0


def open_refused(settings: tuple[str, ...], **other: Any) -> StoreRefused:
    binary = valkey_binary()
    assert binary is not None

    async def main(path: str) -> None:
        store = await RedisStore.open(
            ConnectionConfig(unix_path=path, **other), on_reset=lambda reset: None
        )
        await store.close()

    with running(binary, settings=settings) as client, pytest.raises(StoreRefused) as refusal:
        asyncio.run(main(socket_of(client)))
    return refusal.value


def test_a_server_without_aof_is_refused() -> None:
    assert open_refused(()).what == "appendonly"


def test_a_server_that_evicts_is_refused() -> None:
    refused = open_refused((*DURABLE, "--maxmemory-policy", "allkeys-lru"))
    assert (refused.what, refused.got) == ("maxmemory-policy", "allkeys-lru")


def test_a_server_that_never_syncs_is_refused() -> None:
    assert open_refused((*DURABLE, "--appendfsync", "no")).what == "appendfsync"


def test_a_cluster_is_refused() -> None:
    refused = open_refused((*DURABLE, "--cluster-enabled", "yes"))
    assert (refused.got, refused.expected) == ("cluster", "standalone")


def test_a_user_who_may_not_look_is_refused() -> None:
    user = ("--user", "q", "on", ">secret", "~*", "+@all", "-config")
    refused = open_refused((*DURABLE, *user), username="q", password="secret")
    assert refused.what == "CONFIG GET"
    assert "CONFIG GET" in refused.advice
