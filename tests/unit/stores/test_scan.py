from collections.abc import Sequence
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.constants import EVENT_GROUP_MAX_ENTRIES
from stores.mailbox import ZERO_CURSOR, CursorExpired, MailboxDirty, ScanRequest
from stores.scan import Bounds, DayRead, answer, bounds_of, effective_trim, read_limit
from tests.support.mailboxes import member, seq_of


def scan_of(
    after: int, up_to: int, items: int = 10, size: int = 1 << 20, bases: Sequence[int] = (1,)
) -> ScanRequest:
    return ScanRequest(0, 1, 0, bases, after, up_to, items, size)


@pytest.mark.contract("MBX-53", "REG-01")
def test_bounds_of_one_incarnation() -> None:
    assert bounds_of(scan_of(ZERO_CURSOR, seq_of(9))) == [Bounds(None, 9)]
    assert bounds_of(scan_of(seq_of(0), seq_of(9))) == [Bounds(0, 9)]
    assert bounds_of(scan_of(seq_of(3, 2), seq_of(9, 5))) == [
        Bounds(3, 9)
    ]  # raised epochs, same keys


@pytest.mark.contract("OPEN-11")
def test_bounds_of_several_incarnations() -> None:
    bases = (1, 3, 6)
    assert bounds_of(scan_of(ZERO_CURSOR, seq_of(9, 7), bases=bases)) == [
        Bounds(None, None),
        Bounds(None, None),
        Bounds(None, 9),
    ]
    assert bounds_of(scan_of(seq_of(5, 2), seq_of(9, 4), bases=bases)) == [
        Bounds(5, None),
        Bounds(None, 9),
        None,
    ]
    assert bounds_of(scan_of(seq_of(5, 4), seq_of(9, 4), bases=bases)) == [None, Bounds(5, 9), None]


@pytest.mark.contract("MBX-41")
def test_effective_trim_is_the_largest_sequence_that_may_be_gone() -> None:
    assert effective_trim(0, 0) == 0
    assert effective_trim(seq_of(9), 0) == seq_of(8)
    assert effective_trim(seq_of(9), seq_of(20)) == seq_of(20)


@pytest.mark.contract("MBX-41", "MBX-54", "CUR-10")
def test_only_a_non_zero_cursor_below_the_trim_expires() -> None:
    with pytest.raises(CursorExpired) as expired:
        answer(scan_of(seq_of(4), seq_of(9)), [], 0, seq_of(5))
    assert expired.value.effective_trim == seq_of(5)
    assert answer(scan_of(seq_of(5), seq_of(9)), [], 0, seq_of(5)).covered_through == seq_of(9)
    assert answer(scan_of(ZERO_CURSOR, seq_of(9)), [], 0, seq_of(5)).covered_through == seq_of(9)


@pytest.mark.contract("CUR-10", "MBX-54")
def test_a_first_page_never_ends_below_the_trim() -> None:
    # Offset 5 expired with an older day, 3 and 4 are living: a cursor at 3 would be expired at once.
    days = [DayRead(False, [member(seq_of(o)) for o in (3, 4, 6, 7)])]
    found = answer(scan_of(ZERO_CURSOR, seq_of(9), items=1), days, 0, seq_of(5))
    assert found.covered_through == seq_of(6)
    assert found.has_more


@pytest.mark.contract("MBX-56")
def test_the_same_entry_on_two_days_is_damage() -> None:
    entry = member(seq_of(3))
    with pytest.raises(MailboxDirty):
        answer(
            scan_of(ZERO_CURSOR, seq_of(9)),
            [DayRead(False, [entry]), DayRead(False, [entry])],
            0,
            0,
        )


GROUPS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, EVENT_GROUP_MAX_ENTRIES), st.integers(10, 600)),
    max_size=60,
)


@pytest.mark.contract("MBX-50", "MBX-51", "EVT-06", "EVT-07", "REG-10")
@settings(deadline=None)  # a busy machine is no failure
@given(groups=GROUPS, items=st.integers(1, 12), size=st.integers(1, 3000), gap=st.integers(1, 3))
def test_pages_of_any_mailbox_join_to_all_of_it(
    groups: list[tuple[int, int, int]], items: int, size: int, gap: int
) -> None:
    days: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    for at, (day, count, length) in enumerate(groups):
        days[day] += [member(seq_of(at * gap), n, length) for n in range(count)]
    expected = sorted((e for day in days.values() for e in day), key=lambda e: e[:10])
    up_to, after, seen = seq_of(len(groups) * gap), ZERO_CURSOR, []
    while True:
        scan = scan_of(after, up_to, items, size)
        limit = read_limit(scan)
        above = [[e for e in day if int.from_bytes(e[1:9], "big") > after] for day in days.values()]
        found = answer(scan, [DayRead(len(day) > limit, day[:limit]) for day in above if day], 0, 0)
        seen += found.entries
        assert found.covered_through > after
        whole = [list(group) for _, group in groupby(found.entries, key=lambda e: e[:9])]
        before_last = [entry for group in whole[:-1] for entry in group]
        assert len(before_last) < items  # a limit is passed by the last group only
        assert sum(map(len, before_last)) < size
        after = found.covered_through
        if not found.has_more:
            break
    assert seen == expected
    assert after == up_to
