"""Index segments of a generation: what a search asks instead of indexing its rows.

A segment `<index>.seg` in the directory of the generation is a bundle like those of the base, with the directory's name
as its identity. It covers the whole rows of the generation, those whose folded record is a put or a reset, ascending by
key; the generation's manifest says under which definition it was built. A segment only saves work: a reader that cannot
use it has the records, and builds the same from them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from storage_core.errors import Corrupt, InvalidInput, NotFound, Unavailable
from storage_core.formats import bundle
from storage_core.formats.bundle import Bundle
from storage_core.formats.generation_manifest import Generation, GenerationSegment, file_key, segment_file
from storage_core.index import segments
from storage_core.objectstore.contract import ObjectStore
from storage_core.rows import fold
from storage_core.rows.codes import Mask
from storage_core.rows.schema import conform
from storage_core.settings.index import IndexDefinition

_logger = logging.getLogger(__name__)


def gives_whole_rows(folded: pa.Table) -> Mask:
    """Tell of each folded record whether it gives the whole row, whatever was there before: a put or a reset."""
    operations = folded.column(fold.OPERATION).to_numpy()
    mask: Mask = np.isin(operations, [int(fold.Operation.PUT), int(fold.Operation.RESET)])
    return mask


def whole_rows(folded: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows that folded records give whole, in their order, under the schema of the table."""
    rows = folded.filter(pa.array(gives_whole_rows(folded)))
    return conform(rows.drop_columns([fold.OPERATION, fold.FIELDS]), schema)


def with_segments(
    generation: Generation, records: pa.Table, key: Sequence[str], indexes: Sequence[IndexDefinition]
) -> tuple[Generation, dict[str, bytes]]:
    """Return the generation with a segment per index, and their files by name. No request; none for no index.

    `records` are those of the generation in order. An index that cannot be built, for want of a column or of room for
    scratch files, is left out with a warning: what only saves work must not fail a flush.
    """
    if not indexes:
        return generation, {}
    folded = fold.fold(records, key)
    rows = folded.filter(pa.array(gives_whole_rows(folded)))
    found: list[GenerationSegment] = []
    files: dict[str, bytes] = {}
    for definition in indexes if rows.num_rows else ():
        try:
            segments.validate(definition, rows.schema)
            packed = _packed(segments.build_rows(rows.select(definition.columns), definition), definition, generation)
        except (InvalidInput, Unavailable) as error:
            _logger.warning("generation %s gets no segment of index %s: %s", generation.path, definition.name, error)
            continue
        segment = GenerationSegment(
            index=definition.name,
            definition=segments.fingerprint_of(definition),
            rows=rows.num_rows,
            size=len(packed.data),
            footer_offset=packed.footer_offset,
            xxh3=packed.xxh3,
        )
        found.append(segment)
        files[segment_file(definition.name)] = packed.data
    return replace(generation, segments=tuple(found)), files


def usable(generation: Generation, definition: IndexDefinition, rows: int) -> GenerationSegment | None:
    """Return the segment of the generation that was built as `definition` says over so many rows, None without one."""
    wanted = (definition.name, segments.fingerprint_of(definition), rows)
    return next((each for each in generation.segments if (each.index, each.definition, each.rows) == wanted), None)


def files(
    store: ObjectStore, generation: Generation, definition: IndexDefinition, rows: pa.Table
) -> Mapping[str, bytes | memoryview]:
    """Return the files of the index over the generation's whole rows: from its segment, else built now. One GET."""
    segment = usable(generation, definition, rows.num_rows)
    if segment is not None:
        try:
            return load(store, generation, segment)
        except (Corrupt, NotFound) as error:
            _logger.warning("a segment of generation %s is not usable, indexing it: %s", generation.path, error)
    return segments.build_rows(rows.select(definition.columns), definition)


def load(store: ObjectStore, generation: Generation, segment: GenerationSegment) -> dict[str, memoryview]:
    """Return the files of a segment, every byte verified against the generation's manifest, and sound. One GET.

    Raises `Corrupt` when the object is not what was written, `NotFound` when it is gone.
    """
    where = file_key(generation, segment_file(segment.index))
    expected = bundle.Expected(
        where=where,
        identity=generation.path,
        size=segment.size,
        footer_offset=segment.footer_offset,
        xxh3=segment.xxh3,
    )
    files = bundle.unpack(store.get(where).data, expected)
    fingerprint, identity = segment.definition, generation.path
    segments.check(files, segment.index, fingerprint, rows=segment.rows, identity=identity, where=where)
    return files


def _packed(parts: Mapping[str, bytes], definition: IndexDefinition, generation: Generation) -> Bundle:
    fingerprint = segments.fingerprint_of(definition)
    properties = {"index": definition.name, segments.DEFINITION: fingerprint}
    files = segments.bound(parts, definition, generation.path)
    return bundle.pack(files, identity=generation.path, properties=properties)
