"""Deadlines as plain data: what is due when, at most one time a key."""

from qim.core.machine import Ms

TimerKey = tuple[int, str]
"""(number of the resource, what is to be done)."""


def earliest(*times: Ms | None) -> Ms | None:
    """The least of what is set; every machine asks this of its parts at the end of every step."""
    first: Ms | None = None
    for at in times:
        if at is not None and (first is None or at < first):
            first = at
    return first


class Timers:
    """A handful of absolute deadlines; ``next`` is what a machine answers as its ``deadline()``."""

    __slots__ = ("_at", "_changed", "_next")

    def __init__(self) -> None:
        self._at: dict[TimerKey, Ms] = {}
        self._next: Ms | None = None
        self._changed = False

    def set(self, key: TimerKey, at: Ms) -> None:
        """Have ``key`` due at ``at``, instead of whenever it was due before."""
        self._at[key] = at
        self._changed = True

    def clear(self, key: TimerKey) -> None:
        """Forget ``key``, due or not."""
        if self._at.pop(key, None) is not None:
            self._changed = True

    def clear_number(self, number: int) -> None:
        """Forget every key of one resource."""
        for key in [key for key in self._at if key[0] == number]:
            del self._at[key]
            self._changed = True

    def has(self, key: TimerKey) -> bool:
        """True while ``key`` waits for its time."""
        return key in self._at

    def due(self, now: Ms) -> list[TimerKey]:
        """Take out all that is due, earliest first."""
        first = self.next()
        if first is None or first > now:
            return []
        late = [(at, key) for key, at in self._at.items() if at <= now]
        late.sort()
        for _, key in late:
            del self._at[key]
        self._changed = True
        return [key for _, key in late]

    def next(self) -> Ms | None:
        """The earliest time set; most steps change none, so it is looked for only after a change."""
        if self._changed:
            self._changed = False
            self._next = min(self._at.values(), default=None)
        return self._next

    def __len__(self) -> int:
        return len(self._at)


def back_off(attempts: int, first_ms: Ms, most_ms: Ms) -> Ms:
    """Doubling delay after the ``attempts``-th try in a row (from 1), never above ``most_ms``."""
    return min(first_ms << min(attempts - 1, 20), most_ms)
