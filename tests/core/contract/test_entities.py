"""What is stored or logged comes back as it was, and bytes that are none of ours end in one typed error."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qim.core.contract import entities
from qim.core.contract.entities import (
    EMPTY_ID,
    RECORD_PREFIX_BYTES,
    FanoutAuditReceipt,
    GroupDispatch,
    MessageRecord,
    UserMailboxEntry,
    decode_dispatch,
    decode_entry,
    decode_receipt,
    decode_stored_record,
    encode_dispatch,
    encode_entry,
    encode_receipt,
    encode_record,
    stored_record,
)
from tests.core.contract.entity_strategies import integers, whole

PLAIN: list[tuple[type[Any], Callable[[Any], bytes], Callable[[bytes], Any]]] = [
    (GroupDispatch, encode_dispatch, decode_dispatch),
    (UserMailboxEntry, encode_entry, decode_entry),
    (FanoutAuditReceipt, encode_receipt, decode_receipt),
]
IDS = [kind.__name__ for kind, _, _ in PLAIN]
records = whole(MessageRecord, conversation_seq=0, last_activity_id=EMPTY_ID)
activities = st.binary(min_size=16, max_size=16)


@pytest.mark.parametrize(("kind", "encode", "decode"), PLAIN, ids=IDS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_an_entity_comes_back_as_it_was(
    kind: type[Any],
    encode: Callable[[Any], bytes],
    decode: Callable[[bytes], Any],
    data: st.DataObject,
) -> None:
    drawn = data.draw(whole(kind))
    assert decode(encode(drawn)) == drawn


@settings(max_examples=40, deadline=None)
@given(record=records, seq=integers, activity=activities)
def test_seq_and_activity_are_taken_from_the_prefix(
    record: MessageRecord, seq: int, activity: bytes
) -> None:
    stored = stored_record(seq, activity, encode_record(record))
    assert stored[:RECORD_PREFIX_BYTES] == seq.to_bytes(8, "big") + activity
    back = decode_stored_record(stored)
    assert (back.conversation_seq, back.last_activity_id) == (seq, activity)
    unset = msgspec.structs.replace(back, conversation_seq=0, last_activity_id=EMPTY_ID)
    assert unset == record


@settings(max_examples=40, deadline=None)
@given(record=records, seq=integers)
def test_a_prefix_wins_over_what_the_record_claims(record: MessageRecord, seq: int) -> None:
    """A record whose own fields are set all the same (an older writer, a damaged one) can't move itself."""
    claims = msgspec.structs.replace(record, conversation_seq=77, last_activity_id=b"\xff" * 16)
    back = decode_stored_record(stored_record(seq, EMPTY_ID, encode_record(claims)))
    assert (back.conversation_seq, back.last_activity_id) == (seq, EMPTY_ID)


@pytest.mark.parametrize(("kind", "encode", "decode"), PLAIN, ids=IDS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_fields_of_a_later_version_are_ignored(
    kind: type[Any],
    encode: Callable[[Any], bytes],
    decode: Callable[[bytes], Any],
    data: st.DataObject,
) -> None:
    drawn = data.draw(whole(kind))
    fields = msgspec.msgpack.decode(encode(drawn))
    assert decode(msgspec.msgpack.encode([*fields, "later", {"more": [1]}])) == drawn


@pytest.mark.parametrize(
    "decode", [decode_dispatch, decode_entry, decode_receipt, decode_stored_record]
)
@settings(max_examples=40, deadline=None)
@given(junk=st.binary(max_size=200))
def test_junk_is_a_decode_error_and_nothing_else(
    decode: Callable[[bytes], Any], junk: bytes
) -> None:
    try:
        got = decode(junk)
    except msgspec.DecodeError:
        return
    assert isinstance(got, msgspec.Struct)


@settings(max_examples=40, deadline=None)
@given(record=records, cut=st.integers(0, 10_000))
def test_a_record_cut_short_is_never_taken_for_a_whole_one(record: MessageRecord, cut: int) -> None:
    stored = stored_record(1, EMPTY_ID, encode_record(record))
    with pytest.raises(msgspec.DecodeError):
        decode_stored_record(stored[: cut % len(stored)])


def test_what_is_stored_lists_its_fields_in_this_order() -> None:
    """Arrays in declared order: a field put in between would be read by old code as its neighbour."""
    assert MessageRecord.__struct_fields__[-5:] == (
        "flags",
        "format_version",
        "conversation_seq",
        "last_activity_id",
        "target_seq",
    )
    assert GroupDispatch.__struct_fields__[-2:] == ("format_version", "target_seq")
    assert UserMailboxEntry.__struct_fields__[-1] == "client_message_id"
    arrays = (
        entities.MembershipDelta, MessageRecord, GroupDispatch, UserMailboxEntry, entities.Interval,
        entities.Member, entities.ReceiptShard, FanoutAuditReceipt, entities.CommitAuditFact,
        entities.PresenceEntry,
    )  # fmt: skip
    for kind in arrays:
        assert kind.__struct_config__.array_like, kind
        assert kind.__struct_config__.frozen, kind


def test_a_receipt_of_before_there_were_repairs_was_never_moved() -> None:
    receipt = FanoutAuditReceipt(source_offset=7, message_id=b"m" * 16, source_epoch=1, shards=())
    fields = msgspec.msgpack.decode(encode_receipt(receipt))
    assert decode_receipt(msgspec.msgpack.encode(fields[:-1])) == receipt
    assert receipt.dispatched_under() == 7
    moved = msgspec.structs.replace(receipt, source_offset=90, moved_from=7)
    assert decode_receipt(encode_receipt(moved)).dispatched_under() == 7
