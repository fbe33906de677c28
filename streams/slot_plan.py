"""Who should hold a slot: pure rules over what the registry says (design §5).

* A slot of ours that somebody else holds is lost: we let go of it.
* A slot of ours that an operator moves to a living worker is given: drained, then released.
* A slot that nobody holds is taken, after a while that lets the better one come first: a worker that is configured for it
  before all others, a spare before a running worker, the one with fewer slots before the one with more. A lease that ran out
  is urgent; one that was released, or a slot that nobody ever had, is probably about to be taken by its former or first owner.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Final, NamedTuple

__all__ = ["Decision", "SlotPlanner", "SlotState"]

SETTLE_S: Final = 10.0
"""How long a worker is up before it takes what is not its own: others may just be starting, too."""
_RELEASED_S: Final = 10.0
_AFTER_SPARES_S: Final = 3.0
_EACH_SLOT_S: Final = 0.25


class SlotState(NamedTuple):
    """A slot now: the live leases of its shards are of `holders` (name, instance); `urgent` when the last ones ran out."""

    holders: frozenset[tuple[str, str]]
    urgent: bool


class Decision(NamedTuple):
    """What to do with which slots; of several that are free, a worker claims its share."""

    lost: Mapping[int, str]
    give: Mapping[int, str]
    claims: Sequence[int]


@dataclass(slots=True)
class SlotPlanner:
    """The rules of one worker, and since when it has seen each slot without a holder."""

    name: str
    instance: str
    configured: Collection[int]
    _free_since: dict[int, float] = field(default_factory=dict)

    def decide(
        self,
        slots: Mapping[int, SlotState],
        owned: Collection[int],
        workers: Mapping[str, Collection[int]],
        orders: Mapping[int, str],
        now_s: float,
        up_s: float,
    ) -> Decision:
        """What to do now. `workers` are those that live, with their slots; `orders` slot -> where it is to go."""
        lost, give = {}, {}
        claims: list[tuple[float, int]] = []
        for slot, state in slots.items():
            others = state.holders - {(self.name, self.instance)}
            target = orders.get(slot, "")
            if slot in owned:
                self._free_since.pop(slot, None)
                if others:
                    lost[slot] = min(name for name, _ in others)
                elif target and target != self.name and target in workers:
                    give[slot] = target
            elif state.holders:
                self._free_since.pop(slot, None)
            else:
                since = self._free_since.setdefault(slot, now_s)
                due_s = since + self._wait_s(slot, state, owned, workers, target)
                urgent = target == self.name or slot in self.configured
                if now_s >= due_s and (urgent or up_s >= SETTLE_S):
                    claims.append((due_s, slot))
        rivals = sum(bool(held) == bool(owned) for held in workers.values())
        share = ceil(len(claims) / max(1, rivals))
        return Decision(lost, give, [slot for _, slot in sorted(claims)[:share]])

    def _wait_s(
        self,
        slot: int,
        state: SlotState,
        owned: Collection[int],
        workers: Mapping[str, Collection[int]],
        target: str,
    ) -> float:
        if target and target in workers:
            return 0.0 if target == self.name else float("inf")
        if slot in self.configured:
            return 0.0
        wait_s = 0.0 if state.urgent else _RELEASED_S
        if owned and any(not held for name, held in workers.items() if name != self.name):
            wait_s += _AFTER_SPARES_S
        return wait_s + _EACH_SLOT_S * len(owned)
