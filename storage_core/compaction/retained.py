"""The compactions that the log still has, newest first, and the merges that each of them consists of (design page 04).

A commit says which splits went and came; which of them belong to one merge, the outputs say themselves (`Lineage`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from storage_core.compaction.scope import Scope, scope_of
from storage_core.compaction.work import OPERATION
from storage_core.errors import Corrupt, InvalidInput, NotFound
from storage_core.log.action_json import read_action, read_actions, write_actions
from storage_core.log.actions import Action, Add, CommitInfo, Metadata, Remove, to_json_object
from storage_core.log.codec import commit_info
from storage_core.log.file_columns import adds_of
from storage_core.log.files import LiveFiles
from storage_core.log.replay import open_version, read_version
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.split.lineage import read_origin
from storage_core.split.read import UNREADABLE, open_split


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedMerge:
    """What version `version` made of `inputs`, as they were live right before it, in a table of this metadata.

    `still_live` are splits that the outputs say they replace and that the version did not remove. Travels as JSON.
    """

    version: int
    metadata: Metadata
    inputs: tuple[Add, ...]
    outputs: tuple[Add, ...]
    still_live: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The split that stands for the merge in a report: the first output, else the first input."""
        return (*self.outputs, *self.inputs)[0].path

    def to_object(self) -> dict[str, Any]:
        """Return the JSON object from which `from_object` makes an equal record."""
        return {
            "version": self.version,
            "metadata": to_json_object(self.metadata),
            "inputs": write_actions(self.inputs),
            "outputs": write_actions(self.outputs),
            "stillLive": list(self.still_live),
        }

    @staticmethod
    def from_object(body: dict[str, Any]) -> RetainedMerge:
        """Return the record that `to_object` wrote."""
        where = "audit of a merge"
        return RetainedMerge(
            version=body["version"],
            metadata=read_action(body["metadata"], Metadata, where),
            inputs=read_actions(body["inputs"], Add, where),
            outputs=read_actions(body["outputs"], Add, where),
            still_live=tuple(body["stillLive"]),
        )


@dataclass(frozen=True, slots=True)
class Unchecked:
    """What could not be judged, by the version that committed it and the split, and why."""

    version: int
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Replaced:
    """What an output says of its merge: the id that it shares with the other outputs, and the splits it replaces."""

    operation_id: str | None
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Retained:
    """The compactions of a walk down the log from `live`, newest first, and when paths that it passed last left."""

    compactions: Sequence[Compaction]
    removed_at: Mapping[str, int]
    live: LiveFiles

    def outlived(self, path: str, compaction: Compaction) -> bool:
        """Whether a split that is not among those the compaction removed was still live after it."""
        removed_at = self.removed_at.get(path)
        return path in self.live if removed_at is None else removed_at > compaction.version


def compactions(store: ObjectStore, snapshot: Snapshot, which: Selection) -> Retained:
    """Return the retained compactions up to the snapshot. One GET per version, and one older snapshot.

    In memory are their actions. Raises `Corrupt` for a damaged version file.
    """
    walk = _Walk(which)
    for version in range(snapshot.version, -1 if which.since is None else which.since, -1):
        actions = read_version(store, version)
        if actions is None or not walk.goes_on(version, actions):
            break
    walk.settle(store)
    return Retained(walk.found, walk.removed_at, snapshot.splits)


class _Walk:
    """A walk down the log that remembers what it still has to find out about the compactions it passed."""

    def __init__(self, which: Selection) -> None:
        self.found: list[Compaction] = []
        self.removed_at: dict[str, int] = {}
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
        for action in actions:
            match action:
                case Add():
                    compaction = self._wanting.pop(action.path, None)
                    if compaction is not None:
                        compaction.inputs[action.path] = action
                case Remove():
                    self.removed_at.setdefault(action.path, version)
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


def replaced_by(store: ObjectStore, output: Add) -> Replaced | str:
    """Return what an output says that it replaces, or why it cannot be asked. Ranged GETs of its footer."""
    try:
        split = open_split(store, output.as_written, whole=False)
        origin = read_origin(split.metadata, output.path)
    except UNREADABLE as error:
        return str(error)
    lineage = None if origin is None else origin.lineage
    return Replaced(None, ()) if lineage is None else Replaced(lineage.operation_id, tuple(lineage.replaces))


def merges_of(
    retained: Retained, said: Mapping[str, Replaced | str], which: Selection
) -> Iterator[RetainedMerge | Unchecked]:
    """Yield the merges of all compactions that are in the chosen windows, given what outputs say of themselves."""
    for compaction in retained.compactions:
        for part in _merges_of(compaction, said, which):
            if isinstance(part, RetainedMerge):
                # What a merge ended before, rows and all, outputs name and no version removes again (decision 0077).
                kept = tuple(path for path in part.still_live if retained.outlived(path, compaction))
                yield replace(part, still_live=kept)
            else:
                yield part


def _merges_of(
    compaction: Compaction, said: Mapping[str, Replaced | str], which: Selection
) -> Iterator[RetainedMerge | Unchecked]:
    """What no output names were merges of their own, without a row left, unless an output could not be asked.

    One for each scope and window: two of these in one of them cannot be told apart, and have the same faults together.
    """
    groups: dict[str | None, list[Add]] = {}
    replaces: dict[str | None, set[str]] = {}
    lost = []
    for output in compaction.outputs:
        answer = said[output.path]
        if isinstance(answer, str):
            lost.append(Unchecked(compaction.version, output.path, answer))
            continue
        groups.setdefault(answer.operation_id, []).append(output)
        replaces.setdefault(answer.operation_id, set()).update(answer.paths)
    rest = set(compaction.removed).difference(*replaces.values())
    if None in groups and not lost:
        # Of a release that wrote no lineage: all of the commit is one merge, as far as anybody can tell.
        replaces[None] |= rest
        rest = set()
    yield from (each for each in lost if which.holds(_window_of(compaction, each.path)))
    for operation, outputs in groups.items():
        yield from _merge(compaction, outputs, replaces[operation], which)
    for emptied in [] if lost else _by_scope_and_window(compaction, rest):
        yield from _merge(compaction, [], emptied, which)


def _by_scope_and_window(compaction: Compaction, paths: set[str]) -> Iterable[set[str]]:
    """The removed paths as merges left them; those that the log no longer explains are together."""
    found: dict[tuple[Scope | None, int | None] | None, set[str]] = {}
    for path in compaction.removed:
        if path in paths:
            add = compaction.inputs.get(path)
            # Within one table, which is why its id may be any.
            key = None if add is None else (scope_of("", add), add.windowStart)
            found.setdefault(key, set()).add(path)
    return found.values()


def _merge(
    compaction: Compaction, outputs: Sequence[Add], replaced: set[str], which: Selection
) -> Iterator[RetainedMerge | Unchecked]:
    named = [path for path in compaction.removed if path in replaced]
    inputs = [compaction.inputs[path] for path in named if path in compaction.inputs]
    if not any(which.holds(add.windowStart) for add in [*inputs, *outputs]):
        return
    if len(inputs) < len(named) or compaction.metadata is None:
        shown = outputs[0].path if outputs else named[0]
        reason = f"the log does not go back to before version {compaction.version}, so what it read is not known"
        yield Unchecked(compaction.version, shown, reason)
        return
    yield RetainedMerge(
        version=compaction.version,
        metadata=compaction.metadata,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        still_live=tuple(sorted(replaced.difference(named))),
    )


def _window_of(compaction: Compaction, path: str) -> int | None:
    return next(add.windowStart for add in compaction.outputs if add.path == path)
