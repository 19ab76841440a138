"""Where a store is: every form parsed, nothing secret shown, a file that can't be used refused with its name."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qim.adapters.redis.address import StoreAddress
from qim.adapters.start_refused import StartRefused


@pytest.mark.parametrize(
    ("text", "fields", "shown", "cli"),
    [
        ("h:1", {"host": "h", "port": 1}, "h:1", "redis-cli -h h -p 1"),
        ("h", {"host": "h"}, "h:6379", "redis-cli -h h -p 6379"),
        ("localhost:7", {"host": "localhost", "port": 7}, "localhost:7", "redis-cli -p 7"),
        ("[::1]:7", {"host": "::1", "port": 7}, "[::1]:7", "redis-cli -h ::1 -p 7"),
        ("redis://h:2/0", {"host": "h", "port": 2}, "h:2", "redis-cli -h h -p 2"),
        (
            "redis://u:p%40%2F@127.0.0.1",
            {"host": "127.0.0.1", "username": "u", "password": "p@/"},
            "127.0.0.1:6379",
            "redis-cli -p 6379 --user u --askpass",
        ),
        (
            "redis://:pw@h:2",
            {"host": "h", "port": 2, "password": "pw"},
            "h:2",
            "redis-cli -h h -p 2 --askpass",
        ),
        (
            "rediss://h?ca=/a&cert=/b%20c&key=/d",
            {
                "host": "h",
                "tls": True,
                "ca_path": "/a",
                "certificate_path": "/b c",
                "key_path": "/d",
            },
            "rediss://h:6379",
            "redis-cli -h h -p 6379 --tls --cacert /a --cert '/b c' --key /d",
        ),
        (
            "/run/r.sock",
            {"unix_path": "/run/r.sock"},
            "unix:/run/r.sock",
            "redis-cli -s /run/r.sock",
        ),
        ("unix:/r", {"unix_path": "/r"}, "unix:/r", "redis-cli -s /r"),
        (
            "unix://u:p@/r%20s",
            {"unix_path": "/r s", "username": "u", "password": "p"},
            "unix:/r s",
            "redis-cli -s '/r s' --user u --askpass",
        ),
    ],
)
def test_every_form(text: str, fields: dict[str, Any], shown: str, cli: str) -> None:
    address = StoreAddress.parse(text)
    assert address == StoreAddress(**fields)
    assert str(address) == shown
    assert repr(address) == f"StoreAddress({shown})"
    assert address.redis_cli == cli


@pytest.mark.parametrize(
    "text",
    [
        "",
        "http://h",
        "redis://",
        "h:x",
        "h:0",
        "h:65536",
        "redis://h/3",
        "redis://h?ca=/a",
        "rediss://h?what=/a",
        "rediss://h?ca",
        "unix:r",
        "unix://h/r",
        "h#1",
        "redis://[::1",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(StartRefused) as refusal:
        StoreAddress.parse(text)
    assert refusal.value.code == "redis_address"
    assert "127.0.0.1:6379" in refusal.value.command


@given(
    password=st.text(st.sampled_from("topsecret:/?#[]@℀%é"), min_size=1).map(
        lambda tail: f"hunter2{tail}"
    ),
    rest=st.sampled_from(["@h:1", "@h:x", "@h/4", "", ":1", "@", "@h#1"]),
    scheme=st.sampled_from(["redis", "rediss", "unix", "http"]),
)
def test_a_password_is_never_shown(password: str, rest: str, scheme: str) -> None:
    """Not even one whose reserved letters nobody encoded."""
    try:
        address = StoreAddress.parse(f"{scheme}://:{password}{rest}")
        said = f"{address} {address!r} {address.redis_cli}"
    except StartRefused as refused:
        said = f"{refused} {refused.__cause__}"
    assert "hunter2" not in said


@pytest.mark.parametrize(
    ("text", "here"),
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("[::1]:1", True),
        ("localhost", True),
        ("unix:/r", True),
        ("localhost.example.org", False),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("redis", False),
    ],
)
def test_what_is_surely_on_this_machine(text: str, here: bool) -> None:
    assert StoreAddress.parse(text).on_this_machine is here


@pytest.mark.parametrize("half", ["cert=/c", "key=/k"])
def test_half_a_certificate_is_refused(half: str) -> None:
    with pytest.raises(StartRefused) as refusal:
        StoreAddress.parse(f"rediss://h?{half}").tls_context()
    assert refusal.value.code == "tls_half_pair"


def test_tls_files_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    nonsense = tmp_path / "ca.pem"
    nonsense.write_text("no certificate")
    for ca in (nonsense, tmp_path / "absent"):
        with pytest.raises(StartRefused) as refusal:
            StoreAddress.parse(f"rediss://h?ca={ca}").tls_context()
        assert refusal.value.code == "tls_file_unreadable"
        assert str(ca) in refusal.value.command
        assert "ca= of rediss://h:6379" in refusal.value.what
    assert StoreAddress.parse("h").tls_context() is None
