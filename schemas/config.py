"""Settings of every process: typed, frozen, built once at start; the only reader of the environment.

Each field is the environment variable `QIM_<FIELD>` in upper case. `docs/settings.md` is generated from this model.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from schemas.constants import (
    COMMIT_BUCKET_COUNT,
    REDIS_INSTANCES_MAX,
    WRITER_INFLIGHT_LIMIT_DEFAULT,
    WRITER_INFLIGHT_LIMIT_MAX,
)
from schemas.identifiers import validate_shard_count
from schemas.kill_points import parse_kill_point

__all__ = ["Settings", "broker_choice", "child_environment"]

_FORBIDDEN_ENVIRONMENT: Final = (
    "QIM_STORE_BACKEND",
)  # REDIS-15: the old selector present refuses to start


def _split(value: object) -> object:
    return (
        tuple(part.strip() for part in value.split(",") if part.strip())
        if isinstance(value, str)
        else value
    )


class Settings(BaseSettings):
    """What a worker, a gateway or a tool is told from outside."""

    # What was wrong is said without the value, which may be a secret (OBS-10).
    model_config = SettingsConfigDict(
        env_prefix="QIM_", frozen=True, extra="ignore", hide_input_in_errors=True
    )

    app_id: str = Field(
        "qim", pattern=r"^[a-z0-9][a-z0-9-]{0,40}$", description="names topics, tables and keys"
    )
    broker: str = Field(
        "127.0.0.1:9092", description="bootstrap address of the Kafka-API broker, host:port"
    )
    mailbox_redis: Annotated[tuple[str, ...], NoDecode] = Field(
        ("redis://127.0.0.1:6380/0",),
        description="mailbox instances in order, comma separated (REDIS-09)",
    )
    commit_redis: Annotated[tuple[str, ...], NoDecode] = Field(
        ("redis://127.0.0.1:6381/0",),
        description="commit instances in order, comma separated (COM-22)",
    )
    message_store_connections: int = Field(
        8, ge=1, le=64, description="connections per instance (COM-23)"
    )
    redis_allow_unsafe_dev: bool = Field(
        False, description="skip the AOF/fsync/noeviction gates on loopback only (REDIS-05)"
    )
    mailbox_shard_count: int = Field(8, description="partitions of dispatch, power of two (FAN-12)")
    slot_count: int = Field(4, description="ownership slots, power of two, fixed with the topics")
    slots: Annotated[tuple[int, ...] | None, NoDecode] = Field(
        None,
        description="slots this worker begins with, comma separated; empty or `spare`: none, it waits for"
        " slots that lose their owner; unset: all",
    )
    push_partitions: int = Field(4, ge=1, le=256, description="connection shards of the push topic")
    worker_name: str = Field(
        "worker-0", description="lease owner; stable over restarts of one worker"
    )
    data_dir: Path = Field(Path("data"), description="folder of the worker's RocksDB tables")
    web_host: str = Field("127.0.0.1", description="address of the worker's HTTP port")
    web_port: int = Field(9102, ge=0, le=65535, description="the worker's HTTP port (OBS-02)")
    gateway_listen: str = Field(
        "127.0.0.1:7800", description="client TCP address, host:port (SEC-06)"
    )
    gateway_web_port: int = Field(
        9100, ge=0, le=65535, description="the gateway's HTTP port (OBS-02)"
    )
    gateway_name: str = Field("gateway-0", description="lease owner of the gateway's writer id")
    region_id: int = Field(1, ge=0, le=65535, description="part of every message_id (SEQ-02)")
    writer_id: int | None = Field(
        None, ge=0, le=65535, description="only where ordinals are stable (HLC-04)"
    )
    writer_request_inflight_limit: int = Field(
        WRITER_INFLIGHT_LIMIT_DEFAULT,
        ge=1,
        le=WRITER_INFLIGHT_LIMIT_MAX,
        description="COM-17, REG-16",
    )
    token_secret: SecretStr = Field(
        SecretStr(""), description="key of the access tokens, at least 32 characters"
    )
    cursor_secret: SecretStr = Field(
        SecretStr(""), description="key of the cursor tokens, at least 32 characters"
    )
    control_token: SecretStr = Field(
        SecretStr(""), description="who shows it may order a worker about (qimctl); unset: nobody"
    )
    gateway_page_interval_ms: float = Field(
        40.0,
        ge=0,
        le=1000,
        description="distance of the pages of a busy gateway, at most (decision 0004)",
    )
    worker_page_interval_ms: float = Field(
        110.0,
        ge=0,
        le=1000,
        description="distance of the pages of a busy worker, at most (decision 0004)",
    )
    fetch_max_wait_ms: int = Field(50, ge=1, le=1500, description="longest broker long poll")
    start_timeout_s: float = Field(60.0, gt=0, description="a start that takes longer fails")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = Field(
        "INFO", description="lines below this level are not written"
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="one event a line, for people or for machines (OBS-10)"
    )

    test_build: bool = Field(
        False, description="this is no production process: test switches may be set"
    )
    test_kill_point: str = Field(
        "",
        description="kill the process at a named point, `name:count` (docs/testing.md); test builds only",
    )

    _split_lists = field_validator("mailbox_redis", "commit_redis", mode="before")(_split)

    @field_validator("slots", mode="before")
    @classmethod
    def _split_slots(cls, value: object) -> object:
        return (
            tuple(int(part) for part in value.split(",") if part.strip() not in {"", "spare"})
            if isinstance(value, str)
            else value
        )

    @field_validator("mailbox_shard_count", "slot_count")
    @classmethod
    def _power_of_two(cls, value: int) -> int:
        return validate_shard_count(value)

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        for name in _FORBIDDEN_ENVIRONMENT:
            if name in os.environ:
                raise ValueError(f"{name} is a retired setting: remove it (REDIS-15)")
        for role, instances, divides in (
            ("mailbox_redis", self.mailbox_redis, self.mailbox_shard_count),
            ("commit_redis", self.commit_redis, COMMIT_BUCKET_COUNT),
        ):
            if not 1 <= len(instances) <= REDIS_INSTANCES_MAX or divides % len(instances):
                raise ValueError(
                    f"{role}: {len(instances)} instances do not divide {divides} (REDIS-09)"
                )
        if self.test_kill_point:
            if not self.test_build:
                raise ValueError("test_kill_point is set, but this is no test build")
            parse_kill_point(self.test_kill_point)
        if self.mailbox_shard_count % self.slot_count:
            raise ValueError("slot_count must divide mailbox_shard_count")
        if self.slots is not None and not set(self.slots) <= set(range(self.slot_count)):
            raise ValueError(f"slots must be among 0..{self.slot_count - 1}")
        return self

    def secrets(self) -> list[str]:
        """Every value of these settings that no log may hold: keys, and the passwords in addresses."""
        urls = (*self.mailbox_redis, *self.commit_redis)
        passwords = [password for url in urls if (password := urlsplit(url).password)]
        keys = [
            key.get_secret_value()
            for key in (self.token_secret, self.cursor_secret, self.control_token)
        ]
        return [secret for secret in (*keys, *passwords) if secret]

    @property
    def outbox_partitions(self) -> int:
        """One outbox partition a slot: the fewest that spread over all workers."""
        return self.slot_count

    @property
    def owned_slots(self) -> frozenset[int]:
        """The slots of this worker."""
        return frozenset(range(self.slot_count) if self.slots is None else self.slots)


def child_environment(values: dict[str, str]) -> dict[str, str]:
    """The environment of a process that we start: ours without any QIM_ setting, plus `values`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("QIM_")}
    return kept | values


def broker_choice() -> str:
    """QIM_TEST_BROKER: `jars` (default), `docker`, or `external:host:port`."""
    return os.environ.get("QIM_TEST_BROKER", "jars")
