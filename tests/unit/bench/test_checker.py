"""The offline checker against a sound history, and against the same history with each kind of fault planted in it."""

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from bench.checker import FAULTS, check_histories, check_watermarks
from bench.fault_plan import FaultKind, plan_faults
from schemas.identifiers import direct_conversation_id
from schemas.records import WatermarkRow
from schemas.watermarks import ABSENT, LaneMark, pack_uniform, pack_w

ALICE, BOB, EVE, FAY = 11, 12, 13, 14
History = list[dict[str, Any]]
SOUND = dict.fromkeys(FAULTS, 0)


def show(sender: int, number: int, peer: int, seq: int, mailbox: int) -> dict[str, Any]:
    conversation = direct_conversation_id(0, sender, peer).hex()
    return {
        "kind": "show",
        "conversation": conversation,
        "seq": seq,
        "mailbox": mailbox,
        "id": f"id-{sender}-{number}",
        "type": 1,
        "from": sender,
        "number": number,
        "pushed": False,
    }


def device(user: int, number: int, peer: int, *events: dict[str, Any]) -> History:
    return [{"kind": "device", "user": user, "number": number, "peer": peer}, *events]


def sound() -> list[History]:
    """Alice writes three messages to Bob, of whom one has no coordinates yet; Eve writes one to Fay."""
    sent = [{"kind": "send", "number": n, "to": BOB, "cmid": "00"} for n in range(3)]
    acks = [
        {"kind": "ack", "number": n, "seq": n + 1, "id": f"id-{ALICE}-{n}", "by": "ACK"}
        for n in range(2)
    ]
    shows = [show(ALICE, n, BOB, n + 1, 100 + n) for n in range(2)]
    syncs = [{"kind": "sync", "covered": 100 + n, "goal": 101 + n} for n in range(2)]
    other = {"kind": "send", "number": 0, "to": FAY, "cmid": "00"}
    ack = {"kind": "ack", "number": 0, "seq": 1, "id": f"id-{EVE}-0", "by": "MAILBOX"}
    return [
        device(ALICE, 1, BOB, *sent, *acks, *shows, *syncs),
        device(ALICE, 2, BOB, {"kind": "online", "sync_to": 90}, *shows, *syncs),
        device(BOB, 1, ALICE, *shows, *syncs, {"kind": "online", "sync_to": 102}),
        device(EVE, 1, FAY, other, ack, show(EVE, 0, FAY, 1, 7)),
        device(FAY, 1, EVE, show(EVE, 0, FAY, 1, 8)),
    ]


def of_kind(history: History, kind: str) -> list[int]:
    return [at for at, event in enumerate(history) if event["kind"] == kind]


def not_shown_to_bob(h: Sequence[History]) -> None:
    del h[2][of_kind(h[2], "show")[0]]


def not_shown_on_the_second_device(h: Sequence[History]) -> None:
    del h[1][of_kind(h[1], "show")[1]]


def shown_at_another_place(h: Sequence[History]) -> None:
    h[2][of_kind(h[2], "show")[1]]["seq"] = 9


def shown_twice(h: Sequence[History]) -> None:
    at = of_kind(h[2], "show")[0]
    h[2].insert(at, dict(h[2][at], id="another", seq=7))


def two_sets_of_coordinates(h: Sequence[History]) -> None:
    h[3].append({"kind": "ack", "number": 0, "seq": 2, "id": "again", "by": "ACK"})
    for history in h[3:]:
        history.append(dict(show(EVE, 0, FAY, 2, 9), id="again", type=2))


def second_before_first(h: Sequence[History]) -> None:
    for history in h[:3]:
        for event in history:
            if event["kind"] in ("ack", "show"):
                event["seq"] = 3 - event["seq"]


def shown_to_a_stranger(h: Sequence[History]) -> None:
    h[4].append(show(ALICE, 0, BOB, 1, 3))


def shown_in_a_strange_conversation(h: Sequence[History]) -> None:
    h[2].append(dict(show(ALICE, 2, BOB, 3, 103), conversation="ff" * 16))


def shown_though_nobody_wrote_it(h: Sequence[History]) -> None:
    h[2].append(show(ALICE, 77, BOB, 4, 104))


def w_goes_back(h: Sequence[History]) -> None:
    h[1].append({"kind": "sync", "covered": 101, "goal": 100})


def cursor_goes_back(h: Sequence[History]) -> None:
    h[1].append({"kind": "sync", "covered": 99, "goal": 105})


def login_goes_back(h: Sequence[History]) -> None:
    h[2].append({"kind": "online", "sync_to": 95})


PLANTED: dict[str, list[Callable[[Sequence[History]], None]]] = {
    "lost": [not_shown_to_bob, not_shown_on_the_second_device, shown_at_another_place],
    "duplicated": [shown_twice, two_sets_of_coordinates],
    "reordered": [second_before_first],
    "misdelivered": [
        shown_to_a_stranger,
        shown_in_a_strange_conversation,
        shown_though_nobody_wrote_it,
    ],
    "watermark_regressions": [w_goes_back, cursor_goes_back, login_goes_back],
}


def test_a_sound_history_has_no_fault() -> None:
    counts = check_histories(0, sound())
    assert {name: counts[name] for name in FAULTS} == SOUND
    assert counts["sent"] == 4
    assert counts["acknowledged"] == 3
    assert counts["unsettled"] == 1
    assert counts["refused"] == 0


def test_every_kind_of_fault_is_planted() -> None:
    assert set(PLANTED) == set(FAULTS)


@pytest.mark.contract("GATE-22")
@pytest.mark.parametrize(
    ("kind", "plant"), [(kind, plant) for kind, plants in PLANTED.items() for plant in plants]
)
def test_gate_22_a_planted_fault_is_counted_as_what_it_is(
    kind: str, plant: Callable[[Sequence[History]], None]
) -> None:
    histories = copy.deepcopy(sound())
    plant(histories)
    counts = check_histories(0, histories)
    assert counts[kind] >= 1
    others = [name for name in FAULTS if name != kind and counts[name]]
    assert others in ([], ["lost"])  # what is elsewhere, or there twice, may also be missing


def row(term: int, w: bytes) -> WatermarkRow:
    return {"lease_term": term, "epoch": 1, "base_epoch": 1, "page_number": 1, "w": w}


@pytest.mark.contract("WM-04")
def test_rows_that_go_back_in_a_lane_within_a_term_are_counted() -> None:
    uneven = pack_w([LaneMark(9, 9, 9)] * 63 + [ABSENT])
    assert check_watermarks([row(1, pack_uniform(3)), row(1, pack_uniform(4))]) == 0
    assert check_watermarks([row(1, pack_uniform(3)), row(2, pack_uniform(2))]) == 0
    assert check_watermarks([row(1, pack_uniform(3)), row(1, uneven)]) == 1
    assert check_watermarks([row(2, pack_uniform(3)), row(1, pack_uniform(2))]) == 0


NAMES = ("worker-0", "worker-1", "gateway-0", "mailbox-0", "commit-0", "kafka")


def test_a_plan_is_a_function_of_its_seed_and_leaves_time_to_recover() -> None:
    plan = list(plan_faults(3, NAMES, 1200))
    assert plan == list(plan_faults(3, NAMES, 1200))
    assert plan != list(plan_faults(4, NAMES, 600))
    assert len(plan) > 30
    assert {fault.kind for fault in plan} == set(FaultKind)
    assert {name for fault in plan for name in fault.targets} == set(NAMES)
    for fault in plan:
        if fault.kind is FaultKind.WIPE:
            assert all(name.startswith("worker") for name in fault.targets)
        elif fault.kind is FaultKind.TEAR:
            assert all(name.startswith("mailbox") for name in fault.targets)
    for fault, following in itertools.pairwise(plan):
        assert fault.at_s + fault.down_s < following.at_s
    assert plan[-1].at_s + plan[-1].down_s < 1200 - 10
    assert any(f.kind is FaultKind.PAUSE and f.down_s > 15 for f in plan)  # past the lease
