"""The step `publish`, which publishes a table in other formats, and the query of the published versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import assert_never

from storage_core.base.errors import ICEBERG, InvalidInput, needs
from storage_core.base.text import choice_of
from storage_core.data.settings.table import FORMATS, Publish, PublishFormat
from storage_core.data.steps import Publish as PublishOptions
from storage_core.interop.publishing import Mirrored
from storage_core.log.job_run import DueRun, Inputs, JobReport, JobRun, Status
from storage_core.log.log import TransactionLog
from storage_core.log.mirror_metadata import newest_commit, newest_metadata
from storage_core.store.contract import ObjectStore


def format_of(name: str) -> PublishFormat:
    """Return the format with this name. Raises `InvalidInput`."""
    for each in FORMATS:
        if each == name:
            return each
    raise InvalidInput(choice_of("format", name, [*FORMATS]), format=name)


def publish_as(log: TransactionLog, format_: PublishFormat, how: Publish) -> Mirrored:
    """Publish a table in a format. Raises `Unavailable` if the required packages are missing."""
    match format_:
        case "delta":
            from storage_core.interop.delta_mirror import publish_delta

            return publish_delta(log, shows_vectors=how.delta != "none")
        case "iceberg":
            with needs(ICEBERG, "publishing as Iceberg"):
                from storage_core.interop.iceberg import publish_iceberg
            return publish_iceberg(log)
        case _:
            assert_never(format_)


def published_versions(store: ObjectStore, how: Publish) -> Mapping[PublishFormat, int | None]:
    """Return the published version of each declared format, or of Delta if no format is declared.

    A version of None means that the format is not published yet.

    Makes the requests of `newest_commit` and `newest_metadata`. Raises `Corrupt`.
    """
    return {each: _shown(store, each) for each in how.published}


def _shown(store: ObjectStore, format_: PublishFormat) -> int | None:
    match format_:
        case "delta":
            commit = newest_commit(store)
            shown = None if commit is None else commit.commit.shown
            return None if shown is None else shown.version
        case "iceberg":
            metadata = newest_metadata(store)
            return None if metadata is None else metadata.metadata.shown.version
        case _:
            assert_never(format_)


def run_publish(job: JobRun[PublishOptions]) -> JobReport:
    """Publish the unpublished versions in the formats that the table declares, or in Delta if it declares none.

    The step needs no Spark task, no lease and no commit of the table. The version None means that the format is not
    published yet. If two runs publish concurrently, only one of them makes each commit of the mirror. Raises the errors
    of `Table.publish`.
    """
    return job.carry_out(lambda snapshot: snapshot.config.publish.published, partial(_published, job))


def _published(job: JobRun[PublishOptions], formats: Sequence[PublishFormat]) -> JobReport:
    job.log.require_capable()
    mirrors = [publish_as(job.log, each, job.before.config.publish) for each in formats]
    version = min(job.before.version if each.version is None else each.version for each in mirrors)
    status: Status = "committed" if any(each.commits for each in mirrors) else "nothing_to_do"
    return job.report(status, version, details={"mirrors": [asdict(each) for each in mirrors]})


def due_publish(inputs: Inputs) -> DueRun | None:
    """Return the run that the table needs now."""
    shown = published_versions(inputs.store, inputs.snapshot.config.publish)
    if all(version == inputs.snapshot.version for version in shown.values()):
        return None
    known = [f"{name.title()} shows version {version}" for name, version in shown.items() if version is not None]
    return DueRun(reason=f"version {inputs.snapshot.version}, {', '.join(known) or 'nothing is published'}")
