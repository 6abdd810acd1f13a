"""What a merge of a region has to do and what it did: the records that travel between driver and tasks as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from storage_core.formats.generation_manifest import Generation
from storage_core.formats.region_manifest import FlushedGeneration
from storage_core.index.coverage import Answering
from storage_core.log.actions import Add, IndexSegment, MergedGenerations, Translation, to_json_object
from storage_core.log.conflicts.requirements import MergeProgress, SameMerges
from storage_core.log.encoding.action_json import read_action, read_actions, write_actions
from storage_core.split.context import SplitContext
from storage_core.split.rewrite import Rewrite


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeWork:
    """One merge, planned: everything that a task needs without opening the table again. Travels as JSON.

    `generations` are consecutive, a sorted one by the range that it stands for, and start at `after` + 1. `base` are
    the live splits whose key bounds admit a touched key, with their deletion vectors; that they hold one is decided by
    reading their keys, or by a primary-key index: what of it answers for them is in `answering`, by path.
    `merged` is what the plan saw merged of all regions, where some are made by hand; of use to who commits, and no part
    of the JSON; nor is what the plan `opened` of the generations.
    """

    region: str
    after: int
    generations: tuple[FlushedGeneration, ...]
    primary_key: tuple[str, ...]
    base: tuple[Add, ...]
    context: SplitContext
    answering: Mapping[str, Answering] = field(default_factory=dict)
    merged: Mapping[str, int] | None = None
    opened: tuple[Generation, ...] = field(default=(), compare=False, repr=False)

    @property
    def records(self) -> int:
        """How many records it merges; 0 where it came as JSON."""
        return sum(each.records for each in self.opened)

    @property
    def size_bytes(self) -> int:
        """What they take in memory, as far as their generations say."""
        return sum(each.size_bytes or 0 for each in self.opened)

    @property
    def input_bytes(self) -> float:
        """What the merge reads at most, the records and the splits of the base; infinite where that is not known."""
        is_known = self.opened and all(each.size_bytes is not None for each in self.opened)
        return (self.size_bytes if is_known else math.inf) + sum(add.size for add in self.base)

    @property
    def requirements(self) -> tuple[MergeProgress | SameMerges, ...]:
        """What the commit has to demand: that the region's progress is still where this work starts."""
        own = MergeProgress(self.region, self.after)
        return (own,) if self.merged is None else (own, SameMerges(self.merged))

    def to_json(self) -> str:
        """Return the text from which `from_json` makes equal work."""
        body = {
            "region": self.region,
            "after": self.after,
            "generations": [[each.generation, each.path, each.sorted_from] for each in self.generations],
            "primaryKey": list(self.primary_key),
            "base": write_actions(self.base),
            "context": self.context.to_json(),
            **self._index(),
        }
        return json.dumps(body, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> MergeWork:
        """Return the work that `to_json` wrote."""
        body: Mapping[str, Any] = json.loads(text)
        return MergeWork(
            region=body["region"],
            after=body["after"],
            generations=tuple(
                FlushedGeneration(generation=number, path=path, sorted_from=sorted_from)
                for number, path, sorted_from in body["generations"]
            ),
            primary_key=tuple(body["primaryKey"]),
            base=read_actions(body["base"], Add, "merge work"),
            context=SplitContext.from_json(body["context"]),
            answering=_answering(body),
        )

    def _index(self) -> Mapping[str, Any]:
        """What answers for the splits, each segment and translation once, however many splits it answers for."""
        found = self.answering.values()
        return {
            "segments": write_actions({each.path: each for one in found for each in one.segments}.values()),
            "translations": write_actions({each.path: each for one in found for each in one.translations}.values()),
            "answering": {
                split: [[each.path for each in one.segments], [each.path for each in one.translations]]
                for split, one in self.answering.items()
            },
        }


def _answering(body: Mapping[str, Any]) -> Mapping[str, Answering]:
    where = "merge work"
    segments = {each.path: each for each in read_actions(body["segments"], IndexSegment, where)}
    translations = {each.path: each for each in read_actions(body["translations"], Translation, where)}
    return {
        split: Answering(tuple(segments[path] for path in own), tuple(translations[path] for path in ways))
        for split, (own, ways) in body["answering"].items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """What a merge wrote and has to commit, by `merge.actions_of`. Travels as JSON.

    `rewrite` has new splits, and removes those of which no row is left; `marks` are live ones with a longer deletion
    vector. Rows in are records and the base rows that patches took values from.
    """

    rewrite: Rewrite
    marks: tuple[Add, ...]
    merged: MergedGenerations

    def to_json(self) -> str:
        """Return the text from which `from_json` makes an equal result."""
        body = {
            "rewrite": self.rewrite.to_object(),
            "marks": write_actions(self.marks),
            "merged": to_json_object(self.merged),
        }
        return json.dumps(body, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> MergeResult:
        """Return the result that `to_json` wrote."""
        body: Mapping[str, Any] = json.loads(text)
        return MergeResult(
            rewrite=Rewrite.from_object(body["rewrite"]),
            marks=read_actions(body["marks"], Add, "merge result"),
            merged=read_action(body["merged"], MergedGenerations, "merge result"),
        )
