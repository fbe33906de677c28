"""Each override of ours still overrides something, with the signature that Faust calls it by."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import faust
import pytest
from faust.stores.rocksdb import Store
from faust.types import TP, Message
from mode.services import ServiceTask
from mode.threads import ServiceThread

from streams.app import QimWorker
from streams.fetching import InlineConsumer
from streams.ownership import StaticAssignor
from streams.pages import PagedTopic
from streams.recovery import BatchRecovery, BatchTableManager
from streams.transport import QimConsumer, QimProducer, Transport
from tests.support.tables import FakeKafkaProducer, FakeTable, bare_store, page_writer

# Methods of ours that Faust calls. A name that the base does not have would never be called: the override is dead.
OVERRIDES: dict[type[Any], tuple[str, ...]] = {
    QimConsumer: (
        "_new_consumer_thread",
        "pause_partitions",
        "resume_partitions",
        "on_buffer_full",
        "on_buffer_drop",
        "on_partitions_assigned",
        "on_partitions_revoked",
        "perform_seek",
        "_drain_messages",
        "ack",
        "_new_offset",
        "wait_empty",
        "verify_event_path",
        "create_topic",
    ),
    InlineConsumer: (
        "maybe_start",
        "start",
        "stop",
        "on_stop",
        "crash",
        "_stopped_set",
        "set_shutdown",
        "_stop_children",
        "_stop_futures",
        "_stop_exit_stacks",
        "call_thread",
        "_thread_keepalive",
        "_create_worker_consumer",
        "subscribe",
        "topic_partitions",
        "_highwaters",
        "_seek_wait",
        "verify_event_path",
    ),
    BatchRecovery: ("_seek_offsets", "_wait", "_slurp_changelogs"),
    BatchTableManager: ("recovery", "on_start"),
    QimProducer: ("_settings_extra", "create_topic"),
    PagedTopic: ("decode",),
    QimWorker: ("on_setup_root_logger",),
    Transport: ("Consumer", "Producer"),
}
CASES = [(owner, name) for owner, names in OVERRIDES.items() for name in names]


def function_of(member: Any) -> Callable[..., Any] | None:
    if isinstance(member, ServiceTask):
        return None
    if isinstance(member, property):
        return None
    unwrapped = inspect.unwrap(member)
    return unwrapped if inspect.isfunction(unwrapped) else None


@pytest.mark.parametrize(
    ("owner", "name"), CASES, ids=[f"{owner.__name__}.{name}" for owner, name in CASES]
)
def test_override_replaces_a_member_of_the_same_kind_and_signature(
    owner: type[Any], name: str
) -> None:
    ours = vars(owner)[name]
    theirs = next(
        (vars(base)[name] for base in owner.__mro__[1:] if name in vars(base)),
        None,
    )
    assert theirs is not None, f"Faust has no {name} any more"
    assert isinstance(ours, ServiceTask) == isinstance(theirs, ServiceTask)
    assert isinstance(ours, property) == isinstance(theirs, property)
    new, old = function_of(ours), function_of(theirs)
    if new is None or old is None:
        return
    wanted = inspect.signature(old).parameters
    given = inspect.signature(new).parameters
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in given.values()):
        return
    assert list(given)[: len(wanted)] == list(wanted)[: len(given)]
    assert len(given) == len(wanted)


def test_every_threaded_method_of_the_consumer_is_undone() -> None:
    kept = {
        # harmless as they are: never called without a thread, or the same in a loop
        "__init__",
        "on_thread_started",
        "on_thread_stop",
        "_new_shutdown_event",
        "_keepalive2",
        "_wakeup_timer_in_thread",
        "_start_thread",
        "_shutdown_thread",
        "_gather_remaining_tasks",
        "_serve",
        "on_crash",
    }
    threaded = {
        name
        for name, member in vars(ServiceThread).items()
        if inspect.isfunction(member) or isinstance(member, ServiceTask)
    }
    assert threaded - kept == threaded & set(OVERRIDES[InlineConsumer])


def test_perform_seek_comes_after_the_partitions_are_resumed() -> None:
    # Which is why they have a gate of their own. Should Faust turn the order round, the gate is still right.
    source = inspect.getsource(BatchRecovery.on_recovery_completed)
    assert source.index("resume_partitions") < source.index("perform_seek")


def test_wait_empty_runs_before_the_tables_close() -> None:
    source = inspect.getsource(faust.App._stop_consumer)
    assert source.index("_consumer_wait_empty") < source.index("tables.stop")


def test_url_scheme_finds_our_transport() -> None:
    assert faust.transport.by_url("qim://127.0.0.1:9092") is Transport


def test_assignor_answers_with_the_plan_it_took() -> None:
    class App:
        tables: ClassVar[dict[str, Any]] = {}

    assignor = StaticAssignor(App())  # type: ignore[arg-type]
    assignor.take({"b": [1, 3], "a": [1]})

    assert assignor.assigned_actives() == {TP("b", 1), TP("b", 3), TP("a", 1)}
    assert assignor.assigned_standbys() == set()
    assert (assignor.group_for_topic("a"), assignor.group_for_topic("b")) == (0, 1)


async def test_page_write_equals_what_faust_itself_restores(tmp_path: Path) -> None:
    """The RocksDB content after a page write is that of Faust's own apply_changelog_batch."""
    rows: list[tuple[bytes, bytes | None]] = [
        (b"a", b"1"),
        (b"b", b"2"),
        (b"a", None),
        (b"c", b"\x00\xff"),
    ]
    table, theirs = FakeTable(tmp_path / "ours"), bare_store(tmp_path / "theirs")
    writer = page_writer(FakeKafkaProducer(first_offset=41))

    await writer.write(table, 0, rows)
    theirs.apply_changelog_batch(
        [event(41 + number, key, value) for number, (key, value) in enumerate(rows)],
        lambda key: key,
        lambda value: value,
    )

    assert content(table.data) == content(theirs)
    assert table.data.persisted_offset(TP("changelog", 0)) == 44


def event(offset: int, key: bytes, value: bytes | None) -> Any:
    class Event:
        """A changelog event as Faust's recovery has it."""

        message = Message(
            "changelog", 0, offset, 0.0, 0, None, key, value, None, tp=TP("changelog", 0)
        )

    return Event()


def content(store: Store) -> list[tuple[bytes, bytes]]:
    return sorted(store._dbs[0].items())
