"""Fetch requests and answers, framed by hand: the one request with many partitions, and the one on the hot path.

Version 13 names the topic by id, so records of a topic that was made anew can't come under the old name; version 11 is
for brokers without.
"""

import struct
from io import BytesIO
from typing import Any, ClassVar, Final

from aiokafka.protocol.api import Request, RequestStruct
from aiokafka.protocol.types import Schema, String
from msgspec import Struct


class FetchPart(Struct, frozen=True, kw_only=True):
    """One partition of a fetch request; ``topic`` and ``topic_id`` as the cluster view has them."""

    topic: str
    topic_id: bytes
    partition: int
    leader_epoch: int
    offset: int
    bytes_max: int


class FetchedPart(Struct, frozen=True, kw_only=True):
    """One partition of the answer; ``topic`` is a name in version 11 and an id in version 13."""

    topic: str | bytes
    partition: int
    error: int
    high_watermark: int
    log_start: int
    data: bytes


class FetchResponse(Struct, frozen=True, kw_only=True):
    """``error`` is that of the session, not of a partition."""

    error: int
    session_id: int
    parts: list[FetchedPart]


_HEAD: Final = struct.Struct(">iiiibii")
_PART_13: Final = struct.Struct(">iiqiqix")
_PART_11: Final = struct.Struct(">iiqqi")
_PART_HEAD: Final = struct.Struct(">ihqqq")
_INT32: Final = struct.Struct(">i")
_INT16: Final = struct.Struct(">h")


class _Fetch(RequestStruct):  # type: ignore[misc]
    """Common to both versions: everything is handed over as it goes onto the wire."""

    API_KEY = 1
    API_VERSION = 0
    RESPONSE_TYPE: ClassVar[Any] = None
    SCHEMA = Schema()

    def __init__(self, asked: "AskFetch") -> None:
        super().__init__()
        self.asked = asked

    def _head(self) -> bytes:
        asked = self.asked
        return _HEAD.pack(
            -1,
            asked.wait_ms,
            1 if asked.wait_ms else 0,
            asked.bytes_max,
            0,
            asked.session_id,
            asked.session_epoch,
        )


class _Response11:
    """Decoder of version 11."""

    @staticmethod
    def decode(data: BytesIO) -> FetchResponse:
        """Raises struct.error or IndexError on bytes that are none."""
        view = memoryview(data.getbuffer())
        at = data.tell()
        error, session_id, topics = struct.unpack_from(">xxxxhii", view, at)
        at += 14
        parts: list[FetchedPart] = []
        for _ in range(topics):
            (length,) = _INT16.unpack_from(view, at)
            name = str(view[at + 2 : at + 2 + length], "utf-8")
            at += 2 + length
            (count,) = _INT32.unpack_from(view, at)
            at += 4
            for _ in range(count):
                partition, code, end, _, start = _PART_HEAD.unpack_from(view, at)
                at += _PART_HEAD.size
                (aborted,) = _INT32.unpack_from(view, at)
                at += 4 + 16 * max(0, aborted) + 4
                (size,) = _INT32.unpack_from(view, at)
                at += 4
                size = max(0, size)
                parts.append(
                    FetchedPart(
                        topic=name,
                        partition=partition,
                        error=code,
                        high_watermark=end,
                        log_start=start,
                        data=bytes(view[at : at + size]),
                    )
                )
                at += size
        return FetchResponse(error=error, session_id=session_id, parts=parts)


class _Response13:
    """Decoder of version 13."""

    @staticmethod
    def decode(data: BytesIO) -> FetchResponse:
        """Raises struct.error or IndexError on bytes that are none."""
        view = memoryview(data.getbuffer())
        at = data.tell()
        error, session_id = struct.unpack_from(">xxxxhi", view, at)
        topics, at = _varint(view, at + 10)
        parts: list[FetchedPart] = []
        for _ in range(topics - 1):
            topic_id = bytes(view[at : at + 16])
            count, at = _varint(view, at + 16)
            for _ in range(count - 1):
                partition, code, end, _, start = _PART_HEAD.unpack_from(view, at)
                aborted, at = _varint(view, at + _PART_HEAD.size)
                for _ in range(aborted - 1):
                    at = _past_tags(view, at + 16)
                size, at = _varint(view, at + 4)
                size = max(0, size - 1)
                parts.append(
                    FetchedPart(
                        topic=topic_id,
                        partition=partition,
                        error=code,
                        high_watermark=end,
                        log_start=start,
                        data=bytes(view[at : at + size]),
                    )
                )
                at = _past_tags(view, at + size)
            at = _past_tags(view, at)
        return FetchResponse(error=error, session_id=session_id, parts=parts)


class _Fetch11(_Fetch):
    API_VERSION = 11
    RESPONSE_TYPE = _Response11

    def encode(self) -> bytes:
        """The body of the request."""
        topics: dict[str, list[FetchPart]] = {}
        for part in self.asked.parts:
            topics.setdefault(part.topic, []).append(part)
        out = bytearray(self._head())
        out += _INT32.pack(len(topics))
        for name, parts in topics.items():
            out += String("utf-8").encode(name) + _INT32.pack(len(parts))
            for one in parts:
                out += _PART_11.pack(one.partition, one.leader_epoch, one.offset, -1, one.bytes_max)
        forgotten: dict[str, list[int]] = {}
        for part in self.asked.forgotten:
            forgotten.setdefault(part.topic, []).append(part.partition)
        out += _INT32.pack(len(forgotten))
        for name, numbers in forgotten.items():
            out += String("utf-8").encode(name)
            out += struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
        return bytes(out + b"\0\0")


class _Fetch13(_Fetch):
    API_VERSION = 13
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _Response13

    def encode(self) -> bytes:
        """The body of the request."""
        topics: dict[bytes, list[FetchPart]] = {}
        for part in self.asked.parts:
            topics.setdefault(part.topic_id, []).append(part)
        out = bytearray(self._head())
        _put_varint(out, len(topics) + 1)
        for topic_id, parts in topics.items():
            out += topic_id
            _put_varint(out, len(parts) + 1)
            for one in parts:
                out += _PART_13.pack(
                    one.partition, one.leader_epoch, one.offset, -1, -1, one.bytes_max
                )
            out += b"\0"
        forgotten: dict[bytes, list[int]] = {}
        for part in self.asked.forgotten:
            forgotten.setdefault(part.topic_id, []).append(part.partition)
        _put_varint(out, len(forgotten) + 1)
        for topic_id, numbers in forgotten.items():
            out += topic_id
            _put_varint(out, len(numbers) + 1)
            out += struct.pack(f">{len(numbers)}i", *numbers) + b"\0"
        return bytes(out + b"\1\0")


class AskFetch(Request[_Fetch11 | _Fetch13]):  # type: ignore[misc]
    """``session_id`` 0 with ``session_epoch`` -1: no session. ``forgotten`` leave the session."""

    API_KEY = 1

    def __init__(
        self,
        parts: list[FetchPart],
        *,
        wait_ms: int,
        bytes_max: int,
        session_id: int = 0,
        session_epoch: int = -1,
        forgotten: list[FetchPart] | None = None,
    ) -> None:
        self.parts = parts
        self.wait_ms = wait_ms
        self.bytes_max = bytes_max
        self.session_id = session_id
        self.session_epoch = session_epoch
        self.forgotten = forgotten or []

    def build(self, request_struct_class: Any) -> Any:
        """For the version both sides speak."""
        return request_struct_class(self)


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _put_varint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _past_tags(view: memoryview, at: int) -> int:
    count, at = _varint(view, at)
    for _ in range(count):
        _, at = _varint(view, at)
        size, at = _varint(view, at)
        at += size
    return at
