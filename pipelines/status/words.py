"""How tables are, in words that the terminal and the report share."""

from __future__ import annotations

from pipelines.quantities import duration, size
from storage_core.gc.retained_bytes import RetainedPart
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


def held_bytes(status: Status, now_ms: int) -> str:
    """Return what keeps files that are not live, and for how long; an empty text if nothing is kept."""
    held = status.held
    if held is None:
        return ""
    whys = (
        ("older versions", held.versions),
        ("the GC horizon", held.horizon),
        ("the GC horizon, as orphans", held.orphans),
    )
    kept = [f"{size(each.bytes)} kept by {why} {_until(each, now_ms)}" for why, each in whys if each.bytes]
    tags = [
        f"files of the tag {name} kept {'until it is removed' if at is None else f'for {_in(at, now_ms)}'}"
        for name, at in held.tags.items()
    ]
    if not kept and not tags:
        return ""
    more = ["older versions may keep more"] if held.is_partial else []
    return ", ".join([f"{size(held.live_bytes)} live", *kept, *tags, *more])


def _until(kept: RetainedPart, now_ms: int) -> str:
    first, last = _in(kept.first_ms or now_ms, now_ms), _in(kept.last_ms or now_ms, now_ms)
    return f"for {last}" if first == last else f"for {first} to {last}"


def _in(moment_ms: int, now_ms: int) -> str:
    return duration(max(0, moment_ms - now_ms))
