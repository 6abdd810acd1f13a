"""A log with holes, read as far as it goes: what it names, what is live after it, and how far merges had come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from storage_core.fsck.kept_log import Kept
from storage_core.log.actions import (
    Action,
    Add,
    IndexSegment,
    MergedGenerations,
    Metadata,
    Remove,
    Translation,
)
from storage_core.log.progress import Progress
from storage_core.log.transactions import Transactions
from storage_core.repair.lineage_replay import Evidence
from storage_core.split.lineage import MergedRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """What one compaction commit put in the place of what, within one window: the same rows on both sides."""

    outputs: frozenset[str]
    inputs: tuple[Add, ...]


class KnownLog:
    """The kept part of the log, and every readable action behind it, whatever is missing in between.

    `live`, `deleted` and `named` are splits: live after all of it, removed, and named by any of it. Transactions and
    fences in `progress` are those of the later versions only. `read_versions` are those that were read.
    """

    def __init__(self, kept: Kept | None) -> None:
        base = None if kept is None else kept.snapshot
        self.metadata = None if base is None else base.metadata
        self.live: dict[str, Add] = dict(base.splits) if base else {}
        self.named: dict[str, Add] = self.live | (dict(kept.oldest.splits) if kept else {})
        self.deleted: set[str] = set()
        self._added_at = {path: base.splits.added_at(path)[0] for path in self.live} if base else {}
        self.progress = replace(base.progress, txns=Transactions(), fences={}) if base else Progress()
        self.named_segments = self.progress.segments | (dict(kept.oldest.segments) if kept else {})
        self.named_translations = self.progress.translations | (dict(kept.oldest.translations) if kept else {})
        self.replacements: list[Replacement] = []
        self.read_versions: set[int] = set()
        self._ranges = [MergedRange(region=region, after=0, generation=last) for region, last in self.merged.items()]
        # Version 0 makes the table and merges nothing, so that it is missing makes nothing uncertain.
        self._read_up_to = 0 if base is None else base.version
        self._certain = True
        self._merged_at: dict[str, dict[str, int]] = {}

    def read(self, version: int | None, actions: list[Action], *, later: bool) -> None:
        """Take a version; of one that is not `later` than the kept head only what it names. None is of no known one."""
        before = len(self.replacements)
        self._read_replacements(actions)
        if version is not None:
            self.read_versions.add(version)
        if later:
            self._certain = self._certain and version == self._read_up_to + 1
            self._read_up_to = self._read_up_to if version is None else version
        for action in actions:
            match action:
                case Add():
                    self.named.setdefault(action.path, action)
                    if later:
                        self.live[action.path] = action
                        self.deleted.discard(action.path)
                        self._added_at[action.path] = self._read_up_to
                case Remove():
                    if later and self.live.pop(action.path, None) is None:
                        self._take_back(action.path, self.replacements[:before])
                    if action.path not in self.live:
                        self.deleted.add(action.path)
                case _:
                    self._read_progress(action, later=later)
        if later:
            self._merged_at |= {each.path: dict(self.merged) for each in actions if isinstance(each, Add)}

    def _take_back(self, path: str, replacements: list[Replacement]) -> None:
        """Who removes a split that a compaction had replaced saw it live: a lost restore has undone the compaction."""
        for each in replacements:
            if any(add.path == path for add in each.inputs):
                for output in each.outputs - self.deleted:
                    self.deleted.add(output)
                    if self.live.pop(output, None) is None:
                        self._take_back(output, replacements)

    def has_read(self, first: int, last: int) -> bool:
        """Tell whether every version from `first` to `last` was read, so that nothing unread can be between them."""
        return all(version in self.read_versions for version in range(first, last + 1))

    def _read_replacements(self, actions: list[Action]) -> None:
        added: dict[str, list[Add]] = {}
        removed: dict[str, list[str]] = {}
        for action in actions:
            if isinstance(action, Add) and not action.dataChange:
                added.setdefault(_folder(action.path), []).append(action)
            elif isinstance(action, Remove):
                removed.setdefault(_folder(action.path), []).append(action.path)
        for folder, adds in added.items():
            known = self.named | self.live  # those that are live say which of their rows are
            inputs = [known[path] for path in removed.get(folder, ()) if path in known]
            whole = len(inputs) == len(removed.get(folder, ()))
            if whole and inputs and _rows(adds) == _rows(inputs):
                outputs = frozenset(each.path for each in adds)
                self.replacements.append(Replacement(outputs=outputs, inputs=tuple(inputs)))

    def _read_progress(self, action: Action, *, later: bool) -> None:
        match action:
            case IndexSegment() if not later:
                self.named_segments.setdefault(action.path, action)
            case Translation() if not later:
                self.named_translations.setdefault(action.path, action)
            case _ if not later:
                pass
            case Metadata():
                self.metadata = action
            case MergedGenerations():
                self._read_merge(action)
            case _:
                self.progress.apply(action)

    def _read_merge(self, action: MergedGenerations) -> None:
        """Behind a gap in the versions only the last generation of the range is certain to be of this commit."""
        before = self.merged.get(action.region, 0) if self._certain else action.generation - 1
        self._ranges.append(MergedRange(region=action.region, after=before, generation=action.generation))
        newest = max(action.generation, self.merged.get(action.region, 0))
        self.progress.apply(replace(action, generation=newest))
        self._certain = True

    def added_at(self, path: str) -> int:
        """Return the version that added a live split, as far as the versions that were read say."""
        return self._added_at.get(path, self._read_up_to)

    def merged_at(self, path: str) -> Mapping[str, int] | None:
        """Return the merge progress with which a version behind the kept ones added a split, None for others.

        Versions that are missing before it may have merged more.
        """
        return self._merged_at.get(path)

    @property
    def merged(self) -> dict[str, int]:
        """The last merged generation of each region."""
        return self.progress.merged_generations

    @property
    def older(self) -> dict[str, Add]:
        """Splits that are named and not live."""
        return {path: add for path, add in self.named.items() if path not in self.live}

    def evidence(self, collected: Iterable[str], generations: Mapping[str, frozenset[int]]) -> Evidence:
        """Return what the found splits are judged by; `collected` are splits that the collector saw removed."""
        live = frozenset(self.live)
        deleted = frozenset({*self.deleted, *collected} - live)
        return Evidence(
            live=live,
            deleted=deleted,
            merged=self.merged,
            ranges=tuple(self._ranges),
            generations=generations,
            added_at={path: version for path, version in self._added_at.items() if path in live},
        )


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _rows(adds: Iterable[Add]) -> int:
    return sum(add.visible_rows for add in adds)
