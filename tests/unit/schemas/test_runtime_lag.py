import asyncio
import time

import pytest

from schemas.metrics import histogram
from schemas.runtime_lag import RuntimeLag


@pytest.mark.contract("OBS-05")
async def test_obs_05_the_probe_sees_how_long_the_loop_was_busy() -> None:
    lag = histogram("qim_runtime_lag_us")
    count, total_us = lag.count, lag.total
    probe = RuntimeLag()
    probe.start()
    probe.start()  # once
    await asyncio.sleep(0)
    time.sleep(0.06)  # noqa: ASYNC251 - what the probe is there to find
    while lag.count == count:  # noqa: ASYNC110 - a timer is awaited
        await asyncio.sleep(0)
    probe.stop()
    probe.stop()
    assert lag.count == count + 1
    assert lag.total - total_us >= 45_000  # 60 ms of work against a timer that was due after 10 ms
