"""Log values: framing, the two ways of not reading one told apart, and nothing that raises (pipeline §2)."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qim.core.contract.entities import (
    EMPTY_ID,
    FORMAT_VERSION,
    GroupDispatch,
    MessageRecord,
    encode_dispatch,
    encode_record,
    stored_record,
)
from qim.core.contract.logvalue import (
    EPOCH_MAX,
    HEADER_BYTES,
    KIND_BARRIER,
    KIND_DISPATCH,
    KIND_MAX,
    KIND_RECORD,
    VERSION_MAX,
    Barrier,
    Dispatched,
    NewerFormat,
    Outboxed,
    Undecodable,
    barrier_value,
    dispatch_value,
    outbox_value,
    read_dispatch,
    read_outbox,
    read_user_state,
    user_state_value,
)
from tests.core.contract.entity_strategies import integers, whole

records = whole(MessageRecord, conversation_seq=0, last_activity_id=EMPTY_ID)
READERS: list[Callable[[bytes], Any]] = [read_outbox, read_dispatch]
OUTCOMES = (Barrier, Outboxed, Dispatched, NewerFormat, Undecodable)


@settings(max_examples=60, deadline=None)
@given(epoch=integers)
def test_a_barrier_is_an_epoch_and_nothing_else(epoch: int) -> None:
    value = barrier_value(epoch)
    assert len(value) == HEADER_BYTES
    assert value == bytes((FORMAT_VERSION, KIND_BARRIER)) + epoch.to_bytes(8, "big")
    assert read_outbox(value) == Barrier(epoch)
    assert isinstance(read_outbox(value + b"\0"), Undecodable)
    assert isinstance(read_dispatch(value), Undecodable)


@settings(max_examples=60, deadline=None)
@given(epoch=integers, seq=integers, record=records)
def test_an_outbox_record_comes_back_with_the_epoch_it_was_published_under(
    epoch: int, seq: int, record: MessageRecord
) -> None:
    stored = stored_record(seq, b"\x07" * 16, encode_record(record))
    value = outbox_value(epoch, stored)
    read = read_outbox(value)
    assert isinstance(read, Outboxed)
    assert (read.epoch, read.stored) == (epoch, stored)
    assert (read.record.conversation_seq, read.record.message_id) == (seq, record.message_id)
    assert isinstance(read_dispatch(value), Undecodable)


@settings(max_examples=60, deadline=None)
@given(epoch=integers, dispatch=whole(GroupDispatch))
def test_a_dispatch_comes_back(epoch: int, dispatch: GroupDispatch) -> None:
    value = dispatch_value(epoch, encode_dispatch(dispatch))
    assert read_dispatch(value) == Dispatched(epoch, dispatch)
    assert isinstance(read_outbox(value), Undecodable)


@pytest.mark.parametrize("read", READERS)
@settings(max_examples=60, deadline=None)
@given(
    version=st.integers(FORMAT_VERSION + 1, VERSION_MAX),
    kind=st.integers(1, KIND_MAX),
    epoch=st.integers(0, EPOCH_MAX),
    payload=st.binary(max_size=60),
)
def test_a_later_format_is_waited_for_whatever_it_holds(
    read: Callable[[bytes], Any], version: int, kind: int, epoch: int, payload: bytes
) -> None:
    """Never dead-lettered: newer code will read it, and skipping it would lose it."""
    assert read(bytes((version, kind)) + epoch.to_bytes(8, "big") + payload) == NewerFormat(version)


STRANGERS = [
    b"\xff\xfegarbage\xe2\x80\xa6",
    b"hello stranger",
    b'{"user": 7, "text": "hello"}',
    b"\n\tan indented line",
    b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03gzip",
    b"\x08\x01\x12\x07protobuf\x18\x02",
    b"\xac\xed\x00\x05sr\x00\x11java.lang.Integer",
    b"\x93\x01\x02\xa5hello and more",
    "\ufeffutf-16 text".encode("utf-16-le"),
    b"\x02",
    b"\x02\x01\x00\x00\x00\x00\x00\x00\x00",
    b"\x02\x00" + bytes(8),
    bytes((VERSION_MAX + 1, 1)) + bytes(8),
    bytes((2, KIND_MAX + 1)) + bytes(8),
    b"\x02\x01" + (EPOCH_MAX + 1).to_bytes(8, "big"),
]


@pytest.mark.parametrize("read", [*READERS, read_user_state])
@pytest.mark.parametrize("value", STRANGERS)
def test_a_strangers_bytes_are_no_later_format(read: Callable[[bytes], Any], value: bytes) -> None:
    """They would halt a partition for ever: no version will come that reads them (decision 0031)."""
    got = read(value)
    assert isinstance(got, Undecodable)
    assert got.why


@settings(max_examples=60, deadline=None)
@given(text=st.text(min_size=1, max_size=80).filter(lambda text: "\0" not in text))
def test_text_of_any_language_is_no_later_format(text: str) -> None:
    assert not isinstance(read_outbox(text.encode("utf-8", "replace")), NewerFormat)


def test_all_that_this_version_writes_keeps_what_later_versions_rely_on() -> None:
    """A header of another version's would be waited for by this one, and so the other way round."""
    written = (
        barrier_value(EPOCH_MAX),
        outbox_value(1, b""),
        dispatch_value(1, b""),
        user_state_value(1, b""),
    )
    for value in written:
        later = bytes((FORMAT_VERSION + 1,)) + value[1:]
        assert read_outbox(later) == NewerFormat(FORMAT_VERSION + 1)


@pytest.mark.parametrize("read", READERS)
@settings(max_examples=60, deadline=None)
@given(value=st.binary(max_size=200))
def test_any_bytes_have_an_outcome(read: Callable[[bytes], Any], value: bytes) -> None:
    assert isinstance(read(value), OUTCOMES)


@pytest.mark.parametrize("read", READERS)
@settings(max_examples=60, deadline=None)
@given(kind=st.integers(0, 255), epoch=integers, payload=st.binary(max_size=80))
def test_any_payload_under_a_good_header_has_an_outcome(
    read: Callable[[bytes], Any], kind: int, epoch: int, payload: bytes
) -> None:
    value = bytes((FORMAT_VERSION, kind)) + epoch.to_bytes(8, "big") + payload
    got = read(value)
    assert isinstance(got, OUTCOMES)
    wanted = {KIND_RECORD, KIND_BARRIER} if read is read_outbox else {KIND_DISPATCH}
    if kind not in wanted:
        assert isinstance(got, Undecodable)


@settings(max_examples=60, deadline=None)
@given(record=records, cut=st.integers(0, 10_000))
def test_a_value_cut_short_is_undecodable(record: MessageRecord, cut: int) -> None:
    value = outbox_value(3, stored_record(1, EMPTY_ID, encode_record(record)))
    assert isinstance(read_outbox(value[: cut % len(value)]), Undecodable)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("value", [b"", b"\0", b"\0" * HEADER_BYTES, b"\x01", b"\x01\x01\0\0"])
def test_version_zero_and_short_headers_are_undecodable(
    read: Callable[[bytes], Any], value: bytes
) -> None:
    assert isinstance(read(value), Undecodable)
