"""Answers that may be used as the Arrow table that they are."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from storage_core.read.conversions import BATCH_ROWS, Conversions, require_rows, within_calendar_of_python


class ArrowRows(Conversions):
    """Rows with everything that the Arrow table of all of them has, such as `num_rows`, `column` and `to_pylist`."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        """Return what the Arrow table of all rows has by this name."""
        if name.startswith("_") or not hasattr(pa.Table, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        return getattr(self.to_arrow(), name)

    def to_pylist(self, **options: Any) -> list[dict[str, Any]]:
        """Return the rows as dictionaries. Raises `InvalidInput` for a date or time that Python cannot represent."""
        rows = self.to_arrow()
        with within_calendar_of_python(rows):
            return [*rows.to_pylist(**options)]

    def to_pydict(self, **options: Any) -> dict[str, list[Any]]:
        """Return the columns as lists. Raises `InvalidInput` for a date or time that Python cannot represent."""
        rows = self.to_arrow()
        with within_calendar_of_python(rows):
            return {**rows.to_pydict(**options)}

    def __getitem__(self, key: object) -> Any:
        """Return a column, or rows, as an Arrow table does."""
        return self.to_arrow()[key]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.to_arrow())

    def __eq__(self, other: object) -> bool:
        """Return whether the other is the same rows with the same schema."""
        rows = other.to_arrow() if isinstance(other, ArrowRows) else other
        return isinstance(rows, pa.Table) and bool(self.to_arrow().equals(rows))

    def equals(self, other: object) -> bool:
        """Return whether the other is the same rows with the same schema."""
        return self == other

    __hash__ = None  # type: ignore[assignment]  # as of an Arrow table


class HeldRows(ArrowRows):
    """The rows that a search answers, in memory."""

    __slots__ = ("_rows",)

    def __init__(self, rows: pa.Table) -> None:
        """Hold these rows."""
        self._rows = rows

    def to_reader(self, batch_rows: int = BATCH_ROWS) -> pa.RecordBatchReader:
        """Return the rows as a stream of record batches of at most `batch_rows` rows."""
        require_rows(batch_rows)
        return self._rows.to_reader(batch_rows)

    def to_arrow(self) -> pa.Table:
        """Return all rows as one Arrow table."""
        return self._rows

    def __repr__(self) -> str:
        """Show the rows."""
        return repr(self._rows)
