"""Search: rows of one snapshot by an index, exact however far the index lags (design pages 05 and 07).

Splits that a segment covers are answered from the segment; the others are indexed on the fly by the same builder and
take part as if they had one. So rows, scores and order are the same caught up, lagging, or without any segment; a
segment that is damaged or gone is one that a split does not have.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import assert_never, cast

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from storage_core.config import IndexDefinition
from storage_core.errors import Corrupt, InvalidInput, NotFound
from storage_core.index import bitmap, catch_up, fulltext, segments
from storage_core.index.cache import SegmentCache, open_cache
from storage_core.index.segments import Coverage
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.split.read import conform_split, read_split
from storage_core.split.vectors import rows_gone

SCORE = "score"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Hit:
    split: str
    row: int
    score: float


def search(
    store: ObjectStore,
    snapshot: Snapshot,
    query: object,
    *,
    index: str,
    limit: object = 10,
    cache_dir: Path | None = None,
) -> pa.Table:
    """Return the best `limit` live rows of the base table with their `score` (float64), best first.

    Order: score descending, then split path, then row, so the same snapshot gives the same rows every time. Full text
    scores by BM25 over all rows of the splits (`fulltext.parse` has the syntax): deleted ones weigh in the statistics
    until their split is written anew, and are never returned. Every bitmap match scores 1.0 (`bitmap.parse`). The score
    column is `_score` where the table has a column `score`. Unpacked segments stay in `cache_dir`; None keeps them for
    this call only.

    Raises `NotFound` for an unknown index, `InvalidInput` for a query that does not parse or a limit below 1,
    `Corrupt` and `SnapshotExpired` for damaged and vanished splits; a segment like that is not used, with a warning.
    Requests: one GET per split that is not cached, one per split with hits, one per stored deletion vector of those.
    """
    definition = segments.definition_of(snapshot, index)
    parsed = _parse(query, definition, snapshot)
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise InvalidInput(f"limit is {limit!r}; ask for at least one row")
    with open_cache(cache_dir) as cache:
        sources = _Sources(store, snapshot, segments.coverage(snapshot, definition), cache)
        match parsed:
            case fulltext.TextQuery():
                hits = _text_hits(sources, parsed, limit)
            case bitmap.Condition():
                hits = _bitmap_hits(sources, parsed, limit)
            case _:
                assert_never(parsed)
    return _rows(store, snapshot, hits)


def explain_search(snapshot: Snapshot, *, index: str) -> dict[str, object]:
    """Return which splits a search would answer from segments and which it would index on the fly. No request.

    Plain data: `index, kind, version, watermark, segments` (split path ▸ segment path) and `scanned` (split paths).
    Raises `NotFound` for an unknown index, `InvalidInput` for one that does not fit the schema.
    """
    definition = segments.definition_of(snapshot, index)
    covered = segments.coverage(snapshot, definition)
    return {
        "index": index,
        "kind": definition.kind,
        "version": snapshot.version,
        "watermark": catch_up.watermark(snapshot, index),
        "segments": {split: segment.path for split, segment in sorted(covered.segments.items())},
        "scanned": [add.path for add in covered.missing],
    }


@dataclass(frozen=True, slots=True)
class _Sources:
    """The live splits, each as a directory of index files: from its segment, or built now."""

    store: ObjectStore
    snapshot: Snapshot
    covered: Coverage
    cache: SegmentCache

    def splits(self) -> list[str]:
        return sorted(self.snapshot.splits)

    def directory(self, split: str) -> Path:
        segment = self.covered.segments.get(split)
        if segment is not None:
            try:
                return self.cache.segment(self.store, segment)
            except (Corrupt, NotFound) as error:
                _logger.warning("segment %s is not usable, reading %s instead: %s", segment.path, split, error)
        add = self.snapshot.splits[split]
        return self.cache.gap(self.store, add, self.covered.definition, self.snapshot.schema)

    def gone(self, split: str) -> BitMap:
        """The rows that are no answer, whatever an index says of them."""
        return rows_gone(self.store, self.snapshot.splits[split])


def _parse(query: object, definition: IndexDefinition, snapshot: Snapshot) -> fulltext.TextQuery | bitmap.Condition:
    match definition.kind:
        case "fulltext":
            if not isinstance(query, str):
                raise InvalidInput(f"full-text index {definition.name!r} takes a query as text, found {query!r}")
            return fulltext.parse(query, definition)
        case "bitmap":
            return bitmap.parse(query, definition, snapshot.schema)
        case _:
            assert_never(definition.kind)


def _text_hits(sources: _Sources, query: fulltext.TextQuery, limit: int) -> list[_Hit]:
    splits = sources.splits()
    directories = [sources.directory(split) for split in splits]
    gone = cache(sources.gone)  # of splits with hits only

    def is_live(source: int, row: int) -> bool:
        return row not in gone(splits[source])

    found = query.hits(directories, limit, sources.cache.root, is_live=is_live)
    hits = [_Hit(split=splits[each.source], row=each.row, score=each.score) for each in found]
    return sorted(hits, key=lambda hit: (-hit.score, hit.split, hit.row))


def _bitmap_hits(sources: _Sources, condition: bitmap.Condition, limit: int) -> list[_Hit]:
    """All scores are equal, so the first rows in split order are the answer and later splits need not be opened."""
    hits: list[_Hit] = []
    for split in sources.splits():
        found = bitmap.matching_rows(sources.directory(split), sources.covered.definition, condition)
        gone = sources.gone(split) if found else BitMap()
        rows = [row for row in found if row not in gone]
        hits.extend(_Hit(split=split, row=row, score=1.0) for row in rows[: limit - len(hits)])
        if len(hits) >= limit:
            break
    return hits


def _rows(store: ObjectStore, snapshot: Snapshot, hits: Sequence[_Hit]) -> pa.Table:
    """Read each split that has hits once, and put the rows into the order of the hits."""
    schema = snapshot.schema
    tables = [schema.empty_table()]
    positions: list[int] = []
    for split in sorted({hit.split for hit in hits}):
        wanted = [position for position, hit in enumerate(hits) if hit.split == split]
        tables.append(_take(store, snapshot, split, [hits[position].row for position in wanted]))
        positions.extend(wanted)
    rows = pa.concat_tables(tables).take(pa.array(np.argsort(np.array(positions, dtype=np.int64))))
    name = f"_{SCORE}" if SCORE in schema.names else SCORE
    return rows.append_column(name, pa.array([hit.score for hit in hits], pa.float64()))


def _take(store: ObjectStore, snapshot: Snapshot, split: str, rows: list[int]) -> pa.Table:
    table = read_split(store, snapshot.splits[split].as_written)  # an index counts the rows of the file
    if max(rows) >= table.num_rows:
        found = f"the index names row {max(rows)} of {split}, which has {table.num_rows} rows"
        raise Corrupt(f"{found}; drop the segment and catch up again", key=split)
    taken = conform_split(table, snapshot.schema).take(pa.array(rows, pa.int64()))
    # Splits do not say which columns may be null; with the table's own schema all of them concatenate.
    return cast("pa.Table", taken.cast(snapshot.schema))
