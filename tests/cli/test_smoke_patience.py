"""`qim smoke` on a machine that is busy for a moment: asked again, told apart from one that does not serve."""

import asyncio
from collections.abc import Iterator

import pytest

from qim.cli.smoke import checks_operator, wire
from qim.cli.smoke.checks_operator import samples
from qim.cli.smoke.stage import Grounds, Stage
from qim.cli.smoke.wire import Wire
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import ClientFrame, Error, Ping, Pong, WireFrame
from tests.client.scripted_server import ScriptedServer


class Busy(ScriptedServer):
    """The first PINGs get these ERRORs."""

    def __init__(self, *codes: ErrorCode) -> None:
        super().__init__()
        self._codes = list(codes)

    def _answer(self, frame: ClientFrame) -> WireFrame | None:
        if isinstance(frame, Ping) and self._codes:
            return Error(code=self._codes.pop(0), message="later")
        return super()._answer(frame)


def pinged(*codes: ErrorCode) -> int:
    """How many PINGs it took."""

    async def main() -> int:
        async with Busy(*codes) as server:
            connection = await Wire.open(server.address)
            try:
                await connection.ask(Ping(client_time=1), Pong)
            finally:
                await connection.close()
            return len(server.heard)

    return asyncio.run(main())


def test_what_nobody_had_time_for_is_asked_again() -> None:
    assert pinged() == 1
    assert pinged(ErrorCode.UNAVAILABLE, ErrorCode.TIMEOUT_UNKNOWN) == 3


def test_another_code_is_judged_at_once_and_patience_has_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(AssertionError, match="PING was answered by ERROR FORBIDDEN"):
        pinged(ErrorCode.FORBIDDEN)
    monkeypatch.setattr(wire, "ANSWER_SECONDS_MAX", 0.2)
    with pytest.raises(AssertionError, match="PING was answered by ERROR UNAVAILABLE"):
        pinged(*[ErrorCode.UNAVAILABLE] * 100)


def scraped(monkeypatch: pytest.MonkeyPatch, *stale: int) -> float:
    """What a process tells whose event loop did not answer at these scrapes."""
    pages: Iterator[int] = iter(stale)
    monkeypatch.setattr(
        checks_operator,
        "_read",
        lambda address, path: f"qim_samples_stale {next(pages)}\nqim_queue_depth 7\n",
    )
    grounds = Grounds(
        address="",
        metrics=("one:1",),
        tenant_id="default",
        sign=None,
        token=None,
        token_user=0,
    )
    told = asyncio.run(samples(Stage(grounds)))
    assert next(pages, None) is None, "each was looked at"
    return told["one:1"]["qim_queue_depth", ""]


def test_gauges_of_an_earlier_time_are_judged_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    assert scraped(monkeypatch, 0) == 7.0
    assert scraped(monkeypatch, 1, 1, 0) == 7.0
    monkeypatch.setattr(checks_operator, "STEP_SECONDS_MAX", 0.0)
    with pytest.raises(AssertionError, match="one:1: the event loop did not answer"):
        scraped(monkeypatch, 1)
