"""The Delta mirror: a `_delta_log` in the table's folder that references the same splits (decision 0032).

The mirror has one commit for each version with changes that Delta can show. The Delta log contains all state of the
mirror, because its newest commit contains the published version. An interrupted publication therefore continues from
this commit.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any, Final

import pyarrow as pa

from storage_core.data.formats.keys import delta_checkpoint_key, delta_commit_key, delta_hint_key, short_hash
from storage_core.data.formats.mirrors import (
    ENCODING,
    OWN,
    Json,
    MirrorCommit,
    Shown,
    decode_delta_hint,
    encode_delta,
    encode_delta_hint,
    path_of,
    vector,
)
from storage_core.data.rows.columns import column_id, has_changed, numbered, stored_name, stored_schema
from storage_core.data.settings.setting import json_text
from storage_core.interop.publishing import (
    FORGETTING,
    Mirrored,
    Touched,
    advance_hint,
    find_publish_blocker,
    narrower,
    publish,
    require_own,
)
from storage_core.log.actions import Add
from storage_core.log.log import TransactionLog
from storage_core.log.mirror_metadata import DELTA_ADVICE, NewestCommit, newest_commit, state_at
from storage_core.log.snapshot import Snapshot
from storage_core.log.split_columns import adds_of
from storage_core.split.deletion_vectors import deleted_rows
from storage_core.store.contract import ObjectStore, create_derived, create_numbered

# The mirror presents splits as files of a Delta table. The actions of the mirror add and remove these files. The
# statistics of a file come from our log.


_UNORDERED = frozenset({"NaN", "Infinity", "-Infinity"})
"""Values that JSON cannot represent as numbers, so the mirror cannot contain them as bounds. The mirror omits these
bounds. Readers do not prune by a column without a bound.
"""


def descriptor(store: ObjectStore, add: Add) -> Json | None:
    """Return the descriptor of the deletion vector of a split, or None without hidden rows.

    One GET for a stored vector. Equal vectors have equal descriptors. Delta uses the descriptor to distinguish files
    with different vectors.
    """
    deleted = deleted_rows(store, add)
    return vector(bytes(deleted.serialize()), len(deleted)) if deleted else None


@dataclass(frozen=True, slots=True)
class ShownFile:
    """A file in Delta: the descriptor of its deletion vector, if any, and its size, if known."""

    vector: Json | None
    size: int | None = None


class DeltaFiles:
    """Creates the actions for the files of a table with these columns."""

    def __init__(self, store: ObjectStore, schema: pa.Schema) -> None:
        self._store = store
        self._bounded = [(field.name, field.type) for field in stored_schema(schema) if _has_statistics(field.type)]
        # For a column with fields, Delta counts the nulls of each field. For a list or a map, Delta and Tidemark's log
        # count the rows in which the whole value is null.
        self._counted = [field.name for field in stored_schema(schema) if not pa.types.is_struct(field.type)]

    def add(self, add: Add, *, data_change: bool) -> Json:
        """Return the fields of the action that adds a split. One GET for a stored deletion vector."""
        found = {
            "path": path_of(add.path),
            "partitionValues": {},
            "size": add.size,
            "modificationTime": add.modificationTime,
            "dataChange": data_change,
            "stats": self._statistics(add),
        }
        hidden = descriptor(self._store, add)
        return found if hidden is None else {**found, "deletionVector": hidden}

    def _statistics(self, add: Add) -> str:
        nulls = add.nullCounts or {}
        parts = {
            "numRecords": str(add.numRecords or 0),
            "tightBounds": "false",  # A bound may belong to a deleted row, and bounds of long text are shortened.
            "minValues": _object(self._bounds(add.minValues or {}, is_least=True)),
            "maxValues": _object(self._bounds(add.maxValues or {}, is_least=False)),
            "nullCount": _object((name, str(nulls[name])) for name in self._counted if name in nulls),
        }
        return _object(parts.items())

    def _bounds(self, bounds: Mapping[str, str], *, is_least: bool) -> Iterator[tuple[str, str]]:
        for name, type_ in self._bounded:
            text = bounds.get(name)
            if text is not None and text not in _UNORDERED:
                yield name, _token(text, type_, is_least=is_least)


def removal(key: str, file: ShownFile, *, at_ms: int, data_change: bool) -> Json:
    """Return the fields of the action that removes the file with exactly this deletion vector.

    If the size of the file is in the action, Spark can read the removed rows for the change feed.
    """
    found: Json = {"path": path_of(key), "deletionTimestamp": at_ms, "dataChange": data_change}
    if file.size is not None:
        found |= {"extendedFileMetadata": True, "partitionValues": {}, "size": file.size}
    return found if file.vector is None else {**found, "deletionVector": file.vector}


def _has_statistics(type_: pa.DataType) -> bool:
    """Return whether Delta has bounds for this type: numbers, text and times."""
    kinds = pa.types
    numbers = kinds.is_integer(type_) or kinds.is_floating(type_) or kinds.is_decimal(type_)
    return bool(numbers or kinds.is_string(type_) or kinds.is_date(type_) or kinds.is_timestamp(type_))


def _token(text: str, type_: pa.DataType, *, is_least: bool) -> str:
    kinds = pa.types
    if kinds.is_floating(type_) and Decimal(text) == 0:
        return "-0.0" if is_least else "0.0"  # some readers distinguish 0.0 from -0.0
    return text if kinds.is_integer(type_) or kinds.is_floating(type_) or kinds.is_decimal(type_) else json_text(text)


def _object(members: Iterable[tuple[str, str]]) -> str:
    """Return a JSON object from values in JSON. A decimal keeps all of its digits."""
    return "{" + ",".join(f"{json_text(name)}:{value}" for name, value in members) + "}"


# The columns of a table in Delta, and the features that a reader needs for the splits. Splits never change, so Delta
# must use the names of columns in the splits. If a column still has this name, no mapping is needed. Otherwise Delta
# maps names by the ids of the columns (`columnMapping`). Some readers do not support every feature, so the mirror
# enables only the features that the table needs.


VECTORS: Final = "deletionVectors"
MAPPING: Final = "columnMapping"
_NO_ZONE: Final = "timestampNtz"
_NEEDS_MAPPING = re.compile(r"[ ,;{}()\n\t=]")
"""Characters that Delta allows in a name only with column mapping."""

_INNER_IDS: Final = 2**30
"""First id of fields inside columns. The id is a high number, so that the id never equals the id of a column."""

_INNER_BITS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSchema:
    """The schema that a commit declares: its actions, and the features that the next commit must keep."""

    features: tuple[str, ...]
    metadata: Json
    protocol: Json

    @property
    def checksum(self) -> str:
        """A text that changes when the metadata or the protocol changes."""
        return short_hash(json.dumps([self.metadata, self.protocol], sort_keys=True))


def delta_schema(snapshot: Snapshot, *, features: tuple[str, ...], has_vectors: bool) -> MirrorSchema:
    """Return the schema for Delta.

    The result keeps the `features` of the mirror, because features are never removed.
    """
    found = {*features, *_needed(snapshot.schema)}
    if has_vectors:
        found.add(VECTORS)
    needed = tuple(sorted(found))
    return MirrorSchema(features=needed, metadata=_metadata(snapshot, needed), protocol=_protocol(needed))


def widened(before: Mapping[str, str], types: Mapping[str, str]) -> frozenset[str]:
    """Return the columns with widened numbers. The two arguments map the column names in splits to types."""
    return frozenset(name for name, type_ in types.items() if before.get(name, type_) not in (type_, "date"))


def types_of(schema_string: str) -> dict[str, str]:
    """Return the types of columns that are not nested, by their names in splits.

    Accepts the schema strings of Tidemark and of Delta.
    """
    fields = json.loads(schema_string)["fields"] if schema_string else []
    names = ((_stored(each), each["type"]) for each in fields)
    return {name: type_ for name, type_ in names if isinstance(type_, str)}


def _stored(field: Json) -> str:
    metadata = field.get("metadata") or {}
    name = metadata.get("delta.columnMapping.physicalName") or metadata.get("tidemark.storedName") or field["name"]
    return str(name)


def _needed(schema: pa.Schema) -> Iterator[str]:
    if any(stored_name(field) != field.name or _NEEDS_MAPPING.search(field.name) for field in schema):
        yield MAPPING
    if any(_has_no_zone(field.type) for field in schema):
        yield _NO_ZONE


def _has_no_zone(type_: pa.DataType) -> bool:
    if pa.types.is_timestamp(type_):
        return type_.tz is None
    return any(_has_no_zone(type_.field(place).type) for place in range(type_.num_fields))


def _protocol(features: tuple[str, ...]) -> Json:
    # With the feature `changeDataFeed` and the setting that enables it, readers can query changes. `invariants` is for
    # required columns.
    writers = [*features, "changeDataFeed", "inCommitTimestamp", "invariants", OWN]
    readers: Json = {"minReaderVersion": 3, "readerFeatures": list(features)} if features else {"minReaderVersion": 1}
    return {**readers, "minWriterVersion": 7, "writerFeatures": writers}


def _metadata(snapshot: Snapshot, features: tuple[str, ...]) -> Json:
    retention = f"interval {max(1, snapshot.config.version_retention_ms // 1000)} seconds"
    configuration = {
        "delta.enableChangeDataFeed": "true",
        "delta.enableInCommitTimestamps": "true",
        "delta.logRetentionDuration": retention,
        "delta.deletedFileRetentionDuration": retention,
    }
    if VECTORS in features:
        configuration["delta.enableDeletionVectors"] = "true"
    columns = numbered(snapshot.schema)
    fields = json.loads(snapshot.metadata.schemaString)["fields"]
    mapped = MAPPING in features
    shown = [_field(each, columns.field(each["name"]), mapped=mapped) for each in fields]
    if mapped:
        configuration["delta.columnMapping.mode"] = "name"
        configuration["delta.columnMapping.maxColumnId"] = str(max(_ids(shown)))
    return {
        "id": snapshot.table_id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json_text({"type": "struct", "fields": shown}),
        "partitionColumns": [],
        "createdTime": snapshot.metadata.createdTime,
        "configuration": configuration,
    }


def _field(spark: Json, column: pa.Field, *, mapped: bool) -> Json:
    found = {name: spark[name] for name in ("name", "type", "nullable")}
    if not mapped:
        return {**found, "metadata": {}}
    number = column_id(column) or 0
    inner = iter(range(_INNER_IDS + (number << _INNER_BITS), _INNER_IDS + ((number + 1) << _INNER_BITS)))
    return {**found, "type": _with_ids(spark["type"], inner), "metadata": _mapping(number, stored_name(column))}


def _mapping(number: int, name: str) -> Json:
    return {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": name}


def _with_ids(type_: Any, ids: Iterator[int]) -> Any:
    """Return a type with ids and names of inner fields. As in Delta, only fields of structures get ids and names."""
    if not isinstance(type_, dict):
        return type_
    found = {name: _with_ids(each, ids) for name, each in type_.items() if name != "fields"}
    if "fields" in type_:
        found["fields"] = [
            {**each, "type": _with_ids(each["type"], ids), "metadata": _mapping(next(ids), each["name"])}
            for each in type_["fields"]
        ]
    return found


def _ids(value: Any) -> Iterator[int]:
    if isinstance(value, dict):
        if "delta.columnMapping.id" in value:
            yield value["delta.columnMapping.id"]
        for each in value.values():
            yield from _ids(each)
    elif isinstance(value, list):
        for each in value:
            yield from _ids(each)


# Checkpoints of the Delta log. A reader starts from the newest checkpoint, so the length of the log does not matter.


EVERY: Final = 10
"""The number of Delta versions between two checkpoints, as in Delta."""

_TEXTS = pa.map_(pa.string(), pa.string())
_NAMES = pa.list_(pa.string())
_SCHEMA = pa.schema(
    {
        "txn": pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}),
        "add": pa.struct(
            {
                "path": pa.string(),
                "partitionValues": _TEXTS,
                "size": pa.int64(),
                "modificationTime": pa.int64(),
                "dataChange": pa.bool_(),
                "stats": pa.string(),
                "tags": _TEXTS,
                "deletionVector": pa.struct(
                    {
                        "storageType": pa.string(),
                        "pathOrInlineDv": pa.string(),
                        "offset": pa.int32(),
                        "sizeInBytes": pa.int32(),
                        "cardinality": pa.int64(),
                    }
                ),
            }
        ),
        "remove": pa.struct(
            {
                "path": pa.string(),
                "deletionTimestamp": pa.int64(),
                "dataChange": pa.bool_(),
            }
        ),
        "metaData": pa.struct(
            {
                "id": pa.string(),
                "name": pa.string(),
                "description": pa.string(),
                "format": pa.struct({"provider": pa.string(), "options": _TEXTS}),
                "schemaString": pa.string(),
                "partitionColumns": _NAMES,
                "createdTime": pa.int64(),
                "configuration": _TEXTS,
            }
        ),
        "protocol": pa.struct(
            {
                "minReaderVersion": pa.int32(),
                "minWriterVersion": pa.int32(),
                "readerFeatures": _NAMES,
                "writerFeatures": _NAMES,
            }
        ),
    }
)


def write_checkpoint(store: ObjectStore, version: int, snapshot: Snapshot, schema: MirrorSchema) -> None:
    """Write a checkpoint of the Delta version `version`, with the splits of `snapshot` as its files.

    Then update the hint to this checkpoint. Raises `CommitUnknown`.

    Removed files are not in the checkpoint. Only a vacuum needs the entries of removed files, and the files of the
    mirror are not vacuumed.

    Cost:
        One PUT, a GET and a PUT of the hint, and one GET per stored deletion vector. Memory: records for the files of
        one manifest at a time.
    """
    data, files = _encoded(store, snapshot, schema)
    create_derived(store, delta_checkpoint_key(version), data, advice="publish again")
    hint = encode_delta_hint(version, actions=files + 3, size_bytes=len(data), files=files)
    advance_hint(store, delta_hint_key(), version, hint, decode=decode_delta_hint)


def _encoded(store: ObjectStore, snapshot: Snapshot, schema: MirrorSchema) -> tuple[bytes, int]:
    import pyarrow.parquet as pq

    stream, files = pa.BufferOutputStream(), 0
    with pq.ParquetWriter(stream, _SCHEMA, compression="snappy", store_schema=False) as writer:
        writer.write_table(_rows(_declared(snapshot, schema)))
        made = DeltaFiles(store, snapshot.schema)
        for table in snapshot.splits.tables():
            adds = [{"add": made.add(add, data_change=False)} for add in adds_of(table)]
            if adds:
                writer.write_table(_rows(adds))
            files += len(adds)
    return stream.getvalue().to_pybytes(), files


def _declared(snapshot: Snapshot, schema: MirrorSchema) -> list[Json]:
    return [
        {"protocol": schema.protocol},
        {"metaData": schema.metadata},
        {"txn": transaction(snapshot)},
    ]


def transaction(snapshot: Snapshot) -> Json:
    """Return the Delta transaction that contains the published version of the table.

    Every reader of Delta can read this transaction.
    """
    return {"appId": f"{OWN}:{snapshot.table_id}", "version": snapshot.version, "lastUpdated": snapshot.timestamp}


def _rows(actions: list[Json]) -> pa.Table:
    return pa.Table.from_pylist(list(map(_with_maps, actions)), schema=_SCHEMA)


def _with_maps(action: Json) -> Json:
    """Return the action with its maps in the form that Arrow takes."""
    ((name, fields),) = action.items()
    found = dict(_pairs(fields))
    if name == "metaData":
        found["format"] = dict(_pairs(fields["format"]))
    return {name: found}


def _pairs(fields: Json) -> Iterator[tuple[str, object]]:
    for name, value in fields.items():
        yield name, list(value.items()) if name in ("partitionValues", "options", "configuration") else value


_WAITS = "and `vectors: none` publishes such splits only after a compaction"

_LAST_OF_ONE_ESCAPE = "\uffff"

_logger = logging.getLogger(__name__)

ShownFiles = Callable[[Collection[str]], Mapping[str, ShownFile]]
"""A function that returns the files in the mirror, with their deletion vectors and sizes."""


def publish_delta(log: TransactionLog, *, shows_vectors: bool) -> Mirrored:
    """Publish all unpublished versions to Delta. Return the published state.

    The first publication shows only the newest version. For a keyed table, the mirror shows the base, which contains
    the merged rows. A version without visible changes gets no commit. A version that Delta cannot show
    (`interop.publishing`) is skipped. The next version that Delta can show includes the changes of the skipped version.
    Old versions are shown as long as they are retained.

    The call is idempotent, and can be repeated after a kill at any point. If two mirrors run concurrently, only one of
    them writes each commit.

    Args:
        log: Transaction log of the table.
        shows_vectors: whether deleted rows are shown as deletion vectors. If False, a version with deleted rows waits
            for a compaction that removes the deleted rows.

    Raises:
        InvalidInput: The table cannot be published.
        Corrupt: Another program wrote the Delta log.
        CommitConflict: Another mirror was faster in every attempt.
        CommitUnknown: The store did not report the outcome.

    Cost:
        The requests of opening the published version and the newest version. Two GETs, and one GET per Delta commit
        since a checkpoint. One GET per version in between, one PUT per Delta commit, and one GET per stored deletion
        vector that was added or removed. Every ten commits, one PUT of a checkpoint, which lists all splits.
    """

    def mirror(newest: NewestCommit | None, head: Snapshot) -> _DeltaMirror:
        return _DeltaMirror(log, newest, head, shows_vectors=shows_vectors)

    return publish(log, "delta", partial(newest_commit, log.store), mirror)


class _DeltaMirror:
    """The state of the newest commit (the Delta version `shown_as`). This class also creates the next commit."""

    def __init__(
        self, log: TransactionLog, newest: NewestCommit | None, head: Snapshot, *, shows_vectors: bool
    ) -> None:
        self._log, self._store, self._newest = log, log.store, newest
        self._shows_vectors = shows_vectors
        self._shown = None if newest is None else _own(newest.commit, head)
        self._at, self._hinted = (-1, -1) if newest is None else (newest.commit.version, newest.hinted)
        self._files: ShownFiles = lambda _: {}
        self._types: dict[str, str] = {}
        self._widened = frozenset(() if self._shown is None else self._shown.widened)
        self._has_wider = False  # whether a column became wider since the published version
        self.waits_for: str | None = None
        self.commits = 0

    @property
    def shown(self) -> int | None:
        return None if self._shown is None else self._shown.version

    @property
    def shown_as(self) -> int | None:
        return None if self._shown is None else self._at

    @property
    def location(self) -> str | None:
        return None if self._shown is None else self._store.uri

    @property
    def is_outdated(self) -> bool:
        return self._shown is not None and self._shown.encoding != ENCODING

    def begin(self, head: Snapshot) -> None:
        self._has_wider = has_changed(head.schema)
        self._widened = frozenset(types_of(head.metadata.schemaString)) if self._has_wider else frozenset()

    def go_on(self, base: Snapshot) -> None:
        self._files, self._types = partial(_shown_files, self._store, base), types_of(base.metadata.schemaString)

    def go_on_without_base(self, _: Snapshot) -> Collection[str]:
        if self._newest is None:
            return ()
        state = state_at(self._store, self._newest.commit)
        self._files = lambda keys: {key: ShownFile(state.files[key]) for key in keys if key in state.files}
        self._types = types_of(state.schema)
        return state.files

    def passes(self, snapshot: Snapshot) -> None:
        types = types_of(snapshot.metadata.schemaString)
        found = widened(self._types, types)
        self._widened |= found
        self._has_wider |= bool(found)
        self._types |= types

    def show(self, snapshot: Snapshot, touched: Touched) -> bool:
        vectors_wait = None if self._shows_vectors else _WAITS
        self.waits_for = find_publish_blocker(snapshot, vectors_wait=vectors_wait) or self._narrower(snapshot, touched)
        if self.waits_for is not None:
            return True
        removes, adds = self._actions(snapshot, touched)
        shown = self._shown
        schema = delta_schema(
            snapshot,
            features=() if shown is None else shown.features,
            has_vectors=any("deletionVector" in each for each in adds),
        )
        is_new = shown is None or schema.checksum != shown.metadata
        declared = [{"protocol": schema.protocol}, {"metaData": schema.metadata}] if is_new else []
        actions = [*declared, *({"remove": each} for each in removes), *({"add": each} for each in adds)]
        if actions and not self._commit(snapshot, schema, touched.operation, actions):
            return False
        self._files = partial(_shown_files, self._store, snapshot)
        self._has_wider = False
        return True

    def _narrower(self, snapshot: Snapshot, touched: Touched) -> str | None:
        """Return the reason if a split has narrower types than its table.

        If the published version already had the wide types, only new splits are checked.
        """
        if not self._widened:
            return None
        adds = [*(snapshot.splits if self._has_wider else snapshot.splits.among(touched.keys)).values()]
        return narrower(self._store, adds, self._widened, snapshot.schema)

    def _actions(self, snapshot: Snapshot, touched: Touched) -> tuple[list[Json], list[Json]]:
        """Return the removed and the added files. If a deletion vector changed, its file is removed and added.

        If an earlier release escaped the statistics of a file, the file is added again. Delta uses the newest action of
        a file.
        """
        keys = touched.keys | set(snapshot.splits) if self.is_outdated else touched.keys
        before, after = self._files(keys), snapshot.splits.among(keys)
        files = DeltaFiles(self._store, snapshot.schema)
        adds = {key: files.add(after[key], data_change=touched.data_change) for key in sorted(after)}
        same = {key for key in adds if key in before and adds[key].get("deletionVector") == before[key].vector}
        removes = [
            removal(key, before[key], at_ms=snapshot.timestamp, data_change=touched.data_change)
            for key in sorted(before.keys() - same)
        ]
        escaped = {key for key in same if self.is_outdated and max(adds[key]["stats"]) > _LAST_OF_ONE_ESCAPE}
        again = [{**adds[key], "dataChange": False} for key in sorted(escaped)]
        return removes, [*(each for key, each in adds.items() if key not in same), *again]

    def _commit(self, snapshot: Snapshot, schema: MirrorSchema, operation: str, actions: Sequence[Json]) -> bool:
        shown = Shown(
            table_id=snapshot.table_id,
            version=snapshot.version,
            after=None if self._shown is None else self._shown.version,
            published_at_ms=self._log.clock.now_ms(),
            id=self._log.ids.uuid(),
            features=schema.features,
            metadata=schema.checksum,
            widened=tuple(sorted(self._widened)),
            encoding=ENCODING,
        )
        is_again = self.shown == snapshot.version
        at_ms = snapshot.timestamp + 1 if is_again else snapshot.timestamp  # Times in a Delta log must increase.
        info = {
            "timestamp": at_ms,
            "inCommitTimestamp": at_ms,
            "operation": operation,
            "operationParameters": {},
            "engineInfo": OWN,
            OWN: shown.to_json(),
        }
        data = encode_delta([{"commitInfo": info}, {"txn": transaction(snapshot)}, *actions])
        at = self._at + 1
        if not create_numbered(self._store, delta_commit_key(at), data, clock=self._log.clock):
            return False
        _logger.info("published version %d of %s as Delta version %d", snapshot.version, self._store.uri, at)
        self._shown, self._at = shown, at
        self.commits += 1
        if at - max(self._hinted, 0) >= EVERY or (at and operation in FORGETTING):  # older commits can then be deleted
            write_checkpoint(self._store, at, snapshot, schema)
            self._hinted = at
        return True


def _shown_files(store: ObjectStore, snapshot: Snapshot, keys: Collection[str]) -> Mapping[str, ShownFile]:
    return {key: ShownFile(descriptor(store, add), add.size) for key, add in snapshot.splits.among(keys).items()}


def _own(newest: MirrorCommit, head: Snapshot) -> Shown | None:
    """Return the published state in the newest commit. Raises `Corrupt` if the commit belongs to another table."""
    shown = newest.shown
    require_own(
        delta_commit_key(newest.version),
        None if shown is None else (shown.table_id, shown.version),
        head,
        advice=DELTA_ADVICE,
    )
    return shown
