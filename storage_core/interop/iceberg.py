"""The Iceberg mirror: metadata in the table's folder that references the same splits (decision 0032).

The mirror has one snapshot for each version that changes the visible content and has no deleted rows. The id of the
snapshot is the number of the version. The newest metadata file contains the published version, so publishing needs no
other state. An interrupted publication therefore continues from this file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final
from urllib.parse import unquote, urlsplit

from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadataV2
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from storage_core.data.formats.keys import ICEBERG_FOLDER, iceberg_hint_key, iceberg_list_key, iceberg_metadata_key
from storage_core.data.formats.mirrors import PUBLISHED_AT, TABLE_ID, decode_iceberg_hint, encode_iceberg_hint
from storage_core.interop.iceberg_manifests import MAPPING, IcebergFiles, Manifests, iceberg_schema, name_mapping
from storage_core.interop.publishing import (
    FORGETTING,
    Mirrored,
    Touched,
    advance_hint,
    find_publish_blocker,
    publish,
    require_own,
    without_inner_ids,
)
from storage_core.log.log import TransactionLog
from storage_core.log.mirror_metadata import ICEBERG_ADVICE, NewestMetadata, newest_metadata
from storage_core.log.snapshot import Snapshot as Version
from storage_core.store.contract import ObjectStore, create_numbered

MOST_SNAPSHOTS: Final = 100
"""The largest number of snapshots in one metadata file."""

_WAITS = "and such splits are published in Iceberg format version 2 only after a compaction"

_logger = logging.getLogger(__name__)


def publish_iceberg(log: TransactionLog) -> Mirrored:
    """Publish all unpublished versions without hidden rows to Iceberg. Return the published state.

    The first publication shows only the newest version. For a keyed table, the mirror shows the base, which contains
    the merged rows. A version without visible changes gets no snapshot. A version that Iceberg cannot show
    (`interop.publishing`) is skipped. The next version that Iceberg can show includes the changes of the skipped
    version. If the table was moved or copied, the mirror starts again.

    The call is idempotent, and can be repeated after a kill at any point. If two mirrors run concurrently, only one of
    them writes each metadata file.

    Raises:
        InvalidInput: The table cannot be published.
        Corrupt: Another program wrote the metadata.
        CommitConflict: Another mirror was faster in every attempt.
        CommitUnknown: The store did not report the outcome.

    Cost:
        The requests of opening the published version and the newest version. One GET per version in between, and the
        GETs of the hint, the metadata and the manifest list. For each snapshot, one PUT each of a manifest, the list,
        the metadata and the hint. Also one GET and one PUT per manifest with removed files and per merged manifest.
    """

    def mirror(newest: NewestMetadata | None, head: Version) -> _IcebergMirror:
        return _IcebergMirror(log, newest, head)

    return publish(log, "iceberg", partial(newest_metadata, log.store), mirror)


def location_of(store: ObjectStore) -> str:
    """Return the table's location for Iceberg.

    The location of a local table has no scheme, because some readers do not support URIs with the scheme `file`.
    """
    uri = store.uri.partition("?")[0]  # The connection options of S3 are not part of the location.
    return unquote(urlsplit(uri).path) if uri.startswith("file:") else uri


class _IcebergMirror:
    """The state of the newest metadata file. This class also creates the next metadata file."""

    def __init__(self, log: TransactionLog, newest: NewestMetadata | None, head: Version) -> None:
        self._log, self._store, self._root = log, log.store, location_of(log.store)
        self._manifests = Manifests(log.store, self._root, log.ids)
        self._number = 0 if newest is None else _own(newest, head)
        self._metadata: TableMetadataV2 | None = None
        self._files: Callable[[Collection[str]], Collection[str]] = lambda _: ()
        self.waits_for: str | None = None
        self.commits = 0
        if newest is not None and newest.metadata.root == self._root:
            self._metadata = TableMetadataV2.model_validate_json(newest.data)
            self._manifests.read(newest.metadata.shown.files)
            if newest.hinted < self._number:  # a mirror was killed before it wrote the hint
                self._advance_hint()

    @property
    def shown(self) -> int | None:
        return None if self._metadata is None else self._metadata.current_snapshot_id

    @property
    def is_outdated(self) -> bool:
        return False

    @property
    def shown_as(self) -> int | None:
        return self.shown

    @property
    def location(self) -> str | None:
        return None if self._metadata is None else f"{self._root}/{iceberg_metadata_key(self._number)}"

    def begin(self, head: Version) -> None:
        pass

    def go_on(self, base: Version) -> None:
        self._files = partial(_among, base)

    def go_on_without_base(self, _: Version) -> Collection[str]:
        known = self._manifests.keys()
        self._files = known.intersection
        return known

    def passes(self, snapshot: Version) -> None:
        pass

    def show(self, snapshot: Version, touched: Touched) -> bool:
        self.waits_for = find_publish_blocker(snapshot, vectors_wait=_WAITS)
        if self.waits_for is not None:
            return True
        before, after = {*self._files(touched.keys)}, _among(snapshot, touched.keys)
        new = snapshot.splits.among(after - before).values()
        self.waits_for = without_inner_ids(self._store, new, snapshot.schema)
        if self.waits_for is not None:
            return True
        known = self._metadata
        schema = iceberg_schema(snapshot, () if known is None else known.schemas)
        is_same = known is not None and before == after and schema.schema_id == known.current_schema_id
        if not is_same and not self._commit(snapshot, schema, touched, (sorted(after - before), before - after)):
            return False
        self._files = partial(_among, snapshot)
        return True

    def _commit(
        self, version: Version, schema: Schema, touched: Touched, files: tuple[Sequence[str], Collection[str]]
    ) -> bool:
        added, removed = files
        id_, number = self._log.ids.uuid(), self._number + 1
        snapshot = self._snapshot(version, schema, id_, _summary(version, touched, files, self._log.clock.now_ms()))
        made = IcebergFiles(version.schema, self._root)
        adds = version.splits.among(added)
        self._manifests.change(
            (made.file(adds[key]) for key in added),
            removed,
            snapshot,
            schema,
            forget=touched.operation in FORGETTING,
        )
        self._manifests.write_list(id_, snapshot)
        metadata = self._next(version, schema, snapshot)
        data = metadata.model_dump_json().encode()
        if not create_numbered(self._store, iceberg_metadata_key(number), data, clock=self._log.clock):
            return False
        _logger.info("published version %d of %s as Iceberg metadata %d", version.version, self._store.uri, number)
        self._metadata, self._number = metadata, number
        self.commits += 1
        self._advance_hint()
        return True

    def _snapshot(self, version: Version, schema: Schema, id_: str, summary: Summary) -> Snapshot:
        return Snapshot.model_validate(
            {
                "snapshot-id": version.version,
                "parent-snapshot-id": self.shown,
                "sequence-number": self._number + 1,
                "timestamp-ms": version.timestamp,
                "manifest-list": f"{self._root}/{iceberg_list_key(version.version, id_)}",
                "summary": summary,
                "schema-id": schema.schema_id,
            }
        )

    def _next(self, version: Version, schema: Schema, snapshot: Snapshot) -> TableMetadataV2:
        known = self._metadata
        snapshots = [*self._retained(version), snapshot]
        used = {each.schema_id for each in snapshots}
        schemas = {each.schema_id: each for each in (*(known.schemas if known else ()), schema)}
        properties = {
            MAPPING: name_mapping(version, known.properties.get(MAPPING) if known else None),
            TABLE_ID: version.table_id,
            "gc.enabled": "false",  # only the collector removes files
        }
        return TableMetadataV2.model_validate(
            {
                "format-version": 2,
                "location": f"{self._root}/{ICEBERG_FOLDER}",
                "table-uuid": version.table_id,
                "last-updated-ms": version.timestamp,
                "last-column-id": max(known.last_column_id if known else 0, schema.highest_field_id),
                "last-sequence-number": snapshot.sequence_number,
                "schemas": [each for number, each in schemas.items() if number in used],
                "current-schema-id": schema.schema_id,
                "partition-specs": [UNPARTITIONED_PARTITION_SPEC],
                "default-spec-id": UNPARTITIONED_PARTITION_SPEC.spec_id,
                "last-partition-id": UNPARTITIONED_PARTITION_SPEC.last_assigned_field_id,
                "sort-orders": [UNSORTED_SORT_ORDER],
                "default-sort-order-id": UNSORTED_SORT_ORDER.order_id,
                "properties": properties,
                "current-snapshot-id": snapshot.snapshot_id,
                "refs": {"main": {"snapshot-id": snapshot.snapshot_id, "type": "branch"}},
                "snapshots": snapshots,
                "snapshot-log": [
                    {"snapshot-id": each.snapshot_id, "timestamp-ms": each.timestamp_ms} for each in snapshots
                ],
            }
        )

    def _retained(self, version: Version) -> list[Snapshot]:
        """Return the older snapshots to keep.

        Each of these snapshots was the newest snapshot at some time within the retention.
        """
        snapshots = [] if self._metadata is None else self._metadata.snapshots
        if not snapshots:
            return []
        oldest_ms = self._log.clock.now_ms() - version.config.version_retention_ms
        superseded = [*(_published_at(each) for each in snapshots[1:]), self._log.clock.now_ms()]
        kept = [each for each, at in zip(snapshots, superseded, strict=True) if at > oldest_ms]
        return kept[1 - MOST_SNAPSHOTS :]

    def _advance_hint(self) -> None:
        hint = encode_iceberg_hint(self._number)
        advance_hint(self._store, iceberg_hint_key(), self._number, hint, decode=decode_iceberg_hint)


def _summary(
    version: Version, touched: Touched, files: tuple[Collection[str], Collection[str]], now_ms: int
) -> Summary:
    added, removed = files
    operation = Operation.APPEND if not removed else Operation.OVERWRITE if added else Operation.DELETE
    return Summary(
        operation=operation if touched.data_change else Operation.REPLACE,
        **{
            "added-data-files": str(len(added)),
            "deleted-data-files": str(len(removed)),
            "total-data-files": str(len(version.splits)),
            "total-records": str(version.splits.total("numRecords")),
            PUBLISHED_AT: str(now_ms),
        },
    )


def _published_at(snapshot: Snapshot) -> int:
    return 0 if snapshot.summary is None else int(snapshot.summary[PUBLISHED_AT] or 0)


def _among(snapshot: Version, keys: Collection[str]) -> set[str]:
    return {*snapshot.splits.among(keys)}


def _own(newest: NewestMetadata, head: Version) -> int:
    """Return the number of the newest metadata file. Raises `Corrupt` if the file belongs to another table."""
    found = newest.metadata
    require_own(
        iceberg_metadata_key(found.number),
        None if found.table_id is None else (found.table_id, found.shown.version),
        head,
        advice=ICEBERG_ADVICE,
    )
    return found.number
