"""The log of a Delta table as a source of rows: its versions, and the changes of each version.

Each version is read from its own file, with one GET. The state before a version comes from delta-rs, which supports all
kinds of checkpoints.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import quote, unquote

from storage_core.base.errors import DELTA, Corrupt, InvalidInput, NotFound, needs
from storage_core.data.formats.keys import delta_commit_key
from storage_core.data.formats.mirrors import encode_delta, unz85
from storage_core.data.settings.setting import json_text
from storage_core.interop.delta_import import is_wide, log_actions, to_deltalake_location
from storage_core.store.contract import ObjectInfo, ObjectStore
from storage_core.store.resolve import open_store
from storage_core.store.s3_location import S3Location, parse_s3_uri
from storage_core.write.ingest.landing import DeltaChanges
from storage_core.write.ingest.progress import DeltaGap, DeltaProgress, versions

# The files that the log of a Delta table lists, and excerpts of the table for Spark.
#
# Spark must read through the Delta log, because the data files alone do not contain all information. Deletion vectors,
# renamed columns and partition values are only in the log. An excerpt is therefore a separate Delta table that contains
# the files of some versions. As in a shallow clone, the single version file of an excerpt contains the absolute paths
# of the files (Delta's protocol, "Add File and Remove File").


CHANGE_TYPE: Final = "_change_type"
"""The name of a column in change feed files. The column contains the kind of change of each row."""

_MAPPING = "delta.columnMapping."
_OF_READERS = (_MAPPING, "delta.typeChanges")
_UUID_CHARACTERS = 20
_NOT_OF_FILES = frozenset({"v2Checkpoint", "vacuumProtocolCheck"})
"""Reader features that concern the log itself. An excerpt does not need these features."""

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DeltaFile:
    """A data file at an absolute URI, without the rows that its deletion vector hides.

    The URI and the deletion vector together identify the file.
    """

    uri: str
    vector: str | None = None
    """The descriptor of the deletion vector, as JSON with an absolute path."""
    size: int | None = field(default=None, compare=False)
    partition_values: Json | None = field(default=None, compare=False)

    @property
    def objects(self) -> list[str]:
        """The URIs of the objects that a reader of the file needs."""
        vector = None if self.vector is None else json.loads(self.vector)
        return [self.uri, *([vector["pathOrInlineDv"]] if vector and vector["storageType"] == "p" else [])]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSchema:
    """The schema that a reader of files needs: columns as Spark's JSON, partition columns, and the column mapping."""

    text: str
    partition_columns: tuple[str, ...] = ()
    mapping: Mapping[str, str] = field(default_factory=dict)
    reader_version: int = 1
    features: tuple[str, ...] = ()

    def with_change_type(self) -> DeltaSchema:
        """Return the columns of a change feed file."""
        schema = json.loads(self.text)
        metadata: dict[str, object] = {}
        last = self.mapping.get(f"{_MAPPING}maxColumnId")
        if self.mapping:
            metadata = {f"{_MAPPING}id": int(last or 0) + 1, f"{_MAPPING}physicalName": CHANGE_TYPE}
        schema["fields"] += [{"name": CHANGE_TYPE, "type": "string", "nullable": True, "metadata": metadata}]
        # Columns are mapped by name, because the files of the feed have no id for this column.
        own = {f"{_MAPPING}mode": "name", f"{_MAPPING}maxColumnId": str(int(last or 0) + 1)}
        mapping = {**self.mapping, **own} if self.mapping else {}
        return replace(self, text=json_text(schema), mapping=mapping)

    def physical_names(self) -> dict[str, str]:
        """Return a map from the column names in files to the current column names.

        A rename of a column does not change the name in files.
        """
        fields = json.loads(self.text)["fields"]
        return {each["metadata"].get(f"{_MAPPING}physicalName", each["name"]): each["name"] for each in fields}


def mapping_of(configuration: Mapping[str, str]) -> dict[str, str]:
    """Return the column mapping settings of a Delta table. The result is empty if the files use the column names."""
    found = {name: value for name, value in configuration.items() if name.startswith(_MAPPING)}
    return found if found.get(f"{_MAPPING}mode", "none") != "none" else {}


def data_file(root: str, action: Json) -> DeltaFile:
    """Return the file of an `add`, `remove` or `cdc` action. `root` is the URI of the table."""
    vector = action.get("deletionVector")
    return DeltaFile(
        _absolute(root, action["path"]),
        None if vector is None else json.dumps(_absolute_vector(root, vector), sort_keys=True),
        action.get("size"),
        action.get("partitionValues"),
    )


def excerpt(schema: DeltaSchema, files: Iterable[DeltaFile]) -> bytes:
    """Return the first version file of a Delta table that consists of these files. No request.

    Raises `InvalidInput` for a file without partition values in the log.
    """
    lines: list[Json] = [
        {"protocol": _protocol(schema)},
        {
            "metaData": {
                "id": str(uuid.uuid5(uuid.NAMESPACE_OID, schema.text)),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json_text(_readable(json.loads(schema.text))),
                "partitionColumns": list(schema.partition_columns),
                "configuration": dict(schema.mapping),
                "createdTime": 0,
            }
        },
        *({"add": _add(schema, each)} for each in files),
    ]
    return encode_delta(lines)


def key_of(root: str, uri: str) -> str | None:
    """Return the key of an object in the store of the table at `root`, or None if the object is elsewhere."""
    return unquote(uri.removeprefix(f"{root}/")) if uri.startswith(f"{root}/") else None


def _readable(kind: Any) -> Any:
    """Return a type without metadata for writers, such as nullability and defaults.

    This metadata would require writer features.
    """
    match kind:
        case {"type": "struct", "fields": fields}:
            return {"type": "struct", "fields": [_readable_field(each) for each in fields]}
        case {"type": "array", "elementType": element}:
            return {**kind, "elementType": _readable(element)}
        case {"type": "map", "keyType": key, "valueType": value}:
            return {**kind, "keyType": _readable(key), "valueType": _readable(value)}
        case _:
            return kind


def _readable_field(field: Json) -> Json:
    metadata = {name: each for name, each in field["metadata"].items() if name.startswith(_OF_READERS)}
    return {"name": field["name"], "type": _readable(field["type"]), "nullable": True, "metadata": metadata}


def _add(schema: DeltaSchema, file: DeltaFile) -> Json:
    if file.partition_values is None and schema.partition_columns:
        raise InvalidInput(
            f"{file.uri}: the Delta log removes this file without its partition, so its rows cannot be found. Copy "
            "the table with a tool that writes a new Delta log, and land the copy",
            file=file.uri,
        )
    vector = {} if file.vector is None else {"deletionVector": json.loads(file.vector)}
    return {
        "path": file.uri,
        "partitionValues": dict(file.partition_values or {}),
        "size": file.size or 0,
        "modificationTime": 0,
        "dataChange": True,
        **vector,
    }


def _protocol(schema: DeltaSchema) -> Json:
    version = schema.reader_version
    if version < 3:
        return {"minReaderVersion": version, "minWriterVersion": 2 if version == 1 else 5}
    features = sorted({*schema.features} - _NOT_OF_FILES)
    return {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}


def _absolute(root: str, path: str) -> str:
    return path if "://" in path or path.startswith("file:/") else f"{root}/{path}"


def _absolute_vector(root: str, vector: Json) -> Json:
    if vector["storageType"] != "u":
        return vector
    text = vector["pathOrInlineDv"]
    prefix, name = text[:-_UUID_CHARACTERS], uuid.UUID(bytes=unz85(text[-_UUID_CHARACTERS:]))
    path = f"{root}/{prefix}{'/' if prefix else ''}deletion_vector_{name}.bin"
    return {**vector, "storageType": "p", "pathOrInlineDv": path}


_CREDENTIALS = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
"""This provider searches for credentials in the same places as boto3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaTable:
    """A Delta table at one version: its id, and the schema that readers of its files need."""

    id: str
    schema: DeltaSchema

    def after(self, actions: Iterable[Mapping[str, Any]]) -> DeltaTable:
        """Return the table after the actions of its next version."""
        table_id, schema = self.id, self.schema
        for action in actions:
            if found := action.get("metaData"):
                table_id = found["id"]
                schema = replace(
                    schema,
                    text=found["schemaString"],
                    partition_columns=tuple(found.get("partitionColumns") or ()),
                    mapping=mapping_of(found.get("configuration") or {}),
                )
            elif found := action.get("protocol"):
                features = tuple(sorted(found.get("readerFeatures") or ()))
                schema = replace(schema, reader_version=found["minReaderVersion"], features=features)
        return DeltaTable(id=table_id, schema=schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaCommit:
    """The changes of one version, by file.

    - `feed`: change feed files. If the version has change feed files, these files contain all changes of the version.
    - `table`: the table after the version.
    - `committed_ms`: the time at which the log file was written.
    """

    version: int
    operation: str
    table: DeltaTable
    committed_ms: int
    added: tuple[DeltaFile, ...] = ()
    removed: tuple[DeltaFile, ...] = ()
    feed: tuple[DeltaFile, ...] = ()

    @property
    def removes_rows(self) -> bool:
        """Whether the version removed or changed rows of earlier versions."""
        return bool(self.removed or self.feed)

    @property
    def files(self) -> tuple[DeltaFile, ...]:
        """The files that contain the changes of the version."""
        return self.feed or (*self.added, *self.removed)


@dataclass(frozen=True, slots=True)
class DeltaLog:
    """The versions of a Delta table that have a file in the log, in ascending order from a first version."""

    store: ObjectStore
    infos: Mapping[int, ObjectInfo] = field(default_factory=dict)

    @classmethod
    def list_versions(cls, uri: str, first: int = 0) -> DeltaLog:
        """Return the log with the versions that `versions` finds at this location."""
        store = open_store(uri)
        return cls(store, versions(store, first))

    @property
    def newest(self) -> int | None:
        """The last version, or None if there is no version."""
        return max(self.infos, default=None)

    @property
    def root(self) -> str:
        """The URI of the table in the form of Spark's file systems, encoded like the paths of Delta."""
        if self._place is None:
            return self.store.uri
        return f"s3a://{self._place.bucket}/{quote(self._place.prefix, safe='/=')}".rstrip("/")

    @property
    def _place(self) -> S3Location | None:
        uri = self.store.uri
        return parse_s3_uri(uri, {}) if uri.startswith("s3:") else None

    @property
    def options(self) -> dict[str, str]:
        """Options for Spark's file systems: the endpoint of this store, and credentials of the AWS configuration."""
        place = self._place
        if place is None:
            return {}
        given = {
            "endpoint": place.endpoint,
            "endpoint.region": place.region,
            "path.style.access": str(place.path_style).lower(),
            "aws.credentials.provider": _CREDENTIALS,
        }
        return {f"fs.s3a.{name}": value for name, value in given.items() if value is not None}

    def table_at(self, version: int) -> DeltaTable:
        """Return the table at a version. delta-rs reads the log up to this version.

        Names above U+FFFF are read from the log itself, because delta-rs misreads them if they are escaped.

        Raises:
            NotFound: The log does not reach back to this version.
            Unavailable: The package is missing.
        """
        place, options = to_deltalake_location(self.store.uri)
        with needs(DELTA, "landing from a Delta table"):
            import deltalake
            from deltalake.exceptions import DeltaError
        try:
            found = deltalake.DeltaTable(place, version=version, storage_options=options)
            metadata, protocol, text = found.metadata(), found.protocol(), found.schema().to_json()
        except (DeltaError, OSError, ValueError) as error:
            raise NotFound(
                f"{place}: version {version} of the Delta table cannot be opened. The Delta log lacks a file, "
                "or a file is damaged. Restore the log, or land the table again from a version that opens"
            ) from error
        schema = DeltaSchema(
            text=text,
            partition_columns=tuple(metadata.partition_columns),
            mapping=mapping_of(metadata.configuration),
            reader_version=protocol.min_reader_version,
            features=tuple(sorted(protocol.reader_features or ())),
        )
        table = DeltaTable(id=str(metadata.id), schema=schema)
        named = (schema.text, *schema.partition_columns, *schema.mapping.values())
        return self._as_declared(table, version) if any(map(is_wide, named)) else table

    def _as_declared(self, table: DeltaTable, version: int) -> DeltaTable:
        """Return the table with the columns declared in the newest JSON file.

        Return the table unchanged if a checkpoint declares the columns.
        """
        for lines in log_actions(self.store, version):
            actions = [json.loads(line, strict=False) for line in lines]
            declared = [each for each in actions if each.get("metaData")]
            if declared:
                return table.after(declared)
        return table

    def commit(self, version: int, before: DeltaTable) -> DeltaCommit:
        """Return the changes of a version to the table `before`. One GET.

        Raises:
            NotFound: The log no longer has a file of the version.
            Corrupt: The file cannot be read.
        """
        key = delta_commit_key(version)
        data = self.store.get(key).data
        try:
            actions = [json.loads(line) for line in data.splitlines() if line.strip()]
            table = before.after(actions)
            named = {name: list(_files(self.root, name, actions)) for name in ("add", "remove", "cdc")}
            given = (each["commitInfo"].get("operation") for each in actions if "commitInfo" in each)
            operation = str(next(given, None) or "a change")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Corrupt(
                f"{self.store.uri}/{key}: not a version of a Delta log: {error!r}",
                advice="repair the Delta table, or restore its log",
            ) from error
        added, removed, feed = (tuple(map(self._sized, files)) for files in named.values())
        return DeltaCommit(
            version=version,
            operation=operation,
            table=table,
            committed_ms=self.infos[version].last_modified_ms,
            added=added,
            removed=removed,
            feed=feed,
        )

    def has(self, file: DeltaFile) -> bool:
        """Return whether all objects of a file exist. An object outside the table counts as existing.

        One HEAD per object.
        """
        return all(self._head(uri) is not None for uri in file.objects if key_of(self.root, uri) is not None)

    def _sized(self, file: DeltaFile) -> DeltaFile:
        """Return the file with its size. A log may omit the size of a removed file."""
        if file.size is not None:
            return file
        info = self._head(file.uri)
        return file if info is None else replace(file, size=info.size)

    def _head(self, uri: str) -> ObjectInfo | None:
        key = key_of(self.root, uri)
        try:
            return None if key is None else self.store.head(key)
        except NotFound:
            return None


def _files(root: str, name: str, actions: Sequence[Mapping[str, Any]]) -> Iterator[DeltaFile]:
    """Yield the files of those actions whose key in the JSON of the Delta log is `name`. Actions that change no rows
    are skipped.
    """
    for action in actions:
        found = action.get(name)
        if found is not None and (name == "cdc" or found.get("dataChange", True)):
            yield data_file(root, found)


def require_same_table(found: DeltaTable, table_id: str, where: str, version: int) -> None:
    """Raise `InvalidInput` unless the table's rows come from this Delta table. The error contains a remedy."""
    if found.id != table_id:
        raise InvalidInput(
            f"{where}: this is a different Delta table with the id {found.id}. The rows below version {version} come "
            f"from the table {table_id}. Restore the first Delta table, or land the new one in a new table",
            expected=table_id,
            found=found.id,
        )


# Groups of versions for one commit each, and the files to read (docs/architecture/ingestion.md).
# The changes of several versions are combined. Rows of added files are counted as new rows, and so are rows that the
# change feed inserts. Rows of removed files are counted as deleted rows, and so are rows that the change feed deletes.
# A file that was added and removed within the group is not read.


MOST_VERSIONS: Final = 100
MOST_BYTES: Final = 2**30
"""Maximum total size in bytes of the files that one commit ingests. A single version may have more bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaGroup:
    """The Delta versions `first` to `last`, whose changes Tidemark ingests in one commit.

    If the group is a snapshot, it contains all rows of the table at `last`.

    - `before`: the table before the first version, if it is known.
    - `skipped`, `gaps`: versions without ingested rows.
    """

    first: int
    last: int
    table: DeltaTable
    before: DeltaTable | None = None
    committed_ms: int = 0
    is_snapshot: bool = False
    commits: tuple[DeltaCommit, ...] = ()
    added: tuple[DeltaFile, ...] = ()
    removed: tuple[DeltaFile, ...] = ()
    feed: tuple[DeltaFile, ...] = ()
    skipped: tuple[int, ...] = ()
    gaps: tuple[DeltaGap, ...] = ()

    @property
    def name(self) -> str:
        """The name of the group in reports and messages."""
        return f"version {self.last}" if self.first == self.last else f"versions {self.first} to {self.last}"

    @property
    def has_rows(self) -> bool:
        """Whether there are rows to read."""
        return self.is_snapshot or bool(self.added or self.removed or self.feed)

    @property
    def reached(self) -> DeltaProgress:
        """The progress of the table after the ingestion of the group, with the new gaps."""
        return DeltaProgress(table_id=self.table.id, next_version=self.last + 1, gaps=self.gaps)

    def lost(self, log: DeltaLog) -> frozenset[int]:
        """Return the versions that need a missing file. One HEAD per file and deletion vector."""
        needed = {*self.added, *self.removed, *self.feed}
        missing = {each for each in needed if not log.has(each)}
        return frozenset(each.version for each in self.commits if not missing.isdisjoint(each.files))


def next_group(
    log: DeltaLog,
    reached: DeltaProgress | None,
    changes: DeltaChanges,
    *,
    lost: Collection[int] = (),
    known: DeltaTable | None = None,
) -> DeltaGroup | None:
    """Return the next group of versions, or None if there is no newer version.

    The first group is the whole table at its newest version.

    Args:
        log: Log of the Delta table.
        reached: Progress so far. None means that nothing was ingested yet.
        changes: Treatment of versions that remove rows.
        lost: Versions with missing files, which become gaps.
        known: The Delta table at the reached version. None means that this call opens the table.

    Raises:
        InvalidInput: The location has another Delta table than before, or the Delta table was set back. Or a version
            removes rows and `changes` refuses removals.
        NotFound: There is no Delta table.

    Cost:
        One GET per version.
    """
    newest = log.newest
    where = log.store.uri
    if newest is None and reached is None:
        raise NotFound(f"{where}: a Delta table does not exist here: its _delta_log has no version. Check the location")
    if reached is None:
        return _snapshot(log, newest or 0)
    if newest is None:
        raise _set_back(log, reached)
    start = reached.next_version
    before = known or _table_at(log, start - 1)
    following = [version for version in log.infos if version >= start]
    if not following:
        require_same_table(known or log.table_at(newest), reached.table_id, where, start)
        return None
    if following[0] > start:
        gap = DeltaGap(start, following[0] - 1)
        table = before or log.table_at(following[0])
        require_same_table(table, reached.table_id, where, start)
        return DeltaGroup(first=gap.first, last=gap.last, table=table, gaps=(gap,))
    table = before or log.table_at(start)
    require_same_table(table, reached.table_id, where, start)
    commits = _commits(log, table, start, changes)
    return _summed(commits, before, changes, lost)


def _snapshot(log: DeltaLog, newest: int) -> DeltaGroup:
    committed_ms = log.infos[newest].last_modified_ms
    return DeltaGroup(first=0, last=newest, table=log.table_at(newest), committed_ms=committed_ms, is_snapshot=True)


def _table_at(log: DeltaLog, version: int) -> DeltaTable | None:
    """Return the table at a version, or None if the log does not reach back to this version."""
    try:
        return log.table_at(version)
    except NotFound:
        return None


def _commits(log: DeltaLog, table: DeltaTable, first: int, changes: DeltaChanges) -> list[DeltaCommit]:
    """Return the versions of the next group.

    All returned versions have the same schema. Their number is at most `MOST_VERSIONS`, and their size at most
    `MOST_BYTES`.
    """
    commits: list[DeltaCommit] = []
    size, table_id = 0, table.id
    for version in range(first, (log.newest or first) + 1):
        if version not in log.infos or len(commits) == MOST_VERSIONS:
            break
        commit = log.commit(version, table)
        table = commit.table
        require_same_table(table, table_id, log.store.uri, version)
        size += sum(each.size or 0 for each in commit.files)
        if commits and (table.schema != commits[0].table.schema or size > MOST_BYTES):
            break
        if commit.removes_rows and changes == "refuse":
            if not commits:
                raise _refused(log, commit)
            break
        commits.append(commit)
    return commits


def _summed(
    commits: Sequence[DeltaCommit], before: DeltaTable | None, changes: DeltaChanges, lost: Collection[int]
) -> DeltaGroup:
    skipped = tuple(each.version for each in commits if changes == "skip" and each.removes_rows)
    taken = [each for each in commits if each.version not in {*skipped, *lost}]
    added, removed = Counter[DeltaFile](), Counter[DeltaFile]()
    for each in taken:
        if not each.feed:
            added.update(each.added)
            removed.update(each.removed)
    return DeltaGroup(
        first=commits[0].version,
        last=commits[-1].version,
        table=commits[-1].table,
        before=before,
        committed_ms=commits[-1].committed_ms,
        commits=tuple(commits),
        added=tuple((added - removed).elements()),
        removed=tuple((removed - added).elements()),
        feed=tuple(file for each in taken for file in each.feed),
        skipped=skipped,
        gaps=tuple(DeltaGap(each.version, each.version) for each in commits if each.version in lost),
    )


def _refused(log: DeltaLog, commit: DeltaCommit) -> InvalidInput:
    return InvalidInput(
        f"{log.store.uri}: version {commit.version} of the Delta table ({commit.operation}) changes or removes rows, "
        "and an append table accepts only added rows. Set `changes: apply` in `landing` to delete the same rows, or "
        "`changes: skip` to skip such versions. Or create a keyed table. All earlier versions are ingested",
        version=commit.version,
    )


def _set_back(log: DeltaLog, reached: DeltaProgress) -> InvalidInput:
    """Return the error for a Delta log that ends before the version that was already ingested."""
    newest = max(versions(log.store), default=None)
    if newest is not None:
        require_same_table(log.table_at(newest), reached.table_id, log.store.uri, reached.next_version)
    is_now = "no versions" if newest is None else f"only versions up to {newest}"
    return InvalidInput(
        f"{log.store.uri}: versions of the Delta table below {reached.next_version} are ingested, but the Delta "
        f"table now has {is_now}. The Delta table was reset or deleted. Restore the Delta log, or land the "
        "Delta table in a new "
        "table",
        expected=reached.next_version - 1,
        found=newest,
    )
