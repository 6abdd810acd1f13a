"""Plans of searches for `explain_search`.

A plan has one part per source. If the search was executed, the plan also has the cost of the search.

A search and its plan start with the same objects (`Searched.lives`). So a plan always matches the search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from storage_core.base.text import MOST_LISTED, counted, escaped, first_of
from storage_core.data.settings.index import IndexDefinition
from storage_core.index import catch_up, segments, vector
from storage_core.index.row_positions import SegmentCache
from storage_core.index.segments import Coverage, compute_coverage
from storage_core.log.snapshot import Snapshot
from storage_core.read.plan import Analysis, RawPart
from storage_core.read.row_filter import RowFilter
from storage_core.read.search.matches import Searched, Trace
from storage_core.read.search.search_request import IndexQuestion, SearchQuestion, VectorQuery, names_of, request_of
from storage_core.read.search.source_protocol import LiveFilter, Place
from storage_core.read.search.vectors import most_scored

How = Literal["segment", "indexed", "exact", "left_out"]
"""The method by which a source is searched.

- `segment`: the search uses the segment of the source.
- `indexed`: the rows are indexed while they are read.
- `exact`: the rows are scored by their embeddings.
- `left_out`: the source is not searched, because the log shows that no row meets the filter.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlan:
    """A set of rows that have consecutive row numbers in an index, including deleted rows.

    `how` is the method of the search.

    `name` is a path or an id, depending on `place`. In the base, `name` is the path of a split, or the path of a
    segment over several splits. In a log, `name` is the id of the region.

    Fields of a vector index:

    - `exact_up_to`: if at most this many rows meet the filter, the search scores them exactly. `exact_up_to` is None
      without a filter.
    - `clusters`: the number of clusters of the segment according to the log. `clusters` is 0 for a segment without
      clusters.

    Fields of a vector index that are known after the search was run:

    - `matching`: the number of live rows that meet the filter.
    - `probed`: the number of clusters that were searched.
    - `ranked`: the number of rows that were scored by embeddings of the table. `ranked` adds up the scored rows of all
      windows.
    """

    place: Place
    name: str
    rows: int
    how: How
    segment: str | None = None
    segment_bytes: int | None = None
    exact_up_to: int | None = None
    clusters: int | None = None
    matching: int | None = None
    probed: int | None = None
    ranked: int | None = None

    def __str__(self) -> str:
        """Return the source as a line of text."""
        matching = "" if self.matching is None else f", {self.matching:,} after the filter"
        return f"{self.place} {escaped(self.name)}: {counted(self.rows, 'row')}{matching}; {self._how()}"

    def _how(self) -> str:
        ranked = "" if self.ranked is None else f" ({counted(self.ranked, 'row')} by vectors of the table)"
        match self.how:
            case "segment" if self.exact_up_to is not None and self.ranked is None:
                return f"by its segment, or scored exactly if the filter leaves at most {self.exact_up_to:,}"
            case "segment" if self.probed is not None:
                of = "" if self.clusters is None else f" of {self.clusters:,}"
                return f"by its segment, {self.probed:,}{of} clusters{ranked}"
            case "segment":
                return f"by its segment{', all of it' if self.ranked is not None else ''}{ranked}"
            case "exact" if self.exact_up_to is not None:
                return f"scored exactly, as the filter leaves at most {self.exact_up_to:,}"
            case "exact":
                return "no segment: scored exactly"
            case "indexed":
                return "no segment: indexed during the read"
            case "left_out":
                return "not read, because the log shows that no row meets the filter"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPlan:
    """The part of a search plan for one index.

    Attributes:
        index: The name of the index.
        kind: The kind of the index.
        version: The version that is searched.
        watermark: The version up to which the index covers every live split.
        segments: For each live split, the segments that cover rows of the split.
        scanned: The splits with rows that have no segment.
        sources: The sources of the search.
        weight: The weight of the index. None if the index is used alone, and 0 if it only filters.
        nprobe: The requested or configured number of clusters. None means the clusters that contain a fixed share of
            the rows (`index.vector.reader.probes`).
        judged: After a run with a filter, the number of rows for which the filter was evaluated. A vector index
            evaluates the filter for all live rows. Other indexes evaluate the filter for hits, best first, until enough
            hits meet the filter.
        met: After a run with a filter, the number of these rows that meet the filter.
    """

    index: str
    kind: str
    version: int
    watermark: int
    segments: Mapping[str, Sequence[str]]
    scanned: Sequence[str]
    sources: Sequence[SourcePlan]
    weight: float | None = None
    nprobe: int | None = None
    judged: int | None = None
    met: int | None = None

    def __str__(self) -> str:
        """Return the plan as lines of text, with one line for each of the first sources."""
        weighs = "" if self.weight is None else f", weight {self.weight:g}" if self.weight else ", only filters"
        probes = "" if self.nprobe is None else f", nprobe {self.nprobe:,}"
        lines = [
            f"index {self.index} ({self.kind}{weighs}{probes}) at version {self.version}, watermark {self.watermark}"
        ]
        how = "scored exactly" if self.kind == "vector" else "indexed for this search"
        answered = len(self.segments.keys() - {*self.scanned})
        lines += [f"  splits answered from segments: {answered:,}. Read and {how}: {len(self.scanned):,}"]
        lines += [f"  {each}" for each in first_of(self.sources, MOST_LISTED)]
        if self.judged is not None:
            lines.append(f"  the filter was evaluated for {counted(self.judged, 'row')}: {self.met or 0:,} match")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterPlan:
    """The part of a search plan for the filter.

    Attributes:
        condition: The filter as SQL.
        live_splits: The number of live splits.
        admitted_splits: The number of splits that may contain a matching row, according to the log.
        bitmap_indexes: The bitmap indexes that are used for their covered splits.
        is_exact: Whether these indexes decide the whole filter.
        columns: The columns that are read for all other rows.
        told_splits: After a run, the number of splits for which the bitmap indexes decided.
        not_asked: After a run, the number of other splits for each reason.
        rows_read: After a run, the number of rows for which these columns were read. Rows that an earlier search of the
            same version evaluated are not counted.
    """

    condition: str
    live_splits: int
    admitted_splits: int
    bitmap_indexes: Sequence[str]
    is_exact: bool
    columns: Sequence[str]
    told_splits: int | None = None
    not_asked: Mapping[str, int] = field(default_factory=dict)
    rows_read: int | None = None

    def __str__(self) -> str:
        """Return this plan part as two lines of text."""
        read = f"the columns {', '.join(self.columns)} are read"
        if self.bitmap_indexes:
            how = "wholly" if self.is_exact else "in part"
            read = f"bitmap index {', '.join(self.bitmap_indexes)} answers the filter {how}. For the other rows, {read}"
        told = [] if not self.told_splits else [f"index used for {counted(self.told_splits, 'split')}"]
        told += [
            f"index not used for {counted(splits, 'split')}, because {why}" for why, splits in self.not_asked.items()
        ]
        done = "" if self.rows_read is None else f", of {'; '.join([counted(self.rows_read, 'row'), *told])}"
        splits = (
            f"by the log, {self.admitted_splits:,} of {counted(self.live_splits, 'split')} may contain matching rows"
        )
        return f"filter {escaped(self.condition)}: {splits}\n  {read}{done}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPlan:
    """The plan of a search for each index, and the cost of the search if it was executed."""

    indexes: Sequence[IndexPlan]
    filter: FilterPlan | None = None
    analysis: Analysis | None = None
    raw_logs: tuple[RawPart, ...] = ()

    def __str__(self) -> str:
        """Return the plan as lines of text: the indexes, the filter, and a last line with the cost of the run."""
        parts = (*self.indexes, *self.raw_logs, self.filter, self.analysis)
        return "\n".join(str(each) for each in parts if each is not None)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data, with the fields of one index, or with `parts` for several indexes.

        The fields `raw_logs`, `filter` and `analysis` follow. `filter` and `analysis` may be null.
        """
        found = [each.to_dict() for each in self.indexes]
        parts = found[0] if len(found) == 1 else {"parts": found}
        rest = {"filter": self.filter, "analysis": self.analysis}
        parts |= {"raw_logs": [asdict(each) for each in self.raw_logs]}
        return {**parts, **{name: None if each is None else asdict(each) for name, each in rest.items()}}


@dataclass(frozen=True, slots=True)
class Searching:
    """An index of a search. `weight` is relative to the other indexes. `nprobe` is the requested number of clusters."""

    definition: IndexDefinition
    weight: float | None = None
    nprobe: int | None = None


def indexes_of(snapshot: Snapshot, given: SearchQuestion) -> list[Searching]:
    """Return the indexes that a search uses.

    If neither a query nor a vector is given, return the named indexes. Raises the errors of `search`.
    """
    if given.query is None and given.vector is None:
        return [Searching(segments.definition_of(snapshot, name)) for name in names_of(given.index)]
    asked = request_of(snapshot, given)
    if not asked.weights:
        return [_part_of(each, None) for each in asked.ranking]
    weights = [*asked.weights, *(0.0 for _ in asked.filtering)]
    return [_part_of(*each) for each in zip([*asked.ranking, *asked.filtering], weights, strict=True)]


def planned(searched: Searched, indexes: Sequence[Searching]) -> Trace:
    """Return the sources that a search would use. No source is read.

    Cost:
        The requests of `unmerged_records.split_unmerged_records`. If segments cover only a part of a split, also those
        of the translations.
    """
    overlay, definitions = searched.overlay(), [each.definition for each in indexes]

    def attempt(covered: Sequence[Coverage], cached: SegmentCache) -> Trace:
        lives = searched.lives(covered, overlay, cached, is_run=False)
        for live in lives:
            for source in live.sources:
                source.count()  # `count` raises the error of a damaged translation here
        return Trace({each.name: live for each, live in zip(definitions, lives, strict=True)})

    return searched.attempt(attempt, definitions)


def search_plan(
    searched: Searched, indexes: Sequence[Searching], trace: Trace, *, done: Analysis | None = None
) -> SearchPlan:
    """Return the plan of a search from its trace. If the search was executed, `done` is its cost."""
    condition = next((live.filter for live in trace.lives.values()), None)
    is_run, is_filtered = done is not None, condition is not None or any(each.weight == 0 for each in indexes)
    plans = [_index(searched, each, trace, is_run=is_run, is_filtered=is_filtered) for each in indexes]
    wanted = None if condition is None else _filter(searched.snapshot, condition, is_run=is_run)
    return SearchPlan(indexes=plans, filter=wanted, analysis=done, raw_logs=searched.raw)


def covered(snapshot: Snapshot, *, index: str) -> dict[str, Any]:
    """Return the splits that a search would answer from segments.

    Also return the splits that the search would index while it runs.

    The result has these fields of `IndexPlan`: `index, kind, version, watermark, segments, scanned`. Makes no request.

    Raises:
        NotFound: The index is unknown.
        InvalidInput: The index does not fit the schema.
    """
    definition = segments.definition_of(snapshot, index)
    found = compute_coverage(snapshot, definition)
    return {
        "index": index,
        "kind": definition.kind,
        "version": snapshot.version,
        "watermark": catch_up.watermark(snapshot, index),
        "segments": {split: list(paths) for split, paths in sorted(found.answers.items())},
        "scanned": [add.path for add in found.missing],
    }


def _part_of(part: IndexQuestion, weight: float | None) -> Searching:
    nprobe = part.question.nprobe if isinstance(part.question, VectorQuery) else None
    return Searching(part.definition, weight, nprobe)


def _index(searched: Searched, own: Searching, trace: Trace, *, is_run: bool, is_filtered: bool) -> IndexPlan:
    live = trace.lives[own.definition.name]
    has_judged = is_run and live.is_filtered
    return IndexPlan(
        **covered(searched.snapshot, index=own.definition.name),
        sources=[
            _source(searched.snapshot, own.definition, live, number, is_filtered=is_filtered)
            for number in range(len(live.sources))
        ],
        weight=own.weight,
        nprobe=own.nprobe,
        judged=live.judged if has_judged else None,
        met=live.met if has_judged else None,
    )


def _source(
    snapshot: Snapshot, definition: IndexDefinition, live: LiveFilter, number: int, *, is_filtered: bool
) -> SourcePlan:
    source, looked = live.sources[number], live.looked.get(number)
    origin, rows = source.origin, source.count()
    trained = None if origin.segment is None else snapshot.segments.get(origin.segment)
    training = None if trained is None else vector.Training.of(trained)
    decides = definition.kind == "vector" and is_filtered and origin.segment is not None
    return SourcePlan(
        place=origin.place,
        name=origin.name,
        rows=rows,
        how=_how(live, number, definition.kind),
        segment=origin.segment,
        segment_bytes=source.segment_bytes,
        exact_up_to=most_scored(rows, snapshot.schema.field(definition.columns[0]).type.list_size) if decides else None,
        clusters=None if training is None else training.clusters,
        matching=None if looked is None else looked.matching,
        probed=None if looked is None else looked.clusters,
        ranked=None if looked is None else looked.ranked,
    )


def _how(live: LiveFilter, number: int, kind: str) -> How:
    source, looked = live.sources[number], live.looked.get(number)
    if kind != "fulltext" and live.excludes(number):  # full-text statistics cover all rows
        return "left_out"
    if source.origin.segment is None:
        return "exact" if kind == "vector" else "indexed"
    return "exact" if looked is not None and looked.is_exact and live.is_filtered else "segment"


def _filter(snapshot: Snapshot, wanted: RowFilter, *, is_run: bool) -> FilterPlan:
    return FilterPlan(
        condition=wanted.condition,
        live_splits=len(snapshot.splits),
        admitted_splits=len(wanted.splits),
        bitmap_indexes=wanted.bitmap_indexes,
        is_exact=wanted.is_answered_by_bitmaps,
        columns=wanted.columns,
        told_splits=sum(each.rows is not None for each in wanted.answers.values()) if is_run else None,
        not_asked=dict(Counter(why for each in wanted.answers.values() for why in each.not_asked.values())),
        rows_read=wanted.rows_read if is_run else None,
    )
