"""What counts as this machine: by the letter, for unencrypted listeners and waived checks."""

import pytest

from qim.adapters.loopback import is_loopback, is_wildcard


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("[::1]", True),
        ("localhost.example.org", False),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("::", False),
        ("my.host", False),
    ],
)
def test_loopback_is_literal(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


@pytest.mark.parametrize(
    ("host", "wildcard"),
    [
        ("0.0.0.0", True),
        ("::", True),
        ("[::]", True),
        ("0::0", True),
        ("", True),
        ("127.0.0.1", False),
        ("::1", False),
        ("my.host", False),
    ],
)
def test_every_interface_is_no_place_to_dial(host: str, wildcard: bool) -> None:
    assert is_wildcard(host) is wildcard
