"""`qim up` under load from a client in another process: what is acked and what is pulled, a second and a CPU-second.

    python bench/pipeline.py [--seconds 8] [--rounds 3] [--users 30] [--window 16] [--json FILE]

Two workloads, 1:1 and a 10-member group, each first with closed windows (the maximum), then paced at half of it (ack and
end-to-end latency). Server and client share the machine. A delivery counts when PULL_MAILBOX brought it to the recipient;
every commit of the logs is fsynced, whatever ``--fsync`` says of the hot store, which is rebuilt from them.

``limit`` names what was busiest at the maximum: the event loop (CPU of its thread), the log thread (share of the time
inside a commit, waiting for the disk included), the store's or the client's CPU. Where none is near 1, the round trips
between them are the limit, and a wider window would show more throughput for more latency. ``others`` means that other
processes used the machine meanwhile: then only the figures per CPU-second can be compared.
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

from _processes import Server, machine, machine_cpu, median_of

from qim.core.contract.frames import (
    Auth,
    AuthOk,
    CreateGroup,
    Error,
    GroupOk,
    MailboxBatch,
    PullMailbox,
    PushEvents,
    SendAck,
    SendMessage,
    SyncComplete,
    decode_server_frame,
    encode_frame,
)
from qim.core.contract.tokens import AccessToken, sign_token
from qim.core.contract.wire import FRAME_BYTES_MAX, FrameDecoder

BODY = b"x" * 100
PUSH_OPCODE = PushEvents.OPCODE
OTHERS_CORES_MAX = 0.25
"""CPU that other processes took meanwhile; above it the figure is that of a part of the machine."""
WORKLOADS = {"1:1": 0, "group of 10": 10}


class Meter:
    """Counts and latencies of one measured span."""

    def __init__(self) -> None:
        self.acked = 0
        self.delivered = 0
        self.errors = 0
        self.ack_ms: list[float] = []
        self.end_ms: list[float] = []


class Device(asyncio.Protocol):
    """One connection: sends with a window or when told, pulls whenever something may be there."""

    def __init__(self, load: "Load", user: int, token: str) -> None:
        self.load = load
        self.user = user
        self.token = token
        self.decoder = FrameDecoder(FRAME_BYTES_MAX)
        self.transport: Any = None
        self.online = asyncio.get_running_loop().create_future()
        self.group: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.cursor = b""
        self.pulling = False
        self.dirty = False
        self.request = 1
        self.inflight = 0
        self.serial = 0
        self.not_after = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.write(
            Auth(
                access_token=self.token,
                device_id=b"bench",
                attempt=int(time.time() * 1000),
                cursor=None,
                client_info="bench",
                capabilities=(),
            )
        )

    def write(self, frame: Any) -> None:
        self.transport.write(encode_frame(frame, request=self.request))
        self.request += 1

    def data_received(self, data: bytes) -> None:
        for raw in self.decoder.feed(data):
            if raw.opcode == PUSH_OPCODE:
                self.pull()
                continue
            self.take(decode_server_frame(raw))

    def take(self, frame: Any) -> None:
        meter = self.load.meter
        if type(frame) is SendAck:
            self.inflight -= 1
            meter.acked += 1
            sent = self.load.sent.get(frame.client_message_id)
            if sent is not None:
                meter.ack_ms.append((time.perf_counter() - sent) * 1000)
            if self.load.closed_window:
                self.fill()
        elif type(frame) is MailboxBatch:
            self.pulled(frame)
        elif type(frame) is AuthOk:
            self.cursor = frame.cursor
            self.not_after = frame.server_time + frame.limits.not_after_ms
            self.write(SyncComplete(sync_to_seq=frame.sync_to_seq))
            self.online.set_result(None)
        elif type(frame) is GroupOk:
            self.group.set_result(frame.conversation_id)
        elif type(frame) is Error:
            meter.errors += 1
            self.inflight = max(self.inflight - 1, 0)
            self.load.last_error = f"{frame.code} {frame.message}"
            if self.load.closed_window and meter.errors < 10_000:
                asyncio.get_running_loop().call_later(0.05, self.fill)

    def pulled(self, frame: MailboxBatch) -> None:
        now = time.perf_counter()
        meter = self.load.meter
        self.cursor = frame.cursor
        for entry in frame.entries:
            if entry.sender_id != self.user and entry.body is not None and len(entry.body) > 16:
                meter.delivered += 1
                sent = self.load.sent.get(entry.body[:16])
                if sent is not None:
                    meter.end_ms.append((now - sent) * 1000)
        self.pulling = False
        if self.dirty or frame.has_more:
            self.dirty = False
            self.pull()

    def pull(self) -> None:
        if self.pulling:
            self.dirty = True
            return
        self.pulling = True
        self.write(PullMailbox(cursor=self.cursor, up_to_seq=0, limit=500))

    def fill(self) -> None:
        while self.load.running and self.inflight < self.load.window:
            self.send()

    def send(self) -> None:
        self.serial += 1
        cmid = self.user.to_bytes(4, "big") + self.load.salt + self.serial.to_bytes(8, "big")
        peer, conversation = self.load.target(self.user)
        self.load.sent[cmid] = time.perf_counter()
        self.inflight += 1
        self.write(
            SendMessage(
                client_message_id=cmid,
                conversation_id=conversation,
                peer_user_id=peer,
                kind=1,
                custom_type="",
                body=cmid + BODY,
                retention_class=0,
                not_after=self.not_after,
            )
        )


class Load:
    """All devices of one workload."""

    def __init__(
        self, address: str, secret: bytes, *, users: int, group_size: int, window: int
    ) -> None:
        self.address = address
        self.secret = secret
        self.users = users
        self.group_size = group_size
        self.salt = os.urandom(4)
        self.sent: dict[bytes, float] = {}
        self.meter = Meter()
        self.running = False
        self.closed_window = False
        self.window = window
        self.last_error = ""
        self.devices: list[Device] = []
        self.groups: dict[int, bytes] = {}

    def target(self, user: int) -> tuple[int | None, bytes | None]:
        if self.group_size:
            return None, self.groups[(user - 1) // self.group_size]
        return user % self.users + 1, None

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        host, _, port = self.address.rpartition(":")
        for user in range(1, self.users + 1):
            token = sign_token(
                AccessToken(
                    tenant_id="default",
                    user_id=user,
                    device_id=None,
                    expires_at=int(time.time() * 1000) + 3_600_000,
                ),
                self.secret,
            )
            _, device = await loop.create_connection(
                lambda user=user, token=token: Device(self, user, token), host, int(port)
            )
            self.devices.append(device)
        await asyncio.gather(*(device.online for device in self.devices))
        for number in range(self.users // self.group_size if self.group_size else 0):
            members = tuple(range(number * self.group_size + 1, (number + 1) * self.group_size + 1))
            creator = self.devices[members[0] - 1]
            creator.write(
                CreateGroup(
                    client_message_id=os.urandom(16),
                    not_after=creator.not_after,
                    members=members,
                    name=f"g{number}",
                    meta=b"",
                )
            )
            self.groups[number] = await asyncio.wait_for(creator.group, 20)

    def open_windows(self) -> None:
        """Every device keeps ``window`` sends in flight from now on."""
        self.running = self.closed_window = True
        for device in self.devices:
            device.fill()

    async def close_windows(self) -> None:
        """Send nothing more, wait until everything has arrived."""
        self.running = self.closed_window = False
        await self.settle()

    async def paced(self, rate: float, seconds: float) -> Meter:
        """Open loop at ``rate`` sends a second, round robin over the devices."""
        self.sent.clear()
        start, count = time.perf_counter(), 0
        self.meter = Meter()
        while (elapsed := time.perf_counter() - start) < seconds:
            while count < elapsed * rate:
                self.devices[count % len(self.devices)].send()
                count += 1
            await asyncio.sleep(0.001)
        await self.settle()
        return self.meter

    async def settle(self) -> None:
        """Until nothing is in flight and pulls bring nothing new, at most 20 s."""
        end = time.perf_counter() + 20
        while time.perf_counter() < end and any(device.inflight for device in self.devices):  # noqa: ASYNC110 - polled on purpose: an event a send would cost what is measured
            await asyncio.sleep(0.05)
        last = -1
        while time.perf_counter() < end and self.meter.delivered != last:
            last = self.meter.delivered
            for device in self.devices:
                device.pull()
            await asyncio.sleep(0.3)


def quantile(values: list[float], share: float) -> float:
    """Nearest-rank quantile, 0 of nothing."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)] if values else 0.0


async def maximum(load: Load, server: Server, args: argparse.Namespace) -> dict[str, Any]:
    """Closed windows: throughput and who was how busy, all taken over the same span after the warm-up."""
    load.open_windows()
    await asyncio.sleep(args.warmup)
    told, used, own, whole = server.metrics(), server.cpu(), time.process_time(), machine_cpu()
    load.meter, start = Meter(), time.perf_counter()
    await asyncio.sleep(args.seconds)
    meter, elapsed = load.meter, time.perf_counter() - start
    own, whole = time.process_time() - own, machine_cpu() - whole
    used = {name: seconds - used[name] for name, seconds in server.cpu().items()}
    told = {name: value - told.get(name, 0.0) for name, value in server.metrics().items()}
    load.meter = Meter()
    await load.close_windows()
    commits = told.get("qim_log_commits_total", 0.0)
    busy = {
        "loop": used["loop"] / elapsed,
        "log": told.get("qim_log_busy_seconds_total", 0.0) / elapsed,
        "store": used["store"] / elapsed,
        "client": own / elapsed,
    }
    others = max(whole - own - used["server"] - used["store"], 0.0) / elapsed
    limit = max(busy, key=lambda name: busy[name])
    return {
        "acked_per_s": meter.acked / elapsed,
        "delivered_per_s": meter.delivered / elapsed,
        "acked_per_cpu_s": meter.acked / max(used["server"] + used["store"], 0.001),
        "delivered_per_cpu_s": meter.delivered / max(used["server"] + used["store"], 0.001),
        "fsyncs_per_s": commits / elapsed,
        "acked_per_fsync": meter.acked / max(commits, 1.0),
        "server_cores": used["server"] / elapsed,
        **{f"{name}_busy": share for name, share in busy.items()},
        "others_cores": others,
        "limit": "others" if others > OTHERS_CORES_MAX else limit,
        "errors": meter.errors,
    }


async def measure(server: Server, args: argparse.Namespace, group: int) -> dict[str, Any]:
    """One workload against a running server: the maximum, then half of it."""
    secret = (server.data / "secret").read_bytes()
    load = Load(server.said["tcp"], secret, users=args.users, group_size=group, window=args.window)
    await load.connect()
    result = await maximum(load, server, args)
    paced = await load.paced(result["acked_per_s"] / 2, args.seconds)
    for device in load.devices:
        device.transport.close()
    await asyncio.sleep(0.2)
    for name, values in (("ack", paced.ack_ms), ("end", paced.end_ms)):
        result[f"{name}_p50_ms"] = quantile(values, 0.5)
        result[f"{name}_p99_ms"] = quantile(values, 0.99)
    result["errors"] += paced.errors
    result["last_error"] = load.last_error
    return result


def round_of(args: argparse.Namespace, group: int) -> dict[str, Any]:
    """A fresh server, one workload."""
    data = Path(tempfile.mkdtemp(prefix="qim-bench-"))
    server = Server(data, "--log", os.devnull, "--fsync", args.fsync, wrapper=tuple(args.wrapper))
    try:
        result = asyncio.run(measure(server, args, group))
    finally:
        accounting = server.stop()
        shutil.rmtree(data, ignore_errors=True)
    return result | accounting


def table(results: dict[str, dict[str, Any]], rounds: int) -> str:
    """The figures, a column a workload."""
    lines = [f"{f'median of {rounds}':>20}" + "".join(f"{name:>14}" for name in results)]
    for key in next(iter(results.values())):
        cells = [results[name][key] for name in results]
        shown = [f"{cell:>14.2f}" if isinstance(cell, float) else f"{cell!s:>14}" for cell in cells]
        lines.append(f"{key:>20}" + "".join(shown))
    return "\n".join(lines)


def main() -> int:
    """Medians over rounds, as a table and as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measured span")
    parser.add_argument("--warmup", type=float, default=2.0, help="seconds before it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--users", type=int, default=30)
    parser.add_argument("--window", type=int, default=16, help="sends a device keeps in flight")
    parser.add_argument("--fsync", default="everysec", choices=["everysec", "always"])
    parser.add_argument("--only", choices=list(WORKLOADS), default=None)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--wrapper", nargs="+", default=["-m", "qim"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    where = machine()
    results: dict[str, dict[str, Any]] = {}
    for name, group in WORKLOADS.items():
        if args.only in (None, name):
            results[name] = median_of([round_of(args, group) for _ in range(args.rounds)])
    print(table(results, args.rounds))
    report = {
        "machine": where,
        "options": {"users": args.users, "window": args.window, "fsync": args.fsync},
        "rounds": args.rounds,
        "results": results,
    }
    print(json.dumps(report))
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if all(result["acked_per_s"] > 0 for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
