"""The one request of our own, against bytes as a broker of version 10 sends and expects them."""

from __future__ import annotations

import struct
from io import BytesIO

import pytest
from aiokafka.errors import IncompatibleBrokerVersion

from stores.topic_ids import ClusterTopics, TopicFacts, TopicIdsRequest, topics_of

ID = bytes(range(16))


def text(value: str | None) -> bytes:
    raw = (value or "").encode()
    return bytes([0]) if value is None else bytes([len(raw) + 1]) + raw


def partition(number: int, leader: int = 1, error: int = 0) -> bytes:
    replicas = b"\x02" + struct.pack(">i", 1)
    return struct.pack(">hiii", error, number, leader, 0) + 2 * replicas + b"\x01\x00"


def topic(name: str, topic_id: bytes, partitions: list[bytes], error: int = 0) -> bytes:
    head = struct.pack(">h", error) + text(name) + topic_id + b"\x00"
    return (
        head + bytes([len(partitions) + 1]) + b"".join(partitions) + struct.pack(">i", 0) + b"\x00"
    )


def response(cluster_id: str | None, *topics: bytes) -> ClusterTopics:
    broker = struct.pack(">i", 1) + text("h") + struct.pack(">i", 9092) + text(None) + b"\x00"
    raw = struct.pack(">i", 0) + b"\x02" + broker + text(cluster_id) + struct.pack(">i", 1)
    raw += bytes([len(topics) + 1]) + b"".join(topics) + struct.pack(">i", 0) + b"\x00"
    kind = TopicIdsRequest([]).prepare({3: (0, 12)}).RESPONSE_TYPE
    data = BytesIO(raw)
    decoded = kind.decode(data)
    assert data.read() == b""
    return topics_of(decoded)


@pytest.mark.contract("LOG-02")
def test_ids_counts_and_leaders_are_read() -> None:
    found = response("c1", topic("a", ID, [partition(0), partition(1)]), topic("b", ID, []))
    assert found == ClusterTopics(
        "c1", {"a": TopicFacts(ID.hex(), 2, 0), "b": TopicFacts(ID.hex(), 0, 0)}
    )


@pytest.mark.contract("LOG-02")
def test_a_zero_id_is_no_id_and_a_topic_with_an_error_is_not_there() -> None:
    found = response(None, topic("a", bytes(16), [partition(0, leader=-1), partition(1, error=5)]))
    assert found == ClusterTopics(None, {"a": TopicFacts(None, 2, 2)})
    assert response("c1", topic("a", bytes(16), [], error=3)) == ClusterTopics("c1", {})


def test_the_request_names_topics_and_creates_none() -> None:
    request = TopicIdsRequest(["ab"]).prepare({3: (0, 12)})
    assert request.API_VERSION == 10
    assert request.encode() == b"\x02" + bytes(16) + b"\x03ab\x00" + b"\x00\x00\x00\x00"


def test_a_broker_that_does_not_know_the_version_is_told_apart() -> None:
    with pytest.raises(RuntimeError):
        TopicIdsRequest(["a"]).prepare({3: (0, 9)})
    with pytest.raises(IncompatibleBrokerVersion):
        TopicIdsRequest(["a"]).prepare({})
