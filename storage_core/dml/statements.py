"""The four statements over an append table, and what each of them refuses."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from storage_core.append import fitting, put
from storage_core.dml.assignments import Assignments
from storage_core.dml.changed import Changed
from storage_core.dml.finding import ByCondition
from storage_core.dml.finding_by_keys import ByKeys
from storage_core.dml.keyed import Matching, change
from storage_core.dml.rewriting import Rewriter
from storage_core.dml.statement import Statement
from storage_core.engine.stability import require_repeatable
from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.log.actions import Add
from storage_core.log.applications import once
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.read.predicate import Filter
from storage_core.read.row_filter import RowFilter
from storage_core.read.scan import wanted_filter
from storage_core.read.verified import Verified
from storage_core.region.records import RecordBuilder
from storage_core.rows.incoming import Rows, read_whole
from storage_core.rows.keys import key_order
from storage_core.settings.query import QueryLimits
from storage_core.split.context import context_of
from storage_core.split.write import sort_and_write


@dataclass(frozen=True, slots=True)
class Target:
    """The table of a statement at its newest version, and what a statement may use."""

    log: TransactionLog
    head: Snapshot
    verified: Verified
    limits: QueryLimits


def delete(target: Target, condition: object) -> tuple[Changed, Snapshot]:
    """Delete the rows that meet a condition: by deletion vectors, in one commit; a split without a row left leaves.

    See `Statement.run`.
    """
    return Statement(target.log, operation="DELETE", finder=_finder(target, condition, "delete")).run(target.head)


def update(
    target: Target, given: object, condition: object, application: tuple[str, int] | None
) -> tuple[Changed, Snapshot]:
    """Set columns of the rows that meet a condition: they are hidden, and are in new splits, by the same commit."""
    txn, is_done = once(target.log, target.head, application)
    if is_done:
        return Changed(version=target.head.version), target.head
    finder = _finder(target, condition, "update")
    rewriter = Rewriter(target.log, given, finder, target.limits, target.verified)
    rewriter.require_sound(target.head)
    return Statement(target.log, operation="UPDATE", finder=finder, rewrite=rewriter, txn=txn).run(target.head)


def overwrite(
    target: Target, rows: Rows, condition: object, application: tuple[str, int] | None
) -> tuple[Changed, Snapshot]:
    """Replace the rows that meet a condition by others that meet it, in one commit.

    Raises `InvalidInput` naming the first row given that does not; then nothing is committed.
    """
    txn, is_done = once(target.log, target.head, application)
    if is_done:
        return Changed(version=target.head.version), target.head
    finder = _finder(target, condition, "overwrite")
    adds = _written(target, _meeting(target, finder.wanted, fitting(rows, *_fitted(target))))
    return Statement(target.log, operation="OVERWRITE", finder=finder, adds=adds, txn=txn).run(target.head)


def upsert(target: Target, rows: Rows, on: Sequence[str]) -> tuple[Changed, Snapshot]:
    """Add rows in place of those that have their values in the columns `on`, in one commit.

    Raises `InvalidInput` for two rows given with the same values there, and for one without a value.
    """
    keys = _key_columns(target.head, on)
    (given,) = fitting(read_whole(rows), *_fitted(target))
    if not given.num_rows:
        return Changed(version=target.head.version), target.head
    _require_distinct(given, keys)
    adds = _written(target, [given])
    finder = ByKeys(target.log.store, given.select(keys), target.verified)
    return Statement(target.log, operation="UPSERT", finder=finder, adds=adds).run(target.head)


def put_by_key(log: TransactionLog, snapshot: Snapshot, rows: Rows, on: object) -> Changed:
    """Put rows into a keyed table, whose key says already which row each takes the place of; see `append.put`."""
    key = list(snapshot.config.primary_key)
    if sorted(_key_columns(snapshot, on)) != sorted(key):
        raise InvalidInput(
            f"{log.store.uri}: rows of this table are told apart by its primary key {key}, found on={quoted(on)}; "
            f"upsert on={key}",
            uri=log.store.uri,
        )
    done = put(log, snapshot, rows)
    return Changed(version=done.version, rows_added=done.rows)


def delete_by_key(log: TransactionLog, snapshot: Snapshot, matching: Matching) -> Changed:
    """Delete the rows of a keyed table that match; see `keyed.change`."""
    builder = _builder(snapshot)
    return change(log, snapshot, matching, lambda _, rows: builder.deletes(rows.select(builder.key)))


def update_by_key(
    log: TransactionLog, snapshot: Snapshot, given: object, matching: Matching, *, limits: QueryLimits
) -> Changed:
    """Patch the rows of a keyed table that match with what is set; see `keyed.change`.

    Raises `InvalidInput` for a column of the key.
    """
    key = snapshot.config.primary_key
    assignments = Assignments.of(given, snapshot.schema)
    keys = sorted({*key}.intersection(assignments.columns))
    if keys:
        raise InvalidInput(
            f"{log.store.uri}: {keys} are columns of the primary key, by which a row is what it is; delete the rows "
            "and put them under their new keys",
            columns=keys,
        )
    assignments.applied(snapshot.schema.empty_table(), limits, snapshot.config.nonzero_vectors)

    def records(head: Snapshot, rows: pa.Table) -> pa.Table:
        required = [each.name for each in head.schema if not each.nullable]
        set_ = assignments.applied(rows, limits, head.config.nonzero_vectors)
        return _builder(head).patches(set_.select(list(dict.fromkeys([*key, *required, *assignments.columns]))))

    return change(log, snapshot, matching, records)


def _builder(snapshot: Snapshot) -> RecordBuilder:
    """What makes records; a map that is set is replaced, also where patches of others merge its entries."""
    return RecordBuilder(snapshot.schema, snapshot.config.primary_key, nonzero=snapshot.config.nonzero_vectors)


def require_append_table(snapshot: Snapshot, uri: str) -> None:
    """Return when the table may be overwritten. Raises `InvalidInput` that says what a keyed table takes instead."""
    if snapshot.config.kind == "keyed":
        raise InvalidInput(
            f"{uri}: a keyed table is not overwritten: rows that no merge has brought into the base yet would come "
            "back over it; delete by a condition and put the rows by key, with upsert or a `writer()`",
            uri=uri,
        )


def required_filter(condition: object, verb: str, columns: Sequence[str]) -> Filter:
    """Return the filter of a statement on a table with these columns, which does not go without.

    Raises `InvalidInput`, also for a condition that may be another when it is evaluated again.
    """
    found = None if isinstance(condition, str) and not condition.strip() else wanted_filter(condition)
    if found is None:
        raise InvalidInput(f"{verb} needs a condition; for every row of the table say so: {verb} where 'true'")
    if isinstance(condition, str):  # what `col` makes calls nothing
        require_repeatable(condition, columns, f"condition of {verb}")
    return found


def _finder(target: Target, condition: object, verb: str) -> ByCondition:
    wanted = required_filter(condition, verb, target.head.schema.names)
    return ByCondition(target.log.store, wanted, verb, target.limits, target.verified)


def _fitted(target: Target) -> tuple[pa.Schema, Collection[str]]:
    return target.head.schema, target.head.config.nonzero_vectors


def _written(target: Target, pieces: Iterator[pa.Table] | Sequence[pa.Table]) -> list[Add]:
    """Write rows as splits of the table, piece by piece; what breaks off in between leaves orphans."""
    log, context = target.log, context_of(target.head)
    return [
        add
        for rows in pieces
        for add in sort_and_write(log.store, rows, context=context, ids=log.ids, now_ms=log.clock.now_ms())
    ]


def _meeting(target: Target, wanted: Filter, pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The rows as they come, if each of them meets the condition."""
    judge = RowFilter(
        target.log.store,
        target.head,
        wanted,
        limits=target.limits,
        parts=target.verified.bitmaps,
        query="overwrite",
    )
    first = 0
    for rows in pieces:
        misses = np.flatnonzero(~judge.mask(rows, rows.num_rows))
        if len(misses):
            raise InvalidInput(
                f"row {first + int(misses[0])} does not meet the condition {quoted(str(wanted.expression))} "
                f"(with {len(misses) - 1} others): an overwrite puts rows in the place of those that meet it; widen "
                "the condition, or leave the rows out and append them",
                row=first + int(misses[0]),
            )
        yield rows
        first += rows.num_rows


def _key_columns(head: Snapshot, on: object) -> list[str]:
    names = [on] if isinstance(on, str) else list(on) if isinstance(on, Sequence) else []
    unknown = [name for name in names if name not in head.schema.names]
    if not names or unknown or len({*names}) < len(names):
        found = ", ".join(map(quoted, unknown or names)) or quoted(on)
        raise InvalidInput(
            f"upsert needs the columns that tell rows apart, each once, of {head.schema.names}; found {found}",
            columns=unknown,
        )
    nested = [name for name in names if pa.types.is_nested(head.schema.field(name).type)]
    if nested:
        raise InvalidInput(f"rows cannot be told apart by {nested}: lists, maps and structs have no order")
    return names


def _require_distinct(rows: pa.Table, keys: Sequence[str]) -> None:
    order, begins = key_order(rows, keys)  # raises for a null
    again = order[~begins]
    if len(again):
        row = int(again.min())
        value = rows.select(keys).slice(row, 1).to_pylist()[0]
        raise InvalidInput(
            f"row {row} is not the first with {quoted(value)}: rows of an upsert differ in {list(keys)}; leave all but "
            "one out",
            row=row,
        )
