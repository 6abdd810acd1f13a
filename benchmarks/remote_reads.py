"""The cost of queries on remote storage. The queries of `benchmarks.reads` use an S3 API that answers after 20 ms.

DataFusion reads the same objects with its own client, without a log and without verification. Tidemark and DataFusion
run each query three times. The first run has empty caches ("cold"), and the third run follows ten more commits. Each
reader must find new commits itself. Our table is refreshed before each query, and DataFusion lists the folder again.
The processes of the query engines are already running. The S3 server of the tests handles one request at a time, so it
limits the transfer of bytes.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
from datafusion import SessionConfig, SessionContext
from datafusion.object_store import AmazonS3

import tidemark as tm
from benchmarks.metrics import Metric, command
from benchmarks.read_servers import COUNTS, ENVIRONMENT, REGION, Place, s3_servers
from benchmarks.reads import OF_FLIGHTS, OF_WIDE, QUERIES, wide
from examples import datasets

COMMITS = 10
COLD_AIM, WARM_AIM = 1 / 1.5, 1 / 0.2
"""The target ratios of DataFusion's time to the time of Tidemark's reader.

The target for Tidemark is at most 1.5 times DataFusion's time with empty caches, and at most 0.2 times with filled
caches.
"""


class Ours:
    """A reader with its own cache folder."""

    def __init__(self, place: Place, root: Path) -> None:
        os.environ["TIDEMARK_CACHE_DIR"] = tempfile.mkdtemp(dir=root)
        self._uri = place.uri
        self._table: tm.Table | None = None

    def sql(self, text: str) -> pa.Table:
        """Return the answer at the newest version."""
        if self._table is None:
            self._table = tm.Table.open(self._uri)
        else:
            self._table.refresh()
        return self._table.sql(text).to_arrow()


class Theirs:
    """DataFusion, which caches the metadata of files itself."""

    def __init__(self, place: Place) -> None:
        self._folder = f"s3://{place.bucket}/{place.name}/splits/"
        self._context = SessionContext(
            SessionConfig({"datafusion.execution.listing_table_ignore_subdirectory": "false"})
        )
        keys = {"access_key_id": ENVIRONMENT["AWS_ACCESS_KEY_ID"], "secret_access_key": "test-secret"}
        store = AmazonS3(place.bucket, region=REGION, endpoint=place.endpoint, allow_http=True, **keys)
        self._context.register_object_store("s3://", store, place.bucket)

    def sql(self, text: str) -> pa.Table:
        """Return the answer over the files that exist now."""
        self._context.deregister_table("t")
        self._context.register_parquet("t", self._folder)
        return self._context.sql(text).to_arrow_table()


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield milliseconds, requests, round trips and MiB of every query, for our reader and for DataFusion."""
    os.environ.update(ENVIRONMENT)
    with tempfile.TemporaryDirectory(prefix="tidemark-benchmark-") as folder, s3_servers() as (bucket, endpoint, slow):
        flights = datasets.flights()
        by_day = _Written(Place(bucket, "days", endpoint), flights.slice(0, 20_000) if small else flights, "time_hour")
        columns = _Written(Place(bucket, "wide", endpoint), wide(20_000 if small else 1_000_000))
        for table, words in ((by_day, OF_FLIGHTS), (columns, OF_WIDE)):
            for name, template in list(QUERIES.items())[: 2 if small else None]:
                yield from table.asked(name, template.format(**words), slow, Path(folder))


class _Written:
    """A table that gets more commits between the measured reads. These commits do not go through the slow server."""

    def __init__(self, place: Place, rows: pa.Table, time_column: str | None = None) -> None:
        daily = time_column is not None
        self._table = tm.Table.create(
            place.uri, rows.schema, time_column=time_column, window="1d" if daily else "auto", coarse_window=daily
        )
        self._table.append(rows)
        self._table.sql("select count(*) from t").to_arrow()  # starts the query process
        self._place, self._rows = place, rows
        self._label = f"{place.name}, {len(self._table.files()):,} splits"

    def asked(self, name: str, query: str, slow: str, root: Path) -> Iterator[Metric]:
        """Run one query three times with both readers."""
        place = replace(self._place, endpoint=slow)
        readers: tuple[Theirs | Ours, ...] = (Theirs(place), Ours(place, root))
        for moment, aim in (("cold", COLD_AIM), ("again", WARM_AIM), (f"after {COMMITS} commits", WARM_AIM)):
            for _ in range(COMMITS if moment.startswith("after") else 0):
                self._table.append(self._rows.slice(0, 10))
            label = f"{self._label}, {name}, {moment}"
            theirs, ours = (asked(reader, query, slow) for reader in readers)
            if theirs.rows != ours.rows:
                raise AssertionError(f"{query}: {theirs.rows} rows by DataFusion, {ours.rows} by us")
            ratio = theirs.taken_ms / ours.taken_ms
            yield Metric(name=label, value=ours.taken_ms, unit="ms", against="DataFusion", ratio=ratio, aim=aim)
            for reader, answer in (("ours", ours), ("DataFusion", theirs)):
                yield Metric(name=f"{label}, {reader}: requests", value=answer.requests, unit="requests")
                yield Metric(name=f"{label}, {reader}: waves", value=answer.waves, unit="waves")
                yield Metric(name=f"{label}, {reader}: bytes", value=answer.bytes / 2**20, unit="MiB")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The cost of a query, and the number of rows in its answer."""

    taken_ms: float
    rows: int
    requests: int = 0
    waves: int = 0
    bytes: int = 0


def asked(reader: Ours | Theirs, query: str, slow: str) -> Answer:
    """Run a query through the slow server, and return its cost."""
    counted(slow)
    started = time.perf_counter()
    found = reader.sql(query)
    taken_ms = 1000 * (time.perf_counter() - started)
    return Answer(taken_ms=taken_ms, rows=found.num_rows, **counted(slow))


def counted(endpoint: str) -> dict[str, int]:
    """Return the counts of the slow server since the last call."""
    connection = http.client.HTTPConnection(urlsplit(endpoint).netloc)
    try:
        connection.request(COUNTS, "/")
        counts: dict[str, int] = json.loads(connection.getresponse().read())
        return counts
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(command(measure, str(__doc__)))
