"""Page apps of a test's own on the session's broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.page_app import PageAppOptions

__all__ = ["MakeOptions"]

MakeOptions = Callable[..., PageAppOptions]


@pytest.fixture
def options(broker: str, app_id: str, tmp_path: Path) -> MakeOptions:
    """Options of a worker of this test: 4 partitions, 4 slots, all owned; keyword arguments change them."""

    def make(**values: object) -> PageAppOptions:
        own: dict[str, object] = {
            "app_id": app_id,
            "broker": broker,
            "data_dir": str(tmp_path / "data"),
            "partitions": 4,
            "slot_count": 4,
        }
        return PageAppOptions(**(own | values))  # type: ignore[arg-type]

    return make
