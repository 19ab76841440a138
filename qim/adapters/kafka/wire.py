"""Requests that aiokafka has no structures for: topic ids (KIP-516) and leader epochs (KIP-320). Fetch: fetch_wire.py."""

from io import BytesIO
from typing import Any, Final

from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.produce import ProduceRequest_v7, ProduceRequest_v8
from aiokafka.protocol.types import (
    Array,
    Boolean,
    CompactArray,
    CompactBytes,
    CompactString,
    Int8,
    Int16,
    Int32,
    Int64,
    Schema,
    String,
    TaggedFields,
)

NO_TOPIC_ID: Final = bytes(16)
EARLIEST: Final = -2
LATEST: Final = -1
ACKS_ALL: Final = -1
METADATA_KEY: Final = 3
METADATA_VERSION: Final = 10


class Uuid(AbstractType):  # type: ignore[misc]
    """16 bytes."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        """As they are."""
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        """As they are."""
        return data.read(16)


class MetadataResponse10(Response):  # type: ignore[misc]
    """Brokers, and of each topic its id, leaders, leader epochs, replicas."""

    API_KEY = METADATA_KEY
    API_VERSION = METADATA_VERSION
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString("utf-8")),
                ("port", Int32),
                ("rack", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("name", CompactString("utf-8")),
                ("topic_id", Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorised_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("authorised_operations", Int32),
        ("tags", TaggedFields),
    )


class MetadataRequest10(RequestStruct):  # type: ignore[misc]
    """By topic name; never creates one."""

    FLEXIBLE_VERSION = True
    API_KEY = METADATA_KEY
    API_VERSION = METADATA_VERSION
    RESPONSE_TYPE = MetadataResponse10
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(
                ("topic_id", Uuid), ("name", CompactString("utf-8")), ("tags", TaggedFields)
            ),
        ),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorised_operations", Boolean),
        ("include_topic_authorised_operations", Boolean),
        ("tags", TaggedFields),
    )


class AskMetadata(Request[MetadataRequest10]):  # type: ignore[misc]
    """Of these topics."""

    API_KEY = METADATA_KEY

    def __init__(self, names: list[str]) -> None:
        tags: dict[int, bytes] = {}
        self._topics = [(NO_TOPIC_ID, name, tags) for name in names]

    def build(self, request_struct_class: Any) -> Any:
        """For the version both sides speak."""
        return request_struct_class(self._topics, False, False, False, {})


class OffsetsResponse5(Response):  # type: ignore[misc]
    """An offset a partition."""

    API_KEY = 2
    API_VERSION = 5
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            Array(
                ("name", String("utf-8")),
                (
                    "partitions",
                    Array(
                        ("partition", Int32),
                        ("error_code", Int16),
                        ("timestamp", Int64),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                    ),
                ),
            ),
        ),
    )


class OffsetsRequest5(RequestStruct):  # type: ignore[misc]
    """Refused by a broker that leads under another epoch than we know."""

    API_KEY = 2
    API_VERSION = 5
    RESPONSE_TYPE = OffsetsResponse5
    SCHEMA = Schema(
        ("replica_id", Int32),
        ("isolation_level", Int8),
        (
            "topics",
            Array(
                ("name", String("utf-8")),
                (
                    "partitions",
                    Array(("partition", Int32), ("leader_epoch", Int32), ("timestamp", Int64)),
                ),
            ),
        ),
    )


class OffsetsRequest4(OffsetsRequest5):
    """The same bytes; only what a broker may answer while it is elected differs."""

    API_VERSION = 4


class AskOffsets(Request[OffsetsRequest4 | OffsetsRequest5]):  # type: ignore[misc]
    """``asked``: (topic name, partition, leader epoch); ``timestamp``: EARLIEST or LATEST."""

    API_KEY = 2

    def __init__(self, asked: list[tuple[str, int, int]], timestamp: int) -> None:
        topics: dict[str, list[tuple[int, int, int]]] = {}
        for name, partition, epoch in asked:
            topics.setdefault(name, []).append((partition, epoch, timestamp))
        self._topics = list(topics.items())

    def build(self, request_struct_class: Any) -> Any:
        """For the version both sides speak."""
        return request_struct_class(-1, 0, self._topics)


class ProduceResponse13(Response):  # type: ignore[misc]
    """Topics by id."""

    API_KEY = 0
    API_VERSION = 13
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(
                ("topic_id", Uuid),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("error_code", Int16),
                        ("offset", Int64),
                        ("timestamp", Int64),
                        ("log_start_offset", Int64),
                        (
                            "record_errors",
                            CompactArray(
                                ("batch_index", Int32),
                                ("message", CompactString("utf-8")),
                                ("tags", TaggedFields),
                            ),
                        ),
                        ("error_message", CompactString("utf-8")),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("throttle_time_ms", Int32),
        ("tags", TaggedFields),
    )


class ProduceRequest13(RequestStruct):  # type: ignore[misc]
    """Topics by id: what was meant for a topic that was made anew meanwhile is refused."""

    FLEXIBLE_VERSION = True
    API_KEY = 0
    API_VERSION = 13
    RESPONSE_TYPE = ProduceResponse13
    SCHEMA = Schema(
        ("transactional_id", CompactString("utf-8")),
        ("required_acks", Int16),
        ("timeout", Int32),
        (
            "topics",
            CompactArray(
                ("topic_id", Uuid),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32), ("records", CompactBytes), ("tags", TaggedFields)
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class AskAppend(Request[ProduceRequest_v7 | ProduceRequest_v8 | ProduceRequest13]):  # type: ignore[misc]
    """acks=all. ``batches`` by topic name, ``topic_ids`` of these names.

    From version 8 on the answer names the record that was refused (KIP-467); aiokafka has it, and doesn't ask for it.
    From version 13 on it goes by topic id.
    """

    API_KEY = 0

    def __init__(
        self,
        batches: dict[str, list[tuple[int, bytes]]],
        topic_ids: dict[str, bytes],
        *,
        acks_ms: int,
    ) -> None:
        self._batches = batches
        self._topic_ids = topic_ids
        self._acks_ms = acks_ms

    def build(self, request_struct_class: Any) -> Any:
        """For the version both sides speak."""
        no_transaction, tags = None, dict[int, bytes]()
        if request_struct_class is not ProduceRequest13:
            topics: list[Any] = list(self._batches.items())
            return request_struct_class(no_transaction, ACKS_ALL, self._acks_ms, topics)
        topics = [
            (self._topic_ids[name], [(number, batch, tags) for number, batch in parts], tags)
            for name, parts in self._batches.items()
        ]
        return request_struct_class(no_transaction, ACKS_ALL, self._acks_ms, topics, tags)
