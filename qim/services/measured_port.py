"""A port that says how long its answers took: one closure and two looks at a clock an op, and ops are batches.

A Fetch waits for records on purpose, so of it the transit is taken instead: from the log's own append time of the first
record to its being read here. A backlog in a reader shows there before any queue of ours is longer.
"""

from collections.abc import Callable
from time import perf_counter, time
from typing import Any, Final, Protocol

from qim.core.ports.log import Fetch, Fetched

PORT_SECONDS: Final = "port_seconds"
TRANSIT_SECONDS: Final = "log_transit_seconds"

Answer = Callable[[Any], None]
Timer = Callable[[float], None]
Timers = Callable[[str, str], Timer]
"""(name of a histogram, label) -> what takes seconds."""


class Port(Protocol):
    """One outside: ``answer`` is called exactly once, on the event loop."""

    def submit(self, request: Any, answer: Answer) -> None: ...


class MeasuredPort:
    """Hands everything on as it is, requests and answers alike."""

    __slots__ = ("_port", "_timers", "_transits", "_wanted")

    def __init__(self, port: Port, timers: Timers) -> None:
        self._port = port
        self._wanted = timers
        self._timers: dict[type, Timer] = {}
        self._transits: dict[str, Timer] = {}

    def submit(self, request: Any, answer: Answer) -> None:
        """See the port."""
        kind = type(request)
        if kind is Fetch:
            self._port.submit(request, self._transit(request, answer))
            return
        timer = self._timers.get(kind)
        if timer is None:
            timer = self._timers[kind] = self._wanted(PORT_SECONDS, kind.__name__)
        began = perf_counter()

        def answered(reply: Any) -> None:
            timer(perf_counter() - began)
            answer(reply)

        self._port.submit(request, answered)

    def _transit(self, request: Fetch, answer: Answer) -> Answer:
        timer = self._transits.get(request.topic)
        if timer is None:
            timer = self._transits[request.topic] = self._wanted(TRANSIT_SECONDS, request.topic)

        def answered(reply: Any) -> None:
            if type(reply) is Fetched and reply.records:
                timer(time() - reply.records[0].append_time / 1000)
            answer(reply)

        return answered
