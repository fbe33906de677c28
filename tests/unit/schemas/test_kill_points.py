"""Kill points exist in test builds only, and kill at the asked time."""

import signal

import pytest
from pydantic import ValidationError

from schemas.config import Settings
from schemas.kill_points import KillPoint, arm, reached


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    signals: list[int] = []
    monkeypatch.setattr("os.kill", lambda _pid, number: signals.append(number))
    return signals


def test_a_production_process_refuses_a_kill_point() -> None:
    with pytest.raises(ValidationError, match="no test build"):
        Settings(test_kill_point="after_w")


@pytest.mark.parametrize("text", ["somewhere", "after_w:x", "after_w:1:2"])
def test_an_unknown_point_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        Settings(test_build=True, test_kill_point=text)


@pytest.mark.parametrize("point", KillPoint)
def test_the_process_dies_at_its_point_when_it_is_there_for_the_asked_time(
    point: KillPoint, killed: list[int]
) -> None:
    arm(Settings(test_build=True, test_kill_point=f"{point.value}:3").test_kill_point)
    try:
        for other in KillPoint:
            if other is not point:
                reached(other)
        reached(point)
        reached(point)
        assert killed == []
        reached(point)
        assert killed == [signal.SIGKILL]
    finally:
        arm("")
    reached(point)
    assert killed == [signal.SIGKILL]
