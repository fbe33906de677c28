"""The frame codec: one table of messages for writer and reader, every cut, interleaved slices, limits, damage."""

import struct
from collections.abc import Iterator
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.constants import MAX_FRAME_BYTES, STREAM_WRITE_CHUNK_BYTES
from schemas.errors import ErrorCode, ProtocolError
from schemas.frames import (
    FLAG_MORE,
    FLAG_NEED_ACK,
    HEADER_BYTES,
    MAGIC,
    FrameDecoder,
    Message,
    Opcode,
    encode_frame,
    encode_slices,
)

CHUNK = STREAM_WRITE_CHUNK_BYTES

# What is written and what must be read from it, whichever way the bytes are cut.
CASES = {
    "empty": [Message(Opcode.PING, 0, 0, b"")],
    "one": [Message(Opcode.SEND_MESSAGE, 1, 7, b"hello")],
    "unknown opcode": [Message(0xBEEF, 1, 1, b"?")],
    "largest ids": [Message(0xFFFF, 3, 0xFFFF_FFFF, b"\xff")],
    "several": [Message(Opcode.PING, 0, n, bytes(n)) for n in range(5)],
    "one chunk": [Message(Opcode.MAILBOX_BATCH, 2, 1, bytes(CHUNK))],
    "chunk and one": [Message(Opcode.MAILBOX_BATCH, 2, 1, b"a" * CHUNK + b"b")],
    "three chunks": [Message(Opcode.MAILBOX_BATCH, 2, 1, bytes(3 * CHUNK))],
}


def written(messages: list[Message]) -> bytes:
    return b"".join(part for m in messages for part in encode_slices(*m))


def header(
    magic: int = MAGIC,
    version: int = 1,
    flags: int = 0,
    opcode: int = Opcode.PING,
    stream: int = 0,
    request_id: int = 1,
    length: int = 0,
) -> bytes:
    head = struct.pack(">HBBHHII", magic, version, flags, opcode, stream, request_id, length)
    return head + struct.pack(">I", crc32(head))


def code_of(decoder: FrameDecoder) -> ErrorCode | None:
    return None if decoder.error is None else decoder.error.code


def fed(decoder: FrameDecoder, data: bytes, step: int) -> list[Message]:
    return [m for at in range(0, len(data), step) for m in decoder.feed(data[at : at + step])]


@pytest.mark.contract("GW-03", "GW-05")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("step", [1, 2, 3, 19, 20, 21, 65_536, 1 << 30])
def test_what_is_written_is_read_whatever_the_cut(case: str, step: int) -> None:
    messages = CASES[case]
    data = written(messages)
    if len(data) > 4096 and step < 19:
        data, messages = written(CASES["several"]), CASES["several"]
    decoder = FrameDecoder()
    assert fed(decoder, data, step) == messages
    assert decoder.error is None


def test_every_single_cut_of_two_frames() -> None:
    messages = [Message(Opcode.SEND_MESSAGE, 1, 9, b"abc"), Message(Opcode.PING, 0, 2, b"")]
    data = written(messages)
    for cut in range(len(data) + 1):
        decoder = FrameDecoder()
        assert decoder.feed(data[:cut]) + decoder.feed(data[cut:]) == messages


def test_a_whole_message_is_given_before_the_rest_of_the_next_arrives() -> None:
    one, two = encode_frame(Opcode.PING, 0, 1, b""), encode_frame(Opcode.PING, 0, 2, b"x")
    decoder = FrameDecoder()
    assert [m.request_id for m in decoder.feed(one + two[:-1])] == [1]
    assert [m.request_id for m in decoder.feed(two[-1:])] == [2]


@pytest.mark.contract("GW-03")
def test_header_layout_is_twenty_bytes_big_endian() -> None:
    frame = encode_frame(0x0201, 1, 0x01020304, b"xy", FLAG_MORE)
    assert HEADER_BYTES == 20
    assert frame[:16].hex() == "5149" "01" "01" "0201" "0001" "01020304" "00000002"
    assert frame[16:20] == crc32(frame[:16]).to_bytes(4, "big")
    assert frame[20:] == b"xy"


@pytest.mark.contract("GW-05")
def test_slices_of_two_streams_interleave() -> None:
    batch = Message(Opcode.MAILBOX_BATCH, 2, 1, b"b" * (2 * CHUNK + 5))
    push = Message(Opcode.PUSH_EVENTS, 1, 0, b"p" * (CHUNK + 1))
    pong = Message(Opcode.PONG, 0, 3, b"")
    b1, b2, b3 = encode_slices(*batch)
    p1, p2 = encode_slices(*push)
    decoder = FrameDecoder()
    read = fed(decoder, b"".join([b1, p1, *encode_slices(*pong), b2, p2, b3]), 10_000)
    assert read == [pong, push, batch]
    assert decoder.error is None


@pytest.mark.contract("GW-05")
def test_no_slice_is_longer_than_64_kib() -> None:
    frames = encode_slices(Opcode.MAILBOX_BATCH, 2, 1, bytes(MAX_FRAME_BYTES))
    assert max(map(len, frames)) == HEADER_BYTES + CHUNK
    assert [frame[3] & FLAG_MORE for frame in frames] == [FLAG_MORE] * (len(frames) - 1) + [0]


def test_the_writer_refuses_what_no_reader_takes() -> None:
    with pytest.raises(ProtocolError) as caught:
        encode_slices(Opcode.MAILBOX_BATCH, 2, 1, bytes(MAX_FRAME_BYTES + 1))
    assert caught.value.code is ErrorCode.FRAME_TOO_LARGE


@pytest.mark.contract("GW-04")
def test_need_ack_is_reserved_and_ignored() -> None:
    decoder = FrameDecoder()
    frame = encode_frame(Opcode.PING, 0, 1, b"", FLAG_NEED_ACK)
    assert decoder.feed(frame) == [Message(Opcode.PING, 0, 1, b"")]


# --- limits --------------------------------------------------------------------------------------------------


def test_a_length_above_the_limit_is_refused_by_its_header_alone() -> None:
    decoder = FrameDecoder(max_message_bytes=100)
    assert decoder.feed(header(length=101)) == []
    assert code_of(decoder) is ErrorCode.FRAME_TOO_LARGE


def test_a_slice_above_64_kib_is_refused_by_its_header_alone() -> None:
    decoder = FrameDecoder()
    decoder.feed(header(length=CHUNK + 1))
    assert code_of(decoder) is ErrorCode.FRAME_TOO_LARGE


@pytest.mark.parametrize("limit", [1, 100, CHUNK, CHUNK + 1])
def test_the_limit_counts_the_message_and_not_its_slices(limit: int) -> None:
    exact = b"".join(encode_slices(Opcode.SEND_MESSAGE, 1, 1, bytes(limit)))
    above = b"".join(encode_slices(Opcode.SEND_MESSAGE, 1, 1, bytes(limit + 1)))
    decoder = FrameDecoder(limit)
    assert [len(m.payload) for m in decoder.feed(exact)] == [limit]
    decoder = FrameDecoder(limit)
    assert decoder.feed(above) == []
    assert code_of(decoder) is ErrorCode.FRAME_TOO_LARGE


def test_many_small_slices_reach_the_same_limit() -> None:
    decoder = FrameDecoder(10)
    piece = encode_frame(Opcode.SEND_MESSAGE, 1, 1, b"abc", FLAG_MORE)
    assert decoder.feed(piece * 3) == []
    assert code_of(decoder) is None
    decoder.feed(piece)
    assert code_of(decoder) is ErrorCode.FRAME_TOO_LARGE


def test_memory_of_a_sliced_message_is_its_bytes() -> None:
    """A peer that sends two bytes a slice must not make us keep an object for each."""
    decoder = FrameDecoder(1 << 20)
    piece = encode_frame(Opcode.SEND_MESSAGE, 1, 1, b"ab", FLAG_MORE)
    decoder.feed(piece * 1000)
    (partial,) = decoder._partial.values()
    assert partial.data == b"ab" * 1000


# --- damage --------------------------------------------------------------------------------------------------

DAMAGED = {
    "magic": (header(magic=0x5150), ErrorCode.BAD_FRAME),
    "version": (header(version=2), ErrorCode.BAD_FRAME),
    "unknown flag": (header(flags=0x80), ErrorCode.BAD_FRAME),
    "unknown stream": (header(stream=4), ErrorCode.BAD_STREAM),
    "crc": (header()[:-1] + bytes([header()[-1] ^ 1]), ErrorCode.BAD_FRAME),
    "empty slice": (header(flags=FLAG_MORE), ErrorCode.BAD_STREAM),
    "two messages on one stream": (
        encode_frame(Opcode.SEND_MESSAGE, 1, 1, b"a", FLAG_MORE)
        + encode_frame(Opcode.SEND_MESSAGE, 1, 2, b"b"),
        ErrorCode.BAD_STREAM,
    ),
    "another opcode in the middle": (
        encode_frame(Opcode.SEND_MESSAGE, 1, 1, b"a", FLAG_MORE)
        + encode_frame(Opcode.SEND_ACK, 1, 1, b"b"),
        ErrorCode.BAD_STREAM,
    ),
}


@pytest.mark.contract("GW-03")
@pytest.mark.parametrize("case", DAMAGED)
@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_damage_sets_the_error_and_ends_the_stream(case: str, step: int) -> None:
    data, code = DAMAGED[case]
    good = Message(Opcode.PING, 0, 77, b"ok")
    decoder = FrameDecoder()
    assert fed(decoder, written([good]) + data, step) == [good]  # what came whole before it counts
    assert code_of(decoder) is code
    assert code.closes
    assert decoder.feed(written([good])) == []  # no resynchronisation


@pytest.mark.contract("GW-03")
def test_every_flipped_header_bit_is_noticed() -> None:
    frame = encode_frame(Opcode.PING, 0, 5, b"payload")
    for bit in range(HEADER_BYTES * 8):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        decoder = FrameDecoder()
        assert decoder.feed(bytes(damaged)) == []
        assert decoder.error is not None


def _messages() -> st.SearchStrategy[list[Message]]:
    one = st.builds(
        Message,
        st.integers(0, 0xFFFF),
        st.integers(0, 3),
        st.integers(0, 0xFFFF_FFFF),
        st.binary(max_size=60),
    )
    return st.lists(one, max_size=8)


def _cuts(data: bytes, lengths: list[int]) -> Iterator[bytes]:
    at = 0
    for length in lengths:
        yield data[at : at + length]
        at += length
    yield data[at:]


@settings(max_examples=150)
@given(_messages(), st.lists(st.integers(0, 50), max_size=20))
def test_any_messages_survive_any_cut(messages: list[Message], lengths: list[int]) -> None:
    decoder = FrameDecoder()
    read = [m for part in _cuts(written(messages), lengths) for m in decoder.feed(part)]
    assert read == messages
    assert decoder.error is None


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=60), max_size=6), _messages(), st.integers(0, 400))
def test_hostile_bytes_never_raise(noise: list[bytes], messages: list[Message], at: int) -> None:
    decoder = FrameDecoder(max_message_bytes=50)
    data = written(messages)
    for part in [data[:at], *noise, data[at:]]:
        for message in decoder.feed(part):
            assert len(message.payload) <= 50
    assert decoder.error is None or isinstance(decoder.error, ProtocolError)
    assert len(decoder._buffer) < HEADER_BYTES + 50
