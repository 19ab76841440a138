"""Commands as README writes them, against a real `qim up`: send, pull, groups, history, lists, states."""

import json
from pathlib import Path

import pytest

from qim.core.contract.ids import single_conversation_id
from tests.integration.command_line import ended, first_pulled, lines, listed, pulled, qim, told
from tests.integration.served import Served
from tests.integration.up_process import run_qim

pytestmark = pytest.mark.xdist_group("commands")


def test_the_server_says_where_it_is(served: Served) -> None:
    assert set(served.ready) >= {"ready", "tcp", "metrics", "pid"}
    written = json.loads((served.data / "server.json").read_text())
    assert written["tcp"] == served.ready["tcp"]


def test_a_second_server_is_refused_with_the_holder(served: Served) -> None:
    refused = ended("up", "--data", served.data, "--tcp", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
    assert refused.returncode == 2
    assert str(served.ready["pid"]) in refused.stderr
    assert "Traceback" not in refused.stderr


def test_send_pull_history(data: str, user: int) -> None:
    peer = user + 1
    ack = qim("send", "--data", data, "--user", user, "--to", peer, "hello, Ünïcode ☃")
    assert ack["status"] == "acked"
    assert ack["conversation_id"] == single_conversation_id("default", user, peer).hex()
    assert ack["conversation_seq"] == "1"
    found = first_pulled("--data", data, "--user", peer)
    assert [message["text"] for message in found] == ["hello, Ünïcode ☃"]
    assert found[0]["message_id"] == ack["message_id"]
    assert found[0]["sender_id"] == found[0]["peer_user_id"] == str(user)
    assert lines("pull", "--data", data, "--user", peer, "--json") == [], "the cursor is kept"
    again = pulled(data, peer, "--device", "other", last="hello, Ünïcode ☃")
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
    assert pulled(data, user + 1, last="once") == ["once"]


def test_standard_input_and_any_bytes(data: str, user: int) -> None:
    done = ended("send", "--data", data, "--user", user, "--to", user + 1, "-", text="a\nb\0c\n")
    assert done.returncode == 0
    assert pulled(data, user + 1, last="a\nb\0c\n") == ["a\nb\0c\n"]
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
    assert [t for t in pulled(data, one, last="first") if t] == ["first"]
    assert [t for t in pulled(data, three, last="last") if t] == ["last"]
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
    served: Served, data: str, user: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    token = run_qim("token", "--data", data, "--user", str(user)).strip()
    ack = qim("send", "--server", served.tcp, "--token", token, "--to", user + 1, "by token")
    assert ack["status"] == "acked"
    monkeypatch.setenv("QIM_TOKEN", token)
    own = first_pulled("--server", served.tcp)
    assert [message["text"] for message in own] == ["by token"]
    wrong = ended("pull", "--server", served.tcp, "--token", token[:-4] + "AAAA")
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
    texts = pulled(data, user + 1, last="second")
    assert texts == ["patience", "second"], "it went out with the next command"
    again = qim(*send, "patience", "--client-message-id", ack["client_message_id"])
    assert again["status"] == "acked"
    assert ended("pull", "--data", Path(data) / "none", "--user", user).returncode == 3


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
