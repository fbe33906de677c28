from collections.abc import AsyncIterator

import pytest

from schemas.errors import Bug
from schemas.watermarks import pack_uniform
from stores.leases import RedisShardLeases
from stores.mailbox import MailboxDirty, MailboxStore, ScanResult
from stores.redis_link import RedisLink
from stores.redis_mailbox import RedisMailboxStore
from tests.suites.mailbox import MailboxSuite
from tests.support.mailboxes import Damage, Mailbox, member, offsets, scan_of, seq_of
from tests.support.redis_harness import RedisHarness
from tests.support.servers import RedisUrls


@pytest.fixture
async def harness(redis_urls: RedisUrls, app_id: str) -> AsyncIterator[RedisHarness]:
    links = [RedisLink(url) for url in redis_urls.mailbox]
    store: MailboxStore = RedisMailboxStore(links, app_id)
    yield RedisHarness(links, app_id, store, RedisShardLeases(links, app_id))
    for link in links:
        await link.close()


class TestRedisMailbox(MailboxSuite):
    """The Redis backend, on two instances, passes the shared suite."""


FAMILIES = ("shardlease:0", "wm:0", "mbmeta:{0:7}:e1", "mbdays:{0:7}:e1", "mbseqbucket:{0:7}:e1")


@pytest.mark.contract(
    "MBX-10", "MBX-11", "MBX-12", "MBX-13", "MBX-14", "MBX-15", "MBX-20", "MBX-21", "MBX-43"
)
async def test_keys_hold_what_the_contract_says(harness: RedisHarness) -> None:
    mailbox, link, key, day = Mailbox(harness), harness.links[0], "{0:7}:e1", harness.day(-2)
    await mailbox.fill(5, 9, day=-2)
    expiry = (day + 8) * 86_400
    assert await harness.run(link, "ZRANGE", f"mailbox:{key}:{day}", 0, -1, "WITHSCORES") == [
        member(seq_of(5)),
        b"5",
        member(seq_of(9)),
        b"9",
    ]
    assert await harness.run(link, "EXPIRETIME", f"mailbox:{key}:{day}") == expiry
    flat = await harness.run(link, "HGETALL", f"mbmeta:{key}")
    assert dict(zip(flat[::2], flat[1::2], strict=True)) == {
        b"retention_format_version": b"4",
        b"active_day_count": b"1",
        b"min_day": str(day).encode(),
        b"max_day": str(day).encode(),
        f"day:{day}".encode(): f"{seq_of(9):016x}:{expiry}".encode(),
    }
    index = await harness.run(link, "ZRANGE", f"mbdays:{key}", 0, -1, "WITHSCORES")
    assert index == [str(day).encode(), str(expiry).encode()]
    identity = await harness.run(link, "ZRANGE", f"mbseqbucket:{key}", 0, -1, "WITHSCORES")
    assert identity[::2] == [f"{seq_of(o):016x}".encode() for o in (5, 9)]
    assert set(identity[1::2]) == {str(expiry).encode()}
    assert await harness.run(link, "EXPIRETIME", f"mbseqbucket:{key}") == expiry
    assert await harness.run(link, "EXPIRETIME", f"mbmeta:{key}") == -1
    flat = await harness.run(link, "HGETALL", "wm:0")
    assert dict(zip(flat[::2], flat[1::2], strict=True)) == {
        b"wm_layout": b"packed-v2",
        b"wm_epoch": b"1",
        b"wm_blob": pack_uniform(9),
    }


@pytest.mark.contract("MBX-21")
async def test_rewriting_a_day_never_extends_its_retention(harness: RedisHarness) -> None:
    mailbox, link = Mailbox(harness), harness.links[0]
    await mailbox.fill(1, day=-3)
    await mailbox.fill(2)
    key = f"mailbox:{{0:7}}:e1:{harness.day(-3)}"
    before = await harness.run(link, "EXPIRETIME", key)
    await mailbox.fill(3, 4, day=-3)
    assert await harness.run(link, "EXPIRETIME", key) == before == (harness.day(-3) + 8) * 86_400


@pytest.mark.contract("MBX-22", "MBX-24")
async def test_retention_comes_from_its_one_constant_and_a_change_fails_closed(
    harness: RedisHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    mailbox = Mailbox(harness)
    monkeypatch.setattr("stores.redis_mailbox.MAILBOX_RETENTION_DAYS", 3)
    await mailbox.fill(1)
    key = f"mailbox:{{0:7}}:e1:{harness.day(0)}"
    assert await harness.run(harness.links[0], "EXPIRETIME", key) == (harness.day(0) + 4) * 86_400
    monkeypatch.undo()
    before = await harness.snapshot()
    assert (await mailbox.append(mailbox.entry(2))).code == "corrupt"
    assert isinstance(await mailbox.scan_any(), MailboxDirty)
    assert await harness.snapshot() == before


@pytest.mark.contract("GATE-17", "MBX-63", "MBX-64")
@pytest.mark.parametrize("key", [*FAMILIES, "mailbox"])
@pytest.mark.parametrize("filled", [False, True])
async def test_gate_17_a_key_of_another_type_refuses_the_section_without_a_write(
    harness: RedisHarness, key: str, *, filled: bool
) -> None:
    mailbox = Mailbox(harness)
    await mailbox.lease()
    if filled:
        await mailbox.fill(1)
    name = f"mailbox:{{0:7}}:e1:{harness.day(0)}" if key == "mailbox" else key
    await harness.run(harness.links[0], "DEL", name)
    await harness.run(harness.links[0], "SET", name, "text")
    before = await harness.snapshot()
    for entries in ([mailbox.entry(2)], [mailbox.entry(2), mailbox.entry(3)]):
        outcome = await mailbox.append(mailbox.entry(2, user=8), *entries)
        assert outcome.code in {"wrong_type", "corrupt"}
        assert await harness.snapshot() == before


@pytest.mark.contract("GATE-17", "WM-20")
async def test_gate_17_w_of_another_type_is_damage_and_no_unknown_outcome(
    harness: RedisHarness,
) -> None:
    """An outcome that is not known is tried again for ever; this shard has to stop."""
    await harness.run(harness.links[0], "SET", "wm:0", "text")
    with pytest.raises(MailboxDirty, match="wrong_type"):
        await harness.store.watermark(0)


@pytest.mark.contract("GATE-17", "MBX-42")
async def test_gate_17_a_promotion_beside_a_wrong_key_writes_nothing(harness: RedisHarness) -> None:
    mailbox = Mailbox(harness)
    await mailbox.fill(1)
    await harness.age(30)
    key = "mbseqbucket:{0:7}:e1"
    await harness.run(harness.links[0], "DEL", key)
    await harness.run(harness.links[0], "SET", key, "text")
    before = await harness.snapshot()
    for day in (30, 0):  # a living day, and one that has expired as well
        assert (await mailbox.append(mailbox.entry(9, day=day))).code == "wrong_type"
    assert await harness.snapshot() == before


@pytest.mark.contract("MBX-40", "MBX-42", "MBX-43")
async def test_a_promotion_clears_exactly_the_expired_proofs(harness: RedisHarness) -> None:
    mailbox, link, key = Mailbox(harness), harness.links[0], "{0:7}:e1"
    await mailbox.fill(1, 2, day=-1)
    await mailbox.fill(3, day=0)
    await harness.age(7)
    before = await harness.snapshot()
    await mailbox.scan(seq_of(2))
    assert await harness.snapshot() == before  # reading promotes nothing
    await mailbox.fill(4, day=7)
    meta = await harness.run(link, "HGETALL", f"mbmeta:{key}")
    fields = dict(zip(meta[::2], meta[1::2], strict=True))
    days = [harness.day(0), harness.day(7)]
    assert fields[b"expired_gap_boundary"] == f"{seq_of(2):016x}".encode()
    assert b"user_trim_seq" not in fields
    assert [fields[b"active_day_count"], fields[b"min_day"], fields[b"max_day"]] == [
        str(value).encode() for value in (2, *days)
    ]
    assert await harness.run(link, "ZRANGE", f"mbdays:{key}", 0, -1) == [
        str(d).encode() for d in days
    ]
    identity = await harness.run(link, "ZRANGE", f"mbseqbucket:{key}", 0, -1)
    assert identity == [f"{seq_of(o):016x}".encode() for o in (3, 4)]


@pytest.mark.contract("WM-13", "WM-20", "WM-21", "REG-20", "GATE-17")
@pytest.mark.parametrize(
    "fields",
    [
        {"wm_layout": "packed-v3"},
        {"wm_layout": "packed-v1"},
        {"wm_blob": b"\x01" * 20},
        {"wm_blob": b""},
        {"wm_blob": b"\x04" + bytes(18)},
        {"wm_epoch": "one"},
        {"lane_0": "5"},
    ],
    ids=[
        "layout",
        "v1 of 19 bytes",
        "length",
        "empty",
        "presence",
        "epoch",
        "mixed with old fields",
    ],
)
async def test_reg_20_a_damaged_w_is_never_overwritten(
    harness: RedisHarness, fields: dict[str, str | bytes]
) -> None:
    mailbox = Mailbox(harness)
    await mailbox.fill(1)
    for name, value in fields.items():
        await harness.run(harness.links[0], "HSET", "wm:0", name, value)
    before = await harness.snapshot()
    assert (await mailbox.append(mailbox.entry(2))).code == "corrupt"
    assert await harness.snapshot() == before


@pytest.mark.contract("WM-22", "CON-11")
async def test_a_v1_blob_is_read_and_replaced_by_v2(harness: RedisHarness) -> None:
    mailbox = Mailbox(harness)
    await mailbox.lease()
    mailbox.w = pack_uniform(4) * 64
    wm = ("wm_layout", "packed-v1", "wm_epoch", 1, "wm_blob", mailbox.w)
    await harness.run(harness.links[0], "HSET", "wm:0", *wm)
    await mailbox.fill(5)
    stored = await harness.store.watermark(0)
    assert stored is not None
    assert (stored.layout, stored.blob) == ("packed-v2", pack_uniform(5))


@pytest.mark.contract("GATE-17", "MBX-33")
async def test_a_damaged_watermark_is_not_read_as_none(harness: RedisHarness) -> None:
    await harness.run(harness.links[0], "HSET", "wm:0", "wm_epoch", 1)
    with pytest.raises(MailboxDirty):
        await harness.store.watermark(0)


@pytest.mark.contract("REDIS-07", "MBX-30")
async def test_a_page_is_one_evalsha_an_instance(harness: RedisHarness) -> None:
    shards = [Mailbox(harness, shard) for shard in range(6)]
    for mailbox in shards:
        await mailbox.lease()
    pages = [m.section([m.entry(o, user=100 + m.shard + o) for o in range(50)]) for m in shards]
    await harness.store.append_page([])
    before = await harness.evalsha_calls()
    outcomes = await harness.store.append_page(pages)
    assert [outcome.code for outcome in outcomes] == ["ok"] * 6
    assert await harness.evalsha_calls() - before == 2
    scans = [scan_of(user=100 + m.shard, shard=m.shard) for m in shards]
    assert all(isinstance(found, ScanResult) for found in await harness.store.range_scan(scans))
    assert await harness.evalsha_calls() - before == 4


@pytest.mark.contract("REG-48", "MBX-62")
async def test_reg_48_refusals_are_logged_with_their_cause(
    harness: RedisHarness, caplog: pytest.LogCaptureFixture
) -> None:
    mailbox = Mailbox(harness)
    await mailbox.fill(1, 2)
    await harness.damage(Damage.PROOF_WRONG, 7, harness.day(0))
    await mailbox.append(mailbox.entry(3))
    await mailbox.scan_any()
    causes = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert [cause.split(":")[0] for cause in causes] == ["append refused", "mailbox damaged"]
    assert all("bucket" in cause for cause in causes)


async def test_entries_that_contradict_themselves_are_a_bug_of_the_caller(
    harness: RedisHarness,
) -> None:
    mailbox = Mailbox(harness)
    await mailbox.lease()
    entry = mailbox.entry(5)
    for wrong in (entry._replace(log_offset=6), entry._replace(member=member(seq_of(6)))):
        with pytest.raises(Bug):
            await mailbox.append(wrong)


@pytest.mark.contract("DP-02")
async def test_one_user_gets_at_most_a_chunk_in_one_page(harness: RedisHarness) -> None:
    mailbox = Mailbox(harness)
    for first in (0, 2000):  # a new mailbox, then one that is in use
        await mailbox.fill(*range(first, first + 2000))
    with pytest.raises(Bug):
        await mailbox.fill(*range(4000, 6001))
    assert offsets(await mailbox.scan(max_items=10_000)) == list(range(4000))


@pytest.mark.contract("MBX-40", "MBX-42")
async def test_an_active_day_that_goes_on_still_promotes_an_expired_one(
    harness: RedisHarness,
) -> None:
    mailbox = Mailbox(harness)
    await mailbox.fill(1, day=-7)
    await mailbox.fill(2)
    await harness.age(1)
    await mailbox.fill(3)
    meta = await harness.run(harness.links[0], "HGETALL", "mbmeta:{0:7}:e1")
    fields = dict(zip(meta[::2], meta[1::2], strict=True))
    assert fields[b"active_day_count"] == b"1"
    assert fields[b"expired_gap_boundary"] == f"{seq_of(1):016x}".encode()


@pytest.mark.contract("MBX-12", "MBX-32", "GATE-17")
@pytest.mark.parametrize(
    ("command", "family", "args"),
    [
        ("HSET", "mbmeta", ("active_day_count", "2")),
        ("HSET", "mbmeta", ("min_day", "1")),
        ("HSET", "mbmeta", ("max_day", "99999")),
        ("HDEL", "mbmeta", ("min_day",)),
        ("HSET", "mbmeta", ("day:<day>", "0001000000000002:1")),
        ("HSET", "mbmeta", ("day:<day>", "short")),
        ("HSET", "mbmeta", ("expired_gap_boundary", "12")),
        ("HSET", "mbmeta", ("unknown", "0001000000000002:1")),
        ("ZADD", "mbdays", ("1", "<day>")),
        ("ZADD", "mbdays", ("1", "5")),
    ],
)
async def test_gate_17_each_part_of_the_proof_is_checked(
    harness: RedisHarness, command: str, family: str, args: tuple[str, ...]
) -> None:
    mailbox = Mailbox(harness)
    await mailbox.fill(1, 2)
    filled = [arg.replace("<day>", str(harness.day(0))) for arg in args]
    await harness.run(harness.links[0], command, f"{family}:{{0:7}}:e1", *filled)
    before = await harness.snapshot()
    assert (await mailbox.append(mailbox.entry(3, day=-1))).code == "corrupt"
    assert isinstance(await mailbox.scan_any(), MailboxDirty)
    assert await harness.snapshot() == before


@pytest.mark.contract("EVT-06")
async def test_large_entries_do_not_make_large_replies(harness: RedisHarness) -> None:
    mailbox = Mailbox(harness)
    await mailbox.append(*(mailbox.entry(o, size=8000) for o in range(200)))

    async def sent() -> int:
        info: bytes = await harness.links[0].command("INFO", "stats")
        (line,) = [x for x in info.decode().splitlines() if x.startswith("total_net_output_bytes:")]
        return int(line.split(":")[1])

    before = await sent()
    found = await mailbox.scan(max_items=1000, max_bytes=20_000)
    assert len(found.entries) == 3
    assert await sent() - before < 150_000
