import pytest

from gateway.heartbeat import GRACE_MS, Heartbeat


@pytest.mark.contract("GW-08")
def test_interval_starts_at_60_s_and_grows_to_its_cap() -> None:
    heartbeat = Heartbeat(0)
    assert heartbeat.interval_ms == 60_000
    seen = []
    for foreground in (True, True, False, False, False, True):
        heartbeat.ping(0, foreground=foreground)
        seen.append(heartbeat.interval_ms)
    assert seen == [120_000, 120_000, 240_000, 240_000, 240_000, 120_000]


def test_deadline_is_the_promised_timeout_after_the_last_frame() -> None:
    heartbeat = Heartbeat(1_000)
    assert heartbeat.deadline_ms == 1_000 + 60_000 + GRACE_MS
    heartbeat.ping(50_000, foreground=False)
    assert heartbeat.timeout_ms == 120_000 + GRACE_MS
    assert heartbeat.deadline_ms == 50_000 + heartbeat.timeout_ms
    heartbeat.heard_ms = 60_000
    assert heartbeat.deadline_ms == 60_000 + heartbeat.timeout_ms
