"""A running server as the tests of a module share it: where it is, what it logged, what its metrics say."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qim.adapters.embedded.stale_server import read_record
from qim.adapters.redis.blocking import BlockingConnection
from qim.cli.data_files import order
from tests.integration.operator_view import OperatorView
from tests.integration.raw_client import Target, target_of
from tests.integration.up_process import UpProcess, run_qim

EVENTUALLY_SECONDS_MAX = 180.0
"""A guard against waiting for ever, never a judgement of speed."""
CANARY = b"canary-7f3a9c"
"""Stands in every body of the tests; found in a log it proves that a text leaked."""


class Served(UpProcess, OperatorView):
    """UpProcess with eyes."""

    def __init__(self, data: Path, *options: str) -> None:
        super().__init__(data, "127.0.0.1:0", *options)

    @property
    def target(self) -> Target:
        """For RawClient."""
        return target_of(self.tcp, self.data)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where clients connect."""
        return (self.tcp,)

    @property
    def pid(self) -> int:
        """Of the server."""
        return int(self.ready["pid"])

    @property
    def store_pid(self) -> int:
        """Of its private store, its only child."""
        (store,) = self.store_pids()
        return store

    def store_pids(self) -> list[int]:
        """None while it is being started again."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [int(child) for child in children]

    def log(self) -> str:
        """All that was logged so far."""
        return self.data.with_suffix(".log").read_text(errors="replace")

    def log_records(self) -> list[dict[str, Any]]:
        """Each line is one JSON object; the last one may be half written yet."""
        return [json.loads(line) for line in self.log().rpartition("\n")[0].splitlines()]

    def resident_bytes(self) -> int:
        """RSS of the server process."""
        pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        return int(pages) * 4096

    def open_files(self) -> int:
        """File descriptors of the server process."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def store_connection(self) -> BlockingConnection:
        """A connection of our own to the private store."""
        record = read_record(self.data / "store")
        assert record is not None
        return BlockingConnection(Path(record.socket), timeout_s=30)

    def audited(self) -> dict[str, Any]:
        """The orphan audit's report, by the command: CLEAN, or INCOMPLETE while the last messages are on their way."""
        words = ("audit", "--data", str(self.data), "--json")
        report: dict[str, Any] = json.loads(run_qim(*words, or_else=4))
        return report

    def delivered(self) -> dict[str, Any]:
        """The report of an audit once every consumer is through: what was acked before is in every mailbox then."""
        deadline = time.monotonic() + EVENTUALLY_SECONDS_MAX
        while True:
            report = order(self.data, "/audit", b"", EVENTUALLY_SECONDS_MAX)
            if report["verdict"] != "INCOMPLETE":
                return report
            assert time.monotonic() < deadline, report

    def judge(self) -> None:
        """Nothing died, no rule was broken, nothing leaked."""
        log = self.log()
        assert "Traceback" not in log, log[-4000:]
        for record in self.log_records():
            assert record["event"] not in ("machine died", "violation"), record
        assert CANARY.decode() not in log, "a body stands in the log"
        assert (self.data / "secret").read_bytes().hex() not in log
        assert "qim1." not in log, "a token stands in the log"

    def end(self) -> None:
        """SIGTERM must drain, and then the log is judged."""
        assert self.get("/healthz")[0] == 200, self.get("/healthz")
        assert self.stop() == 0, self.log()[-4000:]
        self.judge()


async def eventually(holds: Callable[[], bool]) -> None:
    """Ask again and again, off the loop, until it holds; for what nobody tells by an event."""
    async with asyncio.timeout(EVENTUALLY_SECONDS_MAX):
        while not await asyncio.to_thread(holds):  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.02)


async def streams_open(served: Served, count: int) -> None:
    """Wait until the server has let go of all connections but ``count``."""
    await eventually(lambda: served.metric("qim_tcp_streams_open") == count)


def newest_file(data: Path) -> Path:
    """What the store of a server that doesn't run writes into: where it was ended while it began anew, there is another."""
    files = (data / "store" / "appendonlydir").glob("*.incr.aof")
    return max(files, key=lambda file: (len(file.name), file.name))
