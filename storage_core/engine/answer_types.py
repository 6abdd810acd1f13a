"""The types of DuckDB whose values are other ones, or only bytes of DuckDB's own, in the Arrow data that it makes.

`UHUGEINT` becomes a signed number, `TIMETZ` loses its zone, and `BIT`, `BIGNUM` and `VARIANT` become internal bytes.
The Arrow data does not show which type a column had, so the types are checked where DuckDB has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted

if TYPE_CHECKING:
    import duckdb
    import duckdb.sqltypes

_CHANGED: Final = {
    "bignum": "VARCHAR",
    "bit": "VARCHAR",
    "time with time zone": "VARCHAR",
    "uhugeint": "VARCHAR",
    "variant": "JSON",
}
"""The ids of these types, each with a type that keeps the values."""

_NESTED: Final = frozenset({"array", "list", "map", "struct", "tuple", "union"})


def reject_lossy_types(answer: duckdb.DuckDBPyRelation) -> None:
    """Raise `InvalidInput` for a column with a type, at any depth, whose values Arrow data does not keep."""
    for name, type_ in zip(answer.columns, answer.types, strict=True):
        for each in _all(type_):
            if each.id in _CHANGED:
                shown = "TIMETZ" if each.id.startswith("time") else each.id.upper()
                raise InvalidInput(
                    f"column {quoted(name)} has values of DuckDB's type {shown}, which Arrow data does not keep. "
                    f"Cast them in the query, for example to {_CHANGED[each.id]}.",
                    column=name,
                )


def _all(type_: duckdb.sqltypes.DuckDBPyType) -> Iterator[duckdb.sqltypes.DuckDBPyType]:
    """Yield the type and the types inside of it."""
    yield type_
    if type_.id in _NESTED:
        for _, child in type_.children:
            if not isinstance(child, int | list):  # the size of an array
                yield from _all(child)
