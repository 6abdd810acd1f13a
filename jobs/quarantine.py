"""Retry of the quarantine of a table, with the declaration of the table.

See docs/architecture/ingestion.md, "Batch ingest".
"""

from __future__ import annotations

from storage_core.change.declaration import load
from storage_core.data.steps import RetryQuarantine
from storage_core.log.job_run import JobReport, JobRun
from storage_core.maintain.quarantine import retry
from storage_core.table import Table
from storage_core.write.ingest.landing import landing_of


def run_retry_quarantine(job: JobRun[RetryQuarantine]) -> JobReport:
    """Put the entries in quarantine through the present declaration, each line exactly once.

    The table first gets the settings of the declaration, as in an ingest. A dry run uses the table as it is. The driver
    does the work. Raises the errors of `retry`.
    """
    options = job.options
    declaration = load(options.declaration) if options.declaration else None
    if declaration and not options.dry_run:
        table = Table.declare(declaration, options.table_uri)
        job.use(table.log, table.snapshot)
    spec = declaration.landing_spec() if declaration else landing_of(job.before.metadata.configuration)
    return retry(job, spec)
