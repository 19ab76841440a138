"""`qim up` under load from a client in another process: what is acked and what is pulled, a second and a CPU-second.

    python bench/pipeline.py [--seconds 8] [--rounds 3] [--users 32] [--json FILE] [--fsync everysec|always]

Two workloads, 1:1 and a 10-member group, each first with closed windows (the maximum), then paced at half of it (ack and
end-to-end latency). Server and client share the machine. A delivery counts when PULL_MAILBOX brought it to the recipient.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

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
ACK_OPCODE = SendAck.OPCODE


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

    def __init__(self, address: str, secret: bytes, users: int, group_size: int) -> None:
        self.address = address
        self.secret = secret
        self.users = users
        self.group_size = group_size
        self.salt = os.urandom(4)
        self.sent: dict[bytes, float] = {}
        self.meter = Meter()
        self.running = False
        self.closed_window = False
        self.window = int(os.environ.get("QIM_BENCH_WINDOW", "16"))
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

    async def maximum(self, seconds: float) -> tuple[Meter, float]:
        """Closed windows for a while; a second of warm-up is not counted."""
        self.running = self.closed_window = True
        for device in self.devices:
            device.fill()
        await asyncio.sleep(1.0)
        self.meter = Meter()
        start = time.perf_counter()
        await asyncio.sleep(seconds)
        meter, elapsed = self.meter, time.perf_counter() - start
        self.running = self.closed_window = False
        await self.settle()
        return meter, elapsed

    async def paced(self, rate: float, seconds: float) -> Meter:
        """Open loop at ``rate`` sends a second, round robin over the devices."""
        self.sent.clear()
        self.meter = Meter()
        start, count = time.perf_counter(), 0
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


def cpu_seconds(pids: list[int]) -> float:
    """User and system time of processes, from the kernel."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def children(pid: int) -> list[int]:
    """Direct children (the private store)."""
    with contextlib.suppress(OSError):
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    return []


def quantile(values: list[float], share: float) -> float:
    """Nearest-rank quantile, 0 of nothing."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)] if values else 0.0


async def measure(
    server: dict[str, Any], secret: bytes, args: argparse.Namespace, group: int
) -> dict[str, Any]:
    """One workload against a running server."""
    load = Load(server["tcp"], secret, args.users, group)
    await load.connect()
    pid = server["pid"]
    store = children(pid)
    before, before_store = cpu_seconds([pid]), cpu_seconds(store)
    own = time.process_time()
    meter, elapsed = await load.maximum(args.seconds)
    used, used_store = cpu_seconds([pid]) - before, cpu_seconds(store) - before_store
    own = time.process_time() - own
    acked = meter.acked / elapsed
    paced = await load.paced(acked / 2, args.seconds)
    for device in load.devices:
        device.transport.close()
    await asyncio.sleep(0.2)
    return {
        "acked_per_s": acked,
        "delivered_per_s": meter.delivered / elapsed,
        "acked_per_cpu_s": meter.acked / max(used + used_store, 0.001),
        "server_cores": used / (elapsed + 1),
        "store_cores": used_store / (elapsed + 1),
        "client_cores": own / (elapsed + 1),
        "ack_p50_ms": quantile(paced.ack_ms, 0.5),
        "ack_p99_ms": quantile(paced.ack_ms, 0.99),
        "end_p50_ms": quantile(paced.end_ms, 0.5),
        "end_p99_ms": quantile(paced.end_ms, 0.99),
        "errors": meter.errors + paced.errors,
        "last_error": load.last_error,
    }


def round_of(args: argparse.Namespace, group: int) -> dict[str, Any]:
    """A fresh server, one workload."""
    data = Path(tempfile.mkdtemp(prefix="qim-bench-"))
    command = [sys.executable, "-m", "qim", "up", "--data", str(data), "--tcp", "127.0.0.1:0"]
    command += ["--metrics", "127.0.0.1:0", "--log", os.devnull, "--fsync", args.fsync]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        server = json.loads(process.stdout.readline())
        return asyncio.run(measure(server, (data / "secret").read_bytes(), args, group))
    finally:
        process.terminate()
        process.wait(timeout=60)
        shutil.rmtree(data, ignore_errors=True)


def main() -> int:
    """Medians over rounds, as a table and as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--users", type=int, default=30)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--fsync", default="everysec", choices=["everysec", "always"])
    args = parser.parse_args()
    workloads = {"1:1": 0, "group of 10": 10}
    results: dict[str, dict[str, Any]] = {}
    for name, group in workloads.items():
        rounds = [round_of(args, group) for _ in range(args.rounds)]
        results[name] = {
            key: statistics.median(one[key] for one in rounds)
            if isinstance(value, int | float)
            else value
            for key, value in rounds[0].items()
        }
    keys = [key for key in next(iter(results.values())) if key != "last_error"]
    print(f"{'median of ' + str(args.rounds):>16}  " + "".join(f"{name:>14}" for name in results))
    for key in keys:
        print(f"{key:>16}  " + "".join(f"{results[name][key]:>14.1f}" for name in results))
    report = {
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "results": results,
    }
    print(json.dumps(report))
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if all(result["acked_per_s"] > 0 for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
