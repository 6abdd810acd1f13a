"""What a search will ask, source by source, and once it was run what it did: the answer of `explain_search`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from storage_core.foreign_text import escaped
from storage_core.read.plan import Analysis, RawPart
from storage_core.search.source import Place
from storage_core.wording import MOST_LISTED, counted, first_of

How = Literal["segment", "indexed", "exact", "left_out"]
"""Answered by its segment, indexed while it is read, scored by its vectors, or left out by the filter and the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlan:
    """Rows that an index counts together, deleted ones among them, and `how` they are searched.

    `name` is a path of `place`: of the base of a split, or of a segment over several; of a log its region. Of vectors
    `exact_up_to` is how many rows at most a filter has to leave for them to be scored exactly, None where no filter
    decides; `clusters` are those of the segment as the log says, 0 of a flat one. Known once it was run, of vectors:
    `matching`, live rows that meet the filter; `probed`, clusters that were looked into; `ranked`, rows that were
    scored by vectors of the table, in all windows together.
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
        """Return it as a line."""
        matching = "" if self.matching is None else f", {self.matching:,} to be found"
        return f"{self.place} {escaped(self.name)}: {counted(self.rows, 'row')}{matching}; {self._how()}"

    def _how(self) -> str:
        ranked = "" if self.ranked is None else f" ({counted(self.ranked, 'row')} by vectors of the table)"
        match self.how:
            case "segment" if self.exact_up_to is not None and self.ranked is None:
                return f"by its segment, or scored exactly where the filter leaves at most {self.exact_up_to:,}"
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
                return "no segment: indexed while it is read"
            case "left_out":
                return "the filter leaves it out by the log"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPlan:
    """What a search asks of one index, at `version`.

    `segments` are those that answer for rows of each live split, `scanned` the splits with other rows. `weight` is None
    where it is asked alone, 0 where it only filters. `nprobe` is what was asked for or what the index is set to; None:
    as many clusters as hold a share of the rows (`probing.probes`). Known once it was run, with a filter: it was asked
    of `judged` rows, of which `met` meet it: of vectors of all live rows, else of hits, best first, until enough of
    them do.
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
        """Return it as lines of text, one for each of the first sources."""
        weighs = "" if self.weight is None else f", weight {self.weight:g}" if self.weight else ", only filters"
        probes = "" if self.nprobe is None else f", nprobe {self.nprobe:,}"
        lines = [
            f"index {self.index} ({self.kind}{weighs}{probes}) at version {self.version}, watermark {self.watermark}"
        ]
        how = "scored exactly" if self.kind == "vector" else "indexed on the fly"
        answered = len(self.segments.keys() - {*self.scanned})
        lines += [f"  splits answered from segments: {answered:,}; read and {how}: {len(self.scanned):,}"]
        lines += [f"  {each}" for each in first_of(self.sources, MOST_LISTED)]
        if self.judged is not None:
            lines.append(f"  the filter was asked of {counted(self.judged, 'row')}: {self.met or 0:,} meet it")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterPlan:
    """How the filter of a search is answered.

    Of `live_splits` the log leaves `admitted_splits`. `bitmap_indexes` are asked of those that they cover; if
    `is_exact` they tell all that it asks. Of other rows the `columns` are read. Known once it was run: they told of
    `told_splits`, of others they were `not_asked`, by why; and the columns of `rows_read` were read, but for rows of
    which an earlier search of the same version knew.
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
        """Return it as two lines."""
        read = f"its columns {', '.join(self.columns)} are read"
        if self.bitmap_indexes:
            how = "wholly" if self.is_exact else "in part"
            read = f"bitmap index {', '.join(self.bitmap_indexes)} answers it {how}; of rows that it leaves open {read}"
        told = [] if not self.told_splits else [f"they told of {counted(self.told_splits, 'split')}"]
        told += [f"of {counted(splits, 'split')} not asked, as {why}" for why, splits in self.not_asked.items()]
        done = "" if self.rows_read is None else f", of {'; '.join([counted(self.rows_read, 'row'), *told])}"
        splits = f"the log admits {self.admitted_splits:,} of {counted(self.live_splits, 'split')}"
        return f"filter {escaped(self.condition)}: {splits}\n  {read}{done}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPlan:
    """What a search will ask of each index, and once it was run for that what it did."""

    indexes: Sequence[IndexPlan]
    filter: FilterPlan | None = None
    analysis: Analysis | None = None
    raw_logs: tuple[RawPart, ...] = ()

    def __str__(self) -> str:
        """Return it as lines of text: the indexes, the filter, and at the end a line of what the run did."""
        parts = (*self.indexes, *self.raw_logs, self.filter, self.analysis)
        return "\n".join(str(each) for each in parts if each is not None)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data: fields of one index, or `parts`; `raw_logs`; `filter` and `analysis`, or null."""
        found = [each.to_dict() for each in self.indexes]
        parts = found[0] if len(found) == 1 else {"parts": found}
        rest = {"filter": self.filter, "analysis": self.analysis}
        parts |= {"raw_logs": [asdict(each) for each in self.raw_logs]}
        return {**parts, **{name: None if each is None else asdict(each) for name, each in rest.items()}}
