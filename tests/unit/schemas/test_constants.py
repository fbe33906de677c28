"""Contract constants, one by one, and the guard at the end of the module."""

from pathlib import Path

import pytest

from schemas import constants

CONTRACT = {
    "LANE_COUNT": 64,
    "VIRTUAL_BUCKET_COUNT": 65_536,
    "COMMIT_BUCKET_COUNT": 256,
    "EPOCH_BITS": 16,
    "LOG_OFFSET_BITS": 48,
    "EVENT_GROUP_MAX_ENTRIES": 8,
    "EVENT_GROUP_MAX_BYTES": 8192,
    "MAILBOX_WRITE_BATCH_MAX_ENTRIES": 2000,
    "MAILBOX_RETENTION_DAYS": 7,
    "RETENTION_FORMAT_VERSION": 4,
    "INLINE_BODY_BUDGET_BYTES": 8192,
    "W_UNIFORM_BYTES": 19,
    "W_WIDE_BYTES": 1216,
    "CLIENT_DEDUP_TTL_S": 7200,
    "CUSTOM_TYPE_MAX_BYTES": 64,
    "HLC_WINDOW_MS": 60_000,
    "HLC_RENEW_LEAD_MS": 20_000,
    "WRITER_LEASE_RENEW_MS": 20_000,
    "WRITER_INFLIGHT_LIMIT_DEFAULT": 1024,
    "WRITER_INFLIGHT_LIMIT_MAX": 8192,
    "GATEWAY_QUEUE_MAX": 4096,
    "FANOUT_BATCH_MAX": 512,
    "SHARD_LEASE_TTL_MS": 15_000,
    "STREAM_WRITE_CHUNK_BYTES": 65_536,
    "PULL_MAILBOX_WINDOW": 4,
    "HEARTBEAT_START_S": 60,
    "HEARTBEAT_FOREGROUND_CAP_S": 120,
    "HEARTBEAT_BACKGROUND_CAP_S": 240,
    "ACK_TIMEOUT_S": 3.0,
    "HISTORY_HOT_WINDOW_S": 7 * 86_400,
    "REDIS_INSTANCES_MAX": 8,
}


@pytest.mark.contract("LANE-01", "HIST-01", "COM-14", "CON-01", "CON-06")
@pytest.mark.parametrize("name", CONTRACT)
def test_value_of_the_contract(name: str) -> None:
    assert getattr(constants, name) == CONTRACT[name]


@pytest.mark.contract("SEQ-16")
@pytest.mark.parametrize(
    "edit",
    [
        ("LANE_COUNT: Final = 64", "LANE_COUNT: Final = 32"),
        ("VIRTUAL_BUCKET_COUNT: Final = 65536", "VIRTUAL_BUCKET_COUNT: Final = 4096"),
        ("EPOCH_BITS: Final = 16", "EPOCH_BITS: Final = 15"),
        ("LOG_OFFSET_BITS: Final = 48", "LOG_OFFSET_BITS: Final = 47"),
        ("COMMIT_BUCKET_COUNT: Final = 256", "COMMIT_BUCKET_COUNT: Final = 128"),
    ],
)
def test_a_changed_immutable_width_does_not_import(edit: tuple[str, str]) -> None:
    source = Path(constants.__file__).read_text()
    assert edit[0] in source
    with pytest.raises(AssertionError, match="SEQ-16"):
        exec(compile(source.replace(*edit), "constants", "exec"), {})  # noqa: S102
