"""Frames that wait to be written on one connection: a queue for each stream, lower stream numbers first (GW-05).

A long batch is queued as slices of 64 KiB, so a PONG or a KICKED that is queued later leaves before the rest of the batch.
Inside one stream the order is kept, since slices of two messages may not interleave there. Pure: the shell decides when and
how much to write.
"""

from __future__ import annotations

from collections import deque

from schemas.frames import Stream, encode_frame, encode_slices

__all__ = ["Outbound"]

_SMALL_BYTES = 32 * 1024
"""Payloads below it are one frame without asking the slicer."""


class Outbound:
    """Encoded frames by stream; `queued_bytes` is the exact sum of what waits."""

    __slots__ = ("_queues", "queued_bytes")

    def __init__(self) -> None:
        self._queues: tuple[deque[bytes], ...] = tuple(deque() for _ in Stream)
        self.queued_bytes = 0

    def put(self, opcode: int, stream: int, request_id: int, payload: bytes) -> None:
        """Queue one message as one frame or as slices; raises ProtocolError above the frame limit."""
        if len(payload) <= _SMALL_BYTES:
            frame = encode_frame(opcode, stream, request_id, payload)
            self._queues[stream].append(frame)
            self.queued_bytes += len(frame)
            return
        for frame in encode_slices(opcode, stream, request_id, payload):
            self._queues[stream].append(frame)
            self.queued_bytes += len(frame)

    def take(self, budget_bytes: int) -> bytes:
        """The next bytes to write: whole frames until `budget_bytes` is reached, at least one if any waits; b"" if none."""
        if not self.queued_bytes:
            return b""
        frames: list[bytes] = []
        size = 0
        for queue in self._queues:
            while queue and size < budget_bytes:
                frame = queue.popleft()
                frames.append(frame)
                size += len(frame)
        self.queued_bytes -= size
        return frames[0] if len(frames) == 1 else b"".join(frames)

    def clear(self) -> None:
        """Forget everything: the peer will not read it."""
        for queue in self._queues:
            queue.clear()
        self.queued_bytes = 0
