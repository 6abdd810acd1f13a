"""Which segments of vectors are read by ranges: those that are far away, and larger than a request should fetch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from storage_core.index import segments, vector
from storage_core.log.actions import IndexSegment
from storage_core.objectstore.prefetch import all_of, both
from storage_core.search.base import Base
from storage_core.search.source import usable

WHOLE_SEGMENT_BYTES: Final = 8 * 2**20
"""A segment up to this size is fetched whole: that takes one request, and one wave."""

_FORESEEN: Final = 4


def parts_of(base: Base, segment: IndexSegment, splits: Sequence[str]) -> vector.Ranged | None:
    """Return the files of a segment of vectors by ranges; None where it is small, on a local disk, or of another kind.

    Ranged GETs at once: its directory with what a reader opens, and the footers of the first `splits` with its rows,
    whose vectors are wanted next. No GET for what is cached. Raises `Unusable` for a segment that is damaged or gone.
    """
    store, definition = base.store, base.covered.definition
    if definition.kind != "vector" or segment.size <= WHOLE_SEGMENT_BYTES or store.local_path(segment.path) is not None:
        return None
    dimensions = base.snapshot.schema.field(definition.columns[0]).type.list_size
    quantization = vector.options_of(definition).quantization
    trained = vector.Training.of(segment)
    clusters = None if trained is None else trained.clusters
    ahead = min(vector.opening_bytes(quantization, dimensions, segment.numRecords, clusters), segment.size // 2)
    expected = segments.expected_of(segment)
    with usable(segment.path):
        found, _ = both(
            lambda: vector.Ranged(store, expected, ahead=ahead, cached=base.pieces),
            lambda: all_of(base.foresee, splits[:_FORESEEN], _FORESEEN),
        )
    return found
