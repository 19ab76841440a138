"""What each exception of the driver says of its statement."""

import pytest
from cassandra import (
    ConsistencyLevel,
    InvalidRequest,
    OperationTimedOut,
    Unauthorized,
    Unavailable,
    WriteTimeout,
    WriteType,
)
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionBusy, ConnectionException, ConnectionShutdown
from cassandra.pool import NoConnectionsAvailable
from cassandra.protocol import OverloadedErrorMessage, ServerError

from qim.adapters.cassandra.failures import not_applied, read_failure
from qim.core.ports.completion import FailReason

UNAVAILABLE = Unavailable(
    "too few", consistency=ConsistencyLevel.LOCAL_QUORUM, required_replicas=2, alive_replicas=1
)
TIMED_OUT = WriteTimeout("late", write_type=WriteType.SIMPLE)
OVERLOADED = OverloadedErrorMessage(code=0x1001, message="busy", info=None)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (UNAVAILABLE, FailReason.UNREACHABLE),
        (OVERLOADED, FailReason.OVERLOADED),
        (NoConnectionsAvailable(), FailReason.OVERLOADED),
        (ConnectionBusy(), FailReason.OVERLOADED),
        (InvalidRequest("too large"), FailReason.INVALID),
        (Unauthorized("no"), FailReason.UNAUTHORISED),
        (NoHostAvailable("none", {}), FailReason.UNREACHABLE),
        (NoHostAvailable("none", ["a"]), FailReason.UNREACHABLE),
        (NoHostAvailable("none", {"a": UNAVAILABLE}), FailReason.UNREACHABLE),
    ],
)
def test_surely_not_applied(error: Exception, reason: FailReason) -> None:
    assert not_applied(error) is read_failure(error) is reason


@pytest.mark.parametrize(
    "error",
    [
        TIMED_OUT,
        OperationTimedOut(),
        ConnectionShutdown("closed"),
        ConnectionException("broken"),
        ServerError(code=0, message="?", info=None),
        NoHostAvailable("none", {"a": UNAVAILABLE, "b": ConnectionShutdown("closed")}),
        TimeoutError(),
        RuntimeError("anything else"),
    ],
)
def test_anything_may_have_happened(error: Exception) -> None:
    assert not_applied(error) is None
    assert read_failure(error) is FailReason.UNREACHABLE
