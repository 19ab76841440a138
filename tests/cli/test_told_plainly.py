"""Small words of the command line: who speaks, which version it is, and what didn't happen."""

import errno
import socket
from pathlib import Path

import pytest

from qim.cli.main import main
from qim.client.load import run


def test_a_command_names_itself_and_not_its_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--name` of certs is a list of names: it had stood where the command's own should."""
    (tmp_path / "file").touch()
    assert main(["certs", "dev", "--out", str(tmp_path / "file" / "below")]) == 2
    assert capsys.readouterr().err.startswith("qim certs: ")
    assert main(["archive", "schema", "check", "--hosts", "x", "--rf", "1"]) == 2
    assert capsys.readouterr().err.startswith("qim archive schema: ")


def test_which_version_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("qim 0.")


def test_a_rate_is_no_time(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["load", "--rate", "0"])
    assert "a number a second above 0, not '0'" in capsys.readouterr().err


def test_load_towards_a_closed_port_says_that_nothing_was_sent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QIM_AUTH_SECRET", "s" * 64)
    monkeypatch.setattr(run, "CONNECT_SECONDS_MAX", 0.05)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        assert main(["load", "--server", address, "--users", "2", "--seconds", "1"]) == 3
    said = capsys.readouterr().err
    assert f"qim load: 0 of 2 users came online at {address} (dial ConnectionRefusedError " in said
    assert "; nothing was sent" in said
    assert "may have been done" not in said


@pytest.mark.parametrize(
    "name",
    [
        "QIM_WEBHOOK_BEFORE_SEND_URL",
        "QIM_WEBHOOK_AFTER_SEND_URL",
        "QIM_TLS_CERT",
        "QIM_TLS_KEY",
    ],
)
def test_up_refuses_what_it_would_not_heed(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """BR-079: whoever names a hook believes that messages are judged, whoever names a certificate that nobody reads along."""
    monkeypatch.setenv(name, "http://127.0.0.1:9/")
    assert main(["up", "--data", str(tmp_path / "data")]) == 2
    told = capsys.readouterr().err
    assert f"{name} is set" in told
    assert "qim serve" in told
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "words", [["token", "--user", "1"], ["audit"], ["shard", "bump"], ["doctor"]], ids=" ".join
)
def test_a_path_that_can_not_be_one_is_told_in_a_line(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = "/" + "d" * 300
    assert main([*words, "--data", path]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith(f"qim {' '.join(words[:1])}") and "File name too long" in said


def test_a_path_of_somebody_else_is_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def closed(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", closed)
    assert main(["shard", "bump", "--data", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"qim shard: {tmp_path}") and said.endswith(": Permission denied\n")


@pytest.mark.parametrize("number", ["-1", "x", "", str(2**64), "9" * 5_000])
def test_a_shard_no_number_can_be_is_told_before_anybody_is_asked(
    number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["shard", "bump", "--shard"], ["repair", "outbox", "--partition"]):
        with pytest.raises(SystemExit) as ended:
            main([*words, number])
        assert ended.value.code == 2
    assert "number" in capsys.readouterr().err.splitlines()[-1]
