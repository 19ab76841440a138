"""History moves into the archive while the server is killed: complete, and every message once (docs: pipeline §5)."""

import asyncio
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from qim.client import Client, SendStatus
from qim.core.archived import BUCKET_SEQS
from qim.core.contract.entities import decode_stored_record
from qim.core.contract.logvalue import Barrier, Outboxed, read_outbox
from qim.core.contract.tokens import AccessToken, sign_token
from qim.core.effective import EffectiveFilter
from qim.core.retention import RetentionPolicy, retained_until
from tests.integration.raw_client import PATIENCE_SECONDS
from tests.integration.served import Served, eventually

KILLS = 5
SENDERS = (1, 2, 3)
LANES = 4
PARTITIONS = (0, 1)
DAY_MS = 86_400_000


def client(served: Served, secret: bytes, user: int, device: str, stores: Path) -> Client:
    token = AccessToken(tenant_id="default", user_id=user, device_id=None, expires_at=2**45)
    return Client(
        user_id=user,
        access_token=sign_token(token, secret),
        addresses=(served.tcp,),
        store_path=stores / f"{user}-{device}.db",
        device_id=device.encode(),
    )


async def load_until(stop: asyncio.Event, served: Served, stores: Path, acked: list[str]) -> None:
    """Three users write to each other and to a group until told to stop."""
    secret = (served.data / "secret").read_bytes()
    clients = [client(served, secret, user, "load", stores) for user in SENDERS]
    for one in clients:
        await one.__aenter__()
        await one.online(PATIENCE_SECONDS)
    group = (await clients[0].create_group(SENDERS, "everyone")).conversation_id

    async def lane(user: int, number: int) -> None:
        one, peer, count = clients[user - 1], SENDERS[user % len(SENDERS)], 0
        while not stop.is_set():
            count += 1
            text = f"{user}.{number}.{count}"
            if number:
                sent = await one.send(text, to=peer, timeout=240)
            else:
                sent = await one.send(text, conversation_id=group, timeout=240)
            assert sent.status is SendStatus.ACKED, (text, sent)
            acked.append(text)

    async with asyncio.TaskGroup() as tasks:
        for user in SENDERS:
            for number in range(LANES):
                tasks.create_task(lane(user, number))
    for one in clients:
        await one.close()


async def killed_while_archiving(served: Served, stores: Path) -> list[str]:
    stop = asyncio.Event()
    acked: list[str] = []
    dice = random.Random(20_261_129)
    load = asyncio.create_task(load_until(stop, served, stores, acked))
    for _ in range(KILLS):
        before = len(acked)
        while len(acked) <= before + 20:
            assert not load.done(), load
            await asyncio.sleep(0.01)
        await asyncio.sleep(dice.uniform(0.0, 0.3))
        await asyncio.to_thread(served.kill)
        await asyncio.to_thread(served.start)
    stop.set()
    await load
    await archived(served)
    return acked


async def archived(served: Served) -> None:
    """Wait until the archive has what stands in the outbox now. By the files: a gauge knows what the archiver was told of."""
    await eventually(lambda: not behind(served.data))


def behind(data: Path) -> list[int]:
    """Outbox partitions of which the archive lacks something."""
    with closing(sqlite3.connect(data / "log.sqlite")) as log:
        ends = log.execute(
            "SELECT partition,max(position)+1 FROM record WHERE topic='outbox' GROUP BY partition"
        ).fetchall()
    with closing(sqlite3.connect(data / "archive.sqlite")) as archive:
        through = dict(archive.execute("SELECT partition,through FROM position").fetchall())
    return [partition for partition, end in ends if through.get(partition, 0) < end]


def effective(log: Path, partition: int) -> tuple[dict[int, Outboxed], int]:
    """Effective records by offset, and the outbox's end."""
    connection = sqlite3.connect(log)
    rows = connection.execute(
        "SELECT position,value FROM record WHERE topic='outbox' AND partition=? ORDER BY position",
        (partition,),
    ).fetchall()
    connection.close()
    judge, found = EffectiveFilter(0), {}
    for offset, value in rows:
        entry = read_outbox(value)
        assert isinstance(entry, Outboxed | Barrier), entry
        if judge.admits(entry) and isinstance(entry, Outboxed):
            found[offset] = entry
    return found, rows[-1][0] + 1


def test_five_kills_while_archiving_leave_every_message_once(tmp_path: Path) -> None:
    served = Served(tmp_path / "data")
    served.start()
    try:
        acked = asyncio.run(killed_while_archiving(served, tmp_path))
        served.end()
    finally:
        served.close()
    archive = sqlite3.connect(tmp_path / "data" / "archive.sqlite")
    count, distinct, first = archive.execute(
        "SELECT count(*), count(DISTINCT message), min(retained_until) FROM history"
    ).fetchone()
    wanted: dict[bytes, Outboxed] = {}
    for partition in PARTITIONS:
        records, end = effective(tmp_path / "data" / "log.sqlite", partition)
        held = archive.execute(
            "SELECT through FROM position WHERE partition=?", (partition,)
        ).fetchone()
        assert held == (end,), "everything is archived, and said to be"
        wanted |= {entry.record.message_id: entry for entry in records.values()}
    assert count == distinct == len(wanted) >= len(acked) > 100
    rows = archive.execute("SELECT conversation,bucket,seq,message,stored FROM history").fetchall()
    for conversation_id, bucket, seq, message_id, stored in rows:
        entry = wanted[message_id]
        assert stored == entry.stored
        record = decode_stored_record(stored)
        assert (record.conversation_id, record.conversation_seq) == (
            conversation_id,
            int.from_bytes(seq, "big"),
        )
        assert bucket == record.conversation_seq // BUCKET_SEQS
    texts = {entry.record.body.decode(errors="replace") for entry in wanted.values()}
    assert set(acked) <= texts
    assert first == min(
        retained_until(RetentionPolicy(), e.record.tenant_id, 0, e.record.sent_at)
        for e in wanted.values()
    )
    assert_facts(archive, wanted)
    archive.close()


def assert_facts(archive: sqlite3.Connection, wanted: dict[bytes, Outboxed]) -> None:
    greatest: dict[bytes, int] = {}
    for entry in wanted.values():
        record = entry.record
        held = greatest.get(record.conversation_id, 0)
        greatest[record.conversation_id] = max(held, record.conversation_seq)
    stored = archive.execute("SELECT id,greatest FROM conversation").fetchall()
    assert {name: int.from_bytes(seq, "big") for name, seq in stored} == greatest
    (steps,) = archive.execute("SELECT count(*) FROM step").fetchone()
    assert steps == sum(entry.record.delta is not None for entry in wanted.values())


def test_without_tiers_there_is_no_archive(tmp_path: Path) -> None:
    served = Served(tmp_path / "data", "--message-store-backend", "redis")
    served.start()
    try:
        assert ("qim_archive_jobs_waiting", "") not in served.metrics()
        served.end()
        assert not (tmp_path / "data" / "archive.sqlite").exists()
    finally:
        served.close()
    assert "message_store_backend" in refused(Served(tmp_path / "data"))


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--message-store-backend", "scylla", "message_store_backend is scylla"),
        ("--retention", "4000", "default_retention_ms"),
        ("--hot-window", "9000", "hot_window_ms"),
        ("--tenant-retention", "big=0", "TENANT=DAYS"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_words(
    tmp_path: Path, option: str, value: str, told: str
) -> None:
    assert told in refused(Served(tmp_path / "data", option, value))


def refused(served: Served) -> str:
    """What a start that must be refused with status 2 says."""
    with pytest.raises(AssertionError, match="ended with 2"):
        served.start()
    served.close()
    return served.log()


def test_a_tenant_s_own_retention_is_kept(tmp_path: Path) -> None:
    served = Served(tmp_path / "data", "--retention", "40", "--tenant-retention", "default=400")
    served.start()
    try:
        asyncio.run(one_message(served, tmp_path))
        served.end()
    finally:
        served.close()
    archive = sqlite3.connect(tmp_path / "data" / "archive.sqlite")
    (stored, until) = archive.execute("SELECT stored,retained_until FROM history").fetchone()
    archive.close()
    assert until == decode_stored_record(stored).sent_at + 40 * DAY_MS


async def one_message(served: Served, stores: Path) -> None:
    secret = (served.data / "secret").read_bytes()
    async with client(served, secret, 1, "one", stores) as one:
        await one.online(PATIENCE_SECONDS)
        sent = await one.send("hello", to=2, timeout=PATIENCE_SECONDS)
        assert sent.status is SendStatus.ACKED
    await archived(served)
