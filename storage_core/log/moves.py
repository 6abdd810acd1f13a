"""Where translations lead: from a split to those that its rows went to. Nothing here looks at rows (decision 0115)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from storage_core.log.actions import IndexSegment, Translation


def by_input(translations: Iterable[Translation]) -> Mapping[str, Sequence[Translation]]:
    """Return the translations of each split, by path; a split that a restore brought back may have several."""
    found: dict[str, list[Translation]] = defaultdict(list)
    for each in sorted(translations, key=lambda each: each.path):
        for split in each.inputs:
            found[split].append(each)
    return found


def outputs_with(translation: Translation, split: str) -> list[int]:
    """Return the places of the outputs that hold a row of this input."""
    source = translation.inputs.index(split)
    return [number for number in range(len(translation.outputs)) if translation.moved(source, number)]


def leads_to(
    splits: Iterable[str], live: Collection[str] | Mapping[str, object], moved: Mapping[str, Sequence[Translation]]
) -> tuple[bool, frozenset[str]]:
    """Return whether rows of the splits are in a live one, and the paths of all translations behind them.

    `moved` is what `by_input` returns.
    """
    waiting, seen, used, found = list(splits), set[str](), set[str](), False
    while waiting:
        split = waiting.pop()
        if split in seen:
            continue
        seen.add(split)
        found = found or split in live
        for each in moved.get(split, ()):
            used.add(each.path)
            waiting.extend(each.outputs[number] for number in outputs_with(each, split))
    return found, frozenset(used)


def leading_to(splits: Iterable[str], translations: Iterable[Translation]) -> frozenset[str]:
    """Return the paths of the translations by which rows came to the splits, at once or by way of other splits."""
    by_output: dict[str, list[Translation]] = defaultdict(list)
    for each in translations:
        for split in each.outputs:
            by_output[split].append(each)
    waiting, seen, used = list(splits), set[str](), set[str]()
    while waiting:
        split = waiting.pop()
        if split in seen:
            continue
        seen.add(split)
        for each in by_output.get(split, ()):
            used.add(each.path)
            waiting.extend(each.inputs)
    return frozenset(used)


def reaches(
    segment: IndexSegment,
    live: Collection[str] | Mapping[str, object],
    moved: Mapping[str, Sequence[Translation]],
) -> bool:
    """Tell whether the segment covers a row of a live split, or one that a translation moved to one."""
    return leads_to(segment.covers, live, moved)[0]
