"""How tables are, in words that the terminal and the report share."""

from __future__ import annotations

from pipelines.quantities import size
from storage_core.read.status import Status
from storage_core.wording import counted


def next_run(status: Status) -> str:
    """Return what the next scheduled compaction costs and brings, and what the retention frees; nothing for neither."""
    run = status.next_run
    reads = f"{size(run.read_bytes)} read, {size(run.written_bytes)} written"
    costs = f"{run.splits:,} → {run.outputs:,} splits, {reads}" if run.splits else ""
    freed = f"{size(status.freed_bytes)} leave" if status.freed_bytes else ""
    return ", ".join(each for each in (costs, freed) if each)


def index_lag(status: Status) -> str:
    """Return the indexes that lack rows, and how many; nothing where all are caught up."""
    return ", ".join(f"{each.name} {counted(each.rows, 'row')}" for each in status.indexes if each.rows)
