"""The cost and recall of vector searches: 400,000 words of GloVe, and 100,000 generated embeddings of 1,536 dimensions.

The peers are Lance (IVF_PQ and IVF_RQ), faiss in memory (IVF of whole embeddings), and numpy. numpy compares all rows.
Lance has √rows partitions and probes 20 partitions. Lance computes exact distances for four times as many rows as the
answer needs. No query has the same embedding as a row. Warm queries run on open tables on a local disk. Cold queries
use an S3 API that answers after 20 ms, and their caches are empty.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

import tidemark as tm
from benchmarks.metrics import Metric, command, median
from benchmarks.peers import NotMeasuredError, lance_python, printed
from benchmarks.read_servers import ENVIRONMENT, REGION, Place, S3Servers, s3_servers
from benchmarks.remote_reads import Answer, counted
from examples import datasets
from storage_core.base.clock import SystemClock, SystemIds
from storage_core.data.rows.vectors import Floats, vector_type
from storage_core.data.settings.index import IndexDefinition
from storage_core.log.log import TransactionLog
from storage_core.store.contract import Overwrite
from storage_core.store.meter import MeteredStore
from storage_core.store.resolve import open_store
from tests.support.upkeep import catch_up
from tests.support.waves import WavesStore

ROWS = 10
FILTERS: Mapping[str, str] = {
    "50 %": "share < 500",
    "10 %": "share < 100",
    "1 %": "share < 10",
    "0.1 %": "share < 1",
    "10 % on one side": "side < 100",
}
"""The last filter matches rows whose embeddings are far from most query embeddings.

The last filter selects the rows whose embeddings have the smallest components in one fixed direction.
"""
RECALL_AIM, FILTERED_AIM, MS_AIM = 0.99, 0.98, 5.0
COLD_AIMS = {"requests": 12, "waves": 3, "MiB": 8.0}
"""The maximum numbers for a search in a segment: requests, round trips and MiB.

A search needs further requests to open the table and to read embeddings and rows.
"""
_COLD_QUERIES, _FILTERED_QUERIES, _WARMING = 5, 50, 5


@dataclass(frozen=True, slots=False, kw_only=True)
class Given:
    """The embeddings, the columns for filters, and the queries."""

    name: str
    metric: str
    vectors: Floats
    queries: Floats
    seed: int = 3

    @cached_property
    def rows(self) -> pa.Table:
        """The other columns of each row."""
        chance, count = np.random.default_rng(self.seed), len(self.vectors)
        along = self.vectors @ chance.standard_normal(self.vectors.shape[1], np.float32)
        side: npt.NDArray[np.int64] = np.argsort(np.argsort(along)) * 1_000 // count
        share: npt.NDArray[np.int64] = chance.permutation(count) * 1000 // count
        return pa.table({"id": np.arange(count), "share": share.astype(np.int32), "side": side.astype(np.int32)})

    @cached_property
    def distances(self) -> Floats:
        """The distance of every row to each query. The distance omits a term that is equal for all rows."""
        found = np.empty((len(self.queries), len(self.vectors)), np.float32)
        squares = np.einsum("ij,ij->i", self.vectors, self.vectors)
        for number, query in enumerate(self.queries):
            products = self.vectors @ query
            found[number] = -products / np.sqrt(squares) if self.metric == "cosine" else squares - 2 * products
        return found

    def recall(self, found: Sequence[Sequence[int]], wanted: str = "") -> float:
        """Return the share of the nearest matching rows that `found` contains. Rows at equal distance count too."""
        away = self.distances[: len(found)]
        if wanted:
            column, bound = wanted.split(" < ")
            away = np.where(self.rows.column(column).to_numpy() < int(bound), away, np.inf)
        most = min(ROWS, int(np.isfinite(away[0]).sum()))
        farthest = np.partition(away, most - 1, axis=1)[:, most - 1]
        hits = [
            min(most, int((own[np.array(rows, np.int64)] <= last + 1e-4 * abs(last)).sum()))
            for own, rows, last in zip(away, found, farthest, strict=True)
        ]
        return sum(hits) / (most * len(hits))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The cost of an engine, and the rows that it found with each filter."""

    cpu_s: float
    bytes: float
    ms: dict[str, list[float]] = field(default_factory=dict)
    found: dict[str, list[list[int]]] = field(default_factory=dict)


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield the cost of builds. Then yield the cost and recall of warm, filtered and cold queries."""
    os.environ.update(ENVIRONMENT)
    with tempfile.TemporaryDirectory(prefix="tidemark-benchmark-") as folder, s3_servers() as servers:
        for given in (_glove(small=small), _made(small=small)):
            root = Path(folder) / given.name.replace(" ", "-")
            root.mkdir()
            ours = _ours(root, given)
            yield from _beside(given, "ours", ours, ours)
            yield from _peers(root, given, ours, make=not small)
            yield from _cold(root, given, servers, make=not small)


def _glove(*, small: bool) -> Given:
    vectors = datasets.word_vectors()
    vectors = vectors[np.random.default_rng(1).permutation(len(vectors))[: 4_200 if small else None]]
    count = 20 if small else 200
    return Given(name="GloVe", metric="cosine", vectors=vectors[count:], queries=vectors[:count])


def _made(*, small: bool) -> Given:
    """Return clusters of embeddings around a thousand points.

    As in real embeddings, a few directions have most of the variance.
    """
    count, dimensions = (4_000, 256) if small else (100_000, 1_536)
    asked, chance = 20 if small else 200, np.random.default_rng(2)
    weights = (np.arange(1, dimensions + 1) ** -0.5).astype(np.float32)
    points = chance.standard_normal((1_000, dimensions), np.float32)
    vectors = points[chance.integers(0, len(points), count + asked)]
    for at in range(0, len(vectors), 10_000):
        part = vectors[at : at + 10_000]
        part += np.float32(0.7) * chance.standard_normal(part.shape, np.float32)
    turned, _ = np.linalg.qr(chance.standard_normal((dimensions, dimensions)).astype(np.float32))
    vectors = (vectors * weights) @ turned
    return Given(name="made", metric="l2", vectors=vectors[asked:], queries=vectors[:asked])


def _written(uri: str, given: Given) -> tm.Table:
    index = IndexDefinition("near", "vector", ("v",), {"metric": given.metric})
    kind = vector_type(given.vectors.shape[1])
    column = pa.FixedSizeListArray.from_arrays(pa.array(given.vectors.ravel()), type=kind)
    rows = given.rows.append_column("v", column)
    table = tm.Table.create(uri, rows.schema, indexes=[index])
    table.append(rows)
    return table


def _indexed(table: tm.Table) -> tuple[tm.Table, float]:
    """Return the table with its segments, and the processor seconds of their build."""
    started = time.process_time()
    catch_up(table)
    return table.refresh(), time.process_time() - started


def _ours(root: Path, given: Given) -> Measured:
    table, cpu = _indexed(_written(str(root / "table"), given))
    size = sum(each.size for each in table.snapshot.segments.values()) / len(given.vectors)
    measured = Measured(cpu_s=cpu, bytes=size)
    for name in ("", *FILTERS.values()):
        queries = given.queries[: _FILTERED_QUERIES if name else None]
        measured.ms[name], measured.found[name] = [], []
        for query in (*queries[:_WARMING], *queries):
            started = time.perf_counter()
            found = table.search(
                vector=query, columns=["id"], limit=ROWS, filter=name or None, cache_dir=root / "cache"
            )
            measured.ms[name].append(1000 * (time.perf_counter() - started))
            measured.found[name].append(found.column("id").to_pylist())
        del measured.ms[name][:_WARMING], measured.found[name][:_WARMING]
    return measured


def _peers(root: Path, given: Given, ours: Measured, *, make: bool) -> Iterator[Metric]:
    np.save(root / "vectors.npy", given.vectors)
    np.save(root / "queries.npy", given.queries)
    pq.write_table(given.rows, root / "rows.parquet")
    for engine, label in (("IVF_PQ", "Lance IVF_PQ"), ("IVF_RQ", "Lance IVF_RQ"), ("faiss", "faiss IVF in memory")):
        try:
            python = lance_python(make=make)
            filters = json.dumps([*FILTERS.values()])
            told: dict[str, Any] = printed(python, "vector_peers", str(root), engine, given.metric, filters)
        except NotMeasuredError as error:
            yield Metric(name=f"{_label(given)}, {label} (not measured: {error})", value=1, unit="times")
            continue
        asked = told["asked"]
        yield from _beside(
            given,
            label,
            Measured(
                cpu_s=told["cpu"],
                bytes=told["bytes"],
                ms={name: each["ms"] for name, each in asked.items()},
                found={name: each["rows"] for name, each in asked.items()},
            ),
            ours,
        )
    yield from _brute_force(given, ours)


def _brute_force(given: Given, ours: Measured) -> Iterator[Metric]:
    squares, taken = np.einsum("ij,ij->i", given.vectors, given.vectors), []
    lengths = np.sqrt(squares)
    for query in given.queries[:20]:
        started = time.perf_counter()
        products = given.vectors @ query
        away = -products / lengths if given.metric == "cosine" else squares - 2 * products
        np.argpartition(away, ROWS)
        taken.append(1000 * (time.perf_counter() - started))
    ratio = median(ours.ms[""]) / median(taken)
    yield Metric(
        name=f"{_label(given)}, numpy looks at all, p50", value=median(taken), unit="ms", against="ours", ratio=ratio
    )


def _beside(given: Given, who: str, measured: Measured, ours: Measured) -> Iterator[Metric]:
    """Yield the cost and recall of an engine. Other engines are compared to Tidemark."""
    label, is_ours = f"{_label(given)}, {who}", measured is ours

    def metric(name: str, value: float, unit: str, *, own: float, aim: float | None = None) -> Metric:
        value = max(value, 1e-6)
        compared = aim if is_ours else own
        if compared is None:
            return Metric(name=f"{label}, {name}", value=value, unit=unit)
        ratio = value / compared if unit == "share" else compared / value
        against = f"{aim:g} {unit}" if is_ours else "ours"
        aim = 1 if is_ours else None
        return Metric(name=f"{label}, {name}", value=value, unit=unit, against=against, ratio=ratio, aim=aim)

    yield metric("build, processor", measured.cpu_s, "s", own=ours.cpu_s)
    yield metric("index per vector", measured.bytes, "bytes", own=ours.bytes)
    for wanted, taken in measured.ms.items():
        name = next((f", {each}" for each, text in FILTERS.items() if text == wanted), "")
        recall = given.recall(measured.found[wanted], wanted)
        yield metric(
            f"recall@{ROWS}{name}",
            recall,
            "share",
            own=given.recall(ours.found[wanted], wanted),
            aim=FILTERED_AIM if wanted else RECALL_AIM,
        )
        yield metric(f"p50{name}", median(taken), "ms", own=median(ours.ms[wanted]), aim=None if wanted else MS_AIM)
        yield metric(f"p99{name}", _p99(taken), "ms", own=_p99(ours.ms[wanted]))


def _p99(taken: Sequence[float]) -> float:
    return float(np.percentile(taken, 99))


def _cold(root: Path, given: Given, servers: S3Servers, *, make: bool) -> Iterator[Metric]:
    _copy(str(root / "table"), Place(servers.bucket, root.name, servers.endpoint).uri)
    slow = Place(servers.bucket, root.name, servers.slow)
    paths = {*tm.Table.open(str(root / "table")).snapshot.segments}
    answers, parts = [], []
    for query in given.queries[:_COLD_QUERIES]:
        with tempfile.TemporaryDirectory(dir=root) as cache:
            os.environ["TIDEMARK_CACHE_DIR"] = cache
            opened = tm.Table.open(slow.uri)
            opened.files()  # loads the snapshot
            counted(servers.slow)
            started = time.perf_counter()
            opened.search(vector=query, columns=["id"], limit=ROWS)
            taken_ms = 1000 * (time.perf_counter() - started)
            answers.append(Answer(taken_ms=taken_ms, rows=ROWS, **counted(servers.slow)))
            parts.append(_of_segments(slow.uri, paths, query))
    label = f"{_label(given)}, ours, cold on S3"
    yield Metric(name=f"{label}, all of it", value=median([each.taken_ms for each in answers]), unit="ms")
    yield Metric(name=f"{label}, all of it: requests", value=median([each.requests for each in answers]), unit="times")
    yield Metric(name=f"{label}, all of it: waves", value=median([each.waves for each in answers]), unit="waves")
    yield Metric(name=f"{label}, all of it: bytes", value=median([each.bytes for each in answers]) / 2**20, unit="MiB")
    for unit, aim in COLD_AIMS.items():
        value = max(each[unit] for each in parts)
        name = f"{label}, of the segment: {unit}"
        yield Metric(name=name, value=value, unit=unit, against=f"{aim:g} {unit}", ratio=aim / value, aim=1)
    yield from _cold_lance(root, given, servers, make=make)


def _copy(source: str, target: str) -> None:
    """Copy the table that was built on a local disk, so that it is not built twice."""
    store, copied = open_store(source), open_store(target)
    for each in store.list(""):
        copied.put(each.key, store.get(each.key).data, Overwrite())


def _of_segments(uri: str, paths: set[str], query: Floats) -> dict[str, float]:
    """Return the requests, round trips and MiB of a cold search. Only reads of index segments are included."""
    store = WavesStore(open_store(uri))
    metered = MeteredStore(store)
    log = TransactionLog(metered, clock=SystemClock(), ids=SystemIds())
    table = tm.Table(metered, log, log.snapshot())
    with store.waves.followed():
        table.search(vector=query, columns=["id"], limit=ROWS)
    waves = [wave for wave, _, key in store.waves.requests if key in paths]
    read = sum(store.waves.bytes[path] for path in paths) / 2**20
    return {"requests": len(waves), "waves": len({*waves}), "MiB": read}


def _cold_lance(root: Path, given: Given, servers: S3Servers, *, make: bool) -> Iterator[Metric]:
    options = {
        "aws_access_key_id": ENVIRONMENT["AWS_ACCESS_KEY_ID"],
        "aws_secret_access_key": ENVIRONMENT["AWS_SECRET_ACCESS_KEY"],
        "aws_region": REGION,
        "aws_virtual_hosted_style_request": "false",
        "allow_http": "true",
    }
    for engine in ("IVF_PQ", "IVF_RQ"):
        uri, label = f"s3://{servers.bucket}/{root.name}-{engine}.lance", f"{_label(given)}, Lance {engine}, cold on S3"
        try:
            python = lance_python(make=make)
            slow = json.dumps({**options, "aws_endpoint": servers.slow})
            _copy(
                str(root / f"{engine}.lance"),
                Place(servers.bucket, f"{root.name}-{engine}.lance", servers.endpoint).uri,
            )
            counted(servers.slow)
            taken = printed(python, "vector_peers", str(root), f"ask {engine}", given.metric, "[]", uri, slow)
            found = counted(servers.slow)
        except NotMeasuredError as error:
            yield Metric(name=f"{label} (not measured: {error})", value=1, unit="times")
            continue
        yield Metric(name=label, value=taken, unit="ms")
        yield Metric(name=f"{label}: requests", value=found["requests"], unit="times")
        yield Metric(name=f"{label}: waves", value=found["waves"], unit="waves")
        yield Metric(name=f"{label}: bytes", value=found["bytes"] / 2**20, unit="MiB")


def _label(given: Given) -> str:
    return f"{given.name}, {len(given.vectors):,} × {given.vectors.shape[1]}"


if __name__ == "__main__":
    sys.exit(command(measure, str(__doc__)))
