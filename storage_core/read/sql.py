"""SQL over snapshots: DuckDB runs the query, Tidemark leaves out the splits its conditions cannot match."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from storage_core.engine.parameters import Parameters, with_values
from storage_core.engine.sandbox.pool import prepare
from storage_core.engine.statement import TABLE, check, is_table_name, parse
from storage_core.engine.tree import Node
from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.headroom import QUERY_BYTES, require_headroom
from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.read.answer_values import reject_changed_values
from storage_core.read.column_names import in_columns
from storage_core.read.columns_read import columns_read
from storage_core.read.plan import Plan, RawPart, TablePlan, Watched
from storage_core.read.planning import table_plan
from storage_core.read.predicate import Predicate
from storage_core.read.query_errors import query_errors
from storage_core.read.source import Source, answer
from storage_core.read.splits_source import source_of
from storage_core.read.sql_first import first_of, metrics_asked
from storage_core.read.sql_result import SqlResult
from storage_core.read.sql_tables import where_of
from storage_core.read.verified import Verified
from storage_core.settings.query import QueryLimits


@dataclass(frozen=True, slots=True)
class TableView:
    """A table as a query reads it. With `records`, they are folded over the base first; some are of `raw` logs."""

    store: ObjectStore
    snapshot: Snapshot
    verified: Verified
    records: pa.Table | None = None
    raw: tuple[RawPart, ...] = ()


Opened = Callable[[Predicate | None], TableView]
"""Gives the view of a table in which a query finds the rows that meet a condition."""


@dataclass(frozen=True, slots=True)
class _Read:
    """What a query reads by one name: the splits that it may need, and the rows."""

    source: Source
    splits: Sequence[Add] = ()
    view: TableView | None = None

    def recheck(self) -> None:
        """See `Verified.recheck`."""
        if self.view is not None:
            self.view.verified.recheck(self.view.store, self.source.splits)


@require_headroom("a query", size=QUERY_BYTES)
def query(
    tables: Mapping[str, Opened | pa.Table],
    text: str,
    *,
    limits: QueryLimits | None = None,
    parameters: Parameters | None = None,
) -> SqlResult:
    """Return the answer of one SELECT over tables and rows in memory, which the query calls by their names.

    Raises `InvalidInput` for anything but one SELECT, when the query is wrong, or its parameters are others than have
    values, and `Unavailable` when it passes one of its limits. The query can read the splits of the tables and nothing
    else, and write nothing (decision 0083).
    """
    prepare()  # a process starts while the text is checked, as most are sound
    text, tree = _checked(text, parameters, tables)
    limits = QueryLimits() if limits is None else limits
    views = _views(tables, tree)
    schemas = _schemas(views)
    read = {
        name: _Read(Source(view)) if isinstance(view, pa.Table) else _read(view, tree, name, schemas=schemas, text=text)
        for name, view in views.items()
    }
    splits = [add for each in read.values() for add in each.splits]
    files = [file for each in read.values() for file in each.source.splits]

    def batches() -> Iterator[pa.RecordBatch]:
        with query_errors(text, splits, limits, files=files), result:
            for batch in result:
                reject_changed_values(batch)
                yield batch
            for each in read.values():
                each.recheck()

    with query_errors(text, splits, limits, files=files):
        sources = {name: each.source for name, each in read.items()}
        result = answer(sources, text, limits, spill_bytes=limits.spill_bytes)
    return SqlResult(result.schema, batches(), on_stream=result.stream, memory_bytes=limits.memory_bytes, query=text)


def explain(
    tables: Mapping[str, Opened | pa.Table],
    text: str,
    *,
    limits: QueryLimits | None = None,
    parameters: Parameters | None = None,
    analyze: Collection[Watched] | None = None,
) -> Plan:
    """Return what the query reads of each of the tables, rows in memory left aside.

    With what to look at meanwhile in `analyze` it is run as well, and its rows are thrown away as they come. Requests:
    those of `table_plan` and of opening the tables, and where it is run those that the analysis tells.
    """
    checked, tree = _checked(text, parameters, tables)
    views = _views(tables, tree)
    schemas = _schemas(views)
    found = ((name, view) for name, view in views.items() if isinstance(view, TableView))
    plan = Plan(tuple(_plan(view, tree, name, schemas) for name, view in found))
    if analyze is None:
        return plan
    return plan.analyzed(analyze, lambda: query(tables, checked, limits=limits).to_reader())


def _views(tables: Mapping[str, Opened | pa.Table], tree: Node) -> Mapping[str, TableView | pa.Table]:
    """What is read by each name. Before they are opened it is not known which columns tables have."""
    return {name: each if isinstance(each, pa.Table) else each(where_of(tree, name)) for name, each in tables.items()}


def _schemas(views: Mapping[str, TableView | pa.Table]) -> Mapping[str, pa.Schema]:
    return {name: each.schema if isinstance(each, pa.Table) else each.snapshot.schema for name, each in views.items()}


def _plan(view: TableView, tree: Node, name: str, schemas: Mapping[str, pa.Schema]) -> TablePlan:
    predicate = in_columns(where_of(tree, name, schemas), view.snapshot.schema.names)
    columns = columns_read(tree, view.snapshot.schema.names, name)
    return table_plan(
        view.store,
        view.snapshot,
        predicate,
        name=name,
        columns=columns,
        verified=view.verified,
        records=view.records,
        raw=view.raw,
        first=first_of(tree, name, view.snapshot.schema.names),
        asked=metrics_asked(tree, name, view.snapshot.schema.names),
    )


def other_names(tables: object) -> list[str]:
    """Return the names by which a query calls tables besides `t`. Raises `InvalidInput` for what is none."""
    if not isinstance(tables, Mapping):
        raise InvalidInput(f"tables are given by name, as in tables={{'p': planes}}, found {quoted(tables)}")
    taken = {TABLE}
    for name in tables:
        if not isinstance(name, str) or not is_table_name(name) or name.lower() in taken:
            advice = "a plain name that no other table of the query has, nor DuckDB for its own"
            raise InvalidInput(f"a query cannot call a table {quoted(name)}: give it {advice}", name=name)
        taken.add(name.lower())
    return list(tables)


def _read(view: TableView, tree: Node, name: str, *, schemas: Mapping[str, pa.Schema], text: str) -> _Read:
    predicate = in_columns(where_of(tree, name, schemas), view.snapshot.schema.names)
    splits, source = source_of(
        view.store,
        view.snapshot,
        predicate,
        verified=view.verified,
        records=view.records,
        columns=columns_read(tree, view.snapshot.schema.names, name),
        query=text,
        first=first_of(tree, name, view.snapshot.schema.names),
        asked=metrics_asked(tree, name, view.snapshot.schema.names),
    )
    return _Read(source, splits, view)


def _checked(text: str, parameters: Parameters | None, names: Collection[str]) -> tuple[str, Node]:
    """The query with its values, and its tree."""
    if parameters is not None:
        text = with_values(text, parameters)
    tree = parse(text)
    check(tree, text, tables=[name.lower() for name in names])
    return text, tree
