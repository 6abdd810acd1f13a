"""A landing location on the S3 server of the tests. An SQS queue of the same server announces the landed files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus
from uuid import uuid4

import boto3

from storage_core.change.declaration import load
from storage_core.data.steps import Ingest
from storage_core.log.job_run import InProcessExecutor, JobReport, run
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.store.contract import Overwrite
from storage_core.store.resolve import open_store
from tests.support.clock import ManualClock
from tests.support.s3_server import ACCESS_KEY, REGION, SECRET_KEY, S3Server
from tidemark import Table


@dataclass(frozen=True, slots=True)
class Opened:
    """The log and snapshot of a table. The log uses a clock that the test sets."""

    log: TransactionLog
    snapshot: Snapshot


def queue_client(server: S3Server, region: str = REGION) -> Any:
    """Return a client of boto3 for the queues of the server."""
    keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY}
    return boto3.client("sqs", endpoint_url=server.endpoint, region_name=region, **keys)


def s3_event(bucket: str, key: str, *, name: str = "ObjectCreated:Put", **about: object) -> dict[str, Any]:
    """Return the message that S3 sends for a new object.

    `about` contains the size and ETag of the object, if they are known.
    """
    found = {"key": quote_plus(key, safe="/"), **about, "sequencer": "0055AED6DCD90281E5"}
    record = {"eventSource": "aws:s3", "eventName": name, "s3": {"bucket": {"name": bucket}, "object": found}}
    return {"Records": [record]}


@dataclass(slots=True)
class AnnouncedPlace:
    """A table, its landing location and its queue.

    Each file has one row with a given id. Only `announce` announces files.
    """

    server: S3Server
    folder: Path
    table_uri: str = ""
    list_every: str = "1000d"
    is_keyed: bool = False
    clock: ManualClock = field(default_factory=lambda: ManualClock(1_800_000_000_000, step_ms=1))
    prefix: str = field(default_factory=lambda: f"landing/{uuid4()}")
    queue: str = ""
    client: Any = None

    def __post_init__(self) -> None:
        self.client = queue_client(self.server)
        path = self.client.create_queue(QueueName=f"landed-{uuid4()}")["QueueUrl"].rpartition("//")[2].partition("/")[2]
        self.queue = f"{self.server.endpoint}/{path}"
        self.table_uri = self.table_uri or str(self.folder / "table")
        self.declare()

    @property
    def declaration(self) -> Path:
        return self.folder / "events.yaml"

    @property
    def uri(self) -> str:
        return self.server.uri(self.prefix)

    def declare(self, **landing: object) -> None:
        """Declare the table. `landing` replaces settings of the landing location."""
        place = {"uri": self.uri, "format": "ndjson", "suffix": ".json", "queue": self.queue}
        body = {
            "name": "events",
            "uri": self.table_uri,
            "columns": {"at": "timestamp!", "id": "long"},
            **({"primary_key": "id"} if self.is_keyed else {"time_column": "at", "window": "1h"}),
            "landing": {**place, "list_every": self.list_every, **landing},
        }
        self.declaration.write_text(json.dumps(body))
        Table.declare(load(str(self.declaration)), self.table_uri)

    def land(self, *ids: int) -> list[str]:
        """Land a file per id, and return the names. Nothing is announced."""
        store = open_store(self.uri)
        names = [f"2026/a b+c/{number:06}.json" for number in ids]
        for name, number in zip(names, ids, strict=True):
            row = {"at": f"2026-01-01T{number % 3:02}:00:00Z", "id": number}
            store.put(name, (json.dumps(row) + "\n").encode(), Overwrite())
        return names

    def event(self, name: str) -> dict[str, Any]:
        """Return the event of a landed file, with its size and ETag."""
        found = open_store(self.uri).head(name)
        return s3_event(self.server.bucket, f"{self.prefix}/{name}", size=found.size, eTag=found.etag.strip('"'))

    def send(self, *bodies: Mapping[str, Any] | str) -> None:
        """Send messages."""
        texts = [each if isinstance(each, str) else json.dumps(each) for each in bodies]
        for start in range(0, len(texts), 10):
            part = enumerate(texts[start : start + 10])
            entries = [{"Id": str(number), "MessageBody": text} for number, text in part]
            assert not self.client.send_message_batch(QueueUrl=self.queue, Entries=entries).get("Failed")

    def announce(self, *names: str) -> None:
        """Send the event of each file."""
        self.send(*map(self.event, names))

    def ingest(self, **options: Any) -> JobReport:
        """Run ingest on the newest version."""
        log = TransactionLog(open_store(self.table_uri), clock=self.clock)
        return run(Ingest(table_uri=self.table_uri, **options), InProcessExecutor(log), Opened(log, log.snapshot()))

    def ids(self) -> list[int]:
        """Return the ids in the table, sorted."""
        rows = Table.open(self.table_uri).scan(["id"], consistency="latest" if self.is_keyed else "snapshot")
        return sorted(rows.to_arrow().column(0).to_pylist())

    def messages(self) -> dict[str, int]:
        """Return the number of visible messages and of hidden messages."""
        names = {"visible": "ApproximateNumberOfMessages", "hidden": "ApproximateNumberOfMessagesNotVisible"}
        found = self.client.get_queue_attributes(QueueUrl=self.queue, AttributeNames=[*names.values()])["Attributes"]
        return {name: int(found[each]) for name, each in names.items()}
