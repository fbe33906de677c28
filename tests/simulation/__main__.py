"""`python -m tests.simulation --schedules N --seed S --processes P`: play random schedules, or one with its trace.

The first schedule that breaks an invariant ends the run: its seed is printed, and `--replay SEED` shows what happened.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.explore import explore, replay

__all__ = ["main"]


def main() -> int:
    """Return 0 when every schedule kept every invariant."""
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--schedules", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000_000)
    parser.add_argument("--processes", type=int, default=None)
    parser.add_argument("--replay", type=int, metavar="SEED")
    options = parser.parse_args()
    if options.replay is not None:
        trace, found = replay(options.replay)
        print("\n".join(trace))
        print(found or "every invariant held")
        return 1 if found else 0
    begin_s = time.monotonic()
    print(f"simulation: seeds {options.seed} to {options.seed + options.schedules - 1}", flush=True)
    result = explore(options.seed, options.schedules, options.processes)
    took_s = time.monotonic() - begin_s
    print(f"simulation: {result.played} schedules in {took_s:.1f} s; {result.counts}")
    for seed, found in result.violations:
        print(f"seed {seed}: {found}", file=sys.stderr)
    return 1 if result.violations else 0


if __name__ == "__main__":
    sys.exit(main())
