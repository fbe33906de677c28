"""Children under care: started, ready, stopped, killed, gone with their parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ops.servers.process import ManagedProcess, ProcessFailedError

POLITE = "import time; print('up', flush=True); time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


def python(tmp_path: Path, program: str, env: dict[str, str] | None = None) -> ManagedProcess:
    return ManagedProcess("child", [sys.executable, "-c", program], tmp_path / "child.log", env)


async def start(process: ManagedProcess) -> None:
    async def is_up() -> bool:
        return "up" in process.log_path.read_text()

    process.spawn()
    await process.wait_ready(is_up, 10.0)


def state_of(process: ManagedProcess) -> tuple[bool, int | None, int | None]:
    return process.running, process.pid, process.exit_code


async def test_stop_ends_the_child_and_it_can_start_again(tmp_path: Path) -> None:
    process = python(tmp_path, POLITE)
    assert state_of(process) == (False, None, None)
    await start(process)
    first = process.pid
    await process.stop()
    assert state_of(process) == (False, None, -signal.SIGTERM)
    await start(process)
    assert process.pid not in {None, first}
    process.kill()
    assert process.exit_code == -signal.SIGKILL


async def test_second_spawn_is_refused(tmp_path: Path) -> None:
    process = python(tmp_path, POLITE)
    await start(process)
    with pytest.raises(ProcessFailedError, match="runs already"):
        process.spawn()
    process.kill()


async def test_stop_of_a_stubborn_child_kills_it_and_says_so(tmp_path: Path) -> None:
    process = python(tmp_path, STUBBORN)
    await start(process)
    with pytest.raises(ProcessFailedError, match=r"did not end in 0\.1 s"):
        await process.stop(timeout_s=0.1)
    assert not process.running


async def test_child_that_ends_before_it_is_ready_shows_its_log(tmp_path: Path) -> None:
    async def never() -> bool:
        return False

    process = python(tmp_path, "import sys; sys.exit('no disk left')")
    process.spawn()
    with pytest.raises(ProcessFailedError, match=r"(?s)ended with 1 .*no disk left"):
        await process.wait_ready(never, 10.0)


async def test_child_that_is_never_ready_is_killed(tmp_path: Path) -> None:
    async def never() -> bool:
        return False

    process = python(tmp_path, POLITE)
    process.spawn()
    with pytest.raises(ProcessFailedError, match=r"not ready in 0\.1 s"):
        await process.wait_ready(never, 0.1)
    assert not process.running


async def test_child_gets_the_environment_it_was_given(tmp_path: Path) -> None:
    process = python(tmp_path, "import os; print(sorted(os.environ))", {"QIM_SLOTS": "1"})
    process.spawn()
    assert await process.wait_end(10.0) == 0
    assert "['QIM_SLOTS']" in process.log_path.read_text().replace("'LC_CTYPE', ", "")


PARENT = """
import sys
import time
from pathlib import Path
from ops.servers.process import ManagedProcess
child = ManagedProcess("child", [sys.executable, "-c", "import time; time.sleep(60)"], Path(sys.argv[1]))
child.spawn()
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_child_dies_with_its_killed_parent(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "child.log")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).resolve().parents[3],
    )
    with parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        os.kill(child, 0)
        parent.kill()
    deadline_s = time.monotonic() + 5.0
    while is_alive(child) and time.monotonic() < deadline_s:
        time.sleep(0.005)
    assert not is_alive(child)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended and waits to be reaped by init does not."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
