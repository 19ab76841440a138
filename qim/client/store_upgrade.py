"""A device's file of an older schema, rewritten as today's; inside the transaction that its opener holds.

Version 1 knew no session list: of a conversation it kept the anchor alone. What unread needs is read from the server again,
once: until then the row is unfilled.
"""

import sqlite3

from qim.client.store_rows import conversation_of, conversation_values, decode_message, u64
from qim.core.client.conversation import GONE
from qim.core.contract.kinds import Tombstone
from qim.core.ports.local_store import LocalMessage


def upgrade_from_1(connection: sqlite3.Connection, conversation: str, overlay: str) -> None:
    """Messages get kind, hidden and sent_at; conversations their row; ``conversation``, ``overlay``: the new tables."""
    run = connection.execute
    for column in (
        "message ADD COLUMN kind INTEGER NOT NULL DEFAULT 0",
        "message ADD COLUMN hidden INTEGER NOT NULL DEFAULT 0",
        "message ADD COLUMN sent_at BLOB NOT NULL DEFAULT x'0000000000000000'",
        "device ADD COLUMN state_revision BLOB NOT NULL DEFAULT x'0000000000000000'",
    ):
        run(f"ALTER TABLE {column}")
    run("ALTER TABLE conversation RENAME TO conversation_1")
    run(conversation)
    run(overlay)
    anchors = run("SELECT conversation_id, anchor FROM conversation_1").fetchall()
    for conversation_id, anchor in anchors:
        messages: list[LocalMessage] = []
        rows = run(
            "SELECT message_id, data FROM message WHERE conversation_id=? ORDER BY seq",
            (conversation_id,),
        ).fetchall()
        for message_id, data in rows:
            message = decode_message(data)
            messages.append(message)
            hidden = GONE if message.tombstone == Tombstone.EXPIRED else 0
            run(
                "UPDATE message SET kind=?, hidden=?, sent_at=? WHERE message_id=?",
                (message.kind, hidden, u64(message.sent_at), message_id),
            )
        row = conversation_of(conversation_id, int.from_bytes(anchor, "big"), messages)
        run("INSERT INTO conversation VALUES (?,?,?,?,?)", conversation_values(row))
    run("DROP TABLE conversation_1")
