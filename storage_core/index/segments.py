"""Segments: one immutable object per split and index; which live splits they answer for says `index.coverage`.

A segment is a bundle whose identity is the segment's id. Its action in the log says what it covers and under which
definition it was built; a segment built under another definition than the table's present one is not used.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

import pyarrow as pa
import xxhash
from pyroaring import BitMap

from storage_core.errors import CommitConflict, Corrupt, InvalidInput, NotFound
from storage_core.formats import bundle, keys
from storage_core.ids import Ids
from storage_core.index import bitmap, fulltext, text_files, vector
from storage_core.index.native_errors import REBUILD
from storage_core.log.actions import Add, IndexSegment
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.create import create_once
from storage_core.settings.index import INDEX_PREFIX, IndexDefinition

_logger = logging.getLogger(__name__)

DEFINITION = "definition"

ROWS = "rows.bin"
"""The file, in a segment over a part of a split, with the rows of the part: a portable Roaring bitmap."""


def definition_of(snapshot: Snapshot, index: str) -> IndexDefinition:
    """Return the definition of an index, found to fit the table's schema. Raises `NotFound` or `InvalidInput`."""
    definition = snapshot.config.index(index)
    if definition is None:
        defined = ", ".join(each.name for each in snapshot.config.indexes) or "none"
        raise NotFound(f"the table has no index {index!r}; defined: {defined}", index=index)
    validate(definition, snapshot.schema)
    return definition


def validate(definition: IndexDefinition, schema: pa.Schema) -> None:
    """Return only when the index can be built over tables of `schema`; raises `InvalidInput` that says why not."""
    for column in definition.columns:
        if column not in schema.names:
            known = ", ".join(schema.names)
            raise InvalidInput(f"index {definition.name!r}: no column {column!r} in the table; columns are {known}")
    if len(set(definition.columns)) < len(definition.columns):
        raise InvalidInput(f"index {definition.name!r}: a column is named twice in {list(definition.columns)}")
    match definition.kind:
        case "fulltext":
            fulltext.validate(definition, schema)
        case "bitmap":
            bitmap.validate(definition, schema)
        case "vector":
            vector.validate(definition, schema)
        case _:
            assert_never(definition.kind)


def fingerprint_of(definition: IndexDefinition) -> str:
    """Return text that is equal for definitions under which a segment has the same content."""
    options = vector.options_of(definition).content if definition.kind == "vector" else dict(definition.options)
    described = {"kind": definition.kind, "columns": list(definition.columns), "options": options}
    return json.dumps(described, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def build(
    store: ObjectStore, add: Add, definition: IndexDefinition, schema: pa.Schema, *, rows: Sequence[int] | None = None
) -> dict[str, bytes]:
    """Return the files of a segment over one split, or these rows of it; also where no segment covers them yet.

    Rows that a deletion vector hides are among those of the segment: it stays good for every vector that follows, and
    a search leaves them out. `schema` has at least the indexed columns. One GET, verified against the log; memory is
    bounded by the split. A column that the split does not have is null. Raises what `read_split` raises.
    """
    # The whole file is read even for few columns: a segment must not preserve damage that only a checksum shows.
    from storage_core.split.conform import conform_split
    from storage_core.split.read import read_split  # and Parquet, which coverage does not need

    found = read_split(store, add.as_written, verify=True)
    found = conform_split(found, pa.schema([schema.field(each) for each in definition.columns]))
    return build_rows(found if rows is None else found.take(pa.array(rows, pa.int64())), definition)


def build_rows(rows: pa.Table, definition: IndexDefinition) -> dict[str, bytes]:
    """Return the files of a segment over rows in memory, which have at least the indexed columns. No request.

    The same rows give the same files of vectors: their codebook is trained with a seed that the definition fixes.
    """
    _logger.debug("indexed %d rows of index %s", rows.num_rows, definition.name)
    match definition.kind:
        case "fulltext":
            return fulltext.build(rows, definition)
        case "bitmap":
            return bitmap.build(rows, definition)
        case "vector":
            column = rows.column(definition.columns[0])
            seed = xxhash.xxh3_64_intdigest(fingerprint_of(definition).encode())
            return vector.build(column, vector.train_on(column, definition, seed), definition)
        case _:
            assert_never(definition.kind)


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of a split, ascending, and the splits that they came from, for which no segment answers."""

    rows: BitMap
    origins: tuple[str, ...]


def write(
    store: ObjectStore,
    files: Mapping[str, bytes | memoryview],
    *,
    definition: IndexDefinition,
    covers: str,
    rows: int,
    ids: Ids,
    part: Part | None = None,
) -> IndexSegment:
    """Store the files of a segment as one object and return the action that adds it. One PUT.

    They are over a split, or what else a translation moves `rows` of, or a part of one.

    The object is durable when this returns; until the action is committed nobody sees it. Raises `CommitUnknown` when
    the store did not say whether it kept the object and does not have it.
    """
    segment_id = ids.uuid()
    fingerprint = fingerprint_of(definition)
    properties = {"index": definition.name, DEFINITION: fingerprint, "split": covers}
    beside = {} if part is None else {ROWS: part.rows.serialize()}
    packed = bundle.pack({**files, **beside}, identity=segment_id, properties=properties)
    key = keys.segment_key(definition.name, segment_id)
    _create(store, key, packed.data)
    _logger.info("wrote segment %s over %s: %d bytes", key, covers, len(packed.data))
    return IndexSegment(
        index=definition.name,
        kind=definition.kind,
        path=key,
        covers=(covers,),
        size=len(packed.data),
        xxh3=packed.xxh3,
        footerOffset=packed.footer_offset,
        numRecords=rows if part is None else len(part.rows),
        details={DEFINITION: fingerprint},
        origins=None if part is None else part.origins,
    )


def load(store: ObjectStore, segment: IndexSegment) -> dict[str, memoryview]:
    """Return the files of a segment, every byte verified against the log, and sound as files of its kind. One GET.

    Raises `Corrupt` when the object is not what was written, `NotFound` when it is gone.
    """
    where = segment.path
    files = bundle.unpack(store.get(where).data, expected_of(segment))
    indexed = files if segment.origins is None else _without_rows(files, segment)
    # A split of another writer may not say how many rows it has; its segment says 0.
    check(indexed, segment.index, str(segment.details.get(DEFINITION)), rows=segment.numRecords or None, where=where)
    return files


def expected_of(segment: IndexSegment) -> bundle.Expected:
    """Return what the log says of the object of a segment. Raises `Corrupt` as `segment_id` does."""
    return bundle.Expected(
        where=segment.path,
        identity=segment_id(segment),
        size=segment.size,
        footer_offset=segment.footerOffset,
        xxh3=segment.xxh3,
    )


def check(
    files: Mapping[str, bytes | memoryview], index: str, fingerprint: str, *, rows: int | None, where: str
) -> None:
    """Return only when these can be the files of a segment that was built as `fingerprint` says; raises `Corrupt`.

    A definition that this release does not know says nothing of the files, and no search uses them.
    """
    try:
        definition = IndexDefinition.from_text(INDEX_PREFIX + index, fingerprint)
    except InvalidInput:
        return
    match definition.kind:
        case "fulltext":
            text_files.check(files, definition, rows=rows, where=where)
        case "bitmap":
            bitmap.check(files, definition, where=where)
        case "vector":
            vector.check(files, definition, rows=rows, where=where)
        case _:
            assert_never(definition.kind)


def segment_id(segment: IndexSegment) -> str:
    """Return the id of a segment; `Corrupt` when the log names it by a key that is not a segment's."""
    parsed = keys.parse(segment.path)
    if parsed is None or parsed.kind is not keys.KeyKind.SEGMENT or parsed.id is None or parsed.index != segment.index:
        raise Corrupt(f"the log names {segment.path!r} as a segment of {segment.index!r}: not a segment key")
    return parsed.id


def part_rows(data: bytes | memoryview, segment: IndexSegment) -> BitMap:
    """Return the rows of its split that a segment over a part of it has indexed, ascending. Raises `Corrupt`."""
    try:
        rows = BitMap.deserialize(bytes(data))
    except (ValueError, LookupError) as error:
        raise Corrupt(f"{segment.path}: its rows cannot be read: {error}", advice=REBUILD, key=segment.path) from error
    if len(rows) != segment.numRecords:
        found = f"{segment.path}: names {len(rows)} rows, the log says {segment.numRecords}"
        raise Corrupt(found, advice=REBUILD, key=segment.path)
    return rows


def _without_rows(files: Mapping[str, memoryview], segment: IndexSegment) -> dict[str, memoryview]:
    """The files of the index; raises `Corrupt` unless the rows beside them are sound."""
    if ROWS not in files:
        raise Corrupt(f"{segment.path}: does not say which rows it is over", advice=REBUILD, key=segment.path)
    part_rows(files[ROWS], segment)
    return {name: data for name, data in files.items() if name != ROWS}


def _create(store: ObjectStore, key: str, data: bytes) -> None:
    if not create_once(store, key, data, advice="run catch-up again"):
        raise CommitConflict(f"{key}: the segment id is taken by other bytes; run catch-up again", key=key)
