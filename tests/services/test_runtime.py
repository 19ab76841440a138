"""The runtime's duties to a machine (architecture.md, "What a driver owes a machine")."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Struct

from qim.adapters.wall_clock import wall_ms
from qim.core.ports.observe import Count, Gauge, Measured, StageReached, Violation, Warned
from qim.services import runtime
from qim.services.runtime import (
    INBOX_EVENTS_MAX,
    STEP_EVENTS_MAX,
    Hosted,
    Runtime,
    monotonic_ms,
    routes_for,
)
from tests.services.hand_loop import HandLoop


class Said(Struct, frozen=True):
    """An effect."""

    what: Any


class Machine:
    """Does in each step what the test says, and remembers what it was given."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, list[Any]]] = []
        self.reply: Callable[[list[Any]], list[Any]] = lambda events: []
        self.at: int | None = None
        self.stepping = False

    def step(self, now: int, events: Any) -> list[Any]:
        assert not self.stepping, "re-entered"
        self.stepping = True
        self.steps.append((now, list(events)))
        effects = self.reply(list(events))
        self.stepping = False
        return effects

    def deadline(self) -> int | None:
        return self.at

    def idle(self) -> bool:
        return True


class Observed:
    """An observer that only remembers."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self.deaths: list[tuple[str, BaseException]] = []
        self.times: list[tuple[str, str]] = []
        self.samplers: list[Callable[[], Any]] = []

    def count(self, name: str, value: int, label: str) -> None:
        self.seen.append(("count", name, value, label))

    def gauge(self, name: str, value: int, label: str) -> None:
        self.seen.append(("gauge", name, value, label))

    def observe(self, name: str, seconds: float, label: str) -> None:
        self.seen.append(("observe", name, seconds, label))

    def timer(self, name: str, label: str) -> Callable[[float], None]:
        return lambda seconds: self.times.append((name, label))

    def sample(self, sampler: Callable[[], Any], loop: Any) -> None:
        self.samplers.append(sampler)

    def stage(self, machine: str, trace_id: int, stage: str, detail: str, sent_at: int) -> None:
        self.seen.append(("stage", machine, trace_id, stage, detail, sent_at))

    def violation(self, machine: str, check: str, detail: str) -> None:
        self.seen.append(("violation", machine, check, detail))

    def warned(self, machine: str, what: str, detail: str) -> None:
        self.seen.append(("warned", machine, what, detail))

    def died(self, machine: str, error: BaseException) -> None:
        self.deaths.append((machine, error))


class Bench:
    """One hosted machine on a loop turned by hand."""

    def __init__(self, loop: HandLoop) -> None:
        self.loop = loop
        self.machine = Machine()
        self.observed = Observed()
        self.routed: list[Any] = []
        self.runtime = Runtime(loop, self.observed)  # type: ignore[arg-type]
        route = routes_for([Said], lambda effect, hosted: self.routed.append(effect.what))
        self.hosted: Hosted = self.runtime.add("one", self.machine, route)

    def events(self) -> list[list[Any]]:
        return [events for _, events in self.machine.steps]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    loop = HandLoop()
    monkeypatch.setattr(runtime, "monotonic_ms", lambda: loop.now_ms)
    return Bench(loop)


# ------------------------------------------------------------ steps


def test_everything_that_came_is_one_step(bench: Bench) -> None:
    for event in ("a", "b", "c"):
        bench.hosted.post(event)
    assert bench.events() == [], "never inside post"
    assert bench.loop.turn() == 1, "one call of the loop for all of them"
    assert bench.machine.steps == [(1_000, ["a", "b", "c"])]
    assert bench.loop.turn() == 0


def test_effects_go_out_in_order_each_to_its_route(bench: Bench) -> None:
    bench.machine.reply = lambda events: [
        Said(1),
        Count(name="c", value=2, label="l"),
        Said(2),
        Gauge(name="g", value=3),
        StageReached(trace_id=7, stage="OUTBOXED", detail="d", sent_at=5),
        Measured(name="m", ms=40, label="k"),
        Violation(check="v", detail="why"),
        Warned(what="w", detail="where"),
        Said(3),
    ]
    bench.hosted.post("go")
    bench.loop.rest()
    assert bench.routed == [1, 2, 3]
    assert bench.observed.seen == [
        ("count", "c", 2, "l"),
        ("gauge", "g", 3, ""),
        ("stage", "one", 7, "OUTBOXED", "d", 5),
        ("observe", "m_seconds", 0.04, "k"),
        ("violation", "one", "v", "why"),
        ("warned", "one", "w", "where"),
    ]


def test_a_step_is_timed_and_a_machine_is_asked_for_its_gauges(bench: Bench) -> None:
    bench.hosted.post("a")
    bench.hosted.post("b")
    (sampler,) = bench.observed.samplers
    assert list(sampler()) == [("inbox_events_waiting", "one", 2)]
    bench.machine.gauges = lambda now: [Gauge(name="g", value=now, label="l")]  # type: ignore[attr-defined]
    bench.loop.rest()
    assert bench.observed.times == [("inbox_wait_seconds", "one"), ("step_seconds", "one")]
    assert list(sampler()) == [("inbox_events_waiting", "one", 0), ("g", "l", 1_000)]


def test_what_a_route_answers_at_once_comes_in_the_next_step(bench: Bench) -> None:
    bench.hosted.routes[Said] = lambda effect, hosted: hosted.post(f"answer {effect.what}")
    bench.machine.reply = lambda events: [Said(1), Said(2)] if events == ["ask"] else []
    bench.hosted.post("ask")
    bench.loop.rest()
    assert bench.events() == [["ask"], ["answer 1", "answer 2"]]


@pytest.mark.parametrize("more", [0, 1])
def test_a_long_inbox_is_stepped_in_pieces_that_keep_the_order(bench: Bench, more: int) -> None:
    count = 2 * STEP_EVENTS_MAX + more
    for number in range(count):
        bench.hosted.post(number)
    bench.loop.turn()
    bench.hosted.post("behind")
    bench.loop.rest()
    sizes = [len(events) for events in bench.events()]
    assert max(sizes) == STEP_EVENTS_MAX
    assert sum(sizes) == count + 1
    flat = [event for events in bench.events() for event in events]
    assert flat == [*range(count), "behind"]


# ------------------------------------------------------------ deadlines


def test_a_deadline_is_kept_with_an_empty_step(bench: Bench) -> None:
    bench.machine.at = 1_500
    bench.hosted.post("go")
    bench.loop.rest()
    assert bench.loop.armed() == [1_500]
    bench.machine.at = None
    bench.loop.pass_ms(499)
    assert len(bench.machine.steps) == 1
    bench.loop.pass_ms(1)
    assert bench.machine.steps[1] == (1_500, [])
    assert bench.loop.armed() == []


def test_a_deadline_that_moves_moves_its_timer(bench: Bench) -> None:
    for at, armed in ((5_000, [5_000]), (2_000, [2_000]), (2_000, [2_000]), (9_000, [9_000])):
        bench.machine.at = at
        bench.hosted.post("go")
        bench.loop.rest()
        assert bench.loop.armed() == armed
    bench.machine.at = None
    bench.hosted.post("go")
    bench.loop.rest()
    assert bench.loop.armed() == []


def test_a_deadline_that_stands_is_armed_again_after_it_came(bench: Bench) -> None:
    """The machine wasn't ready yet: an early call is harmless, a forgotten one is not."""
    bench.machine.at = 1_200
    bench.hosted.post("go")
    bench.loop.pass_ms(0)
    bench.loop.rest()
    bench.machine.reply = lambda events: setattr(bench.machine, "at", 1_400) or []
    bench.loop.pass_ms(200)
    assert bench.loop.armed() == [1_400]


def test_a_deadline_in_the_past_is_due_at_once(bench: Bench) -> None:
    bench.machine.at = 3
    bench.hosted.post("go")
    bench.loop.rest()
    assert bench.loop.armed() == [1_000]


def test_a_deadline_beside_an_event_makes_no_second_step(bench: Bench) -> None:
    bench.machine.at = 1_100
    bench.hosted.post("go")
    bench.loop.rest()
    (timer,) = bench.loop.timers
    bench.machine.at = None
    bench.hosted.post("event")
    timer.call()
    bench.loop.rest()
    assert bench.events() == [["go"], ["event"]]


# ------------------------------------------------------------ deaths and ends


def raises(*_: Any) -> Any:
    raise ValueError("a bug")


def test_a_machine_that_raises_is_stopped_and_told(bench: Bench) -> None:
    bench.machine.reply = raises
    bench.hosted.post("go")
    bench.loop.rest()
    assert [(name, str(error)) for name, error in bench.observed.deaths] == [("one", "a bug")]
    bench.hosted.post("later")
    bench.loop.rest()
    bench.loop.pass_ms(10_000)
    assert bench.events() == [["go"]]


def test_effects_before_a_route_that_raises_are_out(bench: Bench) -> None:
    def route(effect: Said, hosted: Hosted) -> None:
        if effect.what == 2:
            raises()
        bench.routed.append(effect.what)

    bench.hosted.routes[Said] = route
    bench.machine.reply = lambda events: [Said(1), Said(2), Said(3)]
    bench.hosted.post("go")
    bench.loop.rest()
    assert bench.routed == [1]
    assert len(bench.observed.deaths) == 1


def test_an_effect_without_a_route_is_a_death(bench: Bench) -> None:
    bench.machine.reply = lambda events: ["nobody knows this"]
    bench.hosted.post("go")
    bench.loop.rest()
    assert [type(error) for _, error in bench.observed.deaths] == [KeyError]


def test_a_deadline_that_raises_is_a_death_and_its_timer_is_gone(bench: Bench) -> None:
    bench.machine.at = 9_000
    bench.hosted.post("go")
    bench.loop.rest()
    bench.machine.deadline = raises  # type: ignore[method-assign]
    bench.hosted.post("again")
    bench.loop.rest()
    assert len(bench.observed.deaths) == 1
    assert bench.loop.armed() == []


def test_an_inbox_beyond_its_bound_is_a_death_not_memory(bench: Bench) -> None:
    for number in range(INBOX_EVENTS_MAX + 1):
        bench.hosted.post(number)
    bench.loop.rest()
    assert [type(error) for _, error in bench.observed.deaths] == [AssertionError]
    assert bench.events() == []


def test_a_stopped_machine_is_never_stepped_again(bench: Bench) -> None:
    bench.machine.at = 2_000
    bench.hosted.post("go")
    bench.loop.rest()
    bench.hosted.post("waits")
    (timer,) = bench.loop.timers
    bench.runtime.stop()
    bench.loop.rest()
    timer.call()
    bench.hosted.post("later")
    bench.loop.rest()
    assert bench.events() == [["go"]]
    assert bench.loop.armed() == []


def test_machines_of_a_process_do_not_wait_for_each_other(bench: Bench) -> None:
    other = Machine()
    hosted = bench.runtime.add("other", other, {})
    assert list(bench.runtime.hosted) == ["one", "other"]
    bench.machine.reply = raises
    bench.hosted.post("go")
    hosted.post("go")
    bench.loop.rest()
    assert len(other.steps) == 1


def test_leases_are_judged_by_a_clock_that_runs_while_the_machine_sleeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On any other an owner that slept would wake with its lease as it was, and others hold it."""
    read: list[int] = []

    def clock(which: int) -> float:
        read.append(which)
        return 1.5

    monkeypatch.setattr(time, "clock_gettime", clock)
    assert monotonic_ms() == 1_500
    assert read == [getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)], (
        "all that some systems have"
    )


def test_clocks() -> None:
    before = monotonic_ms()
    assert monotonic_ms() >= before
    assert wall_ms() > 1_600_000_000_000
