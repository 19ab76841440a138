"""Messages between services: each comes back as it was, tags are distinct, and junk is one typed error."""

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qim.core.contract import rpc, rpc_admin, rpc_session
from qim.core.contract.rpc import Message, decode_message, encode_message
from tests.core.contract.entity_strategies import whole

KINDS: tuple[type[Any], ...] = get_args(Message)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_a_message_comes_back_as_it_was(kind: type[Any], data: st.DataObject) -> None:
    message = data.draw(whole(kind))
    back = decode_message(encode_message(message))
    assert type(back) is kind
    assert back == message


def test_every_message_of_a_family_is_in_the_union_under_a_tag_of_its_own() -> None:
    tagged = {
        kind
        for family in (rpc, rpc_admin, rpc_session)
        for kind in vars(family).values()
        if isinstance(kind, type)
        and issubclass(kind, msgspec.Struct)
        and kind.__struct_config__.tag is not None
    }
    assert tagged == set(KINDS)
    tags = [kind.__struct_config__.tag for kind in KINDS]
    assert len(set(tags)) == len(tags)


def test_every_question_and_answer_carries_the_request_it_belongs_to() -> None:
    without = {kind.__name__ for kind in KINDS if "rid" not in kind.__struct_fields__}
    assert without == {"PushBatch", "Kick"}, "only hints and kicks wait for nothing"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=20, deadline=None)
@given(data=st.data(), at=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_one_spoiled_byte_gives_a_message_or_a_decode_error(
    kind: type[Any], data: st.DataObject, at: int, byte: int
) -> None:
    good = bytearray(encode_message(data.draw(whole(kind))))
    good[at % len(good)] = byte
    try:
        back = decode_message(bytes(good))
    except msgspec.DecodeError:
        return
    assert isinstance(back, KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=20, deadline=None)
@given(data=st.data(), cut=st.integers(0, 10_000))
def test_a_message_cut_short_is_a_decode_error(
    kind: type[Any], data: st.DataObject, cut: int
) -> None:
    good = encode_message(data.draw(whole(kind)))
    with pytest.raises(msgspec.DecodeError):
        decode_message(good[: cut % len(good)])


@settings(max_examples=20, deadline=None)
@given(junk=st.binary(max_size=200))
def test_junk_is_a_decode_error_and_nothing_else(junk: bytes) -> None:
    try:
        back = decode_message(junk)
    except msgspec.DecodeError:
        return
    assert isinstance(back, KINDS)
