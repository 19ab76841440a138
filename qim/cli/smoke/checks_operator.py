"""What an operator sees: every process says it is healthy, and tells what is needed to find where time is lost."""

import asyncio
import json
import re
import urllib.request
from typing import Final

from qim.cli.smoke.stage import STEP_SECONDS_MAX, Check, Skipped, Stage, acked, take
from qim.core.contract.frames import Ping, Pong
from qim.core.contract.invariants import Invariant
from qim.core.contract.invariants import Stage as Stop

READ_SECONDS_MAX: Final = 10.0
EVERY_PROCESS: Final = (
    "qim_process_start_seconds",
    "qim_samples_stale",
    "qim_inbox_events_waiting",
    "qim_step_seconds_count",
    "qim_inbox_wait_seconds_count",
)
LAST_LEG: Final = ("qim_conn_write_wait_seconds_count", "qim_conn_write_seconds_count")
CONTROL_GROUP: Final = ("qim_gateway_request_seconds_count", "WATERMARK")
ON_ITS_WAY: Final = (Stop.OUTBOXED, Stop.COMMITTED, Stop.DISPATCHED, Stop.MAILBOXED, Stop.PUSHED)
STALE: Final = ("qim_samples_stale", "")
AGAIN_SECONDS: Final = 0.1
SAMPLE: Final = re.compile(r"^(\w+?)(?:\{([^}]*)\})? (\S+)$")
LABEL: Final = re.compile(r'(\w+)="([^"]*)"')

Samples = dict[tuple[str, str], float]


def _read(address: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=READ_SECONDS_MAX) as answer:
        text: str = answer.read().decode()
        return text


async def read(stage: Stage, path: str) -> dict[str, str]:
    """A page of every operator's endpoint by its address; each must be 200. Raises Skipped where none is known."""
    if not stage.grounds.metrics:
        raise Skipped("needs the operators' addresses: give --metrics HOST:PORT or --data DIR")
    pages = {}
    for address in stage.grounds.metrics:
        pages[address] = await asyncio.to_thread(_read, address, path)
    return pages


async def samples(stage: Stage) -> dict[str, Samples]:
    """Of each process every sample by (name, label), told by its event loop now; bucket counts are left out.

    AssertionError where a loop never comes to tell: for a moment any machine is busy.
    """
    deadline = asyncio.get_running_loop().time() + STEP_SECONDS_MAX
    while True:
        told = await _samples(stage)
        stale = [address for address, of_one in told.items() if of_one.get(STALE)]
        if not stale:
            return told
        late = asyncio.get_running_loop().time() > deadline
        assert not late, f"{', '.join(stale)}: the event loop did not answer"
        await asyncio.sleep(AGAIN_SECONDS)


async def _samples(stage: Stage) -> dict[str, Samples]:
    told = {}
    for address, text in (await read(stage, "/metrics")).items():
        of_one: Samples = {}
        for line in text.splitlines():
            found = SAMPLE.match(line)
            if found is None or line.startswith("#"):
                continue
            labels = dict(LABEL.findall(found[2] or ""))
            if "le" not in labels:
                of_one[found[1], ",".join(labels.values())] = float(found[3])
        told[address] = of_one
    return told


async def health_is_green(stage: Stage) -> None:
    for path in ("/livez", "/readyz", "/healthz"):
        for address, text in (await read(stage, path)).items():
            assert json.loads(text)["ok"] is True, f"{address}{path}"


async def invariants_are_zero(stage: Stage) -> None:
    for address, of_one in (await samples(stage)).items():
        for invariant in Invariant:
            short = invariant.value.removesuffix("_total").removesuffix("_count")
            value = of_one.get((f"qim_{short}_total", ""))
            assert value is not None, f"{address} does not tell {invariant.value}"
            assert value == 0.0, f"{address}: {invariant.value} is {value}"
        broken = {key: v for key, v in of_one.items() if key[0] == "qim_violation_total" and v}
        assert not broken, f"{address}: {broken}"


async def every_process_tells_the_same_kinds(stage: Stage) -> None:
    for address, of_one in (await samples(stage)).items():
        names = {name for name, _ in of_one}
        missing = [name for name in EVERY_PROCESS if name not in names]
        assert not missing, f"{address} does not tell {missing}"


async def queues_are_within_their_bounds(stage: Stage) -> None:
    told = await samples(stage)
    assert any(name == "qim_queue_depth" for of_one in told.values() for name, _ in of_one)
    for address, of_one in told.items():
        for (name, label), depth in of_one.items():
            if name == "qim_queue_depth":
                room = of_one.get(("qim_queue_capacity", label))
                assert room is not None, f"{address}: queue {label} has no bound"
                assert depth <= room, f"{address}: queue {label} holds {depth} of {room}"


async def a_message_is_seen_on_its_way(stage: Stage) -> None:
    await read(stage, "/livez")  # skipped before anybody is disturbed
    alice, bob = stage.people(2)
    sender, receiver = await alice.device(), await bob.device()
    before = await _sums(stage)
    at = acked(await sender.send("watched", to=bob.user_id))
    (message,) = await take(receiver, 1)
    assert message.message_id == at.message_id
    await (await alice.wire()).ask(Ping(client_time=1), Pong)
    deadline = asyncio.get_running_loop().time() + STEP_SECONDS_MAX
    while missing := _standing(before, await _sums(stage)):
        assert asyncio.get_running_loop().time() < deadline, f"not told: {missing}"
        await asyncio.sleep(AGAIN_SECONDS)


def _standing(before: Samples, now: Samples) -> list[str]:
    """Stages and the last leg that no message has passed since."""
    wanted = [("qim_stage_total", str(stop)) for stop in ON_ITS_WAY]
    wanted += [(name, "") for name in LAST_LEG] + [CONTROL_GROUP]
    return [str(key) for key in wanted if now.get(key, 0.0) <= before.get(key, 0.0)]


async def _sums(stage: Stage) -> Samples:
    """Over all processes: which of them did it depends on who owns the shard."""
    summed: Samples = {}
    for of_one in (await samples(stage)).values():
        for key, value in of_one.items():
            summed[key] = summed.get(key, 0.0) + value
    return summed


CHECKS = (
    Check(name="health-is-green", run=health_is_green),
    Check(name="invariants-are-zero", run=invariants_are_zero),
    Check(name="every-process-tells-the-same-kinds", run=every_process_tells_the_same_kinds),
    Check(name="queues-are-bounded", run=queues_are_within_their_bounds),
    Check(name="messages-are-seen-on-their-way", run=a_message_is_seen_on_its_way),
)
