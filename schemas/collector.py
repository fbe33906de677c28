"""Python's garbage collector in a server process: rarely, and without what lives as long as the process."""

from __future__ import annotations

import gc
from typing import Final

__all__ = ["spare_collector"]

# Records, pages and connections are freed by their reference counts; cycles (an exception and its frames) are rare. With the
# default of 700 a busy worker walks its young objects a hundred times a second.
_YOUNG_OBJECTS: Final = 50_000
_GENERATIONS: Final = 20


def spare_collector() -> None:
    """Call once everything is loaded: modules, schemas and tables are never walked again, and the young ones rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, _GENERATIONS, _GENERATIONS)
