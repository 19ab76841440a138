"""What must be true of an etcd before anything is written to it, and how its clock is read."""

import asyncio
import email.utils
from typing import Any, Final

from aetcd import rpc

from qim.adapters.etcd import calls
from qim.adapters.etcd.connection import EtcdConnection, NotApplied
from qim.adapters.etcd.keys import Keys
from qim.adapters.start_refused import StartRefused
from qim.adapters.tls.outgoing import OutgoingTls
from qim.core.ports.completion import FailReason

START_MS: Final = 10_000
"""A cluster that elects its leader just now is waited for."""
OLDEST: Final = (3, 4)
FORGETFUL: Final = ((3, 5, 0), (3, 5, 3))
"""From, and up to but not: killed under load, a member forgets what was committed (etcd-io/etcd#13766)."""
CLOCK_SECONDS: Final = 2.0
ANSWER_BYTES_MAX: Final = 16_384


async def check_server(connection: EtcdConnection, keys: Keys, tls: OutgoingTls | None) -> None:
    """Reachable with a quorum, ours to read, new enough, not full. Raises StartRefused."""
    within = connection.within(START_MS)
    try:
        # Linearizable, so a member without its cluster does not answer.
        await connection.ask(calls.RANGE, rpc.RangeRequest(key=keys.shared, keys_only=True), within)
        status = await connection.ask(calls.STATUS, rpc.StatusRequest(), within)
    except NotApplied as error:
        raise _refusal(connection, tls, error) from error
    judge_version(str(status.version), connection.endpoint)
    errors = " ".join(status.errors)
    if "NOSPACE" in errors:
        raise StartRefused(
            "etcd_no_space",
            f"etcd at {connection.endpoint}",
            got=errors,
            expected="room to write",
            command=f"etcdctl --endpoints={connection.endpoint} defrag && "
            f"etcdctl --endpoints={connection.endpoint} alarm disarm",
        )


def judge_version(version: str, endpoint: str) -> None:
    """Raises StartRefused for one that is too old, or known to lose what it confirmed (pure)."""
    numbers = _numbers(version)
    low, high = FORGETFUL
    if numbers < OLDEST or low <= numbers < high:
        raise StartRefused(
            "etcd_too_old" if numbers < OLDEST else "etcd_forgets",
            f"etcd at {endpoint}",
            got=version or "of no version",
            expected="3.4, or 3.5.3 and later",
            command="apt-get install etcd-server",
        )


def _refusal(
    connection: EtcdConnection, tls: OutgoingTls | None, error: NotApplied
) -> StartRefused:
    endpoint = connection.endpoint
    if error.why is FailReason.UNAUTHORISED or "authentication failed" in str(error):
        return StartRefused(
            "etcd_unauthorised",
            f"etcd at {endpoint}",
            got=str(error),
            expected="a user that may read and write under the prefix",
            command=f"etcdctl --endpoints={endpoint} user add NAME",
        )
    return StartRefused(
        "etcd_unreachable",
        f"etcd at {endpoint}" + ("" if tls is None else " over TLS"),
        got=str(error),
        expected=f"an answer of a cluster with a leader within {START_MS // 1000} s",
        command=f"etcdctl --endpoints={endpoint} endpoint health",
    )


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.partition("-")[0].split(".")[:3]
    return tuple(int(part) if part.isdigit() else 0 for part in parts)


async def check_clock(
    endpoint: str, tls: OutgoingTls | None, wall_ms: int, ahead_max_ms: int
) -> int | None:
    """By how many ms we are ahead, None where etcd doesn't tell. Raises StartRefused beyond ``ahead_max_ms``.

    etcd's API knows no wall clock; its HTTP answers on the same port carry a Date, in whole seconds. A clock that is
    ahead would make message_ids that the right clock cannot reach for as long (contract.md, Five sequences).
    """
    theirs_ms = await _date_ms(endpoint, tls)
    if theirs_ms is None:
        return None
    ahead_ms = wall_ms - theirs_ms
    if ahead_ms > ahead_max_ms:
        raise StartRefused(
            "clock_ahead",
            "this machine's clock",
            got=f"{ahead_ms / 1000:.0f} s ahead of etcd at {endpoint}",
            expected=f"at most {ahead_max_ms / 1000:.0f} s",
            command="timedatectl set-ntp true",
        )
    return ahead_ms


async def _date_ms(endpoint: str, tls: OutgoingTls | None) -> int | None:
    host, _, port = endpoint.rpartition(":")
    host = host.strip("[]")
    try:
        async with asyncio.timeout(CLOCK_SECONDS):
            reader, writer = await asyncio.open_connection(
                host, int(port), ssl=None if tls is None else tls.context
            )
            try:
                writer.write(
                    f"GET /version HTTP/1.1\r\nHost: {endpoint}\r\nConnection: close\r\n\r\n".encode()
                )
                head = await reader.readuntil(b"\r\n\r\n")
            finally:
                writer.close()
    except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return None
    for line in head[:ANSWER_BYTES_MAX].split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"date":
            moment: Any = email.utils.parsedate_to_datetime(value.decode("latin-1").strip())
            return int(moment.timestamp() * 1000)
    return None
