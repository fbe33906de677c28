"""Fixtures that every test may use. Servers start once a session, and only when a test asks.

Isolation: each test that touches a server has an `app_id` of its own, which prefixes every topic,
table and key; nothing is ever flushed.
"""

import inspect
import itertools
import os
import secrets
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from ops.plan import ServerAddresses, StackOptions
from ops.servers.ports import LOOPBACK
from ops.stack import Stack, settings_of
from ops.topics import create_topics
from schemas.catalogue import CATALOGUE
from schemas.config import Settings, broker_choice
from schemas.metrics import counter
from schemas.topics import topic_specs
from tests.support.leaks import environment, left_tasks, left_threads
from tests.support.servers import RedisUrls, run_broker, run_redis

_KEPT = "QIM_TEST_BROKER"
_SECRET = "a test's secret, long enough for HMAC-SHA256"
_numbers = itertools.count(1)
_session = secrets.token_hex(3)


def pytest_configure() -> None:
    """Keep the developer's own QIM_ settings out of the tests."""
    for name in [name for name in os.environ if name.startswith("QIM_") and name != _KEPT]:
        del os.environ[name]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Watch the tasks of every asynchronous test; first in, so last out."""
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.function):
            item.fixturenames.insert(0, "leaves_no_task")


@pytest.fixture(autouse=True)
def _leaves_nothing() -> Iterator[None]:
    """Fail a test that leaves threads behind or changes the environment."""
    threads, variables = set(threading.enumerate()), environment()
    yield
    assert left_threads(threads) == []
    assert environment() == variables


@pytest.fixture(autouse=True)
def _promises_are_kept_again() -> Iterator[None]:
    """Forget what a test broke on purpose: always-zero metrics belong to the process, and later tests look at them."""
    yield
    for metric in CATALOGUE.values():
        if metric.always_zero:
            counter(metric.name).value = 0


@pytest.fixture
async def leaves_no_task() -> AsyncIterator[None]:
    """Fail an asynchronous test that leaves tasks behind."""
    yield
    assert await left_tasks() == []


@pytest.fixture(scope="session")
def redis_urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisUrls]:
    """Two mailbox and two commit Redis instances."""
    with run_redis(broker_choice(), tmp_path_factory.mktemp("redis")) as urls:
        yield urls


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Kafka-API broker; its bootstrap address."""
    with run_broker(broker_choice(), tmp_path_factory.mktemp("kafka")) as address:
        yield address


@pytest.fixture
def app_id() -> str:
    """A name that no other test of this or any other session uses."""
    return f"t{next(_numbers)}-{_session}"


MakeSettings = Callable[..., Settings]


@pytest.fixture
def make_settings(app_id: str, tmp_path: Path) -> MakeSettings:
    """Build settings of this test's own system; keyword arguments are fields, as text."""

    def make(**fields: str) -> Settings:
        own = {
            "app_id": app_id,
            "data_dir": str(tmp_path / "data"),
            "token_secret": _SECRET,
            "cursor_secret": _SECRET,
            "gateway_listen": f"{LOOPBACK}:0",
            "gateway_web_port": "0",
            "web_port": "0",
        }
        return settings_of(own | fields)

    return make


@pytest.fixture
def redis_settings(make_settings: MakeSettings, redis_urls: RedisUrls) -> Settings:
    """Settings with real Redis instances and no broker."""
    return make_settings(
        mailbox_redis=",".join(redis_urls.mailbox), commit_redis=",".join(redis_urls.commit)
    )


@pytest.fixture
async def settings(redis_settings: Settings, broker: str) -> Settings:
    """Settings of a system of its own on real servers, its topics created."""
    complete = redis_settings.model_copy(update={"broker": broker})
    await create_topics(broker, topic_specs(complete))
    return complete


StartStack = Callable[..., Awaitable[Stack]]


@pytest.fixture
async def start_stack(
    redis_urls: RedisUrls, broker: str, app_id: str, tmp_path: Path
) -> AsyncIterator[StartStack]:
    """Start workers and gateways of this test's own system on the session's servers.

    `await start_stack(workers=2, environment={...})` takes the counts of `StackOptions`. A test that
    kills a server makes a `Stack` with servers of its own instead.
    """
    servers = ServerAddresses(broker, redis_urls.mailbox, redis_urls.commit)
    started: list[Stack] = []

    async def start(*, environment: dict[str, str] | None = None, **counts: int) -> Stack:
        options = StackOptions(app_id=app_id, **counts)
        folder = tmp_path / f"stack-{len(started)}"
        stack = Stack(folder, options, servers=servers, environment=environment)
        await stack.start()
        started.append(stack)
        return stack

    yield start
    for stack in started:
        await stack.stop()
