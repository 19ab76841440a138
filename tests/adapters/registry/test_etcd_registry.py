"""What only the registry on etcd can be asked: answers that get lost, bounds, bytes of others, the watch."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aetcd import rpc

from qim.adapters.etcd import leases as leases_module
from qim.adapters.etcd import registry as registry_module
from qim.adapters.etcd.keys import Keys
from qim.adapters.etcd.watch import Noticed
from qim.core.ports.completion import Failed, FailReason, Unknown
from qim.core.ports.registry import (
    BarrierRegistered,
    Denied,
    Granted,
    LeaseFreed,
    LeaseRead,
    LeaseTaken,
    Peers,
    RaiseEpoch,
    ReadLease,
    RegisterBarrier,
    Released,
    Renew,
    Renewed,
    Resource,
    Role,
)
from tests.adapters.registry.conftest import Registries, play
from tests.adapters.registry.etcd_scene import SHARD, EtcdClient, etcd_client, new_prefix
from tests.integration.testbed.etcd import EtcdServer
from tests.integration.testbed.server_process import free_port

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("etcd")]
SHORT_MS = 400


# ------------------------------------------------------------ Failed and Unknown


def test_what_was_never_sent_is_failed(registries: Registries) -> None:
    async def story() -> None:
        async with etcd_client([f"127.0.0.1:{free_port()}"], call_ms=SHORT_MS) as client:
            for reply in (
                await client.acquire("a"),
                await client.register(1, 1),
                await client.release("a", 1),
                await client.announce("a"),
                await client.read(),
            ):
                assert isinstance(reply, Failed), reply
                assert reply.why is FailReason.UNREACHABLE

    play(registries, story())


@asynccontextmanager
async def hasty_and_patient(address: str) -> AsyncIterator[tuple[EtcdClient, EtcdClient]]:
    """Two of one prefix: one gives up soon, and is connected; the other one waits for a slow etcd."""
    prefix = new_prefix()
    async with (
        etcd_client([address], prefix, call_ms=SHORT_MS) as hasty,
        etcd_client([address], prefix) as patient,
    ):
        while not isinstance(await hasty.read(), LeaseRead):
            pass
        yield hasty, patient


def test_a_question_to_a_silent_etcd_is_failed_a_change_unknown(
    registries: Registries, own: EtcdServer
) -> None:
    async def story() -> None:
        async with hasty_and_patient(own.address) as (hasty, patient):
            assert isinstance(await patient.register(1, 1), BarrierRegistered)
            own.pause()
            try:
                change = hasty.begin(_barrier(hasty, 2, 20))
                reading = await hasty.read()
                assert reading == Failed(op=reading.op, why=FailReason.UNREACHABLE)
                assert isinstance(await change, Unknown)
            finally:
                own.resume()
            # The paused server still has the request in its socket: Unknown was the truth.
            read = await patient.read()
            assert (read.barrier_epoch, read.barrier_offset) in ((1, 1), (2, 20))
            assert isinstance(await patient.register(2, 20), BarrierRegistered)
            assert (await patient.read()).barrier_offset == 20

    play(registries, story())


def _barrier(client: EtcdClient, epoch: int, offset: int) -> RegisterBarrier:
    return RegisterBarrier(op=client.op(), resource=SHARD, epoch=epoch, offset=offset)


def test_an_unknown_acquisition_keeps_nobody_out(
    registries: Registries, own: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paused between reading and granting; what comes of it afterwards is taken back, long before its minute is over."""

    async def story() -> None:
        async with hasty_and_patient(own.address) as (hasty, patient):
            leases = hasty.registry._leases
            new_lease = leases.new_lease

            async def then_pause(ttl_ms: int, within: float) -> int:
                lease = await new_lease(ttl_ms, within)
                own.pause()
                return lease

            monkeypatch.setattr(leases, "new_lease", then_pause)
            while isinstance(reply := await hasty.acquire("a"), Failed):
                pass  # before it was paused: slow, and nothing was granted yet
            assert isinstance(reply, Unknown)
            monkeypatch.undo()
            own.resume()
            while not isinstance(reply := await patient.acquire("b"), Granted):
                assert isinstance(reply, Denied | Failed | Unknown)
            assert (await patient.read()).owner == "b"
            assert isinstance(await patient.acquire("a"), Denied)

    play(registries, story())


def test_an_unknown_fresh_epoch_is_followed_by_a_higher_one(
    registries: Registries, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with etcd_client([registries.etcd_address()]) as client:
            first = (await client.acquire("a")).epoch
            change = client.registry._connection.change

            async def lost(method: Any, request: Any, within: float) -> Any:
                await change(method, request, within)
                raise registry_module.Unanswered("its answer was lost")

            monkeypatch.setattr(client.registry._connection, "change", lost)
            assert isinstance(await client.acquire("a"), Unknown)
            monkeypatch.undo()
            assert (await client.read()).epoch == first + 1, "it was applied"
            assert (await client.acquire("a")).epoch == first + 2

    play(registries, story())


def test_closing_answers_everything_and_refuses_what_comes_later(
    registries: Registries, own: EtcdServer
) -> None:
    async def story() -> None:
        async with etcd_client([own.address]) as client:
            assert isinstance(await client.register(1, 1), BarrierRegistered)
            own.pause()
            change = client.begin(_barrier(client, 2, 2))
            taking = client.begin(client.acquisition("a"))
            await asyncio.sleep(0)
            unborn = client.begin(client.acquisition("a"))
            await client.registry.close()
            assert isinstance(await change, Unknown | Failed)
            for reply in (await taking, await unborn):
                assert isinstance(reply, Failed) and reply.why is FailReason.CANCELLED
            late = await client.acquire("a")
            assert late == Failed(op=late.op, why=FailReason.OVERLOADED)
            own.resume()

    play(registries, story())


def test_requests_in_flight_are_bounded(
    registries: Registries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "REQUESTS_MAX", 3)

    async def story() -> None:
        async with etcd_client([registries.etcd_address()]) as client:
            replies = await asyncio.gather(*(client.read() for _ in range(5)))
            refused = [reply for reply in replies if isinstance(reply, Failed)]
            assert [reply.why for reply in refused] == [FailReason.OVERLOADED] * 2
            gauges = {(name, label): value for name, label, value in client.registry.gauges()}
            assert gauges["registry_requests_inflight_max", ""] == 3
            assert gauges["registry_requests_inflight", ""] == 0
            assert gauges["registry_answers", "ReadLease.LeaseRead"] == 3
            assert gauges["registry_answers", "ReadLease.Failed"] == 2
            assert gauges["registry_slowest_seconds", "ReadLease"] > 0

    play(registries, story())


@pytest.mark.parametrize("key", ["lease", "epoch"])
def test_somebody_elses_bytes_are_refused_and_change_nothing(
    registries: Registries, key: str
) -> None:
    async def story() -> None:
        prefix = new_prefix()
        address = registries.etcd_address()
        async with etcd_client([address], prefix) as client:
            async with rpc.insecure_channel(address) as channel:
                place = getattr(Keys(f"{prefix}/"), key)(SHARD)
                await rpc.KVStub(channel).Put(rpc.PutRequest(key=place, value=b"not ours"))
            reply = await client.acquire("a")
            assert reply == Failed(op=reply.op, why=FailReason.INVALID)

    play(registries, story())


def test_keys_that_are_nobodys_are_passed_over(registries: Registries) -> None:
    """A name that is no text among the instances, and one that is no number among the leases of instance numbers."""

    async def story() -> None:
        prefix = new_prefix()
        address = registries.etcd_address()
        async with etcd_client([address], prefix) as client:
            keys = Keys(f"{prefix}/")
            async with rpc.insecure_channel(address) as channel:
                for place in (
                    keys.peers(Role.WRITER) + b"\xff",
                    keys.leases_of(Role.INSTANCE) + b"seven",
                ):
                    await rpc.KVStub(channel).Put(rpc.PutRequest(key=place, value=b"not ours"))
            assert (await client.announce("a")).owners == ("a",)
            number, epoch = await client.registry.lease_instance_number("a", "h:1", 9_000)
            assert (number > 0, epoch) == (True, 1)

    play(registries, story())


# ------------------------------------------------------------ leases in detail


def test_a_longer_renewal_lengthens_a_shorter_grant(registries: Registries) -> None:
    async def story() -> None:
        async with etcd_client([registries.etcd_address()]) as client:
            epoch = (await client.acquire("a", ttl_ms=60_000)).epoch
            renewal = Renew(op=client.op(), owner="a", leases=((SHARD, epoch),), ttl_ms=600_000)
            assert await client.ask(renewal) == Renewed(op=renewal.op, lost=())
            denied = await client.acquire("b")
            assert denied.remaining_ms > 120_000
            assert isinstance(await client.release("a", epoch), Released)
            assert isinstance(await client.acquire("b"), Granted)

    play(registries, story())


def test_many_leases_renew_in_one_request(registries: Registries) -> None:
    """More than fit into one transaction of etcd."""

    async def story() -> None:
        async with etcd_client([registries.etcd_address()]) as client:
            shards = [Resource(role=Role.MAILBOX, number=number) for number in range(150)]
            granted = await asyncio.gather(
                *(client.acquire("a", resource=shard) for shard in shards)
            )
            leases = tuple((reply.resource, reply.epoch) for reply in granted)
            renewal = Renew(op=client.op(), owner="a", leases=leases, ttl_ms=60_000)
            assert (await client.ask(renewal)).lost == ()
            raised = RaiseEpoch(op=client.op(), resource=shards[70], above=9)
            await client.ask(raised)
            assert (await client.ask(renewal)).lost == (shards[70],)
            held = {
                label: value
                for name, label, value in client.registry.gauges()
                if name == "registry_leases_held"
            }
            assert held == {"mailbox": 149}

    play(registries, story())


def test_barriers_are_found_behind_many_higher_ones(
    registries: Registries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases_module, "BARRIERS_PAGE", 4)

    async def story() -> None:
        async with etcd_client([registries.etcd_address()]) as client:
            for epoch in range(1, 24):
                await client.register(epoch, epoch * 10)
            for below, expected in ((231, (23, 230)), (100, (9, 90)), (11, (1, 10)), (10, (0, -1))):
                read = await client.ask(
                    ReadLease(op=client.op(), resource=SHARD, barriers_below=below)
                )
                assert (read.barrier_epoch, read.barrier_offset) == expected

    play(registries, story())


# ------------------------------------------------------------ the watch


def test_the_watch_tells_of_peers_and_of_who_holds_what(
    registries: Registries, own: EtcdServer
) -> None:
    async def story() -> None:
        prefix = new_prefix()
        told: asyncio.Queue[Noticed] = asyncio.Queue()

        async def hears(fact: Noticed) -> None:
            while await told.get() != fact:
                pass

        def peers(*owners: str) -> Peers:
            return Peers(op=0, role=Role.WRITER, owners=owners)

        async with (
            etcd_client([own.address], prefix) as client,
            etcd_client([own.address], prefix) as other,
        ):
            client.registry.watch(told.put_nowait)
            await client.announced("a")
            await other.announced("b")
            await hears(peers("a", "b"))
            epoch = (await other.granted("b")).epoch
            taken = LeaseTaken(resource=SHARD, owner="b", address="b:1")
            await hears(taken)
            await other.acquire("b", resource=Resource(role=Role.MAILBOX, number=1))
            await other.release("b", epoch)
            await hears(LeaseFreed(resource=SHARD))
            await other.granted("b")
            await hears(taken)
            own.kill()
            own.start()
            await hears(peers("a", "b"))
            await hears(taken)
            await other.announced("b", ttl_ms=0)
            await hears(peers("a"))
            assert ("registry_watch_up", "", 1) in tuple(client.registry.gauges())

    play(registries, story())
