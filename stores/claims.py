"""Whose keys are these? The cluster and the topics that an app_id's keys belong to, recorded beside the keys (LOG-02).

Every instance knows the cluster id (`<app_id>:owner`), so that two systems that were given the same app_id by mistake never
write into each other's keys. The first mailbox instance and the first commit instance also know the topic ids
(`<app_id>:topics`): when one of them comes back empty, the other still remembers. The first mailbox instance knows
whether a rebuild has begun and not ended (`<app_id>:rebuild`): until then what is derived is not whole, and nobody may
start on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lua import load
from schemas.errors import StartRefused, StoreFault
from stores.log_gate import RecordedLog
from stores.redis_link import RedisLink
from stores.topic_ids import ClusterTopics, TopicFacts

__all__ = [
    "accept_topic",
    "begin_rebuild",
    "check_rebuild",
    "claim_log",
    "claim_owner",
    "end_rebuild",
    "owner_faults",
    "recorded_log",
    "unfinished_rebuild",
]

_CLAIM: Final = load("claim_log")
_CLAIM_OWNER: Final = load("claim_layout")
_CLUSTER: Final = "cluster"
_TOPIC: Final = "topic:"


def _parse(flat: Sequence[bytes]) -> RecordedLog:
    fields = {flat[i].decode(): flat[i + 1].decode() for i in range(0, len(flat), 2)}
    topics = {}
    try:
        for name, value in fields.items():
            if name.startswith(_TOPIC):
                topic_id, partitions = value.split(" ")
                topics[name.removeprefix(_TOPIC)] = (topic_id, int(partitions))
    except ValueError as error:
        raise StoreFault("the record of topics is damaged") from error
    return RecordedLog(fields.get(_CLUSTER), topics)


async def recorded_log(link: RedisLink, app_id: str) -> RecordedLog:
    """What an earlier start recorded on this instance; raises StoreFault on damage."""
    flat: list[bytes] = await link.command("HGETALL", f"{app_id}:topics")
    return _parse(flat)


async def claim_log(link: RedisLink, app_id: str, cluster: ClusterTopics) -> RecordedLog:
    """Record what is not recorded yet and return the record as it is now; never changes an entry."""
    fields: list[str] = [_CLUSTER, cluster.cluster_id or ""]
    for name, topic in cluster.topics.items():
        fields += (f"{_TOPIC}{name}", f"{topic.topic_id} {topic.partitions}")
    flat: list[bytes] = await link.run(_CLAIM, *fields, keys=(f"{app_id}:topics",))
    return _parse(flat)


async def accept_topic(link: RedisLink, app_id: str, name: str, topic: TopicFacts) -> None:
    """Record a topic that was made anew; only for topics whose positions are part of nothing that is stored."""
    entry = f"{topic.topic_id} {topic.partitions}"
    await link.command("HSET", f"{app_id}:topics", f"{_TOPIC}{name}", entry)


async def owner_faults(links: Sequence[RedisLink], app_id: str, cluster_id: str) -> list[str]:
    """Instances on which this app_id belongs to another cluster; reads only."""
    faults = []
    for link in links:
        owner: bytes | None = await link.command("GET", f"{app_id}:owner")
        if owner is not None and owner != cluster_id.encode():
            faults.append(_owner_fault(link.name, app_id, owner.decode(errors="replace")))
    return faults


def _owner_fault(name: str, app_id: str, owner: str) -> str:
    return (
        f"{name}: the keys of app_id {app_id} belong to the cluster {owner}: two systems may not"
        " share an app_id on one Redis, use a new app_id or the former cluster"
    )


async def claim_owner(links: Sequence[RedisLink], app_id: str, cluster_id: str) -> None:
    """Record the cluster on every instance; raises StartRefused where another one came first."""
    for link in links:
        owner = (await link.run(_CLAIM_OWNER, cluster_id, keys=(f"{app_id}:owner",))).decode()
        if owner != cluster_id:
            raise StartRefused(_owner_fault(link.name, app_id, owner))


async def unfinished_rebuild(links: Sequence[RedisLink], app_id: str) -> str | None:
    """What a rebuild that has begun and not ended is about, None when there is none."""
    what: bytes | None = await links[0].command("GET", f"{app_id}:rebuild")
    return None if what is None else what.decode(errors="replace")


async def check_rebuild(links: Sequence[RedisLink], app_id: str) -> list[str]:
    """The reason not to start while a rebuild has not ended; reads only."""
    what = await unfinished_rebuild(links, app_id)
    if what is None:
        return []
    return [f"a rebuild of {what} has not ended: run `qimctl rebuild {what}` again"]


async def begin_rebuild(links: Sequence[RedisLink], app_id: str, what: str) -> None:
    """Mark that `what` is being thrown away."""
    await links[0].command("SET", f"{app_id}:rebuild", what)


async def end_rebuild(links: Sequence[RedisLink], app_id: str) -> None:
    """Mark that everything derived is whole again."""
    await links[0].command("DEL", f"{app_id}:rebuild")
