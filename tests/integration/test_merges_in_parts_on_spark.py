"""A window that is too large for one task is merged on Spark in parts.

Killed parts leave nothing, and the next run merges the window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest

from jobs.spark.spark import Spark
from storage_core.base.errors import Unavailable
from storage_core.compact.policy import FINALIZED
from storage_core.data.steps import Compact
from storage_core.log.job_run import Answer, Item, JobReport, run
from storage_core.maintain.audit import audit
from storage_core.table import Table
from tests.support.deleted_rows import delete_where
from tests.support.events import SCHEMA, events

pytestmark = pytest.mark.spark

MASTER = "local[2]"


@pytest.fixture
def table(tmp_path: object) -> Table:
    """Make a table with six splits of 150 rows in one window."""
    made = Table.create(
        f"{tmp_path}/events",
        SCHEMA,
        time_column="at",
        sort_schema="service|host|timestamp/V2",
        window="1h",
        settings={"compaction.run_rows": 200},
    )
    for first in range(0, 900, 150):
        made.append(
            events(
                {"at": n % 600, "service": f"s{n * 7 % 11}", "host": f"h{n % 3}", "count": n}
                for n in range(first, first + 150)
            )
        )
    return made.refresh()


def numbers(table: Table) -> list[int]:
    return sorted(table.refresh().scan().to_arrow().column("count").to_pylist())


class Disturbed(Spark):
    """A launcher that uses the running session, and runs an operation between the merge parts and the next step."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__(MASTER)
        self._act = act

    def map(
        self, execute: Callable[[Item], Answer], items: Sequence[Item], *, input_bytes: float = math.inf
    ) -> list[Answer]:
        answers = super().map(execute, items, input_bytes=input_bytes)
        if execute.__name__ == "merge_splits":
            self._act()
        return answers


def ended() -> None:
    raise Unavailable("the driver was killed when its parts had written")


def compacted(table: Table, spark: Spark) -> JobReport:
    return run(Compact(table_uri=table.uri, master=MASTER), spark)


def test_a_run_that_ends_after_its_parts_is_run_again_and_keeps_what_was_deleted(table: Table, spark: Spark) -> None:
    with Disturbed(ended) as disturbed, pytest.raises(Unavailable, match="killed when its parts had written"):
        compacted(table, disturbed)
    assert (numbers(table), len(table.snapshot.splits)) == (list(range(900)), 6)
    with Disturbed(lambda: delete_where(table.log, lambda row: row["count"] % 10 == 3)) as beside:
        report = compacted(table, beside)
    assert (report.status, report.metrics.splits_in, report.metrics.rows_in) == ("committed", 6, 900)
    assert report.metrics.splits_out >= 5, "each part has 200 rows at most"
    assert numbers(table) == [n for n in range(900) if n % 10 != 3]
    live = list(table.snapshot.splits.values())
    assert {add.numMergeOps for add in live} == {FINALIZED}
    assert max(add.numRecords or 0 for add in live) <= 200
    assert audit(table.store, table.snapshot).violations == ()
    assert compacted(table, spark).status == "nothing_to_do"
