"""docs/readers.md: each line runs as the page shows it, and finds the rows of the table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import duckdb
import polars as pl
import pyarrow as pa
import pyiceberg.table
import pytest

import tidemark as tm
import tidemark.spark
from tests.support.published import counted_by_duckdb, counted_by_spark

if TYPE_CHECKING:
    from jobs.spark.spark import Spark

PAGE = Path(__file__).resolve().parents[2] / "docs" / "readers.md"
ROWS = 1_000
SLOW = 899
"""The number of rows with `ms > 100`."""


def _lines() -> dict[str, str]:
    return dict(re.findall(r"^\| ([^|]+) \| `([^|]+)` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))


LINES = _lines()
OF_SPARK = [each for each in LINES if each.startswith("Spark,")]
ELSEWHERE = {
    "Spark with delta-spark": counted_by_spark,
    "DuckDB's extension `delta`": counted_by_duckdb,
    "DuckDB's extension `iceberg`": counted_by_duckdb,
}
HERE = [each for each in LINES if each not in OF_SPARK and not each.startswith(tuple(ELSEWHERE))]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a published table `clicks`."""
    folder = tmp_path_factory.mktemp("readers")
    schema = pa.schema([("url", pa.string()), ("ms", pa.int64())])
    table = tm.Table.create(str(folder / "clicks"), schema)
    table.append([{"url": f"/{n % 7}", "ms": n} for n in range(ROWS)])
    table.publish("delta")
    table.publish("iceberg")
    return folder


def _expected(line: str) -> int:
    return SLOW if "ms > 100" in line else ROWS


def test_the_table_names_every_reader_once() -> None:
    assert len(LINES) == len(set(LINES.values())) == 13
    assert len(HERE) == 9


@pytest.mark.parametrize("reader", HERE)
def test_a_line_finds_the_rows(reader: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # otherwise, Polars prints a warning
    names: dict[str, Any] = {"tm": tm, "duckdb": duckdb, "polars": pl, "deltalake": deltalake, "pyiceberg": pyiceberg}
    found = eval(LINES[reader], names)  # noqa: S307  # our own page
    assert len(found) == _expected(LINES[reader])


@pytest.mark.spark
@pytest.mark.parametrize("reader", OF_SPARK)
def test_a_line_of_spark_finds_the_rows(reader: str, place: Path, spark: Spark) -> None:
    session = spark.session()
    tidemark.spark.register(session)
    line = LINES[reader].replace('"clicks"', repr(str(place / "clicks")))  # Spark has another working directory
    assert eval(line, {"spark": session}).count() == _expected(line)  # noqa: S307  # our own page


@pytest.mark.parametrize("reader", ELSEWHERE)
def test_a_line_of_another_program_finds_the_rows(reader: str, place: Path) -> None:
    (line,) = (text for name, text in LINES.items() if name.startswith(reader))
    assert ELSEWHERE[reader](line, place) == ROWS
