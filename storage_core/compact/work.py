"""Units of compaction work: merges as columns, tasks as JSON, and records of skipped splits (mergeskips).

- `Merges` contains the merges that the policy selected, as columns. A window of a million splits has eighty thousand
  merges. Only the merges of the next run are loaded as Python objects.
- `CompactionTask` is one unit of work as JSON. The answer to a task is a `split.writer.Rewrite`. Spark tasks import
  only this module, `execute` and the modules that `execute` imports. The selection of the work (`planner`) runs on the
  driver.
- A mergeskip makes compactions skip a split. If a merge fails because of its inputs, these inputs are skipped for a day
  ("Policy"). A damaged split therefore does not stop its window forever, and does not stop other windows.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.base.errors import Corrupt, InvalidInput, NotFound, Unsupported
from storage_core.base.text import fitted
from storage_core.data.settings.layout import MOST_RUN_INPUTS, CompactionSettings
from storage_core.log.actions import Add, MergeSkip, read_actions, write_actions
from storage_core.log.snapshot import Snapshot
from storage_core.split.context import SplitContext
from storage_core.split.read import RowRange

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

MOST_INPUTS = 80_000
"""Maximum number of splits that one run replaces.

An hourly run of a table that gets 1,000 splits a minute must replace 65,416 splits (`docs/compaction-policy.md`). At
any time, the driver has only a part of these splits as Python objects and as JSON (`planner.Chosen.parts`, decision
0015).
"""


class Reason(StrEnum):
    """The reason of a merge.

    A merge is due if a merge level has many splits or many bytes. A merge is also due if the window has late data, too
    many files, or deleted rows. A user can also request a merge.
    """

    COUNT = "count"
    SIZE = "size"
    LATE = "late"
    FILES = "files"
    HIGH_DELETE_RATIO = "high_delete_ratio"
    REQUESTED = "requested"


REASONS = tuple(Reason)


@dataclass(frozen=True, slots=True)
class Merge:
    """A merge of splits. `rows` contains the positions of these splits in the columns of the policy.

    The oldest split comes first. Each output stores `merges` as its number of merges.
    """

    rows: tuple[int, ...]
    group: int
    merges: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Merges:
    """Merges as columns. `rows` has the inputs of all merges one after the other.

    Merge i reads `count[i]` of these rows. Each element of `rows` is the position of a split in the columns of
    `policy.Splits`. `merges` is the number of merges that the outputs store. `reason` is a position in `REASONS`.
    """

    rows: Ints
    count: Ints
    group: Ints
    merges: Ints
    reason: Ints

    def __len__(self) -> int:
        """Return the number of merges."""
        return len(self.count)

    @property
    def first(self) -> Ints:
        """The position in `rows` of the first input of each merge."""
        return np.cumsum(self.count) - self.count

    def take(self, places: Ints | Flags) -> Merges:
        """Return the merges at these positions, or the merges that are marked.

        The order is the order of the argument.
        """
        first, count = self.first[places], self.count[places]
        return Merges(
            rows=self.rows[ranges(first, count)],
            count=count,
            group=self.group[places],
            merges=self.merges[places],
            reason=self.reason[places],
        )

    def records(self) -> list[Merge]:
        """Return one record per merge."""
        rows = self.rows.tolist()
        columns = (each.tolist() for each in (self.first, self.count, self.group, self.merges, self.reason))
        return [
            Merge(tuple(rows[first : first + count]), group, merges, REASONS[reason])
            for first, count, group, merges, reason in zip(*columns, strict=True)
        ]


NO_MERGES = Merges(**dict.fromkeys(("rows", "count", "group", "merges", "reason"), np.zeros(0, np.int64)))


def in_order(parts: Sequence[Merges]) -> Merges:
    """Return the merges of all parts, ordered by group, and within a group by the oldest split.

    No split is in two merges.
    """
    whole = Merges(
        rows=np.concatenate([each.rows for each in parts]),
        count=np.concatenate([each.count for each in parts]),
        group=np.concatenate([each.group for each in parts]),
        merges=np.concatenate([each.merges for each in parts]),
        reason=np.concatenate([each.reason for each in parts]),
    )
    # The positions of splits ascend by group. Sorting the merges by their oldest split therefore also sorts the merges
    # by group.
    return whole.take(np.argsort(whole.rows[whole.first], kind="stable"))


def bounded(merges: Merges, most_inputs: int) -> Merges:
    """Return the first merges, which together replace about `most_inputs` splits. The merges keep their order.

    Each group gets its first merge before any group gets its second merge. A group with very many merges therefore does
    not delay the other groups.
    """
    turn = np.arange(len(merges)) - np.searchsorted(merges.group, merges.group)
    order = np.argsort(turn, kind="stable")
    read = np.cumsum(merges.count[order])
    return merges.take(np.sort(order[: int(np.searchsorted(read, most_inputs)) + 1]))


def ranges(first: Ints, count: Ints) -> Ints:
    """Return, for each i in order, `count[i]` consecutive numbers that start at `first[i]`."""
    before = np.cumsum(count) - count
    return np.repeat(first - before, count) + np.arange(int(count.sum()))


def outputs_of(bytes_: Ints, target_bytes: int) -> Ints:
    """Return the number of splits that a merge of this many bytes writes, at least one.

    The result is rounded as in `split.writer`.
    """
    return np.maximum(1, np.rint(bytes_ / target_bytes)).astype(np.int64)


OPERATION = "COMPACT"
"""The operation name of compaction commits in the log."""

SKIP_OPERATION = "compact"
"""The operation name in the `mergeskip` actions that apply to compactions."""


MOST_RUN_TARGETS = 64
"""Maximum input size of one merge, as a multiple of the target size.

A task has all inputs on its disk and runs for some minutes.
"""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of one task: the rows and bytes that it reads, from at most `MOST_RUN_INPUTS` inputs."""

    rows: int
    bytes: int

    @staticmethod
    def of(settings: CompactionSettings, target_bytes: int) -> Bounds:
        """Return the limits of a table with these settings and target size."""
        return Bounds(settings.run_rows, MOST_RUN_TARGETS * target_bytes)

    def holds(self, rows: Ints | int, bytes_: Ints | float, inputs: Ints | int) -> Flags:
        """Return whether one task may read the inputs of a merge. For several merges, return one value per merge."""
        return np.asarray((rows <= self.rows) & (bytes_ <= self.bytes) & (inputs <= MOST_RUN_INPUTS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a merge that is too large for one task: a range of the rows in sort order.

    `row_ranges` are the rows of each input file that the part reads. The outputs of all parts have the `columns` of all
    inputs and the same `operation_id`. Each output stores all splits that the merge `replaces`, with the number of rows
    of each split. `leaving` are the inputs whose last rows are in this part. Each input is therefore removed once.
    Either all parts are committed together, or no part is committed (decision 0015).
    """

    row_ranges: tuple[RowRange, ...]
    leaving: tuple[str, ...]
    columns: pa.Schema
    operation_id: str
    replaces: Mapping[str, int]

    def to_object(self) -> dict[str, Any]:
        """Return this record as a JSON object. `from_object` converts the JSON object back to an equal record."""
        ranges = [list(each) for each in self.row_ranges]
        columns = base64.b64encode(self.columns.serialize()).decode()
        said = {"columns": columns, "operationId": self.operation_id, "replaces": dict(self.replaces)}
        return {"rowRanges": ranges, "leaving": list(self.leaving), **said}

    @staticmethod
    def from_object(body: Mapping[str, Any]) -> Part:
        """Return the record that `to_object` wrote."""
        return Part(
            row_ranges=tuple((first, end) for first, end in body["rowRanges"]),
            leaving=tuple(body["leaving"]),
            columns=pa.ipc.read_schema(pa.py_buffer(base64.b64decode(body["columns"]))),
            operation_id=body["operationId"],
            replaces=body["replaces"],
        )


@dataclass(frozen=True, slots=True)
class CompactionTask:
    """A task that rewrites `inputs` of one scope and one window into as few splits as possible.

    Travels as JSON. The outputs store `merge_ops` as their number of merges. With a `part`, only the rows of the part
    are rewritten.
    """

    window: int | None
    inputs: tuple[Add, ...]
    context: SplitContext
    merge_ops: int = 1
    part: Part | None = None

    def row_range(self, number: int) -> RowRange:
        """Return the range of rows of an input file that the task reads."""
        return (0, self.inputs[number].numRecords or 0) if self.part is None else self.part.row_ranges[number]

    def to_json(self) -> str:
        """Return the text that `from_json` converts to an equal task."""
        body = {
            "window": self.window,
            "inputs": write_actions(self.inputs),
            "context": self.context.to_json(),
            "mergeOps": self.merge_ops,
            "part": None if self.part is None else self.part.to_object(),
        }
        return json.dumps(body, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> CompactionTask:
        """Return the task that `to_json` wrote."""
        body = json.loads(text)
        inputs = read_actions(body["inputs"], Add, "compaction task")
        part = None if body["part"] is None else Part.from_object(body["part"])
        return CompactionTask(body["window"], inputs, SplitContext.from_json(body["context"]), body["mergeOps"], part)


LASTING = (Corrupt, InvalidInput, NotFound, Unsupported)
"""Errors that a retry with the same inputs would cause again.

After any other error, a retry may succeed and no split is skipped.
"""

SKIP_MS = 24 * 3_600_000

_MOST_REASON = 500


def skips_of(snapshot: Snapshot, adds: Iterable[Add], reason: str, now_ms: int) -> list[MergeSkip]:
    """Return `mergeskip` actions for the inputs whose paths occur in the text `reason`.

    If the reason contains no path, return one `mergeskip` action for each input of the task. Each `mergeskip` action
    counts how often its split was skipped. If a split is removed from the table, its `mergeskip` action is removed as
    well.
    """
    inputs = [add.path for add in adds]
    named = [path for path in inputs if path in reason]
    return [
        MergeSkip(
            path=path,
            skipTimestamp=now_ms,
            reason=fitted(reason, _MOST_REASON),
            operation=SKIP_OPERATION,
            retryAfter=now_ms + SKIP_MS,
            skipCount=1 + (snapshot.mergeskips[path].skipCount if path in snapshot.mergeskips else 0),
        )
        for path in named or inputs
    ]


def active_skips(skips: Iterable[MergeSkip], now_ms: int) -> frozenset[str]:
    """Return the paths that a compaction skips at `now_ms`."""
    return frozenset(
        skip.path
        for skip in skips
        if skip.operation == SKIP_OPERATION and (skip.retryAfter is None or skip.retryAfter > now_ms)
    )
