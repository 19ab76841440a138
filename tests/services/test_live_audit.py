"""The audit of a server that is at work: it may be INCOMPLETE, it must never call a delay a loss, and it harms nobody."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qim.cli.data_files import order
from tests.integration.load import Load
from tests.integration.served import Served

AUDITS = 6


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Served]:
    server = Served(tmp_path / "data")
    try:
        server.start()
        yield server
    finally:
        server.close()


def audited(server: Served) -> dict[str, Any]:
    """Ordered of the running server."""
    return order(server.data, "/audit", b"", 120.0)


@pytest.mark.slow
def test_a_server_under_load_has_no_orphans(busy: Served, tmp_path: Path) -> None:
    async def main() -> list[dict[str, Any]]:
        load = Load(busy, tmp_path)
        reports: list[dict[str, Any]] = []
        async with load.running() as running:
            for _ in range(AUDITS):
                await running.acks(50)
                reports.append(await asyncio.to_thread(audited, busy))
        await load.check()
        return reports

    reports = asyncio.run(main())
    assert [one["orphans"] for one in reports] == [[]] * AUDITS
    records = [one["records"] for one in reports]
    assert records == sorted(records)
    assert records[0] > 0, "a cut under load is judged, not only put off"
    assert {one["verdict"] for one in reports} <= {"CLEAN", "INCOMPLETE"}
    assert busy.metric("qim_audit_runs_total", "ORPHANS") == 0
    busy.end()
