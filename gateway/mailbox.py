"""PULL_MAILBOX: the one place where the gateway reads mailboxes and moves cursors (CUR-03, CUR-08).

All pulls that arrived while the last scan was in flight go to the store in one call. A pull never reads past W of the user's
lane (MBX-57, CUR-11), and a lane that is not caught up answers SHARD_MOVED instead of a false "nothing there" (CUR-14).
Entries go from the store to the frame as opaque bytes; the store's order and cuts at event groups are kept (EVT-06).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gateway.asking import PagedDesk, ask
from gateway.cursor import Cursor, CursorSigner
from gateway.events import Batch, Login, PullRequested
from gateway.limits import GatewayLimits
from gateway.ports import MailboxReads
from gateway.visibility import ShardView, WatermarkView
from schemas.errors import ErrorCode, QimError, RequestError
from stores.mailbox import ScanRequest, ScanResult
from stores.paging import PagedStage

__all__ = ["MailboxReader", "PullDone", "plan_pull"]

PullDone = Callable[[Batch | QimError], None]
"""Called once for each pull, on the event loop, never from inside `MailboxReader.pull`."""


class _Pull(NamedTuple):
    login: Login
    scan: ScanRequest
    done: PullDone


def plan_pull(login: Login, pull: PullRequested, view: ShardView) -> ScanRequest:
    """The scan that answers `pull` now: `(after_seq, min(up_to_seq, W)]` of the living incarnations.

    Raises RequestError(SHARD_MOVED) when the lane is not caught up, or when nothing of the interval is visible yet though the
    client knows it exists: an empty answer would look like "nothing there" (CUR-10, TAKE-05).
    """
    watermark = view.watermark(login.lane)
    up_to_seq = min(pull.up_to_seq, watermark) if pull.up_to_seq else watermark
    behind = up_to_seq < pull.after_seq or (pull.up_to_seq and up_to_seq == pull.after_seq)
    if behind or not view.is_open(login.lane):
        raise RequestError("the shard is not caught up", ErrorCode.SHARD_MOVED)
    return ScanRequest(
        login.identity.tenant,
        login.identity.user,
        login.shard,
        view.base_epochs,
        pull.after_seq,
        up_to_seq,
        pull.max_items,
        pull.max_bytes,
        login.lane,
    )


class MailboxReader(PagedDesk):
    """Answers pulls in pages; `start` before the first pull, `stop` after the last answer.

    `on_failure` is told when a defect of ours ended the answering.
    """

    def __init__(
        self,
        store: MailboxReads,
        view: WatermarkView,
        signer: CursorSigner,
        limits: GatewayLimits,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._store = store
        self._view = view
        self._signer = signer
        self._stage = PagedStage(
            "gateway.pull",
            self._scan_page,
            max_records=limits.pull_batch_scans,
            on_failure=on_failure,
        )

    def pull(self, login: Login, pull: PullRequested, done: PullDone) -> None:
        """Queue one pull; raises RequestError when it can be refused without asking the store."""
        scan = plan_pull(login, pull, self._view.shards[login.shard])
        self._stage.put(_Pull(login, scan, done))

    async def _scan_page(self, page: list[_Pull]) -> None:
        scans = [pull.scan for pull in page]
        results = await ask("range_scan", len(page), self._store.range_scan(scans))
        for pull, result in zip(page, results, strict=True):
            pull.done(result if isinstance(result, QimError) else self._batch(pull, result))

    def _batch(self, pull: _Pull, result: ScanResult) -> Batch:
        identity, lane = pull.login.identity, pull.login.lane
        shard = self._view.shards[pull.login.shard]
        cursor = Cursor(
            identity.tenant,
            identity.user,
            identity.device_id,
            lane,
            shard.boundaries[-1][0],
            result.covered_through,
        )
        return Batch(
            result.entries,
            pull.scan.after_seq,
            result.covered_through,
            shard.watermark(lane),
            result.has_more,
            self._signer.sign(cursor),
        )
