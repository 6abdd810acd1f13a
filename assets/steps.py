"""The steps of one table, by its declaration: the job of each, what it follows, and the key of its asset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dagster import AssetCheckResult, AssetKey

from assets.launcher import JobName, Report
from assets.rejected_lines import judged_by_quarantine
from jobs.requests.request import JobRequest
from storage_core.declaration import TableDeclaration

Judge = Callable[[TableDeclaration, Report], AssetCheckResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One asset of a table: the job it runs, what it follows, and what the job's report has to show."""

    name: str
    job: JobName
    description: str
    after: tuple[str, ...] = ()
    windowed: bool = False
    request: JobRequest
    judge: Judge | None = None


def asset_key(table: str, name: str) -> AssetKey:
    """Return the key of one asset of a table."""
    return AssetKey([table, name])


def index_asset(index: str) -> str:
    """Return the name of the asset that keeps an index."""
    return f"index_{index}"


def steps_of(declaration: TableDeclaration, file: str | None = None) -> list[Step]:
    """Return the steps that a table has: what it does not declare (files, key, indexes, retention) has no asset."""
    base = JobRequest(table_uri=declaration.uri)
    sources = _sources(declaration, replace(base, declaration=file))
    expired = [_expired(base, sources)] if declaration.retention is not None else []
    compacted = Step(
        name="compacted",
        job="compact",
        description="The splits of each window as one sorted run: the rows of all of them, none lost, none twice.",
        after=_names([*sources, *expired]),
        windowed=declaration.window is not None,
        request=base,
    )
    tidied = [_sorted(base)] if declaration.primary_key else []
    return [*sources, *tidied, *expired, compacted, *_after_compaction(declaration, base)]


def _sources(declaration: TableDeclaration, request: JobRequest) -> list[Step]:
    ingested = Step(
        name="ingested",
        job="ingest",
        description="Rows of landed files, each exactly once; lines that are no rows are in quarantine.",
        windowed=declaration.window is not None and not (declaration.landing and declaration.landing.is_delta),
        request=request,
        judge=judged_by_quarantine,
    )
    merged = Step(
        name="merged",
        job="merge",
        description="Rows of region writers, applied to the base: per key the newest wins.",
        after=("ingested",) if declaration.landing else (),
        request=replace(request, declaration=None),
    )
    return ([ingested] if declaration.landing else []) + ([merged] if declaration.primary_key else [])


def _after_compaction(declaration: TableDeclaration, request: JobRequest) -> list[Step]:
    checkpointed = Step(
        name="checkpointed",
        job="checkpoint",
        description="The state of the newest version as Avro, so that opening the table stays fast.",
        after=("compacted",),
        request=request,
    )
    indexes = [
        Step(
            name=index_asset(index.name),
            job="catch_up",
            description=f"Segments of the {index.kind} index on {', '.join(index.columns)} for all live splits.",
            after=("compacted",),
            request=replace(request, index=index.name),
        )
        for index in declaration.indexes
    ]
    published = Step(
        name="published",
        job="publish",
        description="The newest versions as readers of Delta or Iceberg see them: a log that names the same splits.",
        after=("compacted",),
        request=request,
    )
    published_as = [published] if declaration.publish.formats else []
    collected = Step(
        name="collected",
        job="collect",
        description="Objects that no retained version needs, deleted once they are older than the horizon.",
        after=_names([checkpointed, *indexes, *published_as]),
        request=request,
    )
    return [checkpointed, *indexes, *published_as, collected]


def _names(steps: Sequence[Step]) -> tuple[str, ...]:
    return tuple(step.name for step in steps)


def _sorted(request: JobRequest) -> Step:
    # After the merge: what that is about to take is not worth sorting.
    return Step(
        name="sorted",
        job="sort",
        description="Generations that merges left behind: where many wait in a region, one sorted by key.",
        after=("merged",),
        request=request,
    )


def _expired(request: JobRequest, sources: Sequence[Step]) -> Step:
    # Before the compaction: what is about to leave is not worth rewriting.
    return Step(
        name="expired",
        job="expire",
        description="Windows older than the retention have left the table, each as a whole.",
        after=_names(sources),
        request=request,
    )
