"""Whether a node of the archive has on its disk what it confirms: `commitlog_sync`, asked of each node (docs/archive.md).

With `periodic` a node that is killed forgets what it confirmed since the last sync. Where a write needs one replica alone,
that one crash loses rows which the archiver's position already covers, and a start is refused. Where it needs two or more, a
row stands on another replica still, for hints and repair to bring back; only crashes together lose it: that is advice. Nodes that don't tell
(ScyllaDB, Cassandra below 4.0, a user without the right, a node that is down) are advice too: nothing is proved by silence.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from cassandra import DriverException
from cassandra.cluster import NoHostAvailable
from cassandra.query import SimpleStatement
from msgspec import Struct

from qim.adapters.cassandra.session import READING
from qim.adapters.cassandra.settings import CassandraSettings
from qim.adapters.start_refused import StartRefused

SAFE: Final = ("batch", "group")
"""Both wait for the disk before they confirm."""
NODES_AT_ONCE_MAX: Final = 16
NODES_NAMED_MAX: Final = 8
ALONE: Final = 1
"""Up to so many replicas, a quorum of them is one node."""
SETTING: Final = "SELECT value FROM system_views.settings WHERE name = 'commitlog_sync'"
COMMAND: Final = (
    "on each of these nodes `sed -i -e '/^commitlog_sync_period/d' "
    "-e 's/^commitlog_sync:.*/commitlog_sync: batch/' cassandra.yaml`, then `nodetool drain` and restart it"
)
FORGETTING: Final = (
    "replicas that crash together, as in one room without power, forget rows that they confirmed"
)
UNPROVED: Final = (
    "ScyllaDB, Cassandra below 4.0, a node that is down, or a user that may not read system_views"
)
LOOK: Final = (
    "GRANT SELECT ON KEYSPACE system_views TO the archive's user, or see that cassandra.yaml (scylla.yaml) of each says "
    "`commitlog_sync: batch`"
)


class NodeSync(Struct, frozen=True, kw_only=True):
    """``node``: host:port. ``sync``: its commitlog_sync, None where it doesn't tell."""

    node: str
    sync: str | None


def judge(session: Any, settings: CassandraSettings, replicas: int) -> tuple[tuple[str, str], ...]:
    """Ask every node of the data centre; (what was found, what to do) of all that is no reason to refuse.

    Blocks; reads only. ``replicas``: of the keyspace in this data centre. Raises StartRefused.
    """
    found = find(session, settings.data_centre)
    refuse(found, replicas, settings)
    return tuple(advice(found, replicas))


def find(session: Any, data_centre: str) -> tuple[NodeSync, ...]:
    """One for each node of the data centre: the table is every node's own, so that no node answers for another."""
    hosts = [
        host for host in session.cluster.metadata.all_hosts() if host.datacenter == data_centre
    ]
    hosts.sort(key=lambda host: str(host.endpoint))
    found: list[NodeSync] = []
    for at in range(0, len(hosts), NODES_AT_ONCE_MAX):
        together = hosts[at : at + NODES_AT_ONCE_MAX]
        sent = [(host, _ask(session, host)) for host in together]
        found += [NodeSync(node=str(host.endpoint), sync=_told(future)) for host, future in sent]
    return tuple(found)


def refuse(found: Iterable[NodeSync], replicas: int, settings: CassandraSettings) -> None:
    """Raises StartRefused where the crash of one node loses what it alone confirmed."""
    unsafe = [one for one in found if one.sync is not None and one.sync not in SAFE]
    if not unsafe or replicas > ALONE:
        return
    raise StartRefused(
        "archive_commitlog_periodic",
        f"commitlog_sync of {_names(unsafe)}",
        got=f"{unsafe[0].sync} with {replicas} replica of keyspace {settings.keyspace} in {settings.data_centre}: "
        "a node that is killed forgets rows it confirmed, and nobody else has them",
        expected=f"{' or '.join(SAFE)}, or 3 replicas on nodes of their own",
        command=COMMAND,
    )


def advice(found: Sequence[NodeSync], replicas: int) -> Iterator[tuple[str, str]]:
    """(what was found, what to do), of what a start may serve with."""
    unsafe = [one for one in found if one.sync is not None and one.sync not in SAFE]
    silent = [one for one in found if one.sync is None]
    if unsafe and replicas > ALONE:
        told = f"commitlog_sync of {_names(unsafe)} is {unsafe[0].sync}"
        yield f"{told}: {FORGETTING}", COMMAND
    if silent:
        yield f"commitlog_sync of {_names(silent)} is not provable: {UNPROVED}", LOOK


def _ask(session: Any, host: Any) -> Any:
    try:
        return session.execute_async(SimpleStatement(SETTING), execution_profile=READING, host=host)
    except (DriverException, NoHostAvailable):
        return None


def _told(future: Any) -> str | None:
    """None: whatever it answered, it proves nothing."""
    if future is None:
        return None
    try:
        row = future.result().one()
    except (DriverException, NoHostAvailable):
        return None
    return None if row is None or not row[0] else str(row[0]).lower()


def _names(nodes: Sequence[NodeSync]) -> str:
    more = len(nodes) - NODES_NAMED_MAX
    named = ", ".join(one.node for one in nodes[:NODES_NAMED_MAX])
    return f"{named} and {more} more" if more > 0 else named
