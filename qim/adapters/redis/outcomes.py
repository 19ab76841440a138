"""How a call to the store can fail, by what is known of its effect.

``NotSent``: surely not applied. ``ReplyLost``: may have been applied, may still be (``Unknown``). ``ServerError``: the
server read the call and answered an error; ``wrote_nothing`` says of which errors that is sure.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from qim.core.ports.completion import FailReason

_NOT_BEGUN: Final[Mapping[str, FailReason]] = MappingProxyType(
    {
        "LOADING": FailReason.UNREACHABLE,
        "BUSY": FailReason.OVERLOADED,
        "MASTERDOWN": FailReason.UNREACHABLE,
        "NOSCRIPT": FailReason.UNREACHABLE,
        "NOAUTH": FailReason.UNAUTHORISED,
        "NOPERM": FailReason.UNAUTHORISED,
    }
)
"""Said of the call before its script begins. Said from within (a command or a key the user may not touch), the script had
begun, and what it wrote before stays."""
_NO_WRITE_YET: Final[Mapping[str, FailReason]] = MappingProxyType(
    {
        "OOM": FailReason.OUT_OF_MEMORY,
        "MISCONF": FailReason.UNREACHABLE,
        "READONLY": FailReason.UNREACHABLE,
    }
)
"""Said of a script's first write or of none: the server lets a script that has written go on to its end, whatever state it
is in by then (tests/adapters/store/test_refused_writes.py proves it on the servers at hand)."""
_FROM_WITHIN: Final = " script: "
"""What servers add to an error of a running script."""


class CallFailed(Exception):
    """One of the three below."""


class NotSent(CallFailed):
    """No byte of the call left this process: it was surely not applied."""


class NotConnected(NotSent):
    """There is no connection now; one is being made in the background."""


class TooManyInFlight(NotSent):
    """More calls or bytes are under way than the connection's limits allow."""


class StoreResetError(NotSent):
    """The call names another server run than the one at the other end (pipeline.md §0)."""

    def __init__(self, *, expected: bytes, present: bytes) -> None:
        super().__init__(f"bound to run {expected!r}, connected to {present!r}")
        self.expected = expected
        self.present = present


class ReplyLost(CallFailed):
    """The call was sent and its reply will not come: it may have been applied, now or even later."""


class ServerError(CallFailed):
    """The server's own error reply; ``code`` is its first word."""

    @property
    def code(self) -> str:
        """``WRONGTYPE``, ``NOSCRIPT``, ``OOM``, …"""
        return str(self).partition(" ")[0]


def wrote_nothing(error: ServerError) -> FailReason | None:
    """Why the script surely wrote nothing; None: it may have, so the outcome is Unknown."""
    reason = _NO_WRITE_YET.get(error.code)
    if reason is None and _FROM_WITHIN not in str(error):
        reason = _NOT_BEGUN.get(error.code)
    return reason
