"""Chunk manifests: v2 both ways, v1 read, everything else refused; field lengths (REG-42)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import RecordError
from schemas.manifest import decode_manifest, encode_manifest, single_chunk_manifest
from schemas.records import DISPATCH_PROGRESS
from tests.support.samples import sample

V1 = b"DPM\x01"
V2 = b"DPM\x02"

chunk_lists = st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=6)
manifests = st.dictionaries(st.integers(0, 63), chunk_lists, max_size=8)


def v1(lanes: dict[int, tuple[int, int]]) -> bytes:
    """Lane -> (chunks, first chunk) as the retired encoding wrote it."""
    out = [V1]
    for lane in range(64):
        count, first = lanes.get(lane, (0, 0))
        out.append(bytes([count > 0]) + count.to_bytes(2, "big") + first.to_bytes(2, "big"))
    return b"".join(out)


@pytest.mark.contract("DP-02", "DP-08")
@given(manifests)
def test_round_trip_of_the_named_lanes(chunks: dict[int, list[int]]) -> None:
    decoded = decode_manifest(encode_manifest(chunks))
    assert decoded == {lane: tuple(listed) for lane, listed in chunks.items()}
    assert list(decoded) == sorted(chunks)


@pytest.mark.contract("DP-08")
def test_one_lane_with_one_chunk_takes_seven_bytes() -> None:
    assert encode_manifest({5: [0]}) == V2 + b"\x05\x01\x00"
    assert len(encode_manifest({5: [0]})) == 7


@given(st.sets(st.integers(0, 63), max_size=64).map(sorted))
def test_the_short_cut_writes_the_same_bytes(lanes: list[int]) -> None:
    assert single_chunk_manifest(lanes) == encode_manifest({lane: [0] for lane in lanes})


@pytest.mark.contract("REG-42", "DP-09")
def test_reg_42_fields_of_a_direct_dispatch_stay_within_64_bytes() -> None:
    """At most two users, so at most two lanes in one dispatch."""
    row = sample("dispatch_progress") | {"manifest": single_chunk_manifest([0, 63])}
    decoded = DISPATCH_PROGRESS.decode(DISPATCH_PROGRESS.encode(row))  # type: ignore[arg-type]
    lengths = {key: len(v) for key, v in decoded.items() if isinstance(v, bytes)}
    assert lengths == {"payload_digest": 32, "manifest": 10}
    assert max(lengths.values()) <= 64


@pytest.mark.contract("DP-07", "DP-08")
def test_v1_is_read_as_the_same_chunks() -> None:
    encoded = v1({0: (1, 0), 7: (3, 40_000), 63: (2, 65_000)})
    assert len(encoded) == 324
    assert decode_manifest(encoded) == {
        0: (0,),
        7: (40_000, 40_001, 40_002),
        63: (65_000, 65_001),
    }


@pytest.mark.contract("DP-08")
@pytest.mark.parametrize(
    "body",
    [
        b"\x05\x81\x00\x00",  # count in two bytes where one is enough
        b"\x05\x01\x80\x00",  # chunk 0 in two bytes
        b"\x05\x01\x85\x80\x00",
    ],
)
def test_a_leb128_that_is_not_the_shortest_is_refused(body: bytes) -> None:
    with pytest.raises(RecordError, match="shortest"):
        decode_manifest(V2 + body)


REFUSED = {
    "empty": b"",
    "magic only in part": b"DPM",
    "unknown version": b"DPM\x03\x05\x01\x00",
    "lane 64": V2 + b"\x40\x01\x00",
    "lanes out of order": V2 + b"\x05\x01\x00\x04\x01\x00",
    "lane twice": V2 + b"\x05\x01\x00\x05\x01\x00",
    "no chunks": V2 + b"\x05\x00",
    "count without chunks": V2 + b"\x05\x02\x00",
    "lane without count": V2 + b"\x05",
    "endless LEB128": V2 + b"\x05\xff\xff\xff\xff\xff\xff\x01",
    "v1 too short": v1({0: (1, 0)})[:-1],
    "v1 too long": v1({0: (1, 0)}) + b"\x00",
    "v1 presence without chunks": V1 + b"\x01" + bytes(319),
    "v1 chunks without presence": V1 + b"\x00\x00\x01" + bytes(317),
    "v1 presence 2": V1 + b"\x02\x00\x01" + bytes(317),
}


@pytest.mark.contract("DP-08")
@pytest.mark.parametrize("case", REFUSED)
def test_damage_is_refused(case: str) -> None:
    with pytest.raises(RecordError):
        decode_manifest(REFUSED[case])


@given(st.binary(max_size=40))
def test_hostile_bytes_raise_record_error_only(data: bytes) -> None:
    for raw in (data, V2 + data, V1 + data):
        try:
            decoded = decode_manifest(raw)
        except RecordError:
            continue
        if raw[:4] == V2:
            assert encode_manifest(decoded) == raw  # one meaning, one encoding


@pytest.mark.contract("DP-02")
@pytest.mark.parametrize("chunks", [{64: [0]}, {-1: [0]}, {3: []}])
def test_the_writer_refuses_lanes_that_do_not_exist_and_empty_ones(
    chunks: dict[int, list[int]],
) -> None:
    with pytest.raises(RecordError):
        encode_manifest(chunks)
