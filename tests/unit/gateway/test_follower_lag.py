import pytest
from aiokafka import TopicPartition

from schemas.records import WATERMARK_ROW
from tests.unit.gateway.test_follower import Bench, P, Record, W
from tests.unit.gateway.test_visibility import row


@pytest.mark.contract("OBS-07")
async def test_obs_07_lag_is_what_the_last_fetch_knew_of_beyond_what_was_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch)
    assert dict(bench.follower.lags()) == {}  # nothing is followed yet
    value = WATERMARK_ROW.encode(row(1))
    bench.consumer.give({W: [Record(value, offset=4), Record(value, offset=6)]}, position=7)
    await bench.follower.start(5)
    try:
        expected: dict[TopicPartition, int] = {W: 0}
        assert dict(bench.follower.lags()) == expected
        bench.consumer.highwaters |= {W: 19, P: 9}
        assert dict(bench.follower.lags()) == {W: 12}
        bench.consumer.give({P: [Record(b"not a push", offset=7)]})
        await bench.until(2)
        assert dict(bench.follower.lags()) == {W: 12, P: 1}
    finally:
        await bench.follower.stop()
    assert dict(bench.follower.lags()) == {}
