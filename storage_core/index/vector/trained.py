"""What the log says of the training of a segment: its `details.training`, so that nobody fetches the segment for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np

from storage_core.index.vector.codebook import Codebook
from storage_core.index.vector.layout import CLUSTERS, CODEBOOK, HEAD, Head, table_of
from storage_core.log.actions import IndexSegment

TRAINING = "training"

_WHERE = "a vector segment that was just built"


@dataclass(frozen=True, slots=True)
class Training:
    """How a segment was trained: on a sample of so many `rows`, into so many clusters, 0 where it is flat.

    `imbalance` is the ratio of the largest cluster to the smallest, empty ones left out; `error` the mean squared
    distance of the sample from its codes; `again`: because it was not well trained before.
    """

    rows: int
    clusters: int
    imbalance: float
    error: float
    again: bool = False

    def to_object(self) -> dict[str, object]:
        """Return the JSON object that `of` reads."""
        return asdict(self)

    @staticmethod
    def of(segment: IndexSegment) -> Training | None:
        """Return what the log says of a segment; None of segments of other kinds, and of early 0.1."""
        match segment.details.get(TRAINING):
            case {"rows": int(rows), "clusters": int(clusters), "imbalance": int() | float() as imbalance, **more}:
                error, again = more.get("error"), more.get("again") is True
                known = float(error) if isinstance(error, int | float) else 0.0
                return Training(rows, clusters, float(imbalance), known, again)
            case _:
                return None

    @staticmethod
    def in_files(files: Mapping[str, bytes | memoryview]) -> Training:
        """Return what the files of a segment tell."""
        head = Head.from_bytes(files[HEAD], where=_WHERE)
        table = table_of(files[CLUSTERS], head, where=_WHERE)
        sizes = np.bincount(table["cluster"].astype(np.int64), weights=table["rows"])
        filled = sizes[sizes > 0]
        imbalance = float(filled.max() / filled.min()) if head.clusters and len(filled) else 1.0
        error = Codebook.from_bytes(files[CODEBOOK], where=_WHERE).error
        return Training(head.rows, head.clusters, imbalance, error)


def trained_again(segment: IndexSegment) -> IndexSegment:
    """Return the segment as one that was trained again."""
    trained = Training.of(segment)
    again = {} if trained is None else {TRAINING: replace(trained, again=True).to_object()}
    return replace(segment, details={**segment.details, **again})
