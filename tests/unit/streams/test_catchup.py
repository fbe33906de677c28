import pytest
from faust.types import TP

from streams.catchup import CatchUp

A, B, C = TP("t", 0), TP("t", 1), TP("t", 2)


def test_before_the_start_nothing_has_caught_up() -> None:
    assert not CatchUp().started


@pytest.mark.contract("TAKE-08")
def test_remaining_counts_down_to_the_ends_of_the_start_and_stays_empty() -> None:
    done = {A: 3, B: 10, C: 0}
    catch_up = CatchUp()

    catch_up.begin(done, {A: 8, B: 10, C: 1})

    assert catch_up.started
    assert catch_up.remaining(done.get) == {A: 5, C: 1}
    done |= {A: 8, C: 2}
    assert catch_up.remaining(done.get) == {}
    done[A] = 0  # a later repositioning does not make the worker unready again
    assert catch_up.remaining(done.get) == {}
