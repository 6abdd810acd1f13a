"""A snapshot: the complete state of a table at one version (docs/architecture/transaction-log.md).

Snapshots are values. A reader takes one and never asks for "latest" twice; a commit is planned against one and checked
against a newer one. `SnapshotBuilder` replays versions in time linear in their actions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from storage_core.errors import Corrupt, Unsupported
from storage_core.formats.keys import version_key
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
from storage_core.log.checkpoints.checkpointed import Checkpointed
from storage_core.log.encoding.codec import commit_info
from storage_core.log.files.live import FilesBuilder, LiveFiles
from storage_core.log.interop.version_files import time_of_unnamed_commit
from storage_core.log.progress import Progress
from storage_core.log.transactions import Transactions
from storage_core.rows.schema import from_schema_string
from storage_core.settings.table import TableConfig


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Everything the log says at `version`. Two snapshots of one version are equal, however they were loaded.

    `timestamp` is the commit time in ms. `splits` are the live splits by path, in no order, kept in columns: see
    `LiveFiles`. `txns` maps appId to the highest recorded version, kept in columns as well, `fences`
    a resource to its highest token, `merged_generations` a region to its last merged generation, `segments`,
    `mergeskips` and `translations` paths to their action.
    `checkpoint` is the one that loading started from or that was written since, None without one; it is no part of
    equality. Not slotted: `schema` and `config` are parsed once per snapshot.
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
        """The version of the checkpoint behind the snapshot, None without one."""
        return None if self.checkpoint is None else self.checkpoint.version

    @property
    def progress(self) -> Progress:
        """A copy of what the snapshot holds besides settings and splits, to go on from."""
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
        """The UUID that the table was created with."""
        return self.metadata.id

    @cached_property
    def rows(self) -> int:
        """Visible rows of the live splits; splits written by others without a count add nothing."""
        return self.splits.total("numRecords") - self.splits.deleted_rows()

    @cached_property
    def has_all_counts(self) -> bool:
        """Whether `rows` is exact: every live split has a count."""
        return all(table.column("numRecords").null_count == 0 for table in self.splits.tables())

    @cached_property
    def bytes(self) -> int:
        """Bytes of the live splits."""
        return self.splits.total("size")

    @staticmethod
    def apply(snapshot: Snapshot | None, version: int, actions: Sequence[Action]) -> Snapshot:
        """Return the snapshot after `actions` as `version`; None stands for the table before version 0.

        Raises `Corrupt` when `version` does not follow, or when the first version carries no protocol or metadata.
        """
        builder = SnapshotBuilder(snapshot)
        builder.apply(version, actions)
        return builder.build()


class SnapshotBuilder:
    """Replays versions one after the other; `build` hands what it has over to a `Snapshot` and ends the builder."""

    def __init__(self, base: Snapshot | None = None) -> None:
        """Start after `base`, which stays as it is; None is the table before version 0."""
        self.version = base.version if base else -1
        self._timestamp = base.timestamp if base else 0
        self._protocol = base.protocol if base else None
        self._metadata = base.metadata if base else None
        self._splits = FilesBuilder(base.splits if base else None)
        self._progress = base.progress if base else Progress()
        self._checkpoint = base.checkpoint if base else None

    @staticmethod
    def at_checkpoint(checkpoint: Checkpointed) -> SnapshotBuilder:
        """Return a builder whose next version is that of the checkpoint: all that the table then holds."""
        builder = SnapshotBuilder()
        builder.version = checkpoint.version - 1
        builder._checkpoint = checkpoint  # its own class
        return builder

    def apply(self, version: int, actions: Sequence[Action]) -> None:
        """Apply one version. Raises `Corrupt` unless it is the next one, `Unsupported` for features we do not know.

        Commit times only grow, so one that does not is `Corrupt` as well: two version files changed places.
        """
        if version != self.version + 1:
            raise Corrupt(f"version {version} does not follow version {self.version}; a version file is missing")
        timestamp = commit_timestamp(actions, self._timestamp)
        if timestamp <= self._timestamp and commit_info(actions) is not None:
            key = version_key(version)
            raise Corrupt(
                f"{key}: expected a commit after {self._timestamp} ms, found one of {timestamp} ms: it is the file of "
                f"another version",
                key=key,
            )
        self._timestamp = timestamp
        for action in actions:
            self._apply_action(version, action)
        self.version = version

    def build(self) -> Snapshot:
        """Return the state reached. Raises `Corrupt` when no protocol or metadata has been seen."""
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
    """Return the time (ms) of a version: as recorded, else, for logs of others, the newest time its actions name."""
    info = commit_info(actions)
    return time_of_unnamed_commit(actions, previous) if info is None else info.timestamp


def require_readable(protocol: Protocol) -> None:
    """Raise `Unsupported` naming the version or feature that this release cannot read."""
    if protocol.minReaderVersion > READER_VERSION:
        raise Unsupported(
            f"the table needs reader version {protocol.minReaderVersion}, this release has {READER_VERSION}; upgrade"
        )
    unknown = sorted(set(protocol.readerFeatures or ()) - FEATURES)
    if unknown:
        raise Unsupported(f"the table needs the reader features {', '.join(unknown)}; upgrade", features=unknown)
