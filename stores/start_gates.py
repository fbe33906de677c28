"""The gates that a worker and a gateway pass before they write a byte or open a port (GATE-08 to GATE-10, GATE-27, ACC-M6).

Everything is read and judged first, all instances and the whole log, so that one refusal names all that is wrong. Only then
the claims are recorded: which layout, which cluster, which topics. Any doubt is a refusal.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Final

from schemas.config import Settings
from schemas.constants import COMMIT_BUCKET_COUNT
from schemas.errors import ServerFault, StartRefused
from schemas.topics import topic_specs
from stores.claims import check_rebuild, claim_log, claim_owner, owner_faults, recorded_log
from stores.leases import claim_layout
from stores.log_gate import LogFacts, judge_log, read_log
from stores.redis_gate import RedisRole, judge_redis
from stores.redis_link import RedisLink

__all__ = ["pass_start_gates"]

_LOG: Final = logging.getLogger(__name__)
_POLL_S: Final = 0.25


async def pass_start_gates(
    settings: Settings, mailbox: Sequence[RedisLink], commit: Sequence[RedisLink] = ()
) -> None:
    """Check the Redis instances and the log, then record whom they belong to.

    `commit` are the instances that the process commits on (none for a worker). A server that does not answer yet, or a
    partition without a leader, is waited for within the start's time limit (LOG-09). Raises StartRefused with every reason,
    ServerFault when a server never answered; nothing was written then.
    """
    deadline_s = time.monotonic() + settings.start_timeout_s
    facts: LogFacts | None = None
    while facts is None:
        late = time.monotonic() > deadline_s
        try:
            facts = await _judge(settings, mailbox, commit, late=late)
        except ServerFault as fault:
            if late:
                raise
            _LOG.warning("start waits: %s", fault.detail)
        if facts is None:
            await asyncio.sleep(_POLL_S)
    app_id = settings.app_id
    specs = topic_specs(settings)
    await claim_owner([*mailbox, *commit], app_id, facts.cluster.cluster_id or "")
    await claim_layout(mailbox, app_id, RedisRole.MAILBOX.value, settings.mailbox_shard_count)
    if commit:
        await claim_layout(commit, app_id, RedisRole.COMMIT.value, COMMIT_BUCKET_COUNT)
    for link in (*mailbox[:1], *commit[:1]):
        # Another process may have recorded meanwhile; what stands there now is what counts.
        now = await claim_log(link, app_id, facts.cluster)
        _refuse(judge_log(settings, specs, facts, now))


async def _judge(
    settings: Settings, mailbox: Sequence[RedisLink], commit: Sequence[RedisLink], *, late: bool
) -> LogFacts | None:
    """Read everything and refuse on any fault; returns what the broker said, None to ask again unless it is `late`."""
    unsafe, app_id = settings.redis_allow_unsafe_dev, settings.app_id
    faults: list[str] = []
    for links, role in ((mailbox, RedisRole.MAILBOX), (commit, RedisRole.COMMIT)):
        for link in links:
            faults += await judge_redis(link, role, allow_unsafe_dev=unsafe)
    _refuse(faults)  # keys of a Cluster, or of something older, are not even read
    specs = topic_specs(settings)
    facts = await read_log(settings.broker, specs)
    if not late and any(topic.leaderless for topic in facts.cluster.topics.values()):
        _LOG.warning("start waits: partitions have no leader yet")
        return None
    for link in (*mailbox[:1], *commit[:1]):
        faults += judge_log(settings, specs, facts, await recorded_log(link, app_id))
    faults += await owner_faults([*mailbox, *commit], app_id, facts.cluster.cluster_id or "")
    faults += await check_rebuild(mailbox, app_id)
    _refuse(faults)
    return facts


def _refuse(faults: Sequence[str]) -> None:
    if not faults:
        return
    distinct = list(dict.fromkeys(faults))
    for fault in distinct:
        _LOG.critical("start refused: %s", fault)
    raise StartRefused("; ".join(distinct))
