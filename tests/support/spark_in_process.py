"""Jobs whose work items are executed in this process: for tests of what asks for runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from jobs.spark.spark import Answer, Item, Spark


class SparkInProcess(Spark):
    """Executes one item after the other where it is; each travels as JSON, as it does to a worker."""

    @property
    def slots(self) -> int:
        """One."""
        return 1

    def _answers(self, execute: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        return [json.loads(json.dumps(execute(json.loads(json.dumps(item))))) for item in items]
