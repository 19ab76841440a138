"""Sync, cursor and push as a device sees them on the wire: only a pull moves a cursor, pushes may all be lost."""

import asyncio

from qim.core.contract.frames import Ping, Pong, PushEvents, SyncComplete
from tests.integration.raw_client import RawClient
from tests.integration.served import CANARY, Served

WRITER, READER = 1_001, 1_002


async def write(served: Served, count: int) -> list[bytes]:
    """Messages to READER that are in its mailbox now; their ids."""
    async with (
        await RawClient.log_in(served.target, WRITER) as writer,
        await RawClient.log_in(served.target, READER, device=b"witness") as witness,
    ):
        await witness.pull()
        acks = [await writer.send(CANARY, peer_user_id=READER) for _ in range(count)]
        await witness.pull_until(acks[-1].message_id)
    return [ack.message_id for ack in acks]


def test_a_push_moves_no_cursor(served: Served) -> None:
    """Five wait, the sixth is pushed, the device dies: all six are pulled after it came back, each once (BR-019)."""

    async def main() -> None:
        async with await RawClient.log_in(served.target, READER) as reader:
            await reader.pull()
            kept = reader.cursor
        waiting = await write(served, 5)
        async with await RawClient.log_in(served.target, READER, cursor=kept) as reader:
            assert reader.auth_ok.has_offline
            (pushed,) = await write(served, 1)
            hinted: list[bytes] = []
            while pushed not in hinted:
                hinted += [one.message_id for one in (await reader.until(PushEvents)).entries]
            # What was in the mailbox before may have been on its way to whoever is online.
            assert set(hinted) <= {*waiting, pushed}
            await reader.cut()
        async with await RawClient.log_in(served.target, READER, cursor=kept) as reader:
            got = [one.message_id for one in await reader.pull_until(pushed)]
            assert got == [*waiting, pushed]
            assert await reader.pull() == []

    asyncio.run(main())


def test_nothing_is_pushed_before_the_barrier_is_lifted(served: Served) -> None:
    """Between AUTH and SYNC_COMPLETE no PUSH_EVENTS; ONLINE_READY's watermark tells what came meanwhile."""

    async def main() -> None:
        async with await RawClient.connect(served.tcp) as reader:
            ok = await reader.authenticate(served.target, READER)
            (missed,) = await write(served, 1)
            await reader.ask(Ping(client_time=1), Pong)
            assert reader.heard == []
            ready = await reader.go_online()
            assert ready.watermark > ok.sync_to_seq
            assert reader.heard == []
            assert (await reader.pull())[-1].message_id == missed

    asyncio.run(main())


def test_sync_complete_below_sync_to_seq_is_refused(served: Served) -> None:
    async def main() -> None:
        await write(served, 1)
        async with await RawClient.connect(served.tcp) as reader:
            ok = await reader.authenticate(served.target, READER)
            await reader.refused(SyncComplete(sync_to_seq=ok.sync_to_seq - 1))
            await reader.go_online()

    asyncio.run(main())


def test_a_watermark_in_pong_repairs_lost_pushes(served: Served) -> None:
    """A device that heard of nothing finds by its heartbeat that it has to pull."""

    async def main() -> None:
        async with await RawClient.log_in(served.target, READER) as reader:
            await reader.pull()
            before = await reader.ask(Ping(client_time=1), Pong)
            sent = await write(served, 3)
            after = await reader.ask(Ping(client_time=2), Pong)
            assert after.watermark > before.watermark
            got = await reader.pull()
            assert [one.message_id for one in got] == sent
            assert got[-1].mailbox_seq == after.watermark

    asyncio.run(main())


def test_one_device_alive_and_one_that_vanished_both_end_complete(served: Served) -> None:
    """No FIN, no RST, nothing read: the dead one gets by pull what was pushed at its back (BR-022, BR-031)."""

    async def main() -> None:
        async with (
            await RawClient.log_in(served.target, READER, device=b"alive") as alive,
            await RawClient.log_in(served.target, READER, device=b"dead") as dead,
        ):
            await alive.pull()
            await dead.pull()
            sent = await write(served, 3)
            got = [one.message_id for one in await alive.pull_until(sent[-1])]
            assert got == sent
            async with await RawClient.log_in(
                served.target, READER, device=b"dead", cursor=dead.cursor
            ) as back:
                assert [one.message_id for one in await back.pull_until(sent[-1])] == sent

    asyncio.run(main())


def test_a_pull_again_with_an_older_cursor_gives_the_same_again(served: Served) -> None:
    """The server keeps no place of its own: what a lost batch held is there for whoever asks again."""

    async def main() -> None:
        async with await RawClient.log_in(served.target, READER) as reader:
            await reader.pull()
            kept = reader.cursor
            sent = await write(served, 4)
            first = await reader.pull()
            assert [one.message_id for one in first] == sent
            reader.cursor = kept
            assert await reader.pull() == first
            assert await reader.pull() == []

    asyncio.run(main())
