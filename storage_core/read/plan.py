"""What a read will fetch of its tables, step by step, and what it did: the answer of `explain`."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa

from storage_core.cache.pieces import CacheCounts, CachedPieces
from storage_core.engine.statement import TABLE
from storage_core.log.actions import Add
from storage_core.objectstore.meter import MeteredStore, RequestMeter
from storage_core.read.pruning import PruneStep
from storage_core.wording import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class RawPart:
    """How many records of how many chunks of a raw log, not distributed yet, a read lays over what the table has."""

    name: str
    chunks: int
    records: int

    def __str__(self) -> str:
        """Return it as a line."""
        return f"raw log {self.name}: {counted(self.records, 'record')} of {counted(self.chunks, 'chunk')} among them"


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """What is read of one table, which a query calls `name`, at `version`.

    `steps` are what left out splits, row groups and columns, in their order; what is left are `splits`. Of these
    `whole_splits` are read whole, of the others `row_groups`, and of them the chunks of `columns`.
    `read_bytes` and `requests` are what reading that will fetch, once: small splits, footers that are not held, ranges
    of column chunks with the gaps in them, and stored deletion vectors, whose bytes are not counted. On a local disk
    `read_bytes` are what the engine may read of the files, and only deletion vectors are requests. Where columns of a
    condition are fetched before the others (`read.late_materialization`), both are the most that it may take.

    `newer_records` lie over the base and are held in memory. Finding the rows that they supersede takes further
    requests: those of their keys' columns in splits that may hold them. Those that `raw_logs` have are among them.
    """

    name: str
    version: int
    live_splits: int
    live_bytes: int
    columns: tuple[str, ...]
    steps: tuple[PruneStep, ...]
    splits: tuple[Add, ...]
    whole_splits: int
    row_groups: int
    read_bytes: int
    requests: int
    newer_records: int = 0
    raw_logs: tuple[RawPart, ...] = ()

    def __str__(self) -> str:
        """Return it as a few lines."""
        live = f"{counted(self.live_splits, 'split')}, {counted(self.live_bytes, 'byte')}"
        steps = (f"  {step.name} leaves out {_left_out(step)}" for step in self.steps)
        what = f"{counted(len(self.splits), 'split')} ({self.whole_splits:,} whole)"
        what += f", {counted(self.row_groups, 'row group')}, {counted(self.read_bytes, 'byte')}"
        read = f"  reads {what}, by {counted(self.requests, 'request')}: {', '.join(self.columns) or 'no column'}"
        newer = [f"  lays {counted(self.newer_records, 'record')} over it"] if self.newer_records else []
        newer += [f"  {each}" for each in self.raw_logs]
        return "\n".join([f"{self.name} at version {self.version}: {live}", *steps, read, *newer])

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data: `read_splits` counts what `read` lists."""
        return {
            "name": self.name,
            "version": self.version,
            "live_splits": self.live_splits,
            "live_bytes": self.live_bytes,
            "steps": [asdict(step) for step in self.steps],
            "columns": list(self.columns),
            "read_splits": len(self.splits),
            "whole_splits": self.whole_splits,
            "row_groups": self.row_groups,
            "read_bytes": self.read_bytes,
            "requests": self.requests,
            "newer_records": self.newer_records,
            "raw_logs": [asdict(each) for each in self.raw_logs],
            "read": [_split(add) for add in self.splits],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """What a read did: `rows` that it returned, `requests` by kind, the `bytes` that GETs returned, and its `seconds`.

    `waves`: how often a request began while none was under way. `cache` is what the cache on disk answered (pieces
    found and not, bytes found, failures); None where it was not asked. Counted are all requests to the stores of its
    tables while it ran, of any reader.
    """

    rows: int
    seconds: float
    requests: Mapping[str, int]
    bytes: int
    waves: int
    cache: Mapping[str, int] | None = None

    def __str__(self) -> str:
        """Return it as a line."""
        asked = ", ".join(f"{number:,} {kind.upper()}" for kind, number in self.requests.items() if number)
        done = f"{asked or 'no request'} in {counted(self.waves, 'wave')}, {counted(self.bytes, 'byte')}"
        hits = "" if self.cache is None else "; cache: " + ", ".join(f"{name} {n:,}" for name, n in self.cache.items())
        return f"{counted(self.rows, 'row')} in {self.seconds:.3f} s: {done}{hits}"


@dataclass(frozen=True, slots=True)
class Watched:
    """What is looked at while a read of a table runs."""

    store: MeteredStore
    cached: CachedPieces


@dataclass(frozen=True, slots=True)
class Plan:
    """What a query or a scan will read, table by table, and once it was run for that what it did."""

    tables: tuple[TablePlan, ...]
    analysis: Analysis | None = field(default=None, kw_only=True)

    def __getitem__(self, name: str) -> TablePlan:
        """Return the plan of the table that the query calls so. Raises `KeyError` where it reads none."""
        found = next((each for each in self.tables if each.name == name), None)
        if found is None:
            raise KeyError(name)
        return found

    @property
    def splits(self) -> tuple[Add, ...]:
        """The splits that are read of the table `t`."""
        return self[TABLE].splits

    @property
    def steps(self) -> tuple[PruneStep, ...]:
        """What left out parts of the table `t`, in the order the steps run."""
        return self[TABLE].steps

    @property
    def requests(self) -> int:
        """How many requests the read of all tables is expected to make."""
        return sum(each.requests for each in self.tables)

    @property
    def read_bytes(self) -> int:
        """How many bytes the read of all tables is expected to fetch."""
        return sum(each.read_bytes for each in self.tables)

    def __str__(self) -> str:
        """Return it as lines of text, a section per table, and at the end a line of what the run did."""
        return "\n".join([*map(str, self.tables), *([] if self.analysis is None else [str(self.analysis)])])

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        done = None if self.analysis is None else asdict(self.analysis)
        return {"tables": [each.to_dict() for each in self.tables], "analysis": done}

    def analyzed(self, watched: Collection[Watched], read: Callable[[], pa.RecordBatchReader]) -> Plan:
        """Return the plan with what reading did: the rows are thrown away as they come."""
        done = analysis(watched, lambda: sum(batch.num_rows for batch in read()))
        return replace(self, analysis=done)


def analysis(watched: Collection[Watched], read: Callable[[], int]) -> Analysis:
    """Return what reading did, which returns the number of rows."""
    stores = {id(each.store): each.store for each in watched}.values()
    caches = {id(each.cached): each.cached for each in watched}.values()
    before = sum((each.counts for each in caches), CacheCounts())
    meter, started = RequestMeter(), time.perf_counter()
    with ExitStack() as counting:
        for store in stores:
            counting.enter_context(store.counted_by(meter))
        rows = read()
    seconds = time.perf_counter() - started
    cached = sum((each.counts for each in caches), CacheCounts()) - before
    return Analysis(
        rows=rows,
        seconds=seconds,
        requests=meter.requests,
        bytes=meter.bytes_read,
        waves=meter.waves,
        cache=asdict(cached) if cached != CacheCounts() else None,
    )


def _left_out(step: PruneStep) -> str:
    parts = ((step.splits, "split"), (step.row_groups, "row group"), (step.bytes, "byte"))
    found = ", ".join(counted(number, noun) for number, noun in parts if number) or "nothing"
    return f"{found}; {step.note}" if step.note else found


def _split(add: Add) -> dict[str, object]:
    return {
        "path": add.path,
        "size": add.size,
        "rows": None if add.numRecords is None else add.visible_rows,
        "window_start": add.windowStart,
    }
