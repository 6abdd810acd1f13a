"""Merges that are too large for one task: their parts on Spark, and one commit for all parts of one (decision 0147)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pyarrow as pa

from jobs.compacting.window_groups import Executed, GroupsOutcome, settle
from jobs.running.run import JobRun
from jobs.spark import tasks
from storage_core.compaction.merge_parts import Sample, divide, require_whole
from storage_core.compaction.work import CompactionTask
from storage_core.errors import Fenced, TidemarkError


def merge_in_parts(job: JobRun, planned: Sequence[CompactionTask]) -> GroupsOutcome:
    """Execute these merges one after the other, and commit each when all of its parts have ended.

    What fails concerns the window of the merge: nothing of it is committed, and what its parts wrote is orphaned.
    Raises `Fenced` when another run took over.
    """
    outcome = GroupsOutcome()
    for task in planned:
        try:
            merges = _executed(job, task)
        except Fenced:
            raise
        except TidemarkError as error:
            outcome.fail([task.window], error)
        else:
            settle(job, merges, outcome)
    return outcome


def _executed(job: JobRun, task: CompactionTask) -> list[Executed]:
    """The parts and their answers; where some of them failed, these alone."""
    located = partial(_located, job)
    several = divide(task, partial(_sampled, job, len(task.inputs)), located, operation_id=job.table.log.ids.uuid())
    answers = job.map(tasks.compact, [{"task": each.to_json()} for each in several])
    merges = [Executed(each, answer) for each, answer in zip(several, answers, strict=True)]
    failed = [each for each in merges if each.failed is not None]
    if not failed:
        require_whole(task, [result for each in merges if (result := each.result) is not None])
    return failed or merges


def _sampled(job: JobRun, inputs: int, several: Sequence[CompactionTask]) -> list[Sample]:
    items = [{"task": each.to_json(), "inputs": inputs} for each in several]
    answers = job.map(tasks.sample_keys, items, writes=False)
    return [Sample(tasks.of_text(each["keys"]), tasks.of_text(each["columns"]).schema) for each in answers]


def _located(job: JobRun, several: Sequence[CompactionTask], keys: pa.Table) -> list[list[list[int]]]:
    text = tasks.as_text(keys)
    answers = job.map(tasks.locate_keys, [{"task": each.to_json(), "keys": text} for each in several], writes=False)
    return [each["places"] for each in answers]
