"""`tidemark regions` and `tidemark tail`: rows that are acknowledged and not merged yet."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from jobs.command import from_arguments, to_arguments
from jobs.spark.java import ROOT
from jobs.spark.spark import Spark
from pipelines.cli import main
from pipelines.commands.inspecting import _print
from storage_core.base.clock import SystemClock, SystemIds
from storage_core.base.errors import InvalidInput
from storage_core.data.steps import Merge
from storage_core.log.job_run import run
from storage_core.read.describe import CollectedEntries
from tests.support.keyed_table import PLANES, KeyedTable
from tests.unit.lenient_writer import lenient
from tidemark import Table

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("n", pa.int64())])


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "t"), SCHEMA, primary_key="id")


def answers(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert main([*arguments, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def merge(table: Table) -> None:
    merger = KeyedTable(table.store, ids=SystemIds())
    merger.merge_all()


def test_a_region_says_what_waits_in_generations_and_behind_them(
    table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answers(capsys, "regions", table.uri) == []
    with table.writer() as writer:
        writer.put([{"id": 1}, {"id": 2}])
        writer.flush()
        merge(table)
        writer.put({"id": 3})
        writer.flush()
        writer.put([{"id": 4}, {"id": 5}])
        writer.delete(4)
        (found,) = answers(capsys, "regions", table.uri)
    assert (found["values"], found["epoch"]) == ([], 1)
    assert (found["merged_generation"], found["current_generation"]) == (1, 3)
    assert (found["generations"], found["generation_records"]) == (1, 1)
    assert (found["wal_entries"], found["wal_records"]) == (2, 3)
    assert found["oldest_ms"] > 0
    assert 0 <= found["age_seconds"] <= time.time() - found["oldest_ms"] / 1000 + 1


def test_a_merged_table_has_nothing_that_waits(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    with table.writer() as writer:
        writer.put({"id": 1})
        writer.flush()
    merge(table)
    (found,) = answers(capsys, "regions", table.uri)
    assert [found[name] for name in ("generations", "wal_records", "oldest_ms", "age_seconds")] == [0, 0, None, None]
    assert answers(capsys, "tail", table.uri) == []
    assert main(["tail", table.uri]) == 0
    assert capsys.readouterr().out == "no unmerged records: every acknowledged record is merged\n"


def test_a_table_whose_rows_all_wait_is_not_described_as_empty(
    table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    table.append({"id": 1})
    assert main(["describe", table.uri]) == 0
    assert "no rows are merged yet" in capsys.readouterr().out


def test_a_merge_that_one_record_blocks_goes_on_with_quarantine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spark: Spark
) -> None:
    required = PLANES.set(1, pa.field("seats", pa.int64(), nullable=False))
    table = Table.create(str(tmp_path / "planes"), required, primary_key="tailnum")
    with lenient(table.store, table.snapshot, clock=SystemClock(), ids=SystemIds()) as writer:
        writer.put({"tailnum": "a", "seats": 1})
        writer.patch({"tailnum": "b", "model": "X"})
        writer.flush()
    request = Merge(table_uri=table.uri)
    with pytest.raises(InvalidInput, match=r"region .*, generations 1 to 1: generation 1, record 1, key tailnum='b'"):
        run(request, spark)
    quarantining = from_arguments("merge", [*to_arguments(request), "--quarantine"])
    assert from_arguments("merge", to_arguments(quarantining)) == quarantining
    assert run(quarantining, spark).status == "committed"
    assert [kept["source"] for kept in answers(capsys, "quarantine", table.uri)] == ["merge"]
    assert Table.open(table.uri).scan().to_arrow().num_rows == 1


def test_each_region_is_listed_with_its_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fields = [{"transform": "bucket", "source": "id", "n": 4}]
    table = Table.create(str(tmp_path / "t"), SCHEMA, primary_key="id", regions=fields)
    table.append([{"id": each} for each in range(40)])
    found = answers(capsys, "regions", table.uri)
    assert sorted(each["values"] for each in found) == [[0], [1], [2], [3]]
    assert sum(each["generation_records"] for each in found) == 40
    tails = answers(capsys, "tail", table.uri, "--limit", "3")
    assert len(tails) == 12
    assert {each["region_id"] for each in tails} == {each["region_id"] for each in found}


def test_the_tail_ends_with_the_newest_record_and_shows_what_each_gives(
    table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    with table.writer() as writer:
        writer.put([{"id": each, "name": "x"} for each in range(5)])
        writer.flush()
        writer.patch([{"id": 1, "n": None}, {"id": 2, "name": "y"}])
        writer.flush()
        writer.reset({"id": 3})
        writer.delete(4)
        writer.put({"id": 6, "name": "z", "n": 1})
    found = [(each["operation"], each["fields"]) for each in answers(capsys, "tail", table.uri, "--limit", "6")]
    assert found == [
        ("put", {"id": 4, "name": "x", "n": None}),
        ("patch", {"id": 1, "n": None}),
        ("patch", {"id": 2, "name": "y"}),
        ("reset", {"id": 3, "name": None, "n": None}),
        ("delete", {"id": 4}),
        ("put", {"id": 6, "name": "z", "n": 1}),
    ]
    assert main(["tail", table.uri, "--limit", "1"]) == 0
    assert capsys.readouterr().out == 'put    {"id": 6, "name": "z", "n": 1}\n'


@pytest.mark.parametrize("command", ["tail", "regions"])
def test_an_append_table_has_no_tail_and_no_regions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    table = Table.create(str(tmp_path / "t"), SCHEMA)
    assert main([command, table.uri]) == 2
    assert "an append table has no unmerged records" in capsys.readouterr().err


def test_appending_no_rows_claims_nothing_and_leaves_the_live_writer_alone(
    table: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "none.ndjson").write_bytes(b"")
    with table.writer() as writer:
        before = [info.key for info in table.store.list("_mem_wal/")]
        assert Table.open(table.uri).append([]).rows == 0
        assert answers(capsys, "append", table.uri, str(tmp_path / "none.ndjson"))[0]["status"] == "nothing_to_do"
        assert [info.key for info in table.store.list("_mem_wal/")] == before
        writer.put({"id": 1})


def test_an_append_that_is_refused_leaves_the_live_writer_alone() -> None:
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64())])
    table = Table.create("memory://refused-append", schema, primary_key="id")
    with table.writer() as writer:
        with pytest.raises(InvalidInput, match="Every row needs a key"):
            Table.open(table.uri).append([{"id": None, "n": 1}])
        writer.put({"id": 1})


@pytest.mark.parametrize("as_json", [True, False])
def test_a_follower_says_what_was_collected_before_it_was_read(
    capsys: pytest.CaptureFixture[str], *, as_json: bool
) -> None:
    _print([CollectedEntries(region_id="r", entries=1234)], pa.schema([]), as_json=as_json)
    output = capsys.readouterr().out
    if as_json:
        assert json.loads(output) == {"region_id": "r", "collected_entries": 1234}
    else:
        assert output.startswith("not shown: 1,234 WAL entries of region r, ")


def test_following_tells_each_record_once_through_flush_and_merge_until_it_is_interrupted(table: Table) -> None:
    with table.writer() as writer:
        writer.put({"id": 0})
        command = [sys.executable, "-m", "pipelines.cli", "tail", table.uri, "--follow", "--json"]
        following = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=-1)
        assert following.stdout is not None
        with following.stdout as output:
            ids = [json.loads(output.readline())["fields"]["id"]]
            for number in range(1, 6):
                writer.put({"id": number})
                if number % 2:
                    writer.flush()
                    merge(table)
                ids.append(json.loads(output.readline())["fields"]["id"])
            following.send_signal(signal.SIGINT)
            assert output.read() == b""
        assert following.wait() == 0
    assert ids == [0, 1, 2, 3, 4, 5]
