"""The manifests of an Iceberg snapshot, and those of the next one: what is not touched stays as it is.

A manifest has a bounded number of files, and small ones are merged, so that what a commit costs does not grow with the
table. pyiceberg reads and writes their bytes; they are objects of the table's store, each under a name of its own.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Final

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.manifest import (
    DataFile,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    read_manifest_list,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Snapshot

from storage_core.errors import Corrupt, NotFound, Unsupported
from storage_core.formats.iceberg_metadata import key_of
from storage_core.formats.keys import iceberg_list_key, iceberg_manifest_key
from storage_core.ids import Ids
from storage_core.log.published_iceberg import ADVICE
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.create import create_derived
from storage_core.publishing.iceberg_files import without_statistics

MOST_FILES: Final = 1000
"""Files of one manifest."""

MERGED: Final = 16
"""From so many manifests on that are at most half full, these are written anew together."""

Entry = tuple[ManifestEntryStatus, ManifestEntry]


class Manifests:
    """The manifests of the snapshot that a table shows, none at first. `root` is the location of the table."""

    def __init__(self, store: ObjectStore, root: str, ids: Ids) -> None:
        self._store, self._root, self._ids = store, root, ids
        self._io = _StoreIO(store, root)
        self._files: list[ManifestFile] = []

    def read(self, list_key: str) -> None:
        """Take up the manifests that a manifest list names. One GET."""
        self._files = [*read_manifest_list(self._io.new_input(f"{self._root}/{list_key}"))]

    def keys(self) -> set[str]:
        """Return the splits that they name. One GET per manifest."""
        return {self._key(each) for manifest in self._files for each in self._entries(manifest)}

    def change(
        self, added: Iterable[DataFile], removed: Collection[str], snapshot: Snapshot, schema: Schema, *, forget: bool
    ) -> None:
        """Make these the manifests of a snapshot that has these files more, and those with these keys less.

        With `forget` no manifest is kept, nor made, that names files which are gone. A GET per manifest, from the
        newest on until all that is removed is found, and per manifest that is merged; a PUT per manifest that is new.
        Raises `Corrupt`.
        """
        kept, taken = self._without({*removed}, forget=forget)
        small = [each for each in kept if _live(each) <= MOST_FILES // 2]
        if len(small) >= MERGED:
            kept = [each for each in kept if each not in small]
            taken += [(ManifestEntryStatus.EXISTING, entry) for each in small for entry in self._entries(each)]
        new = ((ManifestEntryStatus.ADDED, _added(each)) for each in added)
        self._files = [*(self._written(each, snapshot, schema) for each in _chunks(chain(new, taken))), *kept]

    def write_list(self, id_: str, snapshot: Snapshot) -> None:
        """Write the manifest list of the snapshot, which says where; `id_` is that of its key. One PUT."""
        output = _Output(snapshot.manifest_list)
        with write_manifest_list(
            2,
            output,
            snapshot.snapshot_id,
            snapshot.parent_snapshot_id,
            snapshot.sequence_number,
            "deflate",
        ) as writer:
            writer.add_manifests(self._files)
        create_derived(self._store, iceberg_list_key(snapshot.snapshot_id, id_), output.data, advice="publish again")

    def _without(self, wanted: set[str], *, forget: bool) -> tuple[list[ManifestFile], list[Entry]]:
        """The manifests that stay, and the entries of others that do."""
        kept: list[ManifestFile] = []
        taken: list[Entry] = []
        for manifest in sorted(filter(_live, self._files), key=lambda each: -each.sequence_number):
            speaks_of_gone = forget and bool(manifest.deleted_files_count)
            entries = self._entries(manifest) if wanted or speaks_of_gone else []
            gone = {key for each in entries if (key := self._key(each)) in wanted}
            if not gone and not speaks_of_gone:
                kept.append(manifest)
                continue
            wanted -= gone
            for entry in entries:
                if self._key(entry) not in gone:
                    taken.append((ManifestEntryStatus.EXISTING, entry))
                elif not forget:
                    entry.data_file = without_statistics(entry.data_file)
                    taken.append((ManifestEntryStatus.DELETED, entry))
        if wanted:
            raise Corrupt(f"{min(wanted)}: no manifest of the Iceberg mirror names it", advice=ADVICE, key=min(wanted))
        return kept, taken

    def _written(self, entries: Sequence[Entry], snapshot: Snapshot, schema: Schema) -> ManifestFile:
        key = iceberg_manifest_key(self._ids.uuid())
        output = _Output(f"{self._root}/{key}")
        with write_manifest(2, UNPARTITIONED_PARTITION_SPEC, schema, output, snapshot.snapshot_id, "deflate") as writer:
            adding = {
                ManifestEntryStatus.ADDED: writer.add,
                ManifestEntryStatus.EXISTING: writer.existing,
                ManifestEntryStatus.DELETED: writer.delete,
            }
            for status, entry in entries:
                adding[status](entry)
        create_derived(self._store, key, output.data, advice="publish again")
        made = writer.to_manifest_file()
        made.sequence_number = snapshot.sequence_number or 0
        if made.min_sequence_number < 0:  # none of its entries says another
            made.min_sequence_number = made.sequence_number
        return made

    def _entries(self, manifest: ManifestFile) -> list[ManifestEntry]:
        return manifest.fetch_manifest_entry(self._io)

    def _key(self, entry: ManifestEntry) -> str:
        return key_of(entry.data_file.file_path, self._root)


def _added(file: DataFile) -> ManifestEntry:
    return ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, sequence_number=None, data_file=file)


def _live(manifest: ManifestFile) -> int:
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


def _chunks(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    rest = iter(entries)
    while chunk := [*islice(rest, MOST_FILES)]:
        yield chunk


class _Kept(io.BytesIO):
    """Bytes that outlive their stream."""

    def close(self) -> None:
        pass


class _Output(OutputFile):
    """A file in memory, for pyiceberg to write."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._stream = _Kept()

    @property
    def data(self) -> bytes:
        return self._stream.getvalue()

    def __len__(self) -> int:
        return len(self.data)

    def exists(self) -> bool:
        return False

    def to_input_file(self) -> InputFile:
        return _Input(self.location, self.data)

    def create(self, overwrite: bool = False) -> OutputStream:  # noqa: ARG002, FBT001, FBT002  # as pyiceberg has it
        return self._stream


class _Input(InputFile):
    """The bytes of an object, for pyiceberg to read."""

    def __init__(self, location: str, data: bytes) -> None:
        super().__init__(location)
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def exists(self) -> bool:
        return True

    def open(self, seekable: bool = True) -> InputStream:  # noqa: ARG002, FBT001, FBT002  # as pyiceberg has it
        return io.BytesIO(self._data)


class _StoreIO(FileIO):
    """The objects of a table's store by their locations, for pyiceberg to read."""

    def __init__(self, store: ObjectStore, root: str) -> None:
        super().__init__()
        self._store, self._root = store, root

    def new_input(self, location: str) -> InputFile:
        """Return an object. One GET. Raises `Corrupt` where the mirror has lost it."""
        key = key_of(location, self._root)
        try:
            return _Input(location, self._store.get(key).data)
        except NotFound as error:
            raise Corrupt(f"{key}: missing, but the Iceberg mirror names it", advice=ADVICE, key=key) from error

    def new_output(self, location: str) -> OutputFile:
        return _Output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        raise Unsupported(f"{location}: only the collector deletes")
