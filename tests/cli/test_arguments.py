"""What the command line takes, and what it says about what it doesn't take."""

import argparse
from pathlib import Path

import pytest

from qim.cli import arguments, exit_codes
from qim.cli.main import main, parser

ROOT = Path(__file__).parents[2]
COMMANDS = (
    "up",
    "token",
    "send",
    "pull",
    "tail",
    "group",
    "list",
    "read",
    "readers",
    "history",
    "recall",
    "delete",
    "state",
    "chat",
    "smoke",
    "audit",
    "archive",
)


@pytest.mark.parametrize("text", ["1", str(2**64 - 1)])
def test_users(text: str) -> None:
    assert arguments.user_id(text) == int(text)


@pytest.mark.parametrize("text", ["", "0", "-1", "x", "1.0", "²", str(2**64)])
def test_no_users(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        arguments.user_id(text)


def test_a_tenant_s_days() -> None:
    assert arguments.tenant_days("big=1") == ("big", 1)
    assert arguments.tenant_days("a=b=3650") == ("a=b", 3650)


@pytest.mark.parametrize("text", ["", "big", "big=", "=5", "big=0", "big=3651", "big=x", "big=²"])
def test_no_tenant_s_days(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        arguments.tenant_days(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("im.example.org:7000", ("im.example.org", 7000)),
        ("[::1]:7000", ("::1", 7000)),
    ],
)
def test_addresses(text: str, found: tuple[str, int]) -> None:
    assert arguments.address(text) == found
    assert arguments.server(text) == text


@pytest.mark.parametrize("text", ["", "7000", ":7000", "host:", "host:65536", "::1:7000", "h:7 0"])
def test_no_addresses(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        arguments.address(text)


@pytest.mark.parametrize("text", ["", "00" * 16, "ab" * 15, "ab" * 17, "zz" * 16])
def test_no_ids(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        arguments.id16(text)


def test_members_come_with_commas_and_blanks() -> None:
    args = parser().parse_args(["group", "create", "--user", "1", "--members", "2,3", "4"])
    assert args.members == [(2, 3), (4,)]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_teaches(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert "examples:" in told
    assert f"qim {command}" in told


def test_help_names_every_command_and_status(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    told = capsys.readouterr().out
    for command in COMMANDS:
        assert f"    {command} " in told
    for meaning in exit_codes.MEANINGS.values():
        assert meaning in told


def test_the_operations_page_has_the_same_statuses() -> None:
    assert exit_codes.exit_table() in (ROOT / "docs" / "operations.md").read_text("utf-8")


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["nonsense"],
        ["send", "--user", "1", "hello"],
        ["send", "--user", "1", "--to", "2", "--group", "ab" * 16, "hello"],
        ["send", "--user", "0", "--to", "2", "hello"],
        ["history", "--user", "1"],
        ["history", "--user", "1", "--with", "2", "--before", "1", "--after", "2"],
        ["read", "--user", "1"],
        ["read", "--user", "1", "--with", "2", "--up-to", "0"],
        ["recall", "--user", "1", "--with", "2"],
        ["recall", "--user", "1", "--with", "2", "0"],
        ["delete", "--user", "1", "3"],
        ["readers", "--user", "1", "--with", "2", "x"],
        ["state", "--user", "1"],
        ["state", "pin", "--user", "1"],
        ["state", "mute", "--user", "1", "--with", "2", "--for", "0"],
        ["state", "draft", "--user", "1", "--with", "2"],
        ["group", "--user", "1"],
        ["pull", "--user", "1", "--timeout", "0"],
        ["up", "--tcp", "7000"],
        ["smoke", "--only", "no-such-check"],
    ],
)
def test_wrong_usage_is_status_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    assert "usage: qim" in capsys.readouterr().err
