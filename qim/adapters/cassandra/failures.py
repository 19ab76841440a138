"""What a driver's exception says of its statement: surely not applied, or anything (ports/completion.py)."""

from typing import Final

from cassandra import InvalidRequest, Unauthorized, Unavailable
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionBusy
from cassandra.pool import NoConnectionsAvailable
from cassandra.protocol import IsBootstrappingErrorMessage, OverloadedErrorMessage, SyntaxException

from qim.core.ports.completion import FailReason

SURELY: Final[tuple[tuple[tuple[type[BaseException], ...], FailReason], ...]] = (
    ((Unavailable, IsBootstrappingErrorMessage), FailReason.UNREACHABLE),
    (
        (OverloadedErrorMessage, NoConnectionsAvailable, ConnectionBusy),
        FailReason.OVERLOADED,
    ),
    ((InvalidRequest, SyntaxException), FailReason.INVALID),
    ((Unauthorized,), FailReason.UNAUTHORISED),
)
"""The coordinator said so before it sent anything to a replica, or the driver before it sent anything at all."""


def not_applied(error: BaseException) -> FailReason | None:
    """Why the statement was surely not applied; None: it may have been, or may still be.

    A write time-out, a broken connection and the driver's own time-out are never certain. A driver that found no host is
    certain only if every host it tried was one of those that are.
    """
    for kinds, reason in SURELY:
        if isinstance(error, kinds):
            return reason
    if isinstance(error, NoHostAvailable):
        causes = list(error.errors.values()) if isinstance(error.errors, dict) else []
        reasons = [not_applied(cause) for cause in causes]
        if None not in reasons:
            return reasons[0] if reasons else FailReason.UNREACHABLE
    return None


def read_failure(error: BaseException) -> FailReason:
    """A read changes nothing, so whatever happened it was not applied."""
    return not_applied(error) or FailReason.UNREACHABLE
