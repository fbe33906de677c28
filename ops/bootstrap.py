"""`make setup`: the environment from the lock, then the servers' files.

Runs with the machine's own Python and the standard library alone, from the root of the checkout.
Each step leaves a stamp, so a second run only looks. `--environment-only` leaves the servers out
(for a machine where Docker or other hosts provide them).
"""

import hashlib
import subprocess
import sys
import time
from pathlib import Path

from ops.servers.provision import ProvisionError, apt_install, install_servers

__all__ = ["main"]

_ROOT = Path(__file__).resolve().parents[1]
_VENV = _ROOT / ".venv"
_STAMP = _VENV / ".qim-installed"
_MINIMUM_PYTHON = (3, 11)


def _say(text: str) -> None:
    print(f"setup: {text}", flush=True)


def _run(*argv: str) -> None:
    done = subprocess.run(argv, cwd=_ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ProvisionError(f"{' '.join(argv)} failed:\n{done.stdout}{done.stderr}")


def _wanted() -> str:
    """Identify what the environment must hold: the lock and the project's own metadata."""
    digest = hashlib.sha256()
    for name in ("requirements.lock", "pyproject.toml"):
        digest.update((_ROOT / name).read_bytes())
    return digest.hexdigest()


def _make_environment() -> None:
    if _STAMP.is_file() and _STAMP.read_text() == _wanted():
        return
    if sys.version_info < _MINIMUM_PYTHON:
        raise ProvisionError("Python 3.11 or newer is needed: make setup PYTHON=python3.11")
    python = str(_VENV / "bin" / "python")
    if not (_VENV / "bin" / "pip").exists():  # venv without its parts leaves a python behind
        _say("creating .venv")
        try:
            _run(sys.executable, "-m", "venv", str(_VENV))
        except ProvisionError:  # Debian ships venv's parts in a package of their own.
            apt_install(["python3-venv"], _say)
            _run(sys.executable, "-m", "venv", "--clear", str(_VENV))
    _say("installing the locked packages")
    pip = (python, "-m", "pip", "--disable-pip-version-check", "install", "-q")
    _run(*pip, "--require-hashes", "-r", "requirements.lock")
    _run(*pip, "--no-deps", "--no-build-isolation", "-e", ".")
    _STAMP.write_text(_wanted())


def main(argv: list[str]) -> int:
    """Prepare the machine; returns 0, or 1 with the reason on standard error."""
    started_s = time.monotonic()
    try:
        _make_environment()
        if "--environment-only" not in argv:
            install_servers(_say)
    except ProvisionError as problem:
        print(f"setup: {problem}", file=sys.stderr)
        return 1
    took_s = time.monotonic() - started_s
    _say(f"ready ({took_s:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
