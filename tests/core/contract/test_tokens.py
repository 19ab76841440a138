"""Access tokens: only what our secret signed, only until it ends, one spelling only."""

import base64
import hmac

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qim.core.contract.errors import ErrorCode, ProtocolError
from qim.core.contract.tokens import AccessToken, sign_token, verify_token

SECRET = b"s" * 32
TOKEN = AccessToken(tenant_id="default", user_id=7, device_id=b"d1", expires_at=1000)

tokens = st.builds(
    AccessToken,
    tenant_id=st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=16),
    user_id=st.integers(1, 2**64 - 1),
    device_id=st.one_of(st.none(), st.binary(min_size=1, max_size=64)),
    expires_at=st.integers(1, 2**64 - 1),
)


def refused(text: str, *, now_ms: int = 0, secret: bytes = SECRET) -> ErrorCode:
    with pytest.raises(ProtocolError) as caught:
        verify_token(text, secret, now_ms=now_ms)
    return caught.value.code


def signed_anyhow(payload: bytes) -> str:
    mac = hmac.digest(SECRET, b"qim.token.v1\x00" + payload, "sha256")
    return ".".join(
        ("qim1", *(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in (payload, mac)))
    )


@given(tokens, st.binary(min_size=1, max_size=64))
def test_a_token_comes_back(token: AccessToken, secret: bytes) -> None:
    text = sign_token(token, secret)
    assert verify_token(text, secret, now_ms=token.expires_at - 1) == token
    assert text.isascii()


def test_a_token_is_frozen() -> None:
    assert (
        sign_token(TOKEN, SECRET)
        == "qim1.lKdkZWZhdWx0B8QCZDHNA-g.tHG-5M96aXslX4fe6utw5rZ1YSXHB39UH9CTMchNq-o"
    )


def test_a_token_ends_at_its_time() -> None:
    text = sign_token(TOKEN, SECRET)
    assert verify_token(text, SECRET, now_ms=999) == TOKEN
    assert refused(text, now_ms=1000) is ErrorCode.TOKEN_EXPIRED
    assert refused(text, now_ms=1000, secret=b"other") is ErrorCode.UNAUTHENTICATED


@given(tokens, st.data())
def test_one_changed_character_is_one_too_many(token: AccessToken, data: st.DataObject) -> None:
    text = sign_token(token, SECRET)
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.characters().filter(lambda c: c != text[at]))
    assert refused(text[:at] + other + text[at + 1 :]) is ErrorCode.UNAUTHENTICATED


@given(st.text(max_size=100))
def test_any_other_text_is_unauthenticated(text: str) -> None:
    assert refused(text) is ErrorCode.UNAUTHENTICATED


@pytest.mark.parametrize("text", [
    "", ".", "..", "qim1..", "qim1.a.b", "qim1.@@@@.b", "a.b.c.d", "qim1.ü.b", "qim1." + "A" * 3000 + ".b",
    "\ud800.a.b", "qim1.YQ.\x00",
])  # fmt: skip
def test_odd_texts(text: str) -> None:
    assert refused(text) is ErrorCode.UNAUTHENTICATED


def test_another_spelling_of_the_same_bytes_is_refused() -> None:
    text = sign_token(TOKEN, SECRET)
    prefix, payload, mac = text.split(".")
    assert refused(f"{prefix}.{payload}=.{mac}") is ErrorCode.UNAUTHENTICATED
    assert refused(f"{prefix}.{payload}\n.{mac}") is ErrorCode.UNAUTHENTICATED
    assert refused(f"qim2.{payload}.{mac}") is ErrorCode.UNAUTHENTICATED


@pytest.mark.parametrize("payload", [
    b"", b"\xc1", b"\x91\x01", b"\x94" + b"\x91" * 1000, msgspec.msgpack.encode(["", 1, None, 5]),
    msgspec.msgpack.encode(["t", 0, None, 5]), msgspec.msgpack.encode(["t", 1, b"", 5]),
    msgspec.msgpack.encode(["t", 1, b"x" * 65, 5]), msgspec.msgpack.encode(["t" * 65, 1, None, 5]),
    msgspec.msgpack.encode(["t", 1, None, -5]), msgspec.msgpack.encode(["t", -1, None, 5]),
])  # fmt: skip
def test_what_we_would_never_sign_is_refused_even_if_signed(payload: bytes) -> None:
    assert refused(signed_anyhow(payload)) is ErrorCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"tenant_id": ""}, "tenant_id"), ({"tenant_id": "x" * 65}, "tenant_id"),
        ({"user_id": 0}, "user_id"), ({"user_id": 2**64}, "user_id"),
        ({"device_id": b""}, "device_id"), ({"device_id": b"x" * 65}, "device_id"),
        ({"expires_at": -1}, "expires_at"), ({"expires_at": 2**64}, "expires_at"),
    ],
)  # fmt: skip
def test_no_token_is_signed_that_could_not_be_used(values: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        sign_token(msgspec.structs.replace(TOKEN, **values), SECRET)
