"""Many schedules on all cores: each worker process plays a stretch of seeds and reports the first that fails."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from tests.simulation.schedule import play, small_limits

__all__ = ["Explored", "explore", "first_violation", "replay"]

_STRETCH = 250


@dataclass(slots=True)
class Explored:
    """What a run found. `counts` says how much of what happened, so that an empty run does not look like a good one."""

    played: int = 0
    violations: list[tuple[int, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


def _stretch(seeds: Sequence[int]) -> Explored:
    found = Explored()
    gc.disable()  # schedules are full of cycles; once a stretch is enough
    try:
        with small_limits():
            for seed in seeds:
                found.played += 1
                try:
                    found.counts += play(seed).counts
                # A schedule may fail in any way; whatever it is, the seed is the finding.
                except Exception as error:  # noqa: BLE001
                    found.violations.append((seed, f"{type(error).__name__}: {error}"))
                    break
    finally:
        gc.enable()
        gc.collect()
    return found


def explore(first_seed: int, schedules: int, processes: int | None = None) -> Explored:
    """Play seeds `first_seed` and on."""
    cuts = range(first_seed, first_seed + schedules, _STRETCH)
    end = first_seed + schedules
    stretches = [range(at, min(at + _STRETCH, end)) for at in cuts]
    total = Explored()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes or os.cpu_count(), context) as pool:
        for found in pool.map(_stretch, stretches):
            total.played += found.played
            total.violations += found.violations
            total.counts += found.counts
    return total


def first_violation(first_seed: int, budget: int) -> tuple[int, str] | None:
    """The first seed that fails among `budget`, in this process (planted faults live in one process)."""
    found = _stretch(range(first_seed, first_seed + budget))
    return found.violations[0] if found.violations else None


def replay(seed: int) -> tuple[list[str], str | None]:
    """The trace of one schedule, and what was wrong with it."""
    trace: list[str] = []
    try:
        with small_limits():
            play(seed, trace=trace)
    except Exception as error:  # noqa: BLE001  # see _stretch
        return trace, f"{type(error).__name__}: {error}"
    return trace, None
