"""Questions: `sql`, `search`, `recall`, `get`, `explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.commands import output
from pipelines.commands.arguments import At, Consistency, Everything, Json, Uri
from pipelines.commands.caching import folder_of_segments
from pipelines.commands.target import open_table
from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted

if TYPE_CHECKING:
    from storage_core.settings.query import QueryLimits

Index = Annotated[str | None, typer.Option(metavar="NAME", help="The index that answers; needed where several could.")]
Indexes = Annotated[
    list[str] | None,
    typer.Option("--index", metavar="NAME", help="An index that answers; needed where several could. Repeat to fuse."),
]
Fusion = Annotated[
    str, typer.Option(metavar="HOW", help="rrf: several indexes are fused by ranks; linear: by scores from 0 to 1.")
]
Weights = Annotated[
    list[str] | None,
    typer.Option(
        "--weight", metavar="NAME=N", help="How much an index weighs beside others; a full-text one of 0 filters."
    ),
]
Boosts = Annotated[
    list[str] | None,
    typer.Option("--boost", metavar="COLUMN=N", help="Multiply the full-text scores of a column."),
]
Probes = Annotated[
    int | None, typer.Option(metavar="N", help="Look into so many clusters of each segment; by default of the index.")
]
Syntax = Annotated[
    str, typer.Option(metavar="SYNTAX", help="lenient: a text that is no full-text query is words; strict: an error.")
]
Limit = Annotated[int, typer.Option(metavar="N", help="At most so many rows, the best first.")]
Offset = Annotated[int, typer.Option(metavar="N", help="Leave out so many of the best rows: the next page.")]
Filter = Annotated[
    str | None, typer.Option("--filter", metavar="CONDITION", help='Only rows that meet it: "status >= 500".')
]
Columns = Annotated[str | None, typer.Option(metavar="NAMES", help="Only these columns of a row: path,status.")]
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


def search(
    uri: Uri,
    query: Annotated[
        str | None,
        typer.Argument(
            metavar="QUERY", help='Words for full text; for a bitmap 404 or 404,500 or {"status": {">=": 500}}.'
        ),
    ] = None,
    *,
    vector: Annotated[
        str | None,
        typer.Option(metavar="NUMBERS", help="Find the nearest rows: [0.1,0.2] or @file.npy; with QUERY fuse both."),
    ] = None,
    index: Indexes = None,
    fusion: Fusion = "rrf",
    weight: Weights = None,
    boost: Boosts = None,
    limit: Limit = 10,
    offset: Offset = 0,
    filter_: Filter = None,
    syntax: Syntax = "lenient",
    nprobe: Probes = None,
    columns: Columns = None,
    at: At = None,
    consistency: Consistency = None,
    everything: Everything = False,
    as_json: Json = False,
) -> None:
    """Find the best rows for a query, a vector, or both.

    All matches are found however far the index lags: what no segment covers is read and indexed on the fly.
    """
    wanted = None if vector is None else _vector(vector)
    table = open_table(uri)
    names = None if columns is None else list(dict.fromkeys(columns.split(",")))
    answer = table.search(
        query,
        vector=wanted,
        index=index or None,
        fusion=fusion,
        weights=_numbers("--weight", weight),
        boosts=_numbers("--boost", boost),
        limit=limit,
        offset=offset,
        columns=None if names is None else [name for name in names if name in table.schema.names] or None,
        filter=filter_,
        syntax=syntax,
        nprobe=nprobe,
        at=at,
        consistency=consistency or "snapshot",
        cache_dir=folder_of_segments(),
    )
    known = dict.fromkeys([*table.schema.names, *answer.column_names])
    if unknown := [name for name in names or () if name not in known]:
        raise InvalidInput(f"--columns: there is no {', '.join(unknown)}; an answer has {', '.join(known)}")
    output.rows(answer.to_arrow() if names is None else answer.select(names), as_json=as_json, everything=everything)


def recall(
    uri: Uri,
    *,
    index: Index = None,
    queries: Annotated[int, typer.Option(metavar="N", help="Ask for the neighbours of so many rows.")] = 100,
    k: Annotated[int, typer.Option("--k", metavar="N", help="Of each so many.")] = 10,
    filter_: Filter = None,
    nprobe: Probes = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Another one draws other rows.")] = 0,
    at: At = None,
    as_json: Json = False,
) -> None:
    """Measure how many nearest rows are found.

    The vectors of some rows are searched for, and all rows are scored exactly beside it.
    """
    from dataclasses import asdict

    found = open_table(uri, at).recall(
        index, queries, k, filter_, nprobe=nprobe, seed=seed, cache_dir=folder_of_segments()
    )
    if as_json:
        output.json_line(asdict(found))
        return
    output.line(f"index {found.index}: recall@{found.k} {found.recall:.4f} over {found.queries:,} queries")
    output.line(f"  rows scored exactly: {found.rows:,}; candidates of all searches: {found.candidates:,}")


def _numbers(option: str, given: list[str] | None) -> dict[str, float] | None:
    """The number of each name, of texts such as `words=2`. Raises `InvalidInput`."""
    found = {}
    for each in given or []:
        name, _, number = each.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = None
        if not name or value is None or name in found:
            raise InvalidInput(f"{option}: {quoted(each)} is no name with a number, such as words=2, or is named twice")
        found[name] = value
    return found or None


def _vector(text: str) -> object:
    """The numbers of a JSON list, or of the file behind an @. Raises `InvalidInput`."""
    import json

    import numpy as np

    try:
        return np.load(text[1:]) if text.startswith("@") else json.loads(text)
    except (OSError, ValueError, EOFError, RecursionError) as error:
        raise InvalidInput(
            f"--vector: {quoted(text)} is no list of numbers as JSON, and no file of numpy behind @: {error}"
        ) from error


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
            output.line(f"no row with the key {output.printable(', '.join(key))}")
        return
    row = shown(found, table.schema)
    if as_json:
        output.json_line(row)
    else:
        output.fields(row, dict.fromkeys(row, output.whole if everything else output.cell))


def explain(
    uri: Uri,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A SELECT; with --index, what would be searched for.")],
    *,
    index: Annotated[
        list[str] | None, typer.Option("--index", metavar="NAME", help="Explain a search on this index; repeat it.")
    ] = None,
    at: At = None,
    consistency: Consistency = None,
    as_json: Json = False,
) -> None:
    """Say what a query or a search would read.

    Of a query: which splits, and what left the others out. With --index: which splits segments answer, and which are
    read and indexed on the fly.
    """
    from pipelines.commands import plans

    if not index:
        plan = open_table(uri).explain(query, at=at, consistency=consistency or "snapshot")
        plans.show_query(plan, as_json=as_json, with_splits=True)
    elif consistency is None:
        wanted = index[0] if len(index) == 1 else index
        plans.show_search(open_table(uri, at).explain_search(index=wanted), as_json=as_json)
    else:
        raise InvalidInput("give either --index or --consistency, not both: a search is explained as of its snapshot")
