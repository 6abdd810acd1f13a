"""Each failure ends in a typed error.

The error contains the fault, the location and the fix, and its kind decides the exit code.
"""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from jobs.command import main as job_main
from jobs.spark.spark import Spark
from storage_core.base.errors import Corrupt
from storage_core.data.rows.window_range import window_name
from storage_core.data.steps import Compact, options_for
from storage_core.log.job_run import run
from tidemark import Table

INVALID_INPUT, CORRUPT = 2, 4
START = dt.datetime(2024, 2, 29, tzinfo=dt.UTC)
SCHEMA = pa.schema(
    [pa.field("at", pa.timestamp("us", "UTC"), nullable=False), ("level", pa.int32()), ("text", pa.string())]
)

DECLARATION = """\
name: events
uri: warehouse/events
columns:
  at: timestamp!
  level: int
time_column: at
window: 15m
landing:
  uri: landing/events
  format: ndjson
"""


@pytest.mark.parametrize("job", ["ingest", "merge", "compact", "catch_up", "checkpoint", "collect"])
def test_a_job_on_an_unknown_table_says_so_and_makes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], job: str
) -> None:
    assert job_main(job, ["--table-uri", str(tmp_path / "nowhere"), "--json"]) == INVALID_INPUT
    answer = json.loads(capsys.readouterr().out)
    assert (answer["status"], answer["error"]) == ("failed", "not_found")
    assert "nowhere" in answer["message"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("old", "new", "line", "problem"),
    [
        ("name: events", "name: ..", 1, "field `name`"),
        ("name: events", "name: ../events", 1, "field `name`"),
        ("uri: warehouse/events", "uri: warehouse/../../events", 2, "field `uri`"),
        ("level: int", "level: integr", 5, "field `columns.level.type`"),
        ("time_column: at", "time_column: when", 6, "field `time_column`"),
        ("window: 15m", "window: [15m", 8, "not valid YAML"),
        ("format: ndjson", "format: xml", 10, "field `landing.format`"),
    ],
)
def test_an_invalid_declaration_is_refused_with_file_line_and_field_and_makes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, line: int, problem: str
) -> None:
    path = tmp_path / "events.yaml"
    path.write_text(DECLARATION.replace(old, new))
    arguments = ["--table-uri", str(tmp_path / "events"), "--declaration", str(path), "--json"]
    assert job_main("ingest", arguments) == INVALID_INPUT
    answer = json.loads(capsys.readouterr().out)
    assert answer["error"] == "invalid_input"
    assert any(each.startswith(f"{path}:{line}: {problem}") for each in answer["message"].splitlines()), answer
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def events(tmp_path: Path) -> Table:
    """Return a table of three windows of two splits each, with an index."""
    table = Table.create(
        str(tmp_path / "events"),
        SCHEMA,
        time_column="at",
        sort_schema="level|timestamp/V2",
        window="1h",
        indexes=[{"name": "words", "kind": "fulltext", "columns": ["text"]}],
    )
    for part in range(2):
        times = [START + dt.timedelta(minutes=20 * number + part) for number in range(9)]
        table.append([{"at": at, "level": number, "text": f"part {part}"} for number, at in enumerate(times)])
    return table


@pytest.fixture
def cut(events: Table) -> tuple[str, int]:
    """Cut a split of the second window in half. Return the key of the split and the start of the window."""
    window = int(START.timestamp()) + 3600
    key = next(path for path, add in events.snapshot.splits.items() if add.windowStart == window)
    path = Path(events.uri.removeprefix("file://")) / key
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return key, window


def test_a_split_cut_in_half_is_named_by_every_reader_and_hides_nothing_else(
    events: Table, cut: tuple[str, int], tmp_path: Path
) -> None:
    readers: dict[str, Callable[[], object]] = {
        "scan": lambda: events.scan().to_arrow(),
        "stream": lambda: events.scan().to_reader().read_all(),
        "sql": lambda: events.sql("SELECT count(text) FROM t"),
        "search": lambda: events.search("part", index="words", cache_dir=tmp_path / "cache"),
    }
    for name, read in readers.items():
        with pytest.raises(Corrupt) as refused:
            read()
        assert cut[0] in str(refused.value), name
    others = events.scan(filter=""""at" < '2024-02-29 01:00Z' OR "at" >= '2024-02-29 02:00Z'""").to_arrow()
    assert others.num_rows == 12


@pytest.mark.spark
def test_a_split_cut_in_half_fails_the_jobs_that_read_it_and_no_other_window(
    events: Table, cut: tuple[str, int], spark: Spark
) -> None:
    key, window = cut
    for job, version, also in (
        ("catch_up", 2, ""),
        ("compact", 3, f"The windows {window_name(window)} were not compacted"),
    ):
        with pytest.raises(Corrupt) as refused:  # raised in a Spark task, with the same error on the driver
            run(options_for(job, table_uri=events.uri), spark)
        assert key in str(refused.value)
        assert also in str(refused.value)
        assert refused.value.exit_code == CORRUPT
        assert Table.open(events.uri).version == version
    compacted = Table.open(events.uri)
    assert sorted(Counter(add.windowStart for add in compacted.snapshot.splits.values()).values()) == [1, 1, 2]
    assert key in compacted.snapshot.splits
    (skip,) = compacted.snapshot.mergeskips.values()
    assert (skip.path, skip.skipCount, (skip.retryAfter or 0) - skip.skipTimestamp) == (key, 1, 24 * 3_600_000)
    assert run(Compact(table_uri=events.uri), spark).status == "nothing_to_do"
