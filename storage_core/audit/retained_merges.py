"""The merges that retained compactions consist of (docs/architecture/compaction.md).

Which splits of a commit belong to one merge, the outputs say themselves (`Lineage`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from storage_core.audit.retained import Compaction, RetainedCompactions, Selection
from storage_core.compaction.scope import Scope, scope_of
from storage_core.log.actions import Add, Metadata, to_json_object
from storage_core.log.encoding.action_json import read_action, read_actions, write_actions
from storage_core.objectstore.contract import ObjectStore
from storage_core.split.lineage import read_origin
from storage_core.split.read import UNREADABLE, open_split


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
    retained: RetainedCompactions, said: Mapping[str, Replaced | str], which: Selection
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
