"""The real worker, watched: at its end it prints what it wrote and what its agents declare to write.

python -m tests.support.recording_worker          (settings in the environment)
"""

from __future__ import annotations

import json

import qim
from streams.topology import declared, record_writes

__all__ = ["main"]


def main() -> None:
    """Run until a signal."""
    with record_writes(qim.app) as seen:
        try:
            qim.app.Worker(loglevel="warning", quiet=True).execute_from_commandline()
        finally:
            uses = declared(qim.app).values()
            report = {
                "seen": [sorted(seen.topics), sorted(seen.tables)],
                "declared": [
                    sorted({name for use in uses for name in use.writes}),
                    sorted({name for use in uses for name in use.tables}),
                ],
            }
            print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
