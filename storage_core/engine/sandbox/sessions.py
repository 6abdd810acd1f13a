"""Sessions of DuckDB that a sandbox keeps for queries over the same files: most queries take less than opening one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from storage_core.engine.sandbox.query import Query
from storage_core.engine.session import session
from storage_core.settings.query import LONGEST_QUERY_SECONDS, QueryLimits

if TYPE_CHECKING:
    import duckdb

_MOST_KEPT = 3

_Key = tuple[object, ...]


class Sessions:
    """Sessions with their views, those of the last three relations. Their spill folder is `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: dict[_Key, duckdb.DuckDBPyConnection] = {}

    @contextmanager
    def opened(self, query: Query) -> Iterator[tuple[duckdb.DuckDBPyConnection, bool]]:
        """Yield a session for the query, and whether its views are there; if not, the caller creates them.

        It is kept unless rows in memory are in it that do not last, something was spilled, or there was an error.
        """
        key = _key(query)
        kept = self._kept.pop(key, None)
        connection = self._new(query) if kept is None else kept
        try:
            yield connection, kept is not None
        except BaseException:
            connection.close()
            raise
        relation = query.relation
        passing = (rows for name, rows in relation.rows.items() if name not in relation.lasting)
        if any(rows.num_rows for rows in passing) or any(self._folder.iterdir()):
            connection.close()
            return
        self._kept[key] = connection
        if len(self._kept) > _MOST_KEPT:
            self._kept.pop(next(iter(self._kept))).close()

    def _new(self, query: Query) -> duckdb.DuckDBPyConnection:
        # The process that asks keeps the time: DuckDB's own limit counts what is waited for between batches, too.
        limits = QueryLimits(
            seconds=LONGEST_QUERY_SECONDS, memory_bytes=query.memory_bytes, spill_bytes=query.spill_bytes
        )
        return session(limits, files=query.relation.files, folder=self._folder if query.spill_bytes else None)


def _key(query: Query) -> _Key:
    """Equal for queries of the same views and limits. Rows in memory count by name and number: others are not kept."""
    relation = query.relation
    rows = tuple((name, each.num_rows, each.schema.serialize().to_pybytes()) for name, each in relation.rows.items())
    streams = tuple((name, each.schema.serialize().to_pybytes()) for name, each in relation.streams.items())
    return (rows, streams, relation.files, relation.views, relation.same_types, query.memory_bytes, query.spill_bytes)
