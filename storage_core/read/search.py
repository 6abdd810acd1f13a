"""Search: rows by an index, exact however far the index and the merge lag (decision 0056).

What has no segment is indexed on the fly and takes part as if it had one. So rows, scores and order are the same caught
up, lagging, or without any segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import assert_never

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from storage_core.errors import InvalidInput
from storage_core.index import bitmap, catch_up, engine, fulltext, segments
from storage_core.index.cache import open_cache
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.read.overlay import take_apart
from storage_core.read.search_sources import Source, sources
from storage_core.region.unmerged import Unmerged
from storage_core.settings.index import IndexDefinition

SCORE = "score"


@dataclass(frozen=True, slots=True)
class _Hit:
    source: int
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
    unmerged: Sequence[Unmerged] = (),
) -> pa.Table:
    """Return the best `limit` live rows of the table with their `score` (float64), best first.

    `unmerged` are the records that the snapshot has not merged; newest wins per key.
    Order: score descending, then base rows by split path and row, then rows of generations, then all others by key, so
    the same snapshot and records give the same rows every time.

    Full text scores by BM25 (`fulltext.parse` has the syntax) over all rows of the splits, the whole rows of each
    unmerged generation, and what the other records make of the base. Rows that are deleted or superseded weigh in the
    statistics until their split is written anew or their generation merged, and are never returned. Every bitmap match
    scores 1.0 (`bitmap.parse`). The score column is `_score` where the table has a column `score`. Unpacked segments
    stay in `cache_dir`; None keeps them for this call only.

    Raises `NotFound` for an unknown index, `InvalidInput` for a query that does not parse or a limit below 1,
    `Corrupt` and `SnapshotExpired` for damaged and vanished splits; a segment like that is not used, with a warning.
    `Unavailable` when the machine lacks disk, memory or open files.
    Requests: one GET per split or generation with a segment that is not cached, one per split with hits, one per stored
    deletion vector of those; and those of `overlay.take_apart`.
    """
    definition = segments.definition_of(snapshot, index)
    parsed = _parse(query, definition, snapshot)
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise InvalidInput(f"limit is {limit!r}; ask for at least one row")
    covered, overlay = segments.coverage(snapshot, definition), take_apart(store, snapshot, unmerged)
    with (
        engine.local(f"search of index {index!r}"),
        open_cache(cache_dir) as cached,
        sources(store, snapshot, covered=covered, overlay=overlay, cache=cached) as found,
    ):
        match parsed:
            case fulltext.TextQuery():
                hits = _text_hits(found, parsed, limit, cached.root)
            case bitmap.Condition():
                hits = _bitmap_hits(found, definition, parsed, limit)
            case _:
                assert_never(parsed)
        return _rows(found, hits, snapshot.schema)


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


def _text_hits(found: Sequence[Source], query: fulltext.TextQuery, limit: int, scratch: Path) -> list[_Hit]:
    directories = [each.directory() for each in found]
    gone = cache(lambda source: found[source].gone())  # of sources with hits only

    def is_live(source: int, row: int) -> bool:
        return row not in gone(source)

    hits = query.hits(directories, limit, scratch, is_live=is_live)
    ordered = [_Hit(source=each.source, row=each.row, score=each.score) for each in hits]
    return sorted(ordered, key=lambda hit: (-hit.score, hit.source, hit.row))


def _bitmap_hits(
    found: Sequence[Source], definition: IndexDefinition, condition: bitmap.Condition, limit: int
) -> list[_Hit]:
    """All scores are equal, so the first rows in the order of sources are the answer and later ones stay closed."""
    hits: list[_Hit] = []
    for number, source in enumerate(found):
        matching = bitmap.matching_rows(source.directory(), definition, condition)
        gone = source.gone() if matching else BitMap()
        rows = [row for row in matching if row not in gone]
        hits.extend(_Hit(source=number, row=row, score=1.0) for row in rows[: limit - len(hits)])
        if len(hits) >= limit:
            break
    return hits


def _rows(found: Sequence[Source], hits: Sequence[_Hit], schema: pa.Schema) -> pa.Table:
    """Read each source that has hits once, and put the rows into the order of the hits."""
    tables = [schema.empty_table()]
    positions: list[int] = []
    for source in sorted({hit.source for hit in hits}):
        wanted = [position for position, hit in enumerate(hits) if hit.source == source]
        tables.append(found[source].take([hits[position].row for position in wanted]))
        positions.extend(wanted)
    rows = pa.concat_tables(tables).take(pa.array(np.argsort(np.array(positions, dtype=np.int64))))
    name = f"_{SCORE}" if SCORE in schema.names else SCORE
    return rows.append_column(name, pa.array([hit.score for hit in hits], pa.float64()))
