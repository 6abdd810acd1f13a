"""The first rows of many, in some order: held in memory as few, and searched for as long as some may come before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

import pyarrow as pa

from storage_core.rows.keys import Positions

_SPARE_ROWS: Final = 10_000

_Item = TypeVar("_Item")


class FirstRows:
    """The first `limit` of the rows it is given. Memory is that of twice as many, and of those given last."""

    def __init__(self, schema: pa.Schema, limit: int, order_of: Callable[[pa.Table], Positions]) -> None:
        """Hold no row yet. `order_of` returns the places of rows in their order."""
        self._rows, self._limit, self._order_of = schema.empty_table(), limit, order_of
        self._is_trimmed = True

    def add(self, rows: pa.Table) -> None:
        """Take rows of the schema."""
        self._rows, self._is_trimmed = pa.concat_tables([self._rows, rows]), False
        if self._rows.num_rows > 2 * self._limit + _SPARE_ROWS:
            self.rows()

    @property
    def is_full(self) -> bool:
        """Whether it has as many rows as are wanted."""
        return bool(self._rows.num_rows >= self._limit)

    def rows(self) -> pa.Table:
        """Return the first rows, in their order."""
        if not self._is_trimmed:
            self._rows = self._rows.take(pa.array(self._order_of(self._rows)[: self._limit]))
            self._is_trimmed = True
        return self._rows

    def last(self) -> pa.Table:
        """Return the last of the first rows."""
        return self.rows()[-1:]


def in_turns(
    waiting: Sequence[_Item], is_behind: Callable[[_Item], bool], most: Callable[[], int], *, at_once: int = 1
) -> Iterator[Sequence[_Item]]:
    """Yield these in their order, twice as many each time but `most`, until the next is behind what is wanted."""
    while waiting and not is_behind(waiting[0]):
        group, waiting = waiting[:at_once], waiting[at_once:]
        yield group
        at_once = min(2 * at_once, most())
