"""Rewrites of splits whose windows or sort order differ from the settings of the table.

- If the table's window duration changes, the splits with the former duration are rewritten into windows of the new
  duration (decision 0006).
- Splits of cold windows are rewritten in longer windows (decision 0006).
- Splits of another sort schema are rewritten in the table's sort order (decision 0006).

A task reads splits of one scope. Together, these splits have about the target size. The task writes the rows by window,
in sort order. Rows do not change. A change of windows keeps the sort schema, and a change of the sort schema keeps the
windows. Later, the compaction decides which windows become one run.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.base.clock import Ids
from storage_core.base.errors import Corrupt
from storage_core.compact import invariants
from storage_core.compact.invariants import Scope, scope_of
from storage_core.compact.planner import contexts_of, has_left
from storage_core.compact.work import active_skips
from storage_core.data.rows.columns import has_changed
from storage_core.data.rows.sort_order import SortOrder, bind, nameless
from storage_core.data.rows.windows import by_start
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Add, read_actions, write_actions
from storage_core.log.snapshot import Snapshot
from storage_core.log.split_columns import adds_of
from storage_core.split.context import SplitContext
from storage_core.split.deletion_vectors import removal
from storage_core.split.metadata import Lineage
from storage_core.split.read import OpenSplit, conform_split, open_split
from storage_core.split.writer import Rewrite, sort_and_write
from storage_core.store.contract import ObjectStore

OPERATION = "REWINDOW"
RESORT_OPERATION = "RESORT"
"""The operation names of the commits that rewrite splits in other windows or in another order."""


@dataclass(frozen=True, slots=True)
class RewindowTask:
    """A task that writes the rows of `inputs` in the windows and the sort order of the context.

    All inputs have one scope.

    Travels as JSON.
    """

    inputs: tuple[Add, ...]
    context: SplitContext

    @property
    def operation(self) -> str:
        """The operation name of the commit that adds the rewritten splits."""
        order = nameless(self.context.order.text)
        is_kept = all(add.sortSchema is None or nameless(add.sortSchema) == order for add in self.inputs)
        return OPERATION if is_kept else RESORT_OPERATION

    def to_json(self) -> str:
        """Return the text that `from_json` converts to an equal task."""
        return json.dumps({"inputs": write_actions(self.inputs), "context": self.context.to_json()}, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> RewindowTask:
        """Return the task that `to_json` wrote."""
        body = json.loads(text)
        inputs = read_actions(body["inputs"], Add, "rewindow task")
        return RewindowTask(inputs, SplitContext.from_json(body["context"]))


def plan(
    snapshot: Snapshot, *, windows: Collection[int | None] | None, now_ms: int, joined_only: bool = False
) -> list[RewindowTask]:
    """Return the tasks for splits with windows of the wrong duration, by window.

    There are no tasks for a table without windows. The right duration of a window is usually the window duration that
    the table configures. If the table joins cold windows into longer windows, the longer duration is right for windows
    that ended long enough ago. A compaction and this plan omit the same splits:
    - splits without a sort schema, or with a sort schema that does not fit the table now
    - splits before the start of compaction
    - expired splits

    Args:
        windows: only splits of windows with these starts. None means all windows.
        joined_only: return only tasks that join cold windows, without splits that a failed compaction skips.
    """
    config = snapshot.config
    if config.window_seconds is None or (joined_only and config.compaction.coarsen_to is None):
        return []
    files = snapshot.splits.table()
    start, seconds = files.column("windowStart"), files.column("windowSeconds")
    wanted = _durations(start, seconds, config, now_ms)
    other = pc.fill_null(pc.not_equal(seconds, wanted), fill_value=False)
    keep = pc.and_(_may_be_written(files, config, windows, now_ms), other)
    if joined_only:
        skipped = pa.array(active_skips(snapshot.mergeskips.values(), now_ms), pa.string())
        keep = pc.and_(keep, pc.equal(wanted, config.compaction.coarsen_to))
        keep = pc.and_(keep, pc.invert(pc.is_in(files.column("path"), value_set=skipped)))
    return _tasks(snapshot, files.filter(keep), wanted.filter(keep).to_pylist())


def plan_resort(snapshot: Snapshot, *, windows: Collection[int | None] | None, now_ms: int) -> list[RewindowTask]:
    """Return the tasks for splits with another sort schema than the table, by window. See `plan` for `windows`.

    Splits without a sort schema, splits before the start of compaction and expired splits are omitted.
    """
    files = snapshot.splits.table()
    order = bind(snapshot.config, snapshot.schema)
    texts = pc.unique(files.column("sortSchema")).drop_null().to_pylist()
    others = [text for text in texts if nameless(text) != nameless(order.text)]
    if not others:
        return []
    other = pc.is_in(files.column("sortSchema"), value_set=pa.array(others, pa.string()))
    found = files.filter(pc.and_(_may_be_written(files, snapshot.config, windows, now_ms), other))
    return _tasks(snapshot, found, found.column("windowSeconds").to_pylist(), order)


def _may_be_written(
    files: pa.Table, config: TableConfig, windows: Collection[int | None] | None, now_ms: int
) -> pa.ChunkedArray:
    start, keep = files.column("windowStart"), files.column("sortSchema").is_valid()
    if config.compaction.start is not None:
        keep = pc.and_(keep, pc.fill_null(pc.greater_equal(start, config.compaction.start), fill_value=True))
    if config.retention_ms is not None:
        keep = pc.and_(keep, pc.invert(has_left(files, retention_ms=config.retention_ms, now_ms=now_ms)))
    if windows is not None:
        keep = pc.and_(keep, pc.is_in(start, value_set=pa.array(list(windows), pa.int64())))
    return keep


def _tasks(
    snapshot: Snapshot, files: pa.Table, durations: Sequence[int | None], order: SortOrder | None = None
) -> list[RewindowTask]:
    """Return the tasks for these splits. The splits get windows of these durations.

    `order=None` keeps the sort order of the splits.
    """
    by_scope: dict[tuple[Scope, int | None], list[Add]] = {}
    chosen = zip(adds_of(files), durations, strict=True)
    for add, duration in sorted(chosen, key=lambda each: (by_start(each[0].windowStart), each[0].path)):
        if (scope := scope_of(snapshot.table_id, add)) is not None:
            by_scope.setdefault((scope, duration), []).append(add)
    scopes = [scope for scope, _ in by_scope]
    if order is not None:  # This order always fits the table. The order of the splits may not fit the table.
        scopes = [replace(scope, sort_schema=nameless(order.text)) for scope in scopes]
    contexts = contexts_of(snapshot, scopes)
    return [
        RewindowTask(part, replace(context, window_seconds=duration))
        for context, ((_, duration), adds) in zip(contexts, by_scope.items(), strict=True)
        if context is not None
        for part in _parts(adds, duration, snapshot.config.target_split_bytes)
    ]


def bounded(tasks: Sequence[RewindowTask], most_inputs: int) -> list[RewindowTask]:
    """Return the first tasks that together read at most `most_inputs` splits. Return at least one task."""
    read = np.cumsum([len(each.inputs) for each in tasks])
    return list(tasks[: max(1, int(np.searchsorted(read, most_inputs, side="right")))])


def _durations(start: pa.ChunkedArray, seconds: pa.ChunkedArray, config: TableConfig, now_ms: int) -> pa.Array:
    """Return the duration that the window of each split should have.

    A window that is the result of a join keeps its longer duration.
    """
    own, settings = config.window_seconds, config.compaction
    starts, lengths = (pc.fill_null(each, 0).to_numpy() for each in (start, seconds))
    wanted = np.full(len(starts), own, np.int64)
    if settings.coarsen_to is not None:
        coarse = settings.coarsen_to
        ends_ms = (starts - starts % coarse + coarse) * 1000
        cold = start.is_valid().to_numpy() & (ends_ms + settings.coarsen_after_ms <= now_ms)
        fits = (lengths > 0) & (coarse % np.maximum(1, lengths) == 0)
        wanted[(cold & fits) | (lengths == coarse)] = coarse
    return pa.array(wanted)


def _parts(adds: list[Add], duration: int | None, most_bytes: int) -> Iterator[tuple[Add, ...]]:
    """Yield the splits in parts of about `most_bytes` bytes. Splits of one new window stay together if they fit.

    If `duration` is None, the splits need not stay together.
    """
    part: list[Add] = []
    size = 0
    for together in [adds] if duration is None else _by_window(adds, duration):
        if part and size + sum(add.size for add in together) > most_bytes:
            yield tuple(part)
            part, size = [], 0
        for add in together:
            if part and size + add.size > most_bytes:
                yield tuple(part)
                part, size = [], 0
            part.append(add)
            size += add.size
    if part:
        yield tuple(part)


def _by_window(adds: list[Add], duration: int) -> Iterator[list[Add]]:
    for _, group in groupby(adds, key=lambda add: (add.windowStart or 0) // duration):
        yield list(group)


def execute(store: ObjectStore, task: RewindowTask, *, ids: Ids, now_ms: int) -> Rewrite:
    """Write the visible input rows into the windows of `task.context`. Return the actions that replace the inputs.

    A second execution writes new files. Only one of the results can be committed. Raises the errors of `open_split`,
    and `InvalidInput` for columns of different types. One GET per input, one PUT per output. The rows of the inputs are
    in memory.
    """
    splits = [open_split(store, add) for add in task.inputs]
    rows = _rows(splits, task.context.schema)
    lineage = Lineage(
        operation="compact", operation_id=ids.uuid(), replaces={split.add.path: split.rows for split in splits}
    )
    adds = sort_and_write(store, rows, context=task.context, ids=ids, now_ms=now_ms, lineage=lineage)
    removes = (removal(add, now_ms, changes_rows=False) for add in task.inputs)
    result = Rewrite(
        adds=tuple(replace(add, dataChange=False) for add in adds), removes=tuple(removes), rows_in=rows.num_rows
    )
    expected = sum(add.visible_rows for add in task.inputs)
    if not expected == result.rows_in == result.rows_out:
        counts = f"{expected} rows were expected, {result.rows_in} read and {result.rows_out} written"
        raise Corrupt(f"{counts}. Nothing was committed")
    return result


def _rows(splits: Sequence[OpenSplit], schema: pa.Schema) -> pa.Table:
    """Return the rows with the columns of the table.

    If the columns of the table never changed, return the rows with the columns of the splits.
    """
    if has_changed(schema):
        return pa.concat_tables([conform_split(split.read(), schema) for split in splits])
    union = invariants.union_schema([(split.add.path, split.schema) for split in splits])
    return pa.concat_tables([split.read() for split in splits], promote_options="default").select(union.names)
