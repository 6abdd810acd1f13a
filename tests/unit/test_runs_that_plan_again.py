"""During a run, another process commits first. Then the run plans again, and does only the work that is left."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from jobs.spark.spark import Spark
from storage_core.base.errors import CommitConflict
from storage_core.change.declaration import load
from storage_core.data.steps import CatchUp, Compact, Ingest, Merge, RunOptions
from storage_core.log.job_run import Answer, Item, run, run_here
from storage_core.log.lease import stored_leases
from storage_core.log.log import PLANNED_AT_MOST
from tidemark import Table

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
Row = dict[str, object]


class WithRival(Spark):
    """An executor of small work. Another process acts after each group of tasks, and so before the commit."""

    def __init__(self, rival: Callable[[], object]) -> None:
        super().__init__()
        self.rounds = 0
        self._rival = rival

    def map(
        self, execute: Callable[[Item], Answer], items: Sequence[Item], *, input_bytes: float = math.inf
    ) -> list[Answer]:
        answers = super().map(execute, items, input_bytes=input_bytes)
        self.rounds += 1
        self._rival()
        return answers


def row(number: int, text: str = "a") -> Row:
    return {"id": number, "text": text}


def keyed_table(folder: Path) -> str:
    table = Table.create(folder / "keyed", SCHEMA, primary_key="id")
    put(table.uri, row(1), row(2))
    return table.uri


def put(uri: str, *rows: Row) -> None:
    """Put rows into a keyed table, so that a merge is due."""
    with Table.open(uri).writer() as writer:
        writer.put(list(rows))
        writer.flush()


def by_hand(options: RunOptions, uri: str) -> None:
    """Run the step of `options` without a lease, like a user who calls this step from Python."""
    assert run_here(options, Table.open(uri)).status == "committed"


def rows_of(uri: str) -> list[Row]:
    found = Table.open(uri).scan(consistency="snapshot").to_arrow().to_pylist()
    return sorted(found, key=lambda each: each["id"])


def operations(uri: str) -> list[str]:
    return [each.operation for each in Table.open(uri).history()]


def free(uri: str) -> bool:
    """Return True if no process has a lease of the table."""
    leases = list(stored_leases(Table.open(uri).store))
    return not any(each.record is None or each.record.is_live(0) for each in leases)


def test_a_merge_that_a_merge_by_hand_overtook_finds_nothing_left(tmp_path: Path) -> None:
    uri = keyed_table(tmp_path)
    options = Merge(table_uri=uri)
    spark = WithRival(lambda: by_hand(options, uri))
    report = run(options, spark)
    assert (report.status, report.metrics.rows_out, report.benefit) == ("nothing_to_do", 0, 0)
    assert (spark.rounds, report.version) == (1, Table.open(uri).version)
    assert operations(uri).count("MERGE") == 1
    assert rows_of(uri) == [row(1), row(2)]
    assert free(uri)


def test_a_merge_that_was_overtaken_merges_what_came_since(tmp_path: Path) -> None:
    uri = keyed_table(tmp_path)
    options = Merge(table_uri=uri)
    rivals = [lambda: by_hand(options, uri), lambda: put(uri, row(2, "b"), row(3))]

    def rival() -> None:
        while rivals:
            rivals.pop(0)()

    spark = WithRival(rival)
    report = run(options, spark)
    assert (report.status, report.metrics.rows_out, report.benefit) == ("committed", 2, 1)
    assert (report.details["generations"], spark.rounds) == (1, 2)
    assert operations(uri).count("MERGE") == 2
    assert rows_of(uri) == [row(1), row(2, "b"), row(3)]
    assert free(uri)


def test_a_merge_that_is_always_overtaken_ends_with_the_conflict(tmp_path: Path) -> None:
    uri = keyed_table(tmp_path)
    options = Merge(table_uri=uri)

    def rival() -> None:
        by_hand(options, uri)
        put(uri, row(spark.rounds, "again"))

    spark = WithRival(rival)
    with pytest.raises(
        CommitConflict, match=f"this merge was planned after .* first during each of {PLANNED_AT_MOST} plans"
    ):
        run(options, spark)
    assert spark.rounds == PLANNED_AT_MOST
    assert free(uri)
    assert run(options, Spark()).status == "committed"
    assert rows_of(uri) == [row(number, "again") for number in range(1, PLANNED_AT_MOST + 1)]


def to_compact(folder: Path) -> RunOptions:
    table = Table.create(folder / "events", SCHEMA)
    for number in range(4):
        table.append(row(number))
    return Compact(table_uri=table.uri)


def to_catch_up(folder: Path) -> RunOptions:
    table = Table.create(
        folder / "events", SCHEMA, indexes=[{"name": "words", "kind": "fulltext", "columns": ["text"]}]
    )
    table.append(row(1))
    return CatchUp(table_uri=table.uri)


def to_ingest(folder: Path) -> RunOptions:
    landing = folder / "landing"
    landing.mkdir()
    for number in range(2):
        (landing / f"{number}.ndjson").write_text(json.dumps(row(number)) + "\n")
    file = folder / "events.yaml"
    file.write_text(
        f"name: events\nuri: {folder / 'events'}\ncolumns: {{id: long!, text: string}}\n"
        f"landing: {{uri: {landing}, format: ndjson}}\n"
    )
    table = Table.declare(load(file))
    return Ingest(table_uri=table.uri, declaration=str(file))


@pytest.mark.parametrize("due", [to_compact, to_catch_up, to_ingest])
def test_each_step_that_the_same_step_overtook_finds_nothing_left(
    due: Callable[[Path], RunOptions], tmp_path: Path
) -> None:
    options = due(tmp_path)
    uri = str(tmp_path / "events")
    before = rows_of(uri)
    spark = WithRival(lambda: by_hand(options, uri))
    assert run(options, spark).status == "nothing_to_do"
    assert spark.rounds == 1
    names = operations(uri)
    assert max(names.count(name) for name in ("COMPACT", "CATCH UP", "INGEST")) == 1
    assert rows_of(uri) == (before or [row(0), row(1)])
    assert free(uri)


def test_a_compaction_whose_inputs_are_restored_is_planned_again(tmp_path: Path) -> None:
    options = to_compact(tmp_path)
    uri = str(tmp_path / "events")
    restores = [2]

    def rival() -> None:
        while restores:
            Table.open(uri).restore(restores.pop())

    report = run(options, WithRival(rival))
    assert (report.status, report.metrics.rows_in) == ("committed", 2)
    assert rows_of(uri) == [row(0), row(1)]
