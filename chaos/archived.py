"""The archive against the logs once a run has ended: a row a message with the bytes of its record, and no row beside it."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from qim.core.contract.entities import MessageRecord, decode_stored_record
from qim.core.ports.archive import ArchiveRead, ReadArchive
from qim.sim.oracle import Oracle

PAGE: Final = 500
HIGHEST: Final = 1 << 62
CHECK: Final = "archived"
"""As the simulator's checker of the same (qim/sim/checkers/archives.py)."""
Ask = Callable[[Any], Awaitable[Any]]
Found = list[tuple[str, str, str]]


async def archive_differences(oracle: Oracle, ask: Ask) -> Found:
    """(check, role, what) each. Nothing expires within a run: retention takes a day at least."""
    owed: dict[bytes, dict[bytes, MessageRecord]] = {}
    for message_id, effective in oracle.messages.items():
        owed.setdefault(effective.record.conversation_id, {})[message_id] = effective.record
    found: Found = []
    for conversation_id, records in owed.items():
        for stored in await _rows(conversation_id, ask):
            held = decode_stored_record(stored)
            record = records.pop(held.message_id, None)
            if record is None:
                found.append(_told(held, "a row of no effective record, or a second one"))
            elif record != held:
                found.append(_told(held, "differs from its record"))
        found += [_told(record, "is not archived") for record in records.values()]
    return found


async def _rows(conversation_id: bytes, ask: Ask) -> list[bytes]:
    rows: list[bytes] = []
    low = -1
    while True:
        page = await ask(
            ReadArchive(
                op=0,
                conversation_id=conversation_id,
                low=low,
                high=HIGHEST,
                newest_first=False,
                limit=PAGE,
            )
        )
        assert isinstance(page, ArchiveRead), page
        rows += page.stored
        if not page.more:
            return rows
        low = decode_stored_record(page.stored[-1]).conversation_seq


def _told(record: MessageRecord, what: str) -> tuple[str, str, str]:
    where = f"{record.conversation_id.hex()} seq {record.conversation_seq}"
    return CHECK, "archiver", f"{where}: {what}"
