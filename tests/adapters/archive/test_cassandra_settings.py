"""What the archive's settings refuse, each with the variable and a command that puts it right."""

from typing import Any

import pytest
from msgspec.structs import replace

from qim.adapters.cassandra import CassandraSettings, settings_from
from qim.adapters.cassandra.schema import (
    SCHEMA_VERSION,
    TABLES,
    KeyspaceFound,
    refuse,
    refuse_replication,
    replicas_in,
    statements,
)
from qim.adapters.cassandra.settings import CONSISTENCIES, require_strong
from qim.adapters.start_refused import StartRefused

NEEDED = {
    "QIM_SCYLLA_HOSTS": "10.0.0.1,10.0.0.2",
    "QIM_SCYLLA_KEYSPACE": "qim",
    "QIM_SCYLLA_DC": "dc1",
}
WHOLE = KeyspaceFound(replicas=3, tablets=False, version=SCHEMA_VERSION, missing=())


def refused(call: Any, *args: Any, **more: Any) -> StartRefused:
    with pytest.raises(StartRefused) as caught:
        call(*args, **more)
    told = str(caught.value)
    assert caught.value.command in told and caught.value.got in told
    return caught.value


def test_defaults() -> None:
    settings = settings_from(NEEDED)
    assert settings.hosts == (("10.0.0.1", 9042), ("10.0.0.2", 9042))
    assert (settings.replication, settings.consistency) == (3, "LOCAL_QUORUM")
    assert not settings.loopback()
    require_strong(settings)


@pytest.mark.parametrize(
    ("hosts", "found"),
    [
        ("a:1", (("a", 1),)),
        (" a , b ", (("a", 9042), ("b", 9042))),
        ("[::1]:19042", (("::1", 19042),)),
        ("[::1]", (("::1", 9042),)),
        ("::1", (("::1", 9042),)),
    ],
)
def test_contact_points(hosts: str, found: tuple[tuple[str, int], ...]) -> None:
    assert settings_from({**NEEDED, "QIM_SCYLLA_HOSTS": hosts}).hosts == found


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HOSTS", ""),
        ("HOSTS", ","),
        ("HOSTS", "a:0"),
        ("HOSTS", "a:x"),
        ("HOSTS", ":9042"),
        ("HOSTS", "a:65536"),
        ("HOSTS", "a:1,b:2"),
        ("KEYSPACE", ""),
        ("KEYSPACE", "Qim"),
        ("KEYSPACE", "qim; DROP"),
        ("KEYSPACE", "1qim"),
        ("KEYSPACE", "q" * 49),
        ("DC", ""),
        ("RF", "0"),
        ("RF", "three"),
        ("RF", "-3"),
    ],
)
def test_a_variable_that_says_nothing_useful(name: str, value: str) -> None:
    refusal = refused(settings_from, {**NEEDED, f"QIM_SCYLLA_{name}": value})
    assert refusal.code == f"archive_{name.lower()}_invalid"
    assert refusal.what == f"QIM_SCYLLA_{name}"
    assert refusal.command.startswith(f"export QIM_SCYLLA_{name}=")


@pytest.mark.parametrize("word", ["ONE", "LOCAL_ONE", "TWO", "THREE", "ANY", "local_quorum", "X"])
def test_a_consistency_below_local_quorum(word: str) -> None:
    """On loopback too: what is confirmed must be seen by every read sent later."""
    settings = settings_from({**NEEDED, "QIM_SCYLLA_CONSISTENCY": word})
    assert refused(require_strong, settings).code == "archive_consistency_low"
    here = replace(settings, hosts=(("127.0.0.1", 9042),), unsafe_dev=True)
    assert refused(require_strong, here).code == "archive_consistency_low"


@pytest.mark.parametrize("word", CONSISTENCIES)
def test_a_consistency_from_local_quorum_upwards(word: str) -> None:
    require_strong(settings_from({**NEEDED, "QIM_SCYLLA_CONSISTENCY": word}))


@pytest.mark.parametrize("hosts", ["10.0.0.1", "127.0.0.1,10.0.0.1", "db.local", "localhost.evil"])
def test_the_allowance_of_developers_abroad(hosts: str) -> None:
    told = {**NEEDED, "QIM_SCYLLA_HOSTS": hosts, "QIM_SCYLLA_ALLOW_UNSAFE_DEV": "1"}
    assert refused(require_strong, settings_from(told)).code == "archive_unsafe_dev_abroad"


@pytest.mark.parametrize("hosts", ["127.0.0.1", "localhost", "[::1]:9042", "127.0.0.1,127.0.0.2"])
def test_the_allowance_waives_replicas_on_loopback(hosts: str) -> None:
    told = {**NEEDED, "QIM_SCYLLA_HOSTS": hosts, "QIM_SCYLLA_RF": "1"}
    found = replace(WHOLE, replicas=1)
    assert refused(refuse, found, settings_from(told)).code == "archive_replication_low"
    allowed = settings_from({**told, "QIM_SCYLLA_ALLOW_UNSAFE_DEV": "1"})
    require_strong(allowed)
    refuse(found, allowed)
    assert refused(refuse, replace(found, replicas=0), allowed).code == "archive_replication_low"


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (replace(WHOLE, replicas=None, version=None), "archive_keyspace_missing"),
        (replace(WHOLE, replicas=2), "archive_replication_low"),
        (replace(WHOLE, replicas=0), "archive_replication_low"),
        (replace(WHOLE, tablets=True), "archive_tablets_enabled"),
        (replace(WHOLE, version=None), "archive_schema_missing"),
        (replace(WHOLE, version=SCHEMA_VERSION - 1), "archive_schema_older"),
        (replace(WHOLE, version=SCHEMA_VERSION + 1), "archive_schema_newer"),
        (replace(WHOLE, missing=("step",)), "archive_schema_incomplete"),
    ],
)
def test_what_a_start_refuses(found: KeyspaceFound, code: str) -> None:
    refuse(WHOLE, settings_from(NEEDED))
    assert refused(refuse, found, settings_from(NEEDED)).code == code


def test_fewer_replicas_than_asked_for() -> None:
    asked = settings_from({**NEEDED, "QIM_SCYLLA_RF": "5"})
    refusal = refused(refuse, WHOLE, asked)
    assert (refusal.code, "'dc1': 5" in refusal.command) == ("archive_replication_low", True)
    refuse(replace(WHOLE, replicas=5), asked)


def test_a_keyspace_that_may_not_be_made() -> None:
    few = settings_from({**NEEDED, "QIM_SCYLLA_RF": "2"})
    absent = replace(WHOLE, replicas=None, version=None)
    refusal = refused(refuse_replication, absent, few, created=True)
    assert (refusal.code, refusal.what) == ("archive_replication_low", "QIM_SCYLLA_RF")
    refuse_replication(absent, settings_from(NEEDED), created=True)


def test_replicas_of_a_data_centre() -> None:
    network = {"class": "org.apache.cassandra.locator.NetworkTopologyStrategy", "dc1": "3"}
    assert replicas_in(network, "dc1") == 3
    assert replicas_in(network, "dc2") == 0, "no quorum there"
    assert replicas_in({"class": "SimpleStrategy", "replication_factor": "3"}, "dc1") == 0


def test_the_statements_that_make_it() -> None:
    settings: CassandraSettings = settings_from(NEEDED)
    made = list(statements(settings))
    assert len(made) == len(TABLES) + 2
    assert all("IF NOT EXISTS" in text for text in made)
    assert "tablets" not in made[0]
    assert "tablets = {'enabled': false}" in next(statements(settings, tablets_known=True))
