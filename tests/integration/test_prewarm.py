"""`qim prewarm` on the private store of a running server: keys come and go, messages stay."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qim.cli.main import main
from tests.integration.command_line import pulled
from tests.integration.people import listing
from tests.integration.raw_client import RawClient
from tests.integration.served import Served, eventually
from tests.integration.test_archive import archived
from tests.integration.testbed.redis import RedisServer, valkey_binary
from tests.integration.up_process import run_qim

DIES_AT_KEYS = 20_000
PATIENCE_SECONDS = 60.0


def prewarm(served: Served, *options: str) -> dict[str, int]:
    told: dict[str, int] = json.loads(
        run_qim("prewarm", "--data", str(served.data), "--json", *options)
    )
    return told


async def at_rest(served: Served, *users: int) -> None:
    """Whoever still worked on what was sent would change the number of keys under the command."""
    await asyncio.to_thread(served.delivered)
    for user in users:
        async with await RawClient.log_in(served.target, user) as client:
            await listing(client)
    await archived(served)
    await eventually(lambda: not presences(served))


def presences(served: Served) -> list[bytes]:
    """Keys of users who are online."""
    with served.store_connection() as store:
        found: list[bytes] = store.ask(b"KEYS", b"pr:*")
    return found


def test_fill_and_clear(served: Served) -> None:
    send = ("send", "--data", str(served.data), "--user", "1", "--to", "2", "before")
    run_qim(*send)
    asyncio.run(at_rest(served, 1, 2))
    filled = prewarm(served, "--keys", "5000")
    assert filled["after"] >= 5_000 > filled["before"]
    assert filled["changed"] == 5_000 - filled["before"]
    again = prewarm(served, "--keys", "5000")
    assert again["changed"] == 0, "as large as it should be already"
    more = prewarm(served, "--keys", "8000")
    assert more["after"] >= 8_000, "what is there already is not counted twice"
    run_qim(*send[:-1], "while it is large")
    cleared = prewarm(served, "--clear")
    assert cleared["changed"] >= filled["changed"] + more["changed"]
    texts = pulled(str(served.data), 2, last="while it is large")
    assert texts == ["before", "while it is large"]


def test_no_server_is_told(tmp_path: object) -> None:
    run_qim("prewarm", "--data", str(tmp_path), "--json", expect=2)
    run_qim("prewarm", "--redis", "127.0.0.1:1", "--json", expect=3)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[RedisServer]:
    """A store with room for some ten thousand keys."""
    server = RedisServer(
        tmp_path / "small", binary=valkey_binary(), settings={"maxmemory": "4mb", "save": ""}
    )
    server.start()
    yield server
    server.kill()


def test_a_store_that_is_full_is_told(
    small: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prewarm", "--redis", small.address, "--keys", "1000000"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("qim prewarm: the store refused: OOM command not allowed")
    assert "or with `qim prewarm --clear`" in said.err
    assert main(["prewarm", "--redis", small.address, "--clear"]) == 0
    assert " keys before, 0 now" in capsys.readouterr().out


def test_a_store_that_dies_meanwhile_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = RedisServer(tmp_path / "dies", binary=valkey_binary())
    server.start()

    def kill() -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        with server.client() as client:
            while client.dbsize() < DIES_AT_KEYS and time.monotonic() < deadline:
                pass
        server.kill()

    killing = threading.Thread(target=kill)
    killing.start()
    try:
        assert main(["prewarm", "--redis", server.address, "--keys", "10000000"]) == 3
    finally:
        killing.join()
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("qim prewarm: ")
    assert said.err.endswith("or with `qim prewarm --clear`\n")
