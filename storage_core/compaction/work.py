"""One piece of compaction as it is handed out, as JSON; its answer is a `split.rewrite.Rewrite`.

Tasks of Spark import this and what `execute` needs; how the work was chosen (`planner`) stays on the driver.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from storage_core.compaction.merges import Flags, Ints
from storage_core.log.actions import Add
from storage_core.log.encoding.action_json import read_actions, write_actions
from storage_core.settings.compaction import MOST_RUN_INPUTS, CompactionSettings
from storage_core.split.context import SplitContext
from storage_core.split.part import RowRange

OPERATION = "COMPACT"
"""What the commits of compactions call themselves in the log."""

SKIP_OPERATION = "compact"
"""What a mergeskip names so that compactions leave its split out."""


MOST_RUN_TARGETS = 64
"""The most target sizes that one merge reads: its task has them all on its disk, and works on them for minutes."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one task reads at most: rows of files, and bytes of them, of at most `MOST_RUN_INPUTS` inputs."""

    rows: int
    bytes: int

    @staticmethod
    def of(settings: CompactionSettings, target_bytes: int) -> Bounds:
        """Return the bounds of a table with these settings and target size."""
        return Bounds(settings.run_rows, MOST_RUN_TARGETS * target_bytes)

    def holds(self, rows: Ints | int, bytes_: Ints | float, inputs: Ints | int) -> Flags:
        """Tell of each merge, or of one, whether one task may read so much."""
        return np.asarray((rows <= self.rows) & (bytes_ <= self.bytes) & (inputs <= MOST_RUN_INPUTS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one task does of a merge that is too large for one: a range of its rows, in the order of the sort schema.

    Of each input of the task it has the rows of the file in its `row_ranges`. The outputs of all parts have the
    `columns` of all inputs, carry one `operation_id`, and name all that the merge `replaces`, with their rows.
    `leaving` are the inputs whose last rows these are: each is removed once, and all parts are committed together or
    none (decision 0147).
    """

    row_ranges: tuple[RowRange, ...]
    leaving: tuple[str, ...]
    columns: pa.Schema
    operation_id: str
    replaces: Mapping[str, int]

    def to_object(self) -> dict[str, Any]:
        """Return the JSON object from which `from_object` makes an equal record."""
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
    """Rewrite `inputs`, all of one scope and one window, into as few splits as their size allows. Travels as JSON.

    The outputs record `merge_ops` as their number of merges. With a `part` only that of their rows.
    """

    window: int | None
    inputs: tuple[Add, ...]
    context: SplitContext
    merge_ops: int = 1
    part: Part | None = None

    def row_range(self, number: int) -> RowRange:
        """Return the rows of the file of an input that the task is about."""
        return (0, self.inputs[number].numRecords or 0) if self.part is None else self.part.row_ranges[number]

    def to_json(self) -> str:
        """Return the text from which `from_json` makes an equal task."""
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
