"""The gates that a worker and a gateway pass before they write a byte or open a port (GATE-08 to GATE-10, GATE-27, ACC-M6).

Everything is read and judged first, all instances and the whole log, so that one refusal names all that is wrong. Only then
the claims are recorded: which layout, which cluster, which topics. Any doubt is a refusal.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from schemas.config import Settings
from schemas.constants import COMMIT_BUCKET_COUNT
from schemas.errors import StartRefused
from schemas.topics import topic_specs
from stores.claims import check_rebuild, claim_log, claim_owner, owner_faults, recorded_log
from stores.leases import claim_layout
from stores.log_gate import judge_log, read_log
from stores.redis_gate import RedisRole, judge_redis
from stores.redis_link import RedisLink

__all__ = ["pass_start_gates"]

_LOG: Final = logging.getLogger(__name__)


async def pass_start_gates(
    settings: Settings, mailbox: Sequence[RedisLink], commit: Sequence[RedisLink] = ()
) -> None:
    """Check the Redis instances and the log, then record whom they belong to.

    `commit` are the instances that the process commits on (none for a worker). Raises StartRefused with every reason,
    ServerFault when a server does not answer; nothing was written then.
    """
    unsafe, app_id = settings.redis_allow_unsafe_dev, settings.app_id
    faults: list[str] = []
    for links, role in ((mailbox, RedisRole.MAILBOX), (commit, RedisRole.COMMIT)):
        for link in links:
            faults += await judge_redis(link, role, allow_unsafe_dev=unsafe)
    _refuse(faults)  # keys of a Cluster, or of something older, are not even read
    specs = topic_specs(settings)
    facts = await read_log(settings.broker, specs)
    records = [*mailbox[:1], *commit[:1]]
    for link in records:
        faults += judge_log(settings, specs, facts, await recorded_log(link, app_id))
    cluster_id = facts.cluster.cluster_id or ""
    every = [*mailbox, *commit]
    faults += await owner_faults(every, app_id, cluster_id)
    faults += await check_rebuild(mailbox, app_id)
    _refuse(faults)
    await claim_owner(every, app_id, cluster_id)
    await claim_layout(mailbox, app_id, RedisRole.MAILBOX.value, settings.mailbox_shard_count)
    if commit:
        await claim_layout(commit, app_id, RedisRole.COMMIT.value, COMMIT_BUCKET_COUNT)
    for link in records:
        # Another process may have recorded meanwhile; what stands there now is what counts.
        now = await claim_log(link, app_id, facts.cluster)
        _refuse(judge_log(settings, specs, facts, now))


def _refuse(faults: Sequence[str]) -> None:
    if not faults:
        return
    distinct = list(dict.fromkeys(faults))
    for fault in distinct:
        _LOG.critical("start refused: %s", fault)
    raise StartRefused("; ".join(distinct))
