"""The private parts of Faust, mode and aiokafka that ours replace or lean on, each with a hash of its source.

A changed hash means that the library changed under an override. Read the new source, decide whether ours still holds,
run tests/integration/streams, and then `python tests/contract_faust/pins.py` writes the new hashes.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import pydoc
import textwrap
from pathlib import Path
from typing import Any

__all__ = ["PINNED", "digest_of", "load_pins"]

_FILE = Path(__file__).with_suffix(".json")

# dotted name -> what ours makes of it
PINNED = {
    # replaced or extended by QimConsumer
    "faust.transport.consumer.Consumer._drain_messages": "replaced: pages, no wait per message",
    "faust.transport.consumer.Consumer.getmany": "not used; the other caller of perform_seek",
    "faust.transport.consumer.Consumer.perform_seek": "replaced: start offsets, gate",
    "faust.transport.consumer.Consumer.pause_partitions": "extended by a pause in aiokafka",
    "faust.transport.consumer.Consumer.resume_partitions": "extended by a resume in aiokafka",
    "faust.transport.consumer.Consumer.on_buffer_full": "replaced: one reason of the gate",
    "faust.transport.consumer.Consumer.on_buffer_drop": "replaced: one reason of the gate",
    "faust.transport.consumer.Consumer.on_partitions_assigned": "extended: nothing flows yet",
    "faust.transport.consumer.Consumer.on_partitions_revoked": "extended: chains are forgotten",
    "faust.transport.consumer.Consumer.ack": "replaced for pages: the ledger books them",
    "faust.transport.consumer.Consumer._new_offset": "replaced: the ledger's position",
    "faust.transport.consumer.Consumer._filter_tps_with_pending_acks": "reads our _acked marks",
    "faust.transport.consumer.Consumer._filter_committable_offsets": "calls our _new_offset",
    "faust.transport.consumer.Consumer._should_commit": "compares with our _committed_offset",
    "faust.transport.consumer.Consumer._commit_offsets": "commits, after the producer's flush",
    "faust.transport.consumer.Consumer.wait_empty": "replaced: drains the shards, bounded",
    "faust.transport.consumer.Consumer.on_stop": "calls wait_empty a second time",
    "faust.transport.consumer.Consumer.stop_flow": "sets flow_active, which delivery checks",
    "faust.transport.consumer.Consumer.resume_flow": "sets can_resume_flow, which delivery awaits",
    "faust.transport.consumer.Fetcher": "runs our _drain_messages",
    "faust.transport.consumer.ThreadDelegateConsumer": "calls the inline consumer by these names",
    # the consumer thread that is none
    "faust.transport.drivers.aiokafka.Consumer": "base of QimConsumer",
    "faust.transport.drivers.aiokafka.ConsumerRebalanceListener": "called once by our assignment",
    "faust.transport.drivers.aiokafka.AIOKafkaConsumerThread._create_worker_consumer": "extended",
    "faust.transport.drivers.aiokafka.AIOKafkaConsumerThread.subscribe": "replaced: assign()",
    "faust.transport.drivers.aiokafka.AIOKafkaConsumerThread._highwaters": "replaced: from Fetch",
    "faust.transport.drivers.aiokafka.AIOKafkaConsumerThread._seek_wait": "replaced: plain seek",
    "faust.transport.drivers.aiokafka.AIOKafkaConsumerThread._commit": "used as it is",
    "faust.transport.drivers.aiokafka.AIOKafkaConsumerThread.topic_partitions": "replaced",
    "faust.transport.drivers.aiokafka.AIOKafkaConsumerThread.verify_event_path": "replaced",
    "faust.transport.drivers.aiokafka.Producer._settings_extra": "replaced: acks, idempotence",
    "faust.transport.drivers.aiokafka.Producer._settings_default": "passes the batch limits on",
    "faust.transport.drivers.aiokafka.Producer.on_start": "makes _producer, which pages use",
    "mode.threads.ServiceThread": "its thread handling is undone method by method",
    "mode.threads.QueueServiceThread.call_thread": "replaced: a plain call",
    "mode.services.Service.stop": "stops the inline consumer",
    # recovery and tables
    "faust.tables.recovery.Recovery._restart_recovery": "the order of recovery's steps",
    "faust.tables.recovery.Recovery.on_recovery_completed": "resumes, then calls perform_seek",
    "faust.tables.recovery.Recovery._slurp_changelogs": "replaced by the watchdog",
    "faust.tables.recovery.Recovery._seek_offsets": "replaced: behind the last row, not on it",
    "faust.tables.recovery.Recovery._build_highwaters": "asks the inline consumer",
    "faust.tables.recovery.Recovery._build_offsets": "where reading starts",
    "faust.tables.recovery.Recovery._wait": "extended: a timeout fails",
    "faust.tables.recovery.Recovery._set_recovery_ended": "called by ours",
    "faust.tables.recovery.Recovery.need_recovery": "judges our active_offsets",
    "faust.tables.recovery.Recovery.active_remaining": "judges our active_offsets",
    "faust.tables.manager.TableManager.on_start": "replaced: without its wait of 1 s",
    "faust.tables.manager.TableManager._update_channels": "called by ours",
    "faust.stores.rocksdb.Store._db_for_partition": "where pages are written and read",
    "faust.stores.rocksdb.Store.persisted_offset": "reads the offset that pages write",
    "faust.stores.rocksdb.Store.set_persisted_offset": "the form of that offset",
    "faust.stores.rocksdb.Store.apply_changelog_batch": "what a page write must equal",
    # app, topics, events
    "faust.app.base.App._stop_consumer": "wait_empty before the tables close",
    "faust.app.base.App._on_partitions_assigned": "pauses all, then rebalances tables",
    "faust.app.base.App._on_partitions_revoked": "stops the flow, then wait_empty",
    "faust.transport.conductor.Conductor._subscriber": "subscribes again after 45 s: a no-op for us",
    "faust.transport.conductor.ConductorCompiler": "hands our message to the agents",
    "faust.topics.Topic.decode": "extended by pages",
    "faust.types.tuples.Message.ack": "calls Consumer.ack with the last reference",
    "faust.types.tuples.ConsumerMessage": "what carries a page",
    "faust.assignor.partition_assignor.PartitionAssignor.assigned_actives": "answers our plan",
    "faust.assignor.partition_assignor.PartitionAssignor.assigned_standbys": "answers none",
    "faust.worker.Worker.on_setup_root_logger": "replaced: no debug logging",
    # aiokafka
    "aiokafka.consumer.fetcher.Fetcher.fetched_records": "called with no partitions: all",
    "aiokafka.consumer.fetcher.Fetcher._get_actions_per_node": "what undelivered records block",
    "aiokafka.consumer.fetcher.Fetcher.seek_to": "drops undelivered records",
    "aiokafka.consumer.fetcher.FetchResult": "drops records of a paused partition",
    "aiokafka.consumer.fetcher.PartitionRecords": "a circle that drop_prefetched cuts",
    "aiokafka.consumer.subscription_state.SubscriptionState.pause": "the truth about flow",
    "aiokafka.consumer.subscription_state.SubscriptionState.resume": "the truth about flow",
    "aiokafka.consumer.subscription_state.TopicPartitionState": "position and highwater",
    "aiokafka.consumer.consumer.AIOKafkaConsumer.assign": "sets positions of its own unless we do",
    "aiokafka.consumer.consumer.AIOKafkaConsumer.start": "reads _fetch_max_wait_ms and the reset policy",
    "aiokafka.producer.producer.AIOKafkaProducer.send_batch": "one batch a partition",
    "aiokafka.producer.producer.AIOKafkaProducer.create_batch": "one batch a partition",
    "aiokafka.producer.message_accumulator.MessageAccumulator.add_batch": "order of the batches",
}


def digest_of(dotted: str) -> str:
    """Hash of the source of a class or function, indentation aside."""
    found: Any = pydoc.locate(dotted)
    assert found is not None, f"{dotted} is gone"
    found = getattr(found, "fun", found)  # mode wraps the tasks of a service
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(found)))
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def load_pins() -> dict[str, str]:
    """The hashes that ours were written and tested against."""
    pins: dict[str, str] = json.loads(_FILE.read_text())
    return pins


if __name__ == "__main__":
    _FILE.write_text(json.dumps({name: digest_of(name) for name in PINNED}, indent=2) + "\n")
