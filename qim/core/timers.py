"""Deadlines as plain data: what is due when, at most one time a key."""

from qim.core.machine import Ms

TimerKey = tuple[int, str]
"""(number of the resource, what is to be done)."""


class Timers:
    """A handful of absolute deadlines; ``next`` is what a machine answers as its ``deadline()``."""

    __slots__ = ("_at",)

    def __init__(self) -> None:
        self._at: dict[TimerKey, Ms] = {}

    def set(self, key: TimerKey, at: Ms) -> None:
        """Have ``key`` due at ``at``, instead of whenever it was due before."""
        self._at[key] = at

    def clear(self, key: TimerKey) -> None:
        """Forget ``key``, due or not."""
        self._at.pop(key, None)

    def clear_number(self, number: int) -> None:
        """Forget every key of one resource."""
        for key in [key for key in self._at if key[0] == number]:
            del self._at[key]

    def has(self, key: TimerKey) -> bool:
        """True while ``key`` waits for its time."""
        return key in self._at

    def due(self, now: Ms) -> list[TimerKey]:
        """Take out all that is due, earliest first."""
        late = [(at, key) for key, at in self._at.items() if at <= now]
        late.sort()
        for _, key in late:
            del self._at[key]
        return [key for _, key in late]

    def next(self) -> Ms | None:
        """The earliest time set."""
        return min(self._at.values(), default=None)

    def __len__(self) -> int:
        return len(self._at)


def back_off(attempts: int, first_ms: Ms, most_ms: Ms) -> Ms:
    """Doubling delay after the ``attempts``-th try in a row (from 1), never above ``most_ms``."""
    return min(first_ms << min(attempts - 1, 20), most_ms)
