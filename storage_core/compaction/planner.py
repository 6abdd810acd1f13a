"""What there is to compact: a pure function of a snapshot (docs/architecture/compaction.md, "Compatibility scope" and
"Policy").

What may be merged is found by `groups`, what is worth merging by `policy`, both on columns; only the splits of merges
that are made now become records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import pyarrow as pa

from storage_core.compaction import policy
from storage_core.compaction.groups import Grouped, group
from storage_core.compaction.merges import Merges, bounded
from storage_core.compaction.policy import Mode, Rules
from storage_core.compaction.scope import Scope
from storage_core.compaction.skips import active_skips
from storage_core.compaction.work import CompactionTask
from storage_core.log.files.columns import adds_of, rows_at
from storage_core.log.snapshot import Snapshot
from storage_core.rows.sort_order import recorded_order
from storage_core.split.context import SplitContext, context_of

PART_INPUTS = 5_000
"""How many splits of a plan are records at a time: with bounds of one column 17 MB, of ten 45."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The merges of the policy, and the columns that their rows point into: nothing is a record yet."""

    files: pa.Table
    found: Grouped
    merges: Merges
    contexts: Sequence[SplitContext | None]
    target_bytes: int

    def __len__(self) -> int:
        """Return the number of merges."""
        return len(self.merges)

    def first(self, most_inputs: int) -> Chosen:
        """Return the merges that one plan makes (`merges.bounded`)."""
        is_all = len(self.merges.rows) <= most_inputs
        return self if is_all else replace(self, merges=bounded(self.merges, most_inputs))

    def parts(self) -> Iterator[list[CompactionTask]]:
        """Yield the tasks in parts that read at most `PART_INPUTS` splits, if not one merge does.

        Records are made of one part at a time. A window is in one part, unless it has more than that by itself.
        """
        read, first = np.cumsum(self.merges.count), 0
        window = self.found.windows[self.merges.group]
        while first < len(self):
            done = int(read[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(read, done + PART_INPUTS, side="right")))
            if last < len(self):
                begun = int(np.searchsorted(window, window[last]))
                last = begun if begun > first else last
            yield replace(self, merges=self.merges.take(np.arange(first, last))).tasks()
            first = last

    def tasks(self) -> list[CompactionTask]:
        """Return the merges as tasks; only their splits become records."""
        inputs = iter(adds_of(rows_at(self.files, self.found.place[self.merges.rows])))
        return [
            CompactionTask(
                self.found.window(merge.group), tuple(islice(inputs, len(merge.rows))), context, merge.merges
            )
            for merge in self.merges.records()
            if (context := self.contexts[self.found.scope[merge.group]]) is not None
        ]


def choose(
    snapshot: Snapshot,
    *,
    windows: Collection[int | None] | None = None,
    now_ms: int | None = None,
    mode: Mode = Mode.FINALIZE,
    retry_skipped: bool = False,
) -> Chosen:
    """Return all merges worth doing, ordered by window with the null window last; the same snapshot, the same merges.

    Those of all windows, or of the `windows` with these starts; the start None is that of the bucket of null
    timestamps, and of a table without windows.
    Splits with a mergeskip of this operation that has not run out at `now_ms` (default: the time of the snapshot's
    commit) are left out unless `retry_skipped`, as are those whose sort schema does not fit the table now. Of very many
    merges one run does those of `Chosen.first`; the rest is the next run's.
    Deletion vectors are applied. Rows that are deleted from then on never come back (lesson 26): `carry_over` hides
    them in the outputs, and without it the commit fails.
    """
    at_ms = snapshot.timestamp if now_ms is None else now_ms
    skipped = frozenset[str]() if retry_skipped else active_skips(snapshot.mergeskips.values(), at_ms)
    found = group(snapshot, windows=windows, skipped=skipped, now_ms=at_ms)
    config = snapshot.config
    rules = Rules(settings=config.compaction, target_bytes=config.target_split_bytes, now_ms=at_ms, mode=mode)
    contexts = contexts_of(snapshot, found.scopes)
    fits = np.array([context is not None for context in contexts], np.bool_)
    merges = policy.choose(found.splits, rules)
    return Chosen(
        files=snapshot.splits.table(),
        found=found,
        merges=merges.take(fits[found.scope[merges.group]]),
        contexts=contexts,
        target_bytes=config.target_split_bytes,
    )


def contexts_of(snapshot: Snapshot, scopes: Sequence[Scope]) -> list[SplitContext | None]:
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
