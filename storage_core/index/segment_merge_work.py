"""Small segments of an index become one, so that a search asks few (docs/architecture/indexes.md, decision 0122).

A merged segment is over the live splits in which rows of the old ones are: over all of a split that they answer for
alone, else over the part. So rows are numbered anew, translations behind them are needed no more, and nothing is
tokenised. Segments are alike when the logarithms of their rows to the base `FACTOR` are; so many of one tier become one
of the next, and each row is written once per tier.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from storage_core.index import vector
from storage_core.index.coverage import Coverage
from storage_core.log.actions import Add, IndexSegment, Translation
from storage_core.log.encoding.action_json import read_actions, write_actions
from storage_core.log.moves import by_input, leads_to
from storage_core.log.snapshot import Snapshot
from storage_core.rows.vectors import is_vector
from storage_core.settings.index import IndexDefinition

FACTOR = 8
"""So many segments of a tier at least become one, of the next tier."""

MOST_BYTES = 256 * 2**20
"""The most bytes of segments that one merge takes: a task has them in memory. One of more than half is not merged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentMerge:
    """Segments that become one over `splits`, with all that a task needs; `schema_string` is the table's schema.

    `origins` are, for each split of which they answer for a part, the splits that its rows came from. `beside` are the
    other segments that answer for rows of these splits, and `translations` lead to them. `again`: vectors are trained
    once more, from where the first segment is on.
    """

    definition: IndexDefinition
    segments: tuple[IndexSegment, ...]
    splits: tuple[Add, ...]
    origins: Mapping[str, tuple[str, ...]]
    schema_string: str
    beside: tuple[IndexSegment, ...] = ()
    translations: tuple[Translation, ...] = ()
    again: bool = False

    def to_json(self) -> str:
        """Return the text from which `from_json` makes an equal item."""
        body = {
            "index": [self.definition.key, self.definition.to_text()],
            "segments": write_actions(self.segments),
            "splits": write_actions(self.splits),
            "origins": {split: list(found) for split, found in self.origins.items()},
            "schema": self.schema_string,
            "beside": write_actions(self.beside),
            "translations": write_actions(self.translations),
            "again": self.again,
        }
        return json.dumps(body, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> SegmentMerge:
        """Return the item that `to_json` wrote."""
        body, where = json.loads(text), "segment merge work item"
        return SegmentMerge(
            definition=IndexDefinition.from_text(*body["index"]),
            segments=read_actions(body["segments"], IndexSegment, where),
            splits=read_actions(body["splits"], Add, where),
            origins={split: tuple(found) for split, found in body["origins"].items()},
            schema_string=body["schema"],
            beside=read_actions(body["beside"], IndexSegment, where),
            translations=read_actions(body["translations"], Translation, where),
            again=body["again"],
        )


@dataclass(frozen=True, slots=True)
class MergedSegments:
    """A merge that was executed: the segment in place of those of the item."""

    work: SegmentMerge
    segment: IndexSegment


def plan(snapshot: Snapshot, covered: Coverage, *, most_bytes: int = MOST_BYTES) -> tuple[SegmentMerge, ...]:
    """Return the merges of tiers with `FACTOR` segments or more, small ones first. No request.

    What they make may fill the next tier. None of an index of the primary key: a lookup asks the segment of the one
    split that may have the key.
    """
    if covered.definition.kind == "primary_key":
        return ()
    tiers: dict[int, list[IndexSegment]] = defaultdict(list)
    sizes = {path: _bytes(segment, covered.definition, snapshot) for path, segment in covered.segments.items()}
    for path, segment in covered.segments.items():
        if segment.numRecords and 2 * sizes[path] <= most_bytes:
            tiers[tier(segment.numRecords)].append(segment)
    full = [own for _, own in sorted(tiers.items()) if len(own) >= FACTOR]
    groups = [_separable(covered, group) for own in full for group in _groups(own, sizes, most_bytes)]
    return tuple(_work(snapshot, covered, group) for group in groups if len(group) > 1)


def plan_training(snapshot: Snapshot, covered: Coverage, *, every: bool = False) -> tuple[SegmentMerge, ...]:
    """Return one item per segment of vectors that is to be trained again: each, or those whose clusters are unlike.

    These are above `retrain_imbalance_threshold` and were trained once only. No request.
    """
    if covered.definition.kind != "vector":
        return ()
    most = vector.options_of(covered.definition).retrain_imbalance_threshold
    wanted = [each for each in covered.segments.values() if each.numRecords and (every or _is_unlike(each, most))]
    groups = [_separable(covered, [each]) for each in wanted]
    return tuple(replace(_work(snapshot, covered, group), again=True) for group in groups if group)


def tier(rows: int) -> int:
    """Return the whole part of the logarithm of a number of rows to the base `FACTOR`."""
    return (rows.bit_length() - 1) // (FACTOR.bit_length() - 1)


def _is_unlike(segment: IndexSegment, most: float | None) -> bool:
    trained = vector.Training.of(segment)
    return most is not None and trained is not None and not trained.again and trained.imbalance > most


def _bytes(segment: IndexSegment, definition: IndexDefinition, snapshot: Snapshot) -> int:
    """What a segment takes while it is merged: vectors are encoded anew from those of the table."""
    kinds = [snapshot.schema.field(column).type for column in definition.columns]
    numbers = sum(int(kind.list_size) for kind in kinds if is_vector(kind))
    return max(segment.size, 4 * numbers * segment.numRecords)


def _groups(own: Sequence[IndexSegment], sizes: Mapping[str, int], most_bytes: int) -> Iterator[list[IndexSegment]]:
    """The segments of a tier, divided where they are too large together; the smallest first."""
    group, size = list[IndexSegment](), 0
    for each in sorted(own, key=lambda each: (each.numRecords, each.path)):
        if group and size + sizes[each.path] > most_bytes:
            yield group
            group, size = [], 0
        group.append(each)
        size += sizes[each.path]
    yield group


def _separable(covered: Coverage, group: Sequence[IndexSegment]) -> list[IndexSegment]:
    """Those of the segments whose rows can be told from all others by where they came from.

    A part of a split is known by the splits that its rows came from. Where rows of one of these are answered for by
    another segment as well, or by none, they would be taken for rows of the part.
    """
    kept = {each.path: each for each in group}
    while True:
        mixed = set[str]()
        for split, paths in covered.answers.items():
            own = kept.keys() & set(paths)
            others = set(covered.origins.get(split, ())).union(
                *(covered.atoms[split, path] for path in paths if path not in kept)
            )
            mixed |= {path for path in own if covered.atoms[split, path] & others}
        if not mixed:
            return list(kept.values())
        for path in mixed:
            del kept[path]


def _work(snapshot: Snapshot, covered: Coverage, group: Sequence[IndexSegment]) -> SegmentMerge:
    paths = {each.path for each in group}
    splits = [split for split, found in sorted(covered.answers.items()) if paths & set(found)]
    whole = [split for split in splits if split not in covered.origins and paths.issuperset(covered.answers[split])]
    beside = {path for split in splits for path in covered.answers[split]} - paths
    both = [*group, *(covered.segments[path] for path in sorted(beside))]
    ways = leads_to([split for each in both for split in each.covers], (), by_input(covered.translations.values()))[1]
    return SegmentMerge(
        definition=covered.definition,
        segments=tuple(group),
        splits=tuple(snapshot.splits[split] for split in splits),
        origins={split: _atoms(covered, split, paths) for split in splits if split not in whole},
        schema_string=snapshot.metadata.schemaString,
        beside=tuple(both[len(group) :]),
        translations=tuple(covered.translations[path] for path in sorted(ways)),
    )


def _atoms(covered: Coverage, split: str, paths: Collection[str]) -> tuple[str, ...]:
    own = (covered.atoms[split, path] for path in covered.answers[split] if path in paths)
    return tuple(sorted(frozenset[str]().union(*own)))
