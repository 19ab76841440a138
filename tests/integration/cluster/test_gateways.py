"""Two gateways: a device is logged in at one of them at a time, and what is written at one is pushed at the other."""

import asyncio
from collections.abc import Iterator

import pytest

from qim.core.contract.frames import Kicked, KickReason, PushEvents
from tests.integration.cluster.cluster import ONE_EACH, Cluster
from tests.integration.cluster.conftest import drained
from tests.integration.cluster.operating import hinted
from tests.integration.raw_client import RawClient, Target

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("cluster")]
LOGINS = 20


@pytest.fixture(scope="module")
def doubled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    counts = {**ONE_EACH, "gateway": 2}
    with Cluster(tmp_path_factory.mktemp("doubled"), counts=counts) as running:
        yield running
        drained(running)


def targets(cluster: Cluster) -> list[Target]:
    return [Target(address, cluster.target.secret) for address in cluster.addresses]


def test_a_later_login_elsewhere_ends_the_earlier_for_good(
    doubled: Cluster, first_user: int
) -> None:
    """Back and forth: the gateway that has the device now tells the one that had it."""

    async def main() -> None:
        here, there = targets(doubled)
        before = await RawClient.log_in(here, first_user, device=b"one")
        for number in range(LOGINS):
            target = there if number % 2 == 0 else here
            after = await RawClient.log_in(target, first_user, device=b"one")
            kicked = [one.frame for one in await before.rest() if isinstance(one.frame, Kicked)]
            assert [(one.reason, one.reconnect) for one in kicked] == [(KickReason.REPLACED, False)]
            await before.close()
            before = after
        await before.close()

    asyncio.run(main())


def test_another_device_elsewhere_is_left_alone_and_pushed_to(
    doubled: Cluster, first_user: int
) -> None:
    async def main() -> None:
        here, there = targets(doubled)
        phone = await RawClient.log_in(here, first_user, device=b"phone")
        desk = await RawClient.log_in(there, first_user, device=b"desk")
        writer = await RawClient.log_in(here, first_user + 1)
        # The first push dials the gateways, and is lost where that takes too long.
        await hinted(doubled, (first_user + 2, first_user), (phone, desk))
        sent = await writer.send(b"to both", peer_user_id=first_user)
        for device in (phone, desk):
            while sent.message_id not in pushed(await device.until(PushEvents)):
                """What was said before it."""
            ids = [entry.message_id for entry in await device.pull_until(sent.message_id)]
            assert ids.count(sent.message_id) == 1
            await device.close()
        await writer.close()

    asyncio.run(main())


def pushed(frame: PushEvents) -> list[bytes]:
    return [entry.message_id for entry in frame.entries]
