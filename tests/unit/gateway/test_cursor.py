import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cursor import (
    TOKEN_BYTES,
    Cursor,
    CursorSigner,
    Verdict,
    VerdictKind,
    judge,
)
from schemas.errors import ErrorCode, RequestError
from schemas.wire import CursorKind

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "cursor.json").read_text())
KEY = bytes(range(32))
SIGNER = CursorSigner({1: KEY})
CURSOR = Cursor(0, 1001, b"d" * 16, 5, 1, (1 << 48) + 9)

cursors = st.builds(
    Cursor,
    st.integers(0, (1 << 128) - 1),
    st.integers(0, (1 << 63) - 1),
    st.binary(min_size=16, max_size=16),
    st.integers(0, 63),
    st.just(0x7FFF),
    st.integers(0, (1 << 63) - 1),
)


def refused(token: bytes, signer: CursorSigner = SIGNER) -> ErrorCode:
    with pytest.raises(RequestError) as caught:
        signer.open(token)
    assert not caught.value.code.closes
    return caught.value.code


@pytest.mark.contract("CUR-12")
@pytest.mark.parametrize("vector", VECTORS["tokens"], ids=lambda v: v["name"])
def test_tokens_are_frozen_both_ways(vector: dict[str, Any]) -> None:
    signer = CursorSigner({vector["key_id"]: bytes.fromhex(vector["key"])})
    cursor = Cursor(
        int(vector["tenant"]),
        int(vector["user"]),
        bytes.fromhex(vector["device"]),
        vector["lane"],
        vector["shard_epoch"],
        int(vector["last_applied"]),
    )
    assert signer.sign(cursor).hex() == vector["token"]
    assert signer.open(bytes.fromhex(vector["token"])) == cursor


@given(cursors)
def test_what_is_signed_opens_to_the_same(cursor: Cursor) -> None:
    token = SIGNER.sign(cursor)
    assert len(token) == TOKEN_BYTES
    assert SIGNER.open(token) == cursor


@pytest.mark.contract("SEC-03", "CUR-04")
def test_every_changed_bit_is_refused() -> None:
    token = SIGNER.sign(CURSOR)
    for at in range(len(token)):
        for bit in range(8):
            changed = bytearray(token)
            changed[at] ^= 1 << bit
            assert refused(bytes(changed)) is ErrorCode.CURSOR_INVALID


@pytest.mark.parametrize("token", [b"", b"\x01", bytes(TOKEN_BYTES), b"x" * (TOKEN_BYTES + 1)])
def test_other_lengths_and_versions_are_refused(token: bytes) -> None:
    assert refused(token) is ErrorCode.CURSOR_INVALID


def test_another_key_is_refused_and_an_older_known_one_accepted() -> None:
    old = CursorSigner({1: KEY}).sign(CURSOR)
    assert refused(old, CursorSigner({1: b"x" * 32})) is ErrorCode.CURSOR_INVALID
    both = CursorSigner({1: KEY, 2: b"y" * 32})
    assert both.open(old) == CURSOR
    assert both.sign(CURSOR)[1] == 2
    assert refused(both.sign(CURSOR)) is ErrorCode.CURSOR_INVALID


@pytest.mark.parametrize(
    "cursor",
    [
        CURSOR._replace(lane=64),
        CURSOR._replace(shard_epoch=0),
        CURSOR._replace(shard_epoch=0x8000),
        CURSOR._replace(last_applied=1 << 63),
        CURSOR._replace(last_applied=(2 << 48) + 1),
        CURSOR._replace(user=1 << 63),
    ],
)
def test_a_signed_cursor_out_of_range_is_refused(cursor: Cursor) -> None:
    assert refused(SIGNER.sign(cursor)) is ErrorCode.CURSOR_INVALID


@pytest.mark.parametrize("keys", [{}, {256: KEY}, {1: b"short"}])
def test_bad_keys_do_not_start(keys: dict[int, bytes]) -> None:
    with pytest.raises(ValueError, match="cursor key"):
        CursorSigner(keys)


# --- CUR-04 -----------------------------------------------------------------------------------------------------
W = (1 << 48) + 100


def verdict(
    cursor: Cursor | None,
    kind: CursorKind = CursorKind.TOKEN,
    trim: int = 0,
    boundaries: tuple[tuple[int, int], ...] = ((1, 0),),
) -> Verdict:
    return judge(kind, cursor, effective_trim=trim, lane_watermark=W, boundaries=boundaries)


@pytest.mark.contract("CUR-04")
def test_a_present_cursor_is_ok() -> None:
    assert verdict(CURSOR) == (VerdictKind.OK, CURSOR.last_applied)
    assert verdict(CURSOR, trim=CURSOR.last_applied) == (VerdictKind.OK, CURSOR.last_applied)


@pytest.mark.contract("CUR-04")
def test_a_cursor_below_the_trim_has_expired_also_when_it_could_be_rebased() -> None:
    trim = CURSOR.last_applied + 1
    assert verdict(CURSOR, trim=trim).kind is VerdictKind.EXPIRED
    assert verdict(CURSOR, trim=trim, boundaries=((1, 0), (2, 50))).kind is VerdictKind.EXPIRED


@pytest.mark.contract("CUR-04")
def test_a_cursor_of_an_older_epoch_is_rebased_to_the_same_position() -> None:
    assert verdict(CURSOR, boundaries=((1, 0), (2, 50))) == (
        VerdictKind.REBASED,
        CURSOR.last_applied,
    )


@pytest.mark.parametrize(
    "boundaries",
    [((1, 0),), ((3, 0),), ((2, 0),)],
    ids=["of the cursor", "of the position, newer shard", "of the position"],
)
def test_an_epoch_the_shard_never_had_is_invalid(boundaries: tuple[tuple[int, int], ...]) -> None:
    cursor = CURSOR._replace(shard_epoch=2)
    with pytest.raises(RequestError) as caught:
        verdict(cursor, boundaries=boundaries)
    assert caught.value.code is ErrorCode.CURSOR_INVALID


@pytest.mark.contract("MBX-54", "CON-07")
def test_zero_cursor_is_never_expired_and_reads_from_before_everything() -> None:
    assert verdict(None, CursorKind.ZERO, trim=W) == (VerdictKind.OK, 0)
    raised = ((1, 0), (2, 50))
    zero = CURSOR._replace(last_applied=0)
    assert verdict(zero, trim=W, boundaries=raised) == (VerdictKind.OK, 0)


@pytest.mark.contract("ACC-M7", "REB-06", "CON-07")
def test_acc_m7_empty_cursor_starts_at_sync_to_seq_not_at_the_trim() -> None:
    assert verdict(None, CursorKind.EMPTY, trim=(1 << 48) + 40) == (VerdictKind.OK, W)
