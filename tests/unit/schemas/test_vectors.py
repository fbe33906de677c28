"""Frozen vectors, both directions (OPEN): what is stored today must be read for ever, by every implementation."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.hlc import HybridClock
from schemas import digests
from schemas import identifiers as ids
from schemas.entry import decode_entry, encode_common, encode_entry_head, entry_mailbox_seq
from schemas.errors import ServerFault
from schemas.frames import FrameDecoder, Message, encode_frame, encode_slices
from schemas.manifest import decode_manifest, encode_manifest
from schemas.watermarks import LaneMark, pack_w, unpack_w, w_of
from tests.support.samples import CODECS, SAMPLES
from tests.vectors.form import from_json

FOLDER = Path(__file__).resolve().parents[2] / "vectors"


def vectors(name: str) -> Any:
    return from_json(json.loads((FOLDER / f"{name}.json").read_text()))


IDENTIFIERS = vectors("identifiers")
RECORDS = vectors("records")


@pytest.mark.contract("OPEN-02", "OPEN-03", "OPEN-04", "OPEN-05", "OPEN-09", "SEQ-07")
@pytest.mark.parametrize("name", sorted(IDENTIFIERS))
def test_hashes_are_frozen(name: str) -> None:
    module = digests if name in digests.__all__ else ids
    function: Any = ids.MailboxSeq.compose if name == "compose" else getattr(module, name)
    for case in IDENTIFIERS[name]:
        assert function(*case["args"]) == case["result"]


def test_every_hash_has_vectors() -> None:
    parts = {"validate_shard_count", "compose_seq", "shard_of_bucket"}  # of those with vectors
    hashes = {name for name in ids.__all__ if name[0].islower()} - parts
    assert hashes | {"compose", *digests.__all__} == set(IDENTIFIERS)


@pytest.mark.parametrize("case", RECORDS, ids=lambda case: case["codec"])
def test_records_are_frozen_both_ways(case: dict[str, Any]) -> None:
    codec = CODECS[case["codec"]]
    assert codec.encode(case["record"]) == case["encoded"]
    assert codec.decode(case["encoded"]) == case["record"]


def test_a_progress_row_of_version_1_has_no_unfinished_lane() -> None:
    old = bytes.fromhex(
        "01000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
        "fcffffffffff7ffeffffffffff7ff695e8a7da66c895e8a7da660e44504d020501000202"
    )
    expected = SAMPLES["dispatch_progress"][0] | {"unfinished_lanes": []}
    assert CODECS["dispatch_progress"].decode(old) == expected


def test_every_codec_has_vectors() -> None:
    assert {case["codec"] for case in RECORDS} == set(CODECS)


@pytest.mark.contract("OPEN-06")
def test_entries_are_frozen_both_ways() -> None:
    cases = vectors("entries")
    assert len(cases) == 8
    for case in cases:
        head, event, encoded = case["head"], case["event"], case["encoded"]
        assert encode_entry_head(**head) + encode_common(event) == encoded
        decoded = dict(decode_entry(encoded))
        assert decoded.pop("event") == event
        assert decoded.pop("event_ordinal") == head["event_type"]
        assert decoded == head
        assert entry_mailbox_seq(encoded) == head["mailbox_seq"]


@pytest.mark.contract("OPEN-07")
def test_frames_are_frozen_both_ways() -> None:
    for case in vectors("frames")["frames"]:
        opcode, stream, request_id, payload, flags = case["args"]
        assert encode_frame(opcode, stream, request_id, payload, flags) == case["result"]
        read = FrameDecoder().feed(case["result"])
        assert read == ([] if flags else [Message(opcode, stream, request_id, payload)])


def test_slices_are_frozen() -> None:
    for case in vectors("frames")["slices"]:
        headers = [frame[:20] for frame in encode_slices(0x0302, 2, 7, bytes(case["length"]))]
        assert headers == case["headers"]


@pytest.mark.contract("WM-20", "WM-21")
def test_watermarks_are_frozen_both_ways() -> None:
    for case in vectors("watermarks"):
        lanes = [LaneMark(*mark) for mark in case["lanes"]]
        assert pack_w(lanes) == case["blob"]
        assert unpack_w(case["blob"]) == lanes
        assert [w_of(case["blob"], lane) for lane in range(64)] == [mark.w for mark in lanes]


@pytest.mark.contract("DP-07", "DP-08")
def test_manifests_are_frozen() -> None:
    cases = vectors("manifest")
    for case in cases["v2"]:
        assert encode_manifest(dict(case["chunks"])) == case["encoded"]
    for case in cases["v2"] + cases["v1"]:
        chunks = {lane: tuple(listed) for lane, listed in case["chunks"]}
        assert decode_manifest(case["encoded"]) == chunks


@pytest.mark.contract("OPEN-01", "SEQ-02")
def test_message_ids_are_frozen() -> None:
    file = vectors("hlc")
    clock = HybridClock(file["region"], file["writer"])
    for call in file["calls"]:
        if "install" in call:
            clock.install(*call["install"])
        elif call["id"] is None:
            with pytest.raises(ServerFault):
                clock.mint(call["mint"])
        else:
            assert clock.mint(call["mint"]).to_bytes(16, "big") == call["id"]
