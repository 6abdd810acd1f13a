"""Splits written anew, because their windows or their order are not what they should be.

Splits of windows of a former duration are written in the table's windows (decision 0136), and splits of cold windows in
longer ones (decision 0148). Splits of another sort schema are written in the order of the table's (decision 0186).

A piece of work reads splits of one scope, about one target size of them, and writes their rows by window and sorted.
Rows stay as they are. A change of windows keeps the sort schema, and a change of the sort schema keeps the windows.
Which windows become one run is up to the compaction.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.compaction import invariants
from storage_core.compaction.expiry import has_left
from storage_core.compaction.planner import contexts_of
from storage_core.compaction.scope import Scope, scope_of
from storage_core.compaction.skips import active_skips
from storage_core.errors import Corrupt
from storage_core.ids import Ids
from storage_core.log.actions import Add
from storage_core.log.encoding.action_json import read_actions, write_actions
from storage_core.log.files.columns import adds_of
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.rows.columns import has_changed
from storage_core.rows.sort_order import SortOrder, bind, nameless
from storage_core.rows.windows import by_start
from storage_core.settings.table import TableConfig
from storage_core.split.conform import conform_split
from storage_core.split.context import SplitContext
from storage_core.split.hidden import removal
from storage_core.split.lineage import Lineage
from storage_core.split.opened import OpenSplit
from storage_core.split.read import open_split
from storage_core.split.rewrite import Rewrite
from storage_core.split.write import sort_and_write

OPERATION = "REWINDOW"
RESORT_OPERATION = "RESORT"
"""The operations of the commits: splits in other windows, and splits in another order."""


@dataclass(frozen=True, slots=True)
class RewindowTask:
    """Write the rows of `inputs`, all of one scope, in the windows and the order of the context. Travels as JSON."""

    inputs: tuple[Add, ...]
    context: SplitContext

    @property
    def operation(self) -> str:
        """What the commit of its result calls itself in the log."""
        order = nameless(self.context.order.text)
        is_kept = all(add.sortSchema is None or nameless(add.sortSchema) == order for add in self.inputs)
        return OPERATION if is_kept else RESORT_OPERATION

    def to_json(self) -> str:
        """Return the text from which `from_json` makes an equal task."""
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
    """Return the work on splits whose windows have another duration than they should, by window; none without windows.

    That is the table's, and where cold windows are joined the longer one of windows that ended so long ago; with
    `joined_only` only the latter are returned, less those that a compaction failed on and skips.

    `windows` limits it to splits of windows that start there. As for a compaction those are left out that have no sort
    schema or one that does not fit the table now, that lie before the start of compaction, or that have left.
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
    """Return the work on splits whose sort schema is not the table's, by window; `windows` as for `plan`.

    Splits without a sort schema are left out, as are those that lie before the start of compaction or that have left.
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
    """Return the work on these splits, which are to have windows of these durations; `order` None keeps theirs."""
    by_scope: dict[tuple[Scope, int | None], list[Add]] = {}
    chosen = zip(adds_of(files), durations, strict=True)
    for add, duration in sorted(chosen, key=lambda each: (by_start(each[0].windowStart), each[0].path)):
        if (scope := scope_of(snapshot.table_id, add)) is not None:
            by_scope.setdefault((scope, duration), []).append(add)
    scopes = [scope for scope, _ in by_scope]
    if order is not None:  # which binds, where that of the splits need not
        scopes = [replace(scope, sort_schema=nameless(order.text)) for scope in scopes]
    contexts = contexts_of(snapshot, scopes)
    return [
        RewindowTask(part, replace(context, window_seconds=duration))
        for context, ((_, duration), adds) in zip(contexts, by_scope.items(), strict=True)
        if context is not None
        for part in _parts(adds, duration, snapshot.config.target_split_bytes)
    ]


def bounded(tasks: Sequence[RewindowTask], most_inputs: int) -> list[RewindowTask]:
    """Return the first of the tasks, that read so many splits at most, and one at least."""
    read = np.cumsum([len(each.inputs) for each in tasks])
    return list(tasks[: max(1, int(np.searchsorted(read, most_inputs, side="right")))])


def _durations(start: pa.ChunkedArray, seconds: pa.ChunkedArray, config: TableConfig, now_ms: int) -> pa.Array:
    """The duration that the window of each split should have. One that was joined to a longer one stays it."""
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
    """The splits by about so many bytes, those that begin in one window of the new duration together where they fit.

    Without a duration there are no windows to keep together.
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
    """Write the visible rows of the inputs in the windows of the context and return the actions that swap them.

    In memory are the rows of the inputs. One GET per input, one PUT per output. Running it again writes new files, and
    one run's result can be committed. Raises what `open_split` raises, `InvalidInput` for columns of unlike types.
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
        raise Corrupt(f"{counts}; nothing was committed")
    return result


def _rows(splits: Sequence[OpenSplit], schema: pa.Schema) -> pa.Table:
    """The rows with the columns of the table; if these never changed, with those that the splits have."""
    if has_changed(schema):
        return pa.concat_tables([conform_split(split.read(), schema) for split in splits])
    union = invariants.union_schema([(split.add.path, split.schema) for split in splits])
    return pa.concat_tables([split.read() for split in splits], promote_options="default").select(union.names)
