"""The file of a device's own store: its schema and version, who may open it, and why it can't be.

Owned by one process at a time, by a lock on a file beside it that ends with the process, however it ends.
"""

import fcntl
import os
import sqlite3
from pathlib import Path
from typing import Final

from msgspec import Struct

from qim.client.store_upgrade import upgrade_from_1

SCHEMA_VERSION: Final = 2
_DEVICE: Final = """CREATE TABLE device (one INTEGER PRIMARY KEY CHECK (one = 1), attempt INTEGER NOT NULL,
  state INTEGER NOT NULL, cursor BLOB, covered_through BLOB NOT NULL, rebuild_target BLOB NOT NULL,
  state_revision BLOB NOT NULL DEFAULT x'0000000000000000')"""
_MESSAGE: Final = """CREATE TABLE message (message_id BLOB PRIMARY KEY, conversation_id BLOB NOT NULL, seq BLOB NOT NULL,
  sender_id BLOB NOT NULL, arrival INTEGER NOT NULL, told INTEGER NOT NULL DEFAULT 0, data BLOB NOT NULL,
  kind INTEGER NOT NULL DEFAULT 0, hidden INTEGER NOT NULL DEFAULT 0, sent_at BLOB NOT NULL DEFAULT x'0000000000000000'
  ) WITHOUT ROWID"""
_CONVERSATION: Final = """CREATE TABLE conversation (conversation_id BLOB PRIMARY KEY, activity BLOB NOT NULL,
  unsent INTEGER NOT NULL, unfilled INTEGER NOT NULL, data BLOB NOT NULL) WITHOUT ROWID"""
_OVERLAY: Final = """CREATE TABLE overlay (conversation_id BLOB NOT NULL, seq BLOB NOT NULL, bits INTEGER NOT NULL,
  PRIMARY KEY (conversation_id, seq)) WITHOUT ROWID"""
_OUTGOING: Final = """CREATE TABLE outgoing (client_message_id BLOB PRIMARY KEY, place INTEGER NOT NULL,
  status TEXT NOT NULL, code INTEGER NOT NULL DEFAULT 0, row BLOB NOT NULL, coordinates BLOB) WITHOUT ROWID"""
_OWNER: Final = """CREATE TABLE IF NOT EXISTS owner (one INTEGER PRIMARY KEY CHECK (one = 1), tenant_id TEXT NOT NULL,
  user_id BLOB NOT NULL)"""
_LATER: Final = (
    _OWNER,
    "CREATE INDEX IF NOT EXISTS conversation_activity ON conversation (activity)",
    "CREATE INDEX IF NOT EXISTS conversation_unsent ON conversation (conversation_id) WHERE unsent=1",
    "CREATE INDEX IF NOT EXISTS conversation_unfilled ON conversation (conversation_id) WHERE unfilled=1",
)
_NEW: Final = (
    _DEVICE,
    _MESSAGE,
    "CREATE INDEX message_order ON message (conversation_id, seq)",
    "CREATE INDEX message_untold ON message (told, arrival)",
    _CONVERSATION,
    _OVERLAY,
    _OUTGOING,
    "CREATE INDEX outgoing_order ON outgoing (status, place)",
    "INSERT INTO device VALUES (1, 0, 1, NULL, x'0000000000000000', x'0000000000000000', x'0000000000000000')",
    *_LATER,
)


class Owner(Struct, frozen=True, kw_only=True, gc=False):
    """Whose messages a file holds."""

    tenant_id: str
    user_id: int


class LocalStoreUnusable(Exception):
    """The file can't be opened, or isn't a store; it is left as it is."""


class LocalStoreTooNew(LocalStoreUnusable):
    """The file was written by a later version; it is left as it is."""


class LocalStoreForeign(LocalStoreUnusable):
    """The file holds another user's messages and pending sends; it is left as it is."""


class LocalStoreBusy(LocalStoreUnusable):
    """Another process, ``pid`` (0: not known), has this device's store open."""

    def __init__(self, path: Path, pid: int) -> None:
        self.pid = pid
        holder = f"process {pid}" if pid else "another process"
        super().__init__(f"{path} is in use by {holder}; end it, or use another device id")


def locked_file(path: Path) -> int:
    """The descriptor that holds the device's lock; the file beside it names who does. Raises LocalStoreBusy."""
    descriptor = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 32)
        os.close(descriptor)
        raise LocalStoreBusy(path, int(holder) if holder.isdigit() else 0) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor


def opened_file(path: Path, owner: Owner | None) -> sqlite3.Connection:
    """The file with its schema, made or upgraded in one transaction. Raises LocalStoreTooNew, LocalStoreForeign, sqlite3.Error."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise LocalStoreTooNew(
                f"{path}: schema {version}, this version knows {SCHEMA_VERSION}; upgrade the client"
            )
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        if version < SCHEMA_VERSION:
            _bring_up_to_date(connection, version)
        if owner is not None:
            _claim(connection, path, owner)
    except BaseException:
        connection.close()
        raise
    return connection


def _claim(connection: sqlite3.Connection, path: Path, owner: Owner) -> None:
    """A file without an owner (new, or of a version that wrote none down) is his who opens it first."""
    connection.execute(_OWNER)
    user_id = owner.user_id.to_bytes(8, "big")
    connection.execute("INSERT OR IGNORE INTO owner VALUES (1,?,?)", (owner.tenant_id, user_id))
    found = connection.execute("SELECT tenant_id, user_id FROM owner").fetchone()
    if found != (owner.tenant_id, user_id):
        held = int.from_bytes(found[1], "big")
        raise LocalStoreForeign(
            f"{path} is the store of user {held} (tenant {found[0]}), not of user {owner.user_id} "
            f"(tenant {owner.tenant_id}): give each user a file of his own"
        )


def _bring_up_to_date(connection: sqlite3.Connection, version: int) -> None:
    """All of it, or nothing: who is killed in between finds the old file."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        if version == 0:
            for statement in _NEW:
                connection.execute(statement)
        else:
            upgrade_from_1(connection, _CONVERSATION, _OVERLAY)
            for statement in _LATER:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
