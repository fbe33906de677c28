"""A bounded run of the parser's fuzz target; tests/fuzz/ runs it for longer."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.fuzz_server_protocol import conversation, damage, run_one


@pytest.mark.parametrize("seed", range(300))
def test_damaged_conversations_are_answered_or_closed(seed: int) -> None:
    rng = random.Random(seed)
    run_one(b"".join(damage(rng, frame) for frame in conversation(rng)), rng)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=400), st.integers(0, 1 << 20))
def test_any_bytes_are_answered_or_closed(data: bytes, seed: int) -> None:
    run_one(data, random.Random(seed))
