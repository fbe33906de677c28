import pytest

from gateway.asking import ask
from schemas.errors import ErrorCode, QimError, StoreFault


async def answers(values: list[int | QimError]) -> list[int | QimError]:
    return values


async def failing(error: Exception) -> list[int | QimError]:
    raise error


async def test_results_pass_through_with_their_own_errors() -> None:
    own = StoreFault("one mailbox is damaged")
    assert await ask("scan", 2, answers([1, own])) == [1, own]


async def test_a_failed_call_is_everybodys_answer() -> None:
    error = StoreFault("away")
    assert await ask("scan", 3, failing(error)) == [error] * 3


@pytest.mark.contract("REG-48")
async def test_reg_48_a_defect_is_logged_with_its_cause_and_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    results = await ask("scan", 2, failing(KeyError("cause")))
    assert [r.code for r in results if isinstance(r, QimError)] == [ErrorCode.INTERNAL] * 2
    assert "KeyError: 'cause'" in caplog.text
    assert caplog.records[0].levelname == "ERROR"


async def test_a_wrong_number_of_answers_is_a_failure_for_all() -> None:
    results = await ask("scan", 2, answers([1]))
    assert [r.code for r in results if isinstance(r, QimError)] == [ErrorCode.INTERNAL] * 2
