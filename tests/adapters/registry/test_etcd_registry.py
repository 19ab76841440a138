"""What only the registry on etcd can be asked: answers that get lost, members that die, tokens, TLS, bounds, the watch."""

import asyncio
from collections.abc import Coroutine, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aetcd import rpc

from qim.adapters.etcd import leases as leases_module
from qim.adapters.etcd import registry as registry_module
from qim.adapters.etcd.keys import Keys
from qim.adapters.etcd.watch import Noticed
from qim.adapters.start_refused import StartRefused
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
from tests.adapters.registry.conftest import Registries
from tests.adapters.registry.etcd_process import SECONDS_MAX
from tests.adapters.registry.etcd_scene import SHARD, EtcdClient, etcd_client, new_prefix
from tests.integration.testbed.etcd import EtcdServer, started_cluster
from tests.integration.testbed.server_process import free_port

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("etcd")]
SHORT_MS = 400


@pytest.fixture
def own(tmp_path: Path) -> Iterator[EtcdServer]:
    """A server that the test may kill and pause."""
    server = EtcdServer(tmp_path / "own")
    server.start()
    yield server
    server.stop()


def play(registries: Registries, story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(SECONDS_MAX):
            await story

    registries.loop.run_until_complete(bounded())


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


def test_a_question_to_a_silent_etcd_is_failed_a_change_unknown(
    registries: Registries, own: EtcdServer
) -> None:
    async def story() -> None:
        async with etcd_client([own.address], call_ms=SHORT_MS) as client:
            assert isinstance(await client.register(1, 1), BarrierRegistered)
            own.pause()
            try:
                change = client.begin(_barrier(client, 2, 20))
                reading = await client.read()
                assert reading == Failed(op=reading.op, why=FailReason.UNREACHABLE)
                assert isinstance(await change, Unknown)
            finally:
                own.resume()
            # The paused server still has the request in its socket: Unknown was the truth.
            while (read := await client.read()) and not isinstance(read, LeaseRead):
                pass
            assert (read.barrier_epoch, read.barrier_offset) in ((1, 1), (2, 20))
            assert isinstance(await client.register(2, 20), BarrierRegistered)
            assert (await client.read()).barrier_offset == 20

    play(registries, story())


def _barrier(client: EtcdClient, epoch: int, offset: int) -> RegisterBarrier:
    return RegisterBarrier(op=client.op(), resource=SHARD, epoch=epoch, offset=offset)


def test_an_unknown_acquisition_keeps_nobody_out(
    registries: Registries, own: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paused between reading and granting; what comes of it afterwards is taken back, long before its minute is over."""

    async def story() -> None:
        async with etcd_client([own.address], call_ms=SHORT_MS) as client:
            leases = client.registry._leases
            new_lease = leases.new_lease

            async def then_pause(ttl_ms: int, within: float) -> int:
                lease = await new_lease(ttl_ms, within)
                own.pause()
                return lease

            monkeypatch.setattr(leases, "new_lease", then_pause)
            assert isinstance(await client.acquire("a"), Unknown)
            monkeypatch.undo()
            own.resume()
            while not isinstance(reply := await client.acquire("b"), Granted):
                assert isinstance(reply, Denied | Failed | Unknown)
            assert (await client.read()).owner == "b"
            assert isinstance(await client.acquire("a"), Denied)

    play(registries, story())


def test_an_unknown_fresh_epoch_is_followed_by_a_higher_one(
    registries: Registries, own: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with etcd_client([own.address], call_ms=SHORT_MS) as client:
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
            epoch = (await client.acquire("a", ttl_ms=1_000)).epoch
            renewal = Renew(op=client.op(), owner="a", leases=((SHARD, epoch),), ttl_ms=60_000)
            assert await client.ask(renewal) == Renewed(op=renewal.op, lost=())
            denied = await client.acquire("b")
            assert denied.remaining_ms > 50_000
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


# ------------------------------------------------------------ members, tokens, TLS


def test_a_cluster_serves_on_while_one_member_is_dead(
    registries: Registries, tmp_path: Path
) -> None:
    members = started_cluster(tmp_path)
    try:

        async def story() -> None:
            endpoints = [f"http://{member.address}" for member in members]
            async with etcd_client(endpoints, call_ms=5_000) as client:
                await client.registry.start()
                epoch = (await client.acquire("a")).epoch
                for member in members:
                    member.kill()
                    while not isinstance(reply := await client.acquire("a"), Granted):
                        assert isinstance(reply, Failed | Unknown)
                    assert reply.epoch > epoch
                    epoch = reply.epoch
                    member.process.launch()
                    await asyncio.to_thread(member.process.wait_ready)

        play(registries, story())
    finally:
        for member in members:
            member.stop()


def test_a_silent_member_is_left_for_the_next_one(registries: Registries, tmp_path: Path) -> None:
    members = started_cluster(tmp_path)
    try:

        async def story() -> None:
            async with etcd_client([member.address for member in members]) as client:
                await client.registry.start()
                epoch = (await client.acquire("a")).epoch
                (silent,) = [
                    member
                    for member in members
                    if member.address == client.registry._connection.endpoint
                ]
                silent.pause()
                try:
                    while not isinstance(read := await client.read(), LeaseRead):
                        assert isinstance(read, Failed)
                    assert read.epoch == epoch
                    while not isinstance(reply := await client.acquire("a"), Granted):
                        assert isinstance(reply, Failed | Unknown)
                    assert reply.epoch > epoch
                finally:
                    silent.resume()

        play(registries, story())
    finally:
        for member in members:
            member.stop()


def test_a_user_with_a_password_outlives_its_token(registries: Registries, own: EtcdServer) -> None:
    async def story() -> None:
        await _enable_auth(own.address)
        prefix = new_prefix()
        async with etcd_client([own.address], prefix, user="qim", password="right") as client:
            await client.registry.start()
            assert isinstance(await client.acquire("a"), Granted)
            client.registry._connection._token = "made.up"
            assert isinstance(await client.acquire("a"), Granted)
        for user, password in (("qim", "wrong"), (None, None)):
            async with etcd_client([own.address], prefix, user=user, password=password) as client:
                with pytest.raises(StartRefused) as refused:
                    await client.registry.start()
                assert refused.value.code == "etcd_unauthorised"
                reply = await client.acquire("a")
                assert isinstance(reply, Failed)

    play(registries, story())


async def _enable_auth(address: str) -> None:
    async with rpc.insecure_channel(address) as channel:
        auth = rpc.AuthStub(channel)
        for name, password in (("root", "root"), ("qim", "right")):
            await auth.UserAdd(rpc.AuthUserAddRequest(name=name, password=password))
        await auth.RoleAdd(rpc.AuthRoleAddRequest(name="qim"))
        everything = rpc.Permission(
            permType=rpc.Permission.READWRITE, key=b"/qim-test/", range_end=b"/qim-test0"
        )
        await auth.RoleGrantPermission(
            rpc.AuthRoleGrantPermissionRequest(name="qim", perm=everything)
        )
        await auth.RoleAdd(rpc.AuthRoleAddRequest(name="root"))
        await auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user="root", role="root"))
        await auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user="qim", role="qim"))
        await auth.AuthEnable(rpc.AuthEnableRequest())


def test_a_user_without_rights_is_told_which_are_missing(
    registries: Registries, own: EtcdServer
) -> None:
    async def story() -> None:
        await _enable_auth(own.address)
        async with etcd_client([own.address], "/elsewhere", user="qim", password="right") as client:
            with pytest.raises(StartRefused) as refused:
                await client.registry.start()
            assert refused.value.code == "etcd_unauthorised"
            with pytest.raises(StartRefused) as refused:
                await client.registry.fix_shared({"shard_count": "4"})
            assert refused.value.code == "etcd_unauthorised"
            assert "/elsewhere/" in refused.value.command

    play(registries, story())


def _server_wall_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)


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
            await client.announce("a")
            await other.announce("b")
            await hears(peers("a", "b"))
            epoch = (await other.acquire("b")).epoch
            taken = LeaseTaken(resource=SHARD, owner="b", address="b:1")
            await hears(taken)
            await other.acquire("b", resource=Resource(role=Role.MAILBOX, number=1))
            await other.release("b", epoch)
            await hears(LeaseFreed(resource=SHARD))
            while not isinstance(await other.acquire("b"), Granted):
                pass
            await hears(taken)
            own.kill()
            own.start()
            await hears(peers("a", "b"))
            await hears(taken)
            while not isinstance(await other.announce("b", ttl_ms=0), Peers):
                pass
            await hears(peers("a"))
            assert ("registry_watch_up", "", 1) in tuple(client.registry.gauges())

    play(registries, story())
