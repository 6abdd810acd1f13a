"""Arguments and results of an import: the source in each of its forms, and the options of the table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal, Protocol

import pyarrow as pa

from storage_core.base.errors import InvalidInput, NotFound
from storage_core.base.process import scratch_folder
from storage_core.base.text import quoted
from storage_core.data.formats.keys import short_hash
from storage_core.data.rows.incoming import is_stream
from storage_core.data.rows.sort_order import TIME_ONLY, equivalent, parse_sort_schema
from storage_core.data.settings.setting import parse_columns, parse_duration
from storage_core.data.settings.table import TableConfig
from storage_core.engine.faults import fault_of, syntax_fault
from storage_core.engine.session import of_the_caller, reject_lossy_types
from storage_core.interop.import_files import NotRead, Stream

# Sources of an import. The columns are known before the first row, and the rows are read in pieces.


class Source(Protocol):
    """Rows that another program wrote. An import never changes its source."""

    @property
    def name(self) -> str:
        """The name in messages."""
        ...

    @property
    def identity(self) -> str:
        """Text that identifies the source in every import. The text does not depend on the rows."""
        ...

    @property
    def content(self) -> str:
        """Text that does not change while the source has the same rows."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """The columns of the source, with types that a table can have."""
        ...

    @property
    def files(self) -> int:
        """The number of files. 0 if the source has no files."""
        ...

    @property
    def not_read(self) -> NotRead:
        """Files at the location that are not read."""
        ...

    def require_fits(self, schema: pa.Schema) -> None:
        """Raise `InvalidInput` unless the columns can become the columns of a table.

        The error contains the file and the column.
        """
        ...

    def rows(self, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows with this schema, in bounded memory. Raises `InvalidInput` for a row that does not fit."""
        ...


def source_of(given: object, *, name: str | None, version: int | None) -> Source:
    """Return the source of an import. The source is a Delta table, a folder of Parquet files, or Arrow data.

    A location with a `_delta_log` is a Delta table.

    Raises the errors of the source, and the errors below.

    Args:
        given: Location, or Arrow data.
        name: Name of the import. Arrow data needs a name.
        version: Version of a Delta table. None means the newest version, or another kind of source.

    Raises:
        InvalidInput: `given` is not a supported source, Arrow data has no `name`, or `version` is set and the source
            has no versions.
    """
    if isinstance(given, Stream):
        _refuse_version(version, given.name)
        return given
    if isinstance(given, str | Path):
        return _at(str(given), version)
    if not is_stream(given) and not isinstance(given, pa.Table | pa.RecordBatch):
        raise InvalidInput(
            f"an import cannot read the type {type(given).__name__}. Give the location of a folder or a Delta table, "
            "Arrow data, or a DuckDB relation. Append rows of other types"
        )
    if name is None:
        raise InvalidInput("Arrow data has no name. Give the import a name, which identifies it when it runs again")
    _refuse_version(version, "Arrow data")
    rows = pa.Table.from_batches([given]) if isinstance(given, pa.RecordBatch) else given
    return Stream.of(rows, f"the rows of {quoted(name)}", identity=name)


def _at(place: str, version: int | None) -> Source:
    from storage_core.interop.delta_import import delta_table, is_delta
    from storage_core.interop.import_files import folder_of

    if is_delta(place):
        return delta_table(place, version)
    _refuse_version(version, "a folder of Parquet files")
    return folder_of(place)


def _refuse_version(version: int | None, what: str) -> None:
    if version is not None:
        raise InvalidInput(
            f"version {version} cannot be given, because {what} has no versions. Leave the version out, or give "
            "the folder of a Delta table"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """The requested options of the table. None means the value of the table, or the default of `Table.create`."""

    time_column: str | None = None
    window: str | int | None = None
    sort_schema: str | None = None
    primary_key: str | Sequence[str] | None = None

    def settings(self) -> dict[str, object]:
        """Return the given options by name."""
        said = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in said.items() if value is not None}

    def require_same(self, config: TableConfig, uri: str) -> None:
        """Raise `InvalidInput` if an option differs in an existing table. The error contains the first difference."""
        for what, wanted, found in self._compared(config):
            if wanted is not None and wanted != found:
                raise InvalidInput(
                    f"{uri}: the table exists, and its {what} is {found!r}, not {wanted!r}. Leave {what} out, or "
                    "import into a new table",
                    uri=uri,
                )

    def _compared(self, config: TableConfig) -> list[tuple[str, object, object]]:
        key = None if self.primary_key is None else parse_columns(self.primary_key)
        order, found = self.sort_schema, config.sort_schema
        if order is not None:
            ours = parse_sort_schema(order, config.time_column)
            if equivalent(ours, parse_sort_schema(found or TIME_ONLY)):
                order = None
        return [
            ("time_column", self.time_column, config.time_column),
            ("window", None if self.window is None else parse_duration(self.window), config.window_seconds),
            ("sort_schema", order, found),
            ("primary_key", key, config.primary_key),
        ]


AS_IT_IS = TableOptions()


# The result of an import.


@dataclass(frozen=True, slots=True)
class Imported:
    """The outcome of an import: the version with the rows, and the numbers of rows, files and new splits.

    If `commit_id` is empty, nothing was committed. The source, or Arrow data of this name, was imported before. If
    `by_another` is True, another process imported the source at the same time. The keyed table then got the rows from
    both imports, but a merge keeps only one row per key.

    `not_read` is the number of omitted files in the folder. `not_read_names` contains the names of the first omitted
    files, with the reason.
    """

    version: int
    commit_id: str = ""
    rows: int = 0
    files: int = 0
    splits_added: int = 0
    by_another: bool = False
    not_read: int = 0
    not_read_names: Mapping[str, str] = field(default_factory=dict)

    @property
    def status(self) -> Literal["committed", "nothing_to_do", "done_by_another"]:
        """The status in the command's output."""
        if self.by_another:
            return "done_by_another"
        return "committed" if self.commit_id else "nothing_to_do"


# The result of a DuckDB query as a stream. The complete result is never in memory.


MEMORY_BYTES = 2**30
_BATCH_ROWS = 65_536


def _refusal(text: str) -> str:
    """Return the message for a query that DuckDB refuses."""
    if text.startswith("Parser Error:"):
        where = syntax_fault(text.removeprefix("Parser Error:").strip())
        return f"the query is not valid SQL{where}. Correct it{' there' if where else ''}"
    return f"the query cannot be run: {fault_of(text)}"


@contextmanager
def answer_of(query: str, database: Path | None = None, *, name: str | None = None) -> Iterator[Stream]:
    """Yield the rows of a query in DuckDB's dialect. The query can read files and the tables of a read-only database.

    The query has the rights of the caller and 1 GiB of memory. If the query needs more memory, it writes data to a
    folder that is deleted at the end. Raises `InvalidInput` if the query fails.

    Args:
        query: Text of one SELECT.
        database: File of a DuckDB database. None means that the query reads no database.
        name: Name that identifies the import. None means the text of the query and the location of the database.
    """
    import duckdb

    place = "" if database is None else str(database.resolve())
    if database is not None and not database.is_file():
        raise NotFound(f"{database}: there is no such file or folder. Correct the location")
    with scratch_folder("import") as folder:
        try:
            with of_the_caller(database, folder=folder, memory_bytes=MEMORY_BYTES) as connection:
                answer = connection.sql(query)
                if answer is None:
                    raise InvalidInput("the query returns no rows to import. Write one SELECT")
                reject_lossy_types(answer)
                identity = f"query:{place}:{short_hash(query)}" if name is None else name
                yield Stream.of(answer.to_arrow_reader(_BATCH_ROWS), "the query", identity=identity)
        except duckdb.Error as error:
            raise InvalidInput(_refusal(str(error))) from error
