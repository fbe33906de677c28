"""Plain Faust over the changelogs of a page app: recovers the tables with Faust's own code and prints their digests.

python -m tests.support.stock_app '{"app_id": ..., "broker": ..., ...}'
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import faust

from tests.support.page_app import PageAppOptions, topic_of

__all__ = ["build"]


def build(options: PageAppOptions) -> Any:
    """A stock Faust app of the same id: stock transport, assignor, table manager and recovery."""
    app = faust.App(
        options.app_id,
        broker=f"kafka://{options.broker}",
        store="rocksdb://",
        datadir=Path(options.data_dir),
        topic_disable_leader=True,
        topic_allow_declare=False,
        table_standby_replicas=0,
        web_enabled=False,
        worker_redirect_stdouts=False,
        key_serializer="raw",
        value_serializer="raw",
    )
    topic = app.topic(topic_of(options.app_id), key_type=bytes, value_type=bytes)
    tables = [
        app.Table(name, key_type=bytes, value_type=bytes, partitions=options.partitions)
        for name in ("seen", "marks")
    ]

    async def idle(stream: Any) -> None:
        async for _event in stream.noack().events():
            pass

    app.agent(topic, name="idle")(idle)

    async def report(*_args: Any, **_kwargs: Any) -> None:
        digests = {}
        for table in tables:
            store: Any = table.data
            for partition, db in store._dbs.items():
                rows = [(k, v) for k, v in db.items() if k != store.offset_key]
                digests[f"{table.name}-{partition}"] = hashlib.sha256(
                    repr(rows).encode()
                ).hexdigest()
        print(json.dumps({"what": "digest", "digest": digests}), flush=True)

    app.on_rebalance_complete.connect(report, weak=False)
    return app


def main() -> None:
    """Run until a signal."""
    app = build(PageAppOptions(**json.loads(sys.argv[1])))
    faust.Worker(app, loglevel="error", quiet=True).execute_from_commandline()


if __name__ == "__main__":
    main()
