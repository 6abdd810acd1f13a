"""What `search` prints instead of rows: how many match, and how many of them have each value of a column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipelines.commands import output
from pipelines.commands.caching import folder_of_segments
from pipelines.commands.target import open_table
from storage_core.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Asking:
    """A query on an index, and the rows that count."""

    query: str | None
    index: str | None
    filter: str | None
    syntax: str
    at: str | None
    consistency: str

    def show(
        self,
        uri: str,
        *,
        count: bool,
        facet: str | None,
        limit: int,
        of_rows: Mapping[str, object],
        as_json: bool,
    ) -> None:
        """Print the number of matches, or of those with each value of `facet`.

        Raises `InvalidInput` for both, and for an option in `of_rows` that is given.
        """
        option = "--count" if count else "--facet"
        given = [name for name, value in of_rows.items() if value is not None and value is not False and value != 0]
        if count and facet is not None:
            given = ["--facet"]
        if given:
            raise InvalidInput(f"{option} prints no rows, so {given[0]} has no meaning beside it; leave one out")
        table, cache_dir = open_table(uri), folder_of_segments()
        if facet is not None:
            found = table.search_facets(
                self.query,
                facet,
                limit=limit,
                index=self.index,
                filter=self.filter,
                syntax=self.syntax,
                at=self.at,
                consistency=self.consistency,
                cache_dir=cache_dir,
            )
            output.rows(found.to_arrow(), as_json=as_json, everything=True)
            return
        number = table.search_count(
            self.query,
            index=self.index,
            filter=self.filter,
            syntax=self.syntax,
            at=self.at,
            consistency=self.consistency,
            cache_dir=cache_dir,
        )
        if as_json:
            output.json_line({"count": number})
        else:
            output.line(f"{number:,} rows match")
