"""Fuzz target of the gateway's parser: bytes of a hostile peer against the server core.

    python tests/fuzz/fuzz_server_protocol.py [SECONDS] [SEED]

Inputs are legal conversations with damage: flipped bits, cut and repeated parts, wrong lengths, random frames under a right
header CRC. Whatever comes in, the core may only answer, refuse or close; it may not raise, loop, or hold more memory than its
limits. A finding prints the seed and the bytes that repeat it.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gateway.events import CommitRequested, LoginRequested
from gateway.limits import GatewayLimits
from gateway.states import State
from schemas.errors import RequestError
from schemas.frames import Opcode, encode_frame
from tests.support.gateway import ALICE, DEVICE, SEQ, Peer, client_frame, committed, message_to

__all__ = ["LIMITS", "conversation", "damage", "run_one"]

LIMITS = GatewayLimits(max_inbound_message_bytes=200_000, max_unauthenticated_bytes=8_192)
_ROUNDS = 4
_MAX_HELD_BYTES = 4 * (LIMITS.max_inbound_message_bytes + 70_000)


def conversation(rng: random.Random) -> list[bytes]:
    """Frames of a well-behaved client, in some order."""
    auth = {
        "access_token": "t" * rng.randrange(200),
        "device_id": DEVICE,
        "cursor_kind": rng.randrange(3),
        "cursor": rng.randbytes(rng.choice((0, 85))),
        "foreground": True,
    }
    pull = {
        "after_seq": rng.choice((0, SEQ, SEQ + 5)),
        "up_to_seq": rng.choice((0, SEQ + 10)),
        "max_items": rng.randrange(-1, 5000),
        "max_bytes": 0,
    }
    frames = [
        client_frame(Opcode.AUTH, auth),
        client_frame(Opcode.SYNC_COMPLETE, {"sync_to_seq": SEQ + 10}),
        client_frame(Opcode.PULL_MAILBOX, pull, 2, 2),
        client_frame(Opcode.PING, {"client_time_ms": 1, "foreground": rng.random() < 0.5}, 3),
        client_frame(
            Opcode.SEND_MESSAGE,
            message_to(body=rng.randbytes(rng.choice((0, 10, 140_000))), sender=ALICE),
            4,
            1,
        ),
        client_frame(rng.randrange(1 << 16), rng.randbytes(rng.randrange(30)), 5),
    ]
    chosen = [rng.choice(frames) for _ in range(rng.randrange(1, 10))]
    return [frames[0], *chosen] if rng.random() < 0.8 else chosen


def damage(rng: random.Random, data: bytes) -> bytes:
    """One kind of damage, or none."""
    kind = rng.randrange(7)
    at = rng.randrange(len(data) + 1)
    if kind == 0 and data:
        flipped = bytearray(data)
        flipped[at % len(data)] ^= 1 << rng.randrange(8)
        return bytes(flipped)
    if kind == 1:
        return data[:at]
    if kind == 2:
        return data[at:] + data[:at]
    if kind == 3:
        return data[:at] + rng.randbytes(rng.randrange(1, 40)) + data[at:]
    if kind == 4:
        # A right header over a payload that is anything: the Avro readers are the target.
        opcode = rng.choice(list(Opcode))
        payload = b"\x01" + rng.randbytes(rng.randrange(60))
        flags = rng.randrange(4)
        return data[:at] + encode_frame(opcode, rng.randrange(4), 7, payload, flags) + data[at:]
    return data


def run_one(data: bytes, rng: random.Random) -> None:
    """Feed one input in random cuts and answer like a shell would; raises AssertionError on a finding."""
    peer = Peer(LIMITS)
    core = peer.core
    at = 0
    while at < len(data):
        cut = at + rng.choice((1, 3, 20, 1000, 65536))
        for event in peer.feed(data[at:cut]):
            if isinstance(event, LoginRequested):
                if rng.random() < 0.9:
                    core.auth_accepted(event.request_id, peer.login_of(SEQ + 10, SEQ + 10))
                else:
                    core.auth_refused(event.request_id, RequestError("no"))
            elif isinstance(event, CommitRequested):
                cmid = event.request.client_message_id
                assert len(cmid) == len(event.request.conversation_id) == 16
                assert any(cmid)
                core.commit_done(event.request_id, cmid, committed())
            else:
                assert event.max_items >= 1
                core.pull_done(event.request_id, RequestError("nothing here"))
        at = cut
        held = len(core._decoder._buffer) + sum(
            len(p.data) for p in core._decoder._partial.values()
        )
        assert held <= _MAX_HELD_BYTES
        assert core.state in State
    if core.state not in {State.CLOSED, State.CONNECTED, State.AUTHENTICATING}:
        assert core.login is not None
    peer.frames()
    assert core.queued_bytes == 0


def main(seconds: float, seed: int) -> int:
    """Run until the time is used up; returns the exit code."""
    deadline, runs = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        rng = random.Random(seed + runs)
        data = b"".join(damage(rng, frame) for frame in conversation(rng))
        try:
            run_one(data, rng)
        except BaseException:
            print(f"finding with seed {seed + runs}: {data.hex()[:2000]}")
            raise
        runs += 1
    print(f"{runs} inputs, seeds from {seed}, no finding")
    return 0


if __name__ == "__main__":
    arguments = sys.argv[1:]
    sys.exit(
        main(
            float(arguments[0]) if arguments else 10.0,
            int(arguments[1]) if len(arguments) > 1 else random.randrange(1 << 30),
        )
    )
