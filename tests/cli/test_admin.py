"""Commands that change a cluster: refused before any server is spoken to where no admin is shown, and told which way is which."""

import os

import pytest

from qim.cli.main import main
from tests.adapters.tls.chain import chain
from tests.integration.testbed.server_process import free_port

CHANGES = [
    ["shard", "bump", "--cluster", "--apply"],
    ["repair", "dispatch", "--cluster", "--apply"],
    ["repair", "outbox", "--cluster", "--apply", "--without-auditor"],
    ["deadletter", "redrive", "--cluster", "--apply"],
    ["deadletter", "redrive", "--auditor", "127.0.0.1:1", "--apply"],
    ["audit", "--cluster"],
    ["audit", "--auditor", "127.0.0.1:1"],
    ["config", "share", "--apply"],
]


@pytest.fixture(autouse=True)
def nobodys_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("QIM_")]:
        monkeypatch.delenv(name)


def be(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in chain().environment[role].items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("words", CHANGES, ids=" ".join)
def test_nobody_changes_a_cluster(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    said = capsys.readouterr()
    assert "[admin_certificate_missing]" in said.err
    assert said.out == ""


def alone(words: list[str]) -> bool:
    return "--without-auditor" in words or words[0] == "config"


@pytest.mark.parametrize("words", [one for one in CHANGES if alone(one)], ids=" ".join)
def test_a_process_is_no_admin_where_no_auditor_is_asked(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    be("writer", monkeypatch)
    assert main(words) == 2
    assert "[admin_wrong_role]" in capsys.readouterr().err


@pytest.mark.parametrize("words", [one for one in CHANGES if not alone(one)], ids=" ".join)
def test_an_auditor_that_is_not_there_is_status_3(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    be("admin", monkeypatch)
    monkeypatch.setenv("QIM_AUDITOR_LISTEN", f"127.0.0.1:{free_port()}")
    assert main(words) == 3
    said = capsys.readouterr()
    assert "asking the auditor at 127.0.0.1:" in said.err
    assert said.out == ""


@pytest.mark.parametrize(
    "words",
    [
        ["repair", "dispatch", "--cluster", "--without-auditor"],
        ["repair", "dispatch", "--apply", "--without-auditor"],
        ["repair", "dispatch", "--apply", "--without-auditor", "--auditor", "127.0.0.1:1"],
        ["repair", "dispatch", "--apply", "--data", "d", "--auditor", "127.0.0.1:1"],
        ["audit", "--data", "d", "--auditor", "127.0.0.1:1"],
    ],
    ids=" ".join,
)
def test_ways_that_do_not_go_together(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "--" in capsys.readouterr().err
