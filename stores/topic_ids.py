"""Cluster id and topic ids as the broker tells them: a Metadata request of version 10 (KIP-516, LOG-02).

aiokafka 0.14 ends at version 5, which knows neither; this is the smallest request that does, in aiokafka's own terms, so
that it travels over aiokafka's connections and is refused where the broker does not know the version.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Final, NamedTuple, cast

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    AbstractType,
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

__all__ = ["ClusterTopics", "TopicFacts", "TopicIdsRequest", "topics_of"]

_ID_BYTES: Final = 16


class _Id(AbstractType):  # type: ignore[misc]  # aiokafka has no types
    """A UUID: 16 raw bytes."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        """Raw bytes as they are."""
        return value

    @classmethod
    def decode(cls, data: Any) -> bytes:
        """Raw bytes as they are; raises ValueError where there are fewer."""
        raw = cast("bytes", data.read(_ID_BYTES))
        if len(raw) != _ID_BYTES:
            raise ValueError("a topic id is cut off")
        return raw


_PARTITION: Final = (
    ("error_code", Int16),
    ("partition", Int32),
    ("leader", Int32),
    ("leader_epoch", Int32),
    ("replicas", CompactArray(Int32)),
    ("isr", CompactArray(Int32)),
    ("offline_replicas", CompactArray(Int32)),
    ("tags", TaggedFields),
)
_TOPIC: Final = (
    ("error_code", Int16),
    ("topic", CompactString("utf-8")),
    ("topic_id", _Id),
    ("is_internal", Boolean),
    ("partitions", CompactArray(*_PARTITION)),
    ("authorized_operations", Int32),
    ("tags", TaggedFields),
)
_BROKER: Final = (
    ("node_id", Int32),
    ("host", CompactString("utf-8")),
    ("port", Int32),
    ("rack", CompactString("utf-8")),
    ("tags", TaggedFields),
)


class _MetadataResponseV10(Response):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 3
    API_VERSION = 10
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", CompactArray(*_BROKER)),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        ("topics", CompactArray(*_TOPIC)),
        ("authorized_operations", Int32),
        ("tags", TaggedFields),
    )


class _MetadataRequestV10(RequestStruct):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 3
    API_VERSION = 10
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _MetadataResponseV10
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(
                ("topic_id", _Id), ("topic", CompactString("utf-8")), ("tags", TaggedFields)
            ),
        ),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class TopicIdsRequest(Request[_MetadataRequestV10]):  # type: ignore[misc]  # aiokafka has no types
    """Ask for some topics by name; never creates one."""

    API_KEY: ClassVar[int] = 3

    def __init__(self, names: Iterable[str]) -> None:
        self._names = list(names)

    def build(self, request_struct_class: Any) -> Any:
        """The request in the one version that it has."""
        topics: list[tuple[bytes, str, dict[int, bytes]]] = [
            (bytes(_ID_BYTES), name, {}) for name in self._names
        ]
        return request_struct_class(topics, False, False, False, {})


class TopicFacts(NamedTuple):
    """One topic: its id (32 hex digits, None where the broker gives none), partitions, and how many lack a leader."""

    topic_id: str | None
    partitions: int
    leaderless: int


class ClusterTopics(NamedTuple):
    """The broker's answer: cluster id (None: not told) and the topics that exist."""

    cluster_id: str | None
    topics: dict[str, TopicFacts]


def topics_of(response: Any) -> ClusterTopics:
    """What a response to TopicIdsRequest says; a topic with an error is left out."""
    found = {}
    for topic in response.topics:
        error, name, raw_id, _internal, partitions = topic[:5]
        if error == 0:
            leaderless = sum(partition[0] != 0 or partition[2] < 0 for partition in partitions)
            found[name] = TopicFacts(
                raw_id.hex() if any(raw_id) else None, len(partitions), leaderless
            )
    return ClusterTopics(response.cluster_id or None, found)
