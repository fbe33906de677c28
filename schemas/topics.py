"""The only place that spells a topic name.

The partition of `dispatch` is the mailbox shard and its offset is part of mailbox_seq, so these topics are never
compacted, never re-created and never repartitioned by a framework (ADAPT-12, ADAPT-13). Changelogs of tables are
compacted without a time limit (ADAPT-10).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from schemas.config import Settings
from schemas.constants import (
    CHANGELOG_COMPACTION_LAG_MS,
    DISPATCH_RETENTION_MS,
    OUTBOX_RETENTION_MS,
)
from schemas.identifiers import commit_bucket

__all__ = [
    "PROGRESS_TABLE",
    "WATERMARKS_TABLE",
    "TopicSpec",
    "changelog_topic",
    "dispatch_topic",
    "outbox_partition_of",
    "outbox_topic",
    "push_partition_of",
    "push_topic",
    "topic_specs",
]

PROGRESS_TABLE: Final = "progress"
WATERMARKS_TABLE: Final = "watermarks"
_PUSH_RETENTION_MS: Final = (
    10 * 60 * 1000
)  # a push older than that is pulled from the mailbox anyway
_KEEP: Final = -1


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """What a topic must be: created so when absent, checked against this at every start (fail closed)."""

    name: str
    partitions: int
    cleanup_policy: str  # "delete" or "compact"
    retention_ms: int  # -1: no time limit

    @property
    def config(self) -> dict[str, str]:
        """Topic-level broker settings."""
        config = {"cleanup.policy": self.cleanup_policy, "retention.ms": str(self.retention_ms)}
        if self.cleanup_policy == "compact":
            # A segment must roll before it can be compacted; small ones keep recovery short.
            config |= {
                "segment.bytes": str(16 * 1024 * 1024),
                "min.cleanable.dirty.ratio": "0.3",
                "min.compaction.lag.ms": str(CHANGELOG_COMPACTION_LAG_MS),
            }
        return config


def outbox_topic(app_id: str) -> str:
    """Committed messages (COM-09); partition = commit bucket % partitions (LOG-14)."""
    return f"{app_id}.outbox.v1"


def dispatch_topic(app_id: str) -> str:
    """One record per (message, mailbox shard); partition = shard (DISP-12)."""
    return f"{app_id}.dispatch.v1"


def push_topic(app_id: str) -> str:
    """PushBatch records; partition = connection shard."""
    return f"{app_id}.push.v1"


def changelog_topic(app_id: str, table: str) -> str:
    """The changelog of a table, named as Faust names it."""
    return f"{app_id}-{table}-changelog"


def outbox_partition_of(tenant: int, conversation_id: bytes, partitions: int) -> int:
    """All messages of a conversation share an outbox partition, which keeps their order."""
    return commit_bucket(tenant, conversation_id) % partitions


def push_partition_of(bucket: int, partitions: int) -> int:
    """Connection shard of a user, from the stable virtual bucket."""
    return bucket % partitions


def topic_specs(settings: Settings) -> list[TopicSpec]:
    """Every topic of the system, in the order in which data flows."""
    app, shards = settings.app_id, settings.mailbox_shard_count
    return [
        TopicSpec(outbox_topic(app), settings.outbox_partitions, "delete", OUTBOX_RETENTION_MS),
        TopicSpec(dispatch_topic(app), shards, "delete", DISPATCH_RETENTION_MS),
        TopicSpec(changelog_topic(app, PROGRESS_TABLE), shards, "compact", _KEEP),
        TopicSpec(changelog_topic(app, WATERMARKS_TABLE), shards, "compact", _KEEP),
        TopicSpec(push_topic(app), settings.push_partitions, "delete", _PUSH_RETENTION_MS),
    ]
