"""An event loop turned by hand: what is due is run when the test says so, and time stands until it is moved."""

from collections.abc import Callable
from typing import Any


class Handle:
    """A timer."""

    def __init__(self, at: float, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.at = at
        self.call = call
        self.args = args
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class HandLoop:
    """``call_soon`` and ``call_later`` of an event loop; milliseconds, as the runtime's clock has them."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.soon: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self.timers: list[Handle] = []

    def call_soon(self, call: Callable[..., Any], *args: Any) -> None:
        self.soon.append((call, args))

    def call_later(self, seconds: float, call: Callable[..., Any], *args: Any) -> Handle:
        handle = Handle(self.now_ms + seconds * 1000, call, args)
        self.timers.append(handle)
        return handle

    def time(self) -> float:
        return self.now_ms / 1000

    def armed(self) -> list[float]:
        """When timers go off that were not cancelled."""
        return sorted(handle.at for handle in self.timers if not handle.cancelled)

    def turn(self) -> int:
        """Run what was due when the turn began, as one iteration of a loop does; how many calls that were."""
        due, self.soon = self.soon, []
        for call, args in due:
            call(*args)
        return len(due)

    def rest(self) -> None:
        """Turn until nothing is due."""
        while self.turn():
            pass

    def pass_ms(self, ms: int) -> None:
        """Time goes on, timers go off in their order, and everything they ask for is run."""
        until = self.now_ms + ms
        while due := [one for one in self.timers if not one.cancelled and one.at <= until]:
            first = min(due, key=lambda one: one.at)
            self.timers.remove(first)
            self.now_ms = max(self.now_ms, int(first.at))
            first.call(*first.args)
            self.rest()
        self.now_ms = until
