"""Which segments answer for which live splits: for those they were built over, and for those that rows went to.

All of it follows from the log, without a request: translations say how many rows went from where to where. Of a live
split the segments are those over it, else those over the splits that its rows came from. Where several could answer for
a row, that over the nearest split does, over all of it before over a part, then the first by path (decision 0115).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from storage_core.index.segments import DEFINITION, fingerprint_of
from storage_core.log.actions import Add, IndexSegment, Translation
from storage_core.log.covered import Member, is_over_one_split, members
from storage_core.log.snapshot import Snapshot
from storage_core.settings.index import IndexDefinition

REBUILD_SHARE = 0.2
"""Segments of which a greater share of the rows is in no live split any more are built anew."""

MOST_MOVES = 8
"""Segments whose rows moved more often are built anew: a search composes as many translations."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """What an index answers for in a snapshot.

    `segments` are those in use, by path. `answers` names those of each live split, `missing` are the live splits with
    rows that none answers for, and `origins` says of each of them which splits these rows came from. `translations`
    lead to the live splits from the segments, and from the origins of parts, built or missing. `stale` are segments
    that no search of the snapshot uses, `rebuild` those in use that should be built anew. `without` is what it was
    asked not to use. `atoms` says, by live split and segment, over which splits the segment was built of the rows
    there, or for a part from which they came; `live_rows`, by segment, about how many of its rows are live; `moves`,
    how often they moved at most; `missing_rows`, about how many rows of a live split no segment answers for.
    """

    definition: IndexDefinition
    segments: Mapping[str, IndexSegment]
    answers: Mapping[str, tuple[str, ...]]
    missing: tuple[Add, ...]
    origins: Mapping[str, tuple[str, ...]]
    translations: Mapping[str, Translation]
    stale: tuple[str, ...]
    rebuild: frozenset[str]
    without: frozenset[str] = frozenset()
    atoms: Mapping[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    live_rows: Mapping[str, float] = field(default_factory=dict)
    moves: Mapping[str, int] = field(default_factory=dict)
    missing_rows: Mapping[str, float] = field(default_factory=dict)


def watermark_of(snapshot: Snapshot, covered: Coverage) -> int:
    """Return the version up to which every live split is covered: one before that of the oldest split that is not."""
    return min((snapshot.splits.added_at(add.path)[0] - 1 for add in covered.missing), default=snapshot.version)


def coverage(snapshot: Snapshot, definition: IndexDefinition, *, without: Collection[str] = ()) -> Coverage:
    """Return what the index covers of the snapshot. No request.

    `without` are paths of segments and translations that are not to be used. A usable segment was built under
    `definition`, and has as many rows as its split, or as the part of it.
    """
    rows = {add.path: add.numRecords or 0 for add in snapshot.splits.values()}
    traces = _Traces.of(snapshot, definition, rows, without)
    for path in sorted(snapshot.splits):
        traces.follow(path)
    own = (path for path, segment in snapshot.segments.items() if segment.index == definition.name)
    return Coverage(
        definition=definition,
        segments={path: snapshot.segments[path] for path in sorted(traces.live_rows)},
        answers={split: tuple(sorted(paths)) for split, paths in traces.answers.items()},
        missing=tuple(snapshot.splits[path] for path in traces.origins),
        origins={split: tuple(sorted(atoms)) for split, atoms in traces.origins.items()},
        translations={path: snapshot.translations[path] for path in sorted(traces.translations)},
        stale=tuple(sorted(path for path in own if path not in traces.live_rows)),
        without=frozenset(without),
        rebuild=frozenset(path for path in traces.live_rows if traces.needs_rebuild(snapshot.segments[path])),
        atoms={pair: frozenset(found) for pair, found in traces.atoms.items()},
        live_rows=dict(traces.live_rows),
        moves=dict(traces.moves),
        missing_rows=dict(traces.missing_rows),
    )


@dataclass(frozen=True, slots=True)
class Answering:
    """The segments that answer for rows of a live split, and the translations that lead to it from them."""

    segments: tuple[IndexSegment, ...]
    translations: tuple[Translation, ...] = ()

    @property
    def is_direct(self) -> bool:
        """Whether it is one segment over this split alone, which numbers rows as the file does."""
        return not self.translations and len(self.segments) == 1 and is_over_one_split(self.segments[0])


AnsweringOf = Callable[[Add], Answering | None]
"""The segments of an index that answer for rows of a live split, if any do."""


def answering(snapshot: Snapshot, definition: IndexDefinition) -> AnsweringOf:
    """Return a function that gives the segments by which an index answers for a split, as `coverage` has them.

    No request, and no manifest is read.
    """
    fingerprint, whole = fingerprint_of(definition), defaultdict[str, list[IndexSegment]](list)
    for _, segment in sorted(snapshot.segments.items()):
        is_current = segment.details.get(DEFINITION) == fingerprint
        if segment.index == definition.name and is_current and is_over_one_split(segment):
            whole[segment.covers[0]].append(segment)
    # What merged segments say of splits is taken for true until one is asked about: that takes no manifest.
    merged = [each for each in snapshot.segments.values() if each.coveredRows and each.index == definition.name]
    claimed = {each.split: each.rows for one in merged for each in members(one) if each.origins is None}
    traces = _Traces.of(snapshot, definition, claimed)

    def of(add: Add) -> Answering | None:
        own = next((each for each in whole.get(add.path, ()) if each.numRecords == (add.numRecords or 0)), None)
        if own is not None:
            return Answering((own,))
        held = traces.nearest.whole.get(add.path)
        if (add.path not in traces.into) if held is None else (held.member.rows != (add.numRecords or 0)):
            return None
        traced = traces.again()
        traced.follow(add.path)
        found = tuple(snapshot.segments[path] for path in sorted(traced.answers[add.path]))
        ways = tuple(snapshot.translations[path] for path in sorted(traced.translations))
        return Answering(found, ways) if found else None

    return of


@dataclass(frozen=True, slots=True)
class Held:
    """A split that a segment is over, or a part of it."""

    segment: IndexSegment
    member: Member


@dataclass(frozen=True, slots=True)
class Nearest:
    """The segments of each split that answer for rows in it: one over all of it, else some over parts."""

    whole: Mapping[str, Held]
    parts: Mapping[str, Sequence[Held]]

    @staticmethod
    def of(segments: Collection[IndexSegment]) -> Nearest:
        """Return them; where two are over the same rows, the first by path is used."""
        whole: dict[str, Held] = {}
        parts: dict[str, list[Held]] = defaultdict(list)
        for each in sorted(segments, key=lambda each: each.path):
            for member in members(each):
                if member.origins is None:
                    whole.setdefault(member.split, Held(each, member))
                else:
                    parts[member.split].append(Held(each, member))
        return Nearest(whole, {split: found for split, found in parts.items() if split not in whole})


def is_usable(segment: IndexSegment, rows: Mapping[str, int], fingerprint: str) -> bool:
    """Tell whether a segment can answer under a definition, given the rows of all splits that are known."""
    if segment.details.get(DEFINITION) != fingerprint:
        return False
    found = [each for each in members(segment) if each.split in rows]
    return bool(found) and all(
        each.rows == rows[each.split] if each.origins is None else each.rows <= rows[each.split] for each in found
    )


_MOST_DEPTH = 64  # of a log that somebody made up
_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Way:
    """From a split to a live one: about which share of its rows went there, in how many moves, by what."""

    live: str
    moves: int = 0
    share: float = 1.0
    translations: frozenset[str] = _NONE

    def beside(self, other: _Way) -> _Way:
        """Both ways, of as many moves."""
        return replace(self, share=self.share + other.share, translations=self.translations | other.translations)


@dataclass(slots=True)
class _Traces:
    """Live splits followed back to segments; what was found so far.

    `live_rows` are, by the path of a segment in use, about how many of its rows are in live splits. `to_missing` are
    the translations to where rows without a segment came from, of the live split that is followed.
    """

    nearest: Nearest
    into: Mapping[str, Translation]
    rows: Mapping[str, int]
    answers: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    origins: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    translations: set[str] = field(default_factory=set)
    to_missing: set[str] = field(default_factory=set)
    atoms: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    live_rows: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    moves: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    missing_rows: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @staticmethod
    def of(
        snapshot: Snapshot, definition: IndexDefinition, known: Mapping[str, int], without: Collection[str] = ()
    ) -> _Traces:
        """Begin. Of live splits these have so many rows; of others only those are known that translations name."""
        translations = [each for path, each in snapshot.translations.items() if path not in without]
        rows: dict[str, int] = {}
        for translation in translations:
            rows |= dict(zip(translation.outputs, translation.outputRows, strict=True))
            rows |= dict(zip(translation.inputs, translation.inputRows, strict=True))
        rows |= known
        fingerprint = fingerprint_of(definition)
        found = [
            each
            for path, each in snapshot.segments.items()
            if each.index == definition.name and path not in without and is_usable(each, rows, fingerprint)
        ]
        ordered = sorted(translations, key=lambda each: each.path, reverse=True)
        into = {split: each for each in ordered for split in each.outputs}
        return _Traces(Nearest.of(found), into, rows)

    def again(self) -> _Traces:
        """Return one that has followed none yet."""
        return _Traces(self.nearest, self.into, self.rows)

    def follow(self, live: str) -> None:
        """Note which segments answer for a live split, and where the rows of it came from that have none."""
        level = {(live, _NONE): _Way(live)}
        for _ in range(_MOST_DEPTH):
            deeper: dict[tuple[str, frozenset[str]], _Way] = {}
            for (split, answered), way in level.items():
                for behind, further in self._behind(split, answered, way):
                    known = deeper.get(behind)
                    deeper[behind] = further if known is None else known.beside(further)
            level = deeper
        for (split, _), way in level.items():
            self._miss(split, way)
        if live in self.answers:  # else all of the split is missing, and no part of it
            self.translations |= self.to_missing
        self.to_missing.clear()

    def _behind(
        self, split: str, answered: frozenset[str], way: _Way
    ) -> Iterator[tuple[tuple[str, frozenset[str]], _Way]]:
        """What to follow from a split on, for which no segment over all of it answers.

        Nor over a part nearer to the live split, which are over the rows that came from those `answered`.
        """
        whole = self.nearest.whole.get(split)
        if whole is not None:
            self._use(whole, way, whole.member.rows, {split})
            return
        for part in self.nearest.parts.get(split, ()):
            origins = frozenset(part.member.origins or ())
            self._use(part, way, part.member.rows, origins)
            answered |= origins
        translation = self.into.get(split)
        if translation is None and split not in answered:
            self._miss(split, way)
        if translation is None or split in answered:
            return
        output = translation.outputs.index(split)
        for number, source in enumerate(translation.inputs):
            moved = translation.moved(number, output)
            further = way.translations | {translation.path}
            if moved and source in answered:
                self.translations |= further  # without them nothing tells that the origins of a part are these rows
            elif moved:
                share = way.share * moved / translation.inputRows[number]
                yield (source, answered), _Way(way.live, way.moves + 1, share, further)

    def needs_rebuild(self, segment: IndexSegment) -> bool:
        """Whether too few of its rows are live, or they moved too often."""
        gone = segment.numRecords - self.live_rows[segment.path]
        return gone > REBUILD_SHARE * segment.numRecords or self.moves[segment.path] > MOST_MOVES

    def _miss(self, split: str, way: _Way) -> None:
        self.origins[way.live].add(split)
        self.missing_rows[way.live] += way.share * self.rows.get(split, 0)
        self.to_missing |= way.translations

    def _use(self, held: Held, way: _Way, rows: int, atoms: Collection[str]) -> None:
        path = held.segment.path
        self.answers[way.live].add(path)
        self.atoms[way.live, path].update(atoms)
        self.live_rows[path] += way.share * rows
        self.moves[path] = max(self.moves[path], way.moves)
        self.translations |= way.translations
