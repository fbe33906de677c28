"""Which partitions a worker owns, and the Faust assignor that says so.

Shards are grouped into slots: slot k of n holds the partitions p with p % n == k, of every topic and of every table
alike. No consumer group is joined and nothing ever rebalances (TAKE-06, ADAPT-01). Who may own a slot is decided
elsewhere, by leases (streams/slots.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from faust.assignor.client_assignment import ClientAssignment
from faust.assignor.partition_assignor import PartitionAssignor
from faust.types import TP

from schemas.errors import StartRefused
from schemas.identifiers import validate_shard_count

__all__ = ["SlotOwnership", "StaticAssignor"]


@dataclass(frozen=True, slots=True)
class SlotOwnership:
    """The ownership rule of one worker: `owned` slots out of `slot_count`, a power of two."""

    slot_count: int
    owned: frozenset[int]

    def __post_init__(self) -> None:
        """Refuse slots that do not exist."""
        validate_shard_count(self.slot_count)
        if not self.owned <= frozenset(range(self.slot_count)):
            raise StartRefused(f"slots {sorted(self.owned)} are not among 0..{self.slot_count - 1}")

    def with_slots(self, owned: frozenset[int]) -> SlotOwnership:
        """The same rule for other slots."""
        return SlotOwnership(self.slot_count, owned)

    def owns(self, partition: int) -> bool:
        """Whether this worker consumes `partition` and keeps the tables of it."""
        return partition % self.slot_count in self.owned

    def partitions(self, topic: str, partition_count: int) -> list[int]:
        """The owned partitions of a topic, ascending.

        Raises StartRefused when the count is no multiple of the slot count: then the same slot would
        hold different shards in different topics.
        """
        if partition_count <= 0 or partition_count % self.slot_count:
            raise StartRefused(
                f"topic {topic}: {partition_count} partitions are no multiple of"
                f" {self.slot_count} slots"
            )
        return [p for p in range(partition_count) if self.owns(p)]

    def plan(self, partition_counts: Mapping[str, int]) -> dict[str, list[int]]:
        """Owned partitions by topic, from the partition count of each topic."""
        return {
            topic: self.partitions(topic, count)
            for topic, count in sorted(partition_counts.items())
        }


class StaticAssignor(PartitionAssignor):
    """What Faust asks about the assignment (active and standby partitions), answered from the plan.

    Set as the app setting `PartitionAssignor`. Table recovery takes its changelog partitions from here.
    """

    def take(self, plan: Mapping[str, Iterable[int]]) -> set[TP]:
        """Make `plan` (topic -> owned partitions) the assignment and return its partitions."""
        actives = {topic: sorted(partitions) for topic, partitions in plan.items()}
        self._assignment = ClientAssignment(actives=actives, standbys={})
        self._active_tps = set(self._assignment.active_tps)
        self._standby_tps = set()
        self._topic_groups = {topic: group for group, topic in enumerate(sorted(actives))}
        return set(self._active_tps)
