"""What a job did: the metrics that its text, its JSON and the asset's metadata show. The fields are a contract."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

from jobs.reports.metrics import NO_METRICS, Metrics
from jobs.reports.prediction import Prediction
from storage_core.errors import TidemarkError

DRIVER = "driver"
"""Where a job runs that needs no Spark: in its own process."""

Status = Literal["committed", "nothing_to_do", "planned", "audited"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """One run of one job. `requests` counts storage requests by kind, of the driver and all tasks.

    `version` is the table's version after the run; `commit_id` is None when nothing was committed. `spark_seconds` is
    the wall time of the Spark part, 0 when no Spark was needed, and `ran` says where the work was done. `details` holds
    what is specific to the job. `predicted` is what the plan said before the work, of jobs that have one, and `benefit`
    what came of it, in the same unit (decision 0173).
    """

    job: str
    status: Status
    version: int
    metrics: Metrics = NO_METRICS
    requests: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    spark_seconds: float = 0.0
    ran: str = DRIVER
    commit_id: str | None = None
    details: Mapping[str, object] = field(default_factory=dict)
    predicted: Prediction | None = None
    benefit: int = 0

    def to_json(self) -> str:
        """Return the report as one line of JSON, the metrics among the fields."""
        body: dict[str, object] = {}
        for name, value in asdict(self).items():
            body |= value if name == "metrics" else {name: value}
        return json.dumps(body, default=str)

    def to_text(self) -> str:
        """Return the report for a terminal: one headline, then one line per metric that is not zero.

        A job that concerns several tables is of no version. Of what is only planned there is no output to tell of.
        """
        version = f"version {self.version:,}, " if self.version else ""
        did = self.metrics
        lines = [f"{self.job}: {self.status.replace('_', ' ')} ({version}{self.seconds:.1f} s)"]
        if did.rows_in or did.rows_out:
            lines.append(self._change("rows", did.rows_in, did.rows_out))
        late = (did.rows_late_accepted, did.rows_late_quarantined, did.rows_late_dropped)
        if any(late):
            lines.append("  late    {:>12,} accepted, {:,} quarantined, {:,} dropped".format(*late))
        if did.splits_in or did.splits_out:
            lines.append(self._change("splits", did.splits_in, did.splits_out))
        if did.bytes_in or did.bytes_out:
            lines.append(self._change("bytes", did.bytes_in, did.bytes_out))
        shown = {"requests": dict(sorted(self.requests.items())), **self.details}
        if self.status == "committed":
            lines.append(f"  ran: {self.ran}")
        words = {name: _words(value) for name, value in shown.items() if not isinstance(value, list)}
        lines += [f"  {name}: {text}" for name, text in words.items() if text]
        return "\n".join(lines)

    def _change(self, name: str, before: int, after: int) -> str:
        later = "" if self.status == "planned" else f" -> {after:,}"
        return f"  {name:<8}{before:>12,}{later}"


def _words(value: object) -> str:
    """A number, text or what holds them as people read it; what is nothing is left out at any depth."""
    match value:
        case None | False | 0:
            return ""
        case int() if value is not True:
            return f"{value:,}"
        case Mapping():
            words = {name: text for name, each in value.items() if (text := _words(each))}
            if any("," in name for name in words):  # sentences, such as reasons: a line each
                return "".join(f"\n    {text:>10}  {name}" for name, text in words.items())
            nested = {name for name, each in value.items() if isinstance(each, Mapping)}
            return ", ".join(f"{name} ({text})" if name in nested else f"{name} {text}" for name, text in words.items())
        case list() | tuple():
            return ", ".join(filter(None, map(_words, value)))
        case _:
            return str(value)


def with_report(error: TidemarkError, report: JobReport) -> TidemarkError:
    """Return the error of a run that did a part of its work, with the report of what it did."""
    error.context["report"] = report
    return error


def report_of(error: TidemarkError) -> JobReport | None:
    """Return the report of what a run did before it failed with this error; None where it did nothing."""
    report = error.context.get("report")
    return report if isinstance(report, JobReport) else None
