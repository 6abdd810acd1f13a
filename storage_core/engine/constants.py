"""Values of Python as constants of DuckDB, written by DuckDB itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted, shortened

if TYPE_CHECKING:
    import duckdb

_MOST_BITS = 4096
"""Of an integer: writing one down takes time that grows with the square of its length."""


def constant(value: object, what: str) -> duckdb.Expression:
    """Return the value as an expression. Raises `InvalidInput`, which begins with `what`."""
    import duckdb

    with _refused(value, what):
        made = duckdb.ConstantExpression(value)
        if isinstance(value, list | tuple | dict):  # DuckDB looks at its members when it writes them
            str(made)
        return made


def literal(value: object, what: str) -> str:
    """Return the value as text of SQL. Raises `InvalidInput`, which begins with `what`."""
    with _refused(value, what):
        return str(constant(value, what)).encode().decode()  # which halves of characters do not survive


@contextmanager
def _refused(value: object, what: str) -> Iterator[None]:
    import duckdb

    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise InvalidInput(f"{what} an integer of {value.bit_length():,} bits; none holds so many")
    try:
        yield
    except (ArithmeticError, RuntimeError, TypeError, ValueError, duckdb.Error) as error:
        raise InvalidInput(f"{what} {quoted(value)}: {shortened(str(error))}") from error
