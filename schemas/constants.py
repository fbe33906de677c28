"""Contract constants, each once, each with the id of the contract item it comes from.

Widths and counts that are immutable after a cluster was created (SEQ-16) are asserted at import time at the
bottom of this file, so that a careless edit cannot start a process.
"""

from typing import Final

__all__ = [
    "ACK_TIMEOUT_S",
    "CHANGELOG_COMPACTION_LAG_MS",
    "CLIENT_DEDUP_TTL_S",
    "COMMIT_BUCKET_COUNT",
    "CUSTOM_TYPE_MAX_BYTES",
    "DETECTION_LIMIT_S",
    "DISPATCH_RETENTION_MS",
    "EPOCH_BITS",
    "EVENT_GROUP_MAX_BYTES",
    "EVENT_GROUP_MAX_ENTRIES",
    "FANOUT_BATCH_MAX",
    "GATEWAY_QUEUE_MAX",
    "HEARTBEAT_BACKGROUND_CAP_S",
    "HEARTBEAT_FOREGROUND_CAP_S",
    "HEARTBEAT_START_S",
    "HISTORY_HOT_WINDOW_S",
    "HLC_RENEW_LEAD_MS",
    "HLC_WINDOW_MS",
    "INLINE_BODY_BUDGET_BYTES",
    "LANE_COUNT",
    "LANE_STALL_ALERT_MS",
    "LANE_STALL_FAILOVER_MS",
    "LOG_OFFSET_BITS",
    "MAILBOX_RETENTION_DAYS",
    "MAILBOX_SUBTASK_TIMEOUT_MS",
    "MAILBOX_WRITE_BATCH_MAX_ENTRIES",
    "MAX_BODY_BYTES",
    "MAX_EPOCH",
    "MAX_FRAME_BYTES",
    "MAX_LOG_OFFSET",
    "MAX_U63",
    "MAX_U128",
    "OUTBOX_RETENTION_MS",
    "PULL_MAILBOX_WINDOW",
    "REDIS_INSTANCES_MAX",
    "REDIS_MIN_VERSION",
    "RETENTION_FORMAT_VERSION",
    "SECONDS_PER_DAY",
    "SHARD_LEASE_RENEW_MS",
    "SHARD_LEASE_TTL_MS",
    "SHARD_QUEUE_MAX_PAGES",
    "STREAM_WRITE_CHUNK_BYTES",
    "VIRTUAL_BUCKET_COUNT",
    "WRITER_INFLIGHT_LIMIT_DEFAULT",
    "WRITER_INFLIGHT_LIMIT_MAX",
    "WRITER_LEASE_RENEW_MS",
    "WRITER_LEASE_TTL_MS",
    "W_UNIFORM_BYTES",
    "W_WIDE_BYTES",
]

# --- identifiers ---------------------------------------------------------------------------------------------
MAX_U63: Final = (1 << 63) - 1  # SEQ-10: bit 63 of every u64 sequence is 0
MAX_U128: Final = (1 << 128) - 1  # SEQ-02
EPOCH_BITS: Final = 16  # SEQ-07
LOG_OFFSET_BITS: Final = 48  # SEQ-07
MAX_EPOCH: Final = 0x7FFF  # SEQ-10, derived: a larger epoch would set bit 63
MAX_LOG_OFFSET: Final = (1 << LOG_OFFSET_BITS) - 1  # SEQ-07
LANE_COUNT: Final = 64  # LANE-01
VIRTUAL_BUCKET_COUNT: Final = 65536  # SPLIT-04, LOG-11
COMMIT_BUCKET_COUNT: Final = 256  # COM-22

# --- mailbox -------------------------------------------------------------------------------------------------
SECONDS_PER_DAY: Final = 86_400
MAILBOX_RETENTION_DAYS: Final = 7  # MBX-21, CON-01
RETENTION_FORMAT_VERSION: Final = 4  # MBX-32
MAILBOX_WRITE_BATCH_MAX_ENTRIES: Final = 2000  # DP-02
EVENT_GROUP_MAX_ENTRIES: Final = 8  # EVT-02
EVENT_GROUP_MAX_BYTES: Final = 8 * 1024  # EVT-02
INLINE_BODY_BUDGET_BYTES: Final = 8 * 1024  # DISP-04, QUOTA-04
W_UNIFORM_BYTES: Final = 19  # WM-21
W_WIDE_BYTES: Final = LANE_COUNT * W_UNIFORM_BYTES  # WM-20
LANE_STALL_ALERT_MS: Final = 30_000  # LANE-08
LANE_STALL_FAILOVER_MS: Final = 120_000  # LANE-08
MAILBOX_SUBTASK_TIMEOUT_MS: Final = 30_000  # LANE-07
SHARD_LEASE_TTL_MS: Final = 15_000  # TAKE-03
SHARD_LEASE_RENEW_MS: Final = 4_000  # below a third of the TTL: two renewals may be lost
SHARD_QUEUE_MAX_PAGES: Final = (
    16  # FAN-09 counts 128 records; here pages, of at most 256 records each
)

# --- commit --------------------------------------------------------------------------------------------------
CLIENT_DEDUP_TTL_S: Final = 7200  # COM-14, CON-06
CUSTOM_TYPE_MAX_BYTES: Final = 64  # COM-26
MAX_BODY_BYTES: Final = 128 * 1024  # larger originals go to object storage (MEDIA-01, FORB-06)
HISTORY_HOT_WINDOW_S: Final = 7 * SECONDS_PER_DAY  # HIST-01
HLC_WINDOW_MS: Final = 60_000  # HLC-01
HLC_RENEW_LEAD_MS: Final = 20_000  # HLC-02
WRITER_LEASE_RENEW_MS: Final = 20_000  # HLC-04
WRITER_LEASE_TTL_MS: Final = (
    90_000  # two renewals may be lost; a longer pause ends the writer (HLC-03)
)
WRITER_INFLIGHT_LIMIT_DEFAULT: Final = 1024  # COM-17, REG-16
WRITER_INFLIGHT_LIMIT_MAX: Final = 8192  # COM-17
GATEWAY_QUEUE_MAX: Final = 4096  # GW-12

# --- log -----------------------------------------------------------------------------------------------------
FANOUT_BATCH_MAX: Final = 512  # FAN-03
OUTBOX_RETENTION_MS: Final = 8 * SECONDS_PER_DAY * 1000  # covers the mailbox window (LOG-12)
DISPATCH_RETENTION_MS: Final = 8 * SECONDS_PER_DAY * 1000  # DP-11 + one day of margin
CHANGELOG_COMPACTION_LAG_MS: Final = 3_600_000
"""Both rows of a key stay that long where a former owner wrote late, so that whoever takes the shard sees the better one."""

# --- stores --------------------------------------------------------------------------------------------------
REDIS_INSTANCES_MAX: Final = 8  # REDIS-09
REDIS_MIN_VERSION: Final = (7, 0, 0)  # REDIS-01

# --- protocol ------------------------------------------------------------------------------------------------
STREAM_WRITE_CHUNK_BYTES: Final = 64 * 1024  # GW-05
MAX_FRAME_BYTES: Final = 4 * 1024 * 1024  # GW-05 names a 4 MiB frame as the large case (OPEN-07)
PULL_MAILBOX_WINDOW: Final = 4  # CUR-08
HEARTBEAT_START_S: Final = 60  # GW-08
HEARTBEAT_FOREGROUND_CAP_S: Final = 120  # GW-08
HEARTBEAT_BACKGROUND_CAP_S: Final = 240  # GW-08
ACK_TIMEOUT_S: Final = 3.0  # GW-09
DETECTION_LIMIT_S: Final = 7.0  # GATE-07

if EPOCH_BITS + LOG_OFFSET_BITS != 64 or LANE_COUNT != 64 or VIRTUAL_BUCKET_COUNT != 1 << 16:
    raise AssertionError("SEQ-16: immutable widths were changed")
if VIRTUAL_BUCKET_COUNT % LANE_COUNT or 256 % REDIS_INSTANCES_MAX or COMMIT_BUCKET_COUNT != 256:
    raise AssertionError("SEQ-16: immutable counts were changed")
