"""Segments: one immutable object per split and index; which live splits they answer for says `index.coverage`.

A segment is a bundle whose identity is the segment's id. Its action in the log says what it covers and under which
definition it was built; a segment built under another definition than the table's present one is not used.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import assert_never

import pyarrow as pa
import xxhash
from pyroaring import BitMap

from storage_core.errors import CommitConflict, Corrupt, InvalidInput, NotFound
from storage_core.formats import bundle, keys
from storage_core.ids import Ids
from storage_core.index import bitmap, fulltext, primary_key, text_files, text_tokenizers, vector
from storage_core.index.covering import Covered, Part
from storage_core.index.damage import damaged
from storage_core.log.actions import Add, IndexSegment
from storage_core.log.covered import Member, members, rows_file
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.create import create_once
from storage_core.settings.index import INDEX_PREFIX, IndexDefinition

_logger = logging.getLogger(__name__)

DEFINITION = "definition"

ROWS = rows_file()
"""The file, in a segment over a part of a split, with the rows of the part."""


def definition_of(snapshot: Snapshot, index: str) -> IndexDefinition:
    """Return the definition of an index, found to fit the table's schema. Raises `NotFound` or `InvalidInput`."""
    definition = snapshot.config.index(index)
    if definition is None:
        defined = ", ".join(each.name for each in snapshot.config.indexes) or "none"
        raise NotFound(f"the table has no index {index!r}; defined: {defined}", index=index)
    validate(definition, snapshot.schema)
    definition.require_key(snapshot.config.primary_key)
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
        case "primary_key":
            pass  # of which columns it is, the settings of the table say (`require_key`)
        case _:
            assert_never(definition.kind)


def fingerprint_of(definition: IndexDefinition) -> str:
    """Return text that is equal for definitions under which a segment has the same content."""
    options = vector.options_of(definition).content if definition.kind == "vector" else dict(definition.options)
    described: dict[str, object] = {"kind": definition.kind, "columns": list(definition.columns), "options": options}
    if definition.kind == "fulltext" and (revision := text_tokenizers.revision_of(definition)) is not None:
        described["words"] = revision
    return json.dumps(described, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def build(
    store: ObjectStore, add: Add, definition: IndexDefinition, schema: pa.Schema, *, rows: Sequence[int] | None = None
) -> dict[str, bytes]:
    """Return the files of a segment over one split, or these rows of it; also where no segment covers them yet.

    Rows that a deletion vector hides are among those of the segment: it stays good for every vector that follows, and
    a search leaves them out. `schema` has at least the indexed columns. One GET, verified against the log; memory is
    bounded by the split. A column that the split does not have is null. Raises what `read_split` raises.
    """
    return build_rows(indexed_rows(store, add, definition, schema, rows=rows), definition)


def indexed_rows(
    store: ObjectStore, add: Add, definition: IndexDefinition, schema: pa.Schema, *, rows: Sequence[int] | None = None
) -> pa.Table:
    """Return the columns of the index of one split, or of these rows of it, as `build` reads them."""
    # The whole file is read even for few columns: a segment must not preserve damage that only a checksum shows.
    from storage_core.split.conform import conform_split
    from storage_core.split.read import read_split  # and Parquet, which coverage does not need

    found = read_split(store, add.as_written, verify=True)
    found = conform_split(found, pa.schema([schema.field(each) for each in definition.columns]))
    return found if rows is None else found.take(pa.array(rows, pa.int64()))


def build_rows(
    rows: pa.Table, definition: IndexDefinition, *, start: vector.Codebook | None = None
) -> dict[str, bytes]:
    """Return the files of a segment over rows in memory, which have at least the indexed columns. No request.

    Training of vectors goes on from `start`; the same rows and the same `start` give the same files, for the seed is
    fixed by the definition.
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
            return vector.build(column, vector.train_on(column, definition, seed, start=start), definition)
        case "primary_key":
            return primary_key.build(rows, definition.columns)
        case _:
            assert_never(definition.kind)


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

    `covers` is a split or the whole rows of a generation, of so many `rows`; with `part`, it is over that part.

    The object is durable when this returns; until the action is committed nobody sees it. Raises `CommitUnknown` when
    the store did not say whether it kept the object and does not have it.
    """
    beside = {} if part is None else {ROWS: part.rows.serialize()}
    written = _stored(store, {**files, **beside}, definition, covers, ids=ids)
    return replace(
        written,
        numRecords=rows if part is None else len(part.rows),
        origins=None if part is None else part.origins,
    )


def write_merged(
    store: ObjectStore,
    files: Mapping[str, bytes | memoryview],
    *,
    definition: IndexDefinition,
    covered: Sequence[Covered],
    ids: Ids,
) -> IndexSegment:
    """Store the files of a segment over these splits, one after the other, as `write` does. One PUT."""
    if len(covered) == 1:
        [one] = covered
        return write(store, files, definition=definition, covers=one.split, rows=one.rows, ids=ids, part=one.part)
    parts = {rows_file(number): each.part for number, each in enumerate(covered) if each.part is not None}
    beside = {name: part.rows.serialize() for name, part in parts.items()}
    written = _stored(store, {**files, **beside}, definition, covered[0].split, ids=ids)
    origins = tuple(() if each.part is None else each.part.origins for each in covered)
    return replace(
        written,
        covers=tuple(each.split for each in covered),
        numRecords=sum(each.count for each in covered),
        coveredRows=tuple(each.count for each in covered),
        coveredOrigins=origins if parts else None,
    )


def _stored(
    store: ObjectStore, files: Mapping[str, bytes | memoryview], definition: IndexDefinition, split: str, *, ids: Ids
) -> IndexSegment:
    segment_id, fingerprint = ids.uuid(), fingerprint_of(definition)
    is_trained = definition.kind == "vector"
    training = {vector.TRAINING: vector.Training.in_files(files).to_object()} if is_trained else {}
    properties = {"index": definition.name, DEFINITION: fingerprint, "split": split}
    packed = bundle.pack(bound(files, definition, segment_id), identity=segment_id, properties=properties)
    key = keys.segment_key(definition.name, segment_id)
    _create(store, key, packed.data)
    _logger.info("wrote segment %s over %s: %d bytes", key, split, len(packed.data))
    return IndexSegment(
        index=definition.name,
        kind=definition.kind,
        path=key,
        covers=(split,),
        size=len(packed.data),
        xxh3=packed.xxh3,
        footerOffset=packed.footer_offset,
        numRecords=0,
        details={DEFINITION: fingerprint, **training},
    )


def bound(
    files: Mapping[str, bytes | memoryview], definition: IndexDefinition, identity: str
) -> Mapping[str, bytes | memoryview]:
    """Return the files as those of the object of this identity, which parts of some kinds name in their checksums."""
    return primary_key.bound(files, identity) if definition.kind == "primary_key" else files


def load(store: ObjectStore, segment: IndexSegment) -> dict[str, memoryview]:
    """Return the files of a segment, every byte verified against the log, and sound as files of its kind. One GET.

    Raises `Corrupt` when the object is not what was written, `NotFound` when it is gone.
    """
    where = segment.path
    files = bundle.unpack(store.get(where).data, expected_of(segment))
    indexed = _without_rows(files, segment)
    # A split of another writer may not say how many rows it has; its segment says 0.
    definition, rows = str(segment.details.get(DEFINITION)), segment.numRecords or None
    check(indexed, segment.index, definition, rows=rows, identity=segment_id(segment), where=where)
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
    files: Mapping[str, bytes | memoryview],
    index: str,
    fingerprint: str,
    *,
    rows: int | None,
    where: str,
    identity: str = "",
) -> None:
    """Return only when these can be the files of a segment that was built as `fingerprint` says; raises `Corrupt`.

    `identity` is that of their object, which only parts that `bound` made its own need.
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
        case "primary_key":
            primary_key.check(files, rows=rows, identity=identity, where=where)
        case _:
            assert_never(definition.kind)


def segment_id(segment: IndexSegment) -> str:
    """Return the id of a segment; `Corrupt` when the log names it by a key that is not a segment's."""
    parsed = keys.parse(segment.path)
    if parsed is None or parsed.kind is not keys.KeyKind.SEGMENT or parsed.id is None or parsed.index != segment.index:
        raise Corrupt(f"the log names {segment.path!r} as a segment of {segment.index!r}: not a segment key")
    return parsed.id


def part_rows(data: bytes | memoryview, segment: IndexSegment, member: Member) -> BitMap:
    """Return the rows of a split that a segment over a part of it has indexed, ascending. Raises `Corrupt`."""
    try:
        rows = BitMap.deserialize(bytes(data))
    except (ValueError, LookupError) as error:
        raise damaged(segment.path, f"its rows cannot be read: {error}") from error
    if len(rows) != member.rows:
        what = f"it names {len(rows)} rows of {member.split}, the log says {member.rows}"
        raise damaged(segment.path, what)
    return rows


def _without_rows(files: Mapping[str, memoryview], segment: IndexSegment) -> dict[str, memoryview]:
    """The files of the index; raises `Corrupt` unless the rows of parts beside them are sound."""
    parts = {each.file: each for each in members(segment) if each.origins is not None}
    for name, member in parts.items():
        if name not in files:
            raise damaged(segment.path, "it does not say which rows it is over")
        part_rows(files[name], segment, member)
    return {name: data for name, data in files.items() if name not in parts}


def _create(store: ObjectStore, key: str, data: bytes) -> None:
    if not create_once(store, key, data, advice="run catch-up again"):
        raise CommitConflict(f"{key}: the segment id is taken by other bytes; run catch-up again", key=key)
