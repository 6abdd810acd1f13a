"""Index segments of a generation: what a search asks instead of indexing its rows.

They are objects like those of the base, and become those of the base when the generation is merged. One covers the
whole rows of the generation, those whose folded record is a put or a reset, in the order in which a merge writes them;
the generation's manifest says which order that was, and under which definition it was built. A segment only saves work:
a reader that cannot use it has the records, and builds the same from them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from storage_core.errors import Corrupt, InvalidInput, NotFound, Unavailable
from storage_core.formats import keys
from storage_core.formats.generation_manifest import Generation, GenerationSegment
from storage_core.ids import Ids
from storage_core.index import segments
from storage_core.log.actions import IndexSegment
from storage_core.objectstore.contract import ObjectStore
from storage_core.rows import fold
from storage_core.rows.codes import Mask
from storage_core.rows.schema import conform
from storage_core.settings.index import IndexDefinition
from storage_core.settings.table import TableConfig
from storage_core.split.arrangement import places_in_order
from storage_core.split.context import SplitContext

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
    store: ObjectStore,
    generation: Generation,
    records: pa.Table,
    key: Sequence[str],
    *,
    context: SplitContext,
    ids: Ids,
) -> Generation:
    """Return the generation with a segment per maintained index, each durable and known to nobody. One PUT each.

    `records` are those of the generation in order. An index that cannot be built, for want of a column or of room for
    scratch files, is left out with a warning: what only saves work must not fail a flush.
    """
    indexes = TableConfig.from_configuration(context.configuration).maintained
    if not indexes:
        return generation
    folded = fold.fold(records, key)
    rows = folded.filter(pa.array(gives_whole_rows(folded)))
    rows = rows.take(pa.array(places_in_order(rows, context)))
    found: list[GenerationSegment] = []
    for definition in indexes if rows.num_rows else ():
        try:
            segments.validate(definition, rows.schema)
            files = segments.build_rows(rows.select(definition.columns), definition)
        except (InvalidInput, Unavailable) as error:
            _logger.warning("generation %s gets no segment of index %s: %s", generation.path, definition.name, error)
            continue
        written = segments.write(
            store, files, definition=definition, covers=covered_name(generation), rows=rows.num_rows, ids=ids
        )
        found.append(_named(written, context))
    return replace(generation, segments=tuple(found))


def covered_name(generation: Generation) -> str:
    """Return what segments and translations call the whole rows of the generation."""
    return f"{keys.REGIONS_PREFIX}{generation.region}/{generation.path}"


def segment_for(generation: Generation, definition: IndexDefinition, rows: int, order: str) -> IndexSegment | None:
    """Return the segment of the generation that was built as `definition` says, over so many rows in this order."""
    wanted = (definition.name, segments.fingerprint_of(definition), rows, order)
    for each in generation.segments:
        if (each.index, each.definition, each.rows, each.order) == wanted:
            return of_base(generation, each)
    return None


def files(
    store: ObjectStore, segment: IndexSegment | None, definition: IndexDefinition, rows: pa.Table
) -> Mapping[str, bytes | memoryview]:
    """Return the files of the index over a generation's whole rows: from its segment, else built now. One GET."""
    if segment is not None:
        try:
            return segments.load(store, segment)
        except (Corrupt, NotFound) as error:
            _logger.warning("a segment of %s is not usable, indexing it: %s", segment.covers[0], error)
    return segments.build_rows(rows.select(definition.columns), definition)


def of_base(generation: Generation, segment: GenerationSegment) -> IndexSegment:
    """Return the action by which a segment of the generation becomes one of the base."""
    return IndexSegment(
        index=segment.index,
        kind=segment.kind,
        path=segment.key,
        covers=(covered_name(generation),),
        size=segment.size,
        xxh3=segment.xxh3,
        footerOffset=segment.footer_offset,
        numRecords=segment.rows,
        details={segments.DEFINITION: segment.definition},
    )


def _named(written: IndexSegment, context: SplitContext) -> GenerationSegment:
    return GenerationSegment(
        index=written.index,
        kind=written.kind,
        id=segments.segment_id(written),
        definition=str(written.details[segments.DEFINITION]),
        order=context.arrangement,
        rows=written.numRecords,
        size=written.size,
        footer_offset=written.footerOffset,
        xxh3=written.xxh3,
    )
