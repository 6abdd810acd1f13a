"""The compactions that the log still has, newest first, with what was right before each.

A commit says which splits went and came; which merges it consists of is found by `retained_merges`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from storage_core.compaction.work import OPERATION
from storage_core.errors import Corrupt, InvalidInput, NotFound
from storage_core.log.actions import Action, Add, CommitInfo, Metadata, Remove
from storage_core.log.advance import read_version
from storage_core.log.encoding.codec import commit_info
from storage_core.log.files.columns import adds_of
from storage_core.log.files.live import LiveFiles
from storage_core.log.replay import open_version
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.prefetch import prefetch

PARALLEL_READS = 4
"""Versions on their way at a time, each with all of its actions in memory."""


def everything(_window: int | None) -> bool:
    """Hold every window."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is looked at: all live splits and retained compactions, unless a field says less.

    `holds` chooses windows by their start. `since`: only what came after this version. `commits`: only so many of the
    newest compactions, and the live splits that they wrote; `last_run`: only those of the job run that compacted last.
    """

    holds: Callable[[int | None], bool] = everything
    since: int | None = None
    commits: int | None = None
    last_run: bool = False

    def __post_init__(self) -> None:
        """Refuse limits that nothing can meet, and two that contradict each other."""
        if self.commits is not None and self.commits < 1:
            raise InvalidInput(f"{self.commits} compactions are none; name at least one")
        if sum(each is not None for each in (self.since, self.commits, self.last_run or None)) > 1:
            raise InvalidInput("give one of a version to begin after, a number of compactions, and the last run")

    @property
    def only_compacted(self) -> bool:
        """Whether only splits that the chosen compactions wrote are looked at."""
        return self.commits is not None or self.last_run


@dataclass(slots=True)
class Compaction:
    """One commit that compacted: the paths that left, the splits that came, and what they were right before it.

    `inputs` lacks a path, and `metadata` is None, where the log does not go back far enough to say.
    """

    version: int
    removed: tuple[str, ...]
    outputs: tuple[Add, ...]
    inputs: dict[str, Add] = field(default_factory=dict)
    metadata: Metadata | None = None


@dataclass(frozen=True, slots=True)
class RetainedCompactions:
    """The compactions of a walk down the log from `live`, newest first, and what it passed.

    `events` are the versions that added or removed a path, newest first, True for those that added it. `base` are the
    splits that were live right before the oldest compaction, None where the log does not go back so far.
    """

    compactions: Sequence[Compaction]
    events: Mapping[str, Sequence[tuple[int, bool]]]
    live: LiveFiles
    base: LiveFiles | None

    def outlived(self, path: str, compaction: Compaction) -> bool:
        """Whether a split that is not among those the compaction removed was still live after it.

        The last version up to the compaction decides: a split may leave, come back by a restore, and leave again.
        """
        events = self.events.get(path, ())
        before = next((added for version, added in events if version <= compaction.version), None)
        if before is not None:
            return before
        if self.base is not None:
            return path in self.base
        return path in self.live or any(not added for _, added in events)


def compactions(store: ObjectStore, snapshot: Snapshot, which: Selection) -> RetainedCompactions:
    """Return the retained compactions up to the snapshot. One GET per version, and one older snapshot.

    `PARALLEL_READS` versions are read at a time, and so up to that many less one in vain where the log ends; one after
    the other where a number of compactions ends the walk. In memory are the actions of the compactions, and those of
    the versions being read. Raises `Corrupt` for a damaged version file.
    """
    walk = _Walk(which)
    versions = range(snapshot.version, -1 if which.since is None else which.since, -1)
    at_once = 1 if which.only_compacted else PARALLEL_READS
    with closing(prefetch(partial(read_version, store), versions, at_once)) as read:
        for version, actions in zip(versions, read, strict=False):
            if actions is None or not walk.goes_on(version, actions):
                break
    walk.settle(store)
    return RetainedCompactions(walk.found, walk.events, snapshot.splits, walk.base)


class _Walk:
    """A walk down the log that remembers what it still has to find out about the compactions it passed."""

    def __init__(self, which: Selection) -> None:
        self.found: list[Compaction] = []
        self.events: dict[str, list[tuple[int, bool]]] = {}
        self.base: LiveFiles | None = None
        self._which = which
        self._run: str | None = None
        self._wanting: dict[str, Compaction] = {}
        self._unsettled: list[Compaction] = []

    def goes_on(self, version: int, actions: Sequence[Action]) -> bool:
        """Take one version, older than all before it; False when no older one is wanted."""
        info = commit_info(actions)
        compaction = _compaction(version, actions) if info is not None and info.operation == OPERATION else None
        if info is not None and compaction is not None and self._is_another_run(info):
            return False
        self._explain(version, actions)
        if compaction is not None:
            self.found.append(compaction)
            self._unsettled.append(compaction)
            self._wanting |= dict.fromkeys(compaction.removed, compaction)
        return self._which.commits is None or len(self.found) < self._which.commits

    def settle(self, store: ObjectStore) -> None:
        """Look up in the snapshot before the oldest compaction what no version that was read explains."""
        if not self.found:
            return
        try:
            before = open_version(store, self.found[-1].version - 1)
        except (NotFound, Corrupt):
            return
        for compaction in self._unsettled:
            compaction.metadata = before.metadata
        self.base = before.splits
        files = before.splits.table()
        wanted = pa.array(list(self._wanting), pa.string())
        for add in adds_of(files.filter(pc.is_in(files.column("path"), value_set=wanted))):
            self._wanting[add.path].inputs[add.path] = add

    def _is_another_run(self, info: CommitInfo) -> bool:
        if not self._which.last_run:
            return False
        if not self.found:
            self._run = info.jobRunId
            return False
        return self._run is None or info.jobRunId != self._run

    def _explain(self, version: int, actions: Sequence[Action]) -> None:
        changed = {action.path: False for action in actions if isinstance(action, Remove)}
        changed |= {action.path: True for action in actions if isinstance(action, Add)}
        for path, added in changed.items():
            self.events.setdefault(path, []).append((version, added))
        for action in actions:
            match action:
                case Add():
                    compaction = self._wanting.pop(action.path, None)
                    if compaction is not None:
                        compaction.inputs[action.path] = action
                case Metadata():
                    for each in self._unsettled:
                        each.metadata = action
                    self._unsettled.clear()
                case _:
                    pass


def _compaction(version: int, actions: Sequence[Action]) -> Compaction | None:
    removed = tuple(action.path for action in actions if isinstance(action, Remove))
    outputs = tuple(action for action in actions if isinstance(action, Add))
    return Compaction(version, removed, outputs) if removed or outputs else None
