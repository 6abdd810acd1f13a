"""Ingest of landed files into a keyed table, in rounds of files.

Each round has one commit and one generation per region.

In each round, the run writes the records to the regions first, and then commits the progress of the files to the log. A
run may therefore end at any time. The next run reads the files of the unfinished round again. Each region takes only
the files that it does not have (`storage_core.write.ingest.landed_regions`). When a run claims a region, the previous
writer of this region can no longer write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from storage_core.base.errors import CommitConflict, Fenced, TidemarkError
from storage_core.data.rows.schema import to_schema_string
from storage_core.data.rows.windows import LateMetrics
from storage_core.data.steps import Ingest
from storage_core.log.actions import Action
from storage_core.log.job_run import NO_METRICS, JobReport, JobRun, Metrics, Prediction, Status, with_report
from storage_core.log.snapshot import Snapshot
from storage_core.write.ingest.batch import (
    BatchResult,
    IngestWork,
    consecutive,
    landed_bytes,
    may_have_new_rows,
    plan,
    reasons_of,
)
from storage_core.write.ingest.changes import ChangeFormat
from storage_core.write.ingest.drift import name_drift
from storage_core.write.ingest.landed_regions import fill_regions, offset_of, require_unlanded
from storage_core.write.ingest.landing import LandedFile, LandingSpec, as_hex
from storage_core.write.ingest.progress import file_app

ROUND_FILES: Final = 1_000
"""The maximum number of files in a round.

The manifest of a region contains the names of the files of the round that last wrote to this region.
"""

ROUND_BYTES: Final = 256 * 2**20
"""A round ends when its files exceed this number of bytes. A larger file is the only file of its round."""

ROUND_PUTS: Final = 10
"""The number of PUTs of a round, including the commit. All records of this round belong to one existing region."""

_MOST_LOST: Final = 5
_PAUSE_MS: Final = 100

LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class KeyedIngest:
    """One run that ingests landed files into a keyed table.

    `read` executes the tasks of given files on a version of the table. `describe` returns the details of a report for
    given results. `about` contains the details about the landing location. `record` returns the record of a listing,
    and this record is committed after the last round.
    """

    job: JobRun[Ingest]
    spec: LandingSpec
    files: Sequence[LandedFile]
    read: Callable[[Sequence[IngestWork], Snapshot], list[BatchResult]]
    describe: Callable[[Sequence[BatchResult]], dict[str, object]]
    about: Mapping[str, object]
    record: Callable[[Snapshot], Sequence[Action]]
    _results: list[BatchResult] = field(default_factory=list)
    _metrics: Metrics = NO_METRICS
    _last: JobReport | None = None

    def run(self) -> JobReport:
        """Ingest all files in rounds, and return one report.

        Raises:
            CommitConflict: Other runs ingested the same files in several tries.
            Fenced: Other processes claimed the same regions in several tries, or took over the lease.
            Held: Another run ingests into the same table.
            TidemarkError: Any other error. It contains the report of the rounds that were committed.
        """
        works = self._planned(self.files)
        self.job.predict(_prediction(works))
        if self.job.options.dry_run:
            works = [each for each in works if may_have_new_rows(each)]
            planned = Metrics(bytes_in=landed_bytes(works))
            status: Status = "planned" if works else "nothing_to_do"
            return self.job.report(status, metrics=planned, details={**self.about, "files": len(works)})
        if not works:
            self._record_listing()
            return self._report()
        try:
            with self.job.holding(self.job.step.lease) as waited:
                if waited:
                    self.job.refresh_head()
                    works = self._planned(self.files)
                for each in _rounds(works):
                    self._bring_or_retry(each)
                self._record_listing()
        except TidemarkError as error:
            if self._last is not None:
                with_report(error, self._report())
            raise
        return self._report()

    def _record_listing(self) -> None:
        """Record the listing after the table contains all its files."""
        if actions := self.record(self.job.before):
            with suppress(CommitConflict):  # another run will list again
                self._last = self.job.commit(actions, operation="INGEST", metrics=NO_METRICS)

    def _planned(self, files: Iterable[LandedFile]) -> list[IngestWork]:
        """Return the files that the present version of the table does not contain, in the order of their arrival."""
        works = plan(self.job.before, self.spec, files)
        return sorted(works, key=lambda each: (each.landed.landed_ms or 0, each.landed.path))

    def _bring_or_retry(self, works: Sequence[IngestWork]) -> None:
        """Ingest the files of a round, planned on the present version. After a conflict, plan these files again.

        Another run may have ingested files of the round since the run was planned. `require_unlanded` compares the log
        with `before`, so it finds only files that were committed after `before`.
        """
        files = [each.landed for each in works]
        for lost in range(_MOST_LOST):
            try:
                self._bring(self._planned(files))
            except (CommitConflict, Fenced) as error:
                self.job.require_held()
                if lost + 1 == _MOST_LOST:
                    raise
                LOG.info("%s: a round is planned again: %s", self.job.uri, error)
                # Without a random pause, two processes could take a region from each other endlessly.
                self.job.log.clock.sleep_ms(self.job.log.ids.fraction() * _PAUSE_MS * 2**lost)
                self.job.refresh_head()
            else:
                return

    def _bring(self, works: Sequence[IngestWork]) -> None:
        if not works:
            return
        job = self.job
        changes = ChangeFormat.of(self.spec, job.before.schema, job.before.config)
        results = self.read(works, job.before)
        files = [file for result in results for file in result.files]
        form = (self.spec.to_json(), to_schema_string(job.before.schema))
        offsets = {
            file_app(file.file): offset_of(as_hex(file.content), *form) for file in files if file.content is not None
        }
        parts = [part for result in results for part in result.parts]
        older = 0
        if parts:
            order = None if changes is None else changes.order
            check = partial(require_unlanded, job, offsets)
            _, older = fill_regions(job, parts, offsets, order=order, check=check)
        actions = [action for result in results for action in result.actions]
        if not actions:
            self._results += results
            return
        late = sum((file.late for file in files), LateMetrics())
        rejected = sum(result.rows_rejected for result in results)
        found = Metrics.of(results)
        metrics = replace(
            found,
            rows_out=found.rows_out - older,
            rows_rejected=rejected,
            rows_older=older,
            tombstones=sum(file.skipped for file in files),
            **late.as_mapping(),
        )
        drifted = name_drift(reasons_of(results), {}, (), job.before.schema.names)
        details = {"files": len(files)}
        report = job.commit(actions, operation="INGEST", metrics=metrics, details=details, drifted=drifted)
        job.refresh_head()
        self._results += results
        if report.status == "committed":
            self._last = report
            self._metrics += metrics

    def _report(self) -> JobReport:
        found = {"rows_older": self._metrics.rows_older, "tombstones": self._metrics.tombstones}
        details = {**self.describe(self._results), **self.about}
        details |= {name: count for name, count in found.items() if count}
        if self._last is None:
            return self.job.report("nothing_to_do", details=details)
        return self.job.report(
            "committed",
            self._last.version,
            metrics=self._metrics,
            commit_id=self._last.commit_id,
            details=details,
            benefit=sum(len(result.files) for result in self._results),
        )


def _rounds(works: Sequence[IngestWork]) -> list[list[IngestWork]]:
    return consecutive(works, most_files=ROUND_FILES, most_bytes=ROUND_BYTES)


def _prediction(works: Sequence[IngestWork]) -> Prediction:
    puts = ROUND_PUTS * len(_rounds(works))
    return Prediction(benefit=len(works), unit="files", bytes_in=landed_bytes(works), puts=puts)
