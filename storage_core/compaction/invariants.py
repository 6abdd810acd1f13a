"""The invariants of compaction as checks (design page 04, "Invariants").

The `require_…` functions are the cheap form: a job runs them on what it is about to hand back and raises before anybody
can commit it. `audit` is the full form, from the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from storage_core.compaction.scope import recorded_order, scope_of
from storage_core.errors import Corrupt, InvalidInput, SnapshotExpired
from storage_core.log.actions import Add
from storage_core.log.schema_registry import schema_hash
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.rows import column_regex, statistics
from storage_core.rows.order import is_sorted
from storage_core.rows.schema import to_schema_string
from storage_core.rows.sort_order import SortOrder
from storage_core.rows.windows import validate_duration, window_starts
from storage_core.split.encode import present_order
from storage_core.split.metadata import PREFIX, differences
from storage_core.split.read import OpenSplit, open_split


@dataclass(frozen=True, slots=True)
class Violation:
    """One invariant that a live split breaks: its id on design page 04, the split, and what is wrong."""

    invariant: str
    path: str
    message: str


def require_one_scope(table_id: str, window: int | None, inputs: Sequence[Add]) -> None:
    """Raise `InvalidInput` unless all inputs have one scope and lie in the one window (CS-1, CS-2, CS-3, TW-3)."""
    scopes = {scope_of(table_id, add) for add in inputs}
    if len(scopes) != 1 or None in scopes:
        raise InvalidInput(f"CS-1: {_names(inputs)} are not of one compatibility scope: {scopes}; plan again")
    windows = {add.windowStart for add in inputs}
    if windows != {window}:
        raise InvalidInput(f"CS-2: {_names(inputs)} lie in the windows {windows}, expected {window} only; plan again")


def union_schema(inputs: Sequence[tuple[str, pa.Schema]]) -> pa.Schema:
    """Return the union of the columns of all inputs, given as (split, its schema), in order of first appearance (MC-4).

    A column is nullable where any input says so or lacks it. Raises `InvalidInput` naming the column and both splits
    when two inputs disagree on its type.
    """
    first: dict[str, tuple[str, pa.Field]] = {}
    for path, schema in inputs:
        for field in schema:
            seen_in, seen = first.setdefault(field.name, (path, field))
            if seen.type != field.type:
                raise InvalidInput(
                    f"MC-4: column {field.name!r} is {seen.type} in {seen_in} and {field.type} in {path}; "
                    "splits of one scope must agree; give the changed column a new name",
                    column=field.name,
                    splits=(seen_in, path),
                )
    required = {
        name for name in first if all(name in schema.names and not schema.field(name).nullable for _, schema in inputs)
    }
    return pa.schema([pa.field(name, field.type, name not in required) for name, (_, field) in first.items()])


def require_sorted(output: pa.Table, order: SortOrder, inputs: Sequence[Add]) -> None:
    """Raise `Corrupt` unless the output, before it is cut, is sorted by the inputs' order (MC-3)."""
    if not is_sorted(output, present_order(order, output.column_names)):
        raise Corrupt(f"MC-3: compaction of {_names(inputs)} is not sorted by {order.text!r}; nothing was written")


def require_columns(output: pa.Schema, expected: pa.Schema, inputs: Sequence[Add]) -> None:
    """Raise `Corrupt` unless the output has exactly the columns of the union, types included (MC-4)."""
    found = {field.name: field.type for field in output}
    wanted = {field.name: field.type for field in expected}
    if found != wanted:
        raise Corrupt(f"MC-4: compaction of {_names(inputs)} has the columns {found}, expected {wanted}")


def audit(store: ObjectStore, snapshot: Snapshot) -> list[Violation]:
    """Return every way in which a live split breaks TW-1, TW-2, SS-1 or SS-5, judged by reading every file whole.

    One GET per split, one split in memory at a time. Empty means that file, action and native metadata agree and every
    row is where the log says. An unreadable or vanished split is a violation, not an error; `Unavailable` is raised.
    """
    found: list[Violation] = []
    for add in snapshot.splits.values():
        try:
            found.extend(audit_split(store, add, snapshot))
        except (Corrupt, SnapshotExpired) as error:
            found.append(Violation("SS-5", add.path, str(error)))
    return found


def audit_split(store: ObjectStore, add: Add, snapshot: Snapshot) -> list[Violation]:
    """Return what `audit` finds in one split that reads. One GET. Raises what `open_split` raises.

    Of the file as it was written: which of its rows are deleted is no part of it.
    """
    return list(_audit_split(open_split(store, add.as_written), snapshot))


def _audit_split(split: OpenSplit, snapshot: Snapshot) -> Iterator[Violation]:
    rows, path = split.read(), split.add.path
    for message in _window_faults(rows, split.add, snapshot):
        yield Violation("TW-1", path, message)
    for message in _duration_faults(split.add):
        yield Violation("TW-2", path, message)
    for message in _order_faults(rows, split, snapshot):
        yield Violation("SS-1", path, message)
    for message in [*_metadata_faults(split, snapshot), *_statistics_faults(rows, split.add)]:
        yield Violation("SS-5", path, message)


def _window_faults(rows: pa.Table, add: Add, snapshot: Snapshot) -> Iterator[str]:
    column = snapshot.config.time_column
    if add.windowSeconds is None or column is None or column not in rows.column_names:
        return
    starts = pc.unique(window_starts(rows.column(column), add.windowSeconds)).to_pylist()
    if starts != [add.windowStart]:
        yield f"expected rows of the window {add.windowStart} only, found {starts[:5]}"


def _duration_faults(add: Add) -> Iterator[str]:
    if add.windowSeconds is None:
        return
    try:
        validate_duration(add.windowSeconds, coarse=True)
    except InvalidInput as error:
        yield str(error)


def _order_faults(rows: pa.Table, split: OpenSplit, snapshot: Snapshot) -> Iterator[str]:
    text = split.add.sortSchema
    order = None if text is None else recorded_order(text, snapshot.config, snapshot.schema)
    if order is None:
        return
    keys = present_order(order, rows.column_names)
    if not is_sorted(rows, keys):
        yield f"the rows are not sorted by {text!r}"
    native = list(keys.columns)
    if split.native_sorting() != native:
        yield f"expected the native sorting columns {native}, found {split.native_sorting()}"


def _metadata_faults(split: OpenSplit, snapshot: Snapshot) -> Iterator[str]:
    yield from differences(split.metadata, split.add)
    expected = {"table_id": snapshot.table_id, "schema_hash": schema_hash(to_schema_string(split.schema))}
    for name, value in expected.items():
        if split.metadata.get(PREFIX + name) != value:
            yield f"{PREFIX + name}: expected {value!r}, the file says {split.metadata.get(PREFIX + name)!r}"


def _statistics_faults(rows: pa.Table, add: Add) -> Iterator[str]:
    figures = statistics.compute(rows)
    checks = (
        ("row count", add.numRecords, rows.num_rows),
        ("minimum values", add.minValues, figures.min_values),
        ("maximum values", add.maxValues, figures.max_values),
        ("null counts", add.nullCounts, figures.null_counts),
    )
    for name, recorded, actual in checks:
        if recorded is not None and recorded != actual:
            yield f"{name}: the log says {recorded}, the rows say {actual}"
    yield from column_regex.mismatches(rows, add.columnRegexes or {})


def _names(inputs: Sequence[Add]) -> str:
    return ", ".join(add.path for add in inputs)
