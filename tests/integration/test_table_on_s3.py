"""The whole life of a table on S3, where no object is a local file. This process and jobs in Spark tasks use the table.

As in practice, each job runs in its own process. A Spark session of this process and its Python workers could have
started before the credentials were in the environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from jobs.command import to_arguments
from pipelines.cli import main
from storage_core.data.formats.keys import parse
from storage_core.data.formats.kinds import KeyKind
from storage_core.data.steps import options_for
from storage_core.store.contract import IfAbsent
from storage_core.store.resolve import open_store
from tests.support.s3_server import SECRET_KEY, S3Server
from tidemark import Table, col

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = pa.schema([("at", pa.timestamp("us", tz="UTC")), ("path", pa.string()), ("bytes", pa.int64())])
HOUR = "2015-05-17T{:02}:00:00Z"

DECLARATION = """
name: clicks
uri: "{uri}"
columns: {{at: timestamp!, path: string, bytes: long}}
time_column: at
window: 1h
sort_schema: path|timestamp/V2
indexes: [{{name: text, kind: fulltext, columns: [path]}}]
landing: {{uri: "{landing}", format: ndjson}}
partitions: {{start: 2015-05-17T00:00}}
"""


@pytest.fixture
def uri(s3_server: S3Server) -> str:
    return s3_server.uri(f"tables/{uuid4()}")


def rows(first: int, last: int) -> list[dict[str, object]]:
    return [{"at": HOUR.format(each % 3), "path": f"/page {each}", "bytes": each} for each in range(first, last)]


def kinds(uri: str) -> set[KeyKind]:
    parsed = [parse(info.key) for info in open_store(uri).list("")]
    assert all(parsed), "every object has a key of the grammar"
    return {each.kind for each in parsed if each is not None}


def test_rows_appended_are_read_by_every_way_of_reading_and_as_of_every_version(uri: str) -> None:
    table = Table.create(uri, SCHEMA, time_column="at", sort_schema="path|timestamp/V2", window="1h")
    for start in (0, 10, 20):
        table.append(pa.Table.from_pylist(parsed_times(rows(start, start + 10)), SCHEMA))
    again = Table.open(uri)
    assert again.version == 3
    assert sorted(again.scan(["bytes"]).to_arrow().column(0).to_pylist()) == list(range(30))
    assert again.scan(["path"], col("bytes") >= 28).to_arrow().num_rows == 2
    assert again.sql("select count(*), sum(bytes) from t where path like '/page 1%'").to_pylist() == [
        {"count_star()": 11, "sum(bytes)": 146}
    ]
    assert Table.open(uri, at=1).scan().to_arrow().num_rows == 10
    assert [entry.version for entry in again.history()] == [3, 2, 1, 0]
    assert len(again.files()) == 9
    again.log.checkpoint(again.snapshot)
    assert Table.open(uri).scan().to_arrow().num_rows == 30
    assert kinds(uri) >= {KeyKind.VERSION, KeyKind.STATE, KeyKind.LAST_CHECKPOINT, KeyKind.SPLIT}
    assert KeyKind.PROBE not in kinds(uri)


def test_a_keyed_table_acknowledges_finds_and_fences_on_s3(uri: str) -> None:
    table = Table.create(uri, SCHEMA, primary_key="path")
    with table.writer() as writer:
        writer.put(parsed_times(rows(0, 5)))
        assert table.get("/page 3") == parsed_times(rows(3, 4))[0]
        writer.flush()
        writer.put(parsed_times([{**rows(3, 4)[0], "bytes": 33}]))
        writer.delete("/page 4")
    found = Table.open(uri)
    assert (found.get("/page 3") or {})["bytes"] == 33
    assert found.get("/page 4") is None
    assert found.scan(consistency="latest").to_arrow().num_rows == 4
    assert found.scan(consistency="committed").to_arrow().num_rows == 5


@pytest.mark.spark
def test_jobs_ingest_compact_index_checkpoint_and_collect_a_table_on_s3(
    s3_server: S3Server, uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    landing = s3_server.uri(f"landing/{uuid4()}")
    declaration = tmp_path / "clicks.yaml"
    declaration.write_text(DECLARATION.format(uri=uri, landing=landing), encoding="utf-8")
    about = {"table_uri": uri, "declaration": str(declaration), "master": "local[2]", "horizon_ms": 0}
    for number in range(2):
        lines = "".join(json.dumps(each) + "\n" for each in rows(number * 30, number * 30 + 30))
        open_store(landing).put(f"part-{number}.ndjson", (lines + "no row\n").encode(), IfAbsent())
        ingested = job("ingest", **about)
        assert (ingested["status"], ingested["rows_out"], ingested["details"]["rejected"]) == ("committed", 30, 1)
    assert job("ingest", **about)["status"] == "nothing_to_do"
    compacted = job("compact", **about)
    assert (compacted["splits_in"], compacted["splits_out"], compacted["rows_out"]) == (6, 3, 60)
    assert job("catch_up", **about)["status"] == "committed"
    assert job("checkpoint", **about)["status"] == "committed"
    table = Table.open(uri)
    assert sorted(table.scan(["bytes"]).to_arrow().column(0).to_pylist()) == list(range(60))
    assert table.explain_search(index="text").indexes[0].scanned == []
    assert table.search("59", index="text", cache_dir=tmp_path / "cache").column("bytes").to_pylist() == [59]
    assert job("collect", **about)["details"]["failed"] == {}
    assert Table.open(uri).scan().to_arrow().num_rows == 60
    assert main(["describe", uri, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 60
    assert kinds(uri) >= {KeyKind.SPLIT, KeyKind.SEGMENT, KeyKind.STATE, KeyKind.QUARANTINE}


@pytest.mark.spark
def test_a_keyed_table_on_s3_is_merged_by_a_job(uri: str) -> None:
    table = Table.create(uri, SCHEMA, primary_key="path")
    table.append(parsed_times(rows(0, 5)))
    table.append(parsed_times(rows(3, 8)))
    assert job("merge", table_uri=uri, master="local[2]")["rows_out"] == 8
    assert Table.open(uri).scan().to_arrow().num_rows == 8
    assert (Table.open(uri).get("/page 7") or {})["bytes"] == 7


@pytest.mark.spark
@pytest.mark.usefixtures("s3_server")
def test_the_settings_of_a_spark_session_hold_no_credentials_of_the_environment() -> None:
    code = (
        "from jobs.spark.spark import Spark\nwith Spark('local[1]') as spark:\n"
        "    print(spark.session().sparkContext.getConf().getAll())"
    )
    settings = python("-c", code)
    assert "spark.master" in settings
    assert SECRET_KEY not in settings


def job(name: str, **about: object) -> dict[str, Any]:
    """Return the report of a job run as a command, and check that its output contains no secret."""
    report: dict[str, Any] = json.loads(
        python("-m", "jobs", name, *to_arguments(options_for(name, **about)), "--json").splitlines()[-1]
    )
    return report


def python(*arguments: str) -> str:
    """Run a Python process in the current environment and return its output.

    Check that the process succeeds and prints no secret.
    """
    ended = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert SECRET_KEY not in ended.stdout + ended.stderr
    return ended.stdout


def parsed_times(found: list[dict[str, object]]) -> list[dict[str, object]]:
    import datetime as dt

    return [{**each, "at": dt.datetime.fromisoformat(str(each["at"]))} for each in found]
