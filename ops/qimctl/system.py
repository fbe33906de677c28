"""One application as the tool sees it: its settings, its servers, its log; gates passed before anything is touched."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ops.qimctl.mailboxes import MailboxKeys, user_of
from schemas.config import Settings
from schemas.errors import StartRefused
from schemas.identifiers import shard_of
from schemas.topics import (
    PROGRESS_TABLE,
    WATERMARKS_TABLE,
    changelog_topic,
    dispatch_topic,
    topic_specs,
)
from schemas.watermarks import NOTHING, unpack_w
from stores.claims import accept_topic, owner_faults, recorded_log
from stores.leases import RedisShardLeases
from stores.log_gate import LogFacts, judge_log, read_log
from stores.redis_gate import RedisRole, judge_redis
from stores.redis_link import RedisLink
from stores.redis_mailbox import RedisMailboxStore
from streams.expand import ShardContext

__all__ = ["System", "open_system"]


@dataclass(frozen=True, slots=True)
class System:
    """What every command needs; `mailbox` and `commit` are the instances in order."""

    settings: Settings
    mailbox: Sequence[RedisLink]
    commit: Sequence[RedisLink]

    @property
    def shards(self) -> int:
        """Number of mailbox shards."""
        return self.settings.mailbox_shard_count

    @property
    def leases(self) -> RedisShardLeases:
        """Leases, terms and epoch boundaries."""
        return RedisShardLeases(self.mailbox, self.settings.app_id)

    @property
    def store(self) -> RedisMailboxStore:
        """The mailboxes."""
        return RedisMailboxStore(self.mailbox, self.settings.app_id)

    @property
    def keys(self) -> MailboxKeys:
        """The mailboxes, as keys."""
        return MailboxKeys(self.mailbox, self.settings.app_id, self.shards)

    @property
    def dispatch(self) -> str:
        """The topic that is replayed."""
        return dispatch_topic(self.settings.app_id)

    @property
    def changelogs(self) -> tuple[str, str]:
        """Changelogs of the tables progress and watermarks."""
        app_id = self.settings.app_id
        return changelog_topic(app_id, PROGRESS_TABLE), changelog_topic(app_id, WATERMARKS_TABLE)

    async def context(self, shard: int) -> ShardContext:
        """What a replay needs to know of a shard; raises StartRefused for one that no worker ever held."""
        boundaries = await self.leases.boundaries(shard)
        if not boundaries:
            raise StartRefused(f"shard {shard} was never held: there is nothing to replay")
        return ShardContext(shard, self.shards, self.settings.push_partitions, boundaries)

    def shard_of_key(self, user_key: str) -> int:
        """The shard of a user, by the store's user key."""
        return shard_of(*user_of(user_key), self.shards)

    async def store_marks(self, shard: int) -> list[int]:
        """The store's W by lane (log offsets, -1: nothing), empty where none is stored."""
        stored = await self.store.watermark(shard)
        return [] if stored is None else [mark.w for mark in unpack_w(stored.blob)]

    async def store_limit(self, shard: int) -> int:
        """The log offset up to which every lane of the mailbox is complete, -1 for none."""
        return min(await self.store_marks(shard), default=NOTHING)

    async def gate(self, *, new_changelogs: bool = False) -> LogFacts:
        """What the log is, once Redis and log are judged as at a start; `new_changelogs` may be made anew.

        Raises StartRefused with every reason, ServerFault when a server does not answer.
        """
        settings, faults = self.settings, []
        for link in self.mailbox:
            unsafe = settings.redis_allow_unsafe_dev
            faults += await judge_redis(link, RedisRole.MAILBOX, allow_unsafe_dev=unsafe)
        if faults:
            raise StartRefused("; ".join(faults))
        specs = topic_specs(settings)
        facts = await read_log(settings.broker, specs)
        recorded = await recorded_log(self.mailbox[0], settings.app_id)
        if new_changelogs:
            kept = {n: t for n, t in recorded.topics.items() if n not in self.changelogs}
            recorded = recorded._replace(topics=kept)
        faults += judge_log(settings, specs, facts, recorded)
        cluster_id = facts.cluster.cluster_id or ""
        faults += await owner_faults(self.mailbox, settings.app_id, cluster_id)
        if faults:
            raise StartRefused("; ".join(faults))
        return facts

    async def accept(self, facts: LogFacts, names: Sequence[str]) -> None:
        """Record these topics as they are now, wherever a record stands."""
        for link in (self.mailbox[0], self.commit[0]):
            if (await recorded_log(link, self.settings.app_id)).cluster_id is not None:
                for name in names:
                    await accept_topic(link, self.settings.app_id, name, facts.cluster.topics[name])


@asynccontextmanager
async def open_system(settings: Settings) -> AsyncIterator[System]:
    """Links to the servers of the settings; closed at the end."""
    mailbox = [RedisLink(url) for url in settings.mailbox_redis]
    commit = [RedisLink(url) for url in settings.commit_redis]
    try:
        yield System(settings, mailbox, commit)
    finally:
        for link in [*mailbox, *commit]:
            await link.close()
