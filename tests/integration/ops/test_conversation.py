"""The demo's script, played against the gateway's protocol core: it passes as written and notices what is not."""

from __future__ import annotations

import dataclasses

import pytest

from clients.config import ClientConfig
from gateway.ports import CommitRequest, CommittedMessage
from ops.conversation import Mismatch, Row, play
from ops.demo import render
from tests.support.gateway_pair import DoublingWorld, World
from tests.support.tcp_gateway import TcpGateway

FAST = ClientConfig(ack_timeout_s=0.1, detection_limit_s=5.0, pull_debounce_s=0.05)


def token_of(user: int, _device_id: bytes) -> str:
    return f"{user}"


async def run(world: World, config: ClientConfig = FAST) -> list[Row]:
    rows: list[Row] = []
    async with TcpGateway(world).serving() as gateway:
        await play(gateway.address, token_of, rows.append, config)
    return rows


async def test_conversation_comes_out_as_written_and_shows_every_step() -> None:
    rows = await run(World())
    said = [row for row in rows if row.message_id is not None]
    assert len({row.message_id for row in said}) == 6
    assert all(row.latency_ms is not None for row in said)
    arrived = [row for row in rows if row.mailbox_seq is not None]
    assert {row.who for row in arrived} == {"alice/phone", "bob/phone", "alice/laptop"}
    assert any("SEND_ACK was lost" in row.what for row in rows)
    assert "duplicate" in rows[-1].what
    assert all("conversation_seq" in render(row) for row in said)


async def expect_mismatch(world: World, text: str) -> None:
    with pytest.raises(Mismatch, match=text):
        await run(world)


class Faulty(World):
    """A gateway that answers a repeated message with new coordinates."""

    def commit(self, request: CommitRequest) -> CommittedMessage:
        committed = super().commit(request)
        if committed.duplicate:
            return dataclasses.replace(committed, conversation_seq=99)
        return committed


async def test_other_coordinates_for_a_retry_are_a_mismatch() -> None:
    await expect_mismatch(Faulty(), "other coordinates")


class Forgetful(World):
    """A gateway that commits a repeated message again."""

    def commit(self, request: CommitRequest) -> CommittedMessage:
        self.commits.pop(request.client_message_id, None)
        return super().commit(request)


async def test_message_that_arrives_twice_is_a_mismatch() -> None:
    await expect_mismatch(Forgetful(), "other coordinates|entries for")


async def test_extra_entry_at_any_device_is_a_mismatch() -> None:
    world = DoublingWorld()
    world.period = 6
    await expect_mismatch(world, "entries for 6")


class Swapped(World):
    """A gateway that writes mailboxes in another order than the conversation's."""

    def deliver(self, user: int, request: CommitRequest, committed: CommittedMessage) -> None:
        if len(self.commits) == 4:
            committed = dataclasses.replace(committed, message_id=bytes(16))
        super().deliver(user, request, committed)


async def test_entry_with_other_coordinates_than_its_ack_is_a_mismatch() -> None:
    await expect_mismatch(Swapped(), "other coordinates than its ACK")
