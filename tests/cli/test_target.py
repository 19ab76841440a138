"""Whom a command speaks to and as whom: from the data directory, the token, the arguments."""

import asyncio
import json
import os
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from qim.cli.arguments import UsageError
from qim.cli.data_files import NotRunning, order
from qim.cli.main import main, parser
from qim.cli.target import Target, connected, store_path, target_of
from qim.client import Client, LocalStoreBusy
from qim.core.contract.tokens import AccessToken, sign_token, verify_token

SECRET = b"s" * 32
TCP = "127.0.0.1:7001"


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("QIM_TOKEN", raising=False)
    monkeypatch.delenv("QIM_DATA", raising=False)
    monkeypatch.delenv("QIM_AUTH_SECRET", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "secret").write_bytes(SECRET)
    told = {"ready": True, "tcp": TCP, "metrics": "127.0.0.1:9101", "pid": os.getpid()}
    (folder / "server.json").write_text(json.dumps(told))
    return folder


def found(*argv: str) -> Target:
    return target_of(parser().parse_args(["pull", *argv]))


def token(user: int = 7, tenant: str = "default", device: bytes | None = None) -> str:
    claims = AccessToken(tenant_id=tenant, user_id=user, device_id=device, expires_at=2**45)
    return sign_token(claims, SECRET)


def test_a_data_directory_gives_address_and_token(data: Path) -> None:
    target = found("--data", str(data), "--user", "7", "--device", "d1")
    assert target.address == TCP
    claims = verify_token(target.token, SECRET, now_ms=0)
    assert (claims.user_id, claims.device_id, claims.tenant_id) == (7, b"d1", "default")
    assert target.store == data / "clients" / "default-7-d1.db"


def test_a_server_may_be_named_beside_it(data: Path) -> None:
    assert found("--data", str(data), "--server", "h:1", "--user", "7").address == "h:1"


def test_the_default_directory_is_the_environment_s(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QIM_DATA", str(data))
    assert found("--user", "7").address == TCP


def test_a_token_says_who_one_is(tmp_path: Path) -> None:
    target = found("--server", "h:1", "--token", token(tenant="t", device=b"phone"))
    assert (target.user_id, target.tenant_id, target.device_id) == (7, "t", b"phone")
    assert target.store == tmp_path / "home" / "qim" / "clients" / "h%3A1" / "t-7-phone.db"


def test_a_token_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QIM_TOKEN", token())
    assert found("--server", "h:1").user_id == 7


def test_whoever_has_a_clusters_secret_signs_for_the_user_it_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, data: Path
) -> None:
    """As smoke and load do; a token that was given, or a data directory, goes before."""
    monkeypatch.setenv("QIM_AUTH_SECRET", "c" * 64)
    target = found("--server", "h:1", "--user", "9", "--tenant", "t", "--device", "d")
    claims = verify_token(target.token, b"c" * 64, now_ms=0)
    assert (claims.user_id, claims.tenant_id, claims.device_id) == (9, "t", b"d")
    assert target.store == tmp_path / "home" / "qim" / "clients" / "h%3A1" / "t-9-d.db"
    with pytest.raises(UsageError, match="--user ID is needed"):
        found("--server", "h:1")
    assert found("--server", "h:1", "--token", token()).token == token()
    beside = found("--server", "h:1", "--data", str(data), "--user", "9")
    assert verify_token(beside.token, SECRET, now_ms=0).user_id == 9
    monkeypatch.setenv("QIM_TOKEN", token())
    assert found("--server", "h:1").user_id == 7
    monkeypatch.delenv("QIM_TOKEN")
    monkeypatch.delenv("QIM_AUTH_SECRET")
    with pytest.raises(UsageError, match="QIM_AUTH_SECRET"):
        found("--server", "h:1", "--user", "9")


def test_a_token_of_another_kind_needs_a_user() -> None:
    with pytest.raises(UsageError, match="--user"):
        found("--server", "h:1", "--token", "opaque")
    assert found("--server", "h:1", "--token", "opaque", "--user", "3").user_id == 3


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (("--user", "8"), "user 7"),
        (("--tenant", "t"), "tenant default"),
        (("--device", "laptop"), "another device"),
    ],
)
def test_arguments_that_contradict_the_token(extra: tuple[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        found("--server", "h:1", "--token", token(device=b"phone"), *extra)


def test_a_server_without_a_token_is_no_usage() -> None:
    with pytest.raises(UsageError, match="--token"):
        found("--server", "h:1", "--user", "1")


def test_nobody_is_told_apart_from_nowhere(data: Path) -> None:
    with pytest.raises(UsageError, match="--user"):
        found("--data", str(data))
    (data / "secret").unlink()
    with pytest.raises(UsageError, match="no secret"):
        found("--data", str(data), "--user", "1")


def test_a_dead_server_is_not_running(data: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    told = {"tcp": TCP, "metrics": "h:1", "pid": ended.pid}
    (data / "server.json").write_text(json.dumps(told))
    with pytest.raises(NotRunning):
        found("--data", str(data), "--user", "1")
    assert main(["pull", "--data", str(data), "--user", "1"]) == 3


def test_stores_never_meet(tmp_path: Path) -> None:
    parts = [
        ("a-1", 2, b"d"),
        ("a", 1, b"2-d"),
        ("a", 12, b"d"),
        ("a", 1, b"\0/.."),
        ("../a", 1, b""),
    ]
    paths = {store_path(tmp_path, "h:1", *part) for part in parts}
    assert len(paths) == len(parts)
    assert {path.parent for path in paths} == {tmp_path / "clients"}
    long = [store_path(tmp_path, "h:1", "t" * 64, 1, bytes((byte,)) * 64) for byte in (0, 1)]
    assert long[0] != long[1]
    assert len(long[0].name) < 255


def test_no_token_in_what_is_printed_of_a_target() -> None:
    target = found("--server", "h:1", "--token", token())
    assert target.token not in repr(target)


def test_two_commands_wait_for_one_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run() -> None:
        arguments = ("--server", "127.0.0.1:1", "--token", token(), "--timeout", "0.2")
        target = found(*arguments)
        async with connected(target):
            with pytest.raises(LocalStoreBusy, match=f"process {os.getpid()}"):
                async with connected(target):
                    pytest.fail("both have it")
            again = asyncio.create_task(_enter(target))
            await asyncio.sleep(0)
        await again

    async def _enter(target: Target) -> None:
        async with connected(target) as client:
            assert isinstance(client, Client)

    asyncio.run(run())
    assert "waiting" in capsys.readouterr().err


def test_token_prints_one_that_verifies(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "--data", str(data), "--user", "7", "--device", "d1"]) == 0
    printed = capsys.readouterr().out.strip()
    claims = verify_token(printed, SECRET, now_ms=0)
    assert (claims.user_id, claims.device_id) == (7, b"d1")
    assert main(["token", "--data", str(data), "--user", "7", "--ttl-hours", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert verify_token(told["token"], SECRET, now_ms=0).expires_at == told["expires_at"]
    assert main(["token", "--data", str(data / "none"), "--user", "7"]) == 2


def test_an_orders_key_goes_by_no_proxy(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (data / "operator.key").write_text("7f" * 32)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_server(("127.0.0.1", 0)) as proxy,
    ):
        told = json.loads((data / "server.json").read_text())
        told["metrics"] = f"127.0.0.1:{server.getsockname()[1]}"
        (data / "server.json").write_text(json.dumps(told))
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        monkeypatch.delenv("no_proxy", raising=False)

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                asked = b""
                # Head and body come apart; a connection that is closed with one of them unread is reset.
                while not asked.endswith(b"{}") and (more := connection.recv(65_536)):
                    asked += more
                assert b"Bearer " + b"7f" * 32 in asked
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n{}")

        answering = threading.Thread(target=answer)
        answering.start()
        assert order(data, "/audit", b"{}", 30.0) == {}
        answering.join()
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):
            proxy.accept()
