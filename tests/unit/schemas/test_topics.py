"""Topic names and their shape, in one place."""

import pytest

from schemas.config import Settings
from schemas.constants import MAILBOX_RETENTION_DAYS, SECONDS_PER_DAY
from schemas.topics import (
    changelog_topic,
    dispatch_topic,
    outbox_partition_of,
    outbox_topic,
    push_partition_of,
    push_topic,
    topic_specs,
)
from tests.support.samples import id16

SETTINGS = Settings(app_id="chat", mailbox_shard_count=16, slot_count=4, push_partitions=3)


def test_names_are_frozen() -> None:
    assert [spec.name for spec in topic_specs(SETTINGS)] == [
        "chat.outbox.v1",
        "chat.dispatch.v1",
        "chat-progress-changelog",
        "chat-watermarks-changelog",
        "chat.push.v1",
    ]
    assert outbox_topic("chat") == "chat.outbox.v1"
    assert dispatch_topic("chat") == "chat.dispatch.v1"
    assert push_topic("chat") == "chat.push.v1"
    assert changelog_topic("chat", "progress") == "chat-progress-changelog"


@pytest.mark.contract("LOG-11", "LOG-14", "FAN-12")
def test_partitions_follow_the_start_up_contract() -> None:
    partitions = {spec.name: spec.partitions for spec in topic_specs(SETTINGS)}
    assert partitions["chat.dispatch.v1"] == 16
    assert partitions["chat-progress-changelog"] == 16
    assert partitions["chat-watermarks-changelog"] == 16
    assert partitions["chat.outbox.v1"] == 4
    assert partitions["chat.push.v1"] == 3


@pytest.mark.contract("ADAPT-10", "ADAPT-13")
def test_logs_are_kept_by_time_and_changelogs_for_ever() -> None:
    specs = {spec.name: spec for spec in topic_specs(SETTINGS)}
    for name in ("chat.outbox.v1", "chat.dispatch.v1"):
        assert specs[name].cleanup_policy == "delete"
        assert specs[name].retention_ms > MAILBOX_RETENTION_DAYS * SECONDS_PER_DAY * 1000
    for name in ("chat-progress-changelog", "chat-watermarks-changelog"):
        assert specs[name].config["cleanup.policy"] == "compact"
        assert specs[name].config["retention.ms"] == "-1"


@pytest.mark.parametrize("partitions", [1, 4, 16])
def test_a_conversation_keeps_its_outbox_partition(partitions: int) -> None:
    placed = [outbox_partition_of(0, id16(n), partitions) for n in range(1, 200)]
    assert placed == [outbox_partition_of(0, id16(n), partitions) for n in range(1, 200)]
    assert set(placed) == set(range(partitions))


def test_push_partition_of_a_bucket() -> None:
    assert [push_partition_of(bucket, 3) for bucket in (0, 1, 2, 3, 65535)] == [0, 1, 2, 0, 0]
