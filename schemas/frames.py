"""Frame codec of the client protocol, shared by gateway and clients: bytes in, whole messages out.

Header, 20 bytes big-endian (GW-03, OPEN-07):

    magic u16 = 0x5149 | version u8 = 1 | flags u8 | opcode u16 | stream u16 | request_id u32 | length u32 | crc u32

`crc` is the CRC-32 of the first 16 bytes; a mismatch ends the connection, there is no resynchronisation. A message
longer than 64 KiB travels as slices of one (stream, request_id, opcode), all but the last with the MORE flag; slices
of different streams may interleave, so that a long batch never delays a PONG (GW-05). No clock, no socket.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple
from zlib import crc32

from schemas.constants import MAX_FRAME_BYTES, STREAM_WRITE_CHUNK_BYTES
from schemas.errors import ErrorCode, ProtocolError

__all__ = [
    "FLAG_MORE",
    "FLAG_NEED_ACK",
    "HEADER_BYTES",
    "MAGIC",
    "PROTOCOL_VERSION",
    "FrameDecoder",
    "Message",
    "Opcode",
    "Stream",
    "encode_frame",
    "encode_slices",
]

MAGIC: Final = 0x5149
PROTOCOL_VERSION: Final = 1
FLAG_MORE: Final = 0x01
FLAG_NEED_ACK: Final = 0x02  # reserved and unused (GW-04)
_KNOWN_FLAGS: Final = FLAG_MORE | FLAG_NEED_ACK
_HEAD = struct.Struct(">HBBHHII")
_CRC = struct.Struct(">I")
HEADER_BYTES: Final = _HEAD.size + _CRC.size


class Opcode(IntEnum):
    """Numbers of the wire messages; READ_SYNC and LEAVE_GROUP are given by GW-16, the others are ours (OPEN-07)."""

    AUTH = 0x0101
    AUTH_OK = 0x0102
    PING = 0x0103
    PONG = 0x0104
    KICKED = 0x0105
    ERROR = 0x0106
    CURSOR_REBASED = 0x0107
    SYNC_COMPLETE = 0x0108
    ONLINE_READY = 0x0109
    SEND_MESSAGE = 0x0201
    SEND_ACK = 0x0202
    PULL_MAILBOX = 0x0301
    MAILBOX_BATCH = 0x0302
    PUSH_EVENTS = 0x0303


class Stream(IntEnum):
    """Multiplexed streams of one connection (GW-05)."""

    CONTROL = 0
    REALTIME = 1
    BULK = 2
    ROOMS = 3


class Message(NamedTuple):
    """One whole message; `opcode` is a plain int because unknown ones must survive the decoder."""

    opcode: int
    stream: int
    request_id: int
    payload: bytes


def encode_frame(
    opcode: int, stream: int, request_id: int, payload: bytes, flags: int = 0
) -> bytes:
    """One frame; `payload` must not be longer than one slice."""
    head = _HEAD.pack(MAGIC, PROTOCOL_VERSION, flags, opcode, stream, request_id, len(payload))
    return head + _CRC.pack(crc32(head)) + payload


def encode_slices(opcode: int, stream: int, request_id: int, payload: bytes) -> list[bytes]:
    """The frames of one message, in order; one frame for everything up to 64 KiB."""
    if len(payload) <= STREAM_WRITE_CHUNK_BYTES:
        return [encode_frame(opcode, stream, request_id, payload)]
    if len(payload) > MAX_FRAME_BYTES:
        raise ProtocolError(f"message of {len(payload)} bytes", ErrorCode.FRAME_TOO_LARGE)
    view = memoryview(payload)
    cuts = range(0, len(payload), STREAM_WRITE_CHUNK_BYTES)
    last = cuts[-1]
    return [
        encode_frame(
            opcode,
            stream,
            request_id,
            bytes(view[at : at + STREAM_WRITE_CHUNK_BYTES]),
            0 if at == last else FLAG_MORE,
        )
        for at in cuts
    ]


class _Partial:
    __slots__ = ("data", "opcode", "request_id")

    def __init__(self, opcode: int, request_id: int) -> None:
        self.opcode = opcode
        self.request_id = request_id
        self.data = bytearray()  # not a list: a peer's tiny slices must not cost an object each


class FrameDecoder:
    """Incremental decoder: feed any cut of the byte stream, get whole messages; it never raises.

    Damage sets `error` to the ProtocolError whose code is to be answered; what came whole before it is still
    returned, later bytes are ignored and the connection must be closed. Memory is bounded by one partial frame plus
    `max_message_bytes` for each of the four streams; a length above the limit is refused from its header, before
    anything is buffered for it.
    """

    def __init__(self, max_message_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_message_bytes = max_message_bytes
        self._buffer = bytearray()
        self._partial: dict[int, _Partial] = {}
        self.error: ProtocolError | None = None

    def feed(self, data: bytes) -> list[Message]:
        """Append `data` and return the messages it completes, in order."""
        messages: list[Message] = []
        if self.error is not None:
            return messages
        buffer = self._buffer
        buffer += data
        at, end = 0, len(buffer)
        try:
            while end - at >= HEADER_BYTES:
                magic, version, flags, opcode, stream, request_id, length = _HEAD.unpack_from(
                    buffer, at
                )
                self._check_header(at, magic, version, flags, stream, length)
                stop = at + HEADER_BYTES + length
                if stop > end:
                    break
                payload = bytes(buffer[at + HEADER_BYTES : stop])
                at = stop
                if flags & FLAG_MORE or self._partial:
                    whole = self._assemble(flags, opcode, stream, request_id, payload)
                    if whole is not None:
                        messages.append(whole)
                else:
                    messages.append(Message(opcode, stream, request_id, payload))
        except ProtocolError as error:
            self.error = error
            self._partial.clear()
            at = end
        del buffer[:at]
        return messages

    def _check_header(
        self, at: int, magic: int, version: int, flags: int, stream: int, length: int
    ) -> None:
        (crc,) = _CRC.unpack_from(self._buffer, at + _HEAD.size)
        if magic != MAGIC or crc != crc32(memoryview(self._buffer)[at : at + _HEAD.size]):
            raise ProtocolError("bad magic or header CRC", ErrorCode.BAD_FRAME)
        if version != PROTOCOL_VERSION or flags & ~_KNOWN_FLAGS:
            raise ProtocolError(
                f"unknown version {version} or flags {flags:#x}", ErrorCode.BAD_FRAME
            )
        if length > min(STREAM_WRITE_CHUNK_BYTES, self._max_message_bytes):
            raise ProtocolError(f"slice of {length} bytes", ErrorCode.FRAME_TOO_LARGE)
        if stream > Stream.ROOMS:
            raise ProtocolError(f"unknown stream {stream}", ErrorCode.BAD_STREAM)

    def _assemble(
        self, flags: int, opcode: int, stream: int, request_id: int, payload: bytes
    ) -> Message | None:
        partial = self._partial.get(stream)
        if partial is None:
            if not flags & FLAG_MORE:
                return Message(opcode, stream, request_id, payload)
            partial = self._partial[stream] = _Partial(opcode, request_id)
        elif (partial.opcode, partial.request_id) != (opcode, request_id):
            raise ProtocolError(
                "slices of two messages interleave on one stream", ErrorCode.BAD_STREAM
            )
        if len(partial.data) + len(payload) > self._max_message_bytes:
            raise ProtocolError(
                f"message above {self._max_message_bytes} bytes", ErrorCode.FRAME_TOO_LARGE
            )
        if flags & FLAG_MORE and not payload:
            raise ProtocolError(
                "empty slice", ErrorCode.BAD_STREAM
            )  # else a peer could loop for ever
        partial.data += payload
        if flags & FLAG_MORE:
            return None
        del self._partial[stream]
        return Message(opcode, stream, request_id, bytes(partial.data))
