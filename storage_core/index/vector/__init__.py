"""Vector segments: nearest neighbours by l2, cosine or dot, from compact codes that exact vectors then rank.

Pure but for `parts`: arrays to bytes and back. A segment has the codebook that made its codes, trained on its own rows.
"""

from storage_core.index.vector.blocks import KEPT_BYTES
from storage_core.index.vector.codebook import Codebook
from storage_core.index.vector.codes import farthest, farthest_candidate
from storage_core.index.vector.definition import options_of, validate
from storage_core.index.vector.distances import exact
from storage_core.index.vector.layout import CODEBOOK, opening_bytes
from storage_core.index.vector.parts import HeldFiles, Parts, Ranged, Span
from storage_core.index.vector.probing import Budget
from storage_core.index.vector.reader import RANKED_PER_ROW, Reader
from storage_core.index.vector.segment import build, check, indexable
from storage_core.index.vector.trained import TRAINING, Training, trained_again
from storage_core.index.vector.training import coding_error, sample_rows, train, train_on

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
