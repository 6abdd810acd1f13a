"""What there is to compact: a pure function of a snapshot (design page 04, "Compatibility scope" and "Policy").

Splits are grouped by scope and window; a group of two or more small splits becomes one operation. Splits of half the
target size and more are mature and left alone, so what a compaction wrote is not rewritten by the next one. A split of
which more than a third of the rows is deleted is worn: it is rewritten whatever its size, also alone.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from storage_core.compaction.scope import Scope, recorded_order, scope_of
from storage_core.log.action_json import read_actions, write_actions
from storage_core.log.actions import Add, MergeSkip
from storage_core.log.snapshot import Snapshot
from storage_core.split.write import SplitContext, context_of

OPERATION = "compact"

WORN_SHARE = 1 / 3
"""Readers read at most half as much again as they need, and a rewrite copies at most two rows per deleted one."""


@dataclass(frozen=True, slots=True)
class MergeOperation:
    """Rewrite `inputs`, all of one scope and one window, into as few splits as their size allows. Travels as JSON."""

    window: int | None
    inputs: tuple[Add, ...]
    context: SplitContext

    def to_json(self) -> str:
        """Return the text from which `from_json` makes an equal operation."""
        body = {"window": self.window, "inputs": write_actions(self.inputs), "context": self.context.to_json()}
        return json.dumps(body, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> MergeOperation:
        """Return the operation that `to_json` wrote."""
        body = json.loads(text)
        inputs = read_actions(body["inputs"], Add, "merge operation")
        return MergeOperation(body["window"], inputs, SplitContext.from_json(body["context"]))


@dataclass(frozen=True, slots=True)
class WindowDebt:
    """What a compaction of one window would read now."""

    window_start: int | None
    splits: int
    rows: int
    bytes: int


def plan(
    snapshot: Snapshot, *, windows: Collection[int | None] | None = None, now_ms: int | None = None
) -> list[MergeOperation]:
    """Return the merges worth doing, ordered by window with the null window last; the same snapshot, the same plan.

    `windows` limits the plan to those window starts (None: the bucket of null timestamps, and tables without windows).
    Splits with a mergeskip of this operation that has not run out at `now_ms` (default: the time of the snapshot's
    commit) are left out, as are those whose sort schema does not fit the table now. Deletion vectors are applied: rows
    that a merge deletes meanwhile make the commit fail and never come back (lesson 26).
    """
    at_ms = snapshot.timestamp if now_ms is None else now_ms
    skipped = _active_skips(snapshot.mergeskips.values(), at_ms)
    groups: dict[tuple[Scope, int | None], list[Add]] = {}
    for add in snapshot.splits.values():
        scope = scope_of(snapshot.table_id, add)
        if scope is not None and add.path not in skipped and _is_candidate(add, snapshot, windows):
            groups.setdefault((scope, add.windowStart), []).append(add)
    wanting = [(scope, adds) for (scope, _), adds in groups.items() if len(adds) > 1 or any(map(_is_worn, adds))]
    operations = [_operation(snapshot, scope, adds) for scope, adds in wanting]
    return sorted((each for each in operations if each is not None), key=_plan_order)


def debt(snapshot: Snapshot, *, now_ms: int | None = None) -> list[WindowDebt]:
    """Return the windows in which `plan` finds something to do, in its order, with what it would read there."""
    by_window: dict[int | None, list[Add]] = {}
    for operation in plan(snapshot, now_ms=now_ms):
        by_window.setdefault(operation.window, []).extend(operation.inputs)
    return [
        WindowDebt(window, len(adds), sum(add.visible_rows for add in adds), sum(add.size for add in adds))
        for window, adds in by_window.items()
    ]


def _is_candidate(add: Add, snapshot: Snapshot, windows: Collection[int | None] | None) -> bool:
    wanted = windows is None or add.windowStart in windows
    return wanted and (_visible_bytes(add) < snapshot.config.target_split_bytes / 2 or _is_worn(add))


def _visible_bytes(add: Add) -> float:
    """What the split would take without its deleted rows."""
    return add.size * add.visible_rows / add.numRecords if add.numRecords else add.size


def _is_worn(add: Add) -> bool:
    gone = 0 if add.rows_gone is None else add.rows_gone.cardinality
    return gone > WORN_SHARE * (add.numRecords or gone)


def _active_skips(skips: Iterable[MergeSkip], now_ms: int) -> frozenset[str]:
    return frozenset(
        skip.path
        for skip in skips
        if skip.operation == OPERATION and (skip.retryAfter is None or skip.retryAfter > now_ms)
    )


def _operation(snapshot: Snapshot, scope: Scope, adds: list[Add]) -> MergeOperation | None:
    """Inputs are in the order of their commits: rows with equal keys keep it."""
    ordered = sorted(adds, key=lambda add: (snapshot.splits.added_at(add.path), add.path))
    context = _context(snapshot, scope)
    return None if context is None else MergeOperation(adds[0].windowStart, tuple(ordered), context)


def _context(snapshot: Snapshot, scope: Scope) -> SplitContext | None:
    """The context of the inputs, not of new splits: splits keep the sort schema and window they were written with."""
    order = recorded_order(scope.sort_schema, snapshot.config, snapshot.schema)
    if order is None:
        return None
    return replace(
        context_of(snapshot),
        order=order,
        window_seconds=scope.window_seconds,
        source_id=scope.source_id,
        partition_id=scope.partition_id,
        schema_ref=scope.schema_ref or None,
    )


def _plan_order(operation: MergeOperation) -> tuple[bool, int, str]:
    return operation.window is None, operation.window or 0, operation.inputs[0].path
