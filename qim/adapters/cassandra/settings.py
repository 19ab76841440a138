"""Where the archive's cluster is and how hard a write is confirmed. Read once, checked once."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from qim.adapters.loopback import is_loopback
from qim.adapters.start_refused import StartRefused
from qim.adapters.tls.outgoing import OutgoingFiles

DEFAULT_PORT: Final = 9_042
DEFAULT_REPLICATION: Final = 3
REPLICATION_MIN: Final = 3
"""Fewer replicas and LOCAL_QUORUM loses either rows or service with one node."""
CONSISTENCIES: Final = {
    # a write's word -> a read's: every pair overlaps in each data centre that reads
    "LOCAL_QUORUM": "LOCAL_QUORUM",
    "EACH_QUORUM": "LOCAL_QUORUM",
    "QUORUM": "QUORUM",
    "ALL": "LOCAL_QUORUM",
}
"""What QIM_SCYLLA_CONSISTENCY may say: LOCAL_QUORUM and whatever is stronger."""
PREFIX: Final = "QIM_SCYLLA_"


class CassandraSettings(Struct, frozen=True, kw_only=True):
    """``hosts``: (host, port) contact points. ``replication``: replicas in ``data_centre``, as the keyspace must have them.

    ``unsafe_dev`` waives the replication factor, and only where every contact point is loopback. ``inflight_ops_max`` bounds
    statements sent and not answered, ``waiting_requests_max`` requests of the port. Times in ms.
    """

    hosts: tuple[tuple[str, int], ...]
    keyspace: str
    data_centre: str
    replication: int = DEFAULT_REPLICATION
    consistency: str = "LOCAL_QUORUM"
    unsafe_dev: bool = False
    user: str = ""
    password: str = ""
    tls_ca: str = ""
    """Path of the CA that signs the nodes' certificates; b"" or empty: plaintext."""
    inflight_ops_max: int = 512
    waiting_requests_max: int = 1_024
    request_timeout_ms: int = 5_000
    connect_timeout_ms: int = 10_000
    close_timeout_ms: int = 10_000

    def tls_files(self) -> OutgoingFiles:
        """Of the nodes; ours is known by user and password."""
        return OutgoingFiles(ca=self.tls_ca, names=(f"{PREFIX}TLS_CA", "", ""))

    def loopback(self) -> bool:
        """Every contact point is on this machine."""
        return all(is_loopback(host) for host, _ in self.hosts)


def settings_from(environment: Mapping[str, str]) -> CassandraSettings:
    """From QIM_SCYLLA_HOSTS, _KEYSPACE, _DC, _RF and their optional companions. Raises StartRefused naming the variable."""
    return CassandraSettings(
        hosts=hosts_of(_needed(environment, "HOSTS", "127.0.0.1:9042")),
        keyspace=_keyspace(_needed(environment, "KEYSPACE", "qim")),
        data_centre=_needed(environment, "DC", "datacenter1"),
        replication=_replication(environment.get(f"{PREFIX}RF", "")),
        consistency=environment.get(f"{PREFIX}CONSISTENCY", "") or "LOCAL_QUORUM",
        unsafe_dev=environment.get(f"{PREFIX}ALLOW_UNSAFE_DEV", "") == "1",
        user=environment.get(f"{PREFIX}USER", ""),
        password=environment.get(f"{PREFIX}PASSWORD", ""),
        tls_ca=environment.get(f"{PREFIX}TLS_CA", ""),
    )


def hosts_of(text: str) -> tuple[tuple[str, int], ...]:
    """HOST[:PORT] by commas; IPv6 as [::1]:PORT. Raises StartRefused."""
    found = tuple([_host_of(part.strip()) for part in text.split(",") if part.strip()])
    if not found:
        raise _wrong("HOSTS", text, "HOST[:PORT] by commas", "127.0.0.1:9042")
    if len({port for _, port in found}) > 1:
        raise _wrong("HOSTS", text, "one port on every node", "10.0.0.1:9042,10.0.0.2:9042")
    return found


def require_strong(settings: CassandraSettings) -> None:
    """What is confirmed must be seen by every read sent later: nothing below LOCAL_QUORUM, on any machine."""
    if settings.consistency not in CONSISTENCIES:
        raise StartRefused(
            "archive_consistency_low",
            f"{PREFIX}CONSISTENCY",
            got=repr(settings.consistency),
            expected=" or ".join(CONSISTENCIES),
            command=f"export {PREFIX}CONSISTENCY=LOCAL_QUORUM",
        )
    if settings.unsafe_dev and not settings.loopback():
        raise StartRefused(
            "archive_unsafe_dev_abroad",
            f"{PREFIX}ALLOW_UNSAFE_DEV",
            got=f"1 with {', '.join(host for host, _ in settings.hosts)}",
            expected="0, or contact points on loopback alone",
            command=f"export {PREFIX}ALLOW_UNSAFE_DEV=0",
        )


def _host_of(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")) or text.endswith("]"):
        return text.strip("[]"), DEFAULT_PORT
    if not port.isascii() or not port.isdigit() or not 0 < int(port) <= 65_535 or not host:
        raise _wrong("HOSTS", text, "HOST[:PORT] by commas", "127.0.0.1:9042")
    return host.strip("[]"), int(port)


def _needed(environment: Mapping[str, str], name: str, example: str) -> str:
    value = environment.get(PREFIX + name, "")
    if not value:
        raise _wrong(name, "", "a value: the archive's cluster", example)
    return value


def _keyspace(name: str) -> str:
    """It stands in CQL as it is, so only what needs no quotes is a name."""
    plain = name.isascii() and name.replace("_", "a").isalnum() and name[:1].isalpha()
    if not plain or name != name.lower() or len(name) > 48:
        raise _wrong("KEYSPACE", name, "a-z, 0-9 and _, a letter first, at most 48", "qim")
    return name


def _replication(text: str) -> int:
    if not text:
        return DEFAULT_REPLICATION
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 99:
        raise _wrong("RF", text, "a number from 1 to 99", "3")
    return int(text)


def _wrong(name: str, got: str, expected: str, example: str) -> StartRefused:
    return StartRefused(
        f"archive_{name.lower()}_invalid",
        PREFIX + name,
        got=repr(got) if got else "not set",
        expected=expected,
        command=f"export {PREFIX}{name}={example}",
    )
