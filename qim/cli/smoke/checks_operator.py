"""What an operator sees: the server says it is healthy, and its metrics can be read."""

import asyncio
import json
import urllib.request

from qim.cli.smoke.stage import Check, Skipped, Stage
from qim.core.contract.invariants import Invariant

READ_SECONDS_MAX = 10.0


def _read(address: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=READ_SECONDS_MAX) as answer:
        text: str = answer.read().decode()
        return text


async def read(stage: Stage, path: str) -> str:
    """A page of the operator's endpoint, which must be 200. Raises Skipped where its address isn't known."""
    if stage.grounds.metrics is None:
        raise Skipped("needs the operator's address: give --metrics HOST:PORT or --data DIR")
    return await asyncio.to_thread(_read, stage.grounds.metrics, path)


async def health_is_green(stage: Stage) -> None:
    for path in ("/livez", "/readyz", "/healthz"):
        assert json.loads(await read(stage, path))["ok"] is True, path


async def invariants_are_zero(stage: Stage) -> None:
    text = await read(stage, "/metrics")
    values = {line.split("{")[0].split(" ")[0]: line for line in text.splitlines()}
    for invariant in Invariant:
        short = invariant.value.removesuffix("_total").removesuffix("_count")
        line = values.get(f"qim_{short}_total")
        assert line is not None, f"{invariant.value} is not told"
        assert float(line.rsplit(" ", 1)[1]) == 0.0, line


CHECKS = (
    Check(name="health-is-green", run=health_is_green),
    Check(name="invariants-are-zero", run=invariants_are_zero),
)
