"""What `search` prints instead of rows: how many match, and how many of them have each value of a column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.commands import output
from pipelines.commands.caching import folder_of_segments
from pipelines.commands.target import open_table


def show_matches(
    uri: str, query: str | None, *, facet: str | None, limit: int, as_json: bool, of_rows: Mapping[str, Any]
) -> None:
    """Print how many rows match, or with `facet` how many have each of its values.

    `of_rows`: further arguments of `search_count`.
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
