"""Records of the user-state log: read back whole, or told apart from what nobody can apply."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from qim.core.contract.logvalue import (
    NewerFormat,
    StateLogged,
    Undecodable,
    read_user_state,
    user_state_value,
)
from qim.core.contract.statelog import UserStateRecord, encode_state_record, user_state_key

U64 = st.integers(0, 2**64 - 1)
RECORDS = st.builds(
    UserStateRecord,
    tenant_id=st.text(max_size=8),
    user_id=U64,
    conversation_id=st.binary(min_size=16, max_size=16),
    read_seq=U64,
    version=U64,
    device_id=st.binary(max_size=64),
    flags=st.integers(0, 2**32 - 1),
    value=st.binary(max_size=1024),
)
RECORD = UserStateRecord(
    tenant_id="t",
    user_id=1,
    conversation_id=b"c" * 16,
    read_seq=0,
    version=0,
    device_id=b"",
    flags=0,
    value=b"",
)


@given(RECORDS, U64)
def test_a_record_is_read_back(record: UserStateRecord, epoch: int) -> None:
    value = user_state_value(epoch, encode_state_record(record))
    assert read_user_state(value) == StateLogged(epoch, record)


def test_a_newer_format_waits_and_rubbish_is_told() -> None:
    value = user_state_value(1, encode_state_record(RECORD))
    assert isinstance(read_user_state(b"\x02" + value[1:]), NewerFormat)
    for rubbish in (b"", value[:9], value[:-1], value[:1] + b"\x03" + value[2:], value + b"x"):
        assert isinstance(read_user_state(rubbish), Undecodable)


@pytest.mark.parametrize(
    "fields",
    [
        {"conversation_id": b"c" * 15},
        {"user_id": -1},
        {"read_seq": -1},
        {"version": -1},
        {"device_id": b"d" * 65},
        {"flags": 1 << 32},
        {"flags": -1},
    ],
)
def test_what_no_store_could_hold_is_undecodable(fields: dict[str, Any]) -> None:
    value = user_state_value(1, encode_state_record(replace(RECORD, **fields)))
    assert isinstance(read_user_state(value), Undecodable)


def test_a_mark_and_a_state_have_keys_of_their_own() -> None:
    state = replace(RECORD, version=1)
    keys = [
        user_state_key(record)
        for record in (
            RECORD,
            state,
            replace(RECORD, user_id=2),
            replace(RECORD, tenant_id="u"),
            replace(RECORD, conversation_id=b"d" * 16),
        )
    ]
    assert len(dict.fromkeys(keys)) == len(keys)
    assert user_state_key(replace(RECORD, read_seq=9)) == user_state_key(RECORD)
    assert user_state_key(replace(state, version=9, device_id=b"x")) == user_state_key(state)
