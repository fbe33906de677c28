"""OBS-03 and OBS-04: promises of zero that a worker can judge, without a false alarm."""

from __future__ import annotations

import pytest

from schemas.constants import LANE_COUNT
from schemas.errors import ErrorCode, RecordError, StoreFault
from schemas.metrics import counter
from schemas.watermarks import pack_uniform
from stores.mailbox import OK, AppendOutcome, ShardAppend
from streams.lanes import pack_marks
from streams.materialize_core import DigestConflict
from streams.outcomes import check_outcome, count_violation

STALE = counter("qim_stale_write_violation_total")
DUPLICATE = counter("qim_duplicate_dispatch_violation_total")
ONE_AHEAD = pack_marks([41] + [40] * (LANE_COUNT - 1))
BEHIND = pack_marks([-1] + [40] * (LANE_COUNT - 1))


def append(expected_w: bytes | None) -> ShardAppend:
    return ShardAppend(0, 3, 1, expected_w, pack_uniform(50), 1, [])


def test_a_durable_page_is_no_error() -> None:
    check_outcome(append(pack_uniform(40)), OK)


@pytest.mark.contract("OBS-03", "OBS-04", "TAKE-01")
@pytest.mark.parametrize(
    ("code", "expected", "stored", "violations"),
    [
        ("w_mismatch", pack_uniform(40), ONE_AHEAD, 1),
        ("w_mismatch", None, pack_uniform(0), 1),
        ("w_mismatch", pack_uniform(40), BEHIND, 0),  # the store lost something
        ("w_mismatch", pack_uniform(40), None, 0),
        ("w_mismatch", pack_uniform(40), b"damaged", 0),
        ("fenced", pack_uniform(40), ONE_AHEAD, 0),  # our own lease ended: whoever wrote may
    ],
)
def test_obs_04_w_ahead_under_our_own_lease_is_a_stale_write(
    code: str, expected: bytes | None, stored: bytes | None, violations: int
) -> None:
    before = STALE.value
    with pytest.raises(StoreFault) as refused:
        check_outcome(append(expected), AppendOutcome(code, "x", stored))
    assert STALE.value - before == violations
    assert refused.value.code is ErrorCode.UNAVAILABLE


def test_what_no_start_mends_is_internal() -> None:
    with pytest.raises(StoreFault) as refused:
        check_outcome(append(None), AppendOutcome("corrupt", "x", None))
    assert refused.value.code is ErrorCode.INTERNAL


@pytest.mark.contract("OBS-04", "DISP-08")
def test_obs_04_two_payloads_under_one_dispatch_id_are_counted() -> None:
    before = DUPLICATE.value
    count_violation(RecordError("another damage"))
    assert DUPLICATE.value == before
    count_violation(DigestConflict("two payloads"))
    assert DUPLICATE.value == before + 1
