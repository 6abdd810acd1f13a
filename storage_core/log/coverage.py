"""Coverage of index segments: the rows that a segment covers, and the splits to which translations moved these rows.

A segment numbers the rows of one split, or the rows of several splits in sequence (decision 0019). A compaction moves
rows to other splits. The compaction stores the moves in a translation, so that the segment stays usable (decision
0019). For example, a segment covers split A, and a translation moves the rows of A to split B. The segment then covers
these rows in split B.

The functions of this module use only the metadata in the log. The functions read no rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from storage_core.log.actions import IndexSegment, Translation

GONE = "gone"
"""The suffix of those names in `covers` that are not names of splits.

A name with this suffix represents rows of a merged segment. These rows were already deleted when the segment was
written.
"""


@dataclass(frozen=True, slots=True)
class Member:
    """A split in a segment.

    The segment covers all rows of the split's file. If `origins` is set, the segment covers only the rows that came
    from the splits in `origins`.

    Attributes:
        start: The row number in the segment of the first row of the split.
        rows: The number of rows in the segment that belong to the split.
        origins: The splits from which the covered rows came, if the segment covers only a part of the split.
        file: The file of the segment that contains the row numbers of the covered part.
    """

    split: str
    start: int
    rows: int
    origins: tuple[str, ...] | None = None
    file: str = ""


def members(segment: IndexSegment) -> tuple[Member, ...]:
    """Return the splits of a segment, in the order of its rows.

    The result is empty if the segment covers several splits and does not contain a row count for every split.
    """
    if segment.coveredRows is None:
        if len(segment.covers) != 1:
            return ()
        (split,) = segment.covers
        return (Member(split, 0, segment.numRecords, segment.origins, rows_file() if segment.origins else ""),)
    found, start = list[Member](), 0
    for number, (split, rows) in enumerate(zip(segment.covers, segment.coveredRows, strict=True)):
        origins = segment.coveredOrigins[number] if segment.coveredOrigins else ()
        found.append(Member(split, start, rows, origins or None, rows_file(number) if origins else ""))
        start += rows
    return tuple(found)


def origins_in(segment: IndexSegment, split: str) -> tuple[str, ...] | None:
    """Return the origins of the split's rows in the segment.

    Return None if the segment covers all rows of the split.
    """
    return next((each.origins for each in members(segment) if each.split == split), None)


def is_over_one_split(segment: IndexSegment) -> bool:
    """Return whether the rows of the segment are exactly the rows of one split's file, with the same row numbers."""
    return segment.coveredRows is None and segment.origins is None and len(segment.covers) == 1


def rows_file(member: int | None = None) -> str:
    """Return the name of the file that lists the covered rows of a partly covered split.

    The file is a portable Roaring bitmap.
    """
    return "rows.bin" if member is None else f"rows-{member}.bin"


OUTLIVED_MOVES = 2
"""The maximum number of compactions that may move the same rows during a catch-up.

If more compactions move the rows, the work of the catch-up is no longer usable (decision 0019).
"""


def by_input(translations: Iterable[Translation]) -> Mapping[str, Sequence[Translation]]:
    """Return a map from the path of each split to the translations that have the split as an input.

    If a restore makes a removed split live again, later compactions of the split can write further translations.
    """
    found: dict[str, list[Translation]] = defaultdict(list)
    for each in sorted(translations, key=lambda each: each.path):
        for split in each.inputs:
            found[split].append(each)
    return found


def outputs_with(translation: Translation, split: str) -> list[int]:
    """Return the positions of those outputs that contain a row of this input."""
    source = translation.inputs.index(split)
    return [number for number in range(len(translation.outputs)) if translation.moved(source, number)]


def leads_to(
    splits: Iterable[str], live: Collection[str] | Mapping[str, object], moved: Mapping[str, Sequence[Translation]]
) -> tuple[bool, frozenset[str]]:
    """Return whether a live split contains rows of these splits.

    Also return the paths of all later translations of the rows.

    Args:
        moved: The result of `by_input`.
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


def leading_to(
    splits: Iterable[str], translations: Iterable[Translation], *, moves: int | None = None
) -> frozenset[str]:
    """Return the paths of the translations that moved rows to these splits.

    The result includes only translations that are at most `moves` moves before one of these splits.

    A `moves` of None means any number of moves.
    """
    by_output: dict[str, list[Translation]] = defaultdict(list)
    for each in translations:
        for split in each.outputs:
            by_output[split].append(each)
    level, seen, used = set(splits), set[str](), set[str]()
    while level and (moves is None or moves > 0):
        seen |= level
        found = [each for split in level for each in by_output.get(split, ())]
        used.update(each.path for each in found)
        level = {split for each in found for split in each.inputs} - seen
        moves = None if moves is None else moves - 1
    return frozenset(used)


def worthless(
    removed: Collection[str],
    is_live: Callable[[str], bool],
    translations: Collection[Translation],
    segments: Iterable[IndexSegment],
) -> frozenset[str]:
    """Return the paths of useless translations. Only translations that led to the splits in `removed` are considered.

    A translation is useless if both conditions hold:

    - No segment covers rows that the translation moved.
    - The rows reach a live split only after more than `OUTLIVED_MOVES` moves, or never. The number of moves includes
      the move that the translation itself records.
    """
    behind, moved = leading_to(removed, translations), by_input(translations)

    def is_near(translation: Translation, moves: int) -> bool:
        further = (each for split in translation.outputs for each in moved.get(split, ()))
        return any(map(is_live, translation.outputs)) or (
            moves > 1 and any(is_near(each, moves - 1) for each in further)
        )

    far = {each.path for each in translations if each.path in behind and not is_near(each, OUTLIVED_MOVES)}
    if not far:
        return frozenset()
    covered = (split for each in segments for split in (*each.covers, *_origins(each)))
    return frozenset(far - leads_to(covered, (), moved)[1])


def _origins(segment: IndexSegment) -> Iterator[str]:
    yield from segment.origins or ()
    for origins in segment.coveredOrigins or ():
        yield from origins


def reaches(
    segment: IndexSegment,
    live: Collection[str] | Mapping[str, object],
    moved: Mapping[str, Sequence[Translation]],
) -> bool:
    """Return whether a live split contains a row that the segment covers.

    The row may have moved since the segment was written.
    """
    return leads_to(segment.covers, live, moved)[0]
