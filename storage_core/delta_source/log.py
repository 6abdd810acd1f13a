"""The log of a Delta table, as far as landing needs it: its versions, and what each of them changed.

Versions are read from their own files, one GET each; what a version began with is told by delta-rs, which knows
checkpoints of all kinds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from storage_core.delta_source.files import DeltaFile, DeltaSchema, data_file, key_of, mapping_of
from storage_core.errors import Corrupt, InvalidInput, NotFound
from storage_core.extras import DELTA, needs
from storage_core.formats.keys import delta_commit_key
from storage_core.importing.delta import as_delta_has_it
from storage_core.importing.delta_escapes import is_wide, log_actions
from storage_core.ingest.delta_versions import versions
from storage_core.objectstore.contract import ObjectInfo, ObjectStore
from storage_core.objectstore.resolve import open_store
from storage_core.objectstore.s3_location import S3Location, parse_s3_uri

_CREDENTIALS = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
"""Which looks where boto3 does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaTable:
    """A Delta table as of a version: its id, and what reading its files needs."""

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
    """What a version changed, by files: those that changed no row, as of a compaction, are left out.

    `feed` are files of the change feed, which tell all that the version did where there are any. `table` is the table
    after it, and `committed_ms` when its log file was written.
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
        """Whether rows of earlier versions are gone or changed."""
        return bool(self.removed or self.feed)

    @property
    def files(self) -> tuple[DeltaFile, ...]:
        """The files to read for what it did."""
        return self.feed or (*self.added, *self.removed)


@dataclass(frozen=True, slots=True)
class DeltaLog:
    """The versions of a Delta table that its log has files of, from some version on, ascending."""

    store: ObjectStore
    infos: Mapping[int, ObjectInfo] = field(default_factory=dict)

    @classmethod
    def look(cls, uri: str, first: int = 0) -> DeltaLog:
        """Return what `versions` finds at this place."""
        store = open_store(uri)
        return cls(store, versions(store, first))

    @property
    def newest(self) -> int | None:
        """The last version; None where there is none."""
        return max(self.infos, default=None)

    @property
    def root(self) -> str:
        """The URI of the table as Spark's file systems have it, encoded as Delta has paths."""
        if self._place is None:
            return self.store.uri
        return f"s3a://{self._place.bucket}/{quote(self._place.prefix, safe='/=')}".rstrip("/")

    @property
    def _place(self) -> S3Location | None:
        uri = self.store.uri
        return parse_s3_uri(uri, {}) if uri.startswith("s3:") else None

    @property
    def options(self) -> dict[str, str]:
        """How Spark's file systems reach the root: where this store does, as whom the AWS configuration says."""
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
        """Return the table as of a version, by delta-rs, which reads the log up to it.

        Names above U+FFFF are taken from the log itself, for delta-rs misreads them where they are escaped.
        Raises `NotFound` where its log does not reach back to it, `Unavailable` without the package.
        """
        place, options = as_delta_has_it(self.store.uri)
        with needs(DELTA, "landing from a Delta table"):
            import deltalake
            from deltalake.exceptions import DeltaError
        try:
            found = deltalake.DeltaTable(place, version=version, storage_options=options)
            metadata, protocol, text = found.metadata(), found.protocol(), found.schema().to_json()
        except (DeltaError, OSError, ValueError) as error:
            raise NotFound(f"{place}: version {version} of the Delta table cannot be opened: {error}") from error
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
        """The table with the columns that the newest JSON of the log declares; as it is where a checkpoint does."""
        for lines in log_actions(self.store, version):
            actions = [json.loads(line, strict=False) for line in lines]
            declared = [each for each in actions if each.get("metaData")]
            if declared:
                return table.after(declared)
        return table

    def commit(self, version: int, before: DeltaTable) -> DeltaCommit:
        """Return what a version did to the table as it was `before`. One GET.

        Raises `NotFound` where the log has no file of it any more, `Corrupt` for one that cannot be read.
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
        """Return whether all objects of a file are there still; of one that lies elsewhere True. One HEAD each."""
        return all(self._head(uri) is not None for uri in file.objects if key_of(self.root, uri) is not None)

    def _sized(self, file: DeltaFile) -> DeltaFile:
        """The file with its size, which a log may leave out of what it removes."""
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
    """The files of the actions of a name, but for those that change no rows."""
    for action in actions:
        found = action.get(name)
        if found is not None and (name == "cdc" or found.get("dataChange", True)):
            yield data_file(root, found)


def require_same_table(found: DeltaTable, table_id: str, where: str, version: int) -> None:
    """Return when a Delta table is the one whose rows are in. Raises `InvalidInput` that says what to do."""
    if found.id != table_id:
        raise InvalidInput(
            f"{where}: this is another Delta table than the one whose rows below version {version} are in: it has the "
            f"id {found.id}, that one {table_id}; put the first table back, or land the new one in a table of its own",
            expected=table_id,
            found=found.id,
        )
