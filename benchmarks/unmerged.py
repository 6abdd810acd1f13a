"""Reads of what is not merged yet: a key among a million with ten unmerged generations, and the replay of a log.

A lookup opens the table's view anew each time, as `Table.get` does; again, it finds what the first of its key kept. A
replay is a new writer's claim in a process of its own, from the call until it takes rows; its memory is what the
process grew by at its peak.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.events import KEY, SCHEMA, Keys, batch, events
from benchmarks.metrics import Metric, median, peak_mib, seconds
from storage_core.region import merge
from storage_core.region.options import WriterOptions
from tidemark import Table

GENERATIONS = 10
_ROWS_OF_GENERATION = 10_000
_KEYS_AT_ONCE = 1_000
_NEVER = WriterOptions(flush_rows=10**9, flush_bytes=10**11)


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield milliseconds and requests of lookups, then seconds and memory of a replay."""
    with tempfile.TemporaryDirectory() as folder:
        yield from _lookups(str(Path(folder) / "table"), keys=20_000 if small else 1_000_000, gets=2 if small else 25)
    with tempfile.TemporaryDirectory() as folder:
        yield from _replay(str(Path(folder) / "table"), log_mb=2 if small else 100)


def _lookups(uri: str, *, keys: int, gets: int) -> Iterator[Metric]:
    """Base and generations hold even keys over one range: only Bloom filters and key columns rule out an odd one."""
    shuffled = np.random.default_rng(1).permutation(keys) * 2
    each = min(_ROWS_OF_GENERATION, keys // (2 * GENERATIONS))
    flushed = np.split(shuffled[: GENERATIONS * each], GENERATIONS)
    table = Table.create(uri, SCHEMA, primary_key=[KEY])
    with table.writer(options=_NEVER) as writer:
        writer.put(events(shuffled, 0))
        writer.flush()
        _merge(table)
        for number, some in enumerate(flushed, start=1):
            writer.put(events(some, number))
            writer.flush()
    never_flushed = shuffled[GENERATIONS * each :]
    requested = {"a hit in the base": never_flushed, "a hit in a generation": flushed[4], "a miss": shuffled + 1}
    for what, chosen in requested.items():
        yield from _get(uri, f"get, {keys:,} keys, {GENERATIONS} generations, {what}", chosen[:gets])
    for what, chosen in requested.items():
        named = f"get_many of {_KEYS_AT_ONCE:,} keys, {keys:,} keys, {GENERATIONS} generations, each {what}"
        yield from _get_many(uri, named, chosen[:_KEYS_AT_ONCE], max(2, gets // 5))


def _get(uri: str, name: str, requested: Keys) -> Iterator[Metric]:
    table = Table.open(uri)
    table.get(-1)  # opens the base's checkpoint once, as a service has
    for named in (name, f"{name}, again"):
        taken, requests = [], []
        for key in requested.tolist():
            before = sum(table.store.requests.values())
            taken.append(seconds(partial(table.get, key)) * 1000)
            requests.append(sum(table.store.requests.values()) - before)
        yield Metric(name=f"{named}, p50", value=median(taken), unit="ms")
        yield Metric(name=f"{named}, requests", value=median(requests), unit="requests")


def _get_many(uri: str, name: str, requested: Keys, repeated: int) -> Iterator[Metric]:
    table = Table.open(uri)
    table.get(-1)
    before = sum(table.store.requests.values())
    taken = [seconds(partial(table.get_many, requested.tolist())) * 1000 for _ in range(repeated)]
    yield Metric(name=f"{name}, p50", value=median(taken), unit="ms")
    requests = (sum(table.store.requests.values()) - before) / repeated
    yield Metric(name=f"{name}, requests", value=requests, unit="requests")


def _merge(table: Table) -> None:
    table.refresh()
    store, log = table.store, table.log
    works = merge.plan(store, table.snapshot)
    results = [merge.execute(store, work, ids=log.ids, now_ms=log.clock.now_ms()) for work in works]
    merge.commit(log, table.snapshot, works, results)


def _replay(uri: str, *, log_mb: int) -> Iterator[Metric]:
    table = Table.create(uri, SCHEMA, primary_key=[KEY])
    number = 0
    with table.writer(options=_NEVER) as writer:
        while table.store.bytes_written < log_mb * 10**6:
            writer.put(batch(number, 10_000))
            number += 1
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        taken, grown = pool.submit(_claim, uri).result()
    name = f"replay of {log_mb} MB in {number} entries"
    yield Metric(name=name, value=taken, unit="s")
    yield Metric(name=f"{name}, MB per second", value=log_mb / taken, unit="MB/s")
    yield Metric(name=f"{name}, peak growth of memory", value=grown, unit="MiB")


def _claim(uri: str) -> tuple[float, float]:
    table = Table.open(uri)
    before = peak_mib()
    taken = seconds(lambda: table.writer(options=_NEVER))
    return taken, max(peak_mib() - before, 0.1)
