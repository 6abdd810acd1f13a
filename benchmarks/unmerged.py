"""Lookups of keys in a million keys, with zero and ten unmerged generations, and the replay of a log.

Each lookup opens the table's view again, in the same way as `Table.get`. "Again" is a second lookup of the same key.
The second lookup uses data that the first lookup cached. A replay is the time in which a new writer, in a new process,
reads the existing log. A replay lasts from the call of the writer until the writer accepts rows. The memory of a replay
is the peak growth of the new process.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.events import KEY, SCHEMA, Keys, batch, events
from benchmarks.metrics import Metric, median, peak_mib, seconds
from benchmarks.read_peers import lance_requests
from storage_core.write.region.records import WriterOptions
from storage_core.write.region.steps import merge_regions
from tidemark import Table

GENERATIONS = 10
_ROWS_OF_GENERATION = 10_000
_KEYS_AT_ONCE = 1_000
_FEW = 2
GET_AIM_MS, MANY_AIM_MS = 2.0, 20.0
_NEVER = WriterOptions(flush_rows=10**9, flush_bytes=10**11)


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield milliseconds and requests of lookups. Then yield seconds and memory of a replay."""
    with tempfile.TemporaryDirectory() as folder:
        yield from _lookups(
            str(Path(folder) / "table"), keys=20_000 if small else 1_000_000, gets=_FEW if small else 25
        )
    with tempfile.TemporaryDirectory() as folder:
        yield from _replay(str(Path(folder) / "table"), log_mb=2 if small else 100)


def _lookups(uri: str, *, keys: int, gets: int) -> Iterator[Metric]:
    """Measure lookups.

    The base and the generations have even keys in one range. Only Bloom filters and key columns can therefore exclude a
    key that is an odd number.
    """
    shuffled = np.random.default_rng(1).permutation(keys) * 2
    each = min(_ROWS_OF_GENERATION, keys // (2 * GENERATIONS))
    flushed = np.split(shuffled[: GENERATIONS * each], GENERATIONS)
    never_flushed = shuffled[GENERATIONS * each :]
    table = Table.create(uri, SCHEMA, primary_key=[KEY])
    with table.writer(options=_NEVER) as writer:
        rows = events(shuffled, 0)
        writer.put(rows)
        writer.flush()
        _merge(table)
        merged = {"a hit in the base": never_flushed, "a miss": shuffled + 1}
        found = list(_asked(uri, f"{keys:,} keys, 0 generations", merged, gets))
        yield from found
        ours = next(each.value for each in found if each.name.endswith("again, p50"))
        sought = never_flushed[:gets].tolist()
        yield lance_requests(f"get, {keys:,} keys", ours, rows, sought, make=gets > _FEW)
        for number, some in enumerate(flushed, start=1):
            writer.put(events(some, number))
            writer.flush()
    unmerged = {"a hit in the base": never_flushed, "a hit in a generation": flushed[4], "a miss": shuffled + 1}
    yield from _asked(uri, f"{keys:,} keys, {GENERATIONS} generations", unmerged, gets)


def _asked(uri: str, name: str, requested: Mapping[str, Keys], gets: int) -> Iterator[Metric]:
    for what, chosen in requested.items():
        yield from _get(uri, f"get, {name}, {what}", chosen[:gets])
    for what, chosen in requested.items():
        named = f"get_many of {_KEYS_AT_ONCE:,} keys, {name}, each {what}"
        yield from _get_many(uri, named, chosen[:_KEYS_AT_ONCE], max(2, gets // 5))


def _get(uri: str, name: str, requested: Keys) -> Iterator[Metric]:
    table = Table.open(uri)
    before = sum(table.store.requests.values())
    table.get(int(requested[0]))
    cold = sum(table.store.requests.values()) - before
    yield Metric(
        name=f"{name}, cold, requests", value=cold, unit="requests", against="12 requests", ratio=12 / cold, aim=1
    )
    for named, aim in ((name, None), (f"{name}, again", 1)):
        taken, requests = [], []
        for key in requested.tolist():
            before = sum(table.store.requests.values())
            taken.append(seconds(partial(table.get, key)) * 1000)
            requests.append(sum(table.store.requests.values()) - before)
        p50 = median(taken)
        yield Metric(name=f"{named}, p50", value=p50, unit="ms", against="2 ms", ratio=GET_AIM_MS / p50, aim=aim)
        yield Metric(name=f"{named}, requests", value=median(requests), unit="requests")


def _get_many(uri: str, name: str, requested: Keys, repeated: int) -> Iterator[Metric]:
    table = Table.open(uri)
    first = 1000 * seconds(partial(table.get_many, requested.tolist()))
    yield Metric(name=f"{name}, first", value=first, unit="ms")
    before = sum(table.store.requests.values())
    p50 = median([seconds(partial(table.get_many, requested.tolist())) * 1000 for _ in range(repeated)])
    yield Metric(name=f"{name}, p50", value=p50, unit="ms", against="20 ms", ratio=MANY_AIM_MS / p50, aim=1)
    requests = (sum(table.store.requests.values()) - before) / repeated
    yield Metric(name=f"{name}, requests", value=requests, unit="requests")


def _merge(table: Table) -> None:
    merge_regions(table.log, table.refresh().snapshot)


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
