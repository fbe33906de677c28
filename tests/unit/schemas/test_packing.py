"""Records packed by hand are the bytes that their codec writes."""

from __future__ import annotations

import io
from typing import Any, cast

import pytest
from fastavro import schemaless_writer
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import RecordError
from schemas.packing import avro_long, pack_longs, pack_progress, pack_push, pack_push_head
from schemas.records import DISPATCH_PROGRESS, PUSH_BATCH, DispatchProgress, PushBatch
from tests.support.samples import SAMPLES, id16

u63 = st.integers(0, (1 << 63) - 1)
lanes = st.lists(st.integers(0, 63), unique=True).map(sorted)
u31 = st.integers(0, (1 << 31) - 1)
sixteen = st.binary(min_size=16, max_size=16)
heads = st.lists(st.binary(max_size=200), min_size=1, max_size=3)


def by_fastavro(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    schemaless_writer(out, schema, value)
    return out.getvalue()


@given(u63)
def test_a_long_is_what_avro_writes(value: int) -> None:
    assert avro_long(value) == by_fastavro("long", value)


@pytest.mark.parametrize("edge", [0, 63, 64, 8191, 8192, 1 << 48, (1 << 63) - 1])
def test_edges_of_a_long(edge: int) -> None:
    assert avro_long(edge) == by_fastavro("long", edge)


@pytest.mark.contract("SEQ-10")
@pytest.mark.parametrize("value", [-1, 1 << 63, -(1 << 63)])
def test_what_is_no_unsigned_63_bit_number_is_refused(value: int) -> None:
    with pytest.raises(RecordError):
        avro_long(value)


@given(st.lists(u63, max_size=70))
def test_a_list_of_longs_is_what_avro_writes(values: list[int]) -> None:
    assert pack_longs(values) == by_fastavro({"type": "array", "items": "long"}, values)


@given(
    st.binary(min_size=32, max_size=32),
    u63,
    u63,
    u63,
    u63,
    st.binary(max_size=300),
    u31,
    u31,
    lanes,
)
def test_a_progress_row_is_what_its_codec_writes(
    digest: bytes,
    first: int,
    last: int,
    seen: int,
    done_at: int,
    manifest: bytes,
    of: int,
    done: int,
    unfinished: list[int],
) -> None:
    row: DispatchProgress = {
        "payload_digest": digest,
        "canonical_log_offset": first,
        "max_observed_offset": last,
        "last_seen_ms": seen,
        "completed_at_ms": done_at,
        "manifest": manifest,
        "expected": of,
        "done": done,
        "unfinished_lanes": unfinished,
    }
    assert pack_progress(**row) == DISPATCH_PROGRESS.encode(row)


@pytest.mark.contract("PUSH-02")
@given(
    sixteen,
    u31,
    u63,
    sixteen,
    u63,
    st.binary(max_size=300),
    st.lists(st.tuples(u63, heads), min_size=1, max_size=70),
)
def test_a_push_is_what_its_codec_writes(
    tenant: bytes,
    shard: int,
    seq: int,
    device: bytes,
    sender: int,
    common: bytes,
    recipients: list[tuple[int, list[bytes]]],
) -> None:
    batch: PushBatch = {
        "tenant_id": tenant,
        "mailbox_shard": shard,
        "mailbox_seq": seq,
        "origin_device_id": device,
        "sender_id": sender,
        "common_encoded_body": common,
        "recipients": [{"user_id": user, "entry_heads": entry} for user, entry in recipients],
    }
    head = pack_push_head(tenant, shard, seq, device, sender, common)
    assert pack_push(head, recipients) == PUSH_BATCH.encode(batch)


@pytest.mark.parametrize("at", [0, 1])
def test_samples_are_packed_as_well(at: int) -> None:
    row = cast("DispatchProgress", SAMPLES["dispatch_progress"][at])
    assert pack_progress(**row) == DISPATCH_PROGRESS.encode(row)


def test_a_new_schema_version_must_be_packed_anew() -> None:
    """The packed version byte is written here once more, so that a new version cannot be forgotten."""
    assert (DISPATCH_PROGRESS.versions, PUSH_BATCH.versions) == (2, 1)
    assert pack_push_head(id16(1), 0, 0, id16(2), 1, b"")[:1] == b"\x01"
