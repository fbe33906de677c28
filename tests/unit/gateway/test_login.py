"""AUTH against registry, store and view: the fixed order of checks, and what a login is told."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.connections import ConnectionRegistry
from gateway.cursor import FIRST_BOUNDARIES, Cursor, CursorSigner, EpochBoundaries
from gateway.events import Login, LoginRequested
from gateway.limits import GatewayLimits
from gateway.login import LoginDesk, Rebased, Refused
from gateway.tokens import AccessTokens, Identity
from gateway.visibility import WatermarkView
from schemas.errors import ErrorCode, StoreFault, StoreUnknownOutcome
from schemas.identifiers import lane_of
from schemas.wire import CursorKind
from stores.mailbox import MailboxDirty, MailboxHead
from tests.support.gateway import ALICE, BOB, DEVICE, SEQ, FakeMailbox
from tests.unit.gateway.test_connections import Device
from tests.unit.gateway.test_visibility import row

NOW_S = 1_700_000_000.0
TOKENS = AccessTokens(b"k" * 32)
SIGNER = CursorSigner({1: b"c" * 32})
IDENTITY = Identity(0, ALICE, DEVICE, 5)
LANE = lane_of(0, ALICE)
W = SEQ + 100


@dataclass
class Desk:
    """A desk with one shard at W = offset 100."""

    store: FakeMailbox = field(default_factory=FakeMailbox)
    registry: ConnectionRegistry = field(default_factory=lambda: ConnectionRegistry(100))
    view: WatermarkView = field(default_factory=lambda: WatermarkView(1))

    def __post_init__(self) -> None:
        self.view.shards[0].update(row(100))
        self.registered: EpochBoundaries = FIRST_BOUNDARIES  # what the registry would answer
        self.silent = False
        self.desk = LoginDesk(
            boundaries=self._boundaries,
            tokens=TOKENS,
            signer=SIGNER,
            registry=self.registry,
            store=self.store,
            view=self.view,
            limits=GatewayLimits(),
            now_s=lambda: NOW_S,
        )

    async def _boundaries(self, shard: int) -> EpochBoundaries:
        assert shard == 0
        if self.silent:
            raise StoreUnknownOutcome("no answer")
        return self.registered

    def submit(self, **changes: Any) -> asyncio.Future[Login | Rebased | Refused]:
        future = asyncio.get_running_loop().create_future()
        request: dict[str, Any] = {
            "request_id": 1,
            "access_token": TOKENS.mint(changes.pop("identity", IDENTITY), int(NOW_S) + 60),
            "device_id": DEVICE,
            "cursor_kind": 0,
            "cursor": b"",
            "proved": None,
        }
        self.desk.submit(LoginRequested(**{**request, **changes}), future.set_result)
        return future

    async def ask(self, **changes: Any) -> Login | Rebased | Refused:
        return await self.submit(**changes)

    async def code_of(self, **changes: Any) -> ErrorCode:
        outcome = await self.ask(**changes)
        assert isinstance(outcome, Refused)
        return outcome.error.code


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    made = Desk()
    made.desk.start()
    yield made
    await made.desk.stop()


def token(last_applied: int, **changes: Any) -> bytes:
    cursor = Cursor(0, ALICE, DEVICE, LANE, 1, last_applied)
    return SIGNER.sign(cursor._replace(**changes))


async def test_first_login_starts_before_everything_and_syncs_to_w(desk: Desk) -> None:
    desk.store.head = MailboxHead(SEQ + 7, 12)
    login = await desk.ask()
    assert isinstance(login, Login)
    assert login[:7] == (IDENTITY, 0, LANE, SEQ + 7, 0, W, token(W))
    assert login.pending_entries == 12
    assert login.lane_watermark() == W
    (scan,) = desk.store.pages[0]
    assert (scan.after_seq, scan.up_to_seq, scan.shard) == (0, W, 0)


@pytest.mark.contract("CUR-06")
async def test_sync_to_seq_is_w_when_the_login_is_decided(desk: Desk) -> None:
    desk.store.gate.clear()
    future = desk.submit()
    await asyncio.sleep(0)
    desk.view.shards[0].update(row(130))
    desk.store.gate.set()
    login = await future
    assert isinstance(login, Login)
    assert login.sync_to_seq == SEQ + 130


@pytest.mark.contract("CON-07", "REB-02", "ACC-M7")
async def test_acc_m7_rebuild_starts_at_sync_to_seq(desk: Desk) -> None:
    desk.store.head = MailboxHead(SEQ + 50, 9)
    assert await desk.code_of(cursor_kind=2, cursor=token(SEQ + 49)) is ErrorCode.CURSOR_EXPIRED
    login = await desk.ask(cursor_kind=CursorKind.EMPTY, proved=IDENTITY)
    assert isinstance(login, Login)
    assert (login.start_seq, login.sync_to_seq) == (W, W)
    assert login.cursor_at_sync == token(W)
    assert login.pending_entries == 0


async def test_a_present_cursor_goes_on_where_it_stands(desk: Desk) -> None:
    login = await desk.ask(cursor_kind=2, cursor=token(SEQ + 40))
    assert isinstance(login, Login)
    assert (login.start_seq, login.sync_to_seq) == (SEQ + 40, W)
    assert desk.store.pages[0][0].after_seq == SEQ + 40


async def test_a_cursor_ahead_of_this_gateways_view_is_not_moved_back(desk: Desk) -> None:
    login = await desk.ask(cursor_kind=2, cursor=token(SEQ + 140))
    assert isinstance(login, Login)
    assert (login.start_seq, login.sync_to_seq) == (SEQ + 140, W)
    assert login.cursor_at_sync == token(SEQ + 140)


@pytest.mark.contract("CUR-04")
async def test_an_older_epoch_is_rebased_and_then_accepted(desk: Desk) -> None:
    desk.view.shards[0].set_boundaries(((1, 0), (2, 90)))
    outcome = await desk.ask(cursor_kind=2, cursor=token(SEQ + 40))
    assert isinstance(outcome, Rebased)
    assert outcome == Rebased(IDENTITY, token(SEQ + 40, shard_epoch=2), SEQ + 40)
    login = await desk.ask(cursor_kind=2, cursor=outcome.new_cursor, proved=IDENTITY)
    assert isinstance(login, Login)
    assert login.start_seq == SEQ + 40


@pytest.mark.contract("CUR-04", "TAKE-01")
async def test_a_cursor_of_an_epoch_that_only_another_gateway_knows_is_looked_up(
    desk: Desk,
) -> None:
    newer = token(SEQ + 40, shard_epoch=2)
    assert await desk.code_of(cursor_kind=2, cursor=newer) is ErrorCode.CURSOR_INVALID
    desk.silent = True
    assert await desk.code_of(cursor_kind=2, cursor=newer) is ErrorCode.SHARD_MOVED
    desk.silent, desk.registered = False, ((1, 0), (2, 101))
    login = await desk.ask(cursor_kind=2, cursor=newer)
    assert isinstance(login, Login)
    assert login.cursor_at_sync == token(W, shard_epoch=2)


@pytest.mark.contract("CUR-04")
async def test_checks_run_in_the_fixed_order(desk: Desk) -> None:
    """Each input is wrong in every later way too; the first check that fails decides."""
    desk.view.shards[0].set_boundaries(((1, 0), (2, 90)))
    desk.store.head = MailboxHead(SEQ + 50, 0)
    old = token(SEQ + 40)
    bad_signature = old[:-1] + bytes([old[-1] ^ 1])
    bad_token = {"access_token": "rubbish", "cursor_kind": 2}
    assert await desk.code_of(**bad_token, cursor=bad_signature) is ErrorCode.AUTH_FAILED
    assert await desk.code_of(cursor_kind=2, cursor=bad_signature) is ErrorCode.CURSOR_INVALID
    assert desk.store.pages == []  # neither asked the store
    assert await desk.code_of(cursor_kind=2, cursor=old) is ErrorCode.CURSOR_EXPIRED
    desk.store.head = MailboxHead(SEQ + 40, 0)
    assert isinstance(await desk.ask(cursor_kind=2, cursor=old), Rebased)


async def test_tokens_of_others_do_not_log_in(desk: Desk) -> None:
    assert await desk.code_of(device_id=b"x" * 16) is ErrorCode.AUTH_FAILED
    assert await desk.code_of(device_id=bytes(16)) is ErrorCode.AUTH_FAILED
    expired = TOKENS.mint(IDENTITY, int(NOW_S))
    assert await desk.code_of(access_token=expired) is ErrorCode.AUTH_FAILED


@pytest.mark.contract("REB-02")
async def test_a_rebuild_must_come_from_the_same_identity(desk: Desk) -> None:
    for other in (IDENTITY._replace(user=BOB), IDENTITY._replace(tenant=1)):
        assert await desk.code_of(cursor_kind=1, proved=other) is ErrorCode.AUTH_FAILED
    renewed = IDENTITY._replace(session_epoch=6)
    assert isinstance(await desk.ask(cursor_kind=1, proved=IDENTITY, identity=renewed), Login)


@pytest.mark.contract("SEQ-23")
async def test_an_older_session_is_superseded_also_while_the_store_is_asked(desk: Desk) -> None:
    desk.store.gate.clear()
    late = desk.submit()
    newer = Device(ALICE, 0, epoch=6)
    newer.identity = IDENTITY._replace(session_epoch=6)
    desk.registry.add(newer)
    desk.store.gate.set()
    outcome = await late
    assert isinstance(outcome, Refused)
    assert outcome.error.code is ErrorCode.SESSION_SUPERSEDED
    assert await desk.code_of() is ErrorCode.SESSION_SUPERSEDED
    assert isinstance(await desk.ask(identity=newer.identity), Login)


@pytest.mark.parametrize(
    "changes",
    [
        {"user": BOB},
        {"tenant": 3},
        {"device_id": b"y" * 16},
        {"lane": (LANE + 1) % 64},
    ],
)
async def test_a_cursor_of_somebody_else_is_invalid(desk: Desk, changes: dict[str, Any]) -> None:
    stolen = token(SEQ + 40, **changes)
    assert await desk.code_of(cursor_kind=2, cursor=stolen) is ErrorCode.CURSOR_INVALID


@pytest.mark.parametrize(
    ("kind", "cursor"), [(3, b""), (-1, b""), (0, b"x"), (1, b"x"), (2, b""), (2, b"short")]
)
async def test_kinds_and_bytes_must_fit(desk: Desk, kind: int, cursor: bytes) -> None:
    outcome = await desk.ask(cursor_kind=kind, cursor=cursor)
    assert isinstance(outcome, Refused)
    assert outcome.error.code is ErrorCode.CURSOR_INVALID
    assert outcome.identity == IDENTITY  # the access token was good


@pytest.mark.contract("TAKE-05")
async def test_a_lane_that_catches_up_answers_shard_moved(desk: Desk) -> None:
    desk.view.shards[0].update(row(90, term=2))
    assert await desk.code_of() is ErrorCode.SHARD_MOVED
    desk.view.shards[0].update(row(100, term=2))
    assert isinstance(await desk.ask(), Login)


async def test_store_failures_are_answered_and_the_desk_goes_on(desk: Desk) -> None:
    desk.store.failure = StoreFault("redis is away")
    assert await desk.code_of() is ErrorCode.UNAVAILABLE
    desk.store.failure = RuntimeError("a defect")
    assert await desk.code_of() is ErrorCode.INTERNAL
    desk.store.failure = None
    desk.store.item_failure = MailboxDirty("damaged proof")
    assert await desk.code_of() is ErrorCode.MAILBOX_DIRTY
    desk.store.item_failure = None
    assert isinstance(await desk.ask(), Login)


async def test_logins_that_pile_up_share_one_question(desk: Desk) -> None:
    desk.store.gate.clear()
    first = desk.submit()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    rest = [desk.submit() for _ in range(10)]
    assert desk.desk.depth == 10
    desk.store.gate.set()
    await asyncio.gather(first, *rest)
    assert [len(page) for page in desk.store.pages] == [1, 10]
