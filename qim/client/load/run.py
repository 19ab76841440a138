"""One run of load: connect, make groups, send at the rate whatever comes back, then wait until all promised is there.

    connecting ──all online──► groups ──► warm-up ──► measured ──► settling ──► read once more ──► verdict

Every mailbox is pulled to its end once more before the verdict: a second copy that came last is seen, too.
The generator is honest about itself: a send that left later than it was due counts its lateness ("generator"), and a run
whose generator was late by more than ``late_ms`` at P99 measured the generator, not the server. A run that is hard on
purpose, and whose latencies nobody reads, may be given more of it: what it proves of every message stays the same.
"""

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict

from qim.client.load.device import GroupRefused, LoadDevice, now_us
from qim.client.load.tally import Stream, Tally, Verdict
from qim.client.tls import ClientTls
from qim.core.contract.frames import CreateGroup, GroupOk
from qim.core.contract.params import DAY_MS
from qim.core.contract.tokens import AccessToken, sign_token

TICK_SECONDS: Final = 0.001
PING_SECONDS: Final = 1.0
PINGING: Final = 50
"""About so many devices of a run ping, each once in PING_SECONDS."""
CONNECT_SECONDS_MAX: Final = 120.0
GROUP_SECONDS_MAX: Final = 60.0
READ_SECONDS_MAX: Final = 30.0
GENERATOR_LATE_MS: Final = 20.0
GROUP_MEMBERS_MAX: Final = 1_000


class LoadPlan(Struct, frozen=True, kw_only=True):
    """``rate``: messages a second over all devices. ``group_share``: of them to groups, the rest between pairs.

    ``reconnects``: devices a second whose stream is cut; ``storms``: how many times ALL are cut at once, evenly over the
    measured time. ``slow``: devices that stop reading for ``slow_seconds`` at a time.
    """

    servers: tuple[str, ...]
    secret: bytes
    tenant_id: str = "default"
    users: int = 100
    first_user: int = 1
    rate: float = 100.0
    seconds: float = 30.0
    warmup: float = 3.0
    settle: float = 60.0
    group_size: int = 0
    group_count: int = 0
    group_share: float = 0.0
    body_bytes: int = 200
    connects_per_second: float = 500.0
    reconnects: float = 0.0
    storms: int = 0
    slow: int = 0
    slow_seconds: float = 5.0
    late_ms: float = GENERATOR_LATE_MS

    def faults(self) -> list[str]:
        """What can't be carried out, in words; empty when it can."""
        found = []
        if self.users < 2:
            found.append("at least 2 users, so that somebody receives")
        if self.group_count and not 2 <= self.group_size <= min(self.users, GROUP_MEMBERS_MAX):
            found.append(f"groups of 2 to {min(self.users, GROUP_MEMBERS_MAX)} of the users")
        if self.group_share > 0 and not self.group_count:
            found.append("a share for groups needs groups")
        if not 0 <= self.group_share <= 1:
            found.append("a share is between 0 and 1")
        for name in ("warmup", "reconnects", "storms", "slow", "group_count"):
            if not 0 <= getattr(self, name) < math.inf:
                found.append(f"{name} is a number of 0 or more")
        if self.slow > self.users:
            found.append("no more slow readers than users")
        return found


class LoadReport(Struct, frozen=True, kw_only=True):
    """What a run came to. ``complete``: everything planned was offered and settled, and the generator kept its times."""

    plan: dict[str, Any]
    seconds: float
    offered_per_s: float
    acked_per_s: float
    delivered_per_s: float
    verdict: dict[str, int]
    holds: bool
    complete: bool
    incomplete_because: tuple[str, ...]
    latency_ms: dict[str, dict[str, float]]
    errors: dict[str, int]
    counts: dict[str, int]


class NotBegun(Exception):
    """Before anything was sent. ``refused``: the server said no, and would again."""

    def __init__(self, text: str, *, refused: bool = False) -> None:
        self.refused = refused
        super().__init__(text)


class LoadRun:
    """``progress(phase, share)`` is told where it stands, share from 0 to 1."""

    def __init__(
        self,
        plan: LoadPlan,
        *,
        progress: Callable[[str, float], None] = lambda phase, share: None,
        tls: ClientTls | None = None,
    ) -> None:
        self.plan = plan
        self._progress = progress
        self._tls = tls
        self.tally = Tally([], b"")
        self.devices: list[LoadDevice] = []
        self._direct: list[Stream] = []
        self._grouped: list[Stream] = []

    async def run(self) -> LoadReport:
        """All phases. Raises NotBegun."""
        plan = self.plan
        beside: list[asyncio.Task[None]] = []
        try:
            await self._connect()
            beside = [asyncio.create_task(work) for work in (self._nurse(), self._ping())]
            await self._make_groups()
            self._pair()
            if plan.warmup:
                await self._send_for(plan.warmup, "warm-up")
            self.tally.measuring = True
            before = dict(self.tally.counts)
            began = time.monotonic()
            await self._send_for(plan.seconds, "measuring", storms=plan.storms)
            elapsed = time.monotonic() - began
            span = {k: v - before.get(k, 0) for k, v in self.tally.counts.items()}
            await self._settle()
            unread = await self._read_through()
            return self._report(span, elapsed, unread)
        finally:
            for task in beside:
                task.cancel()
            for device in self.devices:
                device.stop()

    # ---------------------------------------------------------------- before

    async def _connect(self) -> None:
        try:
            await self._connected()
        except TimeoutError:
            raise NotBegun(self._not_online()) from None

    def _not_online(self) -> str:
        """How many are, where, and what the others met."""
        online = sum(device.online.is_set() for device in self.devices)
        told = f"{online} of {self.plan.users} users came online at {', '.join(self.plan.servers)}"
        met = ", ".join(f"{name} {count} times" for name, count in self.tally.errors.most_common())
        return f"{told} ({met})" if met else told

    async def _connected(self) -> None:
        plan = self.plan
        self.tally = Tally([], os.urandom(4))
        whole = plan.warmup + plan.seconds + plan.settle
        # A connection ends with its token: those of a long run outlast it.
        expires_at = time.time_ns() // 1_000_000 + DAY_MS + int(whole * 1000)
        async with asyncio.timeout(CONNECT_SECONDS_MAX + plan.users / plan.connects_per_second):
            for number in range(plan.users):
                user = plan.first_user + number
                claims = AccessToken(
                    tenant_id=plan.tenant_id, user_id=user, device_id=None, expires_at=expires_at
                )
                device = LoadDevice(
                    number,
                    user,
                    sign_token(claims, plan.secret),
                    plan.servers[number % len(plan.servers)],
                    self.tally,
                    tls=self._tls,
                )
                device.start()
                self.devices.append(device)
                await asyncio.sleep(1 / plan.connects_per_second)
            for number, device in enumerate(self.devices):
                await device.decided.wait()
                if device.refusal:
                    raise NotBegun(self._not_online(), refused=True)
                self._progress("connecting", (number + 1) / plan.users)

    async def _make_groups(self) -> None:
        plan = self.plan
        for number in range(plan.group_count):
            first = number * plan.group_size % (plan.users - plan.group_size + 1)
            numbers = tuple(range(first, first + plan.group_size))
            members = tuple(plan.first_user + n for n in numbers)
            key = os.urandom(16)
            made = await self._made(number, self.devices[first], key, members)
            for sender in numbers:
                stream = self._stream(sender, numbers)
                stream.group = number
                stream.conversation_id = made.conversation_id
                self._grouped.append(stream)
            self._progress("groups", (number + 1) / plan.group_count)

    async def _made(
        self, number: int, creator: LoadDevice, key: bytes, members: tuple[int, ...]
    ) -> GroupOk:
        def frame_of(not_after: int) -> CreateGroup:
            return CreateGroup(
                client_message_id=key, not_after=not_after, members=members, name="load"
            )

        told = f"{number} of {self.plan.group_count} groups were made, then "
        try:
            async with asyncio.timeout(GROUP_SECONDS_MAX):
                return await creator.create_group(frame_of)
        except GroupRefused as code:
            raise NotBegun(f"{told}the server refused one: {code}", refused=True) from None
        except TimeoutError:
            raise NotBegun(f"{told}none within {GROUP_SECONDS_MAX:g} s") from None

    def _pair(self) -> None:
        users = self.plan.users
        for sender in range(users):
            receiver = (sender + 1) % users
            stream = self._stream(sender, (sender, receiver))
            stream.peer = self.plan.first_user + receiver
            self._direct.append(stream)

    def _stream(self, sender: int, recipients: tuple[int, ...]) -> Stream:
        number = len(self.tally.streams)
        stream = Stream(number=number, sender=sender, peer=None, group=None, recipients=recipients)
        self.tally.streams.append(stream)
        return stream

    # ---------------------------------------------------------------- under way

    async def _send_for(self, seconds: float, phase: str, *, storms: int = 0) -> None:
        """Open loop: what is due is done, however late the loop comes to it; nothing that was planned is left out."""
        plan = self.plan
        began, count, cuts, blown = now_us(), 0, 0, 0
        elapsed = 0.0
        while elapsed < seconds:
            elapsed = min(seconds, (now_us() - began) / 1_000_000)
            while count < min(elapsed * plan.rate, int(seconds * plan.rate)):
                self._send_one(count, began + int(count * 1_000_000 / plan.rate))
                count += 1
            while cuts < elapsed * plan.reconnects:
                self.devices[cuts * 7919 % plan.users].drop()
                cuts += 1
            while blown < storms and elapsed >= (blown + 1) * seconds / (storms + 1):
                self._blow()
                blown += 1
            self._progress(phase, elapsed / seconds)
            await asyncio.sleep(TICK_SECONDS)

    def _blow(self) -> None:
        """As when a gateway or a network comes back: everybody dials at the same time."""
        for device in self.devices:
            device.drop()
        self.tally.counts["storms"] += 1

    def _send_one(self, count: int, due_us: int) -> None:
        plan = self.plan
        # Spread evenly: of every 1,000 messages the share goes to groups, not the first so many.
        grouped = int((count + 1) * plan.group_share) > int(count * plan.group_share)
        streams = self._grouped if grouped else self._direct
        stream = streams[count * 31 % len(streams)]
        self.devices[stream.sender].send(stream, due_us, plan.body_bytes)

    async def _nurse(self) -> None:
        turn = 0
        while True:
            await asyncio.sleep(PING_SECONDS)
            turn += 1
            for device in self.devices:
                device.nurse()
            if self.plan.slow and turn % max(1, int(self.plan.slow_seconds * 2)) == 1:
                for device in self.devices[: self.plan.slow]:
                    device.hold_reading(self.plan.slow_seconds)
                self.tally.counts["readers_held"] += self.plan.slow

    async def _ping(self) -> None:
        """One after the other through the second: pings that leave together would measure the queue of each other."""
        asking = self.devices[:: max(1, len(self.devices) // PINGING)]
        while True:
            for device in asking:
                await asyncio.sleep(PING_SECONDS / len(asking))
                device.ping()

    async def _settle(self) -> None:
        """Until nothing is open and nothing promised is missing, or time is up."""
        deadline = time.monotonic() + self.plan.settle
        while time.monotonic() < deadline:
            left = self.tally.open_sends() + self.tally.missing()
            self._progress("settling", 1 / (1 + left))
            if not left:
                return
            await asyncio.sleep(0.2)

    async def _read_through(self) -> int:
        """What stands in the mailboxes behind all that was owed; how many of them could not be read to their end."""
        for device in self.devices:
            device.read_again()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READ_SECONDS_MAX):
                for device in self.devices:
                    await device.read_through.wait()
        return sum(not device.read_through.is_set() for device in self.devices)

    # ---------------------------------------------------------------- after

    def _report(self, span: dict[str, int], elapsed: float, unread: int) -> LoadReport:
        verdict = self.tally.verdict()
        latency = self.tally.quantiles_ms()
        because = self._incomplete_because(verdict, latency)
        if unread:
            because.append(f"{unread} mailboxes could not be read to their end once more")
        plan = {k: v for k, v in asdict(self.plan).items() if k != "secret"}
        return LoadReport(
            plan=plan,
            seconds=elapsed,
            offered_per_s=span.get("sent", 0) / elapsed,
            acked_per_s=span.get("acked", 0) / elapsed,
            delivered_per_s=span.get("delivered", 0) / elapsed,
            verdict=asdict(verdict),
            holds=verdict.holds(),
            complete=not because,
            incomplete_because=tuple(because),
            latency_ms=latency,
            errors=dict(self.tally.errors),
            counts=dict(self.tally.counts),
        )

    def _incomplete_because(
        self, verdict: Verdict, latency: dict[str, dict[str, float]]
    ) -> list[str]:
        because = []
        if not verdict.acked:
            because.append("nothing was acked")
        if verdict.unsettled:
            because.append(f"{verdict.unsettled} sends were neither acked nor refused in time")
        if verdict.refused:
            because.append(f"{verdict.refused} sends were refused")
        if self.tally.counts["not_offered"]:
            because.append(f"{self.tally.counts['not_offered']} sends were not offered at all")
        if self.tally.counts["storms"] < self.plan.storms:
            because.append(f"{self.tally.counts['storms']} of {self.plan.storms} storms")
        if latency["generator"]["p99"] > self.plan.late_ms:
            late = latency["generator"]["p99"]
            because.append(f"the generator was {late:.0f} ms late at P99: it was the limit")
        return because
