"""The two mirrors of a table as one thing to try: what is published, what it shows, and what has to exist for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from storage_core.formats.delta_log import MirrorCommit, Shown
from storage_core.formats.iceberg_metadata import IcebergMetadata, ShownSnapshot, files_of, manifests_of
from storage_core.log.published_delta import newest_commit, read_commit, state_at
from storage_core.log.published_iceberg import newest_metadata, read_metadata
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.publishing.delta_files import descriptor
from storage_core.settings.publish import Publish, PublishFormat
from storage_core.table import Table
from tests.support import upkeep
from tests.support.changed_rows import row


class Mirrors(Protocol):
    """How the mirror of one format is published and read."""

    format: PublishFormat
    publish: Publish
    prefix: str

    def __hash__(self) -> int:
        """Each is itself, so that what is made for it can be kept."""

    def change(self, table: Table) -> None:
        """Change a table in the ways that the format shows, up to the newest version."""

    def delete(self, table: Table, condition: str) -> None:
        """Delete rows so that the format can show it."""

    def versions(self, store: ObjectStore) -> list[int]:
        """The versions of the table that are shown, in their order."""

    def newest(self, store: ObjectStore) -> object:
        """What the newest is, whoever wrote it."""

    def require_shown(self, store: ObjectStore, snapshot: Snapshot, number: int | None = None) -> None:
        """Fail unless the files of this version, which exist, are what is shown: as the newest, or as `number`."""

    def kept(self, store: ObjectStore, since_ms: int, now_ms: int) -> Iterator[set[str]]:
        """The files of the newest that is shown, and of those that were until then."""


class DeltaMirrors:
    """A Delta log: with the vectors of deleted rows, and one file of the log per version."""

    format: PublishFormat = "delta"
    publish = Publish(delta="inline")
    prefix = "_delta_log/"

    def change(self, table: Table) -> None:
        self.delete(table, "n % 7 = 3")
        table.append([row(n, "later", hour=1) for n in range(60, 80)])
        table.update({"host": "moved"}, "n % 11 = 0")
        upkeep.compact(table.refresh())
        table.add_column("note", "string")
        self.delete(table, "n = 1")

    def delete(self, table: Table, condition: str) -> None:
        table.delete(condition)

    def versions(self, store: ObjectStore) -> list[int]:
        return [shown.version for _, shown in self._commits(store)][::-1]

    def newest(self, store: ObjectStore) -> object:
        commit, shown = next(self._commits(store))
        return commit.version, commit.added, shown.version

    def require_shown(self, store: ObjectStore, snapshot: Snapshot, number: int | None = None) -> None:
        commits = (commit for commit, shown in self._commits(store) if number in (None, shown.version))
        files = state_at(store, next(commits)).files
        assert files == {key: descriptor(store, add) for key, add in snapshot.splits.items()}
        for key in files:
            store.head(key)

    def kept(self, store: ObjectStore, since_ms: int, now_ms: int) -> Iterator[set[str]]:
        superseded_ms = now_ms
        for commit, shown in self._commits(store):
            if superseded_ms <= since_ms:
                return
            yield {*state_at(store, commit).files}
            superseded_ms = shown.published_at_ms

    def _commits(self, store: ObjectStore) -> Iterator[tuple[MirrorCommit, Shown]]:
        """The commits that are there, from the newest down."""
        newest = newest_commit(store)
        commit = None if newest is None else newest.commit
        while commit is not None:
            assert commit.shown is not None
            yield commit, commit.shown
            commit = read_commit(store, commit.version - 1) if commit.version else None


class IcebergMirrors:
    """Metadata of Iceberg: no version with deleted rows is shown, so they are compacted away."""

    format: PublishFormat = "iceberg"
    publish = Publish(iceberg=True)
    prefix = "_iceberg/"

    def change(self, table: Table) -> None:
        table.append([row(n, "later", hour=n % 2) for n in range(60, 80)])
        self.delete(table, "n % 7 = 3")
        table.add_column("note", "string")

    def delete(self, table: Table, condition: str) -> None:
        table.delete(condition)
        upkeep.compact(table.refresh())

    def versions(self, store: ObjectStore) -> list[int]:
        return [each.version for each in self.metadata(store).snapshots]

    def newest(self, store: ObjectStore) -> object:
        found = newest_metadata(store)
        assert found is not None
        return self.versions(store), found.hinted, found.metadata.number

    def require_shown(self, store: ObjectStore, snapshot: Snapshot, number: int | None = None) -> None:
        metadata = self.metadata(store)
        shown = next((each for each in metadata.snapshots if each.version == number), metadata.shown)
        assert shown.version in (number, snapshot.version)
        assert _files(store, metadata, shown) == {*snapshot.splits}
        assert not snapshot.splits.deleted_rows()

    def kept(self, store: ObjectStore, since_ms: int, now_ms: int) -> Iterator[set[str]]:
        newest = newest_metadata(store)
        at, superseded_ms = 0 if newest is None else newest.metadata.number, now_ms
        while at and superseded_ms > since_ms:
            metadata = read_metadata(store, at)
            assert metadata is not None
            yield _files(store, metadata, metadata.shown)
            at, superseded_ms = at - 1, metadata.shown.published_at_ms or 0

    def metadata(self, store: ObjectStore) -> IcebergMetadata:
        """The newest metadata file, which exists."""
        found = newest_metadata(store)
        assert found is not None
        return found.metadata


def _files(store: ObjectStore, metadata: IcebergMetadata, snapshot: ShownSnapshot) -> set[str]:
    """The splits that a snapshot names; they exist."""
    named: set[str] = set()
    for key in manifests_of(store.get(snapshot.files).data, metadata.root, snapshot.files):
        named |= {each.key for each in files_of(store.get(key).data, metadata.root, key) if each.is_live}
    for key in named:
        store.head(key)
    return named


DELTA, ICEBERG = DeltaMirrors(), IcebergMirrors()
