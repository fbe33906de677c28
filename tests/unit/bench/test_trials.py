"""The arithmetic of the trials, without a stack."""

from typing import cast

import pytest

from bench.cli import parse
from bench.overload import memory_is_bounded
from bench.trials import TRIALS
from bench.wide import users_in, wide_dispatch
from schemas.identifiers import lane_of, shard_of
from schemas.records import GROUP_DISPATCH


def test_wide_dispatch_names_users_of_one_shard_in_the_chosen_lanes() -> None:
    users = users_in(8, range(32), 500, 1 << 24)
    assert len(set(users)) == 500
    assert {shard_of(0, user, 8) for user in users} == {0}
    assert {lane_of(0, user) for user in users} <= set(range(32))
    key, value = wide_dispatch(8, users)
    decoded = GROUP_DISPATCH.decode(value)
    assert decoded["dispatch_id"] == key
    assert decoded["recipients"] == users
    assert decoded["target_mailbox_shard"] == 0
    assert wide_dispatch(8, users)[0] != key  # each is a message of its own


@pytest.mark.parametrize(
    ("name", "samples", "bounded"),
    [
        ("gateway-0", [70.0, 90.0, 95.0, 96.0, 97.0, 96.0], True),
        ("gateway-0", [70.0, 90.0, 150.0, 200.0, 300.0, 400.0], False),
        ("worker-1", [70.0, 90.0, 150.0, 200.0, 300.0, 400.0], False),
        ("mailbox-0", [70.0, 90.0, 150.0, 200.0, 300.0, 400.0], True),  # it keeps messages
        ("worker-0", [70.0, 71.0], True),  # too short to tell
    ],
)
def test_memory_is_bounded_when_it_stops_growing(
    name: str, samples: list[float], bounded: bool  # noqa: FBT001
) -> None:
    assert memory_is_bounded({name: samples}) is bounded


@pytest.mark.parametrize("trial", sorted(TRIALS))
def test_every_trial_is_a_command_with_defaults(trial: str) -> None:
    options = parse([trial, "--json", "x.json"])
    assert options.command == trial
    assert cast("object", options.data) is None
