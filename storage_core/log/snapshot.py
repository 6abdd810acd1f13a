"""A snapshot: the complete state of a table at one version (docs/architecture/transaction-log.md).

Snapshots are immutable values. A reader requests the newest snapshot once and uses only this snapshot. A commit is
planned on one snapshot and checked against a newer snapshot. `SnapshotBuilder` replays versions, in time linear in the
number of their actions.

The module also has the setting that marks the table of an unfinished import (docs/spec.md, section 2.4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from storage_core.base.errors import Corrupt, InvalidInput, Unsupported
from storage_core.base.text import quoted
from storage_core.data.formats.keys import version_key
from storage_core.data.rows.schema import from_schema_string
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import (
    FEATURES,
    READER_VERSION,
    Action,
    Add,
    CommitInfo,
    IndexSegment,
    MergeSkip,
    Metadata,
    Protocol,
    Remove,
    Translation,
)
from storage_core.log.codec import commit_info, time_of_unnamed_commit
from storage_core.log.listing import Checkpointed
from storage_core.log.live_splits import FilesBuilder, LiveFiles
from storage_core.log.transactions import Progress, Transactions


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The complete content of the log at `version`.

    Two snapshots of one version are equal, regardless of how they were loaded. The class has no slots, because `schema`
    and `config` are parsed once per snapshot and cached.

    Attributes:
        timestamp: The commit time in ms.
        splits: The live splits by path, unordered, stored in columns. See `LiveFiles`.
        txns: The highest recorded version for each appId, also stored in columns.
        fences: The highest token for each resource.
        merged_generations: The last merged generation of each region.
        segments: Index segments by path.
        mergeskips: Splits that an operation skips, by path.
        translations: Translations by path.
        checkpoint: The checkpoint that the snapshot was loaded from or that was written for it. None without a
            checkpoint. The equality of snapshots does not depend on this field.
    """

    version: int
    timestamp: int
    protocol: Protocol
    metadata: Metadata
    splits: LiveFiles
    txns: Transactions = field(default_factory=Transactions)
    fences: Mapping[str, int] = field(default_factory=dict)
    merged_generations: Mapping[str, int] = field(default_factory=dict)
    segments: Mapping[str, IndexSegment] = field(default_factory=dict)
    mergeskips: Mapping[str, MergeSkip] = field(default_factory=dict)
    translations: Mapping[str, Translation] = field(default_factory=dict)
    checkpoint: Checkpointed | None = field(default=None, compare=False)

    @property
    def checkpoint_version(self) -> int | None:
        """The version of the snapshot's checkpoint, or None if there is no checkpoint."""
        return None if self.checkpoint is None else self.checkpoint.version

    @property
    def progress(self) -> Progress:
        """A copy of the snapshot's content except settings and splits. A builder can apply actions to the copy."""
        return Progress(
            self.txns.copy(),
            dict(self.fences),
            dict(self.merged_generations),
            dict(self.segments),
            dict(self.mergeskips),
            dict(self.translations),
        )

    @cached_property
    def schema(self) -> pa.Schema:
        """The table's schema."""
        return from_schema_string(self.metadata.schemaString)

    @cached_property
    def config(self) -> TableConfig:
        """The table's settings."""
        return TableConfig.from_configuration(self.metadata.configuration)

    @property
    def table_id(self) -> str:
        """The UUID of the table. The UUID is set when the table is created."""
        return self.metadata.id

    @cached_property
    def rows(self) -> int:
        """The number of visible rows in the live splits. A split without a row count adds nothing.

        Only splits of other software can lack a row count.
        """
        return self.splits.total("numRecords") - self.splits.deleted_rows()

    @cached_property
    def has_all_counts(self) -> bool:
        """Whether `rows` is exact, that is, whether every live split has a row count."""
        return all(table.column("numRecords").null_count == 0 for table in self.splits.tables())

    @cached_property
    def bytes(self) -> int:
        """The total size of the live splits, in bytes."""
        return self.splits.total("size")

    @staticmethod
    def apply(snapshot: Snapshot | None, version: int, actions: Sequence[Action]) -> Snapshot:
        """Return the snapshot that results if these actions are applied as `version`.

        A `snapshot` of None is the table before version 0.
        Raises `Corrupt` if `version` is not the next version, or if the first version has no protocol or metadata.
        """
        builder = SnapshotBuilder(snapshot)
        builder.apply(version, actions)
        return builder.build()


class SnapshotBuilder:
    """A builder that replays versions in order. `build` moves the state to a `Snapshot` and ends the builder."""

    def __init__(self, base: Snapshot | None = None) -> None:
        """Start after `base`. The builder does not change `base`. A `base` of None is the table before version 0."""
        self.version = base.version if base else -1
        self._timestamp = base.timestamp if base else 0
        self._protocol = base.protocol if base else None
        self._metadata = base.metadata if base else None
        self._splits = FilesBuilder(base.splits if base else None)
        self._progress = base.progress if base else Progress()
        self._checkpoint = base.checkpoint if base else None

    @staticmethod
    def at_checkpoint(checkpoint: Checkpointed) -> SnapshotBuilder:
        """Return a builder for the content of a checkpoint.

        It expects the complete content of the table at that version.
        """
        builder = SnapshotBuilder()
        builder.version = checkpoint.version - 1
        builder._checkpoint = checkpoint  # A method of the class may set this private attribute.
        return builder

    def apply(self, version: int, actions: Sequence[Action]) -> None:
        """Apply one version.

        Raises:
            Corrupt: The version is not the next one, or its commit time is not later than the previous one. Commit
                times always increase, so an earlier time means that two version files were swapped.
            Unsupported: The version needs features that this release does not support.
        """
        if version != self.version + 1:
            raise Corrupt(f"version {version} does not follow version {self.version}. A version file is missing")
        timestamp = commit_timestamp(actions, self._timestamp)
        if timestamp <= self._timestamp and commit_info(actions) is not None:
            key = version_key(version)
            raise Corrupt(
                f"{key}: expected a commit after {self._timestamp} ms, found a commit of {timestamp} ms. The file "
                "belongs to another version",
                key=key,
            )
        self._timestamp = timestamp
        for action in actions:
            self._apply_action(version, action)
        self.version = version

    def build(self) -> Snapshot:
        """Return the current state. Raises `Corrupt` if no version had a protocol or metadata."""
        if self._protocol is None or self._metadata is None:
            missing = "protocol" if self._protocol is None else "metaData"
            raise Corrupt(f"the log up to version {self.version} has no {missing!r} action")
        return Snapshot(
            version=self.version,
            timestamp=self._timestamp,
            protocol=self._protocol,
            metadata=self._metadata,
            splits=self._splits.build(),
            txns=self._progress.txns,
            fences=self._progress.fences,
            merged_generations=self._progress.merged_generations,
            segments=self._progress.segments,
            mergeskips=self._progress.mergeskips,
            translations=self._progress.translations,
            checkpoint=self._checkpoint,
        )

    def _apply_action(self, version: int, action: Action) -> None:
        match action:
            case CommitInfo():
                pass
            case Protocol():
                require_readable(action)
                self._protocol = action
            case Metadata():
                self._metadata = action
            case Add():
                self._splits.add(action, version, self._timestamp)
            case Remove():
                self._splits.remove(action.path)
                self._progress.apply(action)
            case _:
                self._progress.apply(action)


def commit_timestamp(actions: Sequence[Action], previous: int) -> int:
    """Return the commit time of a version in ms.

    The result is the recorded time. In a log of other software, the result is the newest time in the version's actions.
    """
    info = commit_info(actions)
    return time_of_unnamed_commit(actions, previous) if info is None else info.timestamp


def require_readable(protocol: Protocol) -> None:
    """Raise `Unsupported` if this release cannot read the table. The error contains the version or feature."""
    if protocol.minReaderVersion > READER_VERSION:
        raise Unsupported(
            f"the table needs reader version {protocol.minReaderVersion}, this release has {READER_VERSION}. "
            "Upgrade Tidemark"
        )
    unknown = sorted(set(protocol.readerFeatures or ()) - FEATURES)
    if unknown:
        raise Unsupported(
            f"the table needs the reader features {', '.join(unknown)}. Upgrade Tidemark", features=unknown
        )


UNFINISHED_IMPORT = "tidemark.unfinishedImport"
"""The setting for unfinished imports. Version 0 has this setting, and the last commit of the import removes it.

The value of this setting identifies the source from which the unfinished import reads.
"""


def require_imported(uri: str, head: Snapshot) -> None:
    """Raise `InvalidInput` if the import that created the table has not ended in the newest version."""
    source = head.metadata.configuration.get(UNFINISHED_IMPORT)
    if source is not None:
        raise InvalidInput(
            f"{uri}: the table is an unfinished import of {quoted(source)}. Run the import again. If the import was "
            "refused, delete the folder of the table, correct the source, and import again.",
            uri=uri,
        )
