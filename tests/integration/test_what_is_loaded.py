"""An import or a command loads a module only when the module is needed.

The test checks this in a process and measures no time.
"""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import tidemark as tm

ROOT = Path(__file__).resolve().parents[2]

PIPELINE = frozenset({"dagster", "dagster_pipes", "dagster_webserver", "pandas", "py4j", "pyspark"})
HEAVY = PIPELINE | {
    *("boto3", "botocore", "datafusion", "duckdb", "fastavro", "google.protobuf", "polars", "tantivy", "yaml"),
    *("http.client", "pyarrow.compute", "pyarrow.parquet", "pydantic", "rich", "typer"),
}
OURS = frozenset(
    {
        *("storage_core.log.checkpoint", "storage_core.log.checkpoint_writing", "storage_core.log.commit"),
        *("storage_core.write.region.captured_regions", "storage_core.split.read"),
    }
)
REGIONS = "storage_core.write.region.captured_regions"  # this module loads protobuf only for tables with regions
READING = frozenset({"pyarrow.compute", "pyarrow.parquet", "storage_core.split.read"})
UNMERGED = READING | {"google.protobuf", REGIONS}
APPENDING = frozenset({"duckdb", "pandas", "pydantic"})  # pydantic validates the choice of --format
CHECKPOINTS = frozenset({"datafusion", "fastavro", "pyarrow.compute", "storage_core.log.checkpoint"})
SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("path", pa.string()), ("status", pa.int64())])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with two tables: `logs` with a checkpoint and a full-text index, and `people` with a key."""
    folder = tmp_path_factory.mktemp("tables")
    words = {"name": "words", "kind": "fulltext", "columns": ["path"]}
    logs = tm.Table.create(str(folder / "logs"), SCHEMA, time_column="at", indexes=[words])
    while logs.snapshot.checkpoint_version is None:
        logs.append({"at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "path": "hello world", "status": 200})
        logs = tm.Table.open(logs.uri)
    people = tm.Table.create(str(folder / "people"), pa.schema([("id", pa.int64())]), primary_key="id")
    people.append({"id": 1})
    (folder / "rows.json").write_text('{"id": 2}\n')
    return folder


def _loaded(program: str, *arguments: str, folder: Path = ROOT) -> set[str]:
    """Return the heavy libraries and rarely needed modules that are loaded when the program ends."""
    shown = f"print(*[name for name in {sorted(HEAVY | OURS)!r} if name in sys.modules])"
    ended = _run(f"import sys\n{program}\n{shown}", *arguments, folder=folder)
    assert ended.returncode == 0, ended.stderr
    return set(ended.stdout.splitlines()[-1].split())


def _run(program: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command, environment = [sys.executable, "-c", program, *arguments], {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", tm.__all__)
def test_a_public_name_loads_no_library_but_arrow(name: str) -> None:
    assert _loaded(f"import tidemark as tm; tm.{name}") <= READING | {REGIONS}


def test_the_table_loads_nothing_that_reads_or_commits_before_it_does() -> None:
    assert _loaded("import tidemark as tm; tm.Table") == set()


def test_opening_a_table_without_a_checkpoint_loads_nothing_that_reads_one(place: Path) -> None:
    assert _loaded("import tidemark as tm; tm.Table.open('people')", folder=place) == set()


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        (("describe", "./logs"), CHECKPOINTS | {"pyarrow.parquet"}),  # needed for the index of the table
        (("files", "./logs"), CHECKPOINTS),
        (("history", "./logs"), CHECKPOINTS),
        (("sql", "./logs", "select count(*) from t"), CHECKPOINTS | READING | {"duckdb"}),
        (("search", "./logs", "hello", "--index", "words"), CHECKPOINTS | READING | {"tantivy", REGIONS}),
        (("describe", "./people"), {"google.protobuf", "pyarrow.compute"}),
        (("get", "./people", "1"), UNMERGED),
        (("append", "./people", "rows.json", "--format", "ndjson"), READING | UNMERGED | APPENDING),
    ],
    ids=lambda part: " ".join(part[:2]) if isinstance(part, tuple) else "",
)
def test_a_command_loads_what_it_needs(place: Path, arguments: tuple[str, ...], needed: frozenset[str]) -> None:
    program = "from pipelines.cli import main; assert main() == 0"
    assert _loaded(program, *arguments, folder=place) <= needed | {"typer"}


def test_the_process_of_a_query_begins_before_the_table_is_loaded(place: Path) -> None:
    program = """
events = []
sys.addaudithook(lambda name, found: events.append(found[0] if name == "import" else name))
from pipelines.cli import main
assert main() == 0
assert events.index("subprocess.Popen") < events.index("storage_core.table")
"""
    _loaded(program, "sql", "./logs", "select count(*) from t", folder=place)


_COMMAND = """
import atexit, gc, os, sys
class Left:
    def __del__(self, write=os.write):
        write(1, b"taken apart")
left, searches = Left(), []
gc.callbacks.append(lambda phase, _: searches.append(phase))
atexit.register(lambda: print("few" if len(searches) < 40 else searches, "searches"))
from tidemark.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize(("table", "code"), [("./logs", 0), ("./missing", 2)])
def test_a_command_searches_its_modules_for_garbage_rarely_and_takes_none_apart(
    place: Path, table: str, code: int
) -> None:
    ended = _run(_COMMAND, "describe", table, folder=place)
    assert ended.returncode == code
    assert ended.stdout.splitlines()[-1] == "few searches"
