"""What the doctor says: one finding a thing looked at, from good to what stops service."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from qim.adapters.start_refused import StartRefused


class State(StrEnum):
    """OK: as it should be. WARN: it serves, and somebody should look. FAIL: it doesn't serve, or loses its margin."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(Struct, frozen=True, kw_only=True):
    """``subject``: what was looked at. ``do``: what to do, "" where nothing is; ``page``: of docs/alarms/."""

    subject: str
    state: State
    found: str
    do: str = ""
    page: str = ""


def ok(subject: str, found: str) -> Finding:
    """As it should be."""
    return Finding(subject=subject, state=State.OK, found=found)


def warn(subject: str, found: str, do: str, page: str = "") -> Finding:
    """Somebody should look."""
    return Finding(subject=subject, state=State.WARN, found=found, do=do, page=page)


def fail(subject: str, found: str, do: str, page: str = "") -> Finding:
    """Something doesn't serve."""
    return Finding(subject=subject, state=State.FAIL, found=found, do=do, page=page)


def refused(subject: str, error: StartRefused, page: str = "") -> Finding:
    """A start would be refused for this."""
    found = f"{error.what} is {error.got}, expected {error.expected} [{error.code}]"
    return fail(subject, found, error.command, page)


_ORDER: Final = (State.OK, State.WARN, State.FAIL)


def worst(findings: Iterable[Finding]) -> State:
    """Of all of them."""
    return max((one.state for one in findings), key=_ORDER.index, default=State.OK)


def as_json(findings: Iterable[Finding]) -> dict[str, Any]:
    """{"state": …, "findings": […]}."""
    told = list(findings)
    return {
        "state": worst(told).value,
        "findings": [
            {name: str(getattr(one, name)) for name in one.__struct_fields__} for one in told
        ],
    }


def as_text(findings: Iterable[Finding]) -> Iterable[str]:
    """Two lines a finding that wants something, one of the others."""
    for one in findings:
        yield f"{one.state.value:4}  {one.subject}: {one.found}"
        if one.state is not State.OK:
            page = f" (docs/alarms/{one.page}.md)" if one.page else ""
            yield f"      do: {one.do}{page}"
