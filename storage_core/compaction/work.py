"""One piece of compaction as it is handed out, as JSON; its answer is a `split.rewrite.Rewrite`.

Tasks of Spark import this and what `execute` needs; how the work was chosen (`planner`) stays on the driver.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from storage_core.log.actions import Add
from storage_core.log.encoding.action_json import read_actions, write_actions
from storage_core.split.context import SplitContext

OPERATION = "COMPACT"
"""What the commits of compactions call themselves in the log."""

SKIP_OPERATION = "compact"
"""What a mergeskip names so that compactions leave its split out."""


@dataclass(frozen=True, slots=True)
class CompactionTask:
    """Rewrite `inputs`, all of one scope and one window, into as few splits as their size allows. Travels as JSON.

    The outputs record `merge_ops` as their number of merges.
    """

    window: int | None
    inputs: tuple[Add, ...]
    context: SplitContext
    merge_ops: int = 1

    def to_json(self) -> str:
        """Return the text from which `from_json` makes an equal task."""
        body = {
            "window": self.window,
            "inputs": write_actions(self.inputs),
            "context": self.context.to_json(),
            "mergeOps": self.merge_ops,
        }
        return json.dumps(body, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> CompactionTask:
        """Return the task that `to_json` wrote."""
        body = json.loads(text)
        inputs = read_actions(body["inputs"], Add, "compaction task")
        return CompactionTask(body["window"], inputs, SplitContext.from_json(body["context"]), body["mergeOps"])
