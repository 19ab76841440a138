"""Commands that go on until they are told to end: `qim tail`, and `qim chat` over pipes and on a terminal."""

import base64
import json
import os
import pty
import select
import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.integration.command_line import PATIENCE_SECONDS, ended, lines, pulled, qim
from tests.integration.up_process import run_qim

pytestmark = pytest.mark.xdist_group("commands")


def test_tail_follows_until_it_is_told_to_end(data: str, user: int) -> None:
    with Following(data, user, "--device", "tail") as tail:
        qim("send", "--data", data, "--user", user + 1, "--to", user, "one")
        qim("send", "--data", data, "--user", user + 1, "--to", user, "two")
        texts = [json.loads(tail.stdout.readline())["text"] for _ in range(2)]
        assert texts == ["one", "two"]
        tail.send_signal(signal.SIGINT)
        assert tail.wait(timeout=PATIENCE_SECONDS) == 0


def test_two_commands_of_one_device_take_turns(data: str, user: int) -> None:
    with Following(data, user, "--count", "1") as tail:
        busy = ended("pull", "--data", data, "--user", user, "--timeout", "0.3")
        assert busy.returncode == 1
        assert f"process {tail.pid}" in busy.stderr
        qim("send", "--data", data, "--user", user + 1, "--to", user, "end")
        assert tail.wait(timeout=PATIENCE_SECONDS) == 0
    run_qim("pull", "--data", data, "--user", str(user))


class Following:
    """`qim tail --json`, connected."""

    def __init__(self, data: str, user: int, *more: str) -> None:
        self._command = [sys.executable, "-m", "qim", "tail", "--data", data, "--user", str(user)]
        self._command += more

    def __enter__(self) -> Any:
        self._process = subprocess.Popen(
            [*self._command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr is not None
        assert "following" in self._process.stderr.readline()
        return self._process

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()


def test_chat_over_pipes(data: str, user: int) -> None:
    peer = user + 1
    qim("send", "--data", data, "--user", peer, "--to", user, "are you there?")
    done = ended(
        "chat", "--data", data, "--user", user, "--to", peer,
        text="yes\n/nonsense\n/to x\n//slash\n/history 5\n/help\n",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "are you there?" in done.stdout
    assert "/nonsense: no such command" in done.stdout
    assert "a user is a number" in done.stdout
    assert pulled(data, peer, last="/slash") == ["are you there?", "yes", "/slash"]
    again = ended("chat", "--data", data, "--user", user, "--to", peer, text="/recall\n/list\n")
    assert again.returncode == 0, again.stderr
    assert "which one?" in again.stdout or "recalled" in again.stdout
    assert "1 conversation" in again.stdout


@pytest.mark.parametrize("encoding", ["utf-8:strict", "utf-8:surrogateescape"])
def test_what_is_no_text_is_sent_bit_for_bit(data: str, user: int, encoding: str) -> None:
    """It was called kept and never sent, or ended the chat, as the locale would have it."""
    peer = user + 1
    command = ["chat", "--data", data, "--user", str(user), "--to", str(peer)]
    done = subprocess.run(
        [sys.executable, "-m", "qim", *command],
        input=b"before\n\xff\xfe odd\nafter\n",
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"not acked" not in done.stdout
    pulled(data, peer, "--device", "first", last="after")
    came = lines("pull", "--data", data, "--user", peer, "--json")
    bodies = [message.get("body_base64") for message in came]
    assert bodies == [None, base64.b64encode(b"\xff\xfe odd").decode(), None]


class Terminal:
    """What a program writes to its terminal, read up to a text; what stands behind it waits for the next one."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._unread = ""

    def until(self, text: str) -> None:
        while text not in self._unread:
            piece = self._piece()
            assert piece, f"the program ended before {text!r}: {self._unread[-2000:]!r}"
            self._unread += piece
        self._unread = self._unread.partition(text)[2]

    def to_the_end(self) -> None:
        while self._piece():
            pass

    def _piece(self) -> str:
        ready, _, _ = select.select([self._descriptor], [], [], PATIENCE_SECONDS)
        assert ready, f"nothing came after {self._unread[-2000:]!r}"
        try:
            return os.read(self._descriptor, 65_536).decode("utf-8", "replace")
        except OSError:
            return ""  # the program closed its side


def test_chat_on_a_terminal(data: str, user: int) -> None:
    peer = user + 1
    ours, theirs = pty.openpty()
    command = ["chat", "--data", data, "--user", str(user), "--to", str(peer)]
    chat = subprocess.Popen(
        [sys.executable, "-m", "qim", *command],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
    )
    os.close(theirs)
    terminal = Terminal(ours)
    try:
        terminal.until("›")
        os.write(ours, b"helo\x1b[Dl\r")
        terminal.until("you")
        terminal.until("hello")
        terminal.until("✓")
        assert pulled(data, peer, last="hello") == ["hello"]
        os.write(ours, b"half a li")
        qim("send", "--data", data, "--user", peer, "--to", user, "in between")
        terminal.until("in between")
        terminal.until("half a li")
        os.write(ours, b"ne\r")
        terminal.until("half a line")
        terminal.until("✓")
        os.write(ours, b"\x04")
        terminal.to_the_end()
        assert chat.wait(timeout=PATIENCE_SECONDS) == 0
    finally:
        chat.kill()
        chat.wait()
        os.close(ours)
    assert pulled(data, peer, last="half a line") == ["in between", "half a line"]
