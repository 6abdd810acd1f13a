"""A statement that is executed as one commit.

If another process commits first, the statement is planned again on the new head.

Each attempt reads only splits that are new or have other deleted rows than before. Appends and compactions therefore do
not restart the statement (decision 0013).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from storage_core.base.arguments import checked
from storage_core.base.errors import CommitConflict, InvalidInput
from storage_core.base.limits import QueryLimits
from storage_core.base.text import quoted, unknown_names
from storage_core.change.row_finder import ByCondition, Finder, read_row_groups
from storage_core.data.rows.columns import stored_schema
from storage_core.data.rows.conform import conform
from storage_core.data.rows.incoming import PIECE_BYTES, table_of
from storage_core.data.rows.times import within_calendar
from storage_core.data.rows.vectors import require_valid_embeddings
from storage_core.engine.sandbox.process import Rows
from storage_core.engine.statement import TABLE, nodes_of, parse, refused, require_repeatable
from storage_core.log.actions import Action, Add, Metadata, Remove, Txn
from storage_core.log.deletion_vector import DeletionVector
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.read.duckdb_view import Source
from storage_core.read.pruning import groups_with
from storage_core.read.sql_predicate import columns_read, plain_select
from storage_core.read.verified_files import VerifiedFiles, query_errors
from storage_core.split.context import context_of
from storage_core.split.deletion_vectors import PARALLEL_READS, deleted_rows_of_each, hide_rows
from storage_core.split.encode import Encodings, inherited
from storage_core.split.read import OpenSplit
from storage_core.split.writer import sort_and_write
from storage_core.store.meter import all_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """The outcome of a statement.

    - `version`: the version of the commit. If nothing was committed, `version` is the version that was read.
    - `commit_id`: the id of the commit. The id is empty if nothing was committed.
    - `rows`, `splits`: the number of deleted, updated or replaced rows, and the number of splits that contained these
      rows.
    - `rows_added`, `splits_added`: the number of added rows, and the number of new splits.
    """

    version: int
    commit_id: str = ""
    rows: int = 0
    splits: int = 0
    rows_added: int = 0
    splits_added: int = 0


_ONE_ROW_FROM_ONE: Final = (
    "an expression may use only its own row, and returns one value. Remove other rows and lists of columns",
)
_BATCH_ROWS: Final = 65_536
_MORE_THAN_A_ROW: Final = frozenset({"STAR", "SUBQUERY", "WINDOW", "POSITIONAL_REFERENCE"})


@dataclass(frozen=True, slots=True)
class Expression:
    """A SQL expression over the columns of a row, as `expr` creates it."""

    sql: str


@checked
def expr(sql: str) -> Expression:
    """Return a SQL expression as a value for `Table.update`: `{"seats": tm.expr("seats + 1")}`.

    Args:
        sql: One expression over columns of the row.

    Raises:
        InvalidInput: The text is not a single expression over columns of a row.
    """
    query = f"SELECT {sql} FROM {TABLE}"  # noqa: S608  # parsed, and checked below
    node = plain_select(query, "expression", given=sql) or {}
    chosen = node.get("select_list") or []
    if len(chosen) != 1 or chosen[0].get("alias") or node.get("where_clause") is not None:
        raise InvalidInput(
            f"{quoted(sql)} is not one expression over the columns of a row. Write one expression, such as n + 1",
            expression=sql,
        )
    for each in nodes_of(chosen[0]):
        if each.get("class") in _MORE_THAN_A_ROW or str(each.get("function_name", "")).lower() == "unnest":
            raise refused(sql, "expression", *_ONE_ROW_FROM_ONE)
    return Expression(sql)


@dataclass(frozen=True, slots=True)
class Assignments:
    """New values of columns, as constants and expressions, checked against a table's schema."""

    values: Mapping[str, pa.Scalar]
    expressions: Mapping[str, Expression]

    @staticmethod
    def of(given: object, schema: pa.Schema) -> Assignments:
        """Return the assignments.

        Raises:
            InvalidInput: No column is set, a column is unknown, a value does not fit, or an expression may give another
                value at a second evaluation.
        """
        if not isinstance(given, Mapping) or not given:
            found = "are empty" if given == {} else f"are {quoted(given)}"
            raise InvalidInput(
                f"the changes of an update {found}. Give a mapping of columns to values, as in {{'seats': 4}}"
            )
        unknown = [name for name in given if name not in schema.names]
        if unknown:
            raise InvalidInput(unknown_names("column", unknown, schema.names), columns=unknown)
        expressions = {name: value for name, value in given.items() if isinstance(value, Expression)}
        for each in expressions.values():
            require_repeatable(each.sql, schema.names, "expression")
        constants = {name: value for name, value in given.items() if name not in expressions}
        fields = pa.schema([each for each in schema if each.name in constants])
        row = conform(table_of([constants], fields), fields) if constants else pa.table({})
        return Assignments({name: row.column(name)[0] for name in row.column_names}, expressions)

    @property
    def columns(self) -> Sequence[str]:
        """The columns to which the assignments give values."""
        return [*self.values, *self.expressions]

    def needed(self, names: Sequence[str]) -> Sequence[str]:
        """Return the columns that an update reads: columns that it does not set, and columns in its expressions."""
        read = {*self._read(names)}
        return [name for name in names if name not in self.columns or name in read]

    def applied(self, rows: pa.Table, limits: QueryLimits, nonzero: Collection[str]) -> pa.Table:
        """Return the rows with the assignments applied, in the same order. See `rows.vectors.require_valid_embeddings`
        for `nonzero`.

        Raises:
            InvalidInput: An expression cannot be evaluated, or its value does not fit its column.
            Unavailable: An expression exceeds a limit.
        """
        found = self._evaluated(rows, limits)
        columns = [
            repeated(self.values[each.name], rows.num_rows)
            if each.name in self.values
            else found.get(each.name, rows.column(each.name))
            for each in rows.schema
        ]
        changed = conform(pa.table(columns, names=rows.column_names), rows.schema)
        return require_valid_embeddings(within_calendar(changed), nonzero)

    def _read(self, names: Sequence[str]) -> Sequence[str]:
        """Return the columns that the expressions read."""
        texts = [f"SELECT {each.sql} FROM {TABLE}" for each in self.expressions.values()]  # noqa: S608  # only parsed
        found = [columns_read(parse(text, "expression"), names, TABLE) for text in texts]
        return [name for name in names if any(each is None or name in each for each in found)]

    def _evaluated(self, rows: pa.Table, limits: QueryLimits) -> dict[str, pa.ChunkedArray]:
        if not self.expressions:
            return {}
        place = "place"
        while any(place in each.sql.lower() for each in self.expressions.values()) or place in map(
            str.lower, rows.column_names
        ):
            place += "_"
        numbered = rows.select(self._read(rows.column_names)).append_column(place, pa.array(np.arange(rows.num_rows)))
        chosen = ", ".join(f"({each.sql})" for each in self.expressions.values())  # expressions could read an alias
        text = f"SELECT {place}, {chosen} FROM {TABLE}"  # noqa: S608  # expressions were checked
        errors = query_errors("update", (), limits, columns=rows.column_names)
        given = Rows(numbered.schema, lambda: _batches(numbered))  # a query process keeps no session for rows in memory
        with errors, Source(numbered.schema.empty_table(), fetched=given).answer(text, limits) as result:
            answer = pa.Table.from_batches([*result], result.schema)
        if answer.num_rows != rows.num_rows:
            raise InvalidInput(f"an update's expressions gave {answer.num_rows} values for {rows.num_rows} rows")
        ordered = answer.take(pa.array(np.argsort(answer.column(0).to_numpy(), kind="stable")))
        return {
            name: _typed(ordered.column(number), rows.schema.field(name).type)
            for number, name in enumerate(self.expressions, start=1)
        }


def _batches(rows: pa.Table) -> Generator[pa.RecordBatch]:
    """Yield the rows in a few batches, because each batch is sent as one message."""
    yield from rows.combine_chunks().to_batches(max_chunksize=_BATCH_ROWS)


def _typed(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """Return the values. If all values are null, use the type of the column, because DuckDB's NULL has another type."""
    return pa.chunked_array([pa.nulls(len(column), type_)]) if column.null_count == len(column) else column


def repeated(value: pa.Scalar, rows: int) -> pa.Array:
    """Return an array with `rows` copies of the value. Arrow cannot create an array with 0 copies of a list or map."""
    return pa.repeat(value, max(1, rows)).slice(0, rows)


_logger = logging.getLogger(__name__)

_MOST_PLANS: Final = 5


@dataclass(frozen=True, slots=True)
class Found:
    """The found live rows of a split, by their positions. `hidden` contains rows that were already deleted."""

    split: Add
    hidden: BitMap
    rows: BitMap


@dataclass(frozen=True, slots=True)
class _Seen:
    """The rows found in a split. `hidden` contains the rows that were already deleted during the search."""

    hidden: BitMap
    rows: BitMap


Rewrite = Callable[[Snapshot, Sequence[Found]], Sequence[Add]]
"""A function that writes new rows for the found rows of a snapshot.

For the same rows, the function returns the same splits.
"""


@dataclass(slots=True, eq=False)
class Statement:
    """A change of a table that deletes the rows of `finder` and adds splits in the same commit.

    The added splits are `adds`, or the splits that `rewrite` writes. `txn` identifies work that must be done only once.
    Memory: the row positions that `finder` returns.
    """

    log: TransactionLog
    operation: str
    finder: Finder
    rewrite: Rewrite | None = None
    adds: Sequence[Add] = ()
    txn: Txn | None = None
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _vectors: dict[str, tuple[DeletionVector, BitMap]] = field(default_factory=dict)
    _entries: dict[str, tuple[Found, Add | Remove]] = field(default_factory=dict)
    _last: tuple[int, Sequence[Action]] | None = None
    _done: Changed = field(default_factory=lambda: Changed(version=0))
    _metrics: dict[str, Any] = field(default_factory=dict)
    _needless: Snapshot | None = None
    _schema: str = ""

    def run(self, head: Snapshot) -> tuple[Changed, Snapshot]:
        """Commit on `head` or a later version. Return the outcome and the snapshot after it.

        Nothing is committed if there is nothing to do.

        Raises the errors of the finder and the commit, and those below.

        Raises:
            CommitConflict: Other commits came first in 10 attempts. Or the table changed, and the given rows no longer
                fit.

        Cost:
            For each head, the requests of the finder for splits that were not searched before. One GET per stored
            deletion vector of a split that may contain found rows, and one PUT per new stored deletion vector. The
            requests of a commit.
        """
        plans = 1
        while True:
            try:
                return self._committed(head)
            except CommitConflict:
                if self._needless is not None:
                    return Changed(version=self._needless.version), self._needless
                newest = self.log.refresh(head)
                if self.adds or newest.metadata == head.metadata or plans == _MOST_PLANS:
                    raise
                head, plans = newest, plans + 1
                self._last, self._seen = None, {}  # the table may have other columns now

    def _committed(self, head: Snapshot) -> tuple[Changed, Snapshot]:
        self._schema = head.metadata.schemaString
        actions = self._on(head)
        if not actions:
            return Changed(version=head.version), head
        result = self.log.commit(head, actions, operation=self.operation, metrics=self._metrics, rebase=self)
        if result.already_committed:
            return Changed(version=result.version), result.snapshot
        done = replace(self._done, version=result.version, commit_id=result.commit_id)
        _logger.info("%s of %s: %d rows in %d splits", self.operation, self.log.store.uri, done.rows, done.splits)
        return done, result.snapshot

    def __call__(self, _: Sequence[Action], head: Snapshot) -> Sequence[Action]:
        """Return the actions of the statement for a newer head. The commit calls this method as its `Rebase`.

        Raises `CommitConflict` if there is nothing to do, or if column names may now refer to other columns.
        """
        if head.metadata.schemaString != self._schema:
            raise CommitConflict(
                f"{self.log.store.uri}: the columns changed before version {head.version}. Plan the "
                f"{self.operation.lower()} again from a fresh snapshot"
            )
        actions = self._on(head)
        if not actions:
            self._needless = head
            raise CommitConflict(
                f"{self.log.store.uri}: at version {head.version} no row is left to {self.operation.lower()}. There "
                "is nothing to plan again"
            )
        return actions

    def _on(self, head: Snapshot) -> Sequence[Action]:
        if self._last is None or self._last[0] != head.version:
            self._last = head.version, self._actions(head)
        return self._last[1]

    def _actions(self, head: Snapshot) -> Sequence[Action]:
        found = self._found(head)
        adds = self.adds if self.rewrite is None else self.rewrite(head, found)
        entries = all_of(self._entry, found, PARALLEL_READS)
        self._count(found, adds)
        return [*entries, *adds, *(() if self.txn is None else (self.txn,))]

    def _found(self, head: Snapshot) -> Sequence[Found]:
        """Return the rows found in the snapshot `head`, ordered by the path of the split.

        Splits that have not changed since the last search are not read again.
        """
        candidates = self.finder.candidates(head)
        hidden, is_first = self._hidden(candidates.splits), not self._seen
        seen = {path: each for path, each in self._seen.items() if path in hidden and each.hidden <= hidden[path]}
        for add in candidates.splits:
            if add.path in candidates.whole:
                seen[add.path] = _Seen(BitMap(), BitMap(range(add.numRecords or 0)))
        unseen = [add for add in candidates.splits if add.path not in seen]
        # Only the finder checks the condition. The statement therefore calls the finder at least once, even if the
        # log's statistics already determine all rows.
        rows = self.finder.rows(head, unseen, hidden) if unseen or is_first else {}
        seen |= {add.path: _Seen(hidden[add.path], rows.get(add.path, BitMap())) for add in unseen}
        self._seen = seen
        every = (Found(add, hidden[add.path], seen[add.path].rows - hidden[add.path]) for add in candidates.splits)
        return sorted((each for each in every if each.rows), key=lambda each: each.split.path)

    def _hidden(self, splits: Sequence[Add]) -> Mapping[str, BitMap]:
        """Return the deleted rows of each split. Makes one GET per stored deletion vector that was not read before."""
        marked = [(add, add.deleted_rows) for add in splits if add.deleted_rows is not None]
        known = {add.path: self._vectors[add.path] for add, _ in marked if add.path in self._vectors}
        new = [(add, vector) for add, vector in marked if add.path not in known or known[add.path][0] != vector]
        read = deleted_rows_of_each(self.log.store, [add for add, _ in new])
        self._vectors |= {add.path: (vector, rows) for (add, vector), rows in zip(new, read, strict=True)}
        gone = {add.path: self._vectors[add.path][1] for add, _ in marked}
        return {add.path: gone.get(add.path, BitMap()) for add in splits}

    def _entry(self, found: Found) -> Add | Remove:
        """Return the action that hides these rows. The same rows always give the same action."""
        known = self._entries.get(found.split.path)
        if known is None or known[0] != found:
            ids, now_ms = self.log.ids, self.log.clock.now_ms()
            rows, deleted = found.split.numRecords or 0, found.hidden | found.rows
            entry = hide_rows(self.log.store, found.split, deleted, rows=rows, ids=ids, now_ms=now_ms)
            known = self._entries[found.split.path] = found, entry
        return known[1]

    def _count(self, found: Sequence[Found], adds: Sequence[Add]) -> None:
        """Set the outcome and the metrics of the commit."""
        self._done = done = Changed(
            version=0,
            rows=sum(len(each.rows) for each in found),
            splits=len(found),
            rows_added=sum(add.numRecords or 0 for add in adds),
            splits_added=len(adds),
        )
        self._metrics.update(
            rows_in=done.rows, rows_out=done.rows_added, splits_in=done.splits, splits_out=done.splits_added
        )


ROWS_AT_ONCE: Final = 2**18


@dataclass(slots=True, eq=False)
class Rewriter:
    """Writes the changed rows of an update, window by window.

    If the found rows of a window are the same as before, the written splits of the window are reused.

    Memory: about 64 MiB of rows, and the memory of `read_row_groups`.
    """

    log: TransactionLog
    given: object
    finder: ByCondition
    limits: QueryLimits
    verified: VerifiedFiles
    _written: dict[int | None, tuple[Metadata, Sequence[Found], Sequence[Add]]] = field(default_factory=dict)

    def require_valid(self, head: Snapshot) -> None:
        """Raise the errors of `Assignments` if the assignments do not fit the table. Makes no request."""
        assignments = Assignments.of(self.given, head.schema)
        assignments.applied(head.schema.empty_table(), self.limits, head.config.nonzero_vectors)

    def __call__(self, head: Snapshot, found: Sequence[Found]) -> Sequence[Add]:
        """Return the new splits for the rows found in the snapshot `head`. Raises the errors of `Assignments`.

        Cost:
            The requests of `read_row_groups`, and one PUT per split.
        """
        windows: defaultdict[int | None, list[Found]] = defaultdict(list)
        for each in found:
            windows[each.split.windowStart].append(each)
        return [add for window, own in windows.items() for add in self._of_window(head, window, own)]

    def _of_window(self, head: Snapshot, window: int | None, found: Sequence[Found]) -> Sequence[Add]:
        known = self._written.get(window)
        if known is None or known[0] != head.metadata or not _are_alike(known[1], found):
            known = self._written[window] = head.metadata, found, self._rewritten(head, found)
        return known[2]

    def _rewritten(self, head: Snapshot, found: Sequence[Found]) -> Sequence[Add]:
        ids, context = self.log.ids, context_of(head)
        assignments, nonzero = Assignments.of(self.given, head.schema), head.config.nonzero_vectors
        adds: list[Add] = []
        encodings: Encodings | None = None
        for rows in self._pieces(self._columns(head, assignments), found):
            changed = [
                assignments.applied(rows.slice(first, ROWS_AT_ONCE), self.limits, nonzero)
                for first in range(0, rows.num_rows, ROWS_AT_ONCE)
            ]
            encodings = self._inherited(head, found) if encodings is None else encodings
            adds += sort_and_write(
                self.log.store,
                pa.concat_tables(changed),
                context=context,
                ids=ids,
                now_ms=self.log.clock.now_ms(),
                encodings=encodings,
            )
        return adds

    def _inherited(self, head: Snapshot, found: Sequence[Found]) -> Encodings | None:
        """Return the encodings for new splits, from the cached footers of the old splits. Makes no request."""
        footers = [(each.split.numRecords or 0, self.verified.footers.cached_footer(each.split)) for each in found]
        inputs = [(rows, {} if footer is None else footer.entries) for rows, footer in footers]
        return inherited(inputs, stored_schema(head.schema))

    def _columns(self, head: Snapshot, assignments: Assignments) -> _Columns:
        needed = assignments.needed(head.schema.names)
        known = {**self.finder.only_values(head)}
        known |= {name: value for name, value in assignments.values.items() if name not in needed}
        read = [each for each in head.schema if each.name in needed and each.name not in known]
        return _Columns(head.schema, pa.schema(read or [head.schema.field(0)]), known)

    def _pieces(self, columns: _Columns, found: Sequence[Found]) -> Iterator[pa.Table]:
        """Yield the rows in tables of about 64 MiB."""
        rows = {each.split.path: each.rows for each in found}

        def groups(split: OpenSplit) -> Sequence[int]:
            return groups_with(rows[split.add.path], split.footer, range(split.row_groups))

        read = read_row_groups(
            lambda part: columns.whole(part.taken(rows[part.split.path])),
            self.log.store,
            [each.split for each in found],
            columns.read,
            whole=columns.schema,
            groups=groups,
            footers=self.verified.footers.of_a_read(),
            as_dictionary=True,
        )
        waiting: list[pa.Table] = []
        size = 0
        with closing(read) as each_part:
            for part in each_part:
                waiting.append(part)
                size += part.nbytes
                if size >= PIECE_BYTES:
                    yield pa.concat_tables(waiting)
                    waiting, size = [], 0
        if waiting:
            yield pa.concat_tables(waiting)


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns of a table.

    `read` are the columns to read. `known` are the columns that have one known value in all rows.
    """

    schema: pa.Schema
    read: pa.Schema
    known: Mapping[str, pa.Scalar]

    def whole(self, rows: pa.Table) -> pa.Table:
        """Return the rows with all columns. Columns that are not needed are null."""
        read = conform(rows, self.read)
        return pa.table([self._column(each, read) for each in self.schema], schema=self.schema)

    def _column(self, field: pa.Field, rows: pa.Table) -> pa.Array | pa.ChunkedArray:
        if field.name in self.known:
            return repeated(self.known[field.name], rows.num_rows)
        return rows.column(field.name) if field.name in self.read.names else pa.nulls(rows.num_rows, field.type)


def _are_alike(one: Sequence[Found], other: Sequence[Found]) -> bool:
    """Return True if both sequences contain the same found rows. The function ignores rows deleted earlier."""
    return [(each.split.path, each.rows) for each in one] == [(each.split.path, each.rows) for each in other]
