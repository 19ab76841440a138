"""Who is connected as which device: replacement, attempts, flapping, silence, half-closed and vanished peers."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from qim.adapters.redis.layout import u64
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import (
    Auth,
    Error,
    Kicked,
    KickReason,
    Ping,
    Pong,
    PushEvents,
)
from tests.integration.raw_client import Bystanders, Heard, RawClient, next_attempt, token
from tests.integration.served import CANARY, Served, eventually, streams_open

USER = 301
FLAPS = 200
CONNECTS = 1_000


def run(case: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(case())


def presence(served: Served) -> list[bytes]:
    """The devices of USER and their entries, as the store has them."""
    with served.store_connection() as store:
        entries: list[bytes] = store.ask(b"HGETALL", b"pr:" + u64(USER) + b"default")
    return entries


async def no_presence(served: Served) -> None:
    """Wait until no device of USER is online."""
    await eventually(lambda: not presence(served))


def kicked(heard: list[Heard]) -> list[tuple[int, bool]]:
    return [
        (one.frame.reason, one.frame.reconnect) for one in heard if isinstance(one.frame, Kicked)
    ]


def test_the_newer_login_replaces_the_older_which_reads_why(served: Served) -> None:
    """KICKED(REPLACED), final, before the end of the connection; two hundred times (BR-072)."""

    async def main() -> None:
        old = await RawClient.log_in(served.target, USER)
        for _ in range(FLAPS):
            new = await RawClient.log_in(served.target, USER)
            heard = await old.rest()
            assert isinstance(heard[-1].frame, Kicked)
            assert kicked(heard) == [(KickReason.REPLACED, False)]
            assert not old.reset
            await old.close()
            old = new
        # The one left is the one that is pushed to.
        async with Bystanders.of(served.target) as others:
            ack = await others.writer.send(CANARY, peer_user_id=USER)
            push = await old.until(PushEvents)
            assert [one.message_id for one in push.entries] == [ack.message_id]
        await old.close()
        await streams_open(served, 0)

    run(main)


def test_other_devices_are_not_replaced(served: Served) -> None:
    async def main() -> None:
        async with (
            await RawClient.log_in(served.target, USER, device=b"phone") as phone,
            await RawClient.log_in(served.target, USER, device=b"tablet") as tablet,
        ):
            for device in (phone, tablet):
                await device.ask(Ping(client_time=1), Pong)
                assert kicked(device.heard) == []

    run(main)


def test_a_lower_attempt_is_refused_and_the_live_one_stays(served: Served) -> None:
    """A killed old device that comes back must not throw out the newer login (BR-066)."""

    async def main() -> None:
        earlier, later = next_attempt(), next_attempt()
        async with await RawClient.connect(served.tcp) as live:
            await live.authenticate(served.target, USER, attempt=later)
            await live.go_online()
            async with await RawClient.connect(served.tcp) as stale:
                auth = Auth(
                    access_token=token(served.target.secret, USER),
                    device_id=b"raw",
                    attempt=earlier,
                )
                stale.say(auth)
                heard = await stale.rest()
                assert kicked(heard) == [(KickReason.REPLACED, False)]
                assert len(heard) == 1
            await live.ask(Ping(client_time=1), Pong)
        # Once the live one has left, the device may come in with any attempt.
        await no_presence(served)
        async with await RawClient.connect(served.tcp) as again:
            await again.authenticate(served.target, USER, attempt=earlier)

    run(main)


def test_two_hundred_flaps_leave_one_live_presence(served: Served) -> None:
    """Logins of one device race each other and their predecessors' ends (BR-068, BR-069)."""

    async def flap(gate: asyncio.Semaphore) -> None:
        async with gate:
            client = await RawClient.connect(served.tcp)
            auth = Auth(
                access_token=token(served.target.secret, USER),
                device_id=b"flap",
                attempt=next_attempt(),
            )
            client.say(auth)
            await client.hear()
            await client.cut()

    async def main() -> None:
        gate = asyncio.Semaphore(20)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(FLAPS):
                tasks.create_task(flap(gate))
        async with await RawClient.log_in(served.target, USER, device=b"flap") as last:
            await streams_open(served, 1)
            # What an earlier test left is still being taken out; of this device one entry stands.
            await eventually(lambda: presence(served)[::2] == [b"flap"])
            async with Bystanders.of(served.target) as others:
                ack = await others.writer.send(CANARY, peer_user_id=USER)
                push = await last.until(PushEvents)
                assert push.entries[-1].message_id == ack.message_id
        await streams_open(served, 0)
        await no_presence(served)

    run(main)


def test_silence_before_auth_ends_after_ten_seconds(served: Served) -> None:
    """Whoever says nothing, and whoever trickles bytes, is told UNAUTHENTICATED and closed; a healthy one goes on."""

    async def silent(client: RawClient) -> list[Heard]:
        return await client.rest()

    async def trickling(client: RawClient) -> list[Heard]:
        reading = asyncio.create_task(client.rest())
        for byte in bytes(16) * 100:
            client.say_bytes(bytes([byte]))
            done, _ = await asyncio.wait([reading], timeout=0.25)
            if done:
                break
        return await reading

    async def main() -> None:
        async with Bystanders.of(served.target) as others:
            loop = asyncio.get_running_loop()
            began = loop.time()  # before the server can have begun to count
            one, two = [await RawClient.connect(served.tcp) for _ in range(2)]
            for heard in await asyncio.gather(silent(one), trickling(two)):
                frame = heard[-1].frame
                assert isinstance(frame, Error)
                assert frame.code == ErrorCode.UNAUTHENTICATED
            assert loop.time() - began > 9.0, "closed long before its time"
            await others.go_on()
            assert kicked(others.writer.heard) == []
            await one.close()
            await two.close()

    run(main)


def test_half_closed_and_vanished_peers_are_let_go(served: Served) -> None:
    async def main() -> None:
        # What an earlier test left is still being let go: only what is more than that would be ours.
        await streams_open(served, 0)
        files, resident = served.open_files(), served.resident_bytes()
        for number in range(CONNECTS):
            client = await RawClient.log_in(served.target, USER, device=b"%d" % (number % 7))
            if number % 2:
                await client.cut()
            elif number % 3:
                client.finish()
                await client.rest()
                await client.close()
            else:
                await client.close()
        await streams_open(served, 0)
        await no_presence(served)
        await eventually(lambda: served.open_files() <= files)
        assert served.resident_bytes() - resident < 16 << 20

    run(main)
