import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import QimError, StartRefused
from streams.ownership import SlotOwnership


@pytest.mark.contract("TAKE-06")
@given(st.integers(0, 5), st.integers(0, 4))
def test_slots_divide_the_partitions_of_every_topic_alike(slots_log2: int, more_log2: int) -> None:
    slot_count = 1 << slots_log2
    partitions = slot_count << more_log2
    plans = [SlotOwnership(slot_count, frozenset({k})) for k in range(slot_count)]

    owned = [owner.partitions("t", partitions) for owner in plans]

    assert sorted(p for part in owned for p in part) == list(range(partitions))
    for slot, part in enumerate(owned):
        assert part
        assert all(p % slot_count == slot for p in part)


def test_plan_covers_each_topic() -> None:
    owner = SlotOwnership(4, frozenset({0, 3}))

    assert owner.plan({"dispatch": 8, "outbox": 4}) == {"dispatch": [0, 3, 4, 7], "outbox": [0, 3]}


def test_topic_with_fewer_partitions_than_slots_is_refused() -> None:
    with pytest.raises(StartRefused, match="no multiple"):
        SlotOwnership(8, frozenset({0})).partitions("t", 4)


@pytest.mark.parametrize(("count", "owned"), [(4, {4}), (4, {-1}), (3, {0}), (0, set())])
def test_slots_that_cannot_be_are_refused(count: int, owned: set[int]) -> None:
    with pytest.raises(QimError):
        SlotOwnership(count, frozenset(owned))
