"""Vector segments: nearest neighbours of embeddings by l2, cosine or dot.

Compact codes select candidates, and exact embeddings rank the candidates. Only the module `blocks` does I/O: it reads
ranges of a stored segment. Each segment contains a codebook, which was trained on the segment's rows and produced the
segment's codes.
"""

from storage_core.index.vector.blocks import KEPT_BYTES, HeldFiles, Parts, Ranged, Span
from storage_core.index.vector.layout import (
    CODEBOOK,
    TRAINING,
    Codebook,
    Training,
    farthest,
    farthest_candidate,
    opening_bytes,
    trained_again,
)
from storage_core.index.vector.reader import RANKED_PER_ROW, Budget, Reader, exact
from storage_core.index.vector.segment import (
    build,
    check,
    coding_error,
    indexable,
    options_of,
    sample_rows,
    train,
    train_on,
    validate,
)

__all__ = [
    "CODEBOOK",
    "KEPT_BYTES",
    "RANKED_PER_ROW",
    "TRAINING",
    "Budget",
    "Codebook",
    "HeldFiles",
    "Parts",
    "Ranged",
    "Reader",
    "Span",
    "Training",
    "build",
    "check",
    "coding_error",
    "exact",
    "farthest",
    "farthest_candidate",
    "indexable",
    "opening_bytes",
    "options_of",
    "sample_rows",
    "train",
    "train_on",
    "trained_again",
    "validate",
]
