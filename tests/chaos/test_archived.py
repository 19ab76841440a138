"""The judge of a run's archive sees what is not there, what is there and must not be, and what differs."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from chaos import archived
from chaos.archived import archive_differences
from qim.core.contract.entities import decode_stored_record, encode_record, stored_record
from qim.core.ports.archive import ArchiveRead
from qim.sim.archive_rows import Cell
from qim.sim.generate import generate
from qim.sim.run import run_scene
from qim.sim.scene import Kit, Scene


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A world that has settled, its archive read in small pages."""
    monkeypatch.setattr(archived, "PAGE", 2)
    made, report = run_scene(generate(3, "calm"), Kit())
    assert report.clean
    return made


def differences(scene: Scene) -> list[str]:
    async def ask(request: Any) -> ArchiveRead:
        stored, more = scene.archive.rows.page(
            request.conversation_id,
            request.low,
            request.high,
            newest_first=request.newest_first,
            limit=request.limit,
            stale=False,
        )
        return ArchiveRead(op=request.op, stored=stored, more=more)

    found = asyncio.run(archive_differences(scene.history.oracle, ask))
    assert all(one[:2] == ("archived", "archiver") for one in found)
    return [what.rpartition(": ")[2] for _, _, what in found]


def stored_as(cell: Cell, **changes: Any) -> bytes:
    record = replace(decode_stored_record(cell.row.stored), **changes)
    return stored_record(record.conversation_seq, record.last_activity_id, encode_record(record))


def first_cell(scene: Scene) -> Cell:
    held = next(one for one in scene.archive.rows.conversations.values() if len(one.order) > 2)
    return held.cells[held.order[0]]


def test_an_archive_that_is_whole(scene: Scene) -> None:
    assert scene.archive.rows.conversations
    assert differences(scene) == []


def test_a_row_that_is_missing(scene: Scene) -> None:
    held = next(iter(scene.archive.rows.conversations.values()))
    held.cells.pop(held.order.pop())
    assert differences(scene) == ["is not archived"]


def test_a_row_that_differs(scene: Scene) -> None:
    cell = first_cell(scene)
    cell.row = replace(cell.row, stored=stored_as(cell, body=b"another"))
    assert differences(scene) == ["differs from its record"]


def test_a_row_of_nothing_that_was_committed(scene: Scene) -> None:
    cell = first_cell(scene)
    cell.row = replace(cell.row, stored=stored_as(cell, message_id=b"x" * 16))
    assert differences(scene) == [
        "a row of no effective record, or a second one",
        "is not archived",
    ]
