"""Pages of records: what an agent receives instead of single records.

All records that one fetch brought for a partition travel through Faust as one message, at most `limit` of them in a
page, so that scheduling, queues, acknowledgement and commit are paid once a page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, cast

from faust.events import Event
from faust.topics import Topic
from faust.types import TP, ConsumerMessage, EventT, Message

from tables.joining import LogRow

__all__ = ["PAGE_RECORDS", "Page", "PagedTopic", "Record", "cut_pages", "page_message"]

# More records do not get cheaper (the per-page price is spread thin enough); fewer keep the shard tasks responsive.
PAGE_RECORDS = 256


class Record(LogRow, Protocol):
    """One fetched record; `timestamp` is the log's time in milliseconds since 1970."""

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970, set by the producer or the broker."""


class Page:
    """Records of one partition in offset order, never empty.

    `first` and `offset` are the offsets of the first and the last record. `run` and `after` belong to the
    acknowledgement ledger: the positioning that the page was read under, and the end of the page before it. `read_us` and
    `queued_us` are moments of its way through this process, for measurement only (streams/segments.py).
    """

    __slots__ = (
        "after",
        "first",
        "offset",
        "partition",
        "queued_us",
        "read_us",
        "records",
        "run",
        "topic",
    )

    def __init__(self, topic: str, partition: int, records: Sequence[Record]) -> None:
        self.topic = topic
        self.partition = partition
        self.records = records
        self.first = records[0].offset
        self.offset = records[-1].offset
        self.run = 0
        self.after = self.first
        self.read_us = 0.0
        self.queued_us = 0.0

    def __repr__(self) -> str:
        return f"<Page {self.topic}[{self.partition}] {self.first}..{self.offset} run {self.run}>"


def cut_pages(
    topic: str, partition: int, records: Sequence[Record], limit: int = PAGE_RECORDS
) -> Iterator[Page]:
    """Cut what one fetch brought into pages of at most `limit` records, order kept."""
    if len(records) <= limit:
        if records:
            yield Page(topic, partition, records)
        return
    for start in range(0, len(records), limit):
        yield Page(topic, partition, records[start : start + limit])


def page_message(tp: TP, page: Page, generation_id: int) -> ConsumerMessage:
    """The Faust message that carries a page; its offset is the page's last one, so one ack covers all."""
    timestamp_ms = page.records[-1].timestamp
    return ConsumerMessage(
        tp.topic,
        tp.partition,
        page.offset,
        timestamp_ms / 1000.0,
        0,
        None,
        None,
        cast(
            "bytes", page
        ),  # Faust types the wire value; PagedTopic.decode takes the page as it is
        None,
        0,
        0,
        tp,
        generation_id=generation_id,
    )


class PagedTopic(Topic):
    """App setting `Topic`: a page becomes one event whose value is the Page, undecoded."""

    async def decode(self, message: Message, *, propagate: bool = False) -> EventT[Any]:
        """Return the event of a page; anything else is decoded as Faust does."""
        value: Any = message.value
        if type(value) is Page:
            return Event(self.app, None, value, None, message)
        return await super().decode(message, propagate=propagate)
