"""Rebuild by replay on real servers: the same comes back, nothing else is touched, a kill in the middle is harmless."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ops.qimctl.logs import read_table
from schemas.config import Settings
from schemas.errors import StartRefused
from schemas.identifiers import MailboxSeq
from schemas.topics import topic_specs
from stores.claims import unfinished_rebuild
from stores.start_gates import pass_start_gates
from tests.support.dispatch_fakes import users_of
from tests.support.qimctl_tools import Bench, open_bench, run_qimctl, today_ms
from tests.support.topic_tools import make_anew, trim_topic


@pytest.fixture
async def bench(settings: Settings, tmp_path: Path) -> AsyncIterator[Bench]:
    async with open_bench(settings, tmp_path) as made:
        yield made


def mailbox_keys(state: dict[tuple[int, bytes], object]) -> dict[tuple[int, bytes], object]:
    families = (b":mailbox:", b":mbdays:", b":mbmeta:", b":mbseqbucket:")
    return {k: v for k, v in state.items() if any(family in k[1] for family in families)}


@pytest.mark.contract("TAKE-09", "MBX-62")
async def test_what_was_thrown_away_comes_back_byte_for_byte(bench: Bench) -> None:
    await bench.fill()
    app_id = bench.system.settings.app_id
    before = await bench.dump(f"{app_id}:")
    rows = await read_table(bench.reader, bench.system.changelogs[0], 1, 500)

    for what in ("table", "mailbox", "all"):
        report = await bench.rebuild(what)

        assert report["equal"], report
        assert report["mailbox"]["before"] == report["mailbox"]["after"]
        assert report["mailbox"]["compared"] > 200
        assert report["progress"]["compared"] == 8 * 20 + 7
        assert mailbox_keys(await bench.dump(f"{app_id}:")) == mailbox_keys(before)
        assert await read_table(bench.reader, bench.system.changelogs[0], 1, 500) == rows
    assert (await bench.verify())["equal"]


async def test_a_damaged_mailbox_is_found_by_comparing_and_healed_by_rebuilding(
    bench: Bench,
) -> None:
    await bench.fill()
    app_id = bench.system.settings.app_id
    keys = mailbox_keys(await bench.dump(f"{app_id}:mailbox:"))
    instance, bucket = min(keys)
    await bench.command(instance, "ZPOPMIN", bucket)
    state = await bench.dump(bench.system.settings.app_id)

    found = await bench.verify()

    assert not found["equal"]
    assert found["mailbox"]["different"] == 1
    assert "entries became" in found["mailbox"]["examples"][0]
    assert (
        await bench.dump(bench.system.settings.app_id) == state
    )  # a comparison changes nothing and leaves nothing
    healed = await bench.rebuild("mailbox")
    assert healed["mailbox"]["different"] == 1  # it is not what was there, and it says so
    assert mailbox_keys(await bench.dump(f"{app_id}:mailbox:")) == keys
    assert (await bench.verify())["equal"]


async def test_keys_of_another_type_are_damage_that_a_rebuild_heals(bench: Bench) -> None:
    await bench.fill()
    app_id = bench.system.settings.app_id
    keys = mailbox_keys(await bench.dump(f"{app_id}:"))
    user = f"{{0:{users_of(0, 1)[0]}}}:e1"
    (bucket,) = (key for _, key in keys if key.startswith(f"{app_id}:mailbox:{user}".encode()))
    for key in (bucket, f"{app_id}:mbdays:{user}", f"{app_id}:wm:0"):
        await bench.command(0, "SET", key, "damage")
    other = f"{app_id}:mbmeta:{{0:{users_of(0, 2)[1]}}}:e1"
    await bench.command(0, "SET", other, "damage")

    report = await bench.rebuild("mailbox")

    assert report["mailbox"]["different"] == 2
    assert mailbox_keys(await bench.dump(f"{app_id}:")) == keys
    assert (await bench.verify())["equal"]


@pytest.mark.contract("MBX-04", "MBX-55", "MBX-40")
async def test_boundaries_that_the_log_does_not_know_stay(bench: Bench) -> None:
    await bench.fill()
    user = users_of(3, 1)[0]
    await bench.system.store.truncate_before(0, user, 3, 1, MailboxSeq.compose(1, 7))
    # Two users of shard 4 whose expired days have left the log: one gap is recorded, one is still a proof.
    app_id, (one, two) = bench.system.settings.app_id, users_of(4, 2)
    old = MailboxSeq.compose(1, 3)
    day = today_ms() // 86_400_000 - 9
    proof = f"{old:016x}:{(day + 8) * 86_400}"
    meta = f"{app_id}:mbmeta:{{0:{two}}}:e1"
    await bench.command(
        0, "HSET", f"{app_id}:mbmeta:{{0:{one}}}:e1", "expired_gap_boundary", f"{old:016x}"
    )
    await bench.command(0, "HSET", meta, f"day:{day}", proof, "active_day_count", 2, "min_day", day)
    await bench.command(0, "ZADD", f"{app_id}:mbdays:{{0:{two}}}:e1", (day + 8) * 86_400, day)

    report = await bench.rebuild("all")

    assert report["equal"], report
    digests = await bench.system.keys.digests()
    mine = digests[f"{{0:{user}}}:e1"]
    assert mine.trim == f"{MailboxSeq.compose(1, 7):016x}"
    assert min(day.first_offset for day in mine.days.values()) == 7
    assert {digests[f"{{0:{user}}}:e1"].gap for user in (one, two)} == {f"{old:016x}"}
    expired = digests[f"{{0:{users_of(2, 4)[3]}}}:e1"]
    assert expired.days == {}
    assert expired.gap == f"{MailboxSeq.compose(1, 20):016x}"


@pytest.mark.contract("TAKE-01")
async def test_a_live_lease_is_a_refusal_and_nothing_is_touched(bench: Bench) -> None:
    await bench.fill()
    await bench.system.leases.acquire(5, "worker-7", 60_000)
    state = await bench.dump(bench.system.settings.app_id)
    started_s = time.monotonic()
    with pytest.raises(StartRefused, match=r"5 to worker-7 for \d+ s; stop the workers first"):
        await bench.rebuild()
    assert time.monotonic() - started_s < 15  # it is not waited for
    now = await bench.dump(bench.system.settings.app_id)
    for instance in range(2):
        for shard in range(8):  # terms grow with each attempt; they are no state of anybody's
            key = f"{bench.system.settings.app_id}:shardterm:{shard}".encode()
            now.pop((instance, key), None)
            state.pop((instance, key), None)
    assert now == state


async def test_keys_of_others_stay(bench: Bench) -> None:
    await bench.fill()
    app_id = bench.system.settings.app_id
    strangers = [f"{app_id}x:mailbox:{{0:1}}:e1:1", f"{app_id}-2:mbmeta:{{0:1}}:e1", f"{app_id}"]
    for key in strangers:
        await bench.command(0, "SET", key, "mine")
    await bench.rebuild("all")
    await bench.verify()
    for key in strangers:
        assert await bench.command(0, "GET", key) == b"mine"
        await bench.command(0, "DEL", key)


@pytest.mark.contract("LOG-12")
async def test_a_log_that_no_longer_reaches_back_is_refused_before_anything_is_lost(
    bench: Bench,
) -> None:
    await bench.fill()
    settings = bench.system.settings
    await trim_topic(settings.broker, bench.system.dispatch, 4, 6)
    state = mailbox_keys(await bench.dump(f"{settings.app_id}:"))

    with pytest.raises(StartRefused, match="shard 4: the log begins at 6, but mailboxes hold"):
        await bench.rebuild("mailbox")
    with pytest.raises(StartRefused, match="shard 4: the log begins at 6, inside the retention"):
        await bench.rebuild("table")

    assert mailbox_keys(await bench.dump(f"{settings.app_id}:")) == state
    assert await unfinished_rebuild(bench.system.mailbox, settings.app_id) is None
    report = await bench.rebuild("mailbox", accept_loss=True)
    assert report["mailbox"]["different"] == 3  # the three users of that shard, and it says so
    assert (await bench.verify())["equal"]


@pytest.mark.contract("ADAPT-10", "LOG-02")
async def test_changelogs_made_anew_are_filled_and_accepted(
    bench: Bench, settings: Settings
) -> None:
    await bench.fill()
    rows = await read_table(bench.reader, bench.system.changelogs[0], 1, 500)
    for spec in topic_specs(settings)[2:4]:
        await make_anew(settings.broker, spec)
    with pytest.raises(StartRefused, match="qimctl rebuild table"):
        await pass_start_gates(settings, bench.system.mailbox, bench.system.commit)

    await bench.rebuild("table")

    await pass_start_gates(settings, bench.system.mailbox, bench.system.commit)
    assert await read_table(bench.reader, bench.system.changelogs[0], 1, 500) == rows


@pytest.mark.fault
@pytest.mark.parametrize("line", ["mailboxes thrown away", "shard 3 replayed"])
async def test_rebuild_killed_in_the_middle_keeps_everybody_out_until_it_ran_again(
    bench: Bench, settings: Settings, tmp_path: Path, line: str
) -> None:
    await bench.fill()
    state = mailbox_keys(await bench.dump(f"{settings.app_id}:"))
    command = ("rebuild", "all", "--verify", "--state", str(tmp_path / "kept.json"))

    killed = await run_qimctl(settings, *command, kill_at=lambda said: line in said)

    assert killed.exit_code == -9
    with pytest.raises(StartRefused, match="a rebuild of all has not ended"):
        await pass_start_gates(settings, bench.system.mailbox, bench.system.commit)
    with pytest.raises(StartRefused, match="run that one again"):
        await bench.rebuild("table")  # once the leases of the killed one have ended by themselves
    again = await run_qimctl(settings, *command)
    assert again.exit_code == 0, again
    assert "equal" in again.out
    assert "unfinished rebuild" in again.err[0]
    assert mailbox_keys(await bench.dump(f"{settings.app_id}:")) == state
    await pass_start_gates(settings, bench.system.mailbox, bench.system.commit)
    assert not (tmp_path / "kept.json").exists()
