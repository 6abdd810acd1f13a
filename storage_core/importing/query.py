"""The answer of a query that DuckDB runs for an import, as a stream: it is never in memory as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storage_core.engine.answer_types import reject_lossy_types
from storage_core.engine.session import of_the_caller
from storage_core.errors import InvalidInput
from storage_core.formats.short_hash import short_hash
from storage_core.importing.source import Stream
from storage_core.scratch import scratch_folder

MEMORY_BYTES = 2**30
_BATCH_ROWS = 65_536


@contextmanager
def answer_of(query: str, database: Path | None = None, *, name: str | None = None) -> Iterator[Stream]:
    """Yield the rows of a query in DuckDB's dialect, over files and the tables of a database that is only read.

    It has the caller's rights, a gibibyte of memory, and a folder that is deleted at the end for what is more. It is
    known by its text and the place of the database, or by a `name`. Raises `InvalidInput` for a query that fails.
    """
    import duckdb

    place = "" if database is None else str(database.resolve())
    if database is not None and not database.is_file():
        raise InvalidInput(f"{database}: there is no database of DuckDB")
    with scratch_folder("import") as folder:
        try:
            with of_the_caller(database, folder=folder, memory_bytes=MEMORY_BYTES) as connection:
                answer = connection.sql(query)
                if answer is None:
                    raise InvalidInput("the query has no rows to import; give one SELECT")
                reject_lossy_types(answer)
                identity = f"query:{place}:{short_hash(query)}" if name is None else name
                yield Stream.of(answer.to_arrow_reader(_BATCH_ROWS), "the query", identity=identity)
        except duckdb.Error as error:
            raise InvalidInput(f"the query cannot be run: {str(error).splitlines()[0]}") from error
