"""Questions: `sql`, `get`, `explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.commands import output
from pipelines.commands.arguments import At, Consistency, Everything, Json, Uri
from pipelines.commands.target import open_table

if TYPE_CHECKING:
    from storage_core.settings.query import QueryLimits

Seconds = Annotated[
    float | None,
    typer.Option(metavar="N", envvar="TIDEMARK_SQL_SECONDS", help="The longest the query may take; 300 by default."),
]
MemoryMib = Annotated[
    int | None,
    typer.Option(
        metavar="MIB", envvar="TIDEMARK_SQL_MEMORY_MIB", help="The most memory it may take; 4096 MiB by default."
    ),
]
SpillMib = Annotated[
    int | None,
    typer.Option(
        metavar="MIB", envvar="TIDEMARK_SQL_SPILL_MIB", help="The most it may spill to disk; 16384 MiB by default."
    ),
]


def sql(
    uri: Uri,
    query: Annotated[str, typer.Argument(metavar="SELECT", help='Such as "select count(*) from t".')],
    *,
    at: At = None,
    consistency: Consistency = None,
    seconds: Seconds = None,
    memory_mib: MemoryMib = None,
    spill_mib: SpillMib = None,
    analyze: Annotated[bool, typer.Option("--analyze", help="Run it, and say what it read instead of rows.")] = False,
    everything: Everything = False,
    as_json: Json = False,
) -> None:
    """Answer a SELECT over the table, which it calls t.

    The dialect is DuckDB's. The query can read this table and nothing else.
    """
    from storage_core.engine.sandbox.pool import prepare

    prepare()  # it loads DuckDB while the table is opened
    table, limits = open_table(uri), _limits(seconds, memory_mib, spill_mib)
    if analyze:
        from pipelines.commands import plans

        plan = table.explain(query, at=at, consistency=consistency or "snapshot", limits=limits, analyze=True)
        plans.show_query(plan, as_json=as_json)
        return
    answer = table.sql(query, at=at, consistency=consistency or "snapshot", limits=limits)
    output.rows(answer.to_arrow(), as_json=as_json, everything=everything)


def _limits(seconds: float | None, memory_mib: int | None, spill_mib: int | None) -> QueryLimits:
    from storage_core.settings.query import QueryLimits  # the help needs no part of the core

    usual = QueryLimits()
    return QueryLimits(
        seconds=usual.seconds if seconds is None else seconds,
        memory_bytes=usual.memory_bytes if memory_mib is None else memory_mib * 2**20,
        spill_bytes=usual.spill_bytes if spill_mib is None else spill_mib * 2**20,
    )


def get(
    uri: Uri,
    key: Annotated[list[str], typer.Argument(metavar="KEY", help="A value for each primary-key column, in order.")],
    *,
    at: At = None,
    consistency: Consistency = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say what it would ask, and print no row.")] = False,
    analyze: Annotated[bool, typer.Option("--analyze", help="Run it, and say what it asked instead.")] = False,
    everything: Everything = False,
    as_json: Json = False,
) -> None:
    """Print the row of a primary key.

    It is the row as of the last acknowledged write, unless --at or --consistency says otherwise. No row is no error.
    """
    from pipelines.commands.row_values import shown

    table = open_table(uri)
    if explain or analyze:
        plan = table.explain_get(key, at=at, consistency=consistency, analyze=analyze)
        if as_json:
            output.json_line(plan.to_dict())
        else:
            output.line(str(plan))
        return
    found = table.get(key, at=at, consistency=consistency)
    if found is None:
        if not as_json:
            output.line(f"no row with the key {', '.join(key)}")
        return
    row = shown(found, table.schema)
    if as_json:
        output.json_line(row)
    else:
        output.fields(row, dict.fromkeys(row, output.whole if everything else output.cell))


def explain(
    uri: Uri,
    query: Annotated[str, typer.Argument(metavar="SELECT", help="What `sql` would answer.")],
    *,
    at: At = None,
    consistency: Consistency = None,
    as_json: Json = False,
) -> None:
    """Say which splits a query would read, and why no others.

    `tidemark search … --explain` says it of a search.
    """
    from pipelines.commands import plans

    plan = open_table(uri).explain(query, at=at, consistency=consistency or "snapshot")
    plans.show_query(plan, as_json=as_json, with_splits=True)
