"""The translation of a merge: where each row of its inputs went, for segments that were built over them (0115)."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from storage_core.compaction.kernel import Runs
from storage_core.formats.translation_map import MOST_INPUTS, TranslationMap
from storage_core.ids import Ids
from storage_core.index.translations import store_translation
from storage_core.log.actions import Add, Translation
from storage_core.objectstore.contract import ObjectStore
from storage_core.rows.keys import Positions
from storage_core.split.opened import OpenSplit

_logger = logging.getLogger(__name__)


def translate(
    store: ObjectStore, inputs: Sequence[OpenSplit], runs: Runs, outputs: Sequence[Add], *, ids: Ids
) -> Translation | None:
    """Store where the rows of the inputs went by this order, and return the action that says so. One PUT.

    None for inputs whose rows do not keep their order, and for more of them than a translation can number: their
    outputs are indexed anew. What is stored was compared with the order by which the rows were written. Raises
    `CommitUnknown` when the store did not say whether it kept the object and does not have it.
    """
    if len(inputs) > MOST_INPUTS or not outputs:
        return None
    kind = np.uint8 if len(inputs) <= 2**8 else np.uint16
    found = TranslationMap(
        input_rows=tuple(split.rows + len(split.deleted) for split in inputs),
        output_rows=tuple(add.numRecords or 0 for add in outputs),
        order=np.repeat(runs.input.astype(kind), runs.count),
        dropped=tuple(split.deleted for split in inputs),
    )
    if not _is_of(found, runs.positions([split.rows for split in inputs])):
        _logger.warning("no translation of %s: not all rows of an input keep their order", inputs[0].add.path)
        return None
    return store_translation(store, found, [split.add.path for split in inputs], outputs, ids=ids)


def _is_of(translation: TranslationMap, positions: Positions) -> bool:
    """Whether the translation leads where the rows went: `positions` are those of each output row among all inputs."""
    by_input = np.argsort(translation.order, kind="stable")
    return bool(np.array_equal(positions[by_input], np.arange(len(positions))))
