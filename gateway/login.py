"""AUTH: who is it, where does the device stand, what is owed. The checks run in the fixed order of CUR-04.

0. The access token, its device, the session epoch (AUTH_FAILED, SESSION_SUPERSEDED: the connection ends).
1. The cursor's signature, owner and range (CURSOR_INVALID).
2. last_applied against the effective trim of the mailbox (CURSOR_EXPIRED; the zero cursor is exempt, MBX-54).
3. A cursor of an older shard epoch (CURSOR_REBASED).
4. AUTH_OK with sync_to_seq = W of the user's lane at this moment (CUR-06).

Step 2 asks the store, for all logins that arrived while the last question was in flight in one call. Steps 3 and 4 run in one
go with registering the connection, so that no push can fall between sync_to_seq and the registration.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from gateway.asking import PagedDesk, ask
from gateway.connections import ConnectionRegistry
from gateway.cursor import Cursor, CursorSigner, VerdictKind, judge
from gateway.events import Login, LoginRequested
from gateway.follower import BoundarySource
from gateway.limits import GatewayLimits
from gateway.ports import MailboxReads
from gateway.tokens import AccessTokens, Identity
from gateway.visibility import WatermarkView
from schemas.errors import ErrorCode, QimError, RequestError
from schemas.identifiers import lane_of, shard_of
from schemas.wire import CursorKind
from stores.mailbox import ZERO_CURSOR, MailboxHead, ScanRequest
from stores.paging import PagedStage

__all__ = ["LoginDesk", "LoginDone", "Rebased", "Refused"]


class Rebased(NamedTuple):
    """CUR-04 step 3: the cursor under the present epoch; the client authenticates again with it."""

    identity: Identity
    new_cursor: bytes
    replay_from_seq: int


class Refused(NamedTuple):
    """The login failed with `error`; `identity` is set when the access token was good."""

    error: QimError
    identity: Identity | None


LoginDone = Callable[[Login | Rebased | Refused], None]


class _Pending(NamedTuple):
    identity: Identity
    kind: CursorKind
    cursor: Cursor | None
    scan: ScanRequest
    lane: int
    done: LoginDone


class LoginDesk(PagedDesk):
    """Judges logins; `now_s` gives the wall clock that token expiry is compared with.

    `on_failure` is told when a defect of ours ended the judging.
    """

    def __init__(
        self,
        *,
        tokens: AccessTokens,
        signer: CursorSigner,
        registry: ConnectionRegistry,
        store: MailboxReads,
        view: WatermarkView,
        limits: GatewayLimits,
        now_s: Callable[[], float],
        boundaries: BoundarySource,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._boundaries = boundaries
        self._tokens = tokens
        self._signer = signer
        self._registry = registry
        self._store = store
        self._view = view
        self._now_s = now_s
        self._stage = PagedStage(
            "gateway.login",
            self._ask_page,
            max_records=limits.pull_batch_scans,
            on_failure=on_failure,
        )

    def submit(self, request: LoginRequested, done: LoginDone) -> None:
        """Judge one AUTH; `done` is called once, later, or at once when it fails before the store is asked."""
        identity: Identity | None = None
        try:
            identity = self._identify(request)
            kind, cursor = self._open_cursor(request, identity)
            self._stage.put(self._pending(identity, kind, cursor, done))
        except QimError as error:
            done(Refused(error, identity))

    def _identify(self, request: LoginRequested) -> Identity:
        identity = self._tokens.verify(request.access_token, self._now_s())
        if identity.device_id != request.device_id:
            raise RequestError("access token of another device", ErrorCode.AUTH_FAILED)
        if request.proved is not None and request.proved[:3] != identity[:3]:
            raise RequestError("another identity than before", ErrorCode.AUTH_FAILED)
        self._registry.check_session(identity)
        return identity

    def _open_cursor(
        self, request: LoginRequested, identity: Identity
    ) -> tuple[CursorKind, Cursor | None]:
        try:
            kind = CursorKind(request.cursor_kind)
        except ValueError:
            raise RequestError("unknown cursor kind", ErrorCode.CURSOR_INVALID) from None
        if kind is not CursorKind.TOKEN:
            if request.cursor:
                raise RequestError("cursor bytes without a token", ErrorCode.CURSOR_INVALID)
            return kind, None
        cursor = self._signer.open(request.cursor)
        owner = (identity.tenant, identity.user, identity.device_id)
        if cursor[:3] != owner or cursor.lane != lane_of(identity.tenant, identity.user):
            raise RequestError("cursor of another device", ErrorCode.CURSOR_INVALID)
        return kind, cursor

    def _pending(
        self, identity: Identity, kind: CursorKind, cursor: Cursor | None, done: LoginDone
    ) -> _Pending:
        tenant, user = identity.tenant, identity.user
        shard = shard_of(tenant, user, len(self._view.shards))
        lane = lane_of(tenant, user)
        view = self._view.shards[shard]
        after_seq = cursor.last_applied if cursor is not None else ZERO_CURSOR
        scan = ScanRequest(
            tenant, user, shard, view.base_epochs, after_seq, view.watermark(lane), 0, 0
        )
        return _Pending(identity, kind, cursor, scan, lane, done)

    async def _learn_epochs(self, page: list[_Pending]) -> list[_Pending]:
        """Another gateway may have heard of a takeover first; its cursor is not invalid for that. Returns who can be judged."""
        known = []
        for pending in page:
            view, cursor = self._view.shards[pending.scan.shard], pending.cursor
            if cursor is not None and cursor.shard_epoch > view.boundaries[-1][0]:
                try:
                    view.learn(await self._boundaries(pending.scan.shard))
                except QimError:
                    unknown = RequestError("epochs are not known here", ErrorCode.SHARD_MOVED)
                    pending.done(Refused(unknown, pending.identity))
                    continue
            known.append(pending)
        return known

    async def _ask_page(self, page: list[_Pending]) -> None:
        page = await self._learn_epochs(page)
        if not page:
            return
        scans = [pending.scan for pending in page]
        heads = await ask("heads", len(page), self._store.heads(scans))
        for pending, head in zip(page, heads, strict=True):
            try:
                pending.done(self._decide(pending, head))
            except QimError as error:
                pending.done(Refused(error, pending.identity))

    def _decide(self, pending: _Pending, head: MailboxHead | QimError) -> Login | Rebased:
        if isinstance(head, QimError):
            raise head
        self._registry.check_session(pending.identity)  # a newer session may have come meanwhile
        shard, lane = pending.scan.shard, pending.lane
        view = self._view.shards[shard]
        if not view.is_open(lane):
            raise RequestError("the shard is not caught up", ErrorCode.SHARD_MOVED)
        watermark = view.watermark(lane)
        verdict = judge(
            pending.kind,
            pending.cursor,
            effective_trim=head.effective_trim,
            lane_watermark=watermark,
            boundaries=view.boundaries,
        )
        if verdict.kind is VerdictKind.EXPIRED:
            raise RequestError("older than the mailbox keeps", ErrorCode.CURSOR_EXPIRED)
        if verdict.kind is VerdictKind.REBASED:
            new_cursor = self._sign(pending, verdict.start_seq)
            return Rebased(pending.identity, new_cursor, verdict.start_seq)
        return Login(
            identity=pending.identity,
            shard=shard,
            lane=lane,
            trim_watermark=head.effective_trim,
            start_seq=verdict.start_seq,
            sync_to_seq=watermark,
            # A cursor ahead of our view must not be moved back by ONLINE_READY.
            cursor_at_sync=self._sign(pending, max(watermark, verdict.start_seq)),
            pending_entries=0 if pending.kind is CursorKind.EMPTY else head.pending_entries,
            lane_watermark=partial(view.watermark, lane),
        )

    def _sign(self, pending: _Pending, last_applied: int) -> bytes:
        identity = pending.identity
        epoch = self._view.shards[pending.scan.shard].boundaries[-1][0]
        cursor = Cursor(
            identity.tenant,
            identity.user,
            identity.device_id,
            pending.lane,
            epoch,
            last_applied,
        )
        return self._signer.sign(cursor)
