"""Which versions of a Delta table one commit brings in, and the files whose rows that takes (decision 0158).

What some versions did together is a sum: the rows of the files that they added, less those of the files that they
removed, and the rows of their change feed with its signs. A file that came and went among them is no part of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from storage_core.delta_source.files import DeltaFile
from storage_core.delta_source.log import DeltaCommit, DeltaLog, DeltaTable, require_same_table
from storage_core.errors import InvalidInput, NotFound
from storage_core.ingest.delta_progress import DeltaGap, DeltaProgress
from storage_core.ingest.delta_versions import versions
from storage_core.ingest.landing import DeltaChanges

MOST_VERSIONS: Final = 100
MOST_BYTES: Final = 2**30
"""Of files that one commit brings in, unless it is those of one version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaGroup:
    """Versions `first` to `last`, which one commit brings in; of the snapshot, the whole table as of `last`.

    `before` is the table that they began with, where that is known. Of versions in `gaps` and of those `skipped` no
    row comes.
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
        """What reports and messages call it."""
        return f"version {self.last}" if self.first == self.last else f"versions {self.first} to {self.last}"

    @property
    def has_rows(self) -> bool:
        """Whether there is anything to read."""
        return self.is_snapshot or bool(self.added or self.removed or self.feed)

    @property
    def reached(self) -> DeltaProgress:
        """How far the table is when the rows are in, with the gaps that are new."""
        return DeltaProgress(table_id=self.table.id, next_version=self.last + 1, gaps=self.gaps)

    def lost(self, log: DeltaLog) -> frozenset[int]:
        """Return the versions of which a file that is needed is gone. One HEAD per file and vector."""
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
    """Return what comes next, None where nothing does; versions in `lost` are gaps. One GET per version.

    `known` is the table as far as it is reached, which else is opened. The first group is the table as it is.

    Raises `InvalidInput` for another table than the one that is `reached`, for one that was set back, and for a version
    that removes rows where they are refused; `NotFound` without a table.
    """
    newest = log.newest
    where = log.store.uri
    if newest is None and reached is None:
        raise NotFound(f"{where}: there is no Delta table: its _delta_log has no version")
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
    """The table as of a version; None where the log does not reach back to it."""
    try:
        return log.table_at(version)
    except NotFound:
        return None


def _commits(log: DeltaLog, table: DeltaTable, first: int, changes: DeltaChanges) -> list[DeltaCommit]:
    """The versions of the next group: of one schema, and not too many."""
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
        f"{log.store.uri}: version {commit.version} of the Delta table ({commit.operation}) changes or removes rows; "
        "an append table takes added rows only, unless its landing says more: `changes: apply` deletes the same rows, "
        "`changes: skip` leaves such versions out whole. Or make the table keyed. The versions before it are in",
        version=commit.version,
    )


def _set_back(log: DeltaLog, reached: DeltaProgress) -> InvalidInput:
    """The error of a table whose log has neither the version that is reached nor a later one."""
    newest = max(versions(log.store), default=None)
    if newest is not None:
        require_same_table(log.table_at(newest), reached.table_id, log.store.uri, reached.next_version)
    is_now = "no version any more" if newest is None else f"version {newest} as its newest"
    return InvalidInput(
        f"{log.store.uri}: versions of the Delta table below {reached.next_version} are in, and it has {is_now}: "
        "it was set back or deleted; bring its log back, or land it in a new table",
        expected=reached.next_version - 1,
        found=newest,
    )
