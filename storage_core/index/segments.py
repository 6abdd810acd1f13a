"""Segments: one immutable object per split and index, and which live splits they answer for.

A segment is a bundle whose identity is the segment's id. Its action in the log says what it covers and under which
definition it was built; a segment built under another definition than the table's present one is not used.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import assert_never

import pyarrow as pa

from storage_core.errors import CommitConflict, Corrupt, InvalidInput, NotFound
from storage_core.formats import bundle, keys
from storage_core.ids import Ids
from storage_core.index import bitmap, fulltext, text_files
from storage_core.log.actions import Add, IndexSegment
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.create import create_once
from storage_core.settings.index import INDEX_PREFIX, IndexDefinition

_logger = logging.getLogger(__name__)

DEFINITION = "definition"


@dataclass(frozen=True, slots=True)
class Coverage:
    """Which live splits an index answers for. `stale` are segments that no query of the snapshot can use."""

    definition: IndexDefinition
    segments: Mapping[str, IndexSegment]  # by split path
    missing: tuple[Add, ...]  # live splits without a segment, by path
    stale: tuple[str, ...]  # segment paths


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
        case _:
            assert_never(definition.kind)


def coverage(snapshot: Snapshot, definition: IndexDefinition) -> Coverage:
    """Return what the index covers of the snapshot. No request.

    A usable segment covers exactly one live split with as many rows and was built under `definition`; where two do,
    the first by path is used and the other is stale, so that every reader of the snapshot uses the same ones.
    """
    used: dict[str, IndexSegment] = {}
    stale: list[str] = []
    fingerprint = fingerprint_of(definition)
    for path, segment in sorted(snapshot.segments.items()):
        if segment.index != definition.name:
            continue
        split = segment.covers[0] if len(segment.covers) == 1 else None
        add = None if split is None else snapshot.splits.get(split)
        current = segment.details.get(DEFINITION) == fingerprint
        if add is None or add.path in used or not current or segment.numRecords != (add.numRecords or 0):
            stale.append(path)
        else:
            used[add.path] = segment
    missing = tuple(add for path, add in sorted(snapshot.splits.items()) if path not in used)
    return Coverage(definition=definition, segments=used, missing=missing, stale=tuple(stale))


def covering(snapshot: Snapshot, definition: IndexDefinition) -> Callable[[Add], IndexSegment | None]:
    """Return a function that gives the segment by which an index answers for a split, as `coverage` has it.

    No request, and no manifest is read.
    """
    fingerprint = fingerprint_of(definition)
    found: dict[str, list[IndexSegment]] = {}
    for _, segment in sorted(snapshot.segments.items()):
        is_current = segment.details.get(DEFINITION) == fingerprint
        if segment.index == definition.name and is_current and len(segment.covers) == 1:
            found.setdefault(segment.covers[0], []).append(segment)

    def of(add: Add) -> IndexSegment | None:
        return next((each for each in found.get(add.path, ()) if each.numRecords == (add.numRecords or 0)), None)

    return of


def fingerprint_of(definition: IndexDefinition) -> str:
    """Return text that is equal for definitions under which a segment has the same content."""
    described = {"kind": definition.kind, "columns": list(definition.columns), "options": dict(definition.options)}
    return json.dumps(described, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def build(store: ObjectStore, add: Add, definition: IndexDefinition, schema: pa.Schema) -> dict[str, bytes]:
    """Return the files of a segment over one split; also used for splits that no segment covers yet.

    Rows that a deletion vector hides are among those of the segment: it stays good for every vector that follows, and
    a search leaves them out. `schema` has at least the indexed columns. One GET, verified against the log; memory is
    bounded by the split. A column that the split does not have is null. Raises what `read_split` raises.
    """
    # The whole file is read even for few columns: a segment must not preserve damage that only a checksum shows.
    from storage_core.split.conform import conform_split
    from storage_core.split.read import read_split  # and Parquet, which coverage does not need

    rows = read_split(store, add.as_written, verify=True)
    return build_rows(conform_split(rows, pa.schema([schema.field(each) for each in definition.columns])), definition)


def build_rows(rows: pa.Table, definition: IndexDefinition) -> dict[str, bytes]:
    """Return the files of a segment over rows in memory, which have at least the indexed columns. No request."""
    match definition.kind:
        case "fulltext":
            return fulltext.build(rows, definition)
        case "bitmap":
            return bitmap.build(rows, definition)
        case _:
            assert_never(definition.kind)


def write(
    store: ObjectStore, files: Mapping[str, bytes], *, definition: IndexDefinition, add: Add, ids: Ids
) -> IndexSegment:
    """Store the files of a segment over split `add` as one object and return the action that adds it. One PUT.

    The object is durable when this returns; until the action is committed nobody sees it. Raises `CommitUnknown` when
    the store did not say whether it kept the object and does not have it.
    """
    segment_id = ids.uuid()
    fingerprint = fingerprint_of(definition)
    properties = {"index": definition.name, DEFINITION: fingerprint, "split": add.path}
    packed = bundle.pack(files, identity=segment_id, properties=properties)
    key = keys.segment_key(definition.name, segment_id)
    _create(store, key, packed.data)
    _logger.info("wrote segment %s over %s: %d bytes", key, add.path, len(packed.data))
    return IndexSegment(
        index=definition.name,
        kind=definition.kind,
        path=key,
        covers=(add.path,),
        size=len(packed.data),
        xxh3=packed.xxh3,
        footerOffset=packed.footer_offset,
        numRecords=add.numRecords or 0,
        details={DEFINITION: fingerprint},
    )


def load(store: ObjectStore, segment: IndexSegment) -> dict[str, memoryview]:
    """Return the files of a segment, every byte verified against the log, and sound as files of its kind. One GET.

    Raises `Corrupt` when the object is not what was written, `NotFound` when it is gone.
    """
    where = segment.path
    files = bundle.unpack(store.get(where).data, expected_of(segment))
    # A split of another writer may not say how many rows it has; its segment says 0.
    check(files, segment.index, str(segment.details.get(DEFINITION)), rows=segment.numRecords or None, where=where)
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
        case _:
            assert_never(definition.kind)


def segment_id(segment: IndexSegment) -> str:
    """Return the id of a segment; `Corrupt` when the log names it by a key that is not a segment's."""
    parsed = keys.parse(segment.path)
    if parsed is None or parsed.kind is not keys.KeyKind.SEGMENT or parsed.id is None or parsed.index != segment.index:
        raise Corrupt(f"the log names {segment.path!r} as a segment of {segment.index!r}: not a segment key")
    return parsed.id


def _create(store: ObjectStore, key: str, data: bytes) -> None:
    if not create_once(store, key, data, advice="run catch-up again"):
        raise CommitConflict(f"{key}: the segment id is taken by other bytes; run catch-up again", key=key)
