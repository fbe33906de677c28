"""Writes the frozen vectors: `python -m tests.vectors.make`.

The files are the contract with other implementations and with our own past. Run this only when a vector is ADDED; a
changed line means that stored data or other clients no longer fit, and needs a decision record. The test
(tests/unit/schemas/test_vectors.py) reads the files and never this module.
"""

import json
from pathlib import Path
from typing import Any

from gateway.hlc import HybridClock
from schemas import identifiers as ids
from schemas.constants import MAX_U63, MAX_U128
from schemas.digests import identity_digest, payload_digest
from schemas.entry import encode_common, encode_entry_head
from schemas.errors import ServerFault
from schemas.frames import encode_frame, encode_slices
from schemas.manifest import decode_manifest, encode_manifest
from schemas.watermarks import ABSENT, LaneMark, pack_w
from tests.support.samples import CODECS, SAMPLES, id16, sample
from tests.vectors.form import to_json

FOLDER = Path(__file__).parent
USERS = [(0, 1), (0, 2), (0, 1001), (7, 1001), (MAX_U128, MAX_U63)]


def write(name: str, cases: Any) -> None:
    """One vector file, sorted and readable."""
    text = json.dumps(to_json(cases), indent=1, ensure_ascii=True) + "\n"
    (FOLDER / f"{name}.json").write_text(text)


def calls(function: Any, arguments: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Arguments and results of a function."""
    return [{"args": list(args), "result": function(*args)} for args in arguments]


def identifiers() -> dict[str, Any]:
    """Every hash of schemas/identifiers.py and schemas/digests.py."""
    identity = (id16(1), id16(2), 0xFFFF_FFFE, "qim.poll.v1", b"body", (3, MAX_U63), 4)
    return {
        "compose": calls(ids.MailboxSeq.compose, [(1, 0), (1, 7), (2, 0), (0x7FFF, (1 << 48) - 1)]),
        "lane_of": calls(ids.lane_of, USERS),
        "virtual_bucket": calls(ids.virtual_bucket, USERS),
        "shard_of": calls(ids.shard_of, [(*user, n) for user in USERS for n in (1, 8, 64, 65536)]),
        "commit_bucket": calls(ids.commit_bucket, [(0, id16(1)), (7, id16(1)), (0, id16(2))]),
        "direct_conversation_id": calls(
            ids.direct_conversation_id,
            [(0, 1, 2), (0, 2, 1), (0, 1, 1), (7, 1, 2), (MAX_U128, 1, MAX_U63)],
        ),
        "dispatch_id_of": calls(ids.dispatch_id_of, [(1, 0), (1, 1), (MAX_U128, 65535)]),
        "event_id_of": calls(
            ids.event_id_of, [(0, id16(1), 1, t) for t in range(4)] + [(7, id16(2), MAX_U63, 0)]
        ),
        "trace_id_of": calls(ids.trace_id_of, [(1,), (MAX_U128,)]),
        "identity_digest": calls(
            identity_digest, [identity, (id16(1), id16(2), 1, "", b"", (), 0)]
        ),
        "payload_digest": calls(
            payload_digest, [(record,) for record in SAMPLES["group_dispatch"]]
        ),
    }


def entries() -> list[dict[str, Any]]:
    """Heads of every event type on the full and the minimal common part."""
    out = []
    for event in SAMPLES["event_common"]:
        for event_type in range(4):
            head = {
                "mailbox_seq": (5 << 48) + event_type,
                "event_type": event_type,
                "event_id": bytes(range(8)),
                "flags": 3,
                "mention_type": int(event_type == 1),
                "client_message_id": id16(9) if event_type == 0 else None,
            }
            encoded = encode_entry_head(**head) + encode_common(event)  # type: ignore[arg-type]
            out.append({"head": head, "event": event, "encoded": encoded})
    return out


def records() -> list[dict[str, Any]]:
    """Every codec's full and minimal record."""
    return [
        {"codec": name, "record": record, "encoded": CODECS[name].encode(record)}
        for name in sorted(CODECS)
        for record in SAMPLES[name]
    ]


def frames() -> dict[str, Any]:
    """Single frames in full; long messages by their slices' lengths and flags."""
    single = [
        (0x0103, 0, 1, b"", 0),
        (0x0201, 1, 0xFFFF_FFFF, b"hello", 0),
        (0x0302, 2, 7, b"a", 1),
    ]
    return {
        "frames": calls(encode_frame, single),
        "slices": [
            {
                "length": length,
                "headers": [frame[:20] for frame in encode_slices(0x0302, 2, 7, bytes(length))],
            }
            for length in (0, 65_536, 65_537, 200_000)
        ],
    }


def watermarks() -> list[dict[str, Any]]:
    """Short, absent and lane by lane."""
    mixed = [ABSENT, LaneMark(0, 0, 0), *[LaneMark(9 + n, n, n) for n in range(62)]]
    cases = [
        [ABSENT] * 64,
        [LaneMark(0, 0, 0)] * 64,
        [LaneMark((1 << 48) - 1, 5, 6)] * 64,
        mixed,
    ]
    return [{"lanes": [list(mark) for mark in lanes], "blob": pack_w(lanes)} for lanes in cases]


def manifests() -> dict[str, Any]:
    """v2 both ways, v1 read only."""
    chunks: list[dict[int, list[int]]] = [{}, {5: [0]}, {0: [0], 63: [0]}, {1: [0, 1, 300, 70_000]}]
    lane_0 = b"\x01\x00\x02\x00\x07"
    v1 = b"DPM\x01" + lane_0 + bytes(63 * 5)
    return {
        "v2": [{"chunks": list(c.items()), "encoded": encode_manifest(c)} for c in chunks],
        "v1": [{"chunks": list(decode_manifest(v1).items()), "encoded": v1}],
    }


def hlc() -> list[dict[str, Any]]:
    """Calls of one clock in order: install (start, end) or mint at a time; an id or null when it is refused."""
    clock = HybridClock(region=3, writer=65_535)
    out: list[dict[str, Any]] = []
    for window, times in (
        ((1_000, 1_010), [5, 5, 1_004, 1_003, 1_004, 1_010]),
        ((2_000, 2_001), [0]),
    ):
        clock.install(*window)
        out.append({"install": list(window)})
        for now_ms in times:
            try:
                minted: int | None = clock.mint(now_ms)
            except ServerFault:
                minted = None
            out.append({"mint": now_ms, "id": None if minted is None else id16(minted)})
    return out


def main() -> None:
    """Write all files."""
    assert sample("kicked")  # the samples import
    write("identifiers", identifiers())
    write("entries", entries())
    write("records", records())
    write("frames", frames())
    write("watermarks", watermarks())
    write("manifest", manifests())
    write("hlc", {"region": 3, "writer": 65_535, "calls": hlc()})


if __name__ == "__main__":
    main()
