"""Backfills of a range of windows in this process.

Each chunk of a backfill is one ranged run in the Dagster instance that the UI shows. A backfill needs no daemon. A
backfill from the UI or from Dagster's API does the same work through Dagster's queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagster import AssetKey, DagsterEvent, DagsterInstance, ExecuteInProcessResult, JobDefinition, MetadataValue

from assets.launcher import Launcher, PipesLauncher
from assets.recording import FAILED_PARTITIONS
from assets.run_tags import TABLE
from assets.steps import Span, asset_key, contiguous, partition_key, span_of, steps_of
from pipelines.catalog import build_definitions
from pipelines.jobs import BACKFILL
from pipelines.runs import end_dead_runs, process_tags, range_tags, unfinished
from pipelines.tables import DeclaredTable, DeclaredTables, tables_folder
from storage_core.base.errors import Interrupted, InvalidInput
from storage_core.change.declaration import TableDeclaration
from storage_core.data.rows.window_range import parse_window
from storage_core.data.settings.setting import parse_duration

STEPS = ("ingested", "compacted")
# Dagster's instance stores every event of a run, and `ChunkDone` contains the failures of the run. Dagster's console
# log would make the events and failures hard to find.
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@dataclass(frozen=True, slots=True)
class Chunk:
    """Adjacent windows of one run. The fields are the first and last partition, and the number of windows."""

    first: str
    last: str
    windows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkDone:
    """A chunk and the result of its run.

    Attributes:
        chunk: The chunk.
        number: The number of the chunk, from 1 to `of`.
        of: The number of chunks.
        run_id: The run.
        rows: The number of rows that each step wrote: ingested rows and compacted rows.
        failed: The names of the failed windows. If no other error occurred, all other windows of the chunk are done.
        error: The failures without stack traces, or None. The value is `interrupted` if a signal ended the chunk.
        following: The first window of the next chunk, or None.
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
    """Run `STEPS` over the windows in [start, end), one chunk at a time. Yield each chunk when its run has ended.

    After a failed chunk, the other chunks still run. In a chunk with a failed window, the other windows still run. A
    second backfill of the same range does not repeat finished work. An earlier backfill run of this table may have lost
    its process. Before the first chunk, the function marks each run that lost its process as failed.

    Args:
        declaration: The table.
        start: The first window, such as `2015-05-17T10:00` (UTC).
        end: The end of the windows, excluded.
        chunk: The length of a chunk, such as `1d`.
        only_failed: Run only the windows for which, according to the instance, the last run of a step ended before it
            made the window. If there are no such windows, nothing is yielded.
        instance: The Dagster instance.
        launcher: Starts the jobs. The default starts a process per job.
        file: The file of the declaration.

    Raises:
        InvalidInput: The bounds are outside the partitions, or the table has no windows. Raised before anything runs.
        Held: A run still works on windows that `only_failed` examines. Raised before anything runs.
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
    error = "; ".join(_cause(each) for each in failures) or "the run failed. See the event log of the run."
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
    """Return the reason for the failure of a step. Dagster reports an interruption as a separate kind of error."""
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
    for event in result.get_step_failure_events():  # the result of a failed step does not contain its logged events
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
    """Return windows of these chunks. In each of these windows, the last run did not make every asset.

    Adjacent windows form one chunk.
    """
    span = span_of(declaration)
    if span is None:
        return []
    first, last = parse_window(parts[0].first), parse_window(parts[-1].last)
    names = {partition_key(window): window for window in range(first, last + 1, span.window_seconds)}
    failed = {names[name] for name in unfinished(instance, keys, names)}
    return [_chunk(begin, end + span.window_seconds, span) for begin, end in contiguous(failed, span.window_seconds)]


def chunks(declaration: TableDeclaration, start: str, end: str, chunk: str = "1d") -> list[Chunk]:
    """Return the windows in [start, end) in ascending order, as chunks of the given length (`1d`, `6h`, …).

    Raises:
        InvalidInput: The table has no windows, a bound is outside the partitions, or a chunk would cut a window.
    """
    span = span_of(declaration)
    if span is None:
        raise InvalidInput(f"{declaration.name} has no windows to backfill. Materialize its assets, or run its jobs.")
    first, stop, length = parse_window(start, "--from"), parse_window(end, "--to"), _length(chunk, span)
    if any(bound % span.window_seconds for bound in (first, stop)):
        raise InvalidInput(
            f"{start} or {end} is not the start of a window of {span.window_seconds} s. Correct --from or --to"
        )
    _require_within(span, first, stop, declaration.name)
    starts = range(first, stop, length)
    return [_chunk(begin, min(begin + length, stop), span) for begin in starts]


def _require_within(span: Span, first: int, stop: int, name: str) -> None:
    start, end = partition_key(first), partition_key(stop)
    if first >= stop:
        raise InvalidInput(
            f"--to {end} is not after --from {start}. --to is the end of the range, which is not included. For only "
            f"the window of --from, give --to {partition_key(first + span.window_seconds)}."
        )
    if first < span.first:
        raise InvalidInput(
            f"--from {start} is before the partitions of {name}. Give {partition_key(span.first)} or later."
        )
    if stop > span.end:
        raise InvalidInput(f"--to {end} is after the partitions of {name}. Give {partition_key(span.end)} or earlier.")


def _length(text: str, span: Span) -> int:
    try:
        seconds = parse_duration(text)
    except InvalidInput as error:
        raise error.reworded(f"--chunk: {error.found}") from error
    if seconds <= 0 or seconds % span.window_seconds:
        raise InvalidInput(
            f"--chunk {text!r} is not a multiple of the window of {span.window_seconds} s. Use 1d or 6h."
        )
    return seconds


def _chunk(begin: int, end: int, span: Span) -> Chunk:
    windows = (end - begin) // span.window_seconds
    return Chunk(partition_key(begin), partition_key(end - span.window_seconds), windows)


def _job(declaration: TableDeclaration, launcher: Launcher | None, file: Path | None) -> JobDefinition:
    root = tables_folder().parent
    table = DeclaredTable(declaration, file)
    definitions = build_definitions(DeclaredTables(root, (table,)), launcher or PipesLauncher(root))
    return definitions.resolve_job_def(BACKFILL)
