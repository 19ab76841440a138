"""Three brokers, of which two suffice: each is killed in turn under load, the others elect, and nothing acked goes."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cluster.cluster import Cluster
from tests.integration.cluster.conftest import drained
from tests.integration.cluster.test_lost_servers import all_serve
from tests.integration.load import Load
from tests.integration.served import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.xdist_group("takeover")]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker of it may be killed."""
    with Cluster(tmp_path_factory.mktemp("three"), brokers=3, lent=False) as running:
        yield running
        drained(running)


def test_each_broker_of_three_is_killed_in_turn(
    three: Cluster, stores: Path, first_user: int
) -> None:
    """Every partition loses its leader once, and is served before that broker is back."""

    async def main() -> None:
        load = Load(three, stores, first_user)
        async with load.running() as running:
            for broker in three.kafka:
                await running.acks(20)
                broker.kill()
                await running.every_lane()
                broker.process.launch()
                await asyncio.to_thread(broker.process.wait_ready)
                await running.every_lane()
            await eventually(lambda: all_serve(three))
        await load.check()

    asyncio.run(main())
