"""Topics on a real broker: created once, read back, refused when they differ."""

from dataclasses import replace

import pytest

from ops.topics import create_topics
from schemas.config import Settings
from schemas.errors import StartRefused
from schemas.topics import topic_specs


async def test_create_twice_changes_nothing(settings: Settings) -> None:
    await create_topics(settings.broker, topic_specs(settings))


@pytest.mark.contract("GATE-27", "LOG-11")
async def test_create_with_other_partition_count_is_refused(settings: Settings) -> None:
    outbox, dispatch, *_rest = topic_specs(settings)
    other = replace(dispatch, partitions=2 * dispatch.partitions)
    with pytest.raises(StartRefused, match=r"has 8 partitions instead of 16"):
        await create_topics(settings.broker, [outbox, other])


async def test_create_with_other_retention_is_refused(settings: Settings) -> None:
    outbox = topic_specs(settings)[0]
    with pytest.raises(StartRefused, match=r"retention\.ms=\d+ instead of 1"):
        await create_topics(settings.broker, [replace(outbox, retention_ms=1)])
