"""The two mirror formats behind one interface: publish a mirror, read what it shows, and list the files it needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from storage_core.data.formats.mirrors import (
    IcebergMetadata,
    MirrorCommit,
    Shown,
    ShownSnapshot,
    files_of,
    manifests_of,
)
from storage_core.data.settings.table import Publish, PublishFormat
from storage_core.interop.delta_mirror import descriptor
from storage_core.log.mirror_metadata import newest_commit, newest_metadata, read_commit, read_metadata, state_at
from storage_core.log.snapshot import Snapshot
from storage_core.store.contract import ObjectStore
from storage_core.table import Table
from tests.support import upkeep
from tests.support.changed_rows import row


class Mirrors(Protocol):
    """The interface to publish and read the mirror of one format."""

    format: PublishFormat
    publish: Publish
    prefix: str

    def __hash__(self) -> int:
        """Hash by identity, so that results for this object can be cached."""

    def change(self, table: Table) -> None:
        """Make only changes that this mirror format can represent, so that the mirror can show the changed table."""

    def delete(self, table: Table, condition: str) -> None:
        """Delete rows in a way that this mirror format can represent."""

    def versions(self, store: ObjectStore) -> list[int]:
        """Return the versions of the table that are shown, in order."""

    def newest(self, store: ObjectStore) -> object:
        """Return the newest published version, of any writer."""

    def require_shown(self, store: ObjectStore, snapshot: Snapshot, number: int | None = None) -> None:
        """Assert that the mirror shows this version, as its newest version or as `number`, and that its files exist."""

    def kept(self, store: ObjectStore, since_ms: int, now_ms: int) -> Iterator[set[str]]:
        """Yield the files of the newest shown version, and of the versions shown since `since_ms`."""


class DeltaMirrors:
    """A Delta log with deletion vectors, and one file of the log per version."""

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
        """Yield the existing commits, newest first."""
        newest = newest_commit(store)
        commit = None if newest is None else newest.commit
        while commit is not None:
            assert commit.shown is not None
            yield commit, commit.shown
            commit = read_commit(store, commit.version - 1) if commit.version else None


class IcebergMirrors:
    """Iceberg metadata. The mirror shows no version with deleted rows, so compactions remove these rows."""

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
        """Return the newest metadata file, and assert that it exists."""
        found = newest_metadata(store)
        assert found is not None
        return found.metadata


def _files(store: ObjectStore, metadata: IcebergMetadata, snapshot: ShownSnapshot) -> set[str]:
    """Return the splits of a snapshot, and check that they exist."""
    named: set[str] = set()
    for key in manifests_of(store.get(snapshot.files).data, metadata.root, snapshot.files):
        named |= {each.key for each in files_of(store.get(key).data, metadata.root, key) if each.is_live}
    for key in named:
        store.head(key)
    return named


DELTA, ICEBERG = DeltaMirrors(), IcebergMirrors()
