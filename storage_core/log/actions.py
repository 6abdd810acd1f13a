"""The actions of the transaction log as records (IndexTables protocol, "Actions" and appendix A).

A version file is a sequence of actions, one JSON object per line with one top-level key that names the action. This
module maps records to and from those objects; it does no I/O. Unknown fields are ignored, an unknown action is refused,
and so is a known field whose value is not of the field's type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, get_args

from storage_core.errors import Corrupt, Unsupported
from storage_core.foreign_text import quoted
from storage_core.log import deletion_vector
from storage_core.log.deletion_vector import DeletionVector
from storage_core.log.encoding.fields import Rules, read_fields, rules_of

READER_VERSION = 4
WRITER_VERSION = 4
OWN_FEATURE = "tidemark"
VECTORS_FEATURE = "deletionVectors"
REGIONS_FEATURE = "regionSpecs"
TRANSLATIONS_FEATURE = "translations"
VECTOR_COLUMNS_FEATURE = "vectorColumns"
KEY_INDEXES_FEATURE = "primaryKeyIndexes"
PRUNED_FEATURE = "prunedTransactions"
WINDOW_CHANGES_FEATURE = "windowChanges"
PACKED_METADATA_FEATURE = "packedSplitMetadata"
CHANGED_COLUMNS_FEATURE = "changedColumns"
SHARED_FEATURE = "sharedObjects"
PARTITIONS_FEATURE = "partitions"
HAND_REGIONS_FEATURE = "regionsByHand"
FEATURES = frozenset(
    {
        *("avroState", "multiPartCheckpoint", "schemaDeduplication"),
        *(OWN_FEATURE, REGIONS_FEATURE, TRANSLATIONS_FEATURE, VECTORS_FEATURE, VECTOR_COLUMNS_FEATURE),
        *(KEY_INDEXES_FEATURE, PRUNED_FEATURE, WINDOW_CHANGES_FEATURE, PACKED_METADATA_FEATURE),
        *(CHANGED_COLUMNS_FEATURE, SHARED_FEATURE, PARTITIONS_FEATURE, HAND_REGIONS_FEATURE),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitInfo:
    """First line of every version file. `timestamp` (ms) is max(now, previous + 1): it never goes back.

    `version` is the number in the file's name, so that a file under another's name is not taken for it.
    """

    NAME: ClassVar[str] = "commitInfo"
    commitId: str
    operation: str
    timestamp: int
    version: int | None = None
    jobRunId: str | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """Minimum reader and writer version, and the named features a reader or writer must know."""

    NAME: ClassVar[str] = "protocol"
    minReaderVersion: int = READER_VERSION
    minWriterVersion: int = WRITER_VERSION
    readerFeatures: tuple[str, ...] | None = None
    writerFeatures: tuple[str, ...] | None = None


def is_ours(protocol: Protocol) -> bool:
    """Tell whether Tidemark created the table: then every checkpoint of it is derived from its version files."""
    return OWN_FEATURE in (protocol.writerFeatures or ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """Schema and configuration of the table. `schemaString` is a Spark schema as JSON; `createdTime` is in ms."""

    NAME: ClassVar[str] = "metaData"
    id: str
    schemaString: str
    partitionColumns: tuple[str, ...] = ()
    configuration: Mapping[str, str] = field(default_factory=dict)
    format: Mapping[str, Any] = field(default_factory=lambda: {"provider": "tidemark", "options": {}})
    name: str | None = None
    description: str | None = None
    createdTime: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    """A split joins the table. Fields of the source first, then Tidemark's own (Avro field ids from 160).

    `minValues` / `maxValues` hold sound bounds in the text form of `rows.bound_text`; a missing column never prunes.
    `windowStart` is the window in seconds since the epoch, None for the bucket of null timestamps or a table without
    windows. `minRowKey` / `maxRowKey` are the first and last sort key as JSON arrays. `columnRegexes` match every value
    of the string columns that the sort schema names. `xxh3` is the xxh3-64 of the whole file as 16 hex digits,
    `footerXxh3` that of its footer, which has those of the column chunks. `deletionVector` names the rows that are
    gone; None when there never were any. An add of a path that is live replaces that entry: it may change nothing but
    the vector, and always states one.
    """

    NAME: ClassVar[str] = "add"
    path: str
    size: int
    modificationTime: int
    partitionValues: Mapping[str, str] = field(default_factory=dict)
    dataChange: bool = True
    stats: str | None = None
    minValues: Mapping[str, str] | None = None
    maxValues: Mapping[str, str] | None = None
    numRecords: int | None = None
    hasFooterOffsets: bool = False
    footerStartOffset: int | None = None
    footerEndOffset: int | None = None
    splitTags: tuple[str, ...] | None = None
    numMergeOps: int | None = None
    docMappingRef: str | None = None
    docMappingJson: str | None = None
    uncompressedSizeBytes: int | None = None
    windowStart: int | None = None
    windowSeconds: int | None = None
    sortSchema: str | None = None
    sourceId: str | None = None
    partitionId: str | None = None
    minRowKey: str | None = None
    maxRowKey: str | None = None
    nullCounts: Mapping[str, int] | None = None
    columnRegexes: Mapping[str, str] | None = None
    xxh3: str | None = None
    footerXxh3: str | None = None
    deletionVector: DeletionVector | None = None

    @property
    def deleted_rows(self) -> DeletionVector | None:
        """The vector that hides rows; a vector of no rows is none."""
        vector = self.deletionVector
        return vector if vector is not None and vector.cardinality else None

    @property
    def visible_rows(self) -> int:
        """Rows of the file that no vector hides; 0 where nobody counted them."""
        deleted = self.deleted_rows
        return max(0, (self.numRecords or 0) - (0 if deleted is None else deleted.cardinality))

    @property
    def as_written(self) -> Add:
        """The entry without its vector: for readers of all rows of the file, whether they are live or not."""
        return replace(self, deletionVector=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """A split leaves the table. Its file stays until the collector finds that nothing retained names it."""

    NAME: ClassVar[str] = "remove"
    path: str
    deletionTimestamp: int | None = None
    dataChange: bool = True
    partitionValues: Mapping[str, str] | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSkip:
    """A split is left out of an operation for a while, with the reason. Times in ms."""

    NAME: ClassVar[str] = "mergeskip"
    path: str
    skipTimestamp: int
    reason: str
    operation: str
    retryAfter: int | None = None
    skipCount: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Txn:
    """Idempotency of a batch job: a commit that repeats a recorded (appId, version) is a no-op."""

    NAME: ClassVar[str] = "txn"
    appId: str
    version: int
    lastUpdated: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTxn:
    """A transaction is pruned: exactly-once needs it no longer. Decision 0133."""

    NAME: ClassVar[str] = "removeTxn"
    appId: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """The highest fencing token that has committed for a resource."""

    NAME: ClassVar[str] = "fence"
    resource: str
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedGenerations:
    """Merge progress of a region: generations up to `generation` are in the base as of this commit."""

    NAME: ClassVar[str] = "mergedGenerations"
    region: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSegment:
    """A segment joins an index. `covers` names the splits it was built over; `details` is specific to the kind.

    It answers for the rows of those splits, wherever translations moved them. With `origins` it was built over a part
    of one split only: of the rows that came from these other splits, for which no segment answered. Decision 0115.
    A merged segment has in `coveredRows` the rows of each of `covers`, one after the other, and in `coveredOrigins` the
    origins of each that is a part, and nothing for the others. Decision 0122.
    """

    NAME: ClassVar[str] = "indexSegment"
    index: str
    kind: str
    path: str
    covers: tuple[str, ...]
    size: int
    xxh3: str
    footerOffset: int
    numRecords: int
    details: Mapping[str, Any] = field(default_factory=dict)
    origins: tuple[str, ...] | None = None
    coveredRows: tuple[int, ...] | None = None
    coveredOrigins: tuple[tuple[str, ...], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveIndexSegment:
    """A segment leaves an index."""

    NAME: ClassVar[str] = "removeIndexSegment"
    index: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """Where a compaction moved the rows of its inputs: an object that says it by row, and here how many went where.

    `inputRows` are the rows of each input's file, `movedRows` how many of them each output got: the outputs of the
    first input, then those of the second. What is in no output was deleted before. Decision 0115.
    """

    NAME: ClassVar[str] = "translation"
    path: str
    inputs: tuple[str, ...]
    inputRows: tuple[int, ...]
    outputs: tuple[str, ...]
    movedRows: tuple[int, ...]
    size: int
    xxh3: str
    footerOffset: int

    def moved(self, source: int, output: int) -> int:
        """Return how many rows of this input are in this output, both by their places in the lists."""
        return self.movedRows[source * len(self.outputs) + output]

    @property
    def outputRows(self) -> tuple[int, ...]:  # noqa: N802  # named like the fields
        """The rows of each output."""
        return tuple(sum(self.movedRows[output :: len(self.outputs)]) for output in range(len(self.outputs)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTranslation:
    """A translation leaves the table: no segment needs it."""

    NAME: ClassVar[str] = "removeTranslation"
    path: str


Action = (
    CommitInfo
    | Protocol
    | Metadata
    | Add
    | Remove
    | MergeSkip
    | Txn
    | RemoveTxn
    | Fence
    | MergedGenerations
    | IndexSegment
    | RemoveIndexSegment
    | Translation
    | RemoveTranslation
)

_BY_NAME: Mapping[str, type[Any]] = {kind.NAME: kind for kind in get_args(Action)}
_FIELDS: Mapping[type[Any], tuple[str, ...]] = {
    kind: tuple(each.name for each in fields(kind)) for kind in _BY_NAME.values()
}
_RULES: Mapping[str, Rules] = {name: rules_of(kind) for name, kind in _BY_NAME.items()}


def to_json_object(action: Action) -> dict[str, dict[str, Any]]:
    """Return the action as `{name: fields}`; fields that are None are left out."""
    body: dict[str, Any] = {}
    for name in _FIELDS[type(action)]:
        value = getattr(action, name)
        if value is None:
            continue
        if isinstance(value, tuple):
            value = list(value)
        elif isinstance(value, DeletionVector):
            value = deletion_vector.to_object(value)
        body[name] = value
    return {action.NAME: body}


def from_json_object(line: Mapping[str, Any], where: str) -> Action:
    """Return the record for one parsed line of a version file; `where` names the file and line for the error.

    Raises `Unsupported` for an action this release does not know, `Corrupt` for one that lacks a required field or
    holds a value that its field cannot hold. A null counts as a field that is left out.
    """
    if len(line) != 1:
        raise Corrupt(f"{where}: expected one action per line, found the keys {sorted(line)[:5]}", where=where)
    name, body = next(iter(line.items()))
    kind = _BY_NAME.get(name)
    if kind is None:
        raise Unsupported(f"{where}: unknown action {quoted(name)}; this table needs a newer Tidemark", where=where)
    if not isinstance(body, dict):
        raise Corrupt(f"{where}: the action {name!r} is not an object", where=where)
    values = read_fields(name, _RULES[name], body, where)
    try:
        action: Action = kind(**values)
    except TypeError as error:
        raise Corrupt(f"{where}: the action {name!r} is incomplete: {error}", where=where) from error
    return action
