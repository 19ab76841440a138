"""What only a real cluster can be asked: refusals at start, retention by TTL, a node that is paused or gone, lateness."""

import asyncio
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from qim.adapters.cassandra import CassandraArchive, CassandraSettings
from qim.adapters.cassandra.schema import SCHEMA_VERSION, TABLES, check, create, find
from qim.adapters.cassandra.session import open_session
from qim.adapters.cassandra.settings import hosts_of
from qim.adapters.start_refused import StartRefused
from qim.cli.main import main
from qim.core.ports.archive import ArchiveWritten, WriteArchive
from qim.core.ports.completion import Failed, FailReason, Unknown
from tests.adapters.archive.archives import (
    AGAIN_SECONDS,
    PATIENT,
    Asker,
    CassandraAsked,
    KeptCassandra,
    PatientAsker,
)
from tests.adapters.archive.records import CHAT, FOREVER, WALL, control, message, mid
from tests.integration.testbed.cassandra import CassandraNode
from tests.integration.testbed.server_process import free_port

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("cassandra")]
DAY_MS = 24 * 3_600_000


@pytest.fixture
def cassandra(cassandra_settings: CassandraSettings) -> Iterator[CassandraAsked]:
    chosen = CassandraAsked(cassandra_settings)
    yield chosen
    chosen.close()


@pytest.fixture
def session(cassandra_settings: CassandraSettings) -> Iterator[Any]:
    cluster, session = open_session(cassandra_settings)
    session.set_keyspace(cassandra_settings.keyspace)
    yield session
    cluster.shutdown()


@pytest.fixture
def empty(cassandra_settings: CassandraSettings) -> Iterator[tuple[Any, CassandraSettings]]:
    """A session, and settings of a keyspace that doesn't exist."""
    cluster, session = open_session(cassandra_settings)
    settings = replace(cassandra_settings, keyspace=f"qim_none_{os.getpid()}")
    session.execute(f"DROP KEYSPACE IF EXISTS {settings.keyspace}", timeout=60.0)
    yield session, settings
    session.execute(f"DROP KEYSPACE IF EXISTS {settings.keyspace}", timeout=60.0)
    cluster.shutdown()


def code_of(session: Any, settings: CassandraSettings) -> str:
    with pytest.raises(StartRefused) as caught:
        check(session, settings)
    return caught.value.code


def replicated(settings: CassandraSettings, number: int) -> str:
    return f"{{'class': 'NetworkTopologyStrategy', '{settings.data_centre}': {number}}}"


# ------------------------------------------------------------ schema


def test_a_schema_is_made_once_and_judged(empty: tuple[Any, CassandraSettings]) -> None:
    session, settings = empty
    space = settings.keyspace
    assert code_of(session, settings) == "archive_keyspace_missing"
    replication = replicated(settings, 1)
    session.execute(f"CREATE KEYSPACE {space} WITH replication = {replication}")
    assert code_of(session, settings) == "archive_schema_missing"
    create(session, settings)
    create(session, settings)
    found = find(session, settings)
    assert (found.replicas, found.version, found.missing) == (1, SCHEMA_VERSION, ())
    assert not found.tablets
    production = replace(settings, unsafe_dev=False)
    assert code_of(session, production) == "archive_replication_low"
    assert code_of(session, replace(settings, data_centre="elsewhere")) == "archive_replication_low"
    for version, code in ((0, "archive_schema_older"), (2, "archive_schema_newer")):
        session.execute(
            f"UPDATE {space}.schema_version SET version={version} WHERE component='archive'"
        )
        assert code_of(session, settings) == code
        with pytest.raises(StartRefused) as caught:
            create(session, settings)
        assert caught.value.code == code, "create overwrites no other version"
    session.execute(f"UPDATE {space}.schema_version SET version=1 WHERE component='archive'")
    session.execute(f"DROP TABLE {space}.overlay", timeout=60.0)
    assert code_of(session, settings) == "archive_schema_incomplete"


def test_an_archive_without_a_schema_does_not_start(
    cassandra_settings: CassandraSettings,
) -> None:
    async def start(settings: CassandraSettings) -> str:
        archive = CassandraArchive(settings, asyncio.get_running_loop())
        with pytest.raises(StartRefused) as caught:
            await archive.start()
        await archive.close()
        return caught.value.code

    absent = replace(cassandra_settings, keyspace="qim_absent")
    assert asyncio.run(start(absent)) == "archive_keyspace_missing"
    nobody = replace(cassandra_settings, hosts=(("127.0.0.1", free_port()),))
    assert asyncio.run(start(nobody)) == "archive_unreachable"
    abroad = replace(cassandra_settings, data_centre="elsewhere")
    assert asyncio.run(start(abroad)) == "archive_unreachable"
    weak = replace(cassandra_settings, consistency="ONE")
    assert asyncio.run(start(weak)) == "archive_consistency_low"


def test_the_command(
    empty: tuple[Any, CassandraSettings],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    session, settings = empty
    host, port = settings.hosts[0]
    words = ["--hosts", f"{host}:{port}", "--keyspace", settings.keyspace, "--rf", "1"]
    monkeypatch.setenv("QIM_SCYLLA_DC", settings.data_centre)

    def run(action: str) -> tuple[int, str, str]:
        status = main(["archive", "schema", action, *words])
        told = capsys.readouterr()
        return status, told.out, told.err

    status, out, err = run("create")
    assert (status, out) == (2, "") and "archive_replication_low" in err
    assert find(session, settings).replicas is None, "nothing was made"
    monkeypatch.setenv("QIM_SCYLLA_ALLOW_UNSAFE_DEV", "1")
    status, out, err = run("check")
    assert (status, out) == (2, "") and "qim archive schema create" in err
    status, out, _ = run("print")
    assert status == 0 and out.count("CREATE TABLE") == len(TABLES)
    for action in ("create", "check"):
        status, out, _ = run(action)
        assert status == 0
        assert json.loads(out) == {"keyspace": settings.keyspace, "schema_version": 1}


# ------------------------------------------------------------ retention


def ttl_of(session: Any, seq: int) -> int | None:
    """Seconds left, of the row alone in CHAT's first bucket at this seq."""
    text = "SELECT TTL(stored) FROM history WHERE conversation=%s AND bucket=0 AND seq=%s"
    row = session.execute(text, (CHAT, seq.to_bytes(8, "big"))).one()
    left: int | None = row[0]
    return left


def test_every_class_has_its_ttl_and_a_hold_none(cassandra: CassandraAsked, session: Any) -> None:
    sent = {"sent_at": WALL}
    Asker(cassandra).written(
        message(1, retained_until=WALL + 30 * DAY_MS, **sent),
        message(2, retained_until=WALL + DAY_MS, **sent),
        message(3, retained_until=FOREVER, **sent),
        message(4, retained_until=WALL + 3_650 * DAY_MS, **sent),
    )
    month, day = ttl_of(session, 1), ttl_of(session, 2)
    assert month is not None and 30 * 86_400 - 600 < month <= 30 * 86_400
    assert day is not None and 86_400 - 600 < day <= 86_400
    assert ttl_of(session, 3) is None
    decade = ttl_of(session, 4)
    assert decade is None or decade > 3_650 * 86_400 - 600
    index = session.execute("SELECT TTL(seq) FROM message_index WHERE message=%s", (mid(2),)).one()
    assert 86_400 - 600 < index[0] <= 86_400


def test_what_has_run_out_is_gone_and_its_facts_stay(cassandra: CassandraAsked) -> None:
    asker = Asker(cassandra)
    short = {"sent_at": WALL, "retained_until": WALL + 1_000}
    asker.written(message(1, **short), message(2, retained_until=FOREVER), through=9)
    asker.written(message(3, **short), through=10)
    while asker.seqs(CHAT) != [
        2
    ]:  # the servers' own clock decides; the test's time-out is the bound
        pass
    assert asker.bodies((CHAT, 1, mid(1)), (CHAT, 3, mid(3))) == (None, None)
    read = asker.conversations()
    assert ([one.greatest_seq for one in read.conversations], read.position) == ([3], 10)


def test_a_bucket_is_known_as_long_as_its_longest_row(
    cassandra: CassandraAsked, session: Any
) -> None:
    asker = Asker(cassandra)
    asker.written(message(1, retained_until=FOREVER))
    asker.written(message(2, sent_at=WALL, retained_until=WALL + 1_000))
    while asker.seqs(CHAT) != [1]:
        pass
    asker.written(message(5_000, sent_at=WALL, retained_until=WALL + 1_000))
    text = "SELECT bucket FROM history_bucket WHERE conversation=%s"
    while [row[0] for row in session.execute(text, (CHAT,))] != [0]:
        pass
    assert asker.seqs(CHAT) == [1]


# ------------------------------------------------------------ what only rises


def test_late_writes_lower_nothing(cassandra: CassandraAsked) -> None:
    asker = Asker(cassandra)
    late = [message(n, activity=mid(n)) for n in (3, 2, 1)]
    asker.written(message(9, activity=mid(9)), through=90)
    for row in late:
        asker.written(row, through=row.conversation_seq)
    read = asker.conversations()
    assert [(c.greatest_seq, c.last_activity_id) for c in read.conversations] == [(9, mid(9))]
    assert read.position == 90


def test_batches_in_any_interleaving_agree(cassandra: CassandraAsked) -> None:
    """All in flight at once, doubled, from one adapter: what stays is what a sequence would leave."""
    rows = [message(n, activity=mid(n)) for n in range(1, 201)]
    batches = [tuple(rows[at : at + 20]) for at in range(0, 200, 10)] * 2
    heard: list[Any] = []

    async def all_at_once() -> None:
        done = asyncio.Event()

        def hear(reply: Any) -> None:
            heard.append(reply)
            if len(heard) == len(batches):
                done.set()

        for at, batch in enumerate(batches):
            request = WriteArchive(op=at, partition=0, rows=batch, through=at % 20 + 1)
            cassandra.archive.submit(request, hear)
        await done.wait()

    cassandra.loop.run_until_complete(all_at_once())
    assert sorted(reply.op for reply in heard) == list(range(len(batches)))
    assert all(isinstance(reply, ArchiveWritten) and reply.reused == () for reply in heard)
    asker = Asker(cassandra)
    assert asker.seqs(CHAT) == list(range(1, 201))
    read = asker.conversations()
    assert [(c.greatest_seq, c.last_activity_id) for c in read.conversations] == [(200, mid(200))]
    assert read.position == 20


def test_more_versions_than_a_page_of_the_driver(cassandra: CassandraAsked) -> None:
    from qim.core.contract.entities import MembershipOp

    rows = [control(1, 1, MembershipOp.CREATE, (1,))]
    rows += [
        control(n, n, MembershipOp.REMOVE if n % 2 else MembershipOp.ADD, (2,))
        for n in range(2, 5_102)
    ]
    asker = Asker(cassandra)
    for at in range(0, len(rows), 2_000):
        asker.written(*rows[at : at + 2_000])
    (group,) = asker.conversations().conversations
    assert [version.version for version in group.versions] == list(range(1, 5_102))


# ------------------------------------------------------------ bounds and failures


def test_a_row_nobody_can_read_spoils_only_its_own_batch(cassandra: CassandraAsked) -> None:
    asker = Asker(cassandra)
    broken = replace(message(1), stored=b"x" * 30)
    assert isinstance(asker.write(message(7), broken), Failed)
    assert asker.written(message(1)) == ()
    assert asker.seqs(CHAT) == [1]


def test_more_requests_than_may_wait(cassandra_settings: CassandraSettings) -> None:
    narrow = replace(cassandra_settings, waiting_requests_max=3, inflight_ops_max=1)
    asked = CassandraAsked(narrow)
    heard: list[Any] = []

    async def overload() -> None:
        done = asyncio.Event()

        def hear(reply: Any) -> None:
            heard.append(reply)
            if len(heard) == 8:
                done.set()

        for op in range(8):
            asked.archive.submit(WriteArchive(op=op, partition=0, rows=(message(op + 1),)), hear)
        assert asked.archive.waiting == 3
        await done.wait()

    asked.loop.run_until_complete(overload())
    refused = [reply.op for reply in heard if isinstance(reply, Failed)]
    assert refused == [3, 4, 5, 6, 7]
    assert {reply.why for reply in heard if isinstance(reply, Failed)} == {FailReason.OVERLOADED}
    gauges = {(name, label): value for name, label, value in asked.archive.gauges()}
    assert gauges["archive_requests_refused", ""] == 5
    assert gauges["archive_statements_inflight", "write"] == 0
    assert gauges["archive_statements_inflight_max", "write"] == 1
    asked.loop.run_until_complete(asked.archive.close())
    assert Asker(asked).write(message(1)) == Failed(op=1, why=FailReason.OVERLOADED)
    asked.close()


def test_a_quorum_that_is_not_there_is_surely_not_written(
    cassandra_settings: CassandraSettings, session: Any
) -> None:
    """Three replicas on one node: the coordinator refuses before it sends anything."""
    space = f"qim_three_{os.getpid()}"
    three = replace(cassandra_settings, keyspace=space, replication=3)
    with pytest.raises(Exception, match=r"(?i)replicas|unavailable|consistency"):
        create(session, three)  # the version's compare-and-set finds no quorum either
    session.execute(f"ALTER KEYSPACE {space} WITH replication = {replicated(three, 1)}")
    create(session, replace(three, replication=1))
    asked = CassandraAsked(replace(three, replication=1))
    session.execute(f"ALTER KEYSPACE {space} WITH replication = {replicated(three, 3)}")
    reply = Asker(asked).write(message(1), through=5)
    assert reply == Failed(op=1, why=FailReason.UNREACHABLE)
    session.execute(f"ALTER KEYSPACE {space} WITH replication = {replicated(three, 1)}")
    asker = Asker(asked)
    assert (asker.seqs(CHAT), asker.conversations().position) == ([], 0)
    assert asker.written(message(1), through=5) == ()
    asked.close()
    session.execute(f"DROP KEYSPACE {space}", timeout=60.0)


def opened_hastily(settings: CassandraSettings) -> KeptCassandra:
    """One that waits 2 s for a statement, those of its start as well: made again while that is too short."""
    deadline = time.monotonic() + AGAIN_SECONDS
    while True:
        try:
            return KeptCassandra(replace(settings, request_timeout_ms=2_000))
        except StartRefused as refused:
            if refused.code != "archive_unreachable" or time.monotonic() > deadline:
                raise


def test_a_paused_node_leaves_writes_unknown_and_loses_none(tmp_path: Path) -> None:
    """Its answer comes too late, or never: Unknown. Written again, nothing is doubled. kill -9 keeps what was confirmed."""
    node = CassandraNode(tmp_path, port=free_port(), storage_port=free_port())
    settings = CassandraSettings(
        hosts=hosts_of(node.address),
        keyspace="qim",
        data_centre="datacenter1",
        replication=1,
        unsafe_dev=True,
        **PATIENT,
    )
    try:
        node.process.start()
        cluster, session = open_session(settings)
        create(session, settings)
        cluster.shutdown()
        hasty = opened_hastily(settings)
        assert PatientAsker(hasty).written(message(1), through=2) == ()
        node.process.pause()
        rows = [message(n) for n in range(2, 30)]
        assert isinstance(Asker(hasty).write(*rows, through=30), Unknown)
        node.process.resume()
        assert PatientAsker(hasty).written(*rows, through=30) == ()
        hasty.close()
        asked = KeptCassandra(settings)
        assert Asker(asked).seqs(CHAT) == list(range(1, 30))
        assert Asker(asked).written(*rows) == (), "late or not, no place holds two"
        asked.close()
        node.process.kill()
        node.process.start()
        kept = KeptCassandra(settings)
        asker = Asker(kept)
        assert asker.seqs(CHAT) == list(range(1, 30))
        assert asker.conversations().position == 30
        kept.close()
    finally:
        node.process.kill()
