from pathlib import Path

import pytest

from ops.metrics_page import main, renewed, table
from schemas.catalogue import CATALOGUE, LABELS
from schemas.errors import Bug

COMMITTED = Path(__file__).resolve().parents[3] / "docs" / "observability.md"


def test_committed_table_is_the_one_drawn_from_the_catalogue() -> None:
    assert COMMITTED.read_text() == renewed(COMMITTED.read_text()), "run `make docs`"


def test_every_metric_and_every_label_has_one_row_with_its_meaning() -> None:
    rows = [line.split(" | ") for line in table().splitlines() if line.startswith("| `")]
    metrics = {row[0].strip("| `"): row for row in rows if len(row) == 6}
    assert metrics.keys() == CATALOGUE.keys()
    assert sum(len(row) == 6 for row in rows) == len(CATALOGUE)
    assert all(metrics[name][4] == metric.meaning for name, metric in CATALOGUE.items())
    assert [row[0].strip("| `") for row in rows if len(row) == 2] == list(LABELS)


@pytest.mark.contract("OBS-03", "LANE-08", "TAKE-10")
def test_take_10_alarm_rules_of_the_contract_are_written_down() -> None:
    text = table()
    assert "lane_stall_alert = 30 s" in text
    assert "> 30,000: warn; > 120,000" in text
    assert text.count("stop the release") == sum(m.always_zero for m in CATALOGUE.values())


def test_a_page_without_marks_is_refused_and_a_stale_one_is_renewed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Bug, match="lacks"):
        renewed("# no marks\n")
    page = tmp_path / "page.md"
    page.write_text(COMMITTED.read_text().replace("qim_runtime_lag_us` | histogram", "qim_old"))
    assert main(["--check", str(page)]) == 1
    assert "qim_old" in capsys.readouterr().out
    assert main(["--write", str(page)]) == 0
    assert main(["--check", str(page)]) == 0
    assert main([]) == 0
    assert "### Gateway" in capsys.readouterr().out
