"""The demo's conversation on a real stack."""

from __future__ import annotations

import pytest

from ops.conversation import Row, play
from ops.demo import tokens_of
from tests.conftest import StartStack


@pytest.mark.contract("CUR-06", "CUR-07", "EVT-11", "COM-04", "GW-09")
async def test_conversation_comes_out_as_written_on_real_servers(start_stack: StartStack) -> None:
    stack = await start_stack()
    host, _, port = stack.addresses["gateway-0"].rpartition(":")
    rows: list[Row] = []
    secret = stack.settings.token_secret.get_secret_value()
    await play((host, int(port)), tokens_of(secret), rows.append)
    assert len({row.message_id for row in rows if row.message_id is not None}) == 6
