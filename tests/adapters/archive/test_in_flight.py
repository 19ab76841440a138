"""Statements under way before a driver that a test plays: bounded, each answered once, and a silent driver is told of."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from qim.adapters import breakage
from qim.adapters.cassandra.archive import _NotAll, _Work
from qim.adapters.cassandra.in_flight import InFlight
from qim.core.ports.archive import WriteArchive

SILENT_SECONDS = 0.02


class Driver:
    """Keeps what was asked; the test answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def execute_async(self, prepared: object, values: object, execution_profile: object) -> Any:
        return self

    def add_callbacks(
        self, callback: Any, callback_args: Any, errback: Any, errback_args: Any
    ) -> None:
        self.asked.append((callback, callback_args))

    def answer(self, *rows: tuple[Any, ...]) -> None:
        callback, told = self.asked.pop(0)
        callback(list(rows), *told)


def play(scenario: Callable[[Driver, InFlight, list[Any]], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        loop, driver, broken = asyncio.get_running_loop(), Driver(), list[Any]()
        loop.set_exception_handler(lambda _, told: broken.append(told.get(breakage.BROKEN)))
        flight = InFlight(driver, loop, profile="p", bound=2, silent_s=SILENT_SECONDS)
        await scenario(driver, flight, broken)

    asyncio.run(main())


def test_no_more_than_the_bound_is_sent_and_answers_keep_their_places() -> None:
    async def scenario(driver: Driver, flight: InFlight, broken: list[Any]) -> None:
        asking = asyncio.ensure_future(flight.gather([("s", (n,)) for n in range(5)]))
        await asyncio.sleep(0)
        assert (len(driver.asked), flight.count, flight.queued) == (2, 2, 3)
        for number in range(5):
            while not driver.asked:  # noqa: ASYNC110 - turns of the loop, not time
                await asyncio.sleep(0)
            driver.answer((number,))
        assert await asking == [[(number,)] for number in range(5)]
        assert flight.count == 0

    play(scenario)


def test_a_driver_that_neither_answers_nor_ends_a_statement_is_told_of() -> None:
    async def scenario(driver: Driver, flight: InFlight, broken: list[Any]) -> None:
        asking = asyncio.ensure_future(flight.gather([("s", ())]))
        async with asyncio.timeout(20):
            while not broken:  # noqa: ASYNC110 - the looks tell nobody
                await asyncio.sleep(SILENT_SECONDS)
        assert broken == ["the archive's driver"]
        asking.cancel()

    play(scenario)


def test_a_driver_with_nothing_to_answer_may_be_silent() -> None:
    async def scenario(driver: Driver, flight: InFlight, broken: list[Any]) -> None:
        asking = asyncio.ensure_future(flight.gather([("s", ())]))
        await asyncio.sleep(0)
        driver.answer()
        await asking
        await asyncio.sleep(5 * SILENT_SECONDS)
        assert not broken

    play(scenario)


def test_a_fault_after_something_was_sent_is_in_doubt() -> None:
    """Whatever goes wrong from the first statement on: that nothing was written can't be said any more."""

    class Faulty(InFlight):
        async def gather(self, statements: Any) -> Any:
            raise RuntimeError("our own bug")

    async def scenario(driver: Driver, flight: InFlight, broken: list[Any]) -> None:
        loop: Any = asyncio.get_running_loop()
        faulty = Faulty(driver, loop, profile="p", bound=2, silent_s=SILENT_SECONDS)
        prepared: Any = type("Prepared", (), {"position": "s"})
        work = _Work(flight, faulty, prepared)
        with pytest.raises(_NotAll) as raised:
            await work.carry_out(WriteArchive(op=1, partition=0, rows=(), through=5))
        assert raised.value.surely is None

    play(scenario)
