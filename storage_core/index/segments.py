"""Segments of indexes, and the live splits that each segment covers.

A segment is one immutable object with the files of an index over one split, a part of a split, or several splits. The
object is a bundle. The identity of the object is the id of the segment. The action in the log contains the covered
splits, and the index definition with which the segment was built. If this definition differs from the table's current
definition, no search uses the segment.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

import pyarrow as pa
import xxhash
from pyroaring import BitMap

from storage_core.base.clock import Ids
from storage_core.base.errors import CommitConflict, Corrupt, InvalidInput, NotFound
from storage_core.base.text import unknown_names
from storage_core.data.formats import bundle, keys
from storage_core.data.rows.keys import Positions
from storage_core.data.settings.index import INDEX_PREFIX, IndexDefinition
from storage_core.index import bitmap, fulltext, primary_key, text_files, vector
from storage_core.index.damage import damaged
from storage_core.log.actions import Add, IndexSegment, Translation
from storage_core.log.coverage import Member, is_over_one_split, members, rows_file
from storage_core.log.snapshot import Snapshot
from storage_core.store.contract import ObjectStore, create_once

# Building and storing segments.


Renumbered = tuple[Mapping[str, bytes | memoryview], Positions]
"""The files of a segment, and for each row of the segment, its row number in the merged segment."""


@dataclass(frozen=True, slots=True)
class Part:
    """Ascending rows of a split, and the splits from which these rows came."""

    rows: BitMap
    origins: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CoveredSplit:
    """A split with `rows` rows. A merged segment covers this split, or a part of it."""

    split: str
    rows: int
    part: Part | None = None

    @property
    def count(self) -> int:
        """The number of rows in the split that the segment covers."""
        return self.rows if self.part is None else len(self.part.rows)

    @property
    def rows_in_split(self) -> list[int] | None:
        """The covered rows of the split's file, or None for all rows."""
        return None if self.part is None else [*self.part.rows]


_logger = logging.getLogger(__name__)

DEFINITION = "definition"

ROWS = rows_file()
"""The name of the file with the covered rows. A segment has this file if it covers only a part of a split."""


def definition_of(snapshot: Snapshot, index: str) -> IndexDefinition:
    """Return the definition of an index, and check that the definition fits the table's schema.

    Raises `NotFound` or `InvalidInput`.
    """
    definition = snapshot.config.index(index)
    if definition is None:
        defined = [each.name for each in snapshot.config.indexes]
        raise NotFound(unknown_names("index", [index], defined), index=index)
    validate(definition, snapshot.schema)
    definition.require_key(snapshot.config.primary_key)
    return definition


def validate(definition: IndexDefinition, schema: pa.Schema) -> None:
    """Raise `InvalidInput` if the index cannot be built over tables of `schema`. The message contains the reason."""
    for column in definition.columns:
        if column not in schema.names:
            raise InvalidInput(unknown_names("column", [column], schema.names, where=f"index {definition.name!r}"))
    if len(set(definition.columns)) < len(definition.columns):
        raise InvalidInput(
            f"index {definition.name!r}: a column is named twice in {list(definition.columns)}. Name each column once"
        )
    match definition.kind:
        case "fulltext":
            fulltext.validate(definition, schema)
        case "bitmap":
            bitmap.validate(definition, schema)
        case "vector":
            vector.validate(definition, schema)
        case "primary_key":
            pass  # the settings of the table determine the columns (`require_key`)
        case _:
            assert_never(definition.kind)


def fingerprint_of(definition: IndexDefinition) -> str:
    """Return a text that identifies the content of segments.

    If two definitions produce segments with the same content, the function returns equal texts.
    """
    options = vector.options_of(definition).content if definition.kind == "vector" else dict(definition.options)
    described: dict[str, object] = {"kind": definition.kind, "columns": list(definition.columns), "options": options}
    if definition.kind == "fulltext" and (revision := text_files.revision_of(definition)) is not None:
        described["words"] = revision
    return json.dumps(described, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def build(
    store: ObjectStore, add: Add, definition: IndexDefinition, schema: pa.Schema, *, rows: Sequence[int] | None = None
) -> dict[str, bytes]:
    """Return the files of a segment over one split, or over some rows of the split.

    A search also uses these files for splits that no segment covers yet. The segment includes rows that a deletion
    vector hides. Therefore later deletion vectors do not invalidate the segment, and a search excludes the hidden rows.
    If the split lacks a column, all values of the column are null. Raises the errors of `read_split`.

    Args:
        store: The store of the table.
        add: The split.
        definition: The definition of the index.
        schema: The schema of the table, or at least the indexed columns.
        rows: The rows of the split to index, or None for all.

    Cost:
        One GET. The split is verified against the log. Memory is bounded by the size of the split.
    """
    return build_rows(indexed_rows(store, add, definition, schema, rows=rows), definition)


def indexed_rows(
    store: ObjectStore, add: Add, definition: IndexDefinition, schema: pa.Schema, *, rows: Sequence[int] | None = None
) -> pa.Table:
    """Return the indexed columns of one split, for all rows or for `rows`, exactly as `build` reads them."""
    # Read the whole file, even if the index has few columns. Some damage is visible only in the checksum of the file,
    # and a segment must not preserve damage.
    from storage_core.split.read import (
        conform_split,
        read_split,  # This import loads Parquet, which the coverage does not need.
    )

    found = read_split(store, add.as_written, verify=True)
    found = conform_split(found, pa.schema([schema.field(each) for each in definition.columns]))
    return found if rows is None else found.take(pa.array(rows, pa.int64()))


def build_rows(
    rows: pa.Table, definition: IndexDefinition, *, start: vector.Codebook | None = None
) -> dict[str, bytes]:
    """Return the files of a segment over rows in memory.

    The table `rows` must have at least the indexed columns. Makes no request.

    If `start` is given, the training of embeddings continues from the codebook `start`. The definition determines the
    seed, so the same rows and the same `start` produce the same files.
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
    """Store the files of a segment as one object, and return the action that adds it.

    The object is durable when this function returns. No reader sees the object until the action is committed.

    Args:
        store: The store of the table.
        files: The files of the segment.
        definition: The definition of the index.
        covers: The split that the segment covers, or the generation if the segment covers the whole rows of a
            generation.
        rows: The number of rows of `covers`.
        ids: The source of ids.
        part: The covered part of the split, or None for all rows.

    Raises:
        CommitUnknown: The store did not report whether it stored the object, and the object is not there.

    Cost:
        One PUT.
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
    covered: Sequence[CoveredSplit],
    ids: Ids,
) -> IndexSegment:
    """Store the files of a segment over a sequence of splits, in the same way as `write`. Makes one PUT."""
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
    packed = bundle.pack_bundle(bound(files, definition, segment_id), identity=segment_id, properties=properties)
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
    """Return the files of a segment, prepared for the object with this identity.

    A primary-key index includes the identity in the checksums of its parts.
    """
    return primary_key.bound(files, identity) if definition.kind == "primary_key" else files


def load(store: ObjectStore, segment: IndexSegment) -> dict[str, memoryview]:
    """Return the files of a segment.

    Every byte is verified against the log, and the files are checked by the rules of the index kind.

    Raises:
        Corrupt: The object differs from what was written.
        NotFound: The object does not exist.

    Cost:
        One GET.
    """
    where = segment.path
    files = bundle.unpack_bundle(store.get(where).data, expected_of(segment))
    indexed = _without_rows(files, segment)
    # Other writers may omit the number of rows of a split. The number of rows of the segment is then 0.
    definition, rows = str(segment.details.get(DEFINITION)), segment.numRecords or None
    check(indexed, segment.index, definition, rows=rows, identity=segment_id(segment), where=where)
    return files


def expected_of(segment: IndexSegment) -> bundle.Expected:
    """Return the properties of a segment's object, read from the log. Raises the errors of `segment_id`."""
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
    """Raise `Corrupt` if the files cannot belong to a segment with this `fingerprint`.

    `identity` is the identity of the object. For a primary-key index, the identity is part of the checksums that
    `bound` computed. Other kinds of index do not use the identity. If this release does not know the definition, the
    files are not checked, and no search uses the segment.
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
    """Return the id of a segment. Raises `Corrupt` if the path of the segment in the log is not a segment key."""
    parsed = keys.parse(segment.path)
    if parsed is None or parsed.kind is not keys.KeyKind.SEGMENT or parsed.id is None or parsed.index != segment.index:
        raise Corrupt(
            f"the log has the segment {segment.path!r} of {segment.index!r}, which is not the key of a segment"
        )
    return parsed.id


def part_rows(data: bytes | memoryview, segment: IndexSegment, member: Member) -> BitMap:
    """Return the rows of a split that a segment covers, ascending.

    The segment was built over a part of the split. Raises `Corrupt`.
    """
    try:
        rows = BitMap.deserialize(bytes(data))
    except (ValueError, LookupError) as error:
        raise damaged(segment.path, f"its rows cannot be read: {error}") from error
    if len(rows) != member.rows:
        what = f"it has {len(rows)} rows of {member.split}, but the log has {member.rows}"
        raise damaged(segment.path, what)
    return rows


def _without_rows(files: Mapping[str, memoryview], segment: IndexSegment) -> dict[str, memoryview]:
    """Return the files of the index. The files that contain the covered row numbers are left out.

    Raises `Corrupt` if those files are not valid.
    """
    parts = {each.file: each for each in members(segment) if each.origins is not None}
    for name, member in parts.items():
        if name not in files:
            raise damaged(segment.path, "the list of the rows of the segment is missing")
        part_rows(files[name], segment, member)
    return {name: data for name, data in files.items() if name not in parts}


def _create(store: ObjectStore, key: str, data: bytes) -> None:
    if not create_once(store, key, data, advice="run catch-up again"):
        raise CommitConflict(
            f"{key}: an object with this segment id and other content exists. Run catch-up again", key=key
        )


# Coverage: the segments of an index that cover the rows of live splits.
#
# The coverage follows from the log alone, without a request. For each pair of input split and output split, a
# translation contains the number of moved rows. If a segment was built over a live split, the coverage uses this
# segment. If no segment was built over the live split, the coverage uses segments over the splits from which the rows
# came. If several segments could cover a row, the segment that needs the fewest translations to the live split is used.
# A segment over the whole split is used before a segment over a part. Among equal segments, the first segment by path
# is used (decision 0019).


REBUILD_SHARE = 0.2
"""The maximum share of a segment's rows that left the live splits. Above this share, the segment is rebuilt."""

MOST_MOVES = 8
"""The maximum number of moves of a row.

A segment is rebuilt if its rows moved more often than this maximum. A search must apply one translation for each move
of the rows.
"""


@dataclass(frozen=True, slots=True)
class Coverage:
    """The splits that an index covers in a snapshot.

    Attributes:
        definition: The definition of the index.
        segments: The segments in use, by path.
        answers: The paths of the segments of each live split.
        missing: The live splits with rows that no segment covers.
        origins: For each missing split, the splits from which its uncovered rows came.
        translations: The translations that lead to the live splits, both from the segments and from the origins of
            parts. The parts may exist or be missing.
        stale: The segments that no search of the snapshot uses.
        rebuild: The segments in use that should be rebuilt.
        without: The segments and translations that the caller excluded.
        atoms: For each pair of live split and segment, the splits over which the segment was built for these rows. For
            a part, the splits from which the rows of the part came.
        live_rows: The approximate number of live rows of each segment.
        moves: The maximum number of moves of the rows of each segment.
        missing_rows: The approximate number of uncovered rows of each live split.
    """

    definition: IndexDefinition
    segments: Mapping[str, IndexSegment]
    answers: Mapping[str, tuple[str, ...]]
    missing: tuple[Add, ...]
    origins: Mapping[str, tuple[str, ...]]
    translations: Mapping[str, Translation]
    stale: tuple[str, ...]
    rebuild: frozenset[str]
    without: frozenset[str] = frozenset()
    atoms: Mapping[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    live_rows: Mapping[str, float] = field(default_factory=dict)
    moves: Mapping[str, int] = field(default_factory=dict)
    missing_rows: Mapping[str, float] = field(default_factory=dict)


def watermark_of(snapshot: Snapshot, covered: Coverage) -> int:
    """Return the version up to which every live split is covered.

    The result is the version directly before the version that added the oldest uncovered split.
    """
    return min((snapshot.splits.added_at(add.path)[0] - 1 for add in covered.missing), default=snapshot.version)


def compute_coverage(snapshot: Snapshot, definition: IndexDefinition, *, without: Collection[str] = ()) -> Coverage:
    """Return which splits of the snapshot the index covers. Makes no request.

    `without` has paths of segments and translations that must not be used. A segment is usable if it has the definition
    `definition`, and the same number of rows as its split or part.
    """
    rows = {add.path: add.numRecords or 0 for add in snapshot.splits.values()}
    traces = _Traces.of(snapshot, definition, rows, without)
    for path in sorted(snapshot.splits):
        traces.follow(path)
    own = (path for path, segment in snapshot.segments.items() if segment.index == definition.name)
    return Coverage(
        definition=definition,
        segments={path: snapshot.segments[path] for path in sorted(traces.live_rows)},
        answers={split: tuple(sorted(paths)) for split, paths in traces.answers.items()},
        missing=tuple(snapshot.splits[path] for path in traces.origins),
        origins={split: tuple(sorted(atoms)) for split, atoms in traces.origins.items()},
        translations={path: snapshot.translations[path] for path in sorted(traces.translations)},
        stale=tuple(sorted(path for path in own if path not in traces.live_rows)),
        without=frozenset(without),
        rebuild=frozenset(path for path in traces.live_rows if traces.needs_rebuild(snapshot.segments[path])),
        atoms={pair: frozenset(found) for pair, found in traces.atoms.items()},
        live_rows=dict(traces.live_rows),
        moves=dict(traces.moves),
        missing_rows=dict(traces.missing_rows),
    )


@dataclass(frozen=True, slots=True)
class CoveringSegments:
    """The segments that cover rows of a live split, and the translations from these segments to the split."""

    segments: tuple[IndexSegment, ...]
    translations: tuple[Translation, ...] = ()

    @property
    def is_direct(self) -> bool:
        """Whether a single segment covers the split, and was built over this split alone.

        Then the row numbers of the segment are the row numbers of the file.
        """
        return not self.translations and len(self.segments) == 1 and is_over_one_split(self.segments[0])


AnsweringOf = Callable[[Add], CoveringSegments | None]
"""A function that returns the segments of an index that cover a live split.

The function returns None if no segment covers the split.
"""


def covering_segments(snapshot: Snapshot, definition: IndexDefinition) -> AnsweringOf:
    """Return a function that finds the segments that cover a split. The function returns the same result as
    `compute_coverage`.

    Makes no request and reads no manifest.
    """
    fingerprint, whole = fingerprint_of(definition), defaultdict[str, list[IndexSegment]](list)
    for _, segment in sorted(snapshot.segments.items()):
        is_current = segment.details.get(DEFINITION) == fingerprint
        if segment.index == definition.name and is_current and is_over_one_split(segment):
            whole[segment.covers[0]].append(segment)
    # The row counts of merged segments are checked only when a split is looked up. A check of the row counts at this
    # point would have to read manifests.
    merged = [each for each in snapshot.segments.values() if each.coveredRows and each.index == definition.name]
    claimed = {each.split: each.rows for one in merged for each in members(one) if each.origins is None}
    traces = _Traces.of(snapshot, definition, claimed)

    def of(add: Add) -> CoveringSegments | None:
        own = next((each for each in whole.get(add.path, ()) if each.numRecords == (add.numRecords or 0)), None)
        if own is not None:
            return CoveringSegments((own,))
        held = traces.nearest.whole.get(add.path)
        if (add.path not in traces.into) if held is None else (held.member.rows != (add.numRecords or 0)):
            return None
        traced = traces.again()
        traced.follow(add.path)
        found = tuple(snapshot.segments[path] for path in sorted(traced.answers[add.path]))
        ways = tuple(snapshot.translations[path] for path in sorted(traced.translations))
        return CoveringSegments(found, ways) if found else None

    return of


@dataclass(frozen=True, slots=True)
class CoveredRows:
    """A split, or a part of a split, that a segment covers."""

    segment: IndexSegment
    member: Member


@dataclass(frozen=True, slots=True)
class Nearest:
    """The segments that cover each split.

    A split has one segment over the whole split, or several segments over parts of the split.
    """

    whole: Mapping[str, CoveredRows]
    parts: Mapping[str, Sequence[CoveredRows]]

    @staticmethod
    def of(segments: Collection[IndexSegment]) -> Nearest:
        """Return the segments that cover each split.

        If two segments cover the same rows, use the first segment by path.
        """
        whole: dict[str, CoveredRows] = {}
        parts: dict[str, list[CoveredRows]] = defaultdict(list)
        for each in sorted(segments, key=lambda each: each.path):
            for member in members(each):
                if member.origins is None:
                    whole.setdefault(member.split, CoveredRows(each, member))
                else:
                    parts[member.split].append(CoveredRows(each, member))
        return Nearest(whole, {split: found for split, found in parts.items() if split not in whole})


def is_usable(segment: IndexSegment, rows: Mapping[str, int], fingerprint: str) -> bool:
    """Return whether a segment is usable for a definition. `rows` contains the number of rows of each known split."""
    if segment.details.get(DEFINITION) != fingerprint:
        return False
    found = [each for each in members(segment) if each.split in rows]
    return bool(found) and all(
        each.rows == rows[each.split] if each.origins is None else each.rows <= rows[each.split] for each in found
    )


_MOST_DEPTH = 64  # this limit protects against a forged log
_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _TranslationChain:
    """A chain of translations from a split to a live split.

    The chain contains the approximate share of rows that moved from the first split of the chain to the live split. The
    chain also contains the number of its moves and the paths of its translations.
    """

    live: str
    moves: int = 0
    share: float = 1.0
    translations: frozenset[str] = _NONE

    def combine(self, other: _TranslationChain) -> _TranslationChain:
        """Combine two chains that lead to the same live split with the same number of moves."""
        return replace(self, share=self.share + other.share, translations=self.translations | other.translations)


@dataclass(slots=True)
class _Traces:
    """The state of a search for segments. The search starts at live splits and goes back along the translations.

    `live_rows` contains, by path, the approximate number of live rows of each segment in use. The search follows one
    live split at a time. `to_missing` contains translations that moved rows without a segment into this live split. The
    translations in `to_missing` have as inputs the splits from which the rows without a segment came.
    """

    nearest: Nearest
    into: Mapping[str, Translation]
    rows: Mapping[str, int]
    answers: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    origins: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    translations: set[str] = field(default_factory=set)
    to_missing: set[str] = field(default_factory=set)
    atoms: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    live_rows: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    moves: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    missing_rows: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @staticmethod
    def of(
        snapshot: Snapshot, definition: IndexDefinition, known: Mapping[str, int], without: Collection[str] = ()
    ) -> _Traces:
        """Return the start state.

        `known` contains the rows of live splits. All other splits are known from translations only.
        """
        translations = [each for path, each in snapshot.translations.items() if path not in without]
        rows: dict[str, int] = {}
        for translation in translations:
            rows |= dict(zip(translation.outputs, translation.outputRows, strict=True))
            rows |= dict(zip(translation.inputs, translation.inputRows, strict=True))
        rows |= known
        fingerprint = fingerprint_of(definition)
        found = [
            each
            for path, each in snapshot.segments.items()
            if each.index == definition.name and path not in without and is_usable(each, rows, fingerprint)
        ]
        ordered = sorted(translations, key=lambda each: each.path, reverse=True)
        into = {split: each for each in ordered for split in each.outputs}
        return _Traces(Nearest.of(found), into, rows)

    def again(self) -> _Traces:
        """Return the start state, which contains no results of a search."""
        return _Traces(self.nearest, self.into, self.rows)

    def follow(self, live: str) -> None:
        """Record the segments that cover rows of a live split, and the origins of the rows without a segment."""
        level = {(live, _NONE): _TranslationChain(live)}
        for _ in range(_MOST_DEPTH):
            deeper: dict[tuple[str, frozenset[str]], _TranslationChain] = {}
            for (split, answered), way in level.items():
                for behind, further in self._behind(split, answered, way):
                    known = deeper.get(behind)
                    deeper[behind] = further if known is None else known.combine(further)
            level = deeper
        for (split, _), way in level.items():
            self._miss(split, way)
        if live in self.answers:  # otherwise the whole split is uncovered, and not only a part of the split
            self.translations |= self.to_missing
        self.to_missing.clear()

    def _behind(
        self, split: str, answered: frozenset[str], way: _TranslationChain
    ) -> Iterator[tuple[tuple[str, frozenset[str]], _TranslationChain]]:
        """Yield the splits from which the rows of `split` came, unless one segment covers the whole split.

        `answered` has the origins of rows that a part nearer to the live split covers. These origins are not followed.
        """
        whole = self.nearest.whole.get(split)
        if whole is not None:
            self._use(whole, way, whole.member.rows, {split})
            return
        for part in self.nearest.parts.get(split, ()):
            origins = frozenset(part.member.origins or ())
            self._use(part, way, part.member.rows, origins)
            answered |= origins
        translation = self.into.get(split)
        if translation is None and split not in answered:
            self._miss(split, way)
        if translation is None or split in answered:
            return
        output = translation.outputs.index(split)
        for number, source in enumerate(translation.inputs):
            moved = translation.moved(number, output)
            further = way.translations | {translation.path}
            if moved and source in answered:
                self.translations |= further  # these translations show which rows the part covers
            elif moved:
                share = way.share * moved / translation.inputRows[number]
                yield (source, answered), _TranslationChain(way.live, way.moves + 1, share, further)

    def needs_rebuild(self, segment: IndexSegment) -> bool:
        """Return True if too few rows of a segment are live, or if the rows moved too often."""
        gone = segment.numRecords - self.live_rows[segment.path]
        return gone > REBUILD_SHARE * segment.numRecords or self.moves[segment.path] > MOST_MOVES

    def _miss(self, split: str, way: _TranslationChain) -> None:
        self.origins[way.live].add(split)
        self.missing_rows[way.live] += way.share * self.rows.get(split, 0)
        self.to_missing |= way.translations

    def _use(self, held: CoveredRows, way: _TranslationChain, rows: int, atoms: Collection[str]) -> None:
        path = held.segment.path
        self.answers[way.live].add(path)
        self.atoms[way.live, path].update(atoms)
        self.live_rows[path] += way.share * rows
        self.moves[path] = max(self.moves[path], way.moves)
        self.translations |= way.translations
