"""The store behind TLS: a real redis-server that wants a certificate of its clients, and every way it may go wrong."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from qim.adapters.redis.address import StoreAddress
from qim.adapters.redis.connection import ConnectionConfig
from qim.adapters.redis.outcomes import NotConnected
from qim.adapters.redis.startup import StoreRefused
from qim.adapters.redis.store import RedisStore
from qim.adapters.tls.dev_chain import Authority
from qim.adapters.tls.outgoing import OutgoingTls
from qim.adapters.tls.pair import CLIENT_AUTH, SERVER_AUTH
from qim.core.ports import store_message as message
from tests.adapters.conftest import NewLoop
from tests.adapters.store.adapter_asked import PATIENT, READY_MS, SECONDS_MAX, ask
from tests.adapters.store.samples import sample
from tests.integration.testbed.redis import RedisServer, TlsFiles

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("redis")]


def chain(folder: Path) -> TlsFiles:
    """An authority, a certificate for 127.0.0.1 and one for its client; over those of an earlier one."""
    folder.mkdir(exist_ok=True)
    authority = Authority(folder.name, 1)
    until = datetime.now(UTC) + timedelta(hours=1)
    server = authority.issue("store", SERVER_AUTH, names=("127.0.0.1",), valid_until=until)
    client = authority.issue("writer", CLIENT_AUTH, valid_until=until)
    texts = (authority.certificate, server.certificate, server.key, client.certificate, client.key)
    files = TlsFiles(*(folder / f"{name}.pem" for name in TlsFiles._fields))
    for path, text in zip(files, texts, strict=True):
        path.write_bytes(text)
    return files


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "store", tls=chain(tmp_path / "ours"))
    server.start()
    yield server
    server.kill()


async def tried(address: StoreAddress, ready_timeout_ms: int = READY_MS) -> object:
    store = await RedisStore.open(
        ConnectionConfig(address=address, **PATIENT),
        on_reset=lambda reset: None,
        ready_timeout_ms=ready_timeout_ms,
    )
    try:
        (answer,) = await ask(store, sample(message.OpenShard))
        return answer
    finally:
        await store.close()


def test_a_store_behind_tls_serves(server: RedisServer, new_loop: NewLoop) -> None:
    address = StoreAddress.parse(server.address)
    assert address.tls
    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert isinstance(runner.run(tried(address)), message.ShardOpened)


def test_a_server_of_another_authority_is_refused_at_once(
    server: RedisServer, tmp_path: Path
) -> None:
    address = RedisServer(tmp_path, tls=chain(tmp_path / "theirs")).address
    theirs = replace(StoreAddress.parse(address), port=server.port)
    with pytest.raises(StoreRefused) as refusal:
        asyncio.run(tried(theirs))
    assert refusal.value.code == "redis_tls"
    assert "CERTIFICATE_VERIFY_FAILED" in refusal.value.got
    assert f"--tls --cacert {theirs.ca_path}" in refusal.value.command


def test_a_server_under_another_name_is_refused(server: RedisServer) -> None:
    """The certificate is for 127.0.0.1, not for localhost."""
    address = StoreAddress.parse(server.address.replace("127.0.0.1", "localhost"))
    with pytest.raises(StoreRefused) as refusal:
        asyncio.run(tried(address))
    assert refusal.value.code == "redis_tls"


def test_a_server_that_wants_our_certificate_lets_nobody_in_without(
    server: RedisServer, tmp_path: Path
) -> None:
    address = f"rediss://127.0.0.1:{server.port}?ca={tmp_path / 'ours' / 'ca.pem'}"
    with pytest.raises(StoreRefused) as refusal:
        asyncio.run(tried(StoreAddress.parse(address)))
    assert "cert=FILE&key=FILE" in refusal.value.expected
    plain = StoreAddress(host="127.0.0.1", port=server.port)
    assert "reset" in told_at_the_end(plain)


def told_at_the_end(address: StoreAddress) -> str:
    """What a start says that never gets in; one with so little time that no attempt ended in it says nothing yet."""
    for ready_ms in (500, 5_000, READY_MS):
        with pytest.raises(NotConnected) as refused:
            asyncio.run(tried(address, ready_timeout_ms=ready_ms))
        if "no answer" not in str(refused.value):
            break
    return str(refused.value)


async def opened(store: RedisStore) -> bool:
    """Asked once more; a store that isn't connected says so at once, so this lets it get on first."""
    await asyncio.sleep(0.02)
    (answer,) = await ask(store, sample(message.OpenShard))
    return isinstance(answer, message.ShardOpened)


def test_certificates_changed_under_way(server: RedisServer, tmp_path: Path) -> None:
    """The whole chain is another's after a restart: who has not read it again stays outside, and comes in once it has."""

    async def scenario() -> None:
        address = StoreAddress.parse(server.address)
        tls = OutgoingTls("redis message", address.tls_files())
        config = ConnectionConfig(address=replace(address, renewed=tls), **PATIENT)
        store = await RedisStore.open(
            config, on_reset=lambda reset: None, ready_timeout_ms=READY_MS
        )
        try:
            assert await opened(store)
            server.kill()
            chain(tmp_path / "ours")
            await asyncio.to_thread(server.start)
            for _ in range(2):
                assert not await opened(store)
            assert tls.reload()
            async with asyncio.timeout(SECONDS_MAX):
                while not await opened(store):
                    pass
        finally:
            await store.close()

    asyncio.run(scenario())


def test_tls_to_a_server_without_is_told(tmp_path: Path) -> None:
    address = RedisServer(tmp_path, tls=chain(tmp_path / "ours")).address
    server = RedisServer(tmp_path / "store")
    server.start()
    plain = replace(StoreAddress.parse(address), port=server.port)
    try:
        with pytest.raises(NotConnected, match=r"rediss://.*no answer"):
            asyncio.run(tried(plain, ready_timeout_ms=500))
    finally:
        server.kill()
