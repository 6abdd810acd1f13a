"""Plans of reads for `explain`: the data that a read will fetch, and the cost of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa

from storage_core.base.text import counted
from storage_core.engine.statement import TABLE
from storage_core.log.actions import Add
from storage_core.read.pruning import PruneStep
from storage_core.store.meter import MeteredStore, RequestMeter
from storage_core.store.pieces import CacheCounts, CachedPieces


@dataclass(frozen=True, slots=True, kw_only=True)
class RawPart:
    """The chunks and records of a raw log that are not distributed yet. A read must add these records."""

    name: str
    chunks: int
    records: int

    def __str__(self) -> str:
        """Return the part as a line of text."""
        return (
            f"raw log {self.name}: {counted(self.records, 'record')} of {counted(self.chunks, 'chunk')} are also read"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """The plan for one table of a read.

    For a local disk, `read_bytes` is the maximum number of bytes that the engine may read. For a local disk, `requests`
    counts only the reads of deletion vectors. If the columns of a condition are fetched first (`read.fetching`),
    `read_bytes` and `requests` are upper limits.

    Attributes:
        name: The name of the table in the query.
        version: The version that is read.
        live_splits: The number of live splits of the table.
        live_bytes: The bytes of these splits.
        columns: The columns that are read.
        steps: The pruning steps in the order in which they ran. They excluded splits, row groups and columns.
        splits: The splits to read.
        whole_splits: The number of these splits that are read whole.
        row_groups: The number of row groups to read in the other splits.
        read_bytes: The bytes to read: small splits, footers that are not cached, and the ranges of column chunks
            including the gaps inside these ranges. The bytes of deletion vectors are not counted.
        requests: The requests for these bytes and for stored deletion vectors.
        newer_records: The number of records in memory that are newer than the base, including the records of
            `raw_logs`. The search for superseded rows takes further requests, for key columns of splits that may
            contain these rows.
        raw_logs: The undistributed parts of raw logs.
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
        """Return the plan as a few lines of text."""
        live = f"{counted(self.live_splits, 'split')}, {counted(self.live_bytes, 'byte')}"
        steps = (f"  {step.name} leaves out {_left_out(step)}" for step in self.steps)
        what = f"{counted(len(self.splits), 'split')} ({self.whole_splits:,} whole)"
        what += f", {counted(self.row_groups, 'row group')}, {counted(self.read_bytes, 'byte')}"
        read = f"  reads {what}, by {counted(self.requests, 'request')}: {', '.join(self.columns) or 'no column'}"
        newer = [f"  applies {counted(self.newer_records, 'unmerged record')}"] if self.newer_records else []
        newer += [f"  {each}" for each in self.raw_logs]
        return "\n".join([f"{self.name} at version {self.version}: {live}", *steps, read, *newer])

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data. `read_splits` is the number of splits in `read`."""
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
    """The cost of a read that was run.

    The cost includes all requests to the stores of the tables during the execution, even requests of other readers.

    Attributes:
        rows: The number of returned rows.
        seconds: The duration of the run.
        requests: The number of requests by kind.
        bytes: The bytes that GETs returned.
        waves: The number of times that a request started while no other request was active (round trips).
        cache: The counts of the cache on disk: pieces found, pieces not found, bytes found, and failures. None if the
            cache was not used.
    """

    rows: int
    seconds: float
    requests: Mapping[str, int]
    bytes: int
    round_trips: int
    cache: Mapping[str, int] | None = None

    def __str__(self) -> str:
        """Return the cost as a line of text."""
        asked = ", ".join(f"{number:,} {kind.upper()}" for kind, number in self.requests.items() if number)
        done = f"{asked or 'no request'} in {counted(self.round_trips, 'round trip')}, {counted(self.bytes, 'byte')}"
        hits = "" if self.cache is None else "; cache: " + ", ".join(f"{name} {n:,}" for name, n in self.cache.items())
        return f"{counted(self.rows, 'row')} in {self.seconds:.3f} s: {done}{hits}"


@dataclass(frozen=True, slots=True)
class Watched:
    """The store and the cache of a table that are measured during a read."""

    store: MeteredStore
    cached: CachedPieces


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a query or a scan, with one part per table. An executed plan also contains the cost."""

    tables: tuple[TablePlan, ...]
    analysis: Analysis | None = field(default=None, kw_only=True)

    def __getitem__(self, name: str) -> TablePlan:
        """Return the plan of the table that the query reads under this name.

        Raises `KeyError` if the query reads no table with this name.
        """
        found = next((each for each in self.tables if each.name == name), None)
        if found is None:
            raise KeyError(name)
        return found

    @property
    def splits(self) -> tuple[Add, ...]:
        """The splits of the table `t` that the query reads."""
        return self[TABLE].splits

    @property
    def steps(self) -> tuple[PruneStep, ...]:
        """The pruning steps of the table `t`, in the order in which they run."""
        return self[TABLE].steps

    @property
    def requests(self) -> int:
        """Expected number of requests for all tables."""
        return sum(each.requests for each in self.tables)

    @property
    def read_bytes(self) -> int:
        """Expected number of bytes for all tables."""
        return sum(each.read_bytes for each in self.tables)

    def __str__(self) -> str:
        """Return the plan as text: a section per table, and a last line with the cost of the run."""
        return "\n".join([*map(str, self.tables), *([] if self.analysis is None else [str(self.analysis)])])

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        done = None if self.analysis is None else asdict(self.analysis)
        return {"tables": [each.to_dict() for each in self.tables], "analysis": done}

    def analyzed(self, watched: Collection[Watched], read: Callable[[], pa.RecordBatchReader]) -> Plan:
        """Execute `read` and return the plan with the cost. The rows are discarded immediately after they are read."""
        done = analysis(watched, lambda: sum(batch.num_rows for batch in read()))
        return replace(self, analysis=done)


def analysis(watched: Collection[Watched], read: Callable[[], int]) -> Analysis:
    """Execute `read` and return its cost. `read` returns the number of rows."""
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
        round_trips=meter.round_trips,
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
