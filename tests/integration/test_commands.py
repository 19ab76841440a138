"""Every command as README writes it, against a real `qim up`."""

import contextlib
import io
import itertools
import json
import os
import pty
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qim.cli.main import main
from qim.core.contract.ids import single_conversation_id
from tests.integration.served import Served
from tests.integration.up_process import UpProcess, run_qim

pytestmark = pytest.mark.xdist_group("commands")

SILENCE_SECONDS_MAX = 60
LOOKS_MAX = 100

_users = itertools.count(1_000_001, 10)


@pytest.fixture
def user() -> int:
    """Ten users from here on that no other test uses."""
    return next(_users)


@pytest.fixture
def server(served: Served) -> UpProcess:
    return served


@pytest.fixture
def data(server: UpProcess) -> str:
    return str(server.data)


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
    for _ in range(LOOKS_MAX):
        found = lines("list", "--json", *arguments)
        if found and int(found[0]["newest_seq"]) >= int(newest):
            return found
    raise AssertionError(f"message {newest} does not come")


def pulled(data: str, user: int, *more: object) -> list[str]:
    found = lines("pull", "--data", data, "--user", user, "--json", "--wait", 10, *more)
    return [message["text"] for message in found]


def ended(*arguments: object, text: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "qim", *map(str, arguments)],
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_server_says_where_it_is(server: UpProcess) -> None:
    assert set(server.ready) >= {"ready", "tcp", "metrics", "pid"}
    written = json.loads((server.data / "server.json").read_text())
    assert written["tcp"] == server.ready["tcp"]


def test_a_second_server_is_refused_with_the_holder(server: UpProcess) -> None:
    refused = ended("up", "--data", server.data, "--tcp", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
    assert refused.returncode == 2
    assert str(server.ready["pid"]) in refused.stderr
    assert "Traceback" not in refused.stderr


def test_send_pull_history(data: str, user: int) -> None:
    peer = user + 1
    ack = qim("send", "--data", data, "--user", user, "--to", peer, "hello, Ünïcode ☃")
    assert ack["status"] == "acked"
    assert ack["conversation_id"] == single_conversation_id("default", user, peer).hex()
    assert ack["conversation_seq"] == "1"
    found = lines("pull", "--data", data, "--user", peer, "--json", "--wait", 10)
    assert [message["text"] for message in found] == ["hello, Ünïcode ☃"]
    assert found[0]["message_id"] == ack["message_id"]
    assert found[0]["sender_id"] == found[0]["peer_user_id"] == str(user)
    assert lines("pull", "--data", data, "--user", peer, "--json") == [], "the cursor is kept"
    again = pulled(data, peer, "--device", "other")
    assert again == ["hello, Ünïcode ☃"], "a new device reads back"
    history = lines("history", "--data", data, "--user", peer, "--with", user, "--json")
    assert [message["message_id"] for message in history] == [ack["message_id"]]
    people = run_qim("history", "--data", data, "--user", str(user), "--with", str(peer))
    assert "you: hello, Ünïcode ☃" in people


def test_a_repeated_key_repeats_the_ack(data: str, user: int) -> None:
    key = "ab" * 16
    send = ("send", "--data", data, "--user", user, "--to", user + 1, "--client-message-id", key)
    first = qim(*send, "once")
    assert qim(*send, "once") == first
    assert qim(*send, "once", "--device", "other") == first, "another device, the same commit"
    told("pull", "--data", data, "--user", user, "--device", "third")
    conflict = qim(*send, "else", "--device", "third", expect=1)
    assert conflict["code"] == "IDEMPOTENCY_CONFLICT"
    assert pulled(data, user + 1) == ["once"]


def test_standard_input_and_any_bytes(data: str, user: int) -> None:
    done = ended("send", "--data", data, "--user", user, "--to", user + 1, "-", text="a\nb\0c\n")
    assert done.returncode == 0
    assert pulled(data, user + 1) == ["a\nb\0c\n"]
    too_long = ended("send", "--data", data, "--user", user, "--to", 2, "-", text="x" * 131_073)
    assert too_long.returncode == 2
    assert "131073" in too_long.stderr


def test_groups(data: str, user: int) -> None:
    me, one, two, three = range(user, user + 4)
    base = ("--data", data)
    made = qim("group", "create", *base, "--user", me, "--members", f"{one},{two}", "--name", "T")
    group = made["conversation_id"]
    where = (*base, "--group", group)
    qim("send", *where, "--user", one, "first")
    added = qim("group", "add", *where, "--user", me, "--members", three)
    assert int(added["version"]) == int(made["version"]) + 1
    assert qim("group", "add", *where, "--user", me, "--members", three)["noop"] is True
    qim("group", "remove", *where, "--user", me, "--members", one)
    qim("group", "leave", *where, "--user", two)
    qim("send", *where, "--user", me, "last")
    shown = qim("group", "show", *where, "--user", me)
    assert shown["members"] == [str(me), str(three)]
    assert (shown["name"], shown["creator"]) == ("T", str(me))
    assert [t for t in pulled(data, one) if t] == ["first"]
    assert [t for t in pulled(data, three) if t] == ["last"]
    refused = ended("send", *where, "--user", one, "no more")
    assert refused.returncode == 1
    assert json.loads(refused.stdout)["code"] == "NOT_MEMBER"
    assert ended("group", "show", *where, "--user", one + 5).returncode == 1


def test_history_in_pages(data: str, user: int) -> None:
    peer = user + 1
    for number in range(7):
        qim("send", "--data", data, "--user", user, "--to", peer, number)
    base = ("history", "--data", data, "--user", peer, "--with", user, "--json")
    newest = lines(*base, "--limit", 3)
    assert [message["text"] for message in newest] == ["4", "5", "6"]
    older = lines(*base, "--before", newest[0]["conversation_seq"])
    assert [message["text"] for message in older] == ["0", "1", "2", "3"]


def test_a_token_is_enough_anywhere(
    server: UpProcess, data: str, user: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    token = run_qim("token", "--data", data, "--user", str(user)).strip()
    ack = qim("send", "--server", server.tcp, "--token", token, "--to", user + 1, "by token")
    assert ack["status"] == "acked"
    monkeypatch.setenv("QIM_TOKEN", token)
    own = lines("pull", "--server", server.tcp, "--json", "--wait", 10)
    assert [message["text"] for message in own] == ["by token"]
    wrong = ended("pull", "--server", server.tcp, "--token", token[:-4] + "AAAA")
    assert wrong.returncode == 1
    assert "UNAUTHENTICATED" in wrong.stderr
    assert token not in wrong.stderr


def test_nobody_there(data: str, user: int) -> None:
    send = ("send", "--data", data, "--user", user, "--to", user + 1)
    kept = ended(*send, "--server", "127.0.0.1:1", "--timeout", "0.5", "patience")
    assert kept.returncode == 3
    ack = json.loads(kept.stdout)
    assert ack["status"] == "pending"
    qim(*send, "second")
    assert pulled(data, user + 1) == ["patience", "second"], "it went out with the next command"
    again = qim(*send, "patience", "--client-message-id", ack["client_message_id"])
    assert again["status"] == "acked"
    assert ended("pull", "--data", Path(data) / "none", "--user", user).returncode == 3


def test_tail_follows_until_it_is_told_to_end(data: str, user: int) -> None:
    with Following(data, user, "--device", "tail") as tail:
        qim("send", "--data", data, "--user", user + 1, "--to", user, "one")
        qim("send", "--data", data, "--user", user + 1, "--to", user, "two")
        texts = [json.loads(tail.stdout.readline())["text"] for _ in range(2)]
        assert texts == ["one", "two"]
        tail.send_signal(signal.SIGINT)
        assert tail.wait(timeout=30) == 0


def test_two_commands_of_one_device_take_turns(data: str, user: int) -> None:
    with Following(data, user, "--count", "1") as tail:
        busy = ended("pull", "--data", data, "--user", user, "--timeout", "0.3")
        assert busy.returncode == 1
        assert f"process {tail.pid}" in busy.stderr
        qim("send", "--data", data, "--user", user + 1, "--to", user, "end")
        assert tail.wait(timeout=30) == 0
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


def test_list_and_read(data: str, user: int) -> None:
    peer = user + 1
    seqs = [
        qim("send", "--data", data, "--user", peer, "--to", user, f"{n}")["conversation_seq"]
        for n in range(4)
    ]
    me = ("--data", data, "--user", user)
    (row,) = listed(seqs[-1], *me)
    assert (row["unread"], row["unread_exact"], row["peer_user_id"]) == (4, True, str(peer))
    assert (row["preview"]["text"], row["newest_seq"]) == ("3", seqs[-1])
    done = qim("read", *me, "--with", peer, "--up-to", seqs[1])
    assert (done["status"], done["read_seq"], done["unread"]) == ("done", seqs[1], 2)
    assert qim("read", *me, "--with", peer, "--up-to", seqs[0])["read_seq"] == seqs[1]
    (row,) = lines("list", *me, "--json", "--unread", "--device", "other")
    assert (row["unread"], row["read_seq"]) == (2, seqs[1])
    assert qim("readers", "--data", data, "--user", peer, "--with", user, seqs[1])["users"] == [
        str(user)
    ]
    assert qim("read", *me, "--with", peer)["unread"] == 0
    assert lines("list", *me, "--json", "--unread") == []
    assert f"@{peer}" in told("list", *me)


def test_recall_and_delete(data: str, user: int) -> None:
    peer = user + 1
    sender, me = ("--data", data, "--user", peer), ("--data", data, "--user", user)
    seqs = [qim("send", *sender, "--to", user, f"{n}")["conversation_seq"] for n in range(3)]
    assert qim("recall", *me, "--with", peer, seqs[0], expect=1)["code"] == "FORBIDDEN"
    assert qim("recall", *sender, "--with", user, seqs[2])["status"] == "acked"
    assert qim("recall", *sender, "--with", user, seqs[2], expect=1)["code"] == "NOT_FOUND"
    deletion = qim("delete", *me, "--with", peer, seqs[0])
    assert deletion["status"] == "acked"
    (row,) = listed(deletion["conversation_seq"], *me)
    assert (row["unread"], row["preview"]["text"]) == (1, "1")
    shown = {m["conversation_seq"]: m for m in lines("history", *me, "--with", peer, "--json")}
    assert seqs[0] not in shown
    assert (shown[seqs[2]]["text"], shown[seqs[2]]["tombstone"]) == (None, "recalled")
    kinds = [m["kind"] for m in shown.values()]
    assert kinds == ["text", "text", "recall", "delete_for_me"]
    around = lines("history", *me, "--with", peer, "--json", "--around", seqs[1], "--limit", 3)
    assert seqs[1] in [m["conversation_seq"] for m in around]
    after = lines("history", *me, "--with", peer, "--json", "--after", seqs[1], "--limit", 1)
    assert [m["conversation_seq"] for m in after] == [seqs[2]]


def test_states(data: str, user: int) -> None:
    peer = user + 1
    at = qim("send", "--data", data, "--user", peer, "--to", user, "hello")
    listed(at["conversation_seq"], "--data", data, "--user", user)
    me = ("--data", data, "--user", user, "--with", peer)
    assert qim("state", "pin", *me)["pinned"]
    muted = qim("state", "mute", *me, "--for", 3600)
    assert muted["muted"]
    assert muted["muted_until"] > 0
    assert qim("state", "draft", *me, "--text", "to be")["draft"] == "to be"
    there = ("--data", data, "--user", user, "--device", "other")
    (row,) = lines("list", *there, "--json")
    assert (row["pinned"], row["muted"], row["draft"]) == (True, True, "to be")
    hidden = qim("state", "hide", *me)
    assert (hidden["hidden"], hidden["status"]) == (True, "done")
    assert lines("list", *there, "--json") == []
    assert len(lines("list", *there, "--json", "--hidden")) == 1
    at = qim("send", "--data", data, "--user", peer, "--to", user, "news")
    assert len(listed(at["conversation_seq"], *there)) == 1
    assert not qim("state", "unmute", *me)["muted"]
    assert qim("state", "unread", *me)["marked_unread"]
    assert not qim("state", "unpin", *me)["pinned"]


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
    assert pulled(data, peer) == ["are you there?", "yes", "/slash"]
    again = ended("chat", "--data", data, "--user", user, "--to", peer, text="/recall\n/list\n")
    assert again.returncode == 0, again.stderr
    assert "which one?" in again.stdout or "recalled" in again.stdout
    assert "1 conversation" in again.stdout


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
        ready, _, _ = select.select([self._descriptor], [], [], SILENCE_SECONDS_MAX)
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
        assert pulled(data, peer) == ["hello"]
        os.write(ours, b"half a li")
        qim("send", "--data", data, "--user", peer, "--to", user, "in between")
        terminal.until("in between")
        terminal.until("half a li")
        os.write(ours, b"ne\r")
        terminal.until("half a line")
        terminal.until("✓")
        os.write(ours, b"\x04")
        terminal.to_the_end()
        assert chat.wait(timeout=30) == 0
    finally:
        chat.kill()
        chat.wait()
        os.close(ours)
    assert pulled(data, peer) == ["in between", "half a line"]


def test_smoke_holds(data: str) -> None:
    report = qim("smoke", "--data", data, "--json")
    assert report["ok"] is True
    assert report["failed"] == report["skipped"] == 0
    assert report["passed"] == len(report["checks"]) >= 15


def test_smoke_sees_a_server_that_fails(data: str) -> None:
    broken = ended("smoke", "--data", data, "--metrics", "127.0.0.1:1", "--only", "health-is-green")
    assert broken.returncode == 1
    assert "FAIL  health-is-green" in broken.stdout
    gone = ended("smoke", "--data", data, "--server", "127.0.0.1:1")
    assert gone.returncode == 3


def test_smoke_with_one_token(server: UpProcess, data: str, user: int) -> None:
    token = run_qim("token", "--data", data, "--user", str(user)).strip()
    report = qim("smoke", "--server", server.tcp, "--token", token, "--json")
    assert report["ok"] is True
    assert report["skipped"] > 0
    assert report["passed"] >= 10


def test_audit(data: str, user: int) -> None:
    qim("send", "--data", data, "--user", user, "--to", user + 1, "judged")
    report = qim("audit", "--data", data, "--json")
    assert report["verdict"] == "CLEAN"
    assert report["orphans"] == []
    assert report["covered"]
    assert "CLEAN" in run_qim("audit", "--data", data)
    assert ended("audit", "--data", Path(data) / "none").returncode == 2


def test_audit_of_a_stopped_server(tmp_path: Path) -> None:
    process = UpProcess(tmp_path / "data")
    process.start()
    try:
        qim("send", "--data", process.data, "--user", 1, "--to", 2, "then it stops")
        process.kill()
        killed = ended("audit", "--data", process.data, "--json")
        verdict = json.loads(killed.stdout)["verdict"]
        assert (verdict, killed.returncode) in (("CLEAN", 0), ("INCOMPLETE", 4))
        process.start()
        assert process.stop() == 0
        stopped = qim("audit", "--data", process.data, "--json")
        assert stopped["verdict"] == "CLEAN"
        assert stopped["records"] == 1
        assert ended("pull", "--data", process.data, "--user", 2).returncode == 3
        other = ended("up", "--data", process.data, "--shards", 8, "--metrics", "127.0.0.1:0")
        assert other.returncode == 2, "the data was made with other numbers"
        assert "shard_count" in other.stderr
        assert "Traceback" not in other.stderr
    finally:
        process.close()
