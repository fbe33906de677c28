"""The simulation over the real code, and over the same code with faults planted in it (docs/testing.md)."""

import secrets

import pytest

from tests.simulation.explore import explore, first_violation, replay
from tests.simulation.plants import PLANTS

SCHEDULES = 20_000
BUDGET = 2_000  # schedules within which a planted fault has to be found


@pytest.mark.contract(
    "GATE-22", "TAKE-02", "TAKE-09", "WM-01", "WM-02", "WM-04", "LANE-03", "LANE-04", "COM-01"
)
def test_gate_22_no_schedule_of_crashes_breaks_an_invariant() -> None:
    seed = secrets.randbelow(1 << 40)
    print(f"simulation seeds {seed} to {seed + SCHEDULES - 1}")
    found = explore(seed, SCHEDULES)
    assert found.violations == [], "replay with: make simulate REPLAY=<seed>"
    assert found.played == SCHEDULES
    # A simulation in which nothing happens proves nothing.
    for event in ("kill", "pause past the lease", "roll back", "terms"):
        assert found.counts[event] > SCHEDULES / 20


@pytest.mark.contract("LANE-04", "REG-30", "TAKE-02", "COM-01", "DISP-07")
@pytest.mark.parametrize("name", sorted(PLANTS))
def test_a_planted_fault_is_found_within_the_budget(name: str) -> None:
    with PLANTS[name]():
        found = first_violation(0, BUDGET)
    assert found is not None, f"{name}: not found in {BUDGET} schedules"


def test_one_seed_is_one_schedule() -> None:
    assert [replay(seed) for seed in (11, 12)] == [replay(seed) for seed in (11, 12)]
    assert replay(11) != replay(12)
