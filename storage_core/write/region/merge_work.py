"""Merge of a region: its work, its result, and the lookup of superseded rows.

`MergeWork` is one planned merge and `MergeResult` is its output. Between the driver and the tasks, both
objects are JSON. `refused` finds the records that a merge cannot apply. `find` finds the superseded rows of a
split.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from storage_core.base.clock import Ids
from storage_core.base.errors import Corrupt, InvalidInput, TidemarkError, Unsupported, of_the_system, raise_refused
from storage_core.base.text import quoted
from storage_core.data.formats.arrow_files import QuarantinedRows
from storage_core.data.formats.region_manifest import FlushedGeneration, Generation
from storage_core.data.rows import fold
from storage_core.data.rows.codes import Mask
from storage_core.data.rows.columns import stored_schema
from storage_core.data.rows.conform import conform
from storage_core.data.rows.keys import Positions, bitmap_of, key_codes, positions
from storage_core.index.segments import CoveringSegments
from storage_core.log.actions import (
    Add,
    IndexSegment,
    MergedGenerations,
    Remove,
    Translation,
    read_action,
    read_actions,
    to_json_object,
    write_actions,
)
from storage_core.log.conflicts import MergeProgress, SameMerges
from storage_core.split.context import SplitContext
from storage_core.split.deletion_vectors import deleted_rows, hide_rows
from storage_core.split.fetch import Footers
from storage_core.split.read import OpenSplit, conform_split, open_split
from storage_core.split.writer import Rewrite
from storage_core.store.contract import ObjectStore
from storage_core.write.late_rows import write_quarantine_entry


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeWork:
    """One planned merge with all data for a task. The task need not open the table. Travels as JSON.

    - `generations` are consecutive and start at `after` + 1. A sorted generation covers the numbers of all generations
      that it replaces.
    - `base` contains the live splits whose key bounds include a merged key, and their deletion vectors. The keys of a
      split, or a primary-key index, show whether the split really contains a merged key.
    - `answering` contains the parts of the primary-key index that cover the splits, by path.
    - `merged` is the merged generation of every region at the time of the plan, if the table has manual regions. Only
      the committer uses this field, so it is not in the JSON.
    - `opened` contains the generations that the plan has read. This field is not in the JSON.
    """

    region: str
    after: int
    generations: tuple[FlushedGeneration, ...]
    primary_key: tuple[str, ...]
    base: tuple[Add, ...]
    context: SplitContext
    answering: Mapping[str, CoveringSegments] = field(default_factory=dict)
    merged: Mapping[str, int] | None = None
    opened: tuple[Generation, ...] = field(default=(), compare=False, repr=False)

    @property
    def records(self) -> int:
        """The number of records to merge, or 0 if the work was read from JSON."""
        return sum(each.records for each in self.opened)

    @property
    def size_bytes(self) -> int:
        """The bytes of the records in memory. Generations without a recorded size are not counted."""
        return sum(each.size_bytes or 0 for each in self.opened)

    @property
    def input_bytes(self) -> float:
        """Maximum number of bytes that the merge reads from records and splits of the base. Infinity if unknown."""
        is_known = self.opened and all(each.size_bytes is not None for each in self.opened)
        return (self.size_bytes if is_known else math.inf) + sum(add.size for add in self.base)

    @property
    def requirements(self) -> tuple[MergeProgress | SameMerges, ...]:
        """The commit requires that the last merged generation of the region is equal to `after`.

        In a table with manual regions, no region may have been merged since the plan.
        """
        own = MergeProgress(self.region, self.after)
        return (own,) if self.merged is None else (own, SameMerges(self.merged))

    def to_json(self) -> str:
        """Return the work as text, for `from_json`."""
        body = {
            "region": self.region,
            "after": self.after,
            "generations": [[each.generation, each.path, each.sorted_from] for each in self.generations],
            "primaryKey": list(self.primary_key),
            "base": write_actions(self.base),
            "context": self.context.to_json(),
            **self._index(),
        }
        return json.dumps(body, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> MergeWork:
        """Return the work that `to_json` wrote."""
        body: Mapping[str, Any] = json.loads(text)
        return MergeWork(
            region=body["region"],
            after=body["after"],
            generations=tuple(
                FlushedGeneration(generation=number, path=path, sorted_from=sorted_from)
                for number, path, sorted_from in body["generations"]
            ),
            primary_key=tuple(body["primaryKey"]),
            base=read_actions(body["base"], Add, "merge work"),
            context=SplitContext.from_json(body["context"]),
            answering=_answering(body),
        )

    def _index(self) -> Mapping[str, Any]:
        """Return the index parts that cover the splits.

        Each segment and translation occurs once, for any number of splits.
        """
        found = self.answering.values()
        return {
            "segments": write_actions({each.path: each for one in found for each in one.segments}.values()),
            "translations": write_actions({each.path: each for one in found for each in one.translations}.values()),
            "answering": {
                split: [[each.path for each in one.segments], [each.path for each in one.translations]]
                for split, one in self.answering.items()
            },
        }


def _answering(body: Mapping[str, Any]) -> Mapping[str, CoveringSegments]:
    where = "merge work"
    segments = {each.path: each for each in read_actions(body["segments"], IndexSegment, where)}
    translations = {each.path: each for each in read_actions(body["translations"], Translation, where)}
    return {
        split: CoveringSegments(tuple(segments[path] for path in own), tuple(translations[path] for path in ways))
        for split, (own, ways) in body["answering"].items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """The output of a merge. `merge.actions_of` returns the actions to commit. Travels as JSON.

    `rewrite` adds the new splits, and removes the splits without a live row. `marks` contains the live splits with a
    longer deletion vector. The input rows of `rewrite` are the records, and the base rows that patches changed.
    """

    rewrite: Rewrite
    marks: tuple[Add, ...]
    merged: MergedGenerations

    def to_json(self) -> str:
        """Return the result as text, for `from_json`."""
        body = {
            "rewrite": self.rewrite.to_object(),
            "marks": write_actions(self.marks),
            "merged": to_json_object(self.merged),
        }
        return json.dumps(body, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> MergeResult:
        """Return the result that `to_json` wrote."""
        body: Mapping[str, Any] = json.loads(text)
        return MergeResult(
            rewrite=Rewrite.from_object(body["rewrite"]),
            marks=read_actions(body["marks"], Add, "merge result"),
            merged=read_action(body["merged"], MergedGenerations, "merge result"),
        )


# Records that a merge cannot apply: the search for these records, and their quarantine (decision 0010). A merge refuses
# a record if the record fails without any other record. The search repeatedly divides the records into halves. The
# search costs about as much as the failed attempt, and runs only after a failure. If every record succeeds without the
# others, no record is refused.


Attempt = Callable[[pa.Table], object]
REFUSALS = (InvalidInput, pa.ArrowException, OverflowError)
SOURCE = "merge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The records of consecutive generations, in order.

    `lengths` is the number of rows of each generation in `rows`.
    """

    rows: pa.Table
    generations: tuple[int, ...]
    lengths: tuple[int, ...]
    key: tuple[str, ...]

    def naming(self, record: int, error: Exception) -> TidemarkError:
        """Return the error with the generation of the record, the position in the generation (from 0), and the key.

        The key is shortened and escaped.
        """
        ends = np.cumsum(self.lengths)
        part = int(np.searchsorted(ends, record, side="right"))
        place = record - int(ends[part]) + self.lengths[part]
        values = self.rows.select(self.key).slice(record, 1).to_pylist()[0]
        key = ", ".join(f"{name}={quoted(value)}" for name, value in values.items())
        found = f"generation {self.generations[part]}, record {place}, key {key}: {text_of(error)}"
        more = {"generation": self.generations[part], "row": place, "key": key}
        return error.reworded(found, **more) if isinstance(error, InvalidInput) else InvalidInput(found, **more)

    def without(self, deleted: Mask) -> Records:
        """Return the records without the marked records."""
        parts = np.split(deleted, np.cumsum(self.lengths)[:-1])
        lengths = tuple(len(part) - int(part.sum()) for part in parts)
        return replace(self, rows=self.rows.filter(pa.array(~deleted)), lengths=lengths)

    def of_key(self, row: pa.Table) -> Mask:
        """Return a mask of records with the key of this row. Raise `InvalidInput` if a record has no key."""
        held, wanted = key_codes([self.rows, row], self.key)
        mask: Mask = held == wanted[0]
        return mask


def refused(rows: pa.Table, attempt: Attempt) -> Iterator[tuple[int, Exception]]:
    """Yield each row, with the error, if `attempt` refuses an input of only this row.

    Yield nothing if `attempt` refuses even an empty input.
    """
    try:
        attempt(rows.slice(0, 0))
    except REFUSALS:
        return
    yield from _refused(rows, attempt, 0)


def _refused(rows: pa.Table, attempt: Attempt, start: int) -> Iterator[tuple[int, Exception]]:
    try:
        attempt(rows)
    except REFUSALS as error:
        if of_the_system(error):  # for example too little memory, which is not the fault of a row
            raise
        if rows.num_rows == 1:
            yield start, error
            return
        half = rows.num_rows // 2
        yield from _refused(rows.slice(0, half), attempt, start)
        yield from _refused(rows.slice(half), attempt, start + half)


def quarantine_records(
    store: ObjectStore, kept: Sequence[tuple[pa.Table, Exception]], *, region: str, now_ms: int
) -> None:
    """Quarantine records, with one entry per reason. The entries are durable when this returns. One PUT per entry."""
    reasons: dict[str, list[pa.Table]] = {}
    for records, error in kept:
        reasons.setdefault(text_of(error), []).append(records)
    for reason, parts in reasons.items():
        entry = QuarantinedRows(
            source=SOURCE, reason=reason, by=region, arrived_ms=now_ms, rows=pa.concat_tables(parts)
        )
        write_quarantine_entry(store, entry)


def text_of(error: Exception) -> str:
    """Return the message of the error, with its type if it is not a Tidemark error."""
    return error.found if isinstance(error, TidemarkError) else f"{type(error).__name__}: {error}"


@contextmanager
def naming_works(*works: MergeWork) -> Iterator[None]:
    """If the data of a merge causes an error, add the regions and generations of `works` to the error.

    Do not change an error that the data did not cause.
    """
    try:
        yield
    except (InvalidInput, Corrupt, Unsupported) as error:
        raise error.reworded(f"{_named(works)}: {error.found}", **_context(works)) from error
    except (pa.ArrowException, OverflowError, MemoryError) as error:
        raise_refused(_named(works), error)
        raise InvalidInput(f"{_named(works)}: {text_of(error)}", **_context(works)) from error


def _named(works: Sequence[MergeWork]) -> str:
    parts = (
        f"region {each.region}, generations {each.after + 1} to {each.generations[-1].generation}" for each in works
    )
    return f"merging {'; '.join(parts)}"


def _context(works: Sequence[MergeWork]) -> dict[str, object]:
    return {
        "region": ", ".join(each.region for each in works),
        "generations": [generation.generation for each in works for generation in each.generations],
    }


# Superseded rows of a split. A lookup finds these rows by the key columns. A merge reads columns outside the key only
# for patches.
#
# The base never contains two live rows of one key (docs/architecture/ingestion.md, "Merge"). So a record supersedes at
# most one row of the base.


@dataclass(frozen=True, slots=True)
class Superseded:
    """The rows of one split that the records of a merge supersede.

    `rows` is the number of rows of the file. `deleted` are the positions of the deleted rows after the merge. `hit` is
    the number of superseded rows. `read` contains the superseded rows to which a patch applies.
    """

    split: Add
    rows: int
    deleted: BitMap
    hit: int
    read: pa.Table

    def entry(self, store: ObjectStore, *, ids: Ids, now_ms: int) -> Add | Remove:
        """Return the action for this effect: the split with a longer deletion vector, or the removal of the split.

        At most one PUT.
        """
        return hide_rows(store, self.split, self.deleted, rows=self.rows, ids=ids, now_ms=now_ms)


def find(
    store: ObjectStore,
    split: Add,
    records: pa.Table,
    *,
    key: Sequence[str],
    schema: pa.Schema,
    footers: Footers | None = None,
    among: Positions | None = None,
) -> Superseded | None:
    """Return the effect of the records on the split, or None without an effect.

    Args:
        records: the folded records.
        among: the ascending positions of all rows that may have one of the keys, or None if they are unknown. An empty
            list makes no request.

    Raises the errors of `open_split`.

    Cost:
        Ranged GETs of the footer and of the key columns, in the row groups of `among`. If a patch changes a row, also
        GETs of the row groups with this row. A split up to `split.read.SMALL_SPLIT_BYTES` takes one GET in total. A
        stored deletion vector adds one GET. Parts that `footers` holds or has cached make no request.
    """
    if among is not None and not len(among):
        return None
    footers = footers or Footers()
    deleted = deleted_rows(store, split, footers.cached)
    opened = open_split(store, split.as_written, whole=False, footers=footers).of_table(schema)
    rows = opened.rows
    at = np.arange(rows) if among is None else among
    wanted, held = key_codes([records, opened.read(key) if among is None else opened.take(at, key)], key)
    live = np.ones(rows, np.bool_)
    live[positions(deleted)] = False
    hit = live[at] & np.isin(held, wanted)
    if not hit.any():
        return None
    patched = wanted[records.column(fold.OPERATION).to_numpy() == fold.Operation.PATCH]
    return Superseded(
        split=split,
        rows=rows,
        deleted=deleted | bitmap_of(at[hit]),
        hit=int(hit.sum()),
        read=_rows(opened, at[hit & np.isin(held, patched)], schema),
    )


def _rows(opened: OpenSplit, places: Positions, schema: pa.Schema) -> pa.Table:
    # The table, not the file, defines the required columns.
    return conform(conform_split(opened.take(places, stored_schema(schema).names), schema), schema)
