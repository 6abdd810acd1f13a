"""Storing where rows went, for segments that were built over them (decision 0115)."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from storage_core.errors import CommitConflict
from storage_core.formats import keys
from storage_core.formats.translation_map import TranslationMap, pack
from storage_core.ids import Ids
from storage_core.log.actions import Add, Translation
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.create import create_once

_logger = logging.getLogger(__name__)


def store_translation(
    store: ObjectStore, found: TranslationMap, inputs: Sequence[str], outputs: Sequence[Add], *, ids: Ids
) -> Translation:
    """Store the map of a translation from inputs to splits, and return the action that says so. One PUT.

    Raises `CommitUnknown` when the store did not say whether it kept the object and does not have it.
    """
    identity = ids.uuid()
    packed, key = pack(found, identity=identity), keys.translation_key(identity)
    if not create_once(store, key, packed.data, advice="run the job again"):
        raise CommitConflict(f"{key}: the translation id is taken by other bytes; run the job again", key=key)
    _logger.info("wrote translation %s of %d inputs: %d bytes", key, len(inputs), len(packed.data))
    return Translation(
        path=key,
        inputs=tuple(inputs),
        inputRows=found.input_rows,
        outputs=tuple(add.path for add in outputs),
        movedRows=tuple(found.moved.ravel().tolist()),
        size=len(packed.data),
        xxh3=packed.xxh3,
        footerOffset=packed.footer_offset,
    )
