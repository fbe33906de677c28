"""Each private part that ours replace or lean on is still what it was."""

import importlib.metadata

import pytest

from tests.contract_faust.pins import PINNED, digest_of, load_pins


@pytest.mark.parametrize("name", PINNED)
def test_private_part_is_what_ours_was_written_against(name: str) -> None:
    assert digest_of(name) == load_pins()[name], f"changed; ours: {PINNED[name]}"


def test_every_pin_is_used() -> None:
    assert load_pins().keys() == PINNED.keys()


def test_faust_is_the_version_that_was_read() -> None:
    assert importlib.metadata.version("faust-streaming") == "0.15.3"
