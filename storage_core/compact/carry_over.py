"""Carry-over of deletes: a compaction also hides the rows that are deleted while it runs (decision 0014).

So the compaction commits, and the rows stay deleted. Otherwise each delete would force a new plan, and a compaction of
a table with frequent deletes would never end. Lesson 26 only requires that no delete is undone. The order of a merge
depends only on its inputs. The module computes the order of the merge again from the sort columns of the inputs. The
order determines the position of each row in the outputs. A check compares the values of the deleted rows in the inputs
and in the outputs.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from storage_core.base.clock import Ids
from storage_core.base.errors import CommitConflict, Corrupt
from storage_core.compact.execute import sort_columns
from storage_core.compact.kernel import Runs, merge_order
from storage_core.compact.work import CompactionTask
from storage_core.data.rows import statistics
from storage_core.data.rows.keys import Positions, bitmap_of, positions
from storage_core.data.rows.statistics import RowFingerprint
from storage_core.log.actions import Action, Add, Fence, Remove
from storage_core.log.conflicts import RESTORES
from storage_core.log.snapshot import Snapshot
from storage_core.log.versions import read_version
from storage_core.split.deletion_vectors import deleted_rows, deleted_rows_of_each, vector_for
from storage_core.split.read import OpenSplit, open_split, outside
from storage_core.split.writer import Rewrite
from storage_core.store.contract import ObjectStore

_logger = logging.getLogger(__name__)

_ROWS_AT_ONCE = 65_536

Places = Mapping[int, BitMap]
"""Positions of rows in each file. The key is the number of the file among the inputs or outputs of a merge."""


class CarryOver:
    """The `rebase` function for the commit of these merges.

    If rows were deleted from the inputs, this function hides the same rows in the outputs.

    If the last row of an input is superseded or deleted, the input leaves the table. All rows of the input then count
    as deleted. If another commit removed an input for a different reason, the checks of the commit handle this input.

    Raises:
        CommitConflict: deleted rows were restored, or no split is left to replace.
        Corrupt: MC-2, if a row is not at its computed position.

    Cost:
        If nothing was deleted, only the lookups of the inputs. Otherwise each merge with deleted rows has these costs.
        For each input with a changed deletion vector, one GET of the old and one GET of the new vector if they are
        stored. `deletion_vectors.PARALLEL_READS` of these GETs run at a time. Ranged GETs of the sort columns, once.
        Ranged GETs of the row groups of the deleted rows in inputs and outputs. One PUT per stored deletion vector. If
        an input is not live, one GET per version since the plan.
    """

    def __init__(self, store: ObjectStore, merges: Sequence[tuple[CompactionTask, Rewrite]], *, ids: Ids) -> None:
        self._store = store
        self._merges = [_Carried(store, ids, task, result.adds) for task, result in merges]
        self._last: tuple[int, Sequence[Action]] | None = None

    def __call__(self, actions: Sequence[Action], head: Snapshot) -> Sequence[Action]:
        """Return the actions for the version `head`, without splits that have no rows left."""
        if self._last is None or self._last[0] != head.version:
            self._last = head.version, self._rebased(actions, head)
        return self._last[1]

    def _rebased(self, actions: Sequence[Action], head: Snapshot) -> Sequence[Action]:
        removed = [each.path for each in actions if isinstance(each, Remove)]
        missing = {path for path in removed if path not in head.splits}
        ended = self._ended(head) & missing if missing else missing
        if ended != missing:
            return actions
        if removed and len(ended) == len(removed):
            raise CommitConflict(
                f"other commits deleted or replaced every row of the {len(removed)} splits to compact. There is "
                "nothing to commit. "
                "Plan again"
            )
        marked = {path: add for merge in self._merges for path, add in merge.marked(head).items()}
        changed = [marked.get(each.path, each) if isinstance(each, Add) else each for each in actions]
        return [each for each in changed if not _is_over(each, ended)]

    def _ended(self, head: Snapshot) -> set[str]:
        """Return the splits that left the table because their last row was superseded or deleted.

        A merge, a statement or the retention removes these splits, in commits that change rows. The result does not
        contain splits that a compaction or a restore removed. A compaction does not change rows, and a restore may
        bring rows back. If a version since the plan no longer exists, the result is empty, because the reason for a
        removal is unknown.
        """
        ended: set[str] = set()
        planned = min(merge.task.context.planned_version for merge in self._merges)
        for version in range(planned + 1, head.version + 1):
            commit = read_version(self._store, version)
            if commit is None:
                return set()
            ended -= {each.path for each in commit if isinstance(each, Add | Remove)}
            if not any(isinstance(each, Fence) and each.resource == RESTORES for each in commit):
                ended |= {each.path for each in commit if isinstance(each, Remove) and each.dataChange}
        return ended


def _is_over(action: Action, ended: Collection[str]) -> bool:
    match action:
        case Add():
            return action.deleted_rows is not None and not action.visible_rows
        case Remove():
            return action.path in ended
        case _:
            return False


@dataclass(slots=True, eq=False)
class _Carried:
    """One merge: `_checked` are input rows checked so far, and `_hidden` are output rows hidden so far."""

    store: ObjectStore
    ids: Ids
    task: CompactionTask
    outputs: Sequence[Add]
    _route: _Route | None = None
    _checked: dict[int, BitMap] = field(default_factory=dict)
    _hidden: dict[int, tuple[BitMap, Add]] = field(default_factory=dict)

    def marked(self, head: Snapshot) -> dict[str, Add]:
        """Return the outputs that contain deleted rows on `head`, with deletion vectors that hide these rows.

        All rows of an input that is not live count as deleted.
        """
        newly = self._newly(head)
        if not newly:
            return {}
        if self._route is None:
            self._route = _Route.of(self.store, self.task, self.outputs)
        self._check({number: rows - self._checked.get(number, BitMap()) for number, rows in newly.items()}, self._route)
        self._checked |= newly
        hidden = self._route.outputs_of(newly)
        _logger.info(
            "window %s: %d rows that were deleted since version %d are hidden in %d of %d outputs",
            self.task.window,
            sum(map(len, newly.values())),
            self.task.context.planned_version,
            len(hidden),
            len(self.outputs),
        )
        return {self.outputs[number].path: self._add(number, rows) for number, rows in hidden.items()}

    def _newly(self, head: Snapshot) -> Places:
        """Return the rows of the inputs that are deleted on `head` and were not deleted in the plan."""
        live = [head.splits.get(add.path) for add in self.task.inputs]
        changed = {
            number: (planned, now)
            for number, (planned, now) in enumerate(zip(self.task.inputs, live, strict=True))
            if now is None or now.deleted_rows != planned.deleted_rows
        }
        marked = {number: now for number, (_, now) in changed.items() if now is not None}
        deleted_then = deleted_rows_of_each(self.store, [planned for planned, _ in changed.values()])
        deleted_now = dict(zip(marked, deleted_rows_of_each(self.store, [*marked.values()]), strict=True))
        newly: dict[int, BitMap] = {}
        for (number, (planned, _)), before in zip(changed.items(), deleted_then, strict=True):
            after = deleted_now[number] if number in deleted_now else BitMap(range(planned.numRecords or 0))
            if not before <= after:
                raise CommitConflict(
                    f"{planned.path}: {len(before - after)} of its deleted rows were restored between version "
                    f"{self.task.context.planned_version} and {head.version}. Plan again",
                    path=planned.path,
                )
            newly[number] = after - before - outside(planned, self.task.row_range(number))
        return {number: rows for number, rows in newly.items() if rows}

    def _add(self, number: int, rows: BitMap) -> Add:
        """Return the output with these rows hidden. Repeated calls with the same rows return the same result."""
        known = self._hidden.get(number)
        if known is None or known[0] != rows:
            add = self.outputs[number]
            self._hidden[number] = rows, replace(add, deletionVector=vector_for(self.store, add, rows, ids=self.ids))
        return self._hidden[number][1]

    def _check(self, newly: Places, route: _Route) -> None:
        schema = self.task.context.schema
        expected = _rows_at(self.store, self.task.inputs, newly, schema)
        found = _rows_at(self.store, self.outputs, route.outputs_of(newly), schema)
        if expected != found:
            inputs = ", ".join(self.task.inputs[number].path for number in newly)
            raise Corrupt(
                f"MC-2: the {expected.rows} deleted rows of {inputs} have the fingerprint {expected.digest:x}. The "
                f"{found.rows} rows at the same places in the outputs have the fingerprint {found.digest:x}. "
                "Nothing was committed"
            )


@dataclass(frozen=True, slots=True, eq=False)
class _Route:
    """The positions of the input rows in the outputs.

    Memory: the runs of the merge order, and the deletion vectors of the input splits.
    """

    runs: Runs
    run_firsts: Positions
    firsts: Sequence[int]
    deleted: Sequence[Positions]
    output_ends: Positions

    @staticmethod
    def of(store: ObjectStore, task: CompactionTask, outputs: Sequence[Add]) -> _Route:
        """Compute the order of the merge again, from the inputs as they were at the time of the plan."""
        order, numbers = task.context.order, range(len(task.inputs))
        splits = [_opened(store, task, number).of_table(task.context.schema) for number in numbers]
        runs = merge_order([split.read(sort_columns(split, order)) for split in splits], order).runs
        written = [add.numRecords or 0 for add in outputs]
        ends = np.cumsum(written, dtype=np.int64)
        if runs.rows != sum(written):
            raise Corrupt(
                f"MC-1: the {len(splits)} inputs of window {task.window} have {runs.rows} rows, but the outputs have "
                f"{sum(written)} rows. Nothing was committed"
            )
        firsts = np.cumsum(runs.count) - runs.count
        ranges = [task.row_range(number) for number in numbers]
        # For a part of a merge, `split.deleted` includes all rows outside the range of the part, possibly millions. To
        # save memory, the code here uses only the start of the range instead of the rows before the range.
        within = [split.deleted & BitMap(range(*rows)) for split, rows in zip(splits, ranges, strict=True)]
        return _Route(runs, firsts, [first for first, _ in ranges], [positions(each) for each in within], ends)

    def outputs_of(self, rows: Places) -> dict[int, BitMap]:
        """Return the output positions of these input rows. The rows must be rows that the merge read."""
        found: dict[int, BitMap] = {}
        for number, places in rows.items():
            row = self._output_rows(number, positions(places))
            output = np.searchsorted(self.output_ends, row, side="right")
            first = np.concatenate(([0], self.output_ends[:-1]))
            for each in np.unique(output):
                there = bitmap_of(row[output == each] - first[each])
                found[int(each)] = found.get(int(each), BitMap()) | there
        return found

    def _output_rows(self, number: int, places: Positions) -> Positions:
        # The merge did not read rows that were already deleted, so positions are counted without these rows.
        visible = places - self.firsts[number] - np.searchsorted(self.deleted[number], places)
        own = np.flatnonzero(self.runs.input == number)
        own = own[np.argsort(self.runs.start[own], kind="stable")]
        run = own[np.searchsorted(self.runs.start[own], visible, side="right") - 1]
        found: Positions = self.run_firsts[run] + visible - self.runs.start[run]
        return found


def _opened(store: ObjectStore, task: CompactionTask, number: int) -> OpenSplit:
    """Open an input with the rows that the merge read."""
    add = task.inputs[number]
    hidden = None if task.part is None else deleted_rows(store, add) | outside(add, task.row_range(number))
    return open_split(store, add, whole=False, as_dictionary=True, deleted=hidden)


def _rows_at(store: ObjectStore, splits: Sequence[Add], places: Places, schema: pa.Schema) -> RowFingerprint:
    """Return the fingerprint of all values of these rows. A limited number of rows is in memory at a time."""
    return reduce(statistics.combine, _fingerprints(store, splits, places, schema), statistics.NO_ROWS)


def _fingerprints(
    store: ObjectStore, splits: Sequence[Add], places: Places, schema: pa.Schema
) -> Iterator[RowFingerprint]:
    for number, rows in places.items():
        if rows:
            split = open_split(store, splits[number], whole=False).of_table(schema)
            wanted = positions(rows)
            for start in range(0, len(wanted), _ROWS_AT_ONCE):
                yield statistics.fingerprint_of(split.take(wanted[start : start + _ROWS_AT_ONCE]))
