"""Durable appends of 1,000 rows by a region writer: the time of one append, and the rate of many threads.

The measurement of an append starts when the rows are an Arrow table in memory. The measured time ends when the call
returns and the rows are durable. The peers, such as deltalake, append the same rows as Tidemark to their own tables.
These tables are on the same disk and have default settings. The peers deltalake and DuckLake do not fsync their files.

A bare write is a new file with the bytes of our log entry, followed by fsync. A write "under a name" first writes the
bytes to a temporary file, and then links this file to its final name. Readers therefore see only complete objects. A
write "under a name" consists of write, fsync, link, and fsync of the folder.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Self

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.events import KEY, SCHEMA, batch
from benchmarks.metrics import Metric, seconds
from benchmarks.peers import NotMeasuredError, ducklake_python, printed
from tidemark import Table

_ROWS = 1_000
_WARM_UP = 20

Taken = list[float]
"""The milliseconds of each append."""


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield the time of one append, compared to the peers, and the rate of several threads."""
    appends = 10 if small else 200
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        yield from _against_peers(root, appends, small=small)
        for threads in (1, 4, 16):
            rate = _sustained(root / f"threads{threads}", threads, lasting=0.3 if small else 4)
            yield Metric(name=f"sustained durable appends, {threads} threads", value=rate, unit="rows/s")


def _against_peers(root: Path, appends: int, *, small: bool) -> Iterator[Metric]:
    batches = [batch(number, _ROWS) for number in range(_WARM_UP + appends)]
    own, bare, named = _durable(root, batches)
    name = "durable append of 1,000 rows, p50"
    p50, p99 = _percentile(own, 50), _percentile(own, 99)
    yield Metric(name=name, value=p50, unit="ms", against="1.5 ms", ratio=1.5 / p50, aim=1)
    for peer, taken, aim in (("bare fsynced write", bare, 0.5), ("fsynced write under a name", named, 0.5)):
        ratio = _percentile(taken, 50) / p50
        yield Metric(name=f"{name}, to a {peer}", value=p50, unit="ms", against=peer, ratio=ratio, aim=aim)
        ratio = _percentile(taken, 99) / p99
        yield Metric(name=f"{name[:-3]}p99, to a {peer}", value=p99, unit="ms", against=peer, ratio=ratio)
    yield from _to_peer(own, "deltalake append", _delta(root, batches), 20)
    try:
        python = ducklake_python(make=not small)
        yield from _to_peer(own, "DuckLake insert", _ducklake(python, root, appends), 8)
    except NotMeasuredError as error:
        against = f"DuckLake insert (not measured: {error})"
        yield Metric(name=f"{name}, to a DuckLake insert", value=p50, unit="ms", against=against, ratio=0, aim=8)
    yield Metric(name=f"{name}, rows as mappings", value=_percentile(_mappings(root, batches), 50), unit="ms")


def _to_peer(own: Taken, peer: str, taken: Taken, aim: float) -> Iterator[Metric]:
    for percent, aimed in ((50, aim), (99, None)):
        value = _percentile(own, percent)
        name = f"durable append of 1,000 rows, p{percent}, to a {peer}"
        yield Metric(
            name=name, value=value, unit="ms", against=peer, ratio=_percentile(taken, percent) / value, aim=aimed
        )


def _durable(root: Path, batches: Sequence[pa.Table]) -> tuple[Taken, Taken, Taken]:
    """Measure three writes in turns: our append, the bare write, and the write under a name.

    Other load on the machine then affects all three writes equally. The peers without fsync are measured separately.
    Otherwise, our fsync would also write the unwritten data of these peers.
    """
    table = Table.create(str(root / "ours"), SCHEMA, primary_key=[KEY])
    with table.writer() as writer, _Files(root / "files") as files:
        writer.put(batches[0])
        entry = max((each for each in table.store.list("") if "/wal/" in each.key), key=lambda each: each.size)
        data = table.store.get(entry.key).data
        own, bare, named = [], [], []
        for number, rows in enumerate(batches):
            own.append(_milliseconds(partial(writer.put, rows)))
            bare.append(_milliseconds(partial(files.bare, number, data)))
            named.append(_milliseconds(partial(files.named, number, data)))
    return own[_WARM_UP:], bare[_WARM_UP:], named[_WARM_UP:]


def _mappings(root: Path, batches: Sequence[pa.Table]) -> Taken:
    table = Table.create(str(root / "mappings"), SCHEMA, primary_key=[KEY])
    with table.writer() as writer:
        return [_milliseconds(partial(writer.put, rows.to_pylist())) for rows in batches][_WARM_UP:]


def _delta(root: Path, batches: Sequence[pa.Table]) -> Taken:
    table = deltalake.DeltaTable.create(str(root / "delta"), batches[0].schema)
    append = partial(deltalake.write_deltalake, table, mode="append")
    return [_milliseconds(partial(append, rows)) for rows in batches][_WARM_UP:]


class _Files:
    """A folder. This class writes files with the minimum work for durability."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._descriptor = os.open(folder, os.O_RDONLY)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def bare(self, number: int, data: bytes) -> None:
        self._write(f"bare{number}", data)

    def named(self, number: int, data: bytes) -> None:
        self._write(f"part{number}", data)
        os.link(self._folder / f"part{number}", self._folder / f"named{number}")
        os.fsync(self._descriptor)
        (self._folder / f"part{number}").unlink()

    def _write(self, name: str, data: bytes) -> None:
        descriptor = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.write(descriptor, data)
        os.fsync(descriptor)
        os.close(descriptor)


def _ducklake(python: Path, root: Path, appends: int) -> Taken:
    rows, lake = root / "rows.parquet", root / "lake"
    pq.write_table(batch(0, _ROWS), rows)
    lake.mkdir()
    taken: Taken = printed(python, "ducklake_inserts", str(lake), str(rows), str(appends), str(_WARM_UP))
    return taken


def _sustained(root: Path, threads: int, *, lasting: float) -> float:
    """Return the rows per second that the threads append durably. Each thread appends 1,000 rows at a time."""
    table = Table.create(str(root), SCHEMA, primary_key=[KEY])
    counts = [0] * threads
    with table.writer() as writer:
        until = time.perf_counter() + lasting

        def append(thread: int) -> None:
            rows = batch(thread, _ROWS)
            while time.perf_counter() < until:
                writer.put(rows)
                counts[thread] += _ROWS

        started = time.perf_counter()
        running = [threading.Thread(target=append, args=(thread,)) for thread in range(threads)]
        for each in running:
            each.start()
        for each in running:
            each.join()
        taken = time.perf_counter() - started
    return sum(counts) / taken


def _milliseconds(step: Callable[[], object]) -> float:
    return seconds(step) * 1000


def _percentile(taken: Taken, percent: int) -> float:
    return float(np.percentile(taken, percent))
