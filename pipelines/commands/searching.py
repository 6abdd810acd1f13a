"""Searches: `search`, `recall`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pipelines.commands import output
from pipelines.commands.arguments import At, Consistency, Everything, Json, Uri, refuse_beside
from pipelines.commands.caching import folder_of_segments
from pipelines.commands.counting import show_matches
from pipelines.commands.target import open_table
from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted

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
Limit = Annotated[int | None, typer.Option(metavar="N", help="At most so many rows, the best first; 10 by default.")]
Offset = Annotated[int, typer.Option(metavar="N", help="Leave out so many of the best rows: the next page.")]
Filter = Annotated[
    str | None, typer.Option("--filter", metavar="CONDITION", help='Only rows that meet it: "status >= 500".')
]
OrderBy = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="In the order of this column instead of by score, newest first.")
]
Ascending = Annotated[bool, typer.Option("--ascending", help="With --order-by: least first.")]
Snippets = Annotated[bool, typer.Option("--snippets", help="Add a fragment of each text, as HTML with matches in <b>.")]
Count = Annotated[bool, typer.Option("--count", help="Print how many rows match instead.")]
Facet = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="Print its most frequent values among all matches; a bitmap index is over it."),
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES", help="Only these columns of a row: path,status. Its scores stay unless some are named."
    ),
]
Explain = Annotated[bool, typer.Option("--explain", help="Say what it would ask, and print no row.")]
Analyze = Annotated[bool, typer.Option("--analyze", help="Run it, and say what it did instead of rows.")]


def search(
    uri: Uri,
    query: Annotated[
        str | None,
        typer.Argument(
            metavar="QUERY", help='Words for full text; for a bitmap 404 or 404,500 or {"status": {">=": 500}}.'
        ),
    ] = None,
    *,
    text: Annotated[str | None, typer.Option("--text", metavar="QUERY", help="The same as QUERY.")] = None,
    vector: Annotated[
        str | None,
        typer.Option(metavar="NUMBERS", help="Find the nearest rows: [0.1,0.2] or @file.npy; with QUERY fuse both."),
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
    """Find the best rows for a query, a vector, or both.

    All matches are found however far the index lags: what no segment covers is read and indexed on the fly.
    """
    if text is not None and query is not None:
        raise InvalidInput("--text is the query, and one stands before the options as well; leave one of them out")
    query, most = text if query is None else query, 10 if limit is None else limit
    if count or facet is not None:
        of_scores = {"--vector": vector, "--nprobe": nprobe, "--boost": boost, "--weight": weight}
        of_order = {"--fusion": None if fusion == "rrf" else fusion, "--order-by": order_by, "--ascending": ascending}
        of_page = {"--offset": offset or None, "--snippets": snippets, "--columns": columns}
        of_plan = {"--explain": explain, "--analyze": analyze}
        of_count = {"--facet": facet, "--limit": limit} if count else {}
        others = {**of_count, **of_page, **of_order, **of_scores, **of_plan}
        refuse_beside("--count" if count else "--facet", others, why="prints no rows")
        of_rows = {"index": index or None, "filter": filter_, "syntax": syntax, "at": at}
        of_rows |= {"consistency": consistency or "snapshot"}
        show_matches(uri, query, facet=facet, limit=most, as_json=as_json, of_rows=of_rows)
        return
    from pipelines.commands.vector_argument import vector_of

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
        refuse_beside("--explain" if explain else "--analyze", of_order, why="is of a search by score")
        from pipelines.commands import plans

        plans.show_search(table.explain_search(query, **question, analyze=analyze), as_json=as_json)
        return
    answer = table.search(query, **question, order_by=order_by, descending=not ascending, snippets=snippets)
    known = dict.fromkeys([*table.schema.names, *answer.column_names])
    if unknown := [name for name in names or () if name not in known]:
        raise InvalidInput(f"--columns: there is no {', '.join(unknown)}; an answer has {', '.join(known)}")
    added = [name for name in answer.column_names if name not in table.schema.names]
    if names is not None and not {*added} & {*names}:
        names += added
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
    output.line(f"  rows scored exactly: {found.rows:,}; ranked by vectors in all searches: {found.candidates:,}")


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
