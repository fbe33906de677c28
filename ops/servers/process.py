"""One child process under our care: its log file, its readiness, an orderly stop, a hard kill.

A child runs in a session of its own, so that Ctrl-C reaches only the parent, which then stops the
children in order. It is killed when the thread that started it ends (`setpriv --pdeathsig`), so a
parent that is killed leaves nothing behind; start children from the main thread.

Processes are plain `Popen` objects and belong to no event loop: a test session may start one and
each test's own loop may wait for it.
"""

import asyncio
import shutil
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

__all__ = ["ManagedProcess", "ProcessFailedError", "log_tail"]

_POLL_S = 0.02
_LOG_TAIL_LINES = 25


class ProcessFailedError(RuntimeError):
    """A child did not start, did not become ready in time, or ended by itself."""


def log_tail(path: Path, lines: int = _LOG_TAIL_LINES) -> str:
    """Return the last lines of a log file, or a note that there is none."""
    if not path.exists():
        return "(no log)"
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


class ManagedProcess:
    """A named child process that can be started, stopped, killed and started again.

    `argv` is what to run, `env` its whole environment (None: ours), `log_path` receives both its
    output streams, appended over restarts.
    """

    __slots__ = ("_popen", "argv", "env", "log_path", "name")

    def __init__(
        self, name: str, argv: Sequence[str], log_path: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.argv = list(argv)
        self.log_path = log_path
        self.env = env
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id while the child runs, otherwise None."""
        return self._popen.pid if self._popen is not None and self.running else None

    @property
    def running(self) -> bool:
        """Whether the child was started and has not ended."""
        return self._popen is not None and self._popen.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The exit code of the last run (negative: the signal), None before it or during it."""
        return None if self._popen is None else self._popen.poll()

    def spawn(self) -> None:
        """Start the child; returns at once. Raises ProcessFailedError when it runs already."""
        if self.running:
            raise ProcessFailedError(f"{self.name} runs already (pid {self.pid})")
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        setpriv = shutil.which("setpriv")
        with_parent = [setpriv, "--pdeathsig", "KILL"] if setpriv else []
        with self.log_path.open("ab") as log:
            self._popen = subprocess.Popen(
                [*with_parent, *self.argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.env,
                start_new_session=True,
            )

    async def wait_ready(self, probe: Callable[[], Awaitable[bool]], timeout_s: float) -> None:
        """Ask `probe` until it says yes.

        Raises ProcessFailedError, with the end of the child's log, when the child ends first or
        `timeout_s` runs out; the child is then stopped.
        """
        deadline_s = time.monotonic() + timeout_s
        while not await probe():
            if not self.running:
                raise self.failure(f"ended with {self.exit_code} before it was ready")
            if time.monotonic() > deadline_s:
                self.kill()
                raise self.failure(f"was not ready in {timeout_s:g} s")
            await asyncio.sleep(_POLL_S)

    async def wait_end(self, timeout_s: float) -> int:
        """Wait until the child has ended and return its exit code.

        Raises ProcessFailedError, and kills the child, when `timeout_s` runs out.
        """
        deadline_s = time.monotonic() + timeout_s
        while (code := self.exit_code) is None:
            if time.monotonic() > deadline_s:
                self.kill()
                raise self.failure(f"did not end in {timeout_s:g} s and was killed")
            await asyncio.sleep(_POLL_S)
        return code

    async def stop(self, timeout_s: float = 10.0, sig: signal.Signals = signal.SIGTERM) -> None:
        """Ask the child to end and wait for it; kill it when `timeout_s` runs out."""
        if self._popen is not None and self.running:
            self._popen.send_signal(sig)
            await self.wait_end(timeout_s)

    def kill(self) -> None:
        """End the child with SIGKILL, as a crash would, and reap it."""
        if self._popen is not None and self.running:
            self._popen.kill()
            self._popen.wait()

    def failure(self, what: str) -> ProcessFailedError:
        """Build the error that tells what the child did and how its log ends."""
        return ProcessFailedError(
            f"{self.name} {what}; {self.log_path}:\n{log_tail(self.log_path)}"
        )
