"""Which offset of a partition may be committed: the end of the longest unbroken run of acknowledged pages.

Pages of one partition form a chain: each knows where its predecessor ended. The commit position moves along that chain
only, so a page that was never acknowledged is never committed over, whatever the order of acknowledgements and
whatever gaps the log has. Committed offsets are hints (ADAPT-06, TAKE-02); they must still never claim too much.

Each (re)start of a partition begins a new run. Pages of an older run are worthless: their acknowledgements are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from faust.types import TP

from streams.pages import Page

__all__ = ["AckLedger"]


@dataclass(slots=True)
class _Chain:
    """One partition: `done` is the next offset to commit, `ahead` maps a page's `after` to its end."""

    run: int
    done: int
    handed_out: int
    ahead: dict[int, int] = field(default_factory=dict)


class AckLedger:
    """Chains of all owned partitions."""

    __slots__ = ("_chains", "_runs")

    def __init__(self) -> None:
        self._chains: dict[TP, _Chain] = {}
        self._runs = 0

    def start(self, tp: TP, offset: int) -> int:
        """Begin a new run at `offset`, the first offset to process; return the run's number."""
        self._runs += 1
        self._chains[tp] = _Chain(self._runs, offset, offset)
        return self._runs

    def forget(self, tp: TP) -> None:
        """Drop a partition that is owned no longer; late acknowledgements are ignored."""
        self._chains.pop(tp, None)

    def stamp(self, tp: TP, page: Page) -> bool:
        """Link a page about to be delivered into its chain; False when the partition has no run."""
        chain = self._chains.get(tp)
        if chain is None:
            return False
        page.run = chain.run
        page.after = chain.handed_out
        chain.handed_out = page.offset + 1
        return True

    def is_current(self, tp: TP, page: Page) -> bool:
        """Whether the page belongs to the partition's present run."""
        chain = self._chains.get(tp)
        return chain is not None and chain.run == page.run

    def ack(self, tp: TP, page: Page) -> bool:
        """Book a processed page; True when the commit position moved."""
        chain = self._chains.get(tp)
        if chain is None or chain.run != page.run or page.after < chain.done:
            return False
        if page.after != chain.done:
            chain.ahead[page.after] = page.offset + 1
            return False
        end: int | None = page.offset + 1
        while end is not None:
            chain.done = end
            end = chain.ahead.pop(end, None) if chain.ahead else None
        return True

    def position(self, tp: TP) -> int | None:
        """Everything below this offset is acknowledged; None without a run."""
        chain = self._chains.get(tp)
        return None if chain is None else chain.done
