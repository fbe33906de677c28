"""The one suite that every message store passes."""

import asyncio
from itertools import pairwise

import pytest

from schemas.constants import HLC_WINDOW_MS
from schemas.errors import QimError
from stores.messages import CommitDamaged, MarkResult, ReserveRequest, ReserveResult
from tests.support.messages import TTL_MS, MessageHarness, mark_of, record_of, request_of

__all__ = ["MessageSuite"]


class MessageSuite:
    """Inherit it in a test module that provides the fixture `messages`."""

    async def reserve(self, messages: MessageHarness, *page: ReserveRequest) -> list[ReserveResult]:
        """Reserve; no item may fail."""
        results = await messages.store.reserve_and_record(page)
        found = [result for result in results if isinstance(result, ReserveResult)]
        assert len(found) == len(page), results
        return found

    # --- reserve ---------------------------------------------------------------------------------------------

    @pytest.mark.contract("COM-06", "COM-15", "SEQ-05", "COM-03")
    async def test_a_fresh_request_is_recorded_under_the_next_sequence(
        self, messages: MessageHarness
    ) -> None:
        page = [request_of(messages.now_ms(), n) for n in (1, 2, 3)]
        results = await self.reserve(messages, *page)
        assert [(r.status, r.state, r.conversation_seq) for r in results] == [
            ("fresh", "D", 1),
            ("fresh", "D", 2),
            ("fresh", "D", 3),
        ]
        assert [r.record for r in results] == [record_of(q, n + 1) for n, q in enumerate(page)]
        assert await messages.history(page[0]) == {
            n + 1: record_of(q, n + 1) for n, q in enumerate(page)
        }

    async def test_conversations_count_apart_on_every_instance(
        self, messages: MessageHarness
    ) -> None:
        page = [request_of(messages.now_ms(), n, conversation=n) for n in range(1, 9)]
        assert [r.conversation_seq for r in await self.reserve(messages, *page)] == [1] * 8

    @pytest.mark.contract("COM-04", "COM-05", "COM-06")
    async def test_a_lost_reply_of_reserve_gives_the_first_coordinates(
        self, messages: MessageHarness
    ) -> None:
        first = request_of(messages.now_ms())
        (fresh,) = await self.reserve(messages, first)
        retry = first._replace(
            message_id=b"M" * 16,
            last_activity_id=b"L" * 16,
            trace_id=b"T" * 16,
            committed_at_ms=messages.now_ms() + 5,
            record_tail=b"other ids inside",
        )
        (existing,) = await self.reserve(messages, retry)
        assert existing == fresh._replace(status="existing")
        assert await messages.history(first) == {1: record_of(first, 1)}
        (following,) = await self.reserve(messages, request_of(messages.now_ms(), 2))
        assert following.conversation_seq == 2

    @pytest.mark.contract("COM-05", "COM-06")
    async def test_another_message_under_a_client_message_id_is_a_conflict(
        self, messages: MessageHarness
    ) -> None:
        first = request_of(messages.now_ms())
        await self.reserve(messages, first)
        other_content = first._replace(identity=b"QIMD" + bytes(32))
        # Same instance: buckets 1 and 3 of two instances.
        other_conversation = request_of(
            messages.now_ms(), 1, conversation=3, identity=b"QIMD" + bytes(32)
        )
        conflicts = await self.reserve(messages, other_content, other_conversation)
        assert conflicts == [ReserveResult("conflict")] * 2
        (following,) = await self.reserve(
            messages, request_of(messages.now_ms(), 2, conversation=3)
        )
        assert following.conversation_seq == 1  # a refused request uses no sequence

    async def test_the_same_message_twice_in_one_page_is_one_message(
        self, messages: MessageHarness
    ) -> None:
        request = request_of(messages.now_ms())
        first, second = await self.reserve(messages, request, request)
        assert (first.status, second.status) == ("fresh", "existing")
        assert second.conversation_seq == first.conversation_seq == 1

    @pytest.mark.contract("SEQ-06", "GATE-16", "COM-15")
    async def test_gate_16_two_writers_take_1_to_200_without_gap_or_duplicate(
        self, messages: MessageHarness
    ) -> None:
        async def write(writer: int) -> list[int]:
            taken = []
            for first in range(0, 100, 5):
                page = [
                    request_of(messages.now_ms(), 1000 * writer + n, sender=writer)
                    for n in range(first, first + 5)
                ]
                taken += [result.conversation_seq for result in await self.reserve(messages, *page)]
            return taken

        first, second = await asyncio.gather(write(1), write(2))
        assert sorted(first + second) == list(range(1, 201))
        assert first == sorted(first)
        assert sorted(await messages.history(request_of(0))) == list(range(1, 201))

    # --- the two-step form -----------------------------------------------------------------------------------

    @pytest.mark.contract("COM-06", "COM-20", "CON-21")
    async def test_an_old_reservation_is_continued_by_the_retry(
        self, messages: MessageHarness
    ) -> None:
        request = request_of(messages.now_ms())
        (reserved,) = await messages.store.reserve_only([request])
        assert isinstance(reserved, ReserveResult)
        assert (reserved.state, reserved.conversation_seq) == ("R", 1)
        assert await messages.history(request) == {}
        (mark,) = await messages.store.mark_committed([mark_of(request)])
        assert isinstance(mark, CommitDamaged)  # nothing may be COMMITTED without its record
        (existing,) = await self.reserve(messages, request)
        assert (existing.status, existing.state, existing.record) == (
            "existing",
            "D",
            record_of(request, 1),
        )
        assert await messages.history(request) == {1: record_of(request, 1)}

    @pytest.mark.contract("COM-01", "COM-03", "COM-10", "GATE-13")
    async def test_the_recovery_index_holds_what_is_left_in_the_middle(
        self, messages: MessageHarness
    ) -> None:
        now_ms = messages.now_ms()
        ages = (9000, 6000, 3000)
        page = [request_of(now_ms - age, n, conversation=2 * n + 1) for n, age in enumerate(ages)]
        await messages.store.reserve_only(page[:1])
        await self.reserve(messages, *page[1:], request_of(now_ms - 9000, 9, conversation=2))
        stale = await messages.store.stale_intents(1, now_ms - 5000, 10)
        assert [(s.state, s.conversation_seq, s.record) for s in stale] == [
            ("D", 1, record_of(request, 1)) for request in page[:2]
        ]
        for intent, request in zip(stale, page, strict=False):
            assert (intent.tenant, intent.sender, intent.bucket) == (0, 5, request.bucket)
            assert intent.client_message_id == request.client_message_id
            assert intent.conversation_id == request.conversation_id
            assert intent.identity == request.identity
            assert intent[7:10] == (request.message_id, request.last_activity_id, request.trace_id)
            assert (intent.committed_at_ms, intent.outbox_meta) == (
                request.committed_at_ms,
                request.outbox_meta,
            )
        assert await messages.history(page[0]) == {1: record_of(page[0], 1)}
        assert len(await messages.store.stale_intents(1, now_ms - 5000, 1)) == 1
        await messages.store.mark_committed([mark_of(request) for request in page])
        assert await messages.store.stale_intents(1, now_ms, 10) == []

    # --- mark ------------------------------------------------------------------------------------------------

    @pytest.mark.contract("COM-01", "COM-11", "COM-14", "REG-18", "COM-12")
    async def test_reg_18_committed_expires_and_unfinished_never_does(
        self, messages: MessageHarness
    ) -> None:
        committed, middle = request_of(messages.now_ms(), 1), request_of(messages.now_ms(), 2)
        await self.reserve(messages, committed, middle)
        (mark,) = await messages.store.mark_committed([mark_of(committed)])
        assert mark == MarkResult("marked", 3, 70)
        assert await messages.expiry_ms(committed) == committed.committed_at_ms + TTL_MS
        assert await messages.expiry_ms(middle) is None
        await messages.pass_dedup_ttl(committed)
        (again,) = await self.reserve(messages, committed)
        assert (again.status, again.conversation_seq) == ("fresh", 3)
        (existing,) = await self.reserve(messages, middle)
        assert (existing.status, existing.state) == ("existing", "D")

    @pytest.mark.contract("COM-04", "COM-08", "COM-12")
    async def test_a_committed_retry_gets_the_coordinates_of_the_first(
        self, messages: MessageHarness
    ) -> None:
        request = request_of(messages.now_ms())
        await self.reserve(messages, request)
        await messages.store.mark_committed([mark_of(request)])
        (existing,) = await self.reserve(messages, request._replace(message_id=b"M" * 16))
        assert existing == ReserveResult(
            "existing",
            "C",
            1,
            request.message_id,
            request.last_activity_id,
            request.trace_id,
            request.committed_at_ms,
            None,
            None,
            3,
            70,
        )

    @pytest.mark.contract("COM-08", "COM-11")
    async def test_a_lost_reply_of_mark_keeps_the_first_outbox_position(
        self, messages: MessageHarness
    ) -> None:
        request = request_of(messages.now_ms())
        await self.reserve(messages, request)
        first = await messages.store.mark_committed([mark_of(request, 70)])
        expiry_ms = await messages.expiry_ms(request)
        second = await messages.store.mark_committed([mark_of(request, 71)])
        assert (first, second) == ([MarkResult("marked", 3, 70)], [MarkResult("existing", 3, 70)])
        assert await messages.expiry_ms(request) == expiry_ms

    async def test_a_commit_recovered_late_is_still_remembered(
        self, messages: MessageHarness
    ) -> None:
        late = request_of(messages.now_ms() - 3 * TTL_MS)
        await self.reserve(messages, late)
        await messages.store.mark_committed([mark_of(late)])
        expiry_ms = await messages.expiry_ms(late)
        assert expiry_ms is not None
        assert expiry_ms >= messages.now_ms() + TTL_MS - 10_000
        (existing,) = await self.reserve(messages, late)
        assert (existing.status, existing.state) == ("existing", "C")

    async def test_marks_of_a_page_are_independent(self, messages: MessageHarness) -> None:
        good, unknown, other = (request_of(messages.now_ms(), n, conversation=n) for n in (1, 2, 3))
        await self.reserve(messages, good, other)
        wrong = mark_of(other)._replace(message_id=b"x" * 16)
        found = await messages.store.mark_committed([mark_of(unknown), wrong, mark_of(good)])
        kinds = [type(item) for item in found]
        assert kinds == [CommitDamaged, CommitDamaged, MarkResult]
        assert all(isinstance(item, QimError | MarkResult) for item in found)
        (existing,) = await self.reserve(messages, other)
        assert existing.state == "D"

    # --- identity of writers ---------------------------------------------------------------------------------

    @pytest.mark.contract("HLC-01", "HLC-03")
    async def test_windows_lie_strictly_above_each_other_whatever_the_clock_says(
        self, messages: MessageHarness
    ) -> None:
        claim = messages.store.claim_hlc_window
        first = await claim(1, 4, 1_000_000)
        assert first == (1_000_000, 1_000_000 + HLC_WINDOW_MS)
        assert await claim(1, 4, 900_000) == (first[1], first[1] + HLC_WINDOW_MS)  # stepped back
        assert await claim(1, 4, 5_000_000) == (5_000_000, 5_000_000 + HLC_WINDOW_MS)
        assert await claim(1, 5, 900_000) == (900_000, 900_000 + HLC_WINDOW_MS)  # another writer

    @pytest.mark.contract("HLC-01", "HLC-03")
    async def test_concurrent_claims_of_one_writer_never_overlap(
        self, messages: MessageHarness
    ) -> None:
        claims = [messages.store.claim_hlc_window(1, 6, 1_000_000) for _ in range(20)]
        windows = sorted(await asyncio.gather(*claims))
        assert all(a[1] <= b[0] for a, b in pairwise(windows))

    @pytest.mark.contract("HLC-04")
    async def test_writer_ids_are_leased(self, messages: MessageHarness) -> None:
        store = messages.store
        assert await store.claim_writer_id(1, "a", 60_000) == 0
        assert await store.claim_writer_id(1, "b", 60_000) == 1
        assert await store.claim_writer_id(1, "a", 60_000) == 0
        assert await store.claim_writer_id(2, "b", 60_000) == 0
        assert await store.renew_writer_id(1, 0, "a", 60_000)
        assert not await store.renew_writer_id(1, 0, "b", 60_000)
        await messages.end_writer_lease(1, 0)
        assert not await store.renew_writer_id(1, 0, "a", 60_000)
        assert await store.claim_writer_id(1, "c", 60_000) == 0
