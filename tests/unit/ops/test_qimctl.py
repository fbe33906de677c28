"""The pure parts of `qimctl`: digests and their comparison, the table of shards, the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ops.qimctl.cli import COMMANDS, main, usage
from ops.qimctl.digests import (
    DayDigest,
    UserDigest,
    compare_mailboxes,
    compare_rows,
    digest_entries,
    dump_mailbox,
    load_mailbox,
    row_digests,
)
from ops.qimctl.mailboxes import user_of
from ops.qimctl.rebuild import Before, settled_rows
from ops.qimctl.rebuilding import summary
from ops.qimctl.scratch import scratch_id
from ops.qimctl.shards import ShardLine, shard_table
from schemas.records import DISPATCH_PROGRESS, DispatchProgress

DAY = 20_000
DAY_S = 86_400
NOW_S = DAY * DAY_S + 100
EXPIRED_S = (DAY + 8) * DAY_S


def entry(offset: int, body: bytes = b"") -> tuple[int, bytes]:
    return offset, b"\x01" + ((1 << 48) | offset).to_bytes(8, "big") + b"\x00" + body


def seq(offset: int) -> str:
    return f"{(1 << 48) | offset:016x}"


def user(*offsets: int, trim: str = "", gap: str = "", day: int = DAY) -> UserDigest:
    days = {day: digest_entries([entry(o) for o in offsets])} if offsets else {}
    return UserDigest(trim, gap, days)


def differing(
    one: dict[str, UserDigest], two: dict[str, UserDigest], now_s: int = NOW_S, limit: int = 100
) -> list[str]:
    found = compare_mailboxes(one, two, now_s, lambda _key: limit)
    assert found.equal == (not found.different) == (found.before == found.after)
    return list(found.examples)


def test_a_day_is_its_entries_with_their_places_in_order() -> None:
    day = digest_entries([entry(3), entry(5, b"x")])
    assert (day.entries, day.first_offset, day.last_offset) == (2, 3, 5)
    assert day.highest_seq == seq(5)
    others = [
        [entry(3), entry(5, b"y")],
        [entry(5, b"x"), entry(3)],
        [entry(3), (6, entry(5, b"x")[1])],
        [entry(3)],
        [(3, entry(3)[1] + entry(5, b"x")[1])],
    ]
    assert day.digest not in {digest_entries(other).digest for other in others}


def test_equal_mailboxes_are_equal_and_a_user_without_anything_is_nobody() -> None:
    assert differing({"a": user(1, 2)}, {"a": user(1, 2), "b": user()}) == []


@pytest.mark.parametrize(
    "other",
    [user(1), user(1, 2, 3), user(1, 3), user(1, 2, trim=seq(1)), user(1, 2, gap=seq(1)), user()],
)
def test_every_difference_is_found(other: UserDigest) -> None:
    assert len(differing({"a": user(1, 2)}, {"a": other})) == 1
    assert len(differing({"a": other}, {"a": user(1, 2)})) == 1


@pytest.mark.contract("MBX-40", "MBX-21")
def test_a_day_that_expired_meanwhile_is_no_difference_but_leaves_its_gap() -> None:
    before = {"a": user(1, 2)}
    assert differing(before, {"a": user(gap=seq(2))}, EXPIRED_S) == []
    assert len(differing(before, {"a": user(gap=seq(2))}, EXPIRED_S - 1)) == 2
    assert len(differing(before, {"a": user(gap=seq(1))}, EXPIRED_S)) == 1
    assert len(differing(before, {}, EXPIRED_S)) == 1


def test_a_gap_above_what_is_compared_is_no_difference() -> None:
    assert differing({"a": user(1)}, {"a": user(1, gap=seq(101))}) == []
    assert len(differing({"a": user(1)}, {"a": user(1, gap=seq(100))})) == 1
    assert differing({}, {"a": user(gap=seq(101))}) == []


def test_what_was_there_survives_its_file(tmp_path: Path) -> None:
    users = {"{0:5}:e1": user(1, 2, trim=seq(1)), "{a:6}:e1": user(gap=seq(9))}
    assert load_mailbox(json.loads(json.dumps(dump_mailbox(users)))) == users
    before = Before({0: 5, 1: -1}, users, {"aa": "bb"})
    before.save(tmp_path / "deep" / "state.json")
    assert Before.load(tmp_path / "deep" / "state.json") == before


def test_rows_are_compared_one_by_one() -> None:
    before = row_digests({b"a": b"1", b"b": b"2", b"c": b"3"})
    found = compare_rows(before, row_digests({b"a": b"1", b"b": b"x", b"d": b"4"}))
    assert (found.compared, found.different) == (4, 3)
    assert list(found.examples) == ["row 62: other", "row 63: lost", "row 64: new"]
    assert compare_rows(before, dict(reversed(before.items()))).equal


def row(canonical: int, last: int) -> bytes:
    made: DispatchProgress = {
        "payload_digest": bytes(32),
        "canonical_log_offset": canonical,
        "max_observed_offset": last,
        "last_seen_ms": 1,
        "completed_at_ms": 1,
        "manifest": b"",
        "expected": 0,
        "done": 0,
        "unfinished_lanes": [],
    }
    return DISPATCH_PROGRESS.encode(made)


def test_only_rows_that_the_replay_sees_wholly_must_come_back() -> None:
    seen = {"a": (4, 4), "b": (5, 9), "c": (5, 10), "d": (11, 11), "e": (9, 9)}
    rows = {name.encode() * 16: row(*offsets) for name, offsets in seen.items()}
    rows[b"index"] = b"no dispatch"
    assert set(settled_rows(rows, 5, 9)) == {b"b" * 16, b"e" * 16}


def test_user_keys_are_read_back() -> None:
    assert user_of("{1f:42}:e3") == (31, 42)


def test_scratch_keys_are_below_no_applications_prefix() -> None:
    assert scratch_id("qim") == "qim.verify"
    assert not scratch_id("qim").startswith("qim:")


def line(shard: int, **change: object) -> ShardLine:
    values: dict[str, object] = {
        "shard": shard,
        "owner": "worker-0",
        "term": 7,
        "lease_ttl_ms": 14_321,
        "epoch": 2,
        "boundaries": [(1, 0), (2, 50)],
        "store_w": [9, 9],
        "table_w": [3, 9],
        "state": "running",
        "failure": None,
        "queued_pages": 0,
        "restarts": 1,
    }
    return ShardLine(**(values | change))  # type: ignore[arg-type]


def test_the_table_shows_one_line_a_shard() -> None:
    nobody = dict.fromkeys(("owner", "term", "lease_ttl_ms", "state", "table_w", "queued_pages"))
    table = shard_table([line(0), line(11, **nobody, failure="RecordError: bad", boundaries=[])])
    head, first, second = (text.split() for text in table.splitlines())
    assert head[:4] == ["shard", "owner", "term", "ttl"]
    assert first == [
        "0",
        "worker-0",
        "7",
        "14.3s",
        "2",
        "1@0,2@50",
        "9",
        "3..9",
        "running",
        "0",
        "1",
        "-",
    ]
    assert second == ["11", "-", "-", "-", "2", "-", "9", "-", "-", "-", "1", "RecordError:", "bad"]


def test_the_summary_says_what_differs() -> None:
    part = {"compared": 5, "before": "aa", "after": "bb", "different": 1, "examples": ["u: lost"]}
    good = {"compared": 5, "before": "aa", "after": "aa", "different": 0, "examples": []}
    report = {
        "what": "all",
        "records": 9,
        "seconds": 1.5,
        "mailbox": part,
        "progress": good,
        "watermarks": {"shards_behind": [3]},
    }
    text = summary(report)
    assert "mailbox: 5 compared, aa bb 1 DIFFER\n  u: lost" in text
    assert "progress: 5 compared, aa aa equal" in text
    assert "shards [3] are BEHIND" in text


def test_commands_are_listed_and_unknown_ones_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert capsys.readouterr().out.strip() == usage()
    assert all(name in usage() for name in COMMANDS)
    assert main(["shred"]) == 2
    with pytest.raises(SystemExit) as wrong:
        main(["rebuild"])
    assert wrong.value.code == 2
    assert "--verify" in capsys.readouterr().err


def test_days_compare_by_all_they_say() -> None:
    day = DayDigest(1, 2, 2, seq(2), "aa")
    assert UserDigest(days={DAY: day}) != UserDigest(days={DAY + 1: day})
