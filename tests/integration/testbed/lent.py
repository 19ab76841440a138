"""Servers that somebody lends are given back as they were: what a deployment of the tests has left there is taken away."""

import json
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.request import Request, urlopen

from aiokafka.admin import AIOKafkaAdminClient
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile

from qim.adapters.cassandra.session import PROTOCOL_VERSION, connection_class

ASK_SECONDS_MAX: Final = 60.0


def keys_under(endpoint: str, prefix: str, what: str = "range") -> dict[str, Any]:
    """etcd's answer about all keys that begin so; ``what``: `deleterange` takes them away."""
    behind = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    asked = {"key": _base64(prefix), "range_end": _base64(behind)}
    data = json.dumps(asked).encode()
    request = Request(f"http://{endpoint}/v3/kv/{what}", data=data, method="POST")
    with urlopen(request, timeout=ASK_SECONDS_MAX) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def _base64(text: str) -> str:
    return b64encode(text.encode()).decode()


async def topics_under(brokers: str, prefix: str, *, deleted: bool = False) -> list[str]:
    """Topics whose names begin so; ``deleted``: they are taken away."""
    admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
    await admin.start()
    try:
        found = sorted(one for one in await admin.list_topics() if one.startswith(prefix))
        if deleted and found:
            await admin.delete_topics(found, timeout_ms=int(ASK_SECONDS_MAX * 1000))
        return found
    finally:
        await admin.close()


def drop_keyspace(contact: str, keyspace: str) -> None:
    """Where nobody has made it, nothing happens."""
    with session_at(contact) as session:
        session.execute(f"DROP KEYSPACE IF EXISTS {keyspace}")


def keyspaces(contact: str) -> list[str]:
    """Names of all that are there."""
    with session_at(contact) as session:
        rows = session.execute("SELECT keyspace_name FROM system_schema.keyspaces")
        return sorted(row.keyspace_name for row in rows)


@contextmanager
def session_at(contact: str) -> Iterator[Any]:
    """At the first of ``host:port,…``."""
    host, _, port = contact.split(",")[0].rpartition(":")
    profile = ExecutionProfile(request_timeout=ASK_SECONDS_MAX)
    cluster = Cluster(
        [host],
        port=int(port),
        protocol_version=PROTOCOL_VERSION,
        connection_class=connection_class(),
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
    )
    try:
        yield cluster.connect()
    finally:
        cluster.shutdown()
