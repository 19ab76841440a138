"""The same cluster with mTLS between its processes and TLS 1.3 for clients; certificates read again under load."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from qim.client import Client, NotConnected
from tests.integration.cluster.cluster import Cluster
from tests.integration.cluster.conftest import drained
from tests.integration.load import Load
from tests.integration.raw_client import token
from tests.integration.served import eventually

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("cluster")]


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("encrypted"), encrypted=True) as running:
        yield running
        drained(running)


def test_users_under_load_and_certificates_read_again(
    encrypted: Cluster, stores: Path, first_user: int
) -> None:
    async def main() -> None:
        load = Load(encrypted, stores, first_user)
        async with load.running() as running:
            await running.acks(50)
            talkers = encrypted.roles("gateway", "writer", "mailbox", "session")
            for process in talkers:
                os.kill(process.pid, signal.SIGHUP)
            for process in talkers:
                await eventually(lambda process=process: "reloaded" in process.log())
            await running.every_lane()
        await load.check()

    asyncio.run(main())


def test_a_client_that_speaks_plaintext_is_not_served(encrypted: Cluster, stores: Path) -> None:
    async def main() -> None:
        plain = Client(
            user_id=1,
            access_token=token(encrypted.target.secret, 1),
            addresses=encrypted.addresses,
            store_path=stores / "plain.db",
            device_id=b"plain",
        )
        async with plain:
            with pytest.raises(NotConnected):
                await plain.online(2.0)

    asyncio.run(main())
