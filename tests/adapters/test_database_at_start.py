"""What is read and written before the thread takes jobs: a refusal says what SQLite said first."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from qim.adapters.embedded.data_directory import DataDirectoryDamaged
from qim.adapters.embedded.database_thread import DatabaseThread

SCHEMA = "CREATE TABLE IF NOT EXISTS kept (value BLOB NOT NULL)"


def fill(connection: sqlite3.Connection) -> None:
    """Until no page is left; SQLite has ended the transaction by then."""
    connection.execute("PRAGMA cache_size=1")
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count={pages + 8}")
    while True:
        connection.execute("INSERT INTO kept VALUES (zeroblob(2000))")


def test_a_disk_that_is_full_at_the_start_is_told_as_that(tmp_path: Path) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        database = DatabaseThread(tmp_path / "kept.sqlite", loop, schema=SCHEMA, name="kept")
        with pytest.raises(DataDirectoryDamaged, match=r"kept\.sqlite: database or disk is full"):
            database.at_start(fill)
        await database.close()

    asyncio.run(scenario())
