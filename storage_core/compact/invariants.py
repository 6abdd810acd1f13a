"""Compatibility of splits, and the invariants of every merge (docs/architecture/compaction.md, "Invariants").

Two splits may be merged only if they have the same compatibility scope, which has six parts (CS-1, `Scope`). The
`…_faults` functions return the faults. The `require_…` functions are cheap checks. A job runs these checks on its
output. An error prevents the commit of the output. `maintain.audit` checks the same invariants on files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from storage_core.base.errors import Corrupt, InvalidInput
from storage_core.data.rows.sort_order import SortOrder, is_sorted, nameless
from storage_core.data.rows.statistics import RowFingerprint
from storage_core.log.actions import Add


@dataclass(frozen=True, slots=True)
class Scope:
    """Compatibility scope. Two splits are compatible if and only if their scopes are equal.

    The windows of the splits are checked separately. `schema_ref` identifies a family of union-compatible schemas.
    `schema_ref` does not identify the exact columns. A split that lacks a new column is compatible (MC-4).
    `sort_schema` is the recorded text without the name of the sort schema. The name does not affect the order.
    """

    table_id: str
    source_id: str
    partition_id: str
    schema_ref: str
    sort_schema: str
    window_seconds: int | None


def scope_of(table_id: str, add: Add) -> Scope | None:
    """Return the scope of a split.

    Return None for a split without a recorded sort schema. Such a split is never compacted (CS-1).
    """
    if add.sortSchema is None:
        return None
    return Scope(
        table_id=table_id,
        source_id=add.sourceId or "",
        partition_id=add.partitionId or "",
        schema_ref=add.docMappingRef or "",
        sort_schema=nameless(add.sortSchema),
        window_seconds=add.windowSeconds,
    )


@dataclass(frozen=True, slots=True)
class Fault:
    """One broken invariant: the id of the invariant in docs/architecture/compaction.md, and the fault."""

    invariant: str
    message: str

    def __str__(self) -> str:
        """Return the id and the fault as they appear in error messages."""
        return f"{self.invariant}: {self.message}"


def scope_faults(
    table_id: str, window: int | None, inputs: Sequence[Add], *, start: int | None = None
) -> Iterator[Fault]:
    """Yield the reasons against a merge of these splits in this window: CS-1, CS-2, and CS-3 (before `start`)."""
    scopes = {scope_of(table_id, add) for add in inputs}
    if len(scopes) != 1 or None in scopes:
        yield Fault("CS-1", f"{names_of(inputs)} have different compatibility scopes: {scopes}")
    windows = {add.windowStart for add in inputs}
    if windows != {window}:
        yield Fault("CS-2", f"{names_of(inputs)} belong to the windows {windows}, expected only {window}")
    early = [] if start is None else [add for add in inputs if add.windowStart is not None and add.windowStart < start]
    if early:
        yield Fault("CS-3", f"{names_of(early)} belong to windows before {start}, where compaction starts")


def output_faults(table_id: str, inputs: Sequence[Add], outputs: Sequence[Add]) -> Iterator[Fault]:
    """Yield the differences between outputs and inputs of a merge: window (TW-3), scope (CS-1), sort schema (SS-4)."""
    read = {add.windowStart for add in inputs if add.visible_rows}
    written = {add.windowStart for add in outputs}
    if read and written and read != written:
        yield Fault("TW-3", f"rows of the windows {read} were written as rows of the windows {written}")
    scopes = {scope_of(table_id, add) for add in inputs}
    for add in outputs:
        scope = scope_of(table_id, add)
        if scope in scopes:
            continue
        if _reordered(scope, scopes):
            orders = sorted({nameless(each.sortSchema or "") for each in inputs})
            yield Fault("SS-4", f"{add.path} is sorted by {add.sortSchema!r} and replaces splits sorted by {orders}")
        else:
            yield Fault("CS-1", f"{add.path} has another compatibility scope than its inputs: {scope}, not {scopes}")


def require_one_scope(table_id: str, window: int | None, inputs: Sequence[Add], *, start: int | None = None) -> None:
    """Raise `InvalidInput` unless all inputs have one scope and are in one window (CS-1, CS-2).

    `start` is the start of compaction of the table, in seconds since the epoch. No input may be earlier than `start`
    (CS-3).
    """
    for fault in scope_faults(table_id, window, inputs, start=start):
        raise InvalidInput(f"{fault}. Plan again")


def union_schema(inputs: Sequence[tuple[str, pa.Schema]]) -> pa.Schema:
    """Return the union of the columns of all inputs, in order of first appearance (MC-4).

    `inputs` are pairs of a split and its schema. A column is nullable if it is nullable or missing in any input. Raises
    `InvalidInput` if two inputs have different types. The message contains the column and both splits.
    """
    first: dict[str, tuple[str, pa.Field]] = {}
    for path, schema in inputs:
        for field in schema:
            seen_in, seen = first.setdefault(field.name, (path, field))
            if seen.type != field.type:
                raise InvalidInput(
                    f"MC-4: column {field.name!r} is {seen.type} in {seen_in} and {field.type} in {path}. Splits of "
                    "one scope must have the same type. Give the changed column a new name",
                    column=field.name,
                    splits=(seen_in, path),
                )
    required = {
        name for name in first if all(name in schema.names and not schema.field(name).nullable for _, schema in inputs)
    }
    return pa.schema([pa.field(name, field.type, name not in required) for name, (_, field) in first.items()])


def row_faults(before: RowFingerprint, after: RowFingerprint) -> Iterator[Fault]:
    """Yield the differences between the rows before and after a merge: number of rows (MC-1) and values (MC-2)."""
    if before.rows != after.rows:
        yield Fault("MC-1", f"the merge read {before.rows} rows and wrote {after.rows}")
    elif before != after:
        yield Fault(
            "MC-2",
            f"the merge kept all {before.rows} rows, but changed values: expected the fingerprint {before.digest:x}, "
            f"found {after.digest:x}",
        )


def column_faults(output: pa.Schema, expected: pa.Schema) -> Iterator[Fault]:
    """Yield the columns or types in which an output differs from the union of the inputs' columns (MC-4)."""
    found = {field.name: field.type for field in output}
    wanted = {field.name: field.type for field in expected}
    if found != wanted:
        yield Fault("MC-4", f"the columns are {found}, expected {wanted}")


def require_sorted(output: pa.Table, order: SortOrder, inputs: Sequence[Add]) -> None:
    """Raise `Corrupt` unless the output has the sort order of the inputs (MC-3).

    The check comes before the output is cut into splits.
    """
    if not is_sorted(output, order.present(output.column_names)):
        _require(iter([Fault("MC-3", f"the rows are not sorted by {order.text!r}")]), inputs)


def require_columns(output: pa.Schema, expected: pa.Schema, inputs: Sequence[Add]) -> None:
    """Raise `Corrupt` unless the output has exactly the columns of the union, including types (MC-4)."""
    _require(column_faults(output, expected), inputs)


def names_of(splits: Sequence[Add]) -> str:
    """Return the splits as they appear in a message."""
    return ", ".join(add.path for add in splits)


def _require(faults: Iterator[Fault], inputs: Sequence[Add]) -> None:
    for fault in faults:
        raise Corrupt(f"{fault.invariant}: compaction of {names_of(inputs)}: {fault.message}. Nothing was committed")


def _reordered(scope: Scope | None, scopes: set[Scope | None]) -> bool:
    """Return whether one of the scopes equals the scope `scope` if the sort schemas are ignored."""
    return scope is not None and any(
        each is not None and replace(each, sort_schema=scope.sort_schema) == scope for each in scopes
    )
