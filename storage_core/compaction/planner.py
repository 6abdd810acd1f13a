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
from storage_core.compaction.merges import MOST_INPUTS, REASONS, Merges, Reason, bounded
from storage_core.compaction.policy import Mode, Rules
from storage_core.compaction.scope import Scope, recorded_order
from storage_core.log.action_json import read_actions, write_actions
from storage_core.log.actions import Add, MergeSkip
from storage_core.log.file_columns import adds_of, rows_at
from storage_core.log.snapshot import Snapshot
from storage_core.split.context import SplitContext, context_of

OPERATION = "compact"


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

    It reads `bytes` and writes about `live_bytes` of them, in `outputs` splits or one more per merge: so many PUTs for
    `splits` GETs at least.
    """

    window_start: int | None
    splits: int
    rows: int
    bytes: int
    live_bytes: int
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
    retry_skipped: bool = False,
) -> list[MergeOperation]:
    """Return the merges worth doing, ordered by window with the null window last; the same snapshot, the same plan.

    `windows` limits the plan to those window starts (None: the bucket of null timestamps, and tables without windows).
    Splits with a mergeskip of this operation that has not run out at `now_ms` (default: the time of the snapshot's
    commit) are left out unless `retry_skipped`, as are those whose sort schema does not fit the table now. A plan ends
    with the merge by which it has `most_inputs`; every window has its first merge before one has its second, and the
    rest is the next plan's.
    Deletion vectors are applied. Rows that are deleted from then on never come back (lesson 26): `carry_over` hides
    them in the outputs, and without it the commit fails.
    """
    chosen = _choose(snapshot, windows, now_ms, mode, retry_skipped=retry_skipped)
    return chosen.operations(bounded(chosen.merges, most_inputs))


def debt(
    snapshot: Snapshot,
    *,
    now_ms: int | None = None,
    mode: Mode = Mode.FINALIZE,
    most_inputs: int | None = None,
) -> list[WindowDebt]:
    """Return the windows in which `plan` finds something to do, in its order, with what all its merges would read.

    With `most_inputs` it is of the merges of one such plan only.
    """
    chosen = _choose(snapshot, None, now_ms, mode)
    if not len(chosen.merges):
        return []
    if most_inputs is not None:
        chosen = replace(chosen, merges=bounded(chosen.merges, most_inputs))
    return _debt(chosen, snapshot.config.target_split_bytes)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The merges of the policy, and the columns that their rows point into."""

    files: pa.Table
    found: Grouped
    merges: Merges
    contexts: Sequence[SplitContext | None]

    def operations(self, merges: Merges) -> list[MergeOperation]:
        """Return some of the merges as operations; only their splits become records."""
        inputs = iter(adds_of(rows_at(self.files, self.found.place[merges.rows])))
        return [
            MergeOperation(
                self.found.window(merge.group), tuple(islice(inputs, len(merge.rows))), context, merge.merges
            )
            for merge in merges.records()
            if (context := self.contexts[self.found.scope[merge.group]]) is not None
        ]


def _choose(
    snapshot: Snapshot,
    windows: Collection[int | None] | None,
    now_ms: int | None,
    mode: Mode,
    *,
    retry_skipped: bool = False,
) -> _Chosen:
    at_ms = snapshot.timestamp if now_ms is None else now_ms
    skipped = frozenset[str]() if retry_skipped else active_skips(snapshot.mergeskips.values(), at_ms)
    found = group(snapshot, windows=windows, skipped=skipped, now_ms=at_ms)
    config = snapshot.config
    rules = Rules(settings=config.compaction, target_bytes=config.target_split_bytes, now_ms=at_ms, mode=mode)
    contexts = _contexts(snapshot, found.scopes)
    fits = np.array([context is not None for context in contexts], np.bool_)
    merges = policy.choose(found.splits, rules)
    return _Chosen(snapshot.splits.table(), found, merges.take(fits[found.scope[merges.group]]), contexts)


def _debt(chosen: _Chosen, target_bytes: int) -> list[WindowDebt]:
    """Sums over the merges of a window, which follow one another even where it holds several scopes."""
    merges, found = chosen.merges, chosen.found
    window = found.windows[merges.group]
    first = np.flatnonzero(np.append(True, window[1:] != window[:-1]))
    size = chosen.files.column("size").to_numpy()[found.place[merges.rows]]
    visible = np.add.reduceat(found.splits.bytes[merges.rows], merges.first)
    of_merges = (merges.count, np.maximum(1, np.rint(visible / target_bytes)).astype(np.int64), visible)
    splits, outputs, live_bytes = (np.add.reduceat(each, first).tolist() for each in of_merges)
    of_splits = (found.splits.rows[merges.rows], size)
    rows, bytes_ = (np.add.reduceat(each, merges.first[first]).tolist() for each in of_splits)
    reasons = np.bitwise_or.reduceat(1 << merges.reason, first).tolist()
    named = {mask: tuple(sorted(each for place, each in enumerate(REASONS) if mask >> place & 1)) for mask in reasons}
    return [
        WindowDebt(
            window_start=found.window(int(merges.group[at])),
            splits=splits[place],
            rows=rows[place],
            bytes=bytes_[place],
            live_bytes=live_bytes[place],
            merges=count,
            outputs=outputs[place],
            reasons=named[reasons[place]],
        )
        for place, (at, count) in enumerate(
            zip(first.tolist(), np.diff(first, append=len(merges)).tolist(), strict=True)
        )
    ]


def active_skips(skips: Iterable[MergeSkip], now_ms: int) -> frozenset[str]:
    """Return the paths that a compaction leaves out at `now_ms`."""
    return frozenset(
        skip.path
        for skip in skips
        if skip.operation == OPERATION and (skip.retryAfter is None or skip.retryAfter > now_ms)
    )


def _contexts(snapshot: Snapshot, scopes: Sequence[Scope]) -> list[SplitContext | None]:
    """The contexts of the inputs, not of new splits: splits keep the sort schema and window they were written with.

    There may be thousands of scopes, of a few sort schemas: each of those is bound once.
    """
    current = context_of(snapshot)
    texts = {scope.sort_schema for scope in scopes}
    orders = {text: recorded_order(text, snapshot.config, snapshot.schema) for text in texts}
    return [
        None
        if (order := orders[scope.sort_schema]) is None
        else replace(
            current,
            order=order,
            window_seconds=scope.window_seconds,
            source_id=scope.source_id,
            partition_id=scope.partition_id,
            schema_ref=scope.schema_ref or None,
        )
        for scope in scopes
    ]
