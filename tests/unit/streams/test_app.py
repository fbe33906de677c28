"""The worker's app: what its settings promise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from faust.types import TP

from schemas.config import Settings
from schemas.errors import StartRefused
from streams.app import QimApp, StreamConfig
from streams.catchup import CatchUp
from streams.transport import QimProducer, Transport


@pytest.fixture
def make_app(tmp_path: Path) -> Callable[..., QimApp]:
    def make(**values: Any) -> QimApp:
        own: dict[str, Any] = {
            "app_id": "a",
            "brokers": ("127.0.0.1:9", "127.0.0.2:9"),
            "data_dir": tmp_path / "data",
            "slot_count": 4,
            "owned_slots": frozenset({1}),
        }
        return QimApp(StreamConfig(**(own | values)))

    return make


MakeApp = Callable[..., QimApp]


def test_settings_become_the_config_of_the_app(tmp_path: Path) -> None:
    settings = Settings(app_id="x", broker="b1:1,b2:2", data_dir=tmp_path, slots="1,3", web_port=77)

    config = StreamConfig.from_settings(settings)

    assert config.brokers == ("b1:1", "b2:2")
    assert config.owned_slots == {1, 3}
    assert (config.app_id, config.data_dir, config.web_port) == ("x", tmp_path, 77)


def test_transport_comes_from_the_scheme_of_the_broker_address(make_app: MakeApp) -> None:
    app = make_app()

    assert isinstance(app.transport, Transport)
    assert [str(url) for url in app.conf.broker] == ["qim://127.0.0.1:9", "qim://127.0.0.2:9"]


@pytest.mark.contract("LOG-03", "LOG-04")
@pytest.mark.parametrize("idempotent", [False, True])
async def test_producer_waits_for_all_replicas_and_is_idempotent_where_configured(
    make_app: MakeApp, *, idempotent: bool
) -> None:
    producer = make_app(producer_idempotence=idempotent).producer

    assert isinstance(producer, QimProducer)
    assert producer._settings_extra() == {"acks": "all", "enable_idempotence": idempotent}
    assert producer._settings_default()["max_batch_size"] == 1 << 20


@pytest.mark.contract("LOG-05", "LOG-06")
async def test_consumer_commits_nothing_by_itself_and_never_jumps(make_app: MakeApp) -> None:
    app = make_app(fetch_max_wait_ms=77)
    consumer = app.qim_consumer.inline._create_worker_consumer(cast("Transport", app.transport))
    try:
        assert consumer._enable_auto_commit is False
        assert consumer._auto_offset_reset == "none"
        assert consumer._fetch_max_wait_ms == 77
        assert app.in_transaction is False
    finally:
        await consumer.stop()


def test_tables_are_small_raw_and_named_as_the_topics_are(make_app: MakeApp) -> None:
    table: Any = make_app().page_table("progress", 8)

    assert table.changelog_topic_name == "a-progress-changelog"
    assert table.options["block_cache_size"] <= 16 << 20
    assert (table.key_type, table.value_type, table.partitions) == (bytes, bytes, 8)


def test_faust_keeps_no_standbys_no_leader_and_makes_no_topics(make_app: MakeApp) -> None:
    conf = make_app().conf

    assert conf.table_standby_replicas == 0
    assert conf.topic_disable_leader
    assert not conf.topic_allow_declare
    assert conf.stream_wait_empty


@pytest.mark.contract("LOG-06", "LOG-11")
def test_partition_count_that_was_not_declared_is_refused(make_app: MakeApp) -> None:
    app = make_app()
    topic = app.stream_topic("t", 8)
    app.topics.add(topic)

    app.check_partition_counts({"t": 8, "other": 3})
    with pytest.raises(StartRefused, match="t"):
        app.check_partition_counts({"t": 4})


@pytest.mark.contract("TAKE-08")
def test_readiness_names_what_is_missing_in_the_order_of_the_start(make_app: MakeApp) -> None:
    app = make_app()
    position = {TP("t", 0): 3}
    consumer: Any = SimpleNamespace(
        catch_up=CatchUp(), ledger=SimpleNamespace(position=position.get)
    )
    app._consumer = consumer
    assert app.not_ready() == "tables are being recovered"

    app.tables.actives_ready = True
    assert app.not_ready() == "streams are not positioned"

    consumer.catch_up.begin(position, {TP("t", 0): 5})
    assert app.not_ready() == "catching up, 2 records left"

    position[TP("t", 0)] = 5
    app.ready_checks.append(lambda: "shard 3 is recovering")
    assert app.not_ready() == "shard 3 is recovering"

    app.ready_checks.clear()
    assert app.not_ready() is None
