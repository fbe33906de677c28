"""Find the servers' files, and install what is missing.

Redis is Debian's `redis-server`, Kafka is a folder of jars that Maven copies by coordinate
(`kafka-pom.xml` pins them). Both are found again by a look at the disk, so a second run costs
milliseconds. Standard library only: `make setup` runs this before there is an environment.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = [
    "MINIMUM_JAVA",
    "MINIMUM_REDIS",
    "ProvisionError",
    "apt_install",
    "find_java",
    "find_redis_server",
    "install_servers",
    "java_major",
    "kafka_jars",
    "redis_version",
]

MINIMUM_REDIS = (7, 0, 0)  # REDIS-01
MINIMUM_JAVA = 17  # Kafka 4 does not start below it.

_HERE = Path(__file__).resolve().parent
_CACHE = _HERE.parents[1] / ".servers"
_KAFKA_POM = _HERE / "kafka-pom.xml"

Say = Callable[[str], None]


class ProvisionError(RuntimeError):
    """A server's files are missing and cannot be had; the message names the action."""


def redis_version(text: str) -> tuple[int, int, int] | None:
    """Read the version from what `redis-server --version` prints; None when there is none."""
    found = re.search(r"\bv=(\d+)\.(\d+)\.(\d+)\b", text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def java_major(text: str) -> int | None:
    """Read the major version from what `java -version` prints; None when there is none."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if not found:
        return None
    major = int(found[1])
    return int(found[2]) if major == 1 and found[2] else major  # "1.8" means 8


def _output(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def find_redis_server() -> str:
    """Return the path of a Redis server that is new enough.

    Raises ProvisionError when there is none (REDIS-01 asks for 7.0.0).
    """
    path = shutil.which("redis-server")
    if path is None:
        raise ProvisionError("redis-server is not installed: run `make setup`")
    version = redis_version(_output(path, "--version"))
    if version is None or version < MINIMUM_REDIS:
        raise ProvisionError(f"{path} is {version}, Redis 7.0.0 or newer is needed")
    return path


def find_java() -> str:
    """Return the path of a Java runtime that is new enough for Kafka 4, or raise ProvisionError."""
    path = shutil.which("java")
    if path is None:
        raise ProvisionError("java is not installed: run `make setup`")
    major = java_major(_output(path, "-version"))
    if major is None or major < MINIMUM_JAVA:
        raise ProvisionError(f"{path} is Java {major}, {MINIMUM_JAVA} or newer is needed")
    return path


def _jars_folder() -> Path:
    """Return the folder named after the pom's content: another pin is another folder."""
    return _CACHE / f"kafka-{hashlib.sha256(_KAFKA_POM.read_bytes()).hexdigest()[:12]}"


def kafka_jars() -> Path:
    """Return the folder of Kafka's jars, or raise ProvisionError when it was not made yet."""
    folder = _jars_folder()
    if not folder.is_dir():
        raise ProvisionError("Kafka's jars are missing: run `make setup`")
    return folder


def apt_install(packages: Sequence[str], say: Say) -> None:
    """Install Debian packages, where we may; otherwise say which ones are needed."""
    names = " ".join(packages)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ProvisionError(f"please install: {names} (apt-get install {names})")
    say(f"installing {names}")
    # Only these two commands need it: no questions, and no service left running on its own port.
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
        done = subprocess.run(
            ["apt-get", "-qq", *command], env=quiet, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise ProvisionError(f"apt-get {command[0]} failed:\n{done.stdout}{done.stderr}")


@contextmanager
def _cache_lock() -> Iterator[None]:
    """Let one process at a time fill the cache."""
    _CACHE.mkdir(exist_ok=True)
    with (_CACHE / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _copy_jars(say: Say) -> None:
    folder = _jars_folder()
    with _cache_lock():
        if folder.is_dir():
            return
        if shutil.which("mvn") is None:
            apt_install(["maven"], say)
        say("copying Kafka's jars")
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        goal = "dependency:copy-dependencies"
        options = [f"-DoutputDirectory={partial}", "-DincludeScope=runtime"]
        done = subprocess.run(
            ["mvn", "-q", "-B", "-f", str(_KAFKA_POM), goal, *options],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise ProvisionError(f"Maven could not copy Kafka's jars:\n{done.stdout}{done.stderr}")
        partial.rename(folder)


def _ensure(find: Callable[[], str], package: str, say: Say) -> None:
    try:
        find()
    except ProvisionError:
        apt_install([package], say)
        find()


def install_servers(say: Say = print) -> None:
    """Make Redis, Java and Kafka's jars present; does nothing where they are.

    Raises ProvisionError with the missing package's name where we may not install it.
    """
    _ensure(find_redis_server, "redis-server", say)
    _ensure(find_java, "openjdk-17-jre-headless", say)
    _copy_jars(say)
