"""The invariants of compaction as predicates (docs/architecture/compaction.md, "Invariants").

The `…_faults` functions say what is wrong. The `require_…` functions are the cheap form: a job runs them on what it is
about to hand back and raises before anybody can commit it. The full form asks the same of files (`audit.merges`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from storage_core.compaction.scope import Scope, scope_of
from storage_core.errors import Corrupt, InvalidInput
from storage_core.log.actions import Add
from storage_core.rows.fingerprint import RowFingerprint
from storage_core.rows.order import is_sorted
from storage_core.rows.sort_order import SortOrder, nameless


@dataclass(frozen=True, slots=True)
class Fault:
    """One invariant that does not hold: its id on docs/architecture/compaction.md, and what is wrong."""

    invariant: str
    message: str

    def __str__(self) -> str:
        """Return both as errors say it."""
        return f"{self.invariant}: {self.message}"


def scope_faults(
    table_id: str, window: int | None, inputs: Sequence[Add], *, start: int | None = None
) -> Iterator[Fault]:
    """Yield why these splits may not be merged in this window: CS-1, CS-2, and CS-3 for windows before `start`."""
    scopes = {scope_of(table_id, add) for add in inputs}
    if len(scopes) != 1 or None in scopes:
        yield Fault("CS-1", f"{names_of(inputs)} are not of one compatibility scope: {scopes}")
    windows = {add.windowStart for add in inputs}
    if windows != {window}:
        yield Fault("CS-2", f"{names_of(inputs)} lie in the windows {windows}, expected {window} only")
    early = [] if start is None else [add for add in inputs if add.windowStart is not None and add.windowStart < start]
    if early:
        yield Fault("CS-3", f"{names_of(early)} lie in windows before {start}, from which on the table is compacted")


def output_faults(table_id: str, inputs: Sequence[Add], outputs: Sequence[Add]) -> Iterator[Fault]:
    """Yield how outputs of a merge are not where its inputs were: window (TW-3), scope (CS-1), sort schema (SS-4)."""
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
    """Raise `InvalidInput` unless all inputs have one scope and lie in the one window (CS-1, CS-2).

    `start` is where compaction of the table begins, in seconds since the epoch: no input lies before it (CS-3).
    """
    for fault in scope_faults(table_id, window, inputs, start=start):
        raise InvalidInput(f"{fault}; plan again")


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


def row_faults(before: RowFingerprint, after: RowFingerprint) -> Iterator[Fault]:
    """Yield how the rows after a merge are not the multiset of rows before it: MC-1 by number, MC-2 by value."""
    if before.rows != after.rows:
        yield Fault("MC-1", f"the merge read {before.rows} rows and made {after.rows}")
    elif before != after:
        yield Fault(
            "MC-2",
            f"{before.rows} rows were kept but values changed: expected the fingerprint {before.digest:x}, "
            f"found {after.digest:x}",
        )


def column_faults(output: pa.Schema, expected: pa.Schema) -> Iterator[Fault]:
    """Yield how the columns of an output are not those of the union, types included (MC-4)."""
    found = {field.name: field.type for field in output}
    wanted = {field.name: field.type for field in expected}
    if found != wanted:
        yield Fault("MC-4", f"the columns are {found}, expected {wanted}")


def require_sorted(output: pa.Table, order: SortOrder, inputs: Sequence[Add]) -> None:
    """Raise `Corrupt` unless the output, before it is cut, is sorted by the inputs' order (MC-3)."""
    if not is_sorted(output, order.present(output.column_names)):
        _require(iter([Fault("MC-3", f"the rows are not sorted by {order.text!r}")]), inputs)


def require_columns(output: pa.Schema, expected: pa.Schema, inputs: Sequence[Add]) -> None:
    """Raise `Corrupt` unless the output has exactly the columns of the union, types included (MC-4)."""
    _require(column_faults(output, expected), inputs)


def names_of(splits: Sequence[Add]) -> str:
    """Return the splits as a message names them."""
    return ", ".join(add.path for add in splits)


def _require(faults: Iterator[Fault], inputs: Sequence[Add]) -> None:
    for fault in faults:
        raise Corrupt(f"{fault.invariant}: compaction of {names_of(inputs)}: {fault.message}; nothing was committed")


def _reordered(scope: Scope | None, scopes: set[Scope | None]) -> bool:
    """Whether the scope is one of the scopes but for its sort schema."""
    return scope is not None and any(
        each is not None and replace(each, sort_schema=scope.sort_schema) == scope for each in scopes
    )
