"""Jobs on a shallow clone: their tasks read the source's files and write no file into the source's folder."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest

import tidemark as tm
from jobs.spark.spark import Spark
from storage_core.data.steps import Audit, options_for
from storage_core.log.job_run import run
from tests.support.foreign_files import hashes

pytestmark = pytest.mark.spark

MASTER = "local[2]"
SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("host", pa.string()), ("n", pa.int64())])


def numbers(uri: str) -> list[int]:
    return sorted(tm.Table.open(uri).scan(["n"]).to_arrow().column("n").to_pylist())


def files_of(place: Path) -> dict[str, str]:
    return {name: found for name, found in hashes(place).items() if name.startswith(("splits/", "_indices/"))}


def test_a_shallow_clone_is_compacted_indexed_judged_and_collected_by_jobs(tmp_path: Path, spark: Spark) -> None:
    source, new = str(tmp_path / "source"), str(tmp_path / "clone")
    index = {"name": "hosts", "kind": "bitmap", "columns": ["host"]}
    table = tm.Table.create(source, SCHEMA, time_column="at", window="1h", indexes=[index])
    for first in range(0, 80, 20):
        at = dt.datetime(2024, 1, 1, 0, first // 40, tzinfo=dt.UTC)
        table.append([{"at": at, "host": f"h{n % 3}", "n": n} for n in range(first, first + 20)])
    table.clone(new)
    before = files_of(tmp_path / "source")
    tm.Table.open(new).delete("n % 10 = 3")
    left = [n for n in range(80) if n % 10 != 3]

    for step in ("compact", "catch_up"):
        assert run(options_for(step, table_uri=new, master=MASTER), spark).status == "committed"
    assert run(Audit(table_uri=new, master=MASTER), spark).details["clean"]
    run(options_for("collect", table_uri=new, master=MASTER), spark)
    assert (numbers(new), numbers(source)) == (left, list(range(80)))
    assert tm.Table.open(new).search_count("h1", index="hosts") == len([n for n in left if n % 3 == 1])
    assert len(tm.Table.open(new).files()) == 1
    assert files_of(tmp_path / "source") == before
