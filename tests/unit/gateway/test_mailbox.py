"""Pulls: bounded by W, paged, and the one place that moves cursors."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.cursor import Cursor, CursorSigner
from gateway.events import Batch, Login, PullRequested
from gateway.limits import GatewayLimits
from gateway.mailbox import MailboxReader, plan_pull
from gateway.visibility import ShardView, WatermarkView
from schemas.errors import ErrorCode, QimError, RequestError, StoreFault
from stores.mailbox import CursorExpired, MailboxDirty
from tests.support.gateway import ALICE, DEVICE, SEQ, FakeMailbox, Peer
from tests.unit.gateway.test_visibility import row, wide

SIGNER = CursorSigner({1: b"c" * 32})
LOGIN: Login = Peer().login_of()


def pull(after_seq: int, up_to_seq: int, items: int = 100) -> PullRequested:
    return PullRequested(1, after_seq, up_to_seq, items, 1 << 20)


@pytest.fixture
def view() -> ShardView:
    shard = ShardView()
    shard.update(row(100))
    return shard


def refusal(request: PullRequested, view: ShardView) -> ErrorCode:
    with pytest.raises(RequestError) as caught:
        plan_pull(LOGIN, request, view)
    return caught.value.code


@pytest.mark.contract("MBX-57", "CUR-11", "FORB-09")
def test_a_pull_never_reads_past_the_lanes_watermark(view: ShardView) -> None:
    assert plan_pull(LOGIN, pull(0, SEQ + 500), view).up_to_seq == SEQ + 100
    assert plan_pull(LOGIN, pull(0, SEQ + 50), view).up_to_seq == SEQ + 50
    assert plan_pull(LOGIN, pull(0, 0), view).up_to_seq == SEQ + 100
    view.update(row(wide({LOGIN.lane: 150}, rest=100)))
    assert plan_pull(LOGIN, pull(0, SEQ + 500), view).up_to_seq == SEQ + 150


@pytest.mark.contract("CUR-10", "TAKE-05")
def test_what_is_not_visible_yet_is_shard_moved_and_never_an_empty_answer(view: ShardView) -> None:
    assert refusal(pull(SEQ + 100, SEQ + 120), view) is ErrorCode.SHARD_MOVED
    assert refusal(pull(SEQ + 101, 0), view) is ErrorCode.SHARD_MOVED
    assert plan_pull(LOGIN, pull(SEQ + 100, 0), view).up_to_seq == SEQ + 100  # "what there is"


@pytest.mark.contract("CUR-14")
def test_a_closed_lane_is_shard_moved(view: ShardView) -> None:
    view.update(row(90, term=2))
    assert refusal(pull(0, SEQ + 50), view) is ErrorCode.SHARD_MOVED


def test_living_incarnations_are_named(view: ShardView) -> None:
    view.set_boundaries(((1, 0), (2, 30), (3, 0)))
    assert plan_pull(LOGIN, pull(0, 0), view).base_epochs == [1, 3]


class Reader:
    """A reader over a fake store with one shard at W = offset 100."""

    def __init__(self) -> None:
        self.store = FakeMailbox()
        view = WatermarkView(1)
        view.shards[0].update(row(100))
        self.reader = MailboxReader(self.store, view, SIGNER, GatewayLimits())

    def ask(self, request: PullRequested) -> asyncio.Future[Batch | QimError]:
        future = asyncio.get_running_loop().create_future()
        self.reader.pull(LOGIN, request, future.set_result)
        return future


@pytest.fixture
async def reader() -> AsyncIterator[Reader]:
    made = Reader()
    made.reader.start()
    yield made
    await made.reader.stop()


@pytest.mark.contract("CUR-03", "CUR-08", "CUR-12")
async def test_a_batch_carries_the_signed_cursor_of_what_it_covers(reader: Reader) -> None:
    stored = [reader.store.write(ALICE, offset) for offset in (3, 4, 9)]
    batch = await reader.ask(pull(0, 0, items=2))
    cursor = SIGNER.sign(Cursor(0, ALICE, DEVICE, LOGIN.lane, 1, SEQ + 4))
    assert batch == Batch(stored[:2], 0, SEQ + 4, SEQ + 100, True, cursor)
    rest = await reader.ask(pull(SEQ + 4, 0))
    assert isinstance(rest, Batch)
    assert (rest.entries, rest.covered_through_seq, rest.has_more) == (
        stored[2:],
        SEQ + 100,
        False,
    )
    assert SIGNER.open(rest.cursor).last_applied == SEQ + 100


async def test_pulls_that_pile_up_share_one_scan(reader: Reader) -> None:
    reader.store.gate.clear()
    futures = [reader.ask(pull(0, SEQ + 1))]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    futures += [reader.ask(pull(0, SEQ + 2 + n)) for n in range(9)]
    assert reader.reader.depth == 9
    reader.store.gate.set()
    batches = await asyncio.gather(*futures)
    assert [len(page) for page in reader.store.pages] == [1, 9]
    covered = [batch.covered_through_seq for batch in batches if isinstance(batch, Batch)]
    assert covered == [SEQ + 1 + n for n in range(10)]


@pytest.mark.parametrize(
    "failure", [MailboxDirty("damaged"), CursorExpired(SEQ + 5)], ids=["dirty", "expired"]
)
async def test_one_mailboxs_failure_is_its_own(
    reader: Reader, failure: MailboxDirty | CursorExpired
) -> None:
    reader.store.item_failure = failure
    assert await reader.ask(pull(0, 0)) is failure


async def test_store_failures_are_answered_and_the_reader_goes_on(reader: Reader) -> None:
    reader.store.failure = StoreFault("redis is away")
    first = await reader.ask(pull(0, 0))
    reader.store.failure = ValueError("a defect")
    second = await reader.ask(pull(0, 0))
    assert [e.code for e in (first, second) if isinstance(e, QimError)] == [
        ErrorCode.UNAVAILABLE,
        ErrorCode.INTERNAL,
    ]
    reader.store.failure = None
    assert isinstance(await reader.ask(pull(0, 0)), Batch)


async def test_a_defect_that_ends_the_reader_is_reported() -> None:
    store, view = FakeMailbox(), WatermarkView(1)
    failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    view.shards[0].update(row(100))
    reader = MailboxReader(store, view, SIGNER, GatewayLimits(), failure.set_result)
    reader.start()

    def broken(_result: Batch | QimError) -> None:
        raise ZeroDivisionError

    reader.pull(LOGIN, pull(0, 0), broken)
    assert isinstance(await failure, ZeroDivisionError)
    await reader.stop()
