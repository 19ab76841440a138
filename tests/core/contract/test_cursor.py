"""Cursors: only ours are read, and the judgement keeps its order."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qim.core.contract.cursor import (
    Cursor,
    CursorOwner,
    CursorVerdict,
    ShardRange,
    decode_cursor,
    encode_cursor,
    judge,
)
from qim.core.contract.errors import ErrorCode, ProtocolError
from qim.core.contract.frame_fields import CURSOR_BYTES_MAX
from qim.core.contract.sequences import before_first, mailbox_seq

SECRET = b"k" * 32
OWNER = CursorOwner(tenant_id="default", user_id=7, device_id=b"d1", shard=3, lane=9)
SHARD = ShardRange(shard_epoch=5, trim_seq=mailbox_seq(5, 100), end_seq=mailbox_seq(5, 200))
U64 = st.integers(0, 2**64 - 1)

cursors = st.builds(
    Cursor,
    tenant_id=st.text(st.characters(exclude_categories=("Cs",)), max_size=16),
    user_id=U64,
    device_id=st.binary(max_size=64),
    shard=st.integers(0, 65535),
    shard_epoch=st.integers(0, 65535),
    lane=st.integers(0, 63),
    seq=U64,
)


def at(seq: int, *, shard_epoch: int = 5, **values: object) -> Cursor:
    made = Cursor(
        tenant_id="default",
        user_id=7,
        device_id=b"d1",
        shard=3,
        shard_epoch=shard_epoch,
        lane=9,
        seq=seq,
    )
    return msgspec.structs.replace(made, **values)


@given(cursors, st.binary(min_size=1, max_size=64))
def test_a_cursor_comes_back_and_fits_its_frame(cursor: Cursor, secret: bytes) -> None:
    data = encode_cursor(cursor, secret)
    assert decode_cursor(data, secret) == cursor
    assert len(data) <= CURSOR_BYTES_MAX


def test_a_cursor_is_frozen() -> None:
    assert (
        encode_cursor(at(mailbox_seq(5, 150)), SECRET).hex()
        == "25e6b2d88920c91403a3e8f89bd4c56297a764656661756c7407c4026431030509cf0005000000000096"
    )


def assert_invalid(data: bytes, secret: bytes = SECRET) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_cursor(data, secret)
    assert caught.value.code is ErrorCode.CURSOR_INVALID


@given(cursors, st.data())
def test_one_changed_bit_is_one_too_many(cursor: Cursor, data: st.DataObject) -> None:
    signed = bytearray(encode_cursor(cursor, SECRET))
    at_byte = data.draw(st.integers(0, len(signed) - 1))
    signed[at_byte] ^= 1 << data.draw(st.integers(0, 7))
    assert_invalid(bytes(signed))


@given(st.binary(max_size=100))
def test_any_other_bytes_are_invalid(data: bytes) -> None:
    assert_invalid(data)


@given(cursors, st.integers(1, 40))
def test_a_truncated_cursor_is_invalid(cursor: Cursor, cut: int) -> None:
    assert_invalid(encode_cursor(cursor, SECRET)[:-cut])


def test_another_secret_is_another_signature() -> None:
    assert_invalid(encode_cursor(at(1), b"other"), SECRET)


def test_a_format_we_signed_but_do_not_know_is_invalid() -> None:
    import hmac

    for payload in (b"\x91\x01", b"\xc1", b"", b"\x97" + b"\x91" * 100_000):
        mac = hmac.digest(SECRET, b"qim.cursor.v1\x00" + payload, "sha256")[:16]
        assert_invalid(mac + payload)


@pytest.mark.parametrize(
    ("cursor", "verdict"),
    [
        (at(mailbox_seq(5, 150)), CursorVerdict.GOOD),
        (at(mailbox_seq(5, 200)), CursorVerdict.GOOD),
        (at(mailbox_seq(5, 201)), CursorVerdict.INVALID),
        (at(mailbox_seq(5, 100)), CursorVerdict.GOOD),  # at the trim: everything it lacks is still there
        (at(mailbox_seq(5, 99)), CursorVerdict.EXPIRED),
        (at(before_first(5, 0)), CursorVerdict.EXPIRED),
        (at(mailbox_seq(6, 1), shard_epoch=6), CursorVerdict.INVALID),
        (at(mailbox_seq(4, 150), shard_epoch=4), CursorVerdict.REBASED),
        (at(before_first(4, 0), shard_epoch=4), CursorVerdict.REBASED),
        (at(mailbox_seq(4, 2**48 - 1), shard_epoch=4), CursorVerdict.REBASED),
        (at(mailbox_seq(4, 2**48 - 2)), CursorVerdict.INVALID),  # a seq of another epoch than the field says
        (at(mailbox_seq(4, 150)), CursorVerdict.INVALID),
        (at(mailbox_seq(5, 150), shard_epoch=4), CursorVerdict.INVALID),
        (at(0, shard_epoch=0), CursorVerdict.INVALID),
        (at(2**64 - 1, shard_epoch=65536), CursorVerdict.INVALID),
        (at(mailbox_seq(5, 150), user_id=8), CursorVerdict.INVALID),
        (at(mailbox_seq(5, 150), tenant_id="other"), CursorVerdict.INVALID),
        (at(mailbox_seq(5, 150), device_id=b"d2"), CursorVerdict.INVALID),
        (at(mailbox_seq(5, 150), shard=4), CursorVerdict.INVALID),
        (at(mailbox_seq(5, 150), lane=8), CursorVerdict.INVALID),
        (at(mailbox_seq(4, 1), shard_epoch=4, lane=8), CursorVerdict.INVALID),  # range before epoch
    ],
)  # fmt: skip
def test_judgement(cursor: Cursor, verdict: CursorVerdict) -> None:
    assert judge(cursor, owner=OWNER, shard=SHARD) is verdict


def test_the_predecessor_of_the_first_record_is_in_range() -> None:
    fresh = ShardRange(shard_epoch=5, trim_seq=before_first(5, 0), end_seq=before_first(5, 0))
    assert judge(at(before_first(5, 0)), owner=OWNER, shard=fresh) is CursorVerdict.GOOD
    assert judge(at(mailbox_seq(5, 0)), owner=OWNER, shard=fresh) is CursorVerdict.INVALID
    assert judge(at(before_first(5, 0) - 1), owner=OWNER, shard=fresh) is CursorVerdict.INVALID


def test_a_shard_elsewhere_is_a_redirect_but_only_for_its_own_cursor() -> None:
    assert judge(at(mailbox_seq(5, 150)), owner=OWNER, shard=None) is CursorVerdict.REDIRECT
    assert judge(at(mailbox_seq(5, 150), lane=1), owner=OWNER, shard=None) is CursorVerdict.INVALID


def test_what_the_client_is_told() -> None:
    assert {verdict: verdict.error_code for verdict in CursorVerdict} == {
        CursorVerdict.GOOD: None,
        CursorVerdict.INVALID: ErrorCode.CURSOR_INVALID,
        CursorVerdict.EXPIRED: ErrorCode.CURSOR_EXPIRED,
        CursorVerdict.REBASED: ErrorCode.CURSOR_REBASED,
        CursorVerdict.REDIRECT: None,
    }
