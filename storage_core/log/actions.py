"""The actions of the transaction log as records, and their conversion from and to JSON objects.

See the IndexTables protocol, "Actions" and appendix A. A version file is a sequence of actions, one JSON object per
line. Each object has one top-level key: the name of the action. Work items and their results contain actions in the
same form. This module does no I/O.

On reading, unknown fields are ignored. An unknown action is an error. A known field with a value of the wrong type is
also an error. The rules for the fields are derived once per record from the record's annotations. Opening a log spends
most of its time on reading actions. A valid field therefore costs only a lookup and a comparison of types.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, NamedTuple, TypeVar, get_args

from storage_core.base.errors import Corrupt, Unsupported
from storage_core.base.text import quoted
from storage_core.log import deletion_vector
from storage_core.log.deletion_vector import DeletionVector

MAX_DEPTH = 32
MIN_INT64, MAX_INT64 = -(2**63), 2**63 - 1
MAX_TIME_MS = 253_402_300_799_999
"""The end of the year 9999. A time after the year 9999 cannot be displayed as a date."""

# The valid ranges of sizes and counts. Integer fields without a range here may be negative. `numMergeOps` has 32 bits
# in the Avro state. `timestamp` is the time of a commit. Its maximum is lower than the largest integer, so that later
# commits can have higher times.
_RANGES: Mapping[str, tuple[int, int]] = {
    "numMergeOps": (0, 2**31 - 1),
    "timestamp": (0, MAX_TIME_MS),
    **dict.fromkeys(
        (
            "size",
            "numRecords",
            "footerStartOffset",
            "footerEndOffset",
            "footerOffset",
            "uncompressedSizeBytes",
            "minReaderVersion",
            "minWriterVersion",
        ),
        (0, MAX_INT64),
    ),
}

_TEXT: frozenset[type] = frozenset({str})
_COUNT: frozenset[type] = frozenset({int})
_NULL: frozenset[type] = frozenset({type(None)})


class _Misfit(Exception):  # noqa: N818  # never leaves this module
    """The error for an invalid value of a field. The message contains the reason."""


class Rule(NamedTuple):
    """The values that a field may have.

    Attributes:
        expected: The Python type of the parsed JSON value.
        low: The minimum of an integer.
        high: The maximum of an integer.
        look: A further check, which returns the value to use.
    """

    expected: type[Any]
    low: int
    high: int
    look: Callable[[Any], Any] | None


Rules = Mapping[str, Rule]


def rules_of(kind: type[Any]) -> Rules:
    """Return the rule of every field of a record, from its annotation."""
    # The annotations are strings, because their evaluation is postponed. A string is sufficient here.
    return {each.name: _rule(each.name, str(each.type).removesuffix(" | None")) for each in fields(kind)}


def read_fields(name: str, rules: Rules, body: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the values of the known fields of an action. Unknown fields and nulls are omitted.

    Raises:
        Corrupt: A value has another type or is out of range. The error names `where` and the field.
        Unsupported: A deletion vector has an unknown storage kind.
    """
    values: dict[str, Any] = {}
    for key, value in body.items():
        rule = rules.get(key)
        if rule is None or value is None:
            continue
        expected, low, high, look = rule
        # The types are compared exactly: `bool` is an `int` in Python, but not in the protocol.
        if type(value) is not expected or (expected is int and not low <= value <= high):
            raise Corrupt(f"{where}: {name}.{key} is {_wrong(rule, value)}", key=where, field=key)
        if look is not None:
            try:
                value = look(value)  # noqa: PLW2901  # one name for one value
            except _Misfit as misfit:
                raise Corrupt(f"{where}: {name}.{key} {misfit}", key=where, field=key) from None
        values[key] = value
    vector = values.get("deletionVector")
    if vector is not None:
        values["deletionVector"] = deletion_vector.from_object(vector, where)
    return values


def _rule(name: str, annotation: str) -> Rule:
    low, high = _RANGES.get(name, (MIN_INT64, MAX_INT64))
    expected, look = _KINDS[annotation]
    return Rule(expected, low, high, look)


def _wrong(rule: Rule, value: object) -> str:
    expected = f"int from {rule.low} to {rule.high}" if rule.expected is int else rule.expected.__name__
    return f"{quoted(value)}. Expected {expected}"


def _texts(value: list[Any]) -> tuple[str, ...]:
    if value and set(map(type, value)) != _TEXT:
        raise _Misfit("is a list with a value that is not a text. Expected texts only")
    return tuple(value)


def _text_lists(value: list[Any]) -> tuple[tuple[str, ...], ...]:
    if not all(type(each) is list for each in value):
        raise _Misfit("is a list with a value that is not a list. Expected lists of texts")
    return tuple(_texts(each) for each in value)


def _counts(value: list[Any]) -> tuple[int, ...]:
    if value and (set(map(type, value)) != _COUNT or not 0 <= min(value) <= max(value) <= MAX_INT64):
        raise _Misfit(f"is a list with a value that is not a count. Expected whole numbers from 0 to {MAX_INT64}")
    return tuple(value)


def _text_map(value: dict[str, Any]) -> dict[str, str]:
    return value if not value or set(map(type, value.values())) == _TEXT else _without_nulls(value, _TEXT, "text")


def _count_map(value: dict[str, Any]) -> dict[str, int]:
    if value and set(map(type, value.values())) != _COUNT:
        value = _without_nulls(value, _COUNT, "whole number")
    if value and not 0 <= min(value.values()) <= max(value.values()) <= MAX_INT64:
        raise _Misfit(f"contains a count that is not from 0 to {MAX_INT64}")
    return value


def _without_nulls(value: dict[str, Any], kinds: frozenset[type], wanted: str) -> dict[str, Any]:
    """Remove nulls. A null means an unknown value, like a missing entry."""
    if not set(map(type, value.values())) <= kinds | _NULL:
        wrong = next(key for key, each in value.items() if each is not None and type(each) not in kinds)
        raise _Misfit(f"contains {quoted(value[wrong])} for {quoted(wrong)}. Expected a {wanted}")
    return {key: each for key, each in value.items() if each is not None}


def _json_object(value: dict[str, Any]) -> dict[str, Any]:
    """Check free-form JSON against limits. Later code relies on these limits."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        nested: list[object] = []
        for each in level:
            match each:
                case dict():
                    nested.extend(each.values())
                case list():
                    nested.extend(each)
                case float() if not math.isfinite(each):
                    raise _Misfit("contains a number that is not finite")
                case _:
                    pass
        if not nested:
            return value
        level = nested
    raise _Misfit(f"is nested deeper than {MAX_DEPTH} levels")


_KINDS: Mapping[str, tuple[type[Any], Callable[[Any], Any] | None]] = {
    "str": (str, None),
    "int": (int, None),
    "bool": (bool, None),
    "tuple[str, ...]": (list, _texts),
    "tuple[int, ...]": (list, _counts),
    "tuple[tuple[str, ...], ...]": (list, _text_lists),
    "Mapping[str, str]": (dict, _text_map),
    "Mapping[str, int]": (dict, _count_map),
    "Mapping[str, Any]": (dict, _json_object),
    "DeletionVector": (dict, None),
}


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
    """The first line of every version file.

    Attributes:
        timestamp: In ms, max(now, previous + 1), so that it never decreases.
        version: The number in the file's name. With this number, readers detect a file that is stored under the name of
            another file.
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
    """The minimum reader and writer version, and the named features that a reader or writer must support."""

    NAME: ClassVar[str] = "protocol"
    minReaderVersion: int = READER_VERSION
    minWriterVersion: int = WRITER_VERSION
    readerFeatures: tuple[str, ...] | None = None
    writerFeatures: tuple[str, ...] | None = None


def is_ours(protocol: Protocol) -> bool:
    """Return whether Tidemark created the table. Every checkpoint of such a table is derived from version files."""
    return OWN_FEATURE in (protocol.writerFeatures or ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """Schema and configuration of the table.

    Attributes:
        schemaString: A Spark schema as JSON.
        createdTime: In ms.
    """

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
    """The action that adds a split to the table.

    The fields of the source protocol come first, then Tidemark's own fields (Avro field ids from 160). If the path is
    already live, the action replaces the entry of the path. An action that replaces an entry must have a deletion
    vector, and may change no other field.

    Attributes:
        minValues: The lower bound of each column, in the text form of `data.rows.codes`. A column without a bound is
            never used to prune.
        maxValues: The upper bound of each column, in the same form as `minValues`.
        windowStart: The start of the window in seconds since the epoch. None if the split contains the rows with null
            timestamps, or if the table has no windows.
        minRowKey: The sort key of the first row, as a JSON array.
        maxRowKey: The sort key of the last row, as a JSON array.
        columnRegexes: For each string column of the sort schema, a regular expression that matches every value.
        xxh3: The xxh3-64 of the whole file, as 16 hex digits.
        footerXxh3: The xxh3-64 of the footer. The footer contains the checksums of the column chunks.
        deletionVector: The deleted rows. None if no row of the split was ever deleted.
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
        """The deletion vector, or None if it is missing or empty."""
        vector = self.deletionVector
        return vector if vector is not None and vector.cardinality else None

    @property
    def visible_rows(self) -> int:
        """The number of rows of the file that are not deleted. 0 if the number of rows is unknown."""
        deleted = self.deleted_rows
        return max(0, (self.numRecords or 0) - (0 if deleted is None else deleted.cardinality))

    @property
    def as_written(self) -> Add:
        """The entry without its deletion vector, for readers that also need the deleted rows of the file."""
        return self if self.deletionVector is None else replace(self, deletionVector=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """The action that removes a split from the table.

    The file of the split stays while a retained object refers to the file. After that, the collector deletes the file.
    """

    NAME: ClassVar[str] = "remove"
    path: str
    deletionTimestamp: int | None = None
    dataChange: bool = True
    partitionValues: Mapping[str, str] | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSkip:
    """The action that excludes a split from an operation for some time, with the reason. All times are in ms."""

    NAME: ClassVar[str] = "mergeskip"
    path: str
    skipTimestamp: int
    reason: str
    operation: str
    retryAfter: int | None = None
    skipCount: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Txn:
    """The action that makes a batch job idempotent.

    A commit does nothing if its (appId, version) is already in the log.
    """

    NAME: ClassVar[str] = "txn"
    appId: str
    version: int
    lastUpdated: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTxn:
    """The action that prunes a transaction.

    The transaction is no longer needed to prevent repeated work. Decision 0008.
    """

    NAME: ClassVar[str] = "removeTxn"
    appId: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """The action that stores the highest fencing token that has committed for a resource."""

    NAME: ClassVar[str] = "fence"
    resource: str
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedGenerations:
    """The action that stores the merge progress of a region.

    From this commit on, the base contains all generations of the region up to `generation`.
    """

    NAME: ClassVar[str] = "mergedGenerations"
    region: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSegment:
    """The action that adds a segment to an index.

    The segment covers the rows of its splits, even after translations moved these rows. A partial segment covers only
    some rows of a single split. These rows came from other splits that had no segment (decision 0019). A merged segment
    combines several segments (decision 0019).

    Attributes:
        covers: The splits from which the segment was built.
        details: The values that are specific to the kind of the index.
        origins: For a partial segment, the other splits from which its rows came. None for any other segment.
        coveredRows: For a merged segment, the number of rows for each of `covers`, in the same order.
        coveredOrigins: For a merged segment, one entry per name in `covers`. The entry contains the origins if only a
            part of that split is covered, and is empty otherwise.
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
    """The action that removes a segment from an index."""

    NAME: ClassVar[str] = "removeIndexSegment"
    index: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """The action that stores how a compaction moved rows. The object at `path` has the new position of every input row.

    Decision 0019.

    Attributes:
        inputRows: The number of rows in the file of each input.
        movedRows: The number of rows that each output got from each input. The numbers for all outputs of the first
            input come first, then the numbers for the second input, and so on. A row that is in no output was deleted
            earlier.
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
        """Return the number of rows of this input that are in this output. `source` and `output` are list positions."""
        return self.movedRows[source * len(self.outputs) + output]

    @property
    def outputRows(self) -> tuple[int, ...]:  # noqa: N802  # named like the fields
        """The number of rows in each output."""
        return tuple(sum(self.movedRows[output :: len(self.outputs)]) for output in range(len(self.outputs)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTranslation:
    """The action that removes a translation from the table. No segment needs the translation any more."""

    NAME: ClassVar[str] = "removeTranslation"
    path: str


File = Add | IndexSegment | Translation
"""An action that adds an object to a table."""

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
    """Return the action as `{name: fields}`. Fields that are None are omitted."""
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
    """Return the record for one parsed line of a version file. A null counts as a missing field.

    Args:
        where: The file and line, for error messages.

    Raises:
        Unsupported: This release does not support the action.
        Corrupt: A required field is missing, or a value is not valid for its field.
    """
    if len(line) != 1:
        raise Corrupt(f"{where}: expected one action per line, found the keys {sorted(line)[:5]}", where=where)
    name, body = next(iter(line.items()))
    kind = _BY_NAME.get(name)
    if kind is None:
        raise Unsupported(f"{where}: unknown action {quoted(name)}. This table needs a newer Tidemark", where=where)
    if not isinstance(body, dict):
        raise Corrupt(f"{where}: the action {name!r} is not an object", where=where)
    values = read_fields(name, _RULES[name], body, where)
    try:
        action: Action = kind(**values)
    except TypeError as error:
        raise Corrupt(f"{where}: the action {name!r} is incomplete: {error}", where=where) from error
    return action


Kind = TypeVar("Kind", bound=Action)


def write_actions(actions: Iterable[Action]) -> list[dict[str, Any]]:
    """Return the actions as JSON objects in the same order. `read_actions` converts the objects back."""
    return [to_json_object(action) for action in actions]


def read_actions(lines: Iterable[Mapping[str, Any]], kind: type[Kind], where: str) -> tuple[Kind, ...]:
    """Return the actions that `write_actions` wrote. All actions must be of one kind.

    Args:
        where: The name of the file or message that contains the actions, for error messages.

    Raises:
        Corrupt: An action is of a kind that the caller does not expect.
        Exception: Any error of `from_json_object`.
    """
    return tuple(read_action(line, kind, where) for line in lines)


def read_action(line: Mapping[str, Any], kind: type[Kind], where: str) -> Kind:
    """Return the single action of this kind that `to_json_object` wrote. Raises the errors of `read_actions`."""
    action = from_json_object(line, where)
    if not isinstance(action, kind):
        raise Corrupt(f"{where}: expected an action {kind.NAME!r}, found {action.NAME!r}", where=where)
    return action
