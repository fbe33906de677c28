"""Who should hold a slot: lost, given, and claimed by the right one of several (design §5)."""

from collections.abc import Collection, Mapping

import pytest

from streams.slot_plan import Decision, SlotPlanner, SlotState

ME, OTHER = ("a", "1"), ("b", "2")
FREE = SlotState(frozenset(), urgent=True)
RELEASED = SlotState(frozenset(), urgent=False)


def held(*holders: tuple[str, str]) -> SlotState:
    return SlotState(frozenset(holders), urgent=True)


class Worker:
    """The rules of worker `a` with a clock."""

    def __init__(self, configured: Collection[int] = ()) -> None:
        self.planner = SlotPlanner(*ME, configured)
        self.workers: dict[str, Collection[int]] = {"a": (), "b": ()}
        self.orders: Mapping[int, str] = {}

    def at(
        self, now_s: float, slots: Mapping[int, SlotState], owned: Collection[int] = ()
    ) -> Decision:
        self.workers["a"] = owned
        return self.planner.decide(slots, owned, self.workers, self.orders, now_s, now_s)

    def claims_at(
        self, slot: SlotState, owned: Collection[int] = (), start_s: float = 100
    ) -> float:
        """When the worker takes a slot that it sees like this from `start_s` on, seconds later."""
        slots = {0: slot} | {s: held(ME) for s in owned}
        for step in range(200):
            if self.at(start_s + step / 4, slots, owned).claims:
                return step / 4
        return float("inf")


def test_what_another_holds_is_lost_also_to_another_process_of_the_same_name() -> None:
    assert Worker().at(50, {0: held(OTHER)}, [0]).lost == {0: "b"}
    assert Worker().at(50, {0: held(("a", "9"))}, [0]).lost == {0: "a"}
    assert Worker().at(50, {0: held(ME, OTHER)}, [0]).lost == {0: "b"}
    assert Worker().at(50, {0: held(ME)}, [0]) == Decision({}, {}, [])


@pytest.mark.contract("TAKE-01", "TAKE-06")
def test_a_lease_that_lives_is_never_taken() -> None:
    worker = Worker(configured=[0])
    assert all(worker.at(t, {0: held(OTHER)}).claims == [] for t in range(0, 1000, 10))


def test_a_spare_comes_before_a_running_worker_and_that_before_one_with_more() -> None:
    assert Worker().claims_at(FREE) == 0
    assert Worker().claims_at(FREE, owned=[1]) == 3.25
    assert Worker().claims_at(FREE, owned=[1, 2, 3]) == 3.75


def test_without_a_spare_nobody_waits_for_one() -> None:
    worker = Worker()
    worker.workers["b"] = (1,)
    assert worker.claims_at(FREE, owned=[2]) == 0.25


def test_a_released_slot_waits_for_its_owner_to_come_back() -> None:
    assert Worker().claims_at(RELEASED) == 10
    assert Worker(configured=[0]).claims_at(RELEASED) == 0


def test_who_has_just_started_takes_its_own_only() -> None:
    assert Worker().claims_at(FREE, start_s=2) == 8
    assert Worker(configured=[0]).claims_at(FREE, start_s=2) == 0


def test_a_slot_that_was_held_meanwhile_is_waited_for_anew() -> None:
    worker = Worker()
    assert worker.at(100, {0: RELEASED}).claims == []
    assert worker.at(109, {0: held(OTHER)}).claims == []
    assert worker.at(111, {0: RELEASED}).claims == []
    assert worker.at(121, {0: RELEASED}).claims == [0]


def test_an_order_moves_a_slot_to_a_living_worker_only() -> None:
    worker = Worker()
    worker.orders = {0: "b"}
    assert worker.at(50, {0: held(ME)}, [0]).give == {0: "b"}
    assert worker.claims_at(FREE) == float("inf")  # it is b's to take
    del worker.workers["b"]
    assert worker.at(50, {0: held(ME)}, [0]).give == {}
    assert worker.claims_at(FREE) == 0
    worker.orders = {0: "a"}
    assert worker.at(50, {0: held(ME)}, [0]) == Decision({}, {}, [])
    assert worker.claims_at(RELEASED, start_s=1) == 0  # at once


def test_free_slots_are_shared_out_the_one_that_waits_longest_first() -> None:
    worker = Worker()
    worker.at(50, {0: held(OTHER), 1: RELEASED})
    assert worker.at(61, {0: FREE, 1: RELEASED}).claims == [1]
    del worker.workers["b"]
    assert worker.at(62, {0: FREE, 1: RELEASED}).claims == [1, 0]
