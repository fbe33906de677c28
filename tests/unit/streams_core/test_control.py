"""Taking a shard again by order, and who may give the order."""

from __future__ import annotations

from http import HTTPStatus

import pytest

from streams.control import is_loopback, refusal, retake, shard_report
from streams.shard import ShardState
from tests.support.dispatch_fakes import log
from tests.support.records import FakeRecord
from tests.support.shard_scripts import SHARD, bodies, logged, made, numbers, passes, play
from tests.support.worker_rig import WorkerRig


@pytest.mark.contract("FAN-10", "TAKE-01", "TAKE-02")
def test_a_failed_shard_goes_on_at_w_plus_1_once_the_poison_is_gone() -> None:
    async def script(worker: WorkerRig) -> None:
        await worker.run(limit_s=5)
        failed = worker.shard(SHARD)
        assert failed.state is ShardState.FAILED
        worker.durable.dispatch[SHARD][3] = log([made(4)], first=3)[0]

        await retake(worker.materializer, SHARD)

        assert worker.shard(SHARD) is not failed
        await worker.run(limit_s=20)
        report = shard_report(worker.shard(SHARD))
        assert report["state"] == "running"
        assert report["failure"] is None
        assert report["restarts"] == 1
        assert report["table_w"] == report["store_w"] == [5, 5]
        assert report["lease_term"] > failed.position.lease_term
        assert worker.repositions == [(SHARD, 3)]
        assert await numbers(worker.durable) == bodies(6)

    play(
        script, [*logged(3), FakeRecord(3, None, b"\x01damaged"), *log([made(5), made(6)], first=4)]
    )


@pytest.mark.contract("TAKE-01", "FAN-10")
def test_a_shard_that_runs_may_be_taken_again_and_loses_nothing() -> None:
    async def script(worker: WorkerRig) -> None:
        for _ in range(3):
            worker.feed(SHARD, records=2)
        await passes()
        before = worker.shard(SHARD).position.lease_term
        await retake(worker.materializer, SHARD)
        assert worker.held == {SHARD}  # nothing is read for nobody
        worker.held.clear()
        worker.feed(SHARD, records=2)  # a page on its way while the shard is being taken
        await worker.run(limit_s=20)
        assert worker.shard(SHARD).position.lease_term > before
        assert await numbers(worker.durable) == bodies(12)

    durable = play(script, logged(12))
    assert durable.done(SHARD)


def test_a_shard_that_still_fails_says_so_again() -> None:
    async def script(worker: WorkerRig) -> None:
        await worker.run(limit_s=5)
        await retake(worker.materializer, SHARD)
        await worker.run(limit_s=5)
        report = shard_report(worker.shard(SHARD))
        assert report["state"] == "failed"
        assert "RecordError" in str(report["failure"])
        assert report["table_w"] == [2, 2]

    play(script, [*logged(3), FakeRecord(3, None, b"\x01damaged")])


def test_a_shard_that_is_not_held_cannot_be_taken() -> None:
    async def script(worker: WorkerRig) -> None:
        with pytest.raises(KeyError):
            await retake(worker.materializer, SHARD + 1)

    play(script, logged(1))


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("10.0.0.1", False),
        ("192.168.1.1", False),
        ("localhost.example", False),
        ("", False),
        (None, False),
    ],
)
def test_only_this_machine_counts(address: str | None, *, local: bool) -> None:
    assert is_loopback(address) is local


@pytest.mark.parametrize(
    ("token", "peer", "header", "status"),
    [
        ("secret", "127.0.0.1", "Bearer secret", None),
        ("secret", "10.0.0.1", "Bearer secret", HTTPStatus.FORBIDDEN),
        ("secret", "127.0.0.1", "Bearer other", HTTPStatus.UNAUTHORIZED),
        ("secret", "127.0.0.1", None, HTTPStatus.UNAUTHORIZED),
        ("", "127.0.0.1", "Bearer ", HTTPStatus.FORBIDDEN),
        ("", "127.0.0.1", None, HTTPStatus.FORBIDDEN),
    ],
)
def test_orders_need_the_token_and_a_token_is_never_empty(
    token: str, peer: str, header: str | None, status: HTTPStatus | None
) -> None:
    found = refusal(token, peer, header)
    assert (None if found is None else found[0]) == status
