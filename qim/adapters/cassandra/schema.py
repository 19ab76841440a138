"""The archive's tables, version 1: made by a command, judged at every start (docs/operations.md, "The archive").

u64 values stand as 8 bytes big-endian, for CQL's integers are signed. A column that only rises is written with ONE constant
timestamp: of two values with the same timestamp the greater in byte order stays, which makes it a maximum register that
needs no read, no compare-and-set, and does not mind a late write. (So a row of these tables must never be deleted by hand:
its tombstone would be younger than every write to come.)
"""

from collections.abc import Iterator
from typing import Any, Final

from cassandra import InvalidRequest
from cassandra.query import SimpleStatement
from msgspec import Struct

from qim.adapters.cassandra.session import READING
from qim.adapters.cassandra.settings import REPLICATION_MIN, CassandraSettings
from qim.adapters.start_refused import StartRefused

SCHEMA_VERSION: Final = 1
COMPONENT: Final = "archive"
TABLES: Final[dict[str, str]] = {
    "schema_version": "component text PRIMARY KEY, version int",
    # The whole record of one bucket of a conversation is one partition; message_id makes a reused seq two rows.
    "history": "conversation blob, bucket bigint, seq blob, message blob, position bigint, "
    "retained_until bigint, stored blob, PRIMARY KEY ((conversation, bucket), seq, message)",
    # Which buckets hold rows: a page skips what retention emptied. Written with its retention as timestamp, so that
    # the row which lives longest decides how long the bucket is known.
    "history_bucket": "conversation blob, bucket bigint, PRIMARY KEY (conversation, bucket)",
    "message_index": "message blob PRIMARY KEY, conversation blob, seq blob",
    # Facts without expiry. ``slice`` = upper half of the id's first byte: ids are digests, slices fill evenly.
    "conversation": "partition int, slice int, id blob, kind int, users blob, greatest blob, activity blob, "
    "PRIMARY KEY ((partition, slice), id)",
    "founding": "conversation blob PRIMARY KEY, creator blob, name text, meta blob",
    "step": "conversation blob, version blob, digest blob, control blob, operation int, users blob, "
    "PRIMARY KEY (conversation, version, digest)",
    "overlay": "conversation blob, target blob, seq blob, user blob, "
    "PRIMARY KEY (conversation, target, seq, user)",
    "position": "partition int PRIMARY KEY, through blob",
}
WINDOWED: Final = (
    "compaction = {'class': 'TimeWindowCompactionStrategy', 'compaction_window_unit': 'DAYS', "
    "'compaction_window_size': 7}"
)
"""Rows of a window expire together, so whole files go instead of being rewritten."""
SLICES: Final = 16
CREATE_SECONDS: Final = 60.0


class KeyspaceFound(Struct, frozen=True, kw_only=True):
    """What a cluster says of the keyspace. ``replicas`` None: no keyspace. ``version`` None: no schema in it."""

    replicas: int | None
    tablets: bool
    version: int | None
    missing: tuple[str, ...]


def statements(settings: CassandraSettings, *, tablets_known: bool = False) -> Iterator[str]:
    """The CQL that makes keyspace and tables, in order; every statement may be repeated.

    ``tablets_known``: the cluster is a ScyllaDB that would use Tablets unless told not to.
    """
    off = " AND tablets = {'enabled': false}" if tablets_known else ""
    yield (
        f"CREATE KEYSPACE IF NOT EXISTS {settings.keyspace} WITH replication = "
        f"{{'class': 'NetworkTopologyStrategy', '{settings.data_centre}': {settings.replication}}}{off}"
    )
    for name, columns in TABLES.items():
        more = f" WITH {WINDOWED}" if name in ("history", "message_index") else ""
        yield f"CREATE TABLE IF NOT EXISTS {settings.keyspace}.{name} ({columns}){more}"
    yield (
        f"INSERT INTO {settings.keyspace}.schema_version (component, version) "
        f"VALUES ('{COMPONENT}', {SCHEMA_VERSION}) IF NOT EXISTS"
    )


def create(session: Any, settings: CassandraSettings) -> None:
    """Make what is missing; what stands is left as it is and judged by ``check``. Blocks. Raises StartRefused.

    The version is set by a compare-and-set, so two that create at once agree on one.
    """
    found = find(session, settings)
    refuse_replication(found, settings, created=True)
    if found.version is not None and found.version != SCHEMA_VERSION:
        raise _version_differs(settings, found.version)
    for text in statements(settings, tablets_known=_knows_tablets(session)):
        session.execute(SimpleStatement(text), timeout=CREATE_SECONDS)
    check(session, settings)


def check(session: Any, settings: CassandraSettings) -> int:
    """The keyspace's replicas. Raises StartRefused on the first thing that is not as it must be. Blocks; writes nothing."""
    found = find(session, settings)
    refuse(found, settings)
    assert found.replicas is not None, "refused"
    return found.replicas


def refuse(found: KeyspaceFound, settings: CassandraSettings) -> None:
    """The judgement alone. Raises StartRefused."""
    creating = "qim archive schema create"
    if found.replicas is None:
        raise StartRefused(
            "archive_keyspace_missing",
            f"keyspace {settings.keyspace}",
            got="absent",
            expected=f"a keyspace with {settings.replication} replicas in {settings.data_centre}",
            command=creating,
        )
    refuse_replication(found, settings)
    if found.version is None:
        raise StartRefused(
            "archive_schema_missing",
            f"the archive's schema in keyspace {settings.keyspace}",
            got="absent",
            expected=f"version {SCHEMA_VERSION}",
            command=creating,
        )
    if found.version != SCHEMA_VERSION:
        raise _version_differs(settings, found.version)
    if found.missing:
        raise StartRefused(
            "archive_schema_incomplete",
            f"tables of keyspace {settings.keyspace}",
            got=f"without {', '.join(found.missing)}",
            expected=f"all {len(TABLES)} tables of version {SCHEMA_VERSION}",
            command=creating,
        )


def refuse_replication(
    found: KeyspaceFound, settings: CassandraSettings, *, created: bool = False
) -> None:
    """Replicas and Tablets, of the keyspace that stands or, with ``created``, of the one to be made. Raises StartRefused."""
    waived = settings.unsafe_dev and settings.loopback()
    wanted = max(settings.replication, 1 if waived else REPLICATION_MIN)
    if not waived and settings.replication < REPLICATION_MIN:
        told = f"export QIM_SCYLLA_RF={wanted}"
        raise _too_few("QIM_SCYLLA_RF", settings.replication, wanted, settings, told)
    if found.replicas is None and created:
        return
    if found.replicas is not None and found.replicas < wanted:
        what = f"replicas of keyspace {settings.keyspace}"
        raise _too_few(what, found.replicas, wanted, settings, _more_replicas(wanted, settings))
    if found.tablets:
        raise StartRefused(
            "archive_tablets_enabled",
            f"keyspace {settings.keyspace}",
            got="one with Tablets",
            expected="Tablets disabled",
            command=f"make it anew WITH tablets = {{'enabled': false}}: `cqlsh -e 'DROP KEYSPACE "
            f"{settings.keyspace}'` where it is empty, then `qim archive schema create`",
        )


def _more_replicas(wanted: int, settings: CassandraSettings) -> str:
    return (
        f'cqlsh -e "ALTER KEYSPACE {settings.keyspace} WITH replication = '
        f"{{'class': 'NetworkTopologyStrategy', '{settings.data_centre}': {wanted}}}\" "
        f"and `nodetool repair -full {settings.keyspace}`"
    )


def _too_few(
    what: str, got: int, wanted: int, settings: CassandraSettings, command: str
) -> StartRefused:
    return StartRefused(
        "archive_replication_low",
        what,
        got=f"{got} in data centre {settings.data_centre}",
        expected=f"at least {wanted} (one node on loopback: QIM_SCYLLA_ALLOW_UNSAFE_DEV=1)",
        command=command,
    )


def _version_differs(settings: CassandraSettings, got: int) -> StartRefused:
    newer = got > SCHEMA_VERSION
    return StartRefused(
        "archive_schema_newer" if newer else "archive_schema_older",
        f"the archive's schema in keyspace {settings.keyspace}",
        got=f"version {got}",
        expected=f"version {SCHEMA_VERSION}",
        command="start the release that made it (`qim archive schema print` tells a release's version)"
        if newer
        else "bring it forward as the release notes say, then `qim archive schema check`",
    )


# ------------------------------------------------------------ looking


def find(session: Any, settings: CassandraSettings) -> KeyspaceFound:
    """Ask the cluster. Blocks; reads only."""
    row = _one(
        session,
        "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = %s",
        (settings.keyspace,),
    )
    if row is None:
        return KeyspaceFound(replicas=None, tablets=False, version=None, missing=tuple(TABLES))
    tables = session.execute(
        SimpleStatement("SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s"),
        (settings.keyspace,),
        execution_profile=READING,
    )
    present = {row[0] for row in tables}
    version = None
    if "schema_version" in present:
        held = _one(
            session,
            f"SELECT version FROM {settings.keyspace}.schema_version WHERE component = %s",
            (COMPONENT,),
        )
        version = held[0] if held else None
    return KeyspaceFound(
        replicas=replicas_in(dict(row[0]), settings.data_centre),
        tablets=_tablets(session, settings.keyspace),
        version=version,
        missing=tuple([name for name in TABLES if name not in present]),
    )


def replicas_in(replication: dict[str, str], data_centre: str) -> int:
    """Replicas in ``data_centre``: none where the keyspace doesn't name it, for then its quorum is not there."""
    if replication.get("class", "").rpartition(".")[2] != "NetworkTopologyStrategy":
        return 0
    number = replication.get(data_centre, "0")
    return int(number) if number.isdigit() else 0


def _tablets(session: Any, keyspace: str) -> bool:
    """ScyllaDB alone has the table; a number of initial tablets stands where Tablets are used."""
    try:
        row = _one(
            session,
            "SELECT initial_tablets FROM system_schema.scylla_keyspaces WHERE keyspace_name = %s",
            (keyspace,),
        )
    except InvalidRequest:
        return False
    return row is not None and row[0] is not None


def _knows_tablets(session: Any) -> bool:
    try:
        session.execute(
            SimpleStatement("SELECT initial_tablets FROM system_schema.scylla_keyspaces LIMIT 1"),
            execution_profile=READING,
        )
    except InvalidRequest:
        return False
    return True


def _one(session: Any, text: str, values: tuple[object, ...]) -> Any:
    found = session.execute(SimpleStatement(text), values, execution_profile=READING)
    return found.one()
