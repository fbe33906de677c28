"""Every codec: both directions, and nothing but RecordError on whatever bytes arrive."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import ErrorCode, RecordError
from tests.support.samples import CODECS, SAMPLES, sample

NAMES = sorted(CODECS)
CASES = [(name, at) for name in NAMES for at in (0, 1)]


def test_every_codec_has_samples() -> None:
    assert set(SAMPLES) == set(CODECS)


@pytest.mark.contract("EVT-13")
@pytest.mark.parametrize(("name", "at"), CASES)
def test_round_trip_full_and_minimal(name: str, at: int) -> None:
    codec, record = CODECS[name], SAMPLES[name][at]
    encoded = codec.encode(record)
    assert encoded[0] == codec.versions
    assert codec.decode(encoded) == record


@pytest.mark.contract("REG-02", "EVT-13")
@pytest.mark.parametrize("name", ["event_common", "group_dispatch", "send_message"])
@pytest.mark.parametrize("custom_type", ["", "a", "qim.membership.v1", "x" * 64, "\u00fc" * 32])
def test_reg_02_custom_type_round_trip(name: str, custom_type: str) -> None:
    record = sample(name) | {"custom_type": custom_type}
    assert CODECS[name].decode(CODECS[name].encode(record)) == record


@pytest.mark.contract("SEQ-17", "ADAPT-02")
@pytest.mark.parametrize("name", ["event_common", "group_dispatch", "send_message"])
@pytest.mark.parametrize("message_type", [0, 1, 4, 5, 255, 256, 65536, 0x7FFF_FFFF, 0xFFFF_FFFF])
def test_raw_u32_message_type_survives(name: str, message_type: int) -> None:
    record = sample(name) | {"message_type": message_type}
    assert CODECS[name].decode(CODECS[name].encode(record))["message_type"] == message_type


@pytest.mark.parametrize(("name", "at"), CASES)
def test_every_truncation_is_refused(name: str, at: int) -> None:
    encoded = CODECS[name].encode(SAMPLES[name][at])
    for length in range(len(encoded)):
        with pytest.raises(RecordError):
            CODECS[name].decode(encoded[:length])


@pytest.mark.parametrize("name", NAMES)
def test_trailing_bytes_are_refused(name: str) -> None:
    encoded = CODECS[name].encode(SAMPLES[name][0])
    for tail in (b"\x00", b"\x01", encoded):
        with pytest.raises(RecordError, match=r"trailing|malformed"):
            CODECS[name].decode(encoded + tail)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("version", [0, 3, 255])
def test_unknown_versions_are_refused(name: str, version: int) -> None:
    encoded = CODECS[name].encode(SAMPLES[name][0])
    with pytest.raises(RecordError, match="unknown schema version"):
        CODECS[name].decode(bytes([version]) + encoded[1:])


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60)
@given(data=st.binary(max_size=120))
def test_hostile_bytes_raise_record_error_only(name: str, data: bytes) -> None:
    for raw in (data, b"\x01" + data):
        try:
            CODECS[name].decode(raw)
        except RecordError as error:
            assert error.code is ErrorCode.MALFORMED_PAYLOAD  # noqa: PT017


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60)
@given(at=st.integers(0, 10_000), value=st.integers(0, 255))
def test_one_damaged_byte_raises_record_error_only(name: str, at: int, value: int) -> None:
    encoded = bytearray(CODECS[name].encode(SAMPLES[name][0]))
    encoded[at % len(encoded)] = value
    try:
        CODECS[name].decode(bytes(encoded))
    except RecordError as error:
        assert error.code is ErrorCode.MALFORMED_PAYLOAD  # noqa: PT017


@pytest.mark.parametrize("length", [-1, -(1 << 63), 1 << 30, (1 << 62)])
def test_a_lie_about_a_length_allocates_nothing(length: int) -> None:
    zigzag = (length << 1) ^ (length >> 63)
    raw = bytearray(b"\x01")
    while zigzag > 0x7F:
        raw.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    raw.append(zigzag)
    for name in ("kicked", "push_events"):  # a string and an array of bytes
        with pytest.raises(RecordError):
            CODECS[name].decode(bytes(raw) + b"abc")


BAD_FIELDS: list[tuple[str, dict[str, Any]]] = [
    ("send_message", {"recipient_user_id": 1 << 63}),
    ("send_message", {"recipient_user_id": None}),
    ("send_message", {"custom_type": b"bytes"}),
    ("send_message", {"custom_type": "\ud800"}),
    ("send_message", {"body": "text"}),
    ("group_dispatch", {"tenant_id": bytes(15)}),
    ("group_dispatch", {"membership_version": "1"}),
    ("dispatch_progress", {"payload_digest": bytes(31)}),
    ("event_common", {"conversation_seq": bytes(7)}),
    ("event_common", {"reply_to": bytes(15)}),
]


@pytest.mark.contract("ADAPT-03")
@pytest.mark.parametrize(("name", "change"), BAD_FIELDS)
def test_a_field_that_does_not_fit_is_refused(name: str, change: dict[str, Any]) -> None:
    with pytest.raises(RecordError):
        CODECS[name].encode(sample(name) | change)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_field_is_refused_or_has_a_default(name: str) -> None:
    """Only fields whose schema gives null, or an empty list, as default may be absent."""
    full = SAMPLES[name][0]
    for field in full:
        partial = {key: value for key, value in full.items() if key != field}
        try:
            decoded = CODECS[name].decode(CODECS[name].encode(partial))
        except RecordError:
            continue
        assert decoded == full | {field: [] if isinstance(full[field], list) else None}
