import faust
import pytest
from faust.types import TP, Message
from hypothesis import given
from hypothesis import strategies as st

from streams.pages import Page, PagedTopic, cut_pages, page_message
from tests.support.records import page, records


@given(st.sets(st.integers(0, 5000), max_size=900), st.integers(1, 300))
def test_pages_hold_every_record_once_in_order(offsets: set[int], limit: int) -> None:
    fetched = records(sorted(offsets))

    pages = list(cut_pages("t", 3, fetched, limit))

    assert [r for one in pages for r in one.records] == fetched
    assert all(1 <= len(one.records) <= limit for one in pages)
    assert all(
        (one.first, one.offset) == (one.records[0].offset, one.records[-1].offset) for one in pages
    )


def test_message_of_a_page_stands_for_its_last_record() -> None:
    one = page(5, 9, partition=3)

    message = page_message(TP("t", 3), one, 7)

    assert (message.topic, message.partition, message.offset) == ("t", 3, 9)
    assert message.tp == TP("t", 3)
    assert message.generation_id == 7
    assert message.timestamp == pytest.approx(1_700_000_000.0)


async def test_page_is_decoded_to_one_event_and_a_record_as_faust_does() -> None:
    app = faust.App("decode", broker="kafka://127.0.0.1:1", Topic=PagedTopic)
    topic = app.topic("t", key_type=bytes, value_type=bytes, value_serializer="raw")
    one = page(5, 9)

    event = await topic.decode(page_message(TP("t", 0), one, -1))
    single = await topic.decode(Message("t", 0, 4, 0.0, 0, {}, b"k", b"v", None, tp=TP("t", 0)))

    assert event.value is one
    assert single.value == b"v"


def test_page_shows_where_it_comes_from() -> None:
    assert repr(Page("t", 3, records([4, 5]))) == "<Page t[3] 4..5 run 0>"
