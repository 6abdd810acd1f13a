"""The step `checkpoint` writes a state, and the step `collect` deletes unneeded objects.

If landed files no longer exist, a collection first removes their records from the log (decision 0008). `checkpoint` may
commit a version without changes. Apart from the removed records and the version without changes, `checkpoint` and
`collect` commit nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from storage_core.base.errors import Unavailable
from storage_core.data.formats.documents import Candidate
from storage_core.data.steps import Checkpoint, Collect
from storage_core.log.job_run import DueRun, Inputs, JobReport, JobRun, Metrics, Prediction, Status
from storage_core.log.log import compact_state, has_compact_state
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.collect import CollectionReport, collect
from storage_core.write.ingest.landing import landing_of
from storage_core.write.ingest.progress import prune_gone_files

LOG = logging.getLogger(__name__)


def run_collect(job: JobRun[Collect]) -> JobReport:
    """Prune landed files that no longer exist, and run both passes of the collector. `details` lists the candidates.

    The driver deletes the objects in batches. Spark is not needed. No data is moved, and one process must read all
    roots again. Raises `Held` while another run collects. Raises `Fenced` before the next batch if another run has
    taken over.
    """
    return job.carry_out(
        lambda snapshot: [snapshot],  # the collector finds the candidates itself, batch by batch
        lambda _: _collected(job),
        planned=lambda _: _candidates_only(job),
    )


def _candidates_only(job: JobRun[Collect]) -> dict[str, object]:
    _, metrics, details = _both_passes(job)
    return {"metrics": metrics, "details": details}


def _collected(job: JobRun[Collect]) -> JobReport:
    found, metrics, details = _both_passes(job)
    pruned = ("pruned_files", "pruned_transactions", "pruned_quarantine")
    done = found.deleted or found.pruned or any(details.get(name) for name in pruned)
    status: Status = "committed" if done else "nothing_to_do"
    return job.report(status, metrics=metrics, details=details, benefit=found.bytes)


def _both_passes(job: JobRun[Collect]) -> tuple[CollectionReport, Metrics, dict[str, object]]:
    pruned = _prune(job)
    found = collect(
        job.store,
        job.log,
        clock=job.log.clock,
        horizon_ms=job.options.horizon_ms,
        dry_run=job.options.dry_run,
        require_held=job.require_held,
    )
    job.predict(Prediction(benefit=sum(each.size for each in found.noted), unit="bytes"))
    metrics = Metrics(bytes_in=found.candidate_bytes, bytes_out=found.candidate_bytes - found.bytes)
    return found, metrics, _details(found) | pruned


def _prune(job: JobRun[Collect]) -> dict[str, object]:
    """Prune transactions. Return the number of pruned landed files and the number of pruned quarantine entries.

    If the landing location does not answer, no file is pruned and the collection continues.
    """
    return _prune_quarantine(job) | _prune_files(job)


def _prune_quarantine(job: JobRun[Collect]) -> dict[str, object]:
    txns = job.before.txns
    if not any(txns.every(kind) for kind in ("quarantine", "quarantined")):
        return {}
    from storage_core.maintain.quarantine import prune  # most collections do not need the imported module `ingest`

    done = prune(job.log, dry_run=job.options.dry_run, require_held=job.require_held)
    return {"pruned_quarantine": done}


def _prune_files(job: JobRun[Collect]) -> dict[str, object]:
    spec = landing_of(job.before.metadata.configuration)
    if spec is None or spec.is_delta:
        return {}
    try:
        done = prune_gone_files(job.log, spec, dry_run=job.options.dry_run, require_held=job.require_held)
    except Unavailable as error:
        LOG.warning("no landed file is pruned: %s", error)
        return {"pruned_files": 0, "pruned_transactions": 0}
    return {"pruned_files": done.files, "pruned_transactions": done.transactions}


def _details(found: CollectionReport) -> dict[str, object]:
    return {
        "candidates": [_candidate(each) for each in found.candidates],
        "by_reason": {str(reason): count for reason, count in found.by_reason.items()},
        "deleted": len(found.deleted),
        "deleted_bytes": found.bytes,
        "deleted_keys": list(found.deleted),
        "failed": dict(found.failed),
        "unknown_keys": list(found.unknown_keys),
        "pruned": dict(found.pruned),
        "horizon_ms": found.horizon_ms,
    }


def _candidate(candidate: Candidate) -> dict[str, object]:
    return {"key": candidate.key, "reason": str(candidate.reason), "size": candidate.size}


def run_checkpoint(job: JobRun[Checkpoint]) -> JobReport:
    """Write the state unless it exists already. A state is derived, so no commit and no Spark task is needed.

    With `compact_state` the smallest state is written (`log.log`). A run with `compact_state` may commit a version
    without changes. Raises `Held` while another run writes a state.
    """
    options = job.options
    is_done = has_compact_state if options.compact_state else _has_state

    def write(_: Sequence[Snapshot]) -> JobReport:
        log = job.log
        if options.compact_state:
            result = compact_state(log, job.before, job_run_id=options.run_id)
        else:
            result = log.checkpoint(job.before)
        metrics = Metrics(splits_in=result.files, splits_out=result.files, bytes_out=result.bytes)
        if not result.written:
            return job.report("nothing_to_do", result.version, metrics=metrics)
        return job.report("committed", result.version, metrics=metrics, benefit=_behind(job.before))

    return job.carry_out(
        lambda snapshot: [] if is_done(snapshot) else [snapshot],
        write,
        predict=lambda due: Prediction(benefit=_behind(job.before), unit="versions", puts=2 if due else 0),
    )


def _behind(snapshot: Snapshot) -> int:
    """Return the number of versions that a reader replays to open the table."""
    return snapshot.version - (-1 if snapshot.checkpoint_version is None else snapshot.checkpoint_version)


def _has_state(snapshot: Snapshot) -> bool:
    return snapshot.checkpoint_version == snapshot.version


def due_checkpoint(inputs: Inputs) -> DueRun | None:
    """Return the run that the table needs now."""
    newest = inputs.snapshot.checkpoint_version
    if newest == inputs.snapshot.version:
        return None
    behind = "no state yet" if newest is None else f"the newest state is of version {newest}"
    return DueRun(
        reason=f"version {inputs.snapshot.version}, {behind}", items=inputs.snapshot.version - (newest or 0) or 1
    )
