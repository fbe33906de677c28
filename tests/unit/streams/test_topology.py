"""The drawing of the live app, and declarations that do not fit it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from schemas.config import Settings
from schemas.errors import Bug
from schemas.topics import dispatch_topic, outbox_topic, topic_specs
from streams.app import QimApp, StreamConfig
from streams.topology import NodeUse, declared, graph_of, main, node, record_writes

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def app(tmp_path: Path) -> QimApp:
    settings = Settings(data_dir=tmp_path)
    return QimApp(StreamConfig.from_settings(settings))


def agent_of(app: QimApp, topic: str, **use: Any) -> None:
    @node(**use)
    @app.agent(app.stream_topic(topic, 4), name="one")
    async def one(stream: Any) -> None:
        async for _event in stream:
            pass


def test_drawing_in_the_repository_is_that_of_the_live_app() -> None:
    assert main(["--check", str(ROOT / "topology.md")]) == 0


def test_check_fails_on_drift_and_write_mends_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "topology.md"
    assert main(["--check", str(page)]) == 1, "missing"
    assert main(["--write", str(page)]) == 0
    assert main(["--check", str(page)]) == 0

    page.write_text(page.read_text().replace("4 partitions", "5 partitions"))
    capsys.readouterr()

    assert main(["--check", str(page)]) == 1
    assert "-    topic_qim_outbox_v1" in capsys.readouterr().err


def test_without_an_option_the_drawing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "flowchart LR" in capsys.readouterr().out


def test_every_topic_of_the_system_is_written_and_read(tmp_path: Path) -> None:
    page = tmp_path / "topology.md"
    main(["--write", str(page)])
    rows = [line for line in page.read_text().splitlines() if line.startswith("| `")]

    assert len(rows) == len(topic_specs(Settings()))
    unread = {row.split("`")[1] for row in rows if row.rstrip("| ").endswith("-")}
    assert unread == {"qim-progress-changelog"}, "only recovery reads it"
    assert not any(row.split("|")[5].strip() == "-" for row in rows)


def test_agent_without_a_declaration_is_a_bug(app: QimApp) -> None:
    @app.agent(app.stream_topic(outbox_topic("qim"), 4), name="bare")
    async def bare(stream: Any) -> None:
        async for _event in stream:
            pass

    with pytest.raises(Bug, match="bare"):
        declared(app)


def test_declared_table_that_does_not_exist_is_a_bug(app: QimApp) -> None:
    agent_of(app, outbox_topic("qim"), tables=["nowhere"])

    with pytest.raises(Bug, match="nowhere"):
        declared(app)


def test_topic_that_the_schemas_do_not_know_is_a_bug(app: QimApp) -> None:
    agent_of(app, outbox_topic("qim"), writes=["invented"])

    with pytest.raises(Bug, match="invented"):
        graph_of(app, Settings())


def test_declaration_is_kept_as_given(app: QimApp) -> None:
    agent_of(app, outbox_topic("qim"), writes=[dispatch_topic("qim")], uses=["mailbox Redis"])

    assert declared(app) == {"one": NodeUse((dispatch_topic("qim"),), (), ("mailbox Redis",))}


def test_recording_notes_names_and_ends_with_its_block(app: QimApp) -> None:
    with record_writes(app) as seen:
        observer = app.page_producer.observer
        assert observer is not None
        observer("topic", "t")
        observer("table", "progress")

    assert (seen.topics, seen.tables) == ({"t"}, {"progress"})
    assert app.page_producer.observer is None
