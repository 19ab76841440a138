"""With an archive: every committed message comes to it, also over the death of the archiver."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cluster.cluster import ONE_EACH, Cluster
from tests.integration.cluster.conftest import drained
from tests.integration.load import Load
from tests.integration.served import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.xdist_group("cluster")]


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    counts = {**ONE_EACH, "archiver": 1}
    with Cluster(tmp_path_factory.mktemp("tiered"), counts=counts, tiered=True) as running:
        yield running
        drained(running)


def test_what_is_committed_is_archived_whoever_is_killed_meanwhile(
    tiered: Cluster, stores: Path, first_user: int
) -> None:
    (archiver,) = tiered.roles("archiver")

    def caught_up() -> bool:
        lags = [value for (name, _), value in archiver.metrics().items() if name == LAG]
        return len(lags) > 0 and not any(lags)

    async def main() -> None:
        load = Load(tiered, stores, first_user)
        async with load.running() as running:
            await running.acks(50)
            archiver.kill()
            await running.acks(50)
            await archiver.started()
            await running.every_lane()
        await load.check()
        await eventually(caught_up)
        assert archiver.metric("qim_archived_rows_total") >= 50

    asyncio.run(main())


LAG = "qim_archiver_lag_records"
