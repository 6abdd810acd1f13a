"""Backfills of a range of windows in this process: one ranged run per chunk, each in the instance that the UI shows.

No daemon is needed. Dagster's own backfills, from the UI or its API, do the same through the queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagster import AssetKey, DagsterEvent, DagsterInstance, ExecuteInProcessResult, JobDefinition, MetadataValue

from assets.launcher import Launcher, PipesLauncher
from assets.partitions import Span, contiguous, partition_key, span_of
from assets.partly_done import FAILED_PARTITIONS
from assets.run_tags import TABLE
from assets.steps import asset_key, steps_of
from jobs.requests.window_range import window_start
from pipelines.catalog import build_definitions
from pipelines.jobs import BACKFILL
from pipelines.runs.dead import end_dead_runs, process_tags
from pipelines.runs.requests import range_tags
from pipelines.runs.unfinished import unfinished
from pipelines.tables import DeclaredTable, DeclaredTables, tables_folder
from storage_core.declaration import TableDeclaration
from storage_core.errors import Interrupted, InvalidInput
from storage_core.rows.windows import parse_duration

STEPS = ("ingested", "compacted")
# Every event is in the instance, and what failed in `ChunkDone`: a terminal would drown in what Dagster says of a run.
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@dataclass(frozen=True, slots=True)
class Chunk:
    """Neighbouring windows that one run takes: the names of the first and last partition, and how many there are."""

    first: str
    last: str
    windows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkDone:
    """A chunk and its run. `number` counts from 1 to `of`; `error` says what failed, without stack traces, or None;
    it is `interrupted` of a chunk that a signal ended.

    `rows` are those that each step wrote: rows that came in, and rows that were compacted. `failed` names the windows
    of the chunk that failed, where the error is only theirs; the other windows are done. `following` is the first
    window of the next chunk, if any.
    """

    chunk: Chunk
    number: int
    of: int
    run_id: str
    rows: Mapping[str, int]
    failed: tuple[str, ...]
    error: str | None
    following: str | None


def backfill(
    declaration: TableDeclaration,
    start: str,
    end: str,
    chunk: str = "1d",
    *,
    only_failed: bool = False,
    instance: DagsterInstance,
    launcher: Launcher | None = None,
    file: Path | None = None,
) -> Iterator[ChunkDone]:
    """Run `STEPS` over the windows in [start, end), chunk after chunk, and yield each chunk when its run has ended.

    Times read like `2015-05-17T10:00` (UTC). A failed chunk does not stop the others, and a failed window not those of
    its chunk; running a backfill again is harmless. Runs of earlier backfills of the table whose process was killed are
    marked as failed first. `only_failed` runs the windows whose last run of a step ended without making them, as the
    instance has it, and yields nothing where there are none. Raises, before anything runs, `InvalidInput` for bounds
    outside the partitions and for a table without windows, and `Held` where a run still works on windows that
    `only_failed` asks about.
    """
    parts = chunks(declaration, start, end, chunk)
    windowed = {step.name for step in steps_of(declaration) if step.windowed}
    keys = [asset_key(declaration.name, step) for step in STEPS if step in windowed]
    end_dead_runs(instance, BACKFILL, {TABLE: declaration.name})
    if only_failed:
        parts = _failed(declaration, parts, keys, instance=instance)
    job = _job(declaration, launcher, file)
    for number, part in enumerate(parts, start=1):
        result = job.execute_in_process(
            run_config=_QUIET,
            instance=instance,
            asset_selection=keys,
            partition_key=part.first if part.first == part.last else None,
            tags={TABLE: declaration.name, **range_tags(part.first, part.last), **process_tags()},
            raise_on_error=False,
        )
        yield _done(parts, number, result, keys)


def _done(parts: Sequence[Chunk], number: int, result: ExecuteInProcessResult, keys: Sequence[AssetKey]) -> ChunkDone:
    failures = result.get_step_failure_events()
    details = [event.step_failure_data.user_failure_data for event in failures]
    facts = [each.metadata for each in details if each]
    failed = [name for each in facts if FAILED_PARTITIONS in each for name in _names(each[FAILED_PARTITIONS])]
    error = "; ".join(_cause(each) for each in failures) or "the run failed; see its event log"
    return ChunkDone(
        chunk=parts[number - 1],
        number=number,
        of=len(parts),
        run_id=result.run_id,
        rows=_rows_written(result, keys),
        failed=tuple(failed),
        error=None if result.success else error,
        following=parts[number].first if number < len(parts) else None,
    )


def _cause(event: DagsterEvent) -> str:
    """What the step failed of; Dagster words an interruption as an error of its own."""
    failure = event.step_failure_data
    if failure.error_source.name == "INTERRUPT":
        return Interrupted.kind
    return failure.error_display_string.partition("Stack Trace:")[0].strip()


def _names(value: MetadataValue[Any]) -> list[str]:
    return list(value.value) if isinstance(value.value, Mapping) else []


def _rows_written(result: ExecuteInProcessResult, keys: Sequence[AssetKey]) -> Mapping[str, int]:
    rows = {key.path[-1]: 0 for key in keys}
    for event in result.get_asset_materialization_events():
        rows[event.materialization.asset_key.path[-1]] += _rows(event.materialization.metadata)
    for event in result.get_step_failure_events():  # whose result has none of the events that the step logged
        failed = event.step_failure_data.user_failure_data
        for key in keys:
            if failed and event.step_key == key.to_python_identifier():
                rows[key.path[-1]] = _rows(failed.metadata)
    return rows


def _rows(metadata: Mapping[str, MetadataValue[Any]]) -> int:
    rows = metadata["rows_out"].value if "rows_out" in metadata else 0
    return rows if isinstance(rows, int) else 0


def _failed(
    declaration: TableDeclaration, parts: Sequence[Chunk], keys: Sequence[AssetKey], *, instance: DagsterInstance
) -> list[Chunk]:
    """The windows of these chunks whose last run did not make one of the assets, neighbours together."""
    span = span_of(declaration)
    if span is None:
        return []
    first, last = window_start(parts[0].first), window_start(parts[-1].last)
    names = {partition_key(window): window for window in range(first, last + 1, span.window_seconds)}
    failed = {names[name] for name in unfinished(instance, keys, names)}
    return [_chunk(begin, end + span.window_seconds, span) for begin, end in contiguous(failed, span.window_seconds)]


def chunks(declaration: TableDeclaration, start: str, end: str, chunk: str = "1d") -> list[Chunk]:
    """Return the windows in [start, end) as chunks of the given length (`1d`, `6h`, …), ascending.

    Raises `InvalidInput` for a table without windows, bounds outside the partitions, or a chunk that cuts a window.
    """
    span = span_of(declaration)
    if span is None:
        raise InvalidInput(f"{declaration.name} has no windows to backfill; materialize its assets, or run its jobs")
    first, stop, length = window_start(start), window_start(end), _length(chunk, span)
    if any(bound % span.window_seconds for bound in (first, stop)):
        raise InvalidInput(f"{start} and {end} must be starts of windows of {span.window_seconds} s")
    _require_within(span, first, stop, declaration.name)
    starts = range(first, stop, length)
    return [_chunk(begin, min(begin + length, stop), span) for begin in starts]


def _require_within(span: Span, first: int, stop: int, name: str) -> None:
    start, end = partition_key(first), partition_key(stop)
    if first >= stop:
        raise InvalidInput(
            f"--to {end} is not after --from {start}: it is where the windows end, itself not included; for the window "
            f"of --from alone give --to {partition_key(first + span.window_seconds)}"
        )
    if first < span.first:
        raise InvalidInput(
            f"--from {start} is before the first window of {name} that is a partition: give "
            f"{partition_key(span.first)} or later"
        )
    if stop > span.end:
        raise InvalidInput(
            f"--to {end} is after the last window of {name} that is a partition: give {partition_key(span.end)} at "
            "most, which is the end of that window"
        )


def _length(text: str, span: Span) -> int:
    seconds = parse_duration(text)
    if seconds <= 0 or seconds % span.window_seconds:
        raise InvalidInput(f"a chunk of {text!r} does not hold whole windows of {span.window_seconds} s; use 1d or 6h")
    return seconds


def _chunk(begin: int, end: int, span: Span) -> Chunk:
    windows = (end - begin) // span.window_seconds
    return Chunk(partition_key(begin), partition_key(end - span.window_seconds), windows)


def _job(declaration: TableDeclaration, launcher: Launcher | None, file: Path | None) -> JobDefinition:
    root = tables_folder().parent
    table = DeclaredTable(declaration, file)
    definitions = build_definitions(DeclaredTables(root, (table,)), launcher or PipesLauncher(root))
    return definitions.resolve_job_def(BACKFILL)
