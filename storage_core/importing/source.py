"""What an import takes: columns that are known before a row is read, and rows that come piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from storage_core.errors import TidemarkError
from storage_core.importing.folder_files import NotRead
from storage_core.importing.union import as_held, fitted, require_fits
from storage_core.rows.incoming import ArrowStream, pieces_of, reader_of


class Source(Protocol):
    """Rows that somebody else wrote. Nothing of it is ever changed."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    @property
    def identity(self) -> str:
        """Text that is the same whenever this is imported, whatever it holds by then."""
        ...

    @property
    def content(self) -> str:
        """Text that is the same while it holds the same rows."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """The columns, as a table can have them."""
        ...

    @property
    def files(self) -> int:
        """How many files it has, 0 where there are none."""
        ...

    @property
    def not_read(self) -> NotRead:
        """What lies at the place and is not read."""
        ...

    def require_fits(self, schema: pa.Schema) -> None:
        """Return when its columns can become columns of a table. Raises `InvalidInput` naming file and column."""
        ...

    def rows(self, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows under this schema, in bounded memory. Raises `InvalidInput` for a row that does not fit."""
        ...


@dataclass(frozen=True, slots=True)
class Stream:
    """Arrow data, or what gives a stream of it, such as a relation of DuckDB. It can be read once."""

    name: str
    identity: str
    content: str
    schema: pa.Schema
    reader: pa.RecordBatchReader
    files: int = 0
    not_read: NotRead = NotRead()  # noqa: RUF009  # which is frozen

    @staticmethod
    def of(rows: ArrowStream, name: str, *, identity: str, content: str = "") -> Stream:
        """Return the source. Raises `InvalidInput` naming a column whose type no table has."""
        reader = reader_of(rows)
        return Stream(name, identity, content, as_held(reader.schema, name), reader)

    def require_fits(self, schema: pa.Schema) -> None:
        """Return when the columns can become those of a table."""
        require_fits(self.reader.schema, schema, self.name)

    def rows(self, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows in pieces of about 64 MiB."""
        first = 0
        for piece in pieces_of(self.reader):
            try:
                yield fitted(piece, schema)
            except TidemarkError as error:
                raise error.reworded(f"{self.name}: {error.found} (rows are counted from row {first})") from error
            first += piece.num_rows
