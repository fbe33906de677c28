"""Settings: read from the environment once, typed, frozen, consistent or refused."""

import pytest
from pydantic import ValidationError

from schemas.config import Settings, broker_choice, child_environment


def test_every_field_is_one_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        "QIM_APP_ID": "chat-2",
        "QIM_MAILBOX_REDIS": "redis://a:1/0, redis://b:2/0",
        "QIM_COMMIT_REDIS": "redis://c:3/0",
        "QIM_MAILBOX_SHARD_COUNT": "16",
        "QIM_SLOT_COUNT": "8",
        "QIM_SLOTS": "0, 7",
        "QIM_WRITER_ID": "65535",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    settings = Settings()
    assert settings.app_id == "chat-2"
    assert settings.mailbox_redis == ("redis://a:1/0", "redis://b:2/0")
    assert settings.commit_redis == ("redis://c:3/0",)
    assert settings.owned_slots == {0, 7}
    assert settings.outbox_partitions == 8
    assert settings.writer_id == 65535


def test_a_worker_without_slots_owns_all_of_them() -> None:
    assert Settings(slot_count=4).owned_slots == {0, 1, 2, 3}


def test_settings_are_frozen() -> None:
    settings = Settings()
    with pytest.raises(ValidationError):
        settings.app_id = "other"  # type: ignore[misc]


@pytest.mark.contract("REDIS-15")
def test_a_retired_setting_refuses_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QIM_STORE_BACKEND", "")
    with pytest.raises(ValidationError, match="QIM_STORE_BACKEND"):
        Settings()


@pytest.mark.contract("FAN-12", "LOG-11")
@pytest.mark.parametrize("count", [0, 3, 12, 131_072])
def test_a_shard_count_that_is_no_power_of_two_is_refused(count: int) -> None:
    with pytest.raises(ValidationError, match="power of two"):
        Settings(mailbox_shard_count=count, slot_count=1)


@pytest.mark.contract("REDIS-09", "COM-22")
@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_instances_that_divide_are_accepted(count: int) -> None:
    instances = tuple(f"redis://h:{port}/0" for port in range(count))
    settings = Settings(mailbox_redis=instances, commit_redis=instances)
    assert len(settings.commit_redis) == count


@pytest.mark.contract("REDIS-09", "COM-22")
@pytest.mark.parametrize("count", [0, 3, 5, 6, 7, 9, 16])
@pytest.mark.parametrize("role", ["mailbox_redis", "commit_redis"])
def test_instances_that_do_not_divide_are_refused(role: str, count: int) -> None:
    instances = tuple(f"redis://h:{port}/0" for port in range(count))
    with pytest.raises(ValidationError, match="REDIS-09"):
        Settings.model_validate({role: instances})


@pytest.mark.contract("REDIS-09")
def test_mailbox_instances_must_divide_the_shards_they_hold() -> None:
    with pytest.raises(ValidationError, match="mailbox_redis"):
        Settings(mailbox_shard_count=2, slot_count=2, mailbox_redis=("a", "b", "c", "d"))


@pytest.mark.parametrize(
    "fields",
    [
        {"mailbox_shard_count": 2, "slot_count": 4},
        {"slot_count": 3},
        {"slot_count": 4, "slots": "4"},
        {"slot_count": 4, "slots": "-1"},
        {"slot_count": 4, "slots": "one"},
        {"app_id": "Upper"},
        {"app_id": ""},
        {"app_id": "a b"},
        {"app_id": "a" * 50},
        {"region_id": 65_536},
        {"writer_id": -1},
        {"writer_request_inflight_limit": 8193},
        {"writer_request_inflight_limit": 0},
        {"message_store_connections": 0},
    ],
)
def test_settings_that_contradict_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Settings.model_validate(fields)


@pytest.mark.contract("COM-17", "REG-16")
def test_reg_16_default_in_flight_limit_is_1024() -> None:
    assert Settings().writer_request_inflight_limit == 1024


@pytest.mark.contract("SEC-06")
def test_defaults_listen_on_loopback_only() -> None:
    settings = Settings()
    assert settings.gateway_listen.startswith("127.0.0.1:")
    assert settings.web_host == "127.0.0.1"


def test_secrets_do_not_show_in_text() -> None:
    settings = Settings.model_validate({"token_secret": "s" * 32, "cursor_secret": "c" * 32})
    assert "ssss" not in repr(settings) + str(settings)
    assert "cccc" not in repr(settings) + str(settings)
    assert settings.token_secret.get_secret_value() == "s" * 32


def test_a_child_gets_our_environment_without_our_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QIM_APP_ID", "parent")
    monkeypatch.setenv("UNRELATED", "kept")
    child = child_environment({"QIM_WEB_PORT": "0"})
    assert "QIM_APP_ID" not in child
    assert (child["UNRELATED"], child["QIM_WEB_PORT"]) == ("kept", "0")


def test_broker_of_the_tests_is_jars_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QIM_TEST_BROKER", raising=False)
    assert broker_choice() == "jars"
    monkeypatch.setenv("QIM_TEST_BROKER", "external:h:1")
    assert broker_choice() == "external:h:1"


@pytest.mark.parametrize("text", ["", "spare", " spare "])
def test_a_worker_without_slots_is_a_spare(text: str) -> None:
    assert Settings.model_validate({"slot_count": 4, "slots": text}).owned_slots == frozenset()
