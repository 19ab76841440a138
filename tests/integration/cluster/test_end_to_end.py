"""From client to client through a process of each role, over real Redis, Kafka and etcd."""

import asyncio
from pathlib import Path

import pytest

from tests.integration.cluster.cluster import Cluster
from tests.integration.load import Load

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("cluster")]


def test_users_write_to_each_other(cluster: Cluster, tmp_path: Path) -> None:
    async def main() -> int:
        load = Load(cluster, tmp_path)
        async with load.running() as running:
            await running.acks(100)
        await load.check()
        return len(load.acked)

    assert asyncio.run(main()) >= 100
