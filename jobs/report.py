"""What a job did: the figures that its text, its JSON and the asset's metadata show. The fields are a contract."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final, Literal

from jobs.figures import NO_FIGURES, Figures
from storage_core.errors import TidemarkError

MOST_NAMED: Final = 20
"""How many windows an error names; the report has all."""

Status = Literal["committed", "nothing_to_do", "planned", "audited"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """One run of one job. `requests` counts storage requests by kind, of the driver and all tasks.

    `version` is the table's version after the run; `commit_id` is None when nothing was committed. `spark_seconds` is
    the wall time of the Spark part, 0 when no Spark was needed. `details` holds what is specific to the job.
    """

    job: str
    status: Status
    version: int
    figures: Figures = NO_FIGURES
    requests: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    spark_seconds: float = 0.0
    commit_id: str | None = None
    details: Mapping[str, object] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the report as one line of JSON, the figures among the fields."""
        body: dict[str, object] = {}
        for name, value in asdict(self).items():
            body |= value if name == "figures" else {name: value}
        return json.dumps(body, default=str)

    def to_text(self) -> str:
        """Return the report for a terminal: one headline, then one line per figure that is not zero."""
        did = self.figures
        lines = [f"{self.job}: {self.status.replace('_', ' ')} (version {self.version}, {self.seconds:.1f} s)"]
        if did.rows_in or did.rows_out:
            lines.append(f"  rows    {did.rows_in:>12,} -> {did.rows_out:,}")
        late = (did.rows_late_accepted, did.rows_late_quarantined, did.rows_late_dropped)
        if any(late):
            lines.append("  late    {:>12,} accepted, {:,} quarantined, {:,} dropped".format(*late))
        if did.splits_in or did.splits_out:
            lines.append(f"  splits  {did.splits_in:>12,} -> {did.splits_out:,}")
        if did.bytes_in or did.bytes_out:
            lines.append(f"  bytes   {did.bytes_in:>12,} -> {did.bytes_out:,}")
        if self.requests:
            lines.append(
                "  requests " + ", ".join(f"{kind} {count:,}" for kind, count in sorted(self.requests.items()))
            )
        lines += [f"  {name}: {value}" for name, value in self.details.items() if value and not isinstance(value, list)]
        return "\n".join(lines)


def add_requests(*counts: Mapping[str, int]) -> dict[str, int]:
    """Return the sum of several request counts, by kind."""
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def shortened(items: Sequence[object], most: int) -> list[object]:
    """Return the first `most` items and, where there are others, a text that says how many."""
    more = [f"and {len(items) - most} more"] if len(items) > most else []
    return [*items[:most], *more]


def named(names: Sequence[object]) -> str:
    """Return the first `MOST_NAMED` of these names as an error lists them, and how many more there are."""
    return ", ".join(map(str, shortened(names, MOST_NAMED)))


def with_report(error: TidemarkError, report: JobReport) -> TidemarkError:
    """Return the error of a run that did a part of its work, with the report of what it did."""
    error.context["report"] = report
    return error


def report_of(error: TidemarkError) -> JobReport | None:
    """Return the report of what a run did before it failed with this error; None where it did nothing."""
    report = error.context.get("report")
    return report if isinstance(report, JobReport) else None
