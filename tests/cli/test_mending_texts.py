"""What the operator's tools say: only what --apply can do is promised of it."""

import json
from typing import Any

import pytest

from qim.cli import mending
from qim.cli.exit_codes import Exit
from qim.cli.main import main
from qim.cli.mending import _text


def letter(outcome: str) -> dict[str, Any]:
    return {
        "partition": 0, "offset": "7", "message_id": "", "outcome": outcome, "shards": [],
        "recipients": 0, "detail": "",
    }  # fmt: skip


def outbox(**changed: Any) -> dict[str, Any]:
    told = {
        "partition": 0, "log_start": "0", "log_end": "9", "lost_dispatched": 0,
        "lost_undispatched": 0, "padding": 0, "trusted": True, "unreadable": [], "unarchived": 0,
        "applied_repair": False, "differs_from": "3", "republished": 0, "redispatched": 0,
    }  # fmt: skip
    return told | changed


@pytest.mark.parametrize(
    ("left", "wanted"),
    [
        ([letter("undecodable")] * 3, ["3 wait for something else: --apply can't do them"]),
        ([letter("would_dispatch")] * 2, ["a dry run: 2 to do; --apply does it"]),
        (
            [letter("would_dispatch"), letter("newer_format")],
            [
                "a dry run: 1 to do; --apply does it",
                "1 wait for something else: --apply can't do them",
            ],
        ),
        ([outbox(padding=2)], ["a dry run: 1 to do; --apply does it"]),
        ([outbox(unreadable=["aa"])], ["1 wait for something else: --apply can't do them"]),
        ([], []),
    ],
)
def test_a_dry_run_promises_what_apply_can_do(
    left: list[dict[str, Any]], wanted: list[str]
) -> None:
    report = {"what": "redrive", "found": left}
    said = list(_text(report, False, left))
    assert [line for line in said if "--apply" in line] == wanted


def test_what_was_listed_is_no_dry_run() -> None:
    report = {"what": "deadletters", "found": [letter("undecodable")]}
    assert list(_text(report, False, report["found"])) == ["outbox 0 offset 7: undecodable"]


def test_after_apply_only_what_is_left_is_told() -> None:
    left = [letter("version_missing")]
    said = list(_text({"what": "redrive", "found": left}, True, left))
    assert said[-1] == "1 wait for something else: --apply can't do them"


def test_what_no_archive_has_is_told_of_and_left_to_apply() -> None:
    one = outbox(trusted=False, unarchived=2)
    told, promise = _text({"what": "outbox", "found": [one]}, False, [one])
    assert told.endswith("; 2 stand where the archiver had read others, and no archive has them")
    assert promise == "a dry run: 1 to do; --apply does it"


@pytest.mark.parametrize(
    ("found", "older"),
    [
        ([outbox()], True),
        ([outbox() | {"result": "whole"}], False),
        ([letter("dispatched")], False),
    ],
)
def test_a_server_that_tells_no_results_is_said_to_be_older(
    found: list[dict[str, Any]],
    older: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nobody would know why the status is 1 where every line says that nothing is lost."""
    report = {"what": "outbox", "apply": True, "found": found}
    monkeypatch.setattr(mending, "_on_data", lambda *_: report)
    status = main(["repair", "outbox", "--apply", "--json", "--data", "nowhere"])
    told = capsys.readouterr()
    assert json.loads(told.out) == report
    assert status == (Exit.FAILED if older else Exit.DONE)
    assert (
        told.err.startswith("the auditor or server that carried this out is of an older") is older
    )
