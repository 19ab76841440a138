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
    HEADER_BYTES,
    KIND_BARRIER,
    KIND_DISPATCH,
    KIND_RECORD,
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
@given(version=st.integers(FORMAT_VERSION + 1, 255), rest=st.binary(max_size=60))
def test_a_later_format_is_waited_for_whatever_it_holds(
    read: Callable[[bytes], Any], version: int, rest: bytes
) -> None:
    """Never dead-lettered: newer code will read it, and skipping it would lose it."""
    assert read(bytes([version]) + rest) == NewerFormat(version)


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
