"""What is refused before anything is written, the numbers that processes share, and writer instance numbers."""

import asyncio
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from aetcd import rpc

from qim.adapters.etcd import instances, starting
from qim.adapters.start_refused import StartRefused
from qim.core.ports.registry import Resource, Role
from tests.adapters.registry.conftest import Registries, play
from tests.adapters.registry.etcd_scene import etcd_client, new_prefix
from tests.integration.testbed.etcd import EtcdServer
from tests.integration.testbed.server_process import free_port

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("etcd")]
NUMBERS = {"shard_count": "64", "outbox_partition_count": "16", "shared_digest": "ab"}


async def refusal(work: Coroutine[Any, Any, object]) -> StartRefused:
    with pytest.raises(StartRefused) as refused:
        await work
    return refused.value


# ------------------------------------------------------------ the server


def test_an_etcd_that_is_not_there_is_named(
    registries: Registries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "START_MS", 300)

    async def story() -> None:
        endpoint = f"127.0.0.1:{free_port()}"
        async with etcd_client([endpoint], call_ms=300) as client:
            refused = await refusal(client.registry.start())
            assert refused.code == "etcd_unreachable"
            assert endpoint in str(refused)
            assert refused.command == f"etcdctl --endpoints={endpoint} endpoint health"
            shared = await refusal(client.registry.fix_shared(NUMBERS))
            assert shared.code == "etcd_unreachable"
            number = await refusal(client.registry.lease_instance_number("w", "w:1", 1_000))
            assert number.code == "etcd_unreachable"

    play(registries, story())


def test_a_full_etcd_is_refused(registries: Registries, tmp_path: Path) -> None:
    server = EtcdServer(tmp_path / "small", options=["--quota-backend-bytes=200000"])
    server.start()

    async def story() -> None:
        with pytest.raises(rpc.AioRpcError, match="space"):
            await _fill(server.address)
        async with etcd_client([server.address]) as client:
            refused = await refusal(client.registry.start())
            assert refused.code == "etcd_no_space"
            assert "alarm disarm" in refused.command

    try:
        play(registries, story())
    finally:
        server.stop()


async def _fill(address: str) -> None:
    async with rpc.insecure_channel(address) as channel:
        for number in range(5_000):
            key = b"fill/%d" % number
            await rpc.KVStub(channel).Put(rpc.PutRequest(key=key, value=bytes(10_000)))


def test_an_older_etcd_is_refused(registries: Registries, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "OLDEST", (99, 0))

    async def story() -> None:
        async with etcd_client([registries.etcd_address()]) as client:
            assert (await refusal(client.registry.start())).code == "etcd_too_old"

    play(registries, story())


@pytest.mark.parametrize(
    ("version", "code"),
    [
        ("", "etcd_too_old"),
        ("3.3.27", "etcd_too_old"),
        ("3.5.0", "etcd_forgets"),
        ("3.5.2", "etcd_forgets"),
        ("3.5.1-rc.0", "etcd_forgets"),
    ],
)
def test_a_version_that_loses_what_it_confirmed_is_refused(version: str, code: str) -> None:
    with pytest.raises(StartRefused) as refused:
        starting.judge_version(version, "127.0.0.1:2379")
    assert refused.value.code == code
    assert refused.value.got == (version or "of no version")


@pytest.mark.parametrize("version", ["3.4.0", "3.4.23", "3.5.3", "3.5.10", "3.6.1", "4.0.0"])
def test_a_version_that_keeps_it_is_taken(version: str) -> None:
    starting.judge_version(version, "127.0.0.1:2379")


def test_a_clock_that_is_ahead_is_refused(registries: Registries) -> None:
    async def story() -> None:
        async with etcd_client([registries.etcd_address()]) as client:
            await client.registry.start()
            now_ms = time.time_ns() // 1_000_000
            behind_ms = await client.registry.check_clock(now_ms - 3_600_000, 300_000)
            assert behind_ms is not None and behind_ms < -3_000_000, "behind is no danger"
            refused = await refusal(client.registry.check_clock(now_ms + 600_000, 300_000))
            assert refused.code == "clock_ahead"
            assert "300 s" in refused.expected

    play(registries, story())


def test_a_clock_that_nobody_tells_is_unknown(registries: Registries) -> None:
    async def story() -> None:
        async with etcd_client([f"127.0.0.1:{free_port()}"]) as client:
            assert await client.registry.check_clock(0, 300_000) is None

    play(registries, story())


# ------------------------------------------------------------ what processes share


def test_the_first_writes_and_the_others_compare(registries: Registries) -> None:
    async def story() -> None:
        prefix = new_prefix()
        address = registries.etcd_address()
        async with etcd_client([address], prefix) as client, etcd_client([address], prefix) as peer:
            await asyncio.gather(
                *(one.registry.fix_shared(NUMBERS) for one in (client, peer, client, peer))
            )
            await peer.registry.fix_shared({**NUMBERS, "hot_window_ms": "1000"})
            different = {**NUMBERS, "shard_count": "8", "hot_window_ms": "2000", "new": "1"}
            commands = {"shard_count": "export QIM_MAILBOX_SHARD_COUNT=64", "new": "-"}
            refused = await refusal(client.registry.fix_shared(different, commands=commands))
            assert refused.code == "shared_parameters_differ"
            assert refused.got == "shard_count=8, hot_window_ms=2000"
            assert refused.expected.startswith("shard_count=64, hot_window_ms=1000 ")
            known, unknown = refused.command.split("; ")
            assert known == "export QIM_MAILBOX_SHARD_COUNT=64"
            assert unknown.startswith("qim config share"), "no variable is made up"
            # a refused start wrote nothing
            await client.registry.fix_shared({"new": "2"})

    play(registries, story())


def test_of_many_that_start_together_with_two_opinions_one_wins(registries: Registries) -> None:
    async def story() -> None:
        prefix = new_prefix()
        async with etcd_client([registries.etcd_address()], prefix) as client:
            outcomes = await asyncio.gather(
                *(client.registry.fix_shared({"shard_count": str(4 << at % 2)}) for at in range(8)),
                return_exceptions=True,
            )
            assert sum(isinstance(outcome, StartRefused) for outcome in outcomes) == 4
            assert outcomes.count(None) == 4

    play(registries, story())


def test_a_caller_knows_better_commands(registries: Registries) -> None:
    async def story() -> None:
        async with etcd_client([registries.etcd_address()]) as client:
            await client.registry.fix_shared({"outbox_topic_id": "x"})
            refused = await refusal(
                client.registry.fix_shared(
                    {"outbox_topic_id": "y"}, commands={"outbox_topic_id": "qim doctor"}
                )
            )
            assert refused.command == "qim doctor"

    play(registries, story())


def test_unreadable_shared_numbers_are_refused(registries: Registries) -> None:
    async def story() -> None:
        prefix, address = new_prefix(), registries.etcd_address()
        async with rpc.insecure_channel(address) as channel:
            key = f"{prefix}/shared".encode()
            await rpc.KVStub(channel).Put(rpc.PutRequest(key=key, value=b"\x00"))
        async with etcd_client([address], prefix) as client:
            refused = await refusal(client.registry.fix_shared(NUMBERS))
            assert refused.code == "shared_parameters_unreadable"

    play(registries, story())


# ------------------------------------------------------------ instance numbers


def test_writers_get_different_numbers_and_a_keeper_can_keep_them(registries: Registries) -> None:
    async def story() -> None:
        async with etcd_client([registries.etcd_address()]) as client:
            lease = client.registry.lease_instance_number
            given = await asyncio.gather(
                *(lease(f"writer-{at}", "w:1", 60_000) for at in range(12))
            )
            numbers = [number for number, _ in given]
            assert len(set(numbers)) == 12
            assert all(1 <= number <= 65_535 for number in numbers)
            pinned = Resource(role=Role.INSTANCE, number=numbers[0])
            assert (await client.read(pinned)).owner == "writer-0"
            assert (await client.acquire("writer-0", resource=pinned)).epoch == given[0][1] + 1

    play(registries, story())


def test_two_that_would_look_at_the_same_place_first(registries: Registries) -> None:
    async def story() -> None:
        async with etcd_client([registries.etcd_address()]) as client:
            lease = client.registry.lease_instance_number
            first, _ = await lease("writer", "w:1", 60_000)
            second, _ = await lease("writer", "w:1", 60_000)
            assert second == first % 65_535 + 1

    play(registries, story())


def test_a_configured_number_is_taken_when_its_predecessor_is_dead(
    registries: Registries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instances, "LATE_MS", 60_000)  # the end of a lease may be late here

    async def story() -> None:
        async with etcd_client([registries.etcd_address()]) as client:
            lease = client.registry.lease_instance_number
            number, epoch = await lease("old", "w:1", 1_000, number=7)
            assert number == 7
            number, later = await lease("new", "w:1", 1_000, number=7)
            assert later > epoch

    play(registries, story())


def test_when_no_number_is_free_the_start_is_refused(
    registries: Registries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instances, "NUMBER_MAX", 3)

    async def story() -> None:
        async with etcd_client([registries.etcd_address()]) as client:
            lease = client.registry.lease_instance_number
            given = [await lease(f"writer-{at}", "w:1", 60_000) for at in range(3)]
            assert sorted(number for number, _ in given) == [1, 2, 3]
            refused = await refusal(lease("one-more", "w:1", 60_000))
            assert refused.code == "writer_ids_exhausted"
            assert "3 are leased" in refused.got

    play(registries, story())


@pytest.mark.parametrize("number", [0, 65_536])
def test_a_configured_number_out_of_range_is_refused(registries: Registries, number: int) -> None:
    async def story() -> None:
        async with etcd_client([registries.etcd_address()]) as client:
            lease = client.registry.lease_instance_number
            refused = await refusal(lease("w", "w:1", 1_000, number=number))
            assert refused.code == "writer_id_out_of_range"

    play(registries, story())


def test_a_configured_number_of_a_live_writer_is_refused(registries: Registries) -> None:
    async def story() -> None:
        async with etcd_client([registries.etcd_address()]) as client:
            lease = client.registry.lease_instance_number
            await lease("alive", "w:1", 600_000, number=9)
            refused = await refusal(lease("another", "w:1", 500, number=9))
            assert refused.code == "writer_id_taken"
            assert "alive" in refused.got

    play(registries, story())
