"""What a source of a search is: rows that an index counts from 0, wherever they are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import pyarrow as pa
from pyroaring import BitMap

from storage_core.errors import Corrupt, NotFound
from storage_core.index.damage import damaged
from storage_core.index.fulltext import Hit
from storage_core.index.vector.parts import Ranged
from storage_core.read.predicate import Predicate
from storage_core.rows.keys import Positions
from storage_core.search.order import Between

InSplit = tuple[str, Positions, Positions]
"""The path of a split, the places of rows among some, and the rows of the split's file that they are."""


Place = Literal["base", "generation", "log", "records"]
"""Splits of the base, a generation, entries of a log, or what records make together, or with the base."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the rows of a source are: of the base the path of a split or, of several splits, of the segment.

    `segment` is the path of that which answers for them, None where they are read.
    """

    place: Place
    name: str
    segment: str | None = None


class Source(Protocol):
    """Rows that an index counts from 0."""

    @property
    def origin(self) -> Origin:
        """Where they are, as `explain_search` says it."""
        ...

    @property
    def name(self) -> str:
        """Text that fixes what is in the files of the index."""
        ...

    @property
    def splits(self) -> tuple[str, ...]:
        """The paths of the splits of the base that the rows are in; none where they are in none."""
        ...

    @property
    def segment_bytes(self) -> int | None:
        """The size of the segment that answers for the rows; None where none does."""
        ...

    @property
    def is_near(self) -> bool:
        """Whether reading it waits for nothing, and a thread beside it costs more than it saves."""
        ...

    def count(self) -> int:
        """Return the number of rows."""
        ...

    def directory(self) -> Path:
        """Return the directory with the files of the index over all the rows."""
        ...

    def ranged(self) -> Ranged | None:
        """Return the files of a segment of vectors by ranges; None where `directory` is to be read."""
        ...

    def matching(self, condition: Predicate) -> BitMap:
        """Return the rows that meet a condition on columns of the index, which has bitmaps."""
        ...

    def low(self) -> Any:
        """Return what no row orders below, as `order.least`; None where that is unknown. No request."""
        ...

    def between(self, rows: Sequence[int]) -> Between | None:
        """Return what is known of these rows for less than `take` costs; None for nothing."""
        ...

    def in_splits(self, rows: Sequence[int]) -> Iterable[InSplit]:
        """Return each split of the base with some of these rows."""
        ...

    def deleted(self) -> BitMap:
        """Return the rows that are no answer, whatever an index says of them."""
        ...

    def take(self, rows: Sequence[int], columns: Collection[str]) -> pa.Table:
        """Return these columns of these rows under the schema of the table, in its and in this order."""
        ...


class Unusable(Exception):  # noqa: N818  # never leaves a search
    """A segment or translation is damaged or gone, and what it would have answered is to be read from splits."""

    def __init__(self, path: str, why: object) -> None:
        """`path` is the object's, `why` the error that reading it raised."""
        super().__init__(str(why))
        self.path = path


@contextmanager
def usable(path: str) -> Iterator[None]:
    """Raise `Unusable` for an object that the block finds damaged or gone."""
    try:
        yield
    except (Corrupt, NotFound) as error:
        raise Unusable(path, error) from error


def chosen(schema: pa.Schema, columns: Collection[str]) -> pa.Schema:
    """Return the fields of these columns."""
    return pa.schema([each for each in schema if each.name in columns])


def by_source(hits: Iterable[Hit]) -> dict[int, list[Hit]]:
    """Return the hits of each source, in their order."""
    found: dict[int, list[Hit]] = {}
    for hit in hits:
        found.setdefault(hit.source, []).append(hit)
    return found


def require_within(rows: Sequence[int], count: int, where: str) -> None:
    """Raise `Corrupt` when an index names a row that is not there."""
    if max(rows) >= count:
        raise damaged(where, f"the index names row {max(rows)}, it has {count} rows")
