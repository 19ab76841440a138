"""A registry on etcd whose members die or fall silent, and the users it knows: passwords, tokens, rights."""

import asyncio
from pathlib import Path

import pytest
from aetcd import rpc

from qim.adapters.start_refused import StartRefused
from qim.core.ports.completion import Failed, Unknown
from qim.core.ports.registry import Granted, LeaseRead
from tests.adapters.registry.conftest import Registries, play
from tests.adapters.registry.etcd_scene import etcd_client, new_prefix
from tests.integration.testbed.etcd import EtcdServer, started_cluster

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("etcd")]


def test_a_cluster_serves_on_while_one_member_is_dead(
    registries: Registries, tmp_path: Path
) -> None:
    members = started_cluster(tmp_path)
    try:

        async def story() -> None:
            endpoints = [f"http://{member.address}" for member in members]
            async with etcd_client(endpoints, call_ms=5_000) as client:
                await client.registry.start()
                epoch = (await client.granted("a")).epoch
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
            endpoints = [member.address for member in members]
            async with etcd_client(endpoints, call_ms=2_000) as client:
                await client.registry.start()
                epoch = (await client.granted("a")).epoch
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
