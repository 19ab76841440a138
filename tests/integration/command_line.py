"""Commands of `qim` as a shell gives them, for tests that need many: in this process, or in one of their own."""

import contextlib
import io
import json
import subprocess
import sys
import time
from typing import Any

from qim.cli.main import main

PATIENCE_SECONDS = 60.0
"""A guard against waiting for ever, never a judgement of speed."""
PROCESS_SECONDS_MAX = 240.0


def told(*arguments: object, expect: int = 0) -> str:
    """The standard output of a command, run in this process: a test needs many, and an interpreter costs more."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = main([str(argument) for argument in arguments])
    assert status == expect, (arguments, out.getvalue())
    return out.getvalue()


def qim(*arguments: object, expect: int = 0) -> Any:
    """A command whose output is one JSON object."""
    out = told(*arguments, expect=expect)
    assert out.count("\n") == 1, out
    return json.loads(out)


def lines(*arguments: object) -> list[dict[str, Any]]:
    """A command whose output is one JSON object a line."""
    return [json.loads(line) for line in told(*arguments).splitlines()]


def listed(newest: str, *arguments: object) -> list[dict[str, Any]]:
    """`qim list` once the first conversation has the message ``newest``: fanout follows the ack by itself."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        found = lines("list", "--json", *arguments)
        if found and int(found[0]["newest_seq"]) >= int(newest):
            return found
    raise AssertionError(f"message {newest} does not come")


def first_pulled(*arguments: object) -> list[dict[str, Any]]:
    """What `qim pull` gives once there is anything."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := lines("pull", *arguments, "--json", "--wait", 10)):
        assert time.monotonic() < deadline, "nothing comes"
    return found


def pulled(data: str, user: int, *more: object, last: str) -> list[str]:
    """The texts of one conversation, in its order, once ``last`` has come: fanout follows the ack by itself."""
    found: list[dict[str, Any]] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not any(message["text"] == last for message in found):
        assert time.monotonic() < deadline, f"{last!r} does not come: {found}"
        found += lines("pull", "--data", data, "--user", user, "--json", "--wait", 10, *more)
    # What is pushed may overtake what is pulled: the command tells both in order of arrival.
    found.sort(key=lambda message: int(message["conversation_seq"]))
    return [message["text"] for message in found]


def audited(data: object) -> dict[str, Any]:
    """The report of `qim audit` beside a running server, once every consumer is through."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        report: dict[str, Any] = json.loads(ended("audit", "--data", data, "--json").stdout)
        if report["verdict"] != "INCOMPLETE":
            return report
        assert time.monotonic() < deadline, report


def ended(*arguments: object, text: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "qim", *map(str, arguments)],
        input=text,
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
        check=False,
    )
