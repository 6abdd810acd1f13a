"""What bitmap indexes leave of the splits of a read, side by side."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from pyroaring import BitMap

from storage_core.log.actions import Add
from storage_core.objectstore.prefetch import prefetch
from storage_core.read.bitmap_pruning import Bitmaps
from storage_core.read.narrowed import Narrowed
from storage_core.read.pruning import PruneStep
from storage_core.wording import counted

HELD_BYTES: Final = 64 * 2**20
"""Of the rows that are remembered of all splits; of those beyond it nothing is."""

_AT_ONCE: Final = 16


def narrowed_by(bitmaps: Bitmaps, splits: Sequence[Add]) -> Narrowed:
    """Return which of the splits, and which rows of them, may be wanted. Requests: those of `Bitmaps.of_split`."""
    if not bitmaps.indexes or not splits:
        return Narrowed(tuple(splits))
    gone, rows, told_by, held = set[str](), dict[str, BitMap](), dict[str, int](), 0
    steps = [_Step() for _ in bitmaps.indexes]
    requests = size = 0
    groups = _together(bitmaps, splits)
    at_once = 1 if bitmaps.is_local(splits[0]) else _AT_ONCE
    with closing(prefetch(lambda group: [*map(bitmaps.of_split, group)], groups, at_once)) as answers:
        for add, found in zip(chain(*groups), chain.from_iterable(answers), strict=True):
            requests, size = requests + found.requests, size + found.bytes
            for number, reason in found.not_asked.items():
                steps[number].not_asked[reason] += 1
            if found.rows is not None and not found.rows and found.told_by is not None:
                steps[found.told_by].splits += 1
                steps[found.told_by].bytes += add.size
                gone.add(add.path)
                continue
            held += 0 if found.rows is None else _bytes_of(found.rows, add)
            if found.rows is not None and found.told_by is not None and held <= HELD_BYTES:
                rows[add.path], told_by[add.path] = found.rows, found.told_by
    done = [step.done(index.definition.name) for step, index in zip(steps, bitmaps.indexes, strict=True)]
    left = tuple(add for add in splits if add.path not in gone)
    return Narrowed(left, rows, told_by, tuple(done), requests, size)


def _together(bitmaps: Bitmaps, splits: Sequence[Add]) -> Sequence[Sequence[Add]]:
    """The splits in groups: those of one merged segment, which is read once where they are asked about in turn."""
    groups: dict[str, list[Add]] = defaultdict(list)
    for add in splits:
        answering = (index.answering_of(add) for index in bitmaps.indexes)
        segments = (segment for each in answering if each is not None for segment in each.segments)
        groups[next((each.path for each in segments if len(each.covers) > 1), add.path)].append(add)
    return [*groups.values()]


@dataclass(slots=True)
class _Step:
    splits: int = 0
    bytes: int = 0
    not_asked: Counter[str] = field(default_factory=Counter)

    def done(self, name: str) -> PruneStep:
        notes = [f"not asked about {counted(number, 'split')}: {why}" for why, number in self.not_asked.items()]
        return PruneStep(f"bitmap index {name}", self.splits, self.bytes, note="; ".join(notes))


def _bytes_of(rows: BitMap, add: Add) -> int:
    """About what rows take: two bytes each, or a bit for every row of the split."""
    return min(2 * len(rows), (add.numRecords or 2**32) // 8)
