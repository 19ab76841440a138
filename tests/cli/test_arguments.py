"""What the command line takes, and what it says about what it doesn't take."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from qim.cli import arguments, exit_codes
from qim.cli.command import run_command
from qim.cli.main import main, parser

ROOT = Path(__file__).parents[2]
COMMANDS = (
    "up",
    "serve",
    "config",
    "certs",
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
    "load",
    "prewarm",
    "audit",
    "doctor",
    "deadletter",
    "repair",
    "shard",
    "archive",
    "topics",
    "sim",
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
        assert re.search(rf"^    {command}\s", told, re.MULTILINE), command
    for meaning in exit_codes.MEANINGS.values():
        assert meaning in told


@pytest.mark.parametrize(
    ("library", "words"),
    [
        (
            "cassandra",
            ["archive", "schema", "check", "--hosts", "h", "--keyspace", "k", "--dc", "d"],
        ),
        ("aiokafka", ["topics", "check"]),
        ("aetcd", ["config", "share"]),
        ("aiokafka", ["repair", "dispatch", "--cluster"]),
    ],
)
def test_without_the_clients_of_the_servers_a_command_says_what_to_install(
    capsys: pytest.CaptureFixture[str],
    library: str,
    words: list[str],
) -> None:
    def gone(_: argparse.Namespace) -> int:
        raise ModuleNotFoundError(f"No module named {library!r}", name=f"{library}.something")

    args = parser().parse_args(words)
    args.run = gone
    assert run_command(args) == 2
    assert "pip install 'qim[cluster]'" in capsys.readouterr().err


def test_a_module_of_ours_that_is_missing_is_no_advice() -> None:
    def gone(_: argparse.Namespace) -> int:
        raise ModuleNotFoundError("No module named 'qim.nowhere'", name="qim.nowhere")

    args = parser().parse_args(["topics", "check"])
    args.run = gone
    with pytest.raises(ModuleNotFoundError):
        run_command(args)


def options(found: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.Action]]:
    """Every argument of every command."""
    for action in found._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in dict.fromkeys(action.choices.values()):
                yield from options(one)
        else:
            yield found.prog, action


def test_every_argument_of_every_command_says_what_it_is() -> None:
    silent = [
        (command, action.option_strings or action.dest)
        for command, action in options(parser(with_sim=True))
        if not action.help
    ]
    assert silent == []


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
