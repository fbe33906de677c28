"""OBS-10: what leaves a process says nothing secret, whoever wrote the line."""

import secrets

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cursor import Cursor, CursorSigner
from gateway.tokens import AccessTokens, Identity
from schemas.redaction import Scrubber, body_shape, secret_digest, text_shape

KEY = "a key of the tests, long enough for HMAC"
TOKEN = AccessTokens(KEY.encode()).mint(Identity(0, 7, bytes(15) + b"\1", 1), 2_000_000_000)
CURSOR = CursorSigner({1: KEY.encode()}).sign(Cursor(0, 7, bytes(15) + b"\1", 3, 1, 99))
QUOTES = b'it\'s a body, "quoted"'


@pytest.mark.contract("OBS-10")
def test_obs_10_helpers_tell_sameness_and_size_only() -> None:
    assert secret_digest(TOKEN) == secret_digest(TOKEN.encode())
    assert secret_digest(TOKEN) != secret_digest(TOKEN + "x")
    assert len(secret_digest(TOKEN)) < 20
    assert body_shape(b"hello") == body_shape(memoryview(b"12345")) == "<5 bytes>"
    assert body_shape(None) == "<no bytes>"
    assert (text_shape("hello"), text_shape(None)) == ("<text of 5>", "<no text>")


@pytest.mark.contract("OBS-10")
@pytest.mark.parametrize(
    ("line", "secret"),
    [
        (f"refused {TOKEN}", TOKEN),
        (f"token={TOKEN!r}, expired", TOKEN),
        (f"token={TOKEN[:-9]}", TOKEN[:-9]),
        (f"cursor {CURSOR!r}", repr(CURSOR)[2:30]),
        (f"cursor {bytearray(CURSOR)!r}", repr(CURSOR)[2:30]),
        (f"cursor {CURSOR.hex()}", CURSOR.hex()),
        (f"value {QUOTES!r}", "a body"),
        ("cut b'off in the midd", "in the midd"),
        ("redis://user:pass-word@host:1/0 is away", "pass-word"),
        (
            "sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
            "9f86d081884c7d",
        ),
        ("sig QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWZnaGk/+w==", "QUJDREVGR0hJ"),
        (f"the key is {KEY}", KEY),
    ],
)
def test_obs_10_what_has_the_form_of_a_secret_is_taken_out(line: str, secret: str) -> None:
    scrubbed = Scrubber([KEY]).scrub(line)
    assert secret not in scrubbed
    assert scrubbed.startswith(line[:3])  # the rest of the line is still there


@pytest.mark.parametrize(
    "line",
    [
        "shard 3 starts at 17 with term 4",
        "redis://127.0.0.1:26861/0: no answer: Connection refused",
        "message 0123456789abcdef0123456789abcdef is committed",
        'File "/opt/qim/lib/python3.11/site-packages/aiokafka/producer/message_accumulator.py", line 335',
        "my-app-7-of-the-longest-kind-there-is-at-all-watermarks-changelog is read",
        "answers b'PONG'",
        "KafkaConnectionError: Unable to bootstrap from [('127.0.0.1', 9092, <AddressFamily.AF_INET: 2>)]",
        "",
    ],
)
def test_ordinary_lines_stay_as_they_are(line: str) -> None:
    assert Scrubber([KEY]).scrub(line) == line


@pytest.mark.contract("OBS-10")
@given(st.binary(min_size=13), st.text(max_size=20))
def test_obs_10_no_bytes_literal_survives(body: bytes, before: str) -> None:
    literal = repr(body)
    scrubbed = Scrubber().scrub(f"x {literal} y")
    assert literal not in scrubbed
    assert scrubbed.startswith("x ")


@given(st.integers(32, 64))
def test_fresh_random_keys_in_common_spellings_are_taken_out(size: int) -> None:
    raw = secrets.token_bytes(size)
    for text in (raw.hex(), repr(raw)):
        assert text not in Scrubber().scrub(f"key {text}.")
