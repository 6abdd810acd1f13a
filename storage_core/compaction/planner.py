"""What there is to compact: a pure function of a snapshot (design page 04, "Compatibility scope" and "Policy").

What may be merged is found by `groups`, what is worth merging by `policy`, both on columns; only the splits of merges
that are made now become records.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import pyarrow as pa

from storage_core.compaction import policy
from storage_core.compaction.groups import Grouped, group
from storage_core.compaction.policy import Ints, Merge, Mode, Reason, Rules
from storage_core.compaction.scope import Scope, recorded_order
from storage_core.log.action_json import read_actions, write_actions
from storage_core.log.actions import Add, MergeSkip
from storage_core.log.file_columns import adds_of
from storage_core.log.snapshot import Snapshot
from storage_core.split.context import SplitContext, context_of

OPERATION = "compact"

MOST_INPUTS = 10_000
"""How many splits one plan replaces: a commit that names more of them is slow to write and to read for ever."""


@dataclass(frozen=True, slots=True)
class MergeOperation:
    """Rewrite `inputs`, all of one scope and one window, into as few splits as their size allows. Travels as JSON.

    The outputs record `merge_ops` as their number of merges.
    """

    window: int | None
    inputs: tuple[Add, ...]
    context: SplitContext
    merge_ops: int = 1

    def to_json(self) -> str:
        """Return the text from which `from_json` makes an equal operation."""
        body = {
            "window": self.window,
            "inputs": write_actions(self.inputs),
            "context": self.context.to_json(),
            "mergeOps": self.merge_ops,
        }
        return json.dumps(body, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> MergeOperation:
        """Return the operation that `to_json` wrote."""
        body = json.loads(text)
        inputs = read_actions(body["inputs"], Add, "merge operation")
        return MergeOperation(body["window"], inputs, SplitContext.from_json(body["context"]), body["mergeOps"])


@dataclass(frozen=True, slots=True)
class WindowDebt:
    """What a compaction of one window would read now, in how many `merges`, and why.

    It writes about as many `bytes` as it reads, in `outputs` splits or one more per merge: so many PUTs for `splits`
    GETs at least.
    """

    window_start: int | None
    splits: int
    rows: int
    bytes: int
    merges: int
    outputs: int
    reasons: tuple[Reason, ...]


def plan(
    snapshot: Snapshot,
    *,
    windows: Collection[int | None] | None = None,
    now_ms: int | None = None,
    mode: Mode = Mode.FINALIZE,
    most_inputs: int = MOST_INPUTS,
) -> list[MergeOperation]:
    """Return the merges worth doing, ordered by window with the null window last; the same snapshot, the same plan.

    `windows` limits the plan to those window starts (None: the bucket of null timestamps, and tables without windows).
    Splits with a mergeskip of this operation that has not run out at `now_ms` (default: the time of the snapshot's
    commit) are left out, as are those whose sort schema does not fit the table now. A plan ends with the merge by which
    it has `most_inputs`; every window has its first merge before one has its second, and the rest is the next plan's.
    Deletion vectors are applied: rows that a merge deletes meanwhile make the commit fail and never come back
    (lesson 26).
    """
    chosen = _choose(snapshot, windows, now_ms, mode)
    return chosen.operations(most_inputs)


def debt(snapshot: Snapshot, *, now_ms: int | None = None, mode: Mode = Mode.FINALIZE) -> list[WindowDebt]:
    """Return the windows in which `plan` finds something to do, in its order, with what all its merges would read."""
    chosen = _choose(snapshot, None, now_ms, mode)
    target = snapshot.config.target_split_bytes
    by_window: dict[int | None, list[Merge]] = {}
    for merge in chosen.merges:
        by_window.setdefault(chosen.found.windows[merge.group], []).append(merge)
    size = chosen.files.column("size").to_numpy()[chosen.found.place]
    return [_debt(window, merges, _Figures(chosen.found, size, target)) for window, merges in by_window.items()]


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The merges of the policy, and the columns that their rows point into."""

    files: pa.Table
    found: Grouped
    merges: Sequence[Merge]
    contexts: Sequence[SplitContext | None]

    def operations(self, most_inputs: int) -> list[MergeOperation]:
        merges = _bounded(self.merges, most_inputs)
        rows = [row for merge in merges for row in merge.rows]
        inputs = iter(adds_of(self.files.take(pa.array(self.found.place[rows], pa.int64()))))
        return [
            MergeOperation(
                self.found.windows[merge.group], tuple(islice(inputs, len(merge.rows))), context, merge.merges
            )
            for merge in merges
            if (context := self.contexts[self.found.scope[merge.group]]) is not None
        ]


def _choose(snapshot: Snapshot, windows: Collection[int | None] | None, now_ms: int | None, mode: Mode) -> _Chosen:
    at_ms = snapshot.timestamp if now_ms is None else now_ms
    skipped = active_skips(snapshot.mergeskips.values(), at_ms)
    found = group(snapshot, windows=windows, skipped=skipped, now_ms=at_ms)
    config = snapshot.config
    rules = Rules(settings=config.compaction, target_bytes=config.target_split_bytes, now_ms=at_ms, mode=mode)
    contexts = [_context(snapshot, scope) for scope in found.scopes]
    merges = [merge for merge in policy.choose(found.splits, rules) if contexts[found.scope[merge.group]] is not None]
    return _Chosen(snapshot.splits.table(), found, merges, contexts)


def _bounded(merges: Sequence[Merge], most_inputs: int) -> list[Merge]:
    """The merges to do first, in the given order: a window with very many does not keep the others waiting."""
    turns: dict[int, int] = {}
    turn_of = []
    for merge in merges:
        turn_of.append(turns.get(merge.group, 0))
        turns[merge.group] = turn_of[-1] + 1
    first = sorted(range(len(merges)), key=turn_of.__getitem__)
    read = np.cumsum([len(merges[each].rows) for each in first])
    taken = first[: int(np.searchsorted(read, most_inputs)) + 1]
    return [merges[each] for each in sorted(taken)]


@dataclass(frozen=True, slots=True)
class _Figures:
    """What debt is counted from: the columns of the policy, and the size of each split as it is stored."""

    found: Grouped
    size: Ints
    target_bytes: int


def _debt(window: int | None, merges: Sequence[Merge], figures: _Figures) -> WindowDebt:
    rows = [np.array(merge.rows, np.int64) for merge in merges]
    every = np.concatenate(rows)
    visible = [int(figures.found.splits.bytes[each].sum()) for each in rows]
    return WindowDebt(
        window_start=window,
        splits=len(every),
        rows=int(figures.found.rows[every].sum()),
        bytes=int(figures.size[every].sum()),
        merges=len(merges),
        outputs=sum(max(1, round(each / figures.target_bytes)) for each in visible),
        reasons=tuple(sorted({merge.reason for merge in merges})),
    )


def active_skips(skips: Iterable[MergeSkip], now_ms: int) -> frozenset[str]:
    """Return the paths that a compaction leaves out at `now_ms`."""
    return frozenset(
        skip.path
        for skip in skips
        if skip.operation == OPERATION and (skip.retryAfter is None or skip.retryAfter > now_ms)
    )


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
