"""How an adapter tells what it saw: log lines, counters and durations, handed in so that it knows no observer."""

from collections.abc import Callable

from msgspec import Struct

Log = Callable[[str, str, dict[str, object]], None]
"""level ("info", "warning", "error"), event, fields."""
CountOf = Callable[[str, int, str], None]
"""name, how many more, label: counter ``qim_<name>_total``."""
Observe = Callable[[str, float, str], None]
"""name (ends in _seconds), seconds, label: histogram ``qim_<name>``."""


def _no_log(level: str, event: str, fields: dict[str, object]) -> None:
    pass


def _no_count(name: str, value: int, label: str) -> None:
    pass


def _no_observe(name: str, seconds: float, label: str) -> None:
    pass


class Reporting(Struct, frozen=True, kw_only=True):
    """Three hooks, each called on the event loop; a hook must not raise."""

    log: Log = _no_log
    count: CountOf = _no_count
    observe: Observe = _no_observe


SILENT = Reporting()
