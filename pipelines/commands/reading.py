"""The query commands `sql`, `get`, `explain`, `search` and `recall`, and the command `cache` for the cache on disk."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.commands import output
from pipelines.commands.arguments import At, Consistency, Everything, Json, Uri, open_table, reject_combined
from pipelines.commands.output import cell, number
from storage_core.base.errors import InvalidInput
from storage_core.base.text import quoted

if TYPE_CHECKING:
    from pathlib import Path

    from storage_core.base.limits import QueryLimits
    from storage_core.read.plan import Plan


Clear = Annotated[bool, typer.Option("--clear", help="Empty the cache. Running reads are not affected.")]


def cache(*, clear: Clear = False, as_json: Json = False) -> None:
    """Show or clear the local cache of tables on S3.

    --clear also removes temporary files of killed processes. TIDEMARK_CACHE_DIR sets the folder of the cache.
    TIDEMARK_CACHE_MIB sets the largest size of the cache. A size of 0 turns the cache off.

    Example: tidemark cache --clear
    """
    from storage_core.base.errors import unavailable
    from storage_core.base.limits import CacheSettings
    from storage_core.base.process import remove_abandoned
    from storage_core.store.pieces import BoundedFolder

    settings = CacheSettings.of(os.environ)
    found: dict[str, object] = {
        "folder": None if settings.folder is None else str(settings.folder),
        "most_bytes": settings.most_bytes if settings.is_on else 0,
    }
    if clear:
        for each in {None, settings.folder}:
            remove_abandoned(each)
    try:
        folder = None if settings.folder is None else BoundedFolder(settings.folder, settings.most_bytes)
        cleared = folder.clear() if clear and folder is not None else 0
        entries = [] if folder is None else folder.entries()
    except OSError as error:
        raise unavailable(f"cache {settings.folder}", error) from error
    found |= {"bytes": sum(each.size_bytes for each in entries), "entries": len(entries), "cleared_bytes": cleared}
    if as_json:
        output.json_line(found)
    else:
        output.fields(found, {"folder": cell, **dict.fromkeys(list(found)[1:], number)})


def folder_of_segments() -> Path | None:
    """Return the folder of the cache. Return None if the cache is off or the folder cannot be created."""
    from storage_core.base.limits import CacheSettings

    settings = CacheSettings.of(os.environ)
    if settings.folder is None or not settings.is_on:
        return None
    try:
        settings.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    return settings.folder


def show_matches(
    uri: str, query: str | None, *, facet: str | None, limit: int, as_json: bool, of_rows: Mapping[str, Any]
) -> None:
    """Print the number of matching rows. With `facet`, print this number for each value of the column `facet`.

    `of_rows` contains the arguments for `search_count` that select the rows to count.
    """
    table, cache_dir = open_table(uri), folder_of_segments()
    if facet is not None:
        found = table.search_facets(query, facet, limit=limit, cache_dir=cache_dir, **of_rows)
        output.rows(found.to_arrow(), as_json=as_json, everything=True)
        return
    number = table.search_count(query, cache_dir=cache_dir, **of_rows)
    if as_json:
        output.json_line({"count": number})
    else:
        output.line(f"{number:,} rows match")


# SQL and lookups.


Seconds = Annotated[
    float | None,
    typer.Option(metavar="N", envvar="TIDEMARK_SQL_SECONDS", help="Time limit in seconds (default: 300)."),
]
MemoryMib = Annotated[
    int | None,
    typer.Option(metavar="MIB", min=16, envvar="TIDEMARK_SQL_MEMORY_MIB", help="Memory limit in MiB (default: 4096)."),
]
SpillMib = Annotated[
    int | None,
    typer.Option(
        metavar="MIB",
        min=0,
        envvar="TIDEMARK_SQL_SPILL_MIB",
        help="Limit of temporary disk space in MiB (default: 16384).",
    ),
]


def sql(
    uri: Uri,
    query: Annotated[str, typer.Argument(metavar="SELECT", help='A SELECT, such as "select count(*) from t".')],
    *,
    at: At = None,
    consistency: Consistency = None,
    seconds: Seconds = None,
    memory_mib: MemoryMib = None,
    spill_mib: SpillMib = None,
    analyze: Annotated[
        bool, typer.Option("--analyze", help="Run the query, and print what it read instead of rows.")
    ] = False,
    everything: Everything = False,
    as_json: Json = False,
) -> None:
    """Run a SELECT over the table. The name of the table in SQL is t.

    The SQL dialect is DuckDB's. The query can read this table and nothing else.

    Example: tidemark sql clicks "select url, avg(ms) from t group by url"
    """
    from storage_core.engine.sandbox.process import prepare

    prepare()  # load DuckDB during the opening of the table
    table, limits = open_table(uri), _limits(seconds, memory_mib, spill_mib)
    if analyze:
        plan = table.explain(query, at=at, consistency=consistency or "snapshot", limits=limits, analyze=True)
        _show_plan(plan, as_json=as_json)
        return
    answer = table.sql(query, at=at, consistency=consistency or "snapshot", limits=limits)
    output.rows(answer.to_arrow(), as_json=as_json, everything=everything)


def _limits(seconds: float | None, memory_mib: int | None, spill_mib: int | None) -> QueryLimits:
    from storage_core.base.limits import QueryLimits  # `--help` does not need the core

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
    explain: Annotated[bool, typer.Option("--explain", help="Print the plan, and no rows.")] = False,
    analyze: Annotated[
        bool, typer.Option("--analyze", help="Run the lookup, and print what it read instead of the row.")
    ] = False,
    everything: Everything = False,
    as_json: Json = False,
) -> None:
    """Print the row with a primary key.

    By default, the row includes the last acknowledged write. --at and --consistency select another state. If the row
    does not exist, the command does not fail.

    Example: tidemark get planes N10156
    """
    from pipelines.commands.output import shown

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
    query: Annotated[str, typer.Argument(metavar="SELECT", help="The SELECT, as for `tidemark sql`.")],
    *,
    at: At = None,
    consistency: Consistency = None,
    as_json: Json = False,
) -> None:
    """List the splits that a query would read, with reasons.

    For a search, use `tidemark search` with the option --explain.

    Example: tidemark explain clicks "select url from t where ms > 100"
    """
    plan = open_table(uri).explain(query, at=at, consistency=consistency or "snapshot")
    _show_plan(plan, as_json=as_json, with_splits=True)


def _show_plan(plan: Plan, *, as_json: bool, with_splits: bool = False) -> None:
    """Print the plan of a SELECT. With `with_splits`, also print the splits that the query reads."""
    if as_json:
        output.json_line(plan.to_dict())
        return
    output.line(str(plan))
    if with_splits:
        shown = {"window_start": output.window, "rows": output.number, "size": output.number, "path": output.cell}
        read = plan.tables[0].to_dict()["read"]
        output.records(read, shown, as_json=False, nothing="no split can contain a matching row")


# Search.


Index = Annotated[
    str | None, typer.Option(metavar="NAME", help="The index to search. Required if several indexes could answer.")
]
Indexes = Annotated[
    list[str] | None,
    typer.Option(
        "--index",
        metavar="NAME",
        help="An index to search. Required if several indexes can answer. Repeat --index to fuse indexes.",
    ),
]
Fusion = Annotated[
    str,
    typer.Option(metavar="HOW", help="Fuse several indexes by ranks (rrf), or by scores scaled to 0 to 1 (linear)."),
]
Weights = Annotated[
    list[str] | None,
    typer.Option(
        "--weight",
        metavar="NAME=N",
        help="Weight of an index in the fusion. A full-text index of weight 0 only filters.",
    ),
]
Boosts = Annotated[
    list[str] | None,
    typer.Option("--boost", metavar="COLUMN=N", help="Multiply the full-text scores of a column."),
]
Probes = Annotated[
    int | None, typer.Option(metavar="N", help="Clusters to read in each segment (default: the setting of the index).")
]
Syntax = Annotated[
    str,
    typer.Option(
        metavar="SYNTAX", help="For text that is not a valid query: search its words (lenient), or fail (strict)."
    ),
]
Limit = Annotated[int | None, typer.Option(metavar="N", help="Largest number of rows, best first (default: 10).")]
Offset = Annotated[int, typer.Option(metavar="N", help="Skip this many of the best rows, for the next page.")]
Filter = Annotated[
    str | None,
    typer.Option(
        "--where", "--filter", metavar="CONDITION", help='Only rows that meet this condition, such as "status >= 500".'
    ),
]
OrderBy = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="Order by this column instead of by score, largest value first.")
]
Ascending = Annotated[bool, typer.Option("--ascending", help="With --order-by: smallest value first.")]
Snippets = Annotated[
    bool, typer.Option("--snippets", help="Add a fragment of each matching text, as HTML with <b> around the matches.")
]
Count = Annotated[bool, typer.Option("--count", help="Print the number of matching rows instead.")]
Facet = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Print this column's most frequent values among all matches. The column needs a bitmap index.",
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Only these columns, such as path,status. Scores are added unless NAMES contains a score column.",
    ),
]
Explain = Annotated[bool, typer.Option("--explain", help="Print the plan, and no rows.")]
Analyze = Annotated[bool, typer.Option("--analyze", help="Run the search, and print what it read instead of rows.")]


def search(
    uri: Uri,
    query: Annotated[
        str | None,
        typer.Argument(
            metavar="QUERY",
            help='Words for a full-text index. For a bitmap index: 404, 404,500 or {"status": {">=": 500}}.',
        ),
    ] = None,
    *,
    text: Annotated[str | None, typer.Option("--text", metavar="QUERY", help="The same as QUERY.")] = None,
    vector: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBERS",
            help="Find the nearest rows: [0.1,0.2] or @file.npy. With QUERY, the results of QUERY and "
            "of NUMBERS are fused.",
        ),
    ] = None,
    index: Indexes = None,
    fusion: Fusion = "rrf",
    weight: Weights = None,
    boost: Boosts = None,
    limit: Limit = None,
    offset: Offset = 0,
    filter_: Filter = None,
    syntax: Syntax = "lenient",
    nprobe: Probes = None,
    order_by: OrderBy = None,
    ascending: Ascending = False,
    snippets: Snippets = False,
    count: Count = False,
    facet: Facet = None,
    columns: Columns = None,
    explain: Explain = False,
    analyze: Analyze = False,
    at: At = None,
    consistency: Consistency = None,
    everything: Everything = False,
    as_json: Json = False,
) -> None:
    """Find the rows that best match a query, a vector, or both.

    The search finds all matches, even if an index is not up to date. If rows do not have an index segment yet, the
    search reads and indexes these rows in memory.

    Example: tidemark search notes "green shoes" --limit 5
    """
    if text is not None and query is not None:
        raise InvalidInput("the query is given twice, as --text and as QUERY. Leave one of them out.")
    query, most = text if query is None else query, 10 if limit is None else limit
    if count or facet is not None:
        of_scores = {"--vector": vector, "--nprobe": nprobe, "--boost": boost, "--weight": weight}
        of_order = {"--fusion": None if fusion == "rrf" else fusion, "--order-by": order_by, "--ascending": ascending}
        of_page = {"--offset": offset or None, "--snippets": snippets, "--columns": columns}
        of_plan = {"--explain": explain, "--analyze": analyze}
        of_count = {"--facet": facet, "--limit": limit} if count else {}
        others = {**of_count, **of_page, **of_order, **of_scores, **of_plan}
        reject_combined("--count" if count else "--facet", others, why="prints no rows")
        of_rows = {"index": index or None, "filter": filter_, "syntax": syntax, "at": at}
        of_rows |= {"consistency": consistency or "snapshot"}
        show_matches(uri, query, facet=facet, limit=most, as_json=as_json, of_rows=of_rows)
        return
    from pipelines.commands.arguments import vector_of

    question: dict[str, Any] = {
        "vector": None if vector is None else vector_of(vector),
        "index": index or None,
        "fusion": fusion,
        "weights": _numbers("--weight", weight),
        "boosts": _numbers("--boost", boost),
        "limit": most,
        "offset": offset,
        "filter": filter_,
        "syntax": syntax,
        "nprobe": nprobe,
        "at": at,
        "consistency": consistency or "snapshot",
        "cache_dir": folder_of_segments(),
    }
    table = open_table(uri)
    names = None if columns is None else list(dict.fromkeys(columns.split(",")))
    question["columns"] = None if names is None else [name for name in names if name in table.schema.names] or None
    if explain or analyze:
        of_order = {"--order-by": order_by, "--ascending": ascending, "--snippets": snippets}
        reject_combined(
            "--explain" if explain else "--analyze", of_order, why="explains only a search that orders by score"
        )
        plan = table.explain_search(query, **question, analyze=analyze)
        if as_json:
            output.json_line(plan.to_dict())
        else:
            output.line(str(plan))
        return
    answer = table.search(query, **question, order_by=order_by, descending=not ascending, snippets=snippets)
    known = dict.fromkeys([*table.schema.names, *answer.column_names])
    if unknown := [name for name in names or () if name not in known]:
        raise InvalidInput(
            f"--columns: unknown column {', '.join(map(quoted, unknown))}. The answer has {', '.join(known)}"
        )
    added = [name for name in answer.column_names if name not in table.schema.names]
    if names is not None and not {*added} & {*names}:
        names += added
    output.rows(answer.to_arrow() if names is None else answer.select(names), as_json=as_json, everything=everything)


def recall(
    uri: Uri,
    *,
    index: Index = None,
    queries: Annotated[
        int,
        typer.Option(
            metavar="N", help="Number of sampled rows. The command searches the neighbours of each sampled row."
        ),
    ] = 100,
    k: Annotated[int, typer.Option("--k", metavar="N", help="Number of neighbours per sampled row.")] = 10,
    filter_: Filter = None,
    nprobe: Probes = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the random sample of rows.")] = 0,
    at: At = None,
    as_json: Json = False,
) -> None:
    """Measure how many of the nearest rows a search finds.

    The command searches for the nearest rows of some embeddings from the table. The command compares each result with
    the exact result over all rows.

    Example: tidemark recall notes --index near
    """
    from dataclasses import asdict

    found = open_table(uri, at).recall(
        index, queries, k, filter_, nprobe=nprobe, seed=seed, cache_dir=folder_of_segments()
    )
    if as_json:
        output.json_line(asdict(found))
        return
    output.line(f"index {found.index}: recall@{found.k} {found.recall:.4f} over {found.queries:,} queries")
    output.line(f"  rows scored exactly: {found.rows:,}. Rows ranked by vectors in all searches: {found.candidates:,}")


def _numbers(option: str, given: list[str] | None) -> dict[str, float] | None:
    """Return the number for each name, from texts such as `words=2`. Raises `InvalidInput` if a text has no number."""
    found = {}
    for each in given or []:
        name, _, number = each.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = None
        if not name or value is None or name in found:
            raise InvalidInput(
                f"{option}: {quoted(each)} is not a name with a number, or its name is given twice. Give each name "
                "once, such as words=2"
            )
        found[name] = value
    return found or None
