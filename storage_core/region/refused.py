"""Records that a merge cannot apply: which ones, in which generation, and their quarantine (decision 0088).

A row is blamed when it fails by itself, so it is looked for by halves: that costs about as much again as what failed,
and only then. What fails as a whole and in no single row is nobody's fault here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from storage_core.errors import Corrupt, InvalidInput, TidemarkError, Unsupported
from storage_core.foreign_text import quoted
from storage_core.formats.quarantine_entry import QuarantinedRows
from storage_core.objectstore.contract import ObjectStore
from storage_core.quarantine import keep
from storage_core.region.merge_work import MergeWork
from storage_core.rows.codes import Mask
from storage_core.rows.keys import key_codes
from storage_core.system_errors import of_the_system, raise_refused

Attempt = Callable[[pa.Table], object]
REFUSALS = (InvalidInput, pa.ArrowException, OverflowError)
SOURCE = "merge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The records of consecutive generations in order: `lengths` says how many of `rows` each of `generations` has."""

    rows: pa.Table
    generations: tuple[int, ...]
    lengths: tuple[int, ...]
    key: tuple[str, ...]

    def naming(self, record: int, error: Exception) -> TidemarkError:
        """Return the error with the generation of the record, its place there from 0, and its key, cut and escaped."""
        ends = np.cumsum(self.lengths)
        part = int(np.searchsorted(ends, record, side="right"))
        place = record - int(ends[part]) + self.lengths[part]
        values = self.rows.select(self.key).slice(record, 1).to_pylist()[0]
        key = ", ".join(f"{name}={quoted(value)}" for name, value in values.items())
        found = f"generation {self.generations[part]}, record {place}, key {key}: {text_of(error)}"
        more = {"generation": self.generations[part], "row": place, "key": key}
        return error.reworded(found, **more) if isinstance(error, InvalidInput) else InvalidInput(found, **more)

    def without(self, deleted: Mask) -> Records:
        """Return the records without those that are marked."""
        parts = np.split(deleted, np.cumsum(self.lengths)[:-1])
        lengths = tuple(len(part) - int(part.sum()) for part in parts)
        return replace(self, rows=self.rows.filter(pa.array(~deleted)), lengths=lengths)

    def of_key(self, row: pa.Table) -> Mask:
        """Tell which records have the key of this one row. Raises `InvalidInput` where a record has no key."""
        held, wanted = key_codes([self.rows, row], self.key)
        mask: Mask = held == wanted[0]
        return mask


def refused(rows: pa.Table, attempt: Attempt) -> Iterator[tuple[int, Exception]]:
    """Yield each row that `attempt` refuses by itself, and with what. None when it refuses no rows at all as well."""
    try:
        attempt(rows.slice(0, 0))
    except REFUSALS:
        return
    yield from _refused(rows, attempt, 0)


def _refused(rows: pa.Table, attempt: Attempt, start: int) -> Iterator[tuple[int, Exception]]:
    try:
        attempt(rows)
    except REFUSALS as error:
        if of_the_system(error):  # no row is to blame that memory is lacking
            raise
        if rows.num_rows == 1:
            yield start, error
            return
        half = rows.num_rows // 2
        yield from _refused(rows.slice(0, half), attempt, start)
        yield from _refused(rows.slice(half), attempt, start + half)


def quarantine_records(
    store: ObjectStore, kept: Sequence[tuple[pa.Table, Exception]], *, region: str, now_ms: int
) -> None:
    """Put records into quarantine, one entry per reason, durable when this returns. One PUT each."""
    reasons: dict[str, list[pa.Table]] = {}
    for records, error in kept:
        reasons.setdefault(text_of(error), []).append(records)
    for reason, parts in reasons.items():
        entry = QuarantinedRows(
            source=SOURCE, reason=reason, by=region, arrived_ms=now_ms, rows=pa.concat_tables(parts)
        )
        keep(store, entry)


def text_of(error: Exception) -> str:
    """Return what the error found, and of which type it is where it is none of ours."""
    return error.found if isinstance(error, TidemarkError) else f"{type(error).__name__}: {error}"


@contextmanager
def naming_works(*works: MergeWork) -> Iterator[None]:
    """Let an error of the data say which generations of which regions it came up in; others are no fault of theirs."""
    try:
        yield
    except (InvalidInput, Corrupt, Unsupported) as error:
        raise error.reworded(f"{_named(works)}: {error.found}", **_context(works)) from error
    except (pa.ArrowException, OverflowError, MemoryError) as error:
        raise_refused(_named(works), error)
        raise InvalidInput(f"{_named(works)}: {text_of(error)}", **_context(works)) from error


def _named(works: Sequence[MergeWork]) -> str:
    parts = (
        f"region {each.region}, generations {each.after + 1} to {each.generations[-1].generation}" for each in works
    )
    return f"merging {'; '.join(parts)}"


def _context(works: Sequence[MergeWork]) -> dict[str, object]:
    return {
        "region": ", ".join(each.region for each in works),
        "generations": [generation.generation for each in works for generation in each.generations],
    }
