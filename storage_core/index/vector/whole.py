"""Codes of each quantization, as they are stored and as the whole numbers that they stand for."""

from __future__ import annotations

import numpy as np

from storage_core.index.vector.codebook import Codebook
from storage_core.index.vector.codes import Bytes, Whole, coarse, fine, from_coarse
from storage_core.index.vector.product import from_product, to_product
from storage_core.rows.vectors import Floats


def whole_of(codebook: Codebook, placed: Floats) -> tuple[Bytes, Whole]:
    """Return the codes of placed vectors, and the whole numbers that they stand for. Not for `none`, which has none."""
    match codebook.quantization:
        case "scalar":
            whole = fine(placed)
            return whole.view(np.uint8), whole
        case "product":
            codes = to_product(placed, codebook.books)
        case _:
            codes = coarse(placed)
    return codes, decoded(codebook, codes)


def decoded(codebook: Codebook, codes: Bytes) -> Whole:
    """Return the whole numbers that codes, a row each, stand for."""
    match codebook.quantization:
        case "scalar":
            return codes.view(np.int8)
        case "product":
            return from_product(codes, codebook.books)
        case _:
            return from_coarse(codes)
