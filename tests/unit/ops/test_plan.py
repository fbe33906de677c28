"""What a stack consists of, and what may change when it is started again."""

import stat
from pathlib import Path

import pytest

from ops.plan import StackOptions, StackPlan, load_or_create, service_values
from ops.stack import lock_folder, settings_of
from schemas.errors import StartRefused


def ports_of(plan: StackPlan) -> list[int]:
    return [
        *plan.kafka_ports,
        *plan.mailbox_ports,
        *plan.commit_ports,
        *plan.worker_web_ports,
        *plan.gateway_ports,
        *plan.gateway_web_ports,
    ]


@pytest.mark.parametrize(
    ("shards", "workers", "slots"),
    [(8, 1, 4), (8, 3, 4), (8, 5, 8), (64, 4, 4), (2, 1, 2), (1, 1, 1)],
)
def test_slots_are_a_power_of_two_with_one_for_each_worker(
    shards: int, workers: int, slots: int
) -> None:
    assert StackOptions(shards=shards, workers=workers).slots == slots


def test_more_workers_than_shards_are_refused() -> None:
    with pytest.raises(StartRefused, match="3 workers need at least 4 shards"):
        _ = StackOptions(shards=2, workers=3).slots


def test_new_plan_has_distinct_ports_and_secrets_that_only_the_owner_reads(tmp_path: Path) -> None:
    path = tmp_path / "stack.json"
    options = StackOptions(workers=2, gateways=2, mailbox_redis=2, commit_redis=2)
    plan = load_or_create(path, options)
    assert len(set(ports_of(plan))) == len(ports_of(plan)) == 12
    assert plan.token_secret != plan.cursor_secret
    assert len(plan.token_secret) == len(plan.cursor_secret) == 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_plan_is_the_same_after_a_restart(tmp_path: Path) -> None:
    first = load_or_create(tmp_path / "stack.json", StackOptions(workers=2))
    assert load_or_create(tmp_path / "stack.json", StackOptions(workers=2)) == first


def test_more_workers_keep_the_ports_of_those_that_were_there(tmp_path: Path) -> None:
    first = load_or_create(tmp_path / "stack.json", StackOptions(workers=2))
    more = load_or_create(tmp_path / "stack.json", StackOptions(workers=4, gateways=2))
    assert more.worker_web_ports[:2] == first.worker_web_ports
    assert more.gateway_ports[:1] == first.gateway_ports
    assert (len(more.worker_web_ports), len(more.gateway_ports)) == (4, 2)
    assert (more.slots, more.token_secret) == (first.slots, first.token_secret)
    fewer = load_or_create(tmp_path / "stack.json", StackOptions(workers=1))
    assert fewer.worker_web_ports == first.worker_web_ports[:1]


@pytest.mark.parametrize(
    "changed",
    [
        StackOptions(shards=16),
        StackOptions(mailbox_redis=2),
        StackOptions(commit_redis=2),
        StackOptions(app_id="other"),
        StackOptions(workers=8),
    ],
    ids=str,
)
def test_change_of_what_stored_positions_rest_on_is_refused(
    tmp_path: Path, changed: StackOptions
) -> None:
    path = tmp_path / "stack.json"
    load_or_create(path, StackOptions())
    before = path.read_bytes()
    with pytest.raises(StartRefused, match="this data folder has"):
        load_or_create(path, changed)
    assert path.read_bytes() == before


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_every_slot_has_one_owner(tmp_path: Path, workers: int) -> None:
    plan = load_or_create(tmp_path / "stack.json", StackOptions(workers=workers))
    owned = [slot for worker in range(workers) for slot in plan.slots_of(worker)]
    assert sorted(owned) == list(range(plan.slots))


def test_values_are_settings_that_validate(tmp_path: Path) -> None:
    plan = load_or_create(tmp_path / "stack.json", StackOptions(shards=16, mailbox_redis=2))
    settings = settings_of(service_values(plan, plan.servers) | {"QIM_SLOTS": "1,3"})
    assert settings.broker == f"127.0.0.1:{plan.kafka_ports[0]}"
    assert settings.mailbox_redis == plan.servers.mailbox_redis
    assert settings.commit_redis == plan.servers.commit_redis
    assert (settings.mailbox_shard_count, settings.slot_count) == (16, 4)
    assert settings.owned_slots == {1, 3}
    assert settings.token_secret.get_secret_value() == plan.token_secret


def test_two_stacks_on_one_folder_are_refused(tmp_path: Path) -> None:
    with lock_folder(tmp_path), pytest.raises(StartRefused, match="another stack runs on"):
        lock_folder(tmp_path)
    lock_folder(tmp_path).close()
