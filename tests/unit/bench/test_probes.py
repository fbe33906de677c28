from __future__ import annotations

import asyncio
import os
import socket

import pytest

from bench.listeners import listening_inodes, pids_of_listeners
from bench.probes import Snapshot, busy_s, compare, http_json, stages_in
from bench.target import group_of


def snapshot(
    cpu_s: dict[str, float] | None = None,
    stages: list[dict[str, dict[str, int]]] | None = None,
    counts: tuple[int, int, int] = (0, 0, 0),
) -> Snapshot:
    return Snapshot(cpu_s or {}, 0.0, stages or [], *counts)


def counted(pages: int, records: int) -> dict[str, int]:
    return {"pages": pages, "records": records}


def test_processes_are_added_up_by_group() -> None:
    begin = snapshot({"gateway-0": 1.0, "mailbox-0": 5.0, "commit-0": 2.0, "kafka": 9.0})
    end = snapshot({"gateway-0": 1.5, "mailbox-0": 5.25, "commit-0": 2.5, "kafka": 10.0})
    figures = compare(begin, end)
    assert figures.server_cpu_s == {"broker": 1.0, "gateway": 0.5, "redis": 0.75}


def test_restarted_process_counts_from_its_start() -> None:
    begin = snapshot({"worker-0": 50.0}, [{"fanout": counted(900, 9000)}])
    end = snapshot({"worker-0": 2.0}, [{"fanout": counted(10, 40)}])
    figures = compare(begin, end)
    assert figures.server_cpu_s == {"worker": 2.0}
    assert figures.page_records == {"fanout": 4.0}


def test_new_process_counts_whole_and_a_gone_one_not_at_all() -> None:
    figures = compare(snapshot({"worker-0": 50.0}), snapshot({"worker-1": 3.0}))
    assert figures.server_cpu_s == {"worker": 3.0}


def test_pages_of_all_processes_make_one_mean_a_stage() -> None:
    begin = snapshot(stages=[{"commit": counted(10, 20)}, {"commit": counted(0, 0)}])
    end = snapshot(
        stages=[{"commit": counted(20, 60)}, {"commit": counted(10, 10), "mark": counted(5, 15)}]
    )
    figures = compare(begin, end)
    assert figures.page_records == {"commit": 2.5, "mark": 3.0}
    assert figures.pages == {"commit": 20, "mark": 5}


def test_stage_that_did_nothing_is_left_out() -> None:
    same = snapshot(stages=[{"idle": counted(7, 7)}])
    assert compare(same, same).page_records == {}


def test_counters_are_differences() -> None:
    figures = compare(snapshot(counts=(100, 5000, 40)), snapshot(counts=(130, 4000, 90)))
    assert (figures.evalsha_calls, figures.redis_bytes, figures.dispatches) == (30, -1000, 50)


@pytest.mark.parametrize(
    ("process", "group"),
    [
        ("gateway-0", "gateway"),
        ("worker-12", "worker"),
        ("mailbox-0", "redis"),
        ("commit-1", "redis"),
        ("kafka", "broker"),
        ("scylla-0", "scylla-0"),
    ],
)
def test_every_process_has_its_group(process: str, group: str) -> None:
    assert group_of(process) == group


def test_page_counters_are_found_beside_other_things() -> None:
    stages = {"fanout": counted(1, 2)}
    assert stages_in({"pages": stages}) == stages
    assert stages_in({"pages": stages, "shards": {"0": {"state": "running"}}}) == stages
    assert stages_in({"uptime": 5}) == {}
    assert stages_in({}) == {}


def test_busy_time_of_the_machine_leaves_idle_and_waiting_out() -> None:
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    fields = [100, 10, 50, 7000, 900, 5, 5, 30, 0, 0]
    line = "cpu  " + " ".join(str(n * ticks_per_s) for n in fields)
    assert busy_s(line + "\ncpu0 1 2 3") == 200.0


TABLE = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1
   1: 0100007F:1F91 0100007F:C001 01 00000000:00000000 00:00000000 00000000     0        0 4712 1
"""


def test_only_listening_sockets_are_read() -> None:
    assert listening_inodes(TABLE) == {4711: 8080}


def test_own_listening_port_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert pids_of_listeners([port, 1]) == {port: os.getpid()}


async def serve(reply: bytes) -> tuple[asyncio.Server, int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


async def test_json_page_is_read() -> None:
    server, port = await serve(b'HTTP/1.1 200 OK\r\nA: b\r\n\r\n{"fanout": 1}')
    async with server:
        assert await http_json("127.0.0.1", port, "/stats") == {"fanout": 1}


async def test_page_that_is_not_served_is_empty() -> None:
    server, port = await serve(b"HTTP/1.1 404 Not Found\r\n\r\nnothing")
    async with server:
        assert await http_json("127.0.0.1", port, "/stats") == {}
