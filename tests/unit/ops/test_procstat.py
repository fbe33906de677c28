import os
import time

from ops.procstat import CpuMeter, parse_stat, read_stat

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def test_parse_reads_user_and_system_time_behind_a_hostile_name() -> None:
    name = "evil) S 1 (name"
    line = f"42 ({name}) S 1 42 42 0 -1 4194560 9 0 0 0 {7 * TICKS_PER_S} {3 * TICKS_PER_S} 0 0 20 0 5 0 100 9999 12"
    stat = parse_stat(line)
    assert stat.cpu_s == 10.0
    assert stat.rss_bytes == 12 * PAGE_BYTES


def test_read_of_a_process_that_is_gone_is_none() -> None:
    assert read_stat(2**22 + 1) is None


def test_meter_counts_only_what_was_used_since() -> None:
    own = {"me": os.getpid(), "nobody": 2**22 + 1}
    meter = CpuMeter(own)
    deadline_s = time.process_time() + 0.05
    while time.process_time() < deadline_s:
        pass
    used = meter.used_s(own)
    assert set(used) == {"me"}
    assert 0.02 <= used["me"] < 1.0


def test_meter_counts_a_restarted_process_from_its_start() -> None:
    meter = CpuMeter({"me": 2**22 + 1})
    stat = read_stat(os.getpid())
    assert stat is not None
    assert meter.used_s({"me": os.getpid()})["me"] >= stat.cpu_s
