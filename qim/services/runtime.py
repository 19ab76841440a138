"""The runtime, once for all services (architecture.md, "The runtime" and "What a driver owes a machine").

Each hosted machine has an inbox. An event posted to it schedules ONE call of the loop, which drains the inbox, calls
``step`` once and routes the effects by their type; so a busy machine is stepped with everything that came meanwhile, and
no event makes a task, a future or a queue item. Every effect with an ``op`` is answered exactly once by its port.
"""

import time
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import perf_counter
from typing import Any, Final, Protocol

from qim.adapters.breakage import BROKEN
from qim.core.ports.observe import Count, Gauge, Measured, StageReached, Violation, Warned

INBOX_EVENTS_MAX: Final = 100_000
"""A machine bounds its own work; an inbox this long is a bug that must be seen, not memory that grows."""
STEP_EVENTS_MAX: Final = 1_024


class HostedMachine(Protocol):
    """What the runtime needs of any machine; the event types are checked where the assembly adds it."""

    def step(self, now: int, events: Any) -> Any: ...

    def deadline(self) -> int | None: ...

    def idle(self) -> bool: ...


class Observer(Protocol):
    """Where observations go."""

    def count(self, name: str, value: int, label: str) -> None: ...

    def gauge(self, name: str, value: int, label: str) -> None: ...

    def observe(self, name: str, seconds: float, label: str) -> None: ...

    def timer(self, name: str, label: str) -> Callable[[float], None]: ...

    def sample(
        self, sampler: Callable[[], Iterable[tuple[str, str, float]]], loop: AbstractEventLoop
    ) -> None: ...

    def stage(self, machine: str, trace_id: int, stage: str, detail: str, sent_at: int) -> None: ...

    def violation(self, machine: str, check: str, detail: str) -> None: ...

    def warned(self, machine: str, what: str, detail: str) -> None: ...

    def died(self, machine: str, error: BaseException) -> None: ...


Route = Callable[[Any, "Hosted"], None]


def monotonic_ms() -> int:
    """Milliseconds on a clock that runs during suspend, the one leases are judged by (pipeline.md §0)."""
    return int(time.clock_gettime(_CLOCK) * 1000)


_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Hosted:
    """One machine with its inbox, its timer and its routes."""

    __slots__ = (
        "_loop",
        "_observer",
        "_scheduled",
        "_scheduled_at",
        "_stepped",
        "_stopped",
        "_timer",
        "_timer_at",
        "_waited",
        "inbox",
        "machine",
        "name",
        "routes",
    )

    def __init__(
        self,
        name: str,
        machine: HostedMachine,
        routes: Mapping[type, Route],
        loop: AbstractEventLoop,
        observer: Observer,
    ) -> None:
        self.name = name
        self.machine = machine
        self.routes = dict(routes)
        self.inbox: list[Any] = []
        self._loop = loop
        self._observer = observer
        self._scheduled = False
        self._scheduled_at = 0.0
        self._waited = observer.timer("inbox_wait_seconds", name)
        self._stepped = observer.timer("step_seconds", name)
        self._stopped = False
        self._timer: TimerHandle | None = None
        self._timer_at: int | None = None

    def post(self, event: Any) -> None:
        """Hand a fact to the machine, in order; from the event loop only."""
        self.inbox.append(event)
        if not self._scheduled and not self._stopped:
            self._schedule()

    def in_flight(self) -> str:
        """What the machine has to do yet, as words: the queues that hold something, by its own gauges."""
        asked = getattr(self.machine, "gauges", None)
        held = {"inbox": len(self.inbox)}
        for gauge in asked(monotonic_ms()) if asked is not None else ():
            if gauge.name == "queue_depth" and "cache" not in gauge.label:
                held[gauge.label.removeprefix(f"{self.name}.")] = gauge.value
        told = [f"{name} {value}" for name, value in held.items() if value]
        return f"{self.name}: {', '.join(told) or 'requests without an answer'}"

    def stop(self) -> None:
        """Never step again; what is in the inbox is dropped, as in a crash."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        self._scheduled = True
        self._scheduled_at = perf_counter()
        self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        if self._stopped:
            return
        began = perf_counter()
        self._waited(began - self._scheduled_at)
        try:
            events = self._drain()
            effects = self.machine.step(monotonic_ms(), events)
            routes = self.routes
            for effect in effects:
                routes[type(effect)](effect, self)
            self._arm()
            self._stepped(perf_counter() - began)
        except Exception as error:
            # Our own bug: the machine's state can't be trusted any more, the process dies (architecture.md).
            self.stop()
            self._observer.died(self.name, error)

    def _drain(self) -> list[Any]:
        events = self.inbox
        if len(events) <= STEP_EVENTS_MAX:
            self.inbox = []
            return events
        assert len(events) <= INBOX_EVENTS_MAX, f"{self.name}: {len(events)} events wait"
        self.inbox = events[STEP_EVENTS_MAX:]
        self._schedule()
        return events[:STEP_EVENTS_MAX]

    def _arm(self) -> None:
        deadline = self.machine.deadline()
        if deadline == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = deadline
        if deadline is not None:
            delay = max(deadline - monotonic_ms(), 0) / 1000
            self._timer = self._loop.call_later(delay, self._due)

    def _due(self) -> None:
        self._timer = None
        self._timer_at = None
        if not self._scheduled and not self._stopped:
            self._schedule()


def die_of_what_breaks(loop: AbstractEventLoop, observer: Observer) -> None:
    """Let what an adapter tells as broken end the process as a machine's death does (adapters/breakage.py)."""

    def heard(loop: AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.default_exception_handler(context)
        what, error = context.get(BROKEN), context.get("exception")
        if what is not None and error is not None:
            observer.died(what, error)

    loop.set_exception_handler(heard)


class Runtime:
    """All machines of one process."""

    def __init__(self, loop: AbstractEventLoop, observer: Observer) -> None:
        self._loop = loop
        self._observer = observer
        self.hosted: dict[str, Hosted] = {}
        observer.sample(self.samples, loop)

    def add(self, name: str, machine: HostedMachine, routes: Mapping[type, Route]) -> Hosted:
        """Host ``machine``; ``routes`` has one entry for every effect type it may give, observations apart."""
        observer = self._observer
        all_routes: dict[type, Route] = {
            Count: lambda effect, _: observer.count(effect.name, effect.value, effect.label),
            Gauge: lambda effect, _: observer.gauge(effect.name, effect.value, effect.label),
            StageReached: lambda effect, at: observer.stage(
                at.name, effect.trace_id, effect.stage, effect.detail, effect.sent_at
            ),
            Measured: lambda effect, _: observer.observe(
                f"{effect.name}_seconds", effect.ms / 1000, effect.label
            ),
            Violation: lambda effect, at: observer.violation(at.name, effect.check, effect.detail),
            Warned: lambda effect, at: observer.warned(at.name, effect.what, effect.detail),
        }
        all_routes.update(routes)
        hosted = Hosted(name, machine, all_routes, self._loop, observer)
        self.hosted[name] = hosted
        return hosted

    def timer(self, name: str, label: str) -> Callable[[float], None]:
        """The observer's."""
        return self._observer.timer(name, label)

    def count(self, name: str, value: int, label: str) -> None:
        """The observer's."""
        self._observer.count(name, value, label)

    def samples(self) -> Iterator[tuple[str, str, float]]:
        """What every machine tells of its bounded structures when it is asked; on the event loop."""
        now = monotonic_ms()
        for name, hosted in list(self.hosted.items()):
            yield "inbox_events_waiting", name, len(hosted.inbox)
            asked = getattr(hosted.machine, "gauges", None)
            for gauge in asked(now) if asked is not None else ():
                yield gauge.name, gauge.label, gauge.value

    def stop(self) -> None:
        """Stop stepping every machine."""
        for hosted in self.hosted.values():
            hosted.stop()


def routes_for(types: Iterable[type], route: Route) -> dict[type, Route]:
    """The same route for every type of a union (``typing.get_args``)."""
    return dict.fromkeys(types, route)
