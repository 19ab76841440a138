"""Bytes of the fetch requests and answers, fetch sessions, cutting and decoding of batches: no broker needed."""

import struct
from io import BytesIO
from typing import Any

import pytest
from aiokafka.protocol.produce import ProduceRequest_v7, ProduceRequest_v8
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from qim.adapters.kafka.append_job import Identity, build, cut, framed_bytes, sequence_after
from qim.adapters.kafka.fetch_session import FetchSession
from qim.adapters.kafka.fetch_wire import AskFetch, FetchPart, _Fetch11, _Fetch13
from qim.adapters.kafka.record_batches import BatchesBroken, BatchPacked, decode, within
from qim.adapters.kafka.settings import BATCH_OVERHEAD_BYTES
from qim.adapters.kafka.wire import AskAppend, ProduceRequest13
from qim.core.contract.logvalue import Undecodable, read_outbox
from qim.core.ports.log import LogRecord, StoredRecord
from tests.adapters.log.batches import batch, marked, sealed

VERSIONS: dict[int, Any] = {11: _Fetch11, 13: _Fetch13}
ID = bytes(range(16))


def part(number: int, offset: int = 0, topic: str = "a", topic_id: bytes = ID) -> FetchPart:
    return FetchPart(
        topic=topic, topic_id=topic_id, partition=number, leader_epoch=4, offset=offset, bytes_max=9
    )


def asked(parts: list[FetchPart], **more: Any) -> AskFetch:
    return AskFetch(parts, wait_ms=250, bytes_max=1 << 20, **more)


# ------------------------------------------------------------ produce


@pytest.mark.parametrize("version", [ProduceRequest_v7, ProduceRequest_v8, ProduceRequest13])
def test_every_append_asks_for_the_word_of_all_that_are_in_sync(version: Any) -> None:
    """Whatever the broker speaks: with fewer a leader that dies takes what it has confirmed along."""
    built = AskAppend({"a": [(0, b"x")]}, {"a": ID}, acks_ms=9).build(version)
    assert built.required_acks == -1


# ------------------------------------------------------------ fetch


def test_a_request_of_version_13_is_as_the_protocol_has_it() -> None:
    request = _Fetch13(
        asked([part(1, 7), part(2, 8)], session_id=5, session_epoch=6, forgotten=[part(9)])
    )
    expected = struct.pack(">iiiibii", -1, 250, 1, 1 << 20, 0, 5, 6) + b"\2" + ID + b"\3"
    for number, offset in ((1, 7), (2, 8)):
        expected += struct.pack(">iiqiqi", number, 4, offset, -1, -1, 9) + b"\0"
    expected += b"\0\2" + ID + b"\2" + struct.pack(">i", 9) + b"\0\1\0"
    assert request.encode() == expected


def test_a_request_of_version_11_is_as_the_protocol_has_it() -> None:
    request = _Fetch11(asked([part(1, 7)], forgotten=[part(9), part(8)]))
    expected = struct.pack(">iiiibii", -1, 250, 1, 1 << 20, 0, 0, -1)
    expected += struct.pack(">ih", 1, 1) + b"a" + struct.pack(">iiiqqi", 1, 1, 4, 7, -1, 9)
    expected += struct.pack(">ih", 1, 1) + b"a" + struct.pack(">iii", 2, 9, 8) + b"\0\0"
    assert request.encode() == expected


def test_a_read_that_doesn_t_wait_asks_for_no_bytes_at_least() -> None:
    request = AskFetch([part(1)], wait_ms=0, bytes_max=9)
    assert _Fetch13(request).encode()[:16] == struct.pack(">iiii", -1, 0, 0, 9)


def response(version: int, parts: list[tuple[int, int, int, int, bytes | None]]) -> bytes:
    """One topic, an aborted transaction in each partition, unknown tags where the version has them."""
    head = struct.pack(">ihi", 0, 70, 99)
    if version == 11:
        body = head + struct.pack(">ih", 1, 1) + b"a" + struct.pack(">i", len(parts))
        for number, error, end, start, data in parts:
            body += struct.pack(">ihqqqiqqi", number, error, end, 0, start, 1, 1, 1, -1)
            body += struct.pack(">i", -1 if data is None else len(data)) + (data or b"")
        return body
    body = head + b"\2" + ID + bytes([len(parts) + 1])
    for number, error, end, start, data in parts:
        body += struct.pack(">ihqqq", number, error, end, 0, start)
        body += b"\2" + struct.pack(">qq", 1, 1) + b"\0" + struct.pack(">i", -1)
        size = 0 if data is None else len(data) + 1
        body += bytes([size & 0x7F | 0x80, size >> 7]) + (data or b"") + b"\1\5\3abc"
    return body + b"\0\0"


@pytest.mark.parametrize("version", [11, 13])
def test_answers_are_read_with_all_they_may_hold(version: int) -> None:
    told = [(3, 0, 70, 2, b"x" * 200), (4, 6, -1, -1, None), (5, 0, 8, 0, b"")]
    read = VERSIONS[version].RESPONSE_TYPE.decode(BytesIO(response(version, told)))
    assert (read.error, read.session_id) == (70, 99)
    assert {one.topic for one in read.parts} == {"a" if version == 11 else ID}
    found = [(o.partition, o.error, o.high_watermark, o.log_start, o.data) for o in read.parts]
    assert found == [(*one[:4], one[4] or b"") for one in told]


@pytest.mark.parametrize("version", [11, 13])
@given(length=st.integers(0, 90))
def test_an_answer_cut_short_is_an_error_not_a_loop(version: int, length: int) -> None:
    whole = response(version, [(3, 0, 70, 2, b"x" * 9)])
    if length < len(whole) - 12:
        with pytest.raises((struct.error, IndexError)):
            VERSIONS[version].RESPONSE_TYPE.decode(BytesIO(whole[:length]))


# ------------------------------------------------------------ sessions


def wanted(*parts: FetchPart) -> dict[tuple[str, int], FetchPart]:
    return {(one.topic, one.partition): one for one in parts}


def test_a_session_names_only_what_changed() -> None:
    session = FetchSession()
    first = wanted(part(1), part(2))
    assert session.forgotten(first) == []
    assert session.changes(first) == list(first.values())
    session.answered(77)
    assert (session.id, session.epoch) == (77, 1)
    then = wanted(part(1), part(2, 5), part(3))
    assert session.forgotten(then) == []
    assert session.changes(then) == [part(2, 5), part(3)]
    session.answered(77)
    less = wanted(part(2, 5))
    assert session.forgotten(less) == [part(1), part(3)]
    assert session.changes(less) == []
    assert session.epoch == 2


def test_a_topic_made_anew_leaves_the_session_and_comes_again() -> None:
    session = FetchSession()
    session.changes(wanted(part(1)))
    session.answered(77)
    anew = wanted(part(1, topic_id=b"n" * 16))
    assert session.forgotten(anew) == [part(1)]
    assert session.changes(anew) == list(anew.values())


def test_without_a_session_everything_is_named_each_time() -> None:
    session = FetchSession()
    for _ in range(2):
        assert session.changes(wanted(part(1))) == [part(1)]
        session.answered(0)
        assert (session.id, session.epoch) == (0, 0)
        assert session.forgotten({}) == []


def test_epochs_of_a_session_go_round_past_zero() -> None:
    session = FetchSession()
    session.epoch = (1 << 31) - 1
    session.answered(5)
    assert session.epoch == 1


# ------------------------------------------------------------ batches

RECORDS = st.lists(
    st.builds(LogRecord, key=st.binary(max_size=40), value=st.binary(max_size=400)),
    min_size=1,
    max_size=30,
)


@given(records=RECORDS, limit=st.integers(BATCH_OVERHEAD_BYTES, 2_000))
def test_parts_are_in_order_and_within_the_limit(records: list[LogRecord], limit: int) -> None:
    parts = cut(records, limit)
    assert [record for one in parts for record in one] == records
    for one in parts:
        batch = build(one, Identity(7, 1), 5, 1_700_000_000_000)
        bound = BATCH_OVERHEAD_BYTES + sum(map(framed_bytes, one))
        assert len(batch) <= bound, "the bound is one"
        assert len(one) == 1 or bound <= limit


@given(records=RECORDS, offset=st.integers(0, 40), broken=st.integers(0, 100))
def test_what_was_built_is_read_from_any_offset_on(
    records: list[LogRecord], offset: int, broken: int
) -> None:
    data = build(records, Identity(7, 1), 0, 1_700_000_000_000)
    read = decode(data, offset)
    assert [one.offset for one in read.records] == list(range(offset, len(records)))
    assert [(one.key, one.value) for one in read.records] == [
        (one.key, one.value) for one in records[offset:]
    ]
    assert read.next == max(offset, len(records))
    assert read.whole == 1
    half = decode(data + data[: len(data) // 2], 0)
    assert len(half.records) == len(records), "a batch that is cut off is left for the next answer"
    assert decode(data[:-1], 3) == decode(b"", 3)
    place = 17 + broken % (len(data) - 17)
    with pytest.raises(BatchesBroken):
        decode(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :], 0)


def test_the_mark_of_a_transaction_takes_an_offset_and_is_a_record_that_nobody_decodes() -> None:
    """Another producer's: every consumer counts offsets, and would stop before a hole."""
    data = batch(b"ours") + marked(first=1) + batch(b"behind", first=2)
    read = decode(data, 0)
    assert [one.offset for one in read.records] == [0, 1, 2]
    assert isinstance(read_outbox(read.records[1].value), Undecodable)
    assert decode(marked(first=1), 1).next == 2


@pytest.mark.parametrize("codec", [2, 3, 4, 5])
def test_what_can_t_be_unpacked_here_is_told_with_what_is_lacking(codec: int) -> None:
    packed = sealed(batch(b"abc", first=1), codec)
    with pytest.raises(BatchPacked, match=rf"batch at 1 .*codec {codec}.*cramjam"):
        decode(packed + batch(b"d", first=2), 1)
    read = decode(batch(b"ours") + packed, 0)
    assert ([one.value for one in read.records], read.next, read.whole) == ([b"ours"], 1, 1)


def test_rubbish_under_a_good_checksum_is_no_record() -> None:
    with pytest.raises(BatchPacked, match="can't be unpacked"):
        decode(sealed(batch(b"abc"), 1), 0)


def test_an_older_format_is_none_of_ours() -> None:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1_000)
    builder.append(0, 0, b"k", b"v", [])
    data = bytearray(builder.build())
    data[16] = 1
    with pytest.raises(BatchesBroken):
        decode(bytes(data), 0)


@given(data=st.binary(max_size=200), place=st.integers(0, 60), byte=st.integers(0, 255))
def test_bytes_that_are_no_batch_are_told_apart_from_records(
    data: bytes, place: int, byte: int
) -> None:
    good = build([LogRecord(key=b"k", value=b"v")], Identity(7, 1), 0, 1_700_000_000_000)
    for hostile in (data, good[:place] + bytes([byte]) + good[place + 1 :]):
        try:
            read = decode(hostile, 0)
        except BatchesBroken:
            continue
        assert len(read.records) <= 1


def test_sequence_numbers_go_round() -> None:
    assert sequence_after(5, 3) == 8
    assert sequence_after((1 << 31) - 2, 2) == 0
    assert sequence_after((1 << 31) - 1, 4) == 3


def test_limits_of_a_fetch_give_at_least_one() -> None:
    records = [StoredRecord(offset=n, append_time=0, key=b"k", value=b"v" * 9) for n in range(5)]
    assert within(records, 1, 2, 1_000) == records[1:3]
    assert within(records, 1, 9, 20) == records[1:3]
    assert within(records, 1, 9, 1) == records[1:2]
    assert within(records, 5, 9, 1) == []
