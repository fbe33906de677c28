"""What the mailbox's answer to a shard's page means, and which answers break a promise (OBS-04).

A refusal because of another lease term or another W is ordinary: somebody took over, or the store lost something; the shard reads
where it stands and starts again. But W that is *ahead* of ours under our own, living lease was written by nobody who may: fencing
failed. And a dispatch_id with two payloads means that a writer or the log is broken. Both are counted, and both counts are zero.
"""

from __future__ import annotations

from schemas.errors import ErrorCode, RecordError, StoreFault
from schemas.metrics import counter
from schemas.watermarks import NOTHING, unpack_w
from stores.mailbox import AppendOutcome, ShardAppend
from streams.materialize_core import DigestConflict

__all__ = ["check_outcome", "count_violation"]


def check_outcome(append: ShardAppend, outcome: AppendOutcome) -> None:
    """Raise StoreFault unless the page is durable; UNAVAILABLE where a new start mends it, INTERNAL where nothing does."""
    if outcome.code == "ok":
        return
    if outcome.code == "w_mismatch" and _ahead(outcome.stored_w, append.expected_w):
        counter("qim_stale_write_violation_total").add()
    again = outcome.code in ("fenced", "w_mismatch")
    raise StoreFault(
        f"append: {outcome.code} {outcome.detail}",
        ErrorCode.UNAVAILABLE if again else ErrorCode.INTERNAL,
    )


def count_violation(error: BaseException) -> None:
    """Count the error that a shard stops with, where it breaks a promise."""
    if isinstance(error, DigestConflict):
        counter("qim_duplicate_dispatch_violation_total").add()


def _ahead(stored: bytes | None, expected: bytes | None) -> bool:
    """Whether any lane of the mailbox is further than we left it."""
    if stored is None:
        return False
    try:
        theirs = [mark.w for mark in unpack_w(stored)]
        ours = [NOTHING] * len(theirs) if expected is None else [m.w for m in unpack_w(expected)]
    except RecordError:  # damage is another matter, and told as such
        return False
    return any(w > own for w, own in zip(theirs, ours, strict=True))
