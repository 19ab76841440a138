"""Whose a command speaks for, as the command line says it: an empty value is no default, and what is none is refused."""

import argparse

import pytest

from qim.cli import arguments, exit_codes
from qim.cli.main import main, parser

WHOSE = [
    ["send", "--to", "8", "hi"],
    ["pull"],
    ["tail"],
    ["list"],
    ["history", "--to", "8"],
    ["group", "create"],
    ["chat"],
]
SIGNING = [["token"], ["load", "--seconds", "1"], ["smoke"]]


def told_wrong(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == exit_codes.Exit.USAGE
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("value", ["", "x" * 65, "\udcff"], ids=["empty", "long", "no UTF-8"])
@pytest.mark.parametrize("words", [*WHOSE, *SIGNING], ids=lambda words: words[0])
def test_a_tenant_that_is_none_is_refused_and_is_not_the_default_one(
    words: list[str], value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = told_wrong([*words, "--tenant", value], capsys)
    assert "argument --tenant: a tenant has 1 to 64 bytes of UTF-8, not " in said


@pytest.mark.parametrize("value", ["", "x" * 65, "\udcff"], ids=["empty", "long", "no UTF-8"])
@pytest.mark.parametrize("words", [*WHOSE, ["token"]], ids=lambda words: words[0])
def test_a_device_that_is_none_is_refused_and_is_not_the_default_one(
    words: list[str], value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = told_wrong([*words, "--device", value], capsys)
    assert "argument --device: a device has 1 to " in said


@pytest.mark.parametrize("words", [*WHOSE, ["smoke"]], ids=lambda words: words[0])
def test_an_empty_token_is_refused_and_nobody_else_s_is_taken(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QIM_TOKEN", "somebody.else.s")
    for value in ("", "s\u00e9cret", "x" * 2_049):
        said = told_wrong([*words, "--token", value], capsys)
        assert said.endswith("--token: an access token has 1 to 2048 characters of ASCII")


def test_a_token_of_the_environment_that_is_none_is_named_and_not_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QIM_TOKEN", "s\u00e9cret")
    assert main(["pull", "--server", "127.0.0.1:1", "--user", "7"]) == exit_codes.Exit.USAGE
    said = capsys.readouterr().err
    assert said == "qim pull: $QIM_TOKEN: an access token has 1 to 2048 characters of ASCII\n"


def test_what_is_no_utf_8_is_no_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert "expected UTF-8" in told_wrong(["group", "create", "--name", "\udcff"], capsys)
    words = ["send", "--to", "8", "hi", "--custom-type", "\udcff"]
    assert "expected UTF-8" in told_wrong(words, capsys)


def test_every_command_that_takes_a_tenant_or_a_device_judges_it() -> None:
    """Also one that is written tomorrow."""
    judges = {
        "--tenant": arguments.tenant_name,
        "--device": arguments.device_name,
        "--token": arguments.access_token,
    }
    seen: list[str] = []

    def look(asking: argparse.ArgumentParser) -> None:
        for action in asking._actions:
            for option in action.option_strings:
                if option in judges:
                    assert action.type is judges[option], f"{asking.prog} {option}"
                    seen.append(option)
            for child in action.choices.values() if isinstance(action.choices, dict) else ():
                look(child)

    look(parser())
    assert min(seen.count(option) for option in judges) > 5
