"""First page of the conversation list over a real `qim up`, and how far the projection lags behind a full load.

    python bench/session.py [--conversations 1000] [--rounds 9] [--seconds 6] [--json FILE]

``cold``: a user's first PULL_SESSION_LIST, nothing of it computed before: every conversation's unread and head come from the
writer. ``again``: a new list with nothing changed since. ``dirty``: a new list after a message in three conversations.
``snapshot``: the second page of a list that stands. Pages of 100, times of one request over TCP, median over users; client
and server share the machine. ``lag``: records of the dispatch log, known and not yet projected, sampled while the load of
bench/pipeline.py runs with closed windows; in ms at the rate at which the load's messages were acked.
"""

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _processes import Server, machine
from pipeline import Load, quantile

from qim.core.contract.frames import (
    Auth,
    AuthOk,
    CreateGroup,
    Error,
    GroupOk,
    MarkRead,
    Ok,
    PullSessionList,
    SendAck,
    SendMessage,
    SessionListBatch,
    SyncComplete,
    decode_server_frame,
    encode_frame,
)
from qim.core.contract.tokens import AccessToken, sign_token
from qim.core.contract.wire import FRAME_BYTES_MAX, FrameDecoder

PAGE = 100
SENDER = 1
IN_FLIGHT = 64
SAMPLE_SECONDS = 0.1


class Device:
    """One connection that asks and waits."""

    def __init__(self, user: int) -> None:
        self.user = user
        self._decoder = FrameDecoder(FRAME_BYTES_MAX)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._request = 0
        self.not_after = 0

    async def connect(self, address: str, secret: bytes) -> None:
        host, _, port = address.rpartition(":")
        self._reader, self._writer = await asyncio.open_connection(host, int(port))
        self._listening = asyncio.create_task(self._listen())
        access = AccessToken(
            tenant_id="default",
            user_id=self.user,
            device_id=None,
            expires_at=int(time.time() * 1000) + 3_600_000,
        )
        answer = await self.ask(
            Auth(
                access_token=sign_token(access, secret),
                device_id=b"bench",
                attempt=int(time.time() * 1000),
                cursor=None,
                client_info="bench",
                capabilities=(),
            )
        )
        assert isinstance(answer, AuthOk), answer
        self.not_after = answer.server_time + answer.limits.not_after_ms
        self._writer.write(encode_frame(SyncComplete(sync_to_seq=answer.sync_to_seq), request=0))

    async def _listen(self) -> None:
        while data := await self._reader.read(1 << 18):
            for raw in self._decoder.feed(data):
                future = self._waiting.pop(raw.request, None)
                if future is not None:
                    future.set_result(decode_server_frame(raw))

    async def ask(self, frame: Any) -> Any:
        self._request += 1
        future = self._waiting[self._request] = asyncio.get_running_loop().create_future()
        self._writer.write(encode_frame(frame, request=self._request))
        return await asyncio.wait_for(future, 30)

    async def done(self, frame: Any) -> Any:
        """Ask until it isn't told to come again."""
        while isinstance(answer := await self.ask(frame), Error):  # noqa: ASYNC110 - the server says when
            await asyncio.sleep(max(answer.retry_after_ms, 20) / 1000)
        return answer

    async def timed_page(self, revision: int = 0, after: bytes | None = None) -> tuple[float, Any]:
        begun = time.perf_counter()
        page = await self.ask(PullSessionList(revision=revision, after=after, limit=PAGE))
        elapsed = (time.perf_counter() - begun) * 1000
        assert isinstance(page, SessionListBatch), page
        return elapsed, page


async def in_parallel(jobs: list[Any]) -> list[Any]:
    """At most IN_FLIGHT at once, results in order."""
    room = asyncio.Semaphore(IN_FLIGHT)

    async def one(job: Any) -> Any:
        async with room:
            return await job

    return list(await asyncio.gather(*map(one, jobs)))


async def say(sender: Device, conversation_id: bytes) -> None:
    acked = await sender.done(
        SendMessage(
            client_message_id=os.urandom(16),
            conversation_id=conversation_id,
            peer_user_id=None,
            kind=1,
            custom_type="",
            body=b"x" * 100,
            retention_class=0,
            not_after=sender.not_after,
        )
    )
    assert isinstance(acked, SendAck), acked


async def fill(sender: Device, users: list[int], count: int) -> list[bytes]:
    """Groups of all users, each with a message."""
    made = await in_parallel(
        [
            sender.done(
                CreateGroup(
                    client_message_id=os.urandom(16),
                    not_after=sender.not_after,
                    members=(SENDER, *users),
                    name=f"g{number}",
                    meta=b"",
                )
            )
            for number in range(count)
        ]
    )
    assert all(isinstance(one, GroupOk) for one in made)
    names = [one.conversation_id for one in made]
    await in_parallel([say(sender, name) for name in names])
    return names


async def all_unread(device: Device, total: int) -> None:
    """Until the projection knows everything sent: asked for with a user who is not measured."""
    while True:
        unread, after, revision = 0, None, 0
        while True:
            _, page = await device.timed_page(revision, after)
            unread += sum(row.unread for row in page.conversations)
            after, revision = page.after, page.revision
            if after is None:
                break
        if unread >= total:
            return
        await asyncio.sleep(0.1)


async def lists(server: Server, args: argparse.Namespace) -> dict[str, Any]:
    secret = (server.data / "secret").read_bytes()
    users = list(range(SENDER + 1, SENDER + args.rounds + 2))
    devices = {user: Device(user) for user in (SENDER, *users)}
    for device in devices.values():
        await device.connect(server.said["tcp"], secret)
    sender, watcher = devices[SENDER], devices[users[-1]]
    names = await fill(sender, users, args.conversations)
    sent = len(names)
    await all_unread(watcher, sent)
    await asyncio.sleep(1.0)
    times: dict[str, list[float]] = {"cold": [], "again": [], "dirty": [], "snapshot": []}
    marks: list[float] = []
    for user in users[:-1]:
        device = devices[user]
        elapsed, _ = await device.timed_page()
        times["cold"].append(elapsed)
        elapsed, page = await device.timed_page()
        times["again"].append(elapsed)
        elapsed, _ = await device.timed_page(page.revision, page.after)
        times["snapshot"].append(elapsed)
        for name in names[:3]:
            await say(sender, name)
        sent += 3
        await all_unread(watcher, sent)
        elapsed, _ = await device.timed_page()
        times["dirty"].append(elapsed)
        begun = time.perf_counter()
        answer = await device.ask(MarkRead(conversation_id=names[0], read_seq=1))
        assert isinstance(answer, Ok), answer
        marks.append((time.perf_counter() - begun) * 1000)
    result = {f"{name}_ms": quantile(values, 0.5) for name, values in times.items()}
    return result | {"mark_read_ms": quantile(marks, 0.5), "conversations": len(names)}


async def lag(server: Server, args: argparse.Namespace) -> dict[str, Any]:
    secret = (server.data / "secret").read_bytes()
    load = Load(server.said["tcp"], secret, users=30, group_size=0, window=16)
    await load.connect()
    load.open_windows()
    await asyncio.sleep(2.0)
    acked, begun = load.meter.acked, time.perf_counter()
    samples: list[float] = []
    while (elapsed := time.perf_counter() - begun) < args.seconds:
        told = await asyncio.to_thread(server.metrics)
        samples.append(
            sum(told[name] for name in told if name.startswith("qim_session_lag_records"))
        )
        await asyncio.sleep(SAMPLE_SECONDS)
    rate = (load.meter.acked - acked) / elapsed
    await load.close_windows()
    for device in load.devices:
        device.transport.close()
    # Sender and recipient are in one shard or in two: between one and two dispatches a message.
    return {
        "load_acked_per_s": rate,
        "lag_records_p50": quantile(samples, 0.5),
        "lag_records_p99": quantile(samples, 0.99),
        "lag_ms_p99": 1000 * quantile(samples, 0.99) / max(rate, 1.0),
    }


def measured(work: Any, args: argparse.Namespace) -> dict[str, Any]:
    """On a fresh server."""
    data = Path(tempfile.mkdtemp(prefix="qim-bench-"))
    server = Server(data, "--log", os.devnull)
    try:
        result: dict[str, Any] = asyncio.run(work(server, args))
        return result
    finally:
        server.stop()
        shutil.rmtree(data, ignore_errors=True)


def main() -> int:
    """A table and JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--conversations", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=9, help="users measured one after the other")
    parser.add_argument("--seconds", type=float, default=6.0, help="of load while lag is sampled")
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    where = machine()
    results = measured(lists, args) | measured(lag, args)
    for name, value in results.items():
        print(
            f"{name:>20} {value:>12.2f}" if isinstance(value, float) else f"{name:>20} {value:>12}"
        )
    report = {"machine": where, "rounds": args.rounds, "results": results}
    print(json.dumps(report))
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
