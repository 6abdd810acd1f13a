"""Columns of DuckDB and Polars whose values are other ones in the Arrow data that these libraries make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

from storage_core.engine.answer_types import reject_lossy_types
from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted

_OF_POLARS: Final = {"Int128": "Decimal(38, 0)", "UInt128": "Decimal(38, 0)", "Object": "String"}
"""Types of Polars that Arrow data lacks, each with one to cast to. An `Object` becomes the address of its value."""


def reject_lossy_columns(rows: object) -> None:
    """Raise `InvalidInput` for a relation of DuckDB or a frame of Polars with a column that Arrow data does not keep.

    Neither library is imported.
    """
    library, kind = type(rows).__module__.partition(".")[0], type(rows).__name__
    if library in ("duckdb", "_duckdb") and kind == "DuckDBPyRelation":
        reject_lossy_types(cast("Any", rows))
    elif library == "polars" and kind == "DataFrame":
        for name, type_ in cast("Any", rows).schema.items():
            for each in _inside(type_):
                if (found := type(each).__name__) in _OF_POLARS:
                    raise InvalidInput(
                        f"column {quoted(name)} has the type {found} of Polars, which Arrow data does not have. "
                        f"Cast it first, for example to {_OF_POLARS[found]}.",
                        column=name,
                    )


def _inside(type_: Any) -> Iterator[Any]:
    """Yield a type of Polars and the types inside of it."""
    yield type_
    inner = [each.dtype for each in getattr(type_, "fields", ())]
    own = getattr(type_, "inner", None)
    for each in inner if own is None else [own, *inner]:
        yield from _inside(each)
