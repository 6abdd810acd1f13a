"""Commands and calls report that there is nothing to work on. A mistyped location never leads to success."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

import tidemark as tm
from pipelines.cli import main
from storage_core.base.errors import InvalidInput
from storage_core.table import Table

SCHEMA = pa.schema([pa.field("time", pa.timestamp("us"), nullable=False), ("page", pa.string())])
ROW = '{"time": "2026-01-01T00:00:00", "page": "red shoes"}\n'
DECLARED = "name: {name}\nuri: {uri}\ncolumns:\n  time: timestamp!\n  page: string\n"


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "visits.yaml").write_text(DECLARED.format(name="visits", uri="warehouse/visits"))
    Path("rows.ndjson").write_text(ROW)
    assert main(["init", "visits"]) == 0
    assert main(["append", "visits", "rows.ndjson"]) == 0


def _err(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    capfd.readouterr()
    assert main([*arguments]) == 2
    return capfd.readouterr().err


def test_a_raw_log_that_does_not_exist_is_not_a_clean_one(capfd: pytest.CaptureFixture[str]) -> None:
    missing = "nolog: there is no raw log here. Check the location"
    assert missing in _err(capfd, "raw", "./nolog")
    assert missing in _err(capfd, "raw", "./nolog", "--verify")
    forget = ("forget", "visits", "--where", "page = 'x'", "--raw", "./nolog", "--raw-table", "visits")
    assert missing in _err(capfd, *forget)
    assert missing in _err(capfd, *forget, "--report")
    assert main(["append", "./log", "rows.ndjson", "--table", "visits"]) == 0
    assert main(["raw", "./log", "--verify"]) == 0
    assert main(["raw", "./log", "--also", "./second"]) == 0
    assert missing in _err(capfd, *forget, "--raw", "./log")


def test_a_row_without_values_is_a_row() -> None:
    table = Table.create(f"memory://{uuid4()}", SCHEMA)
    with pytest.raises(InvalidInput, match="column 'time'"):
        table.append([{}])
    loose = Table.create(f"memory://{uuid4()}", pa.schema([("a", pa.int64()), ("b", pa.string())]))
    assert loose.append([{}, {}]).rows == 2
    assert loose.refresh().scan().to_arrow().to_pylist() == [{"a": None, "b": None}] * 2


@pytest.mark.parametrize("deep", [[], ["--deep"]])
def test_a_clone_needs_an_empty_location(capfd: pytest.CaptureFixture[str], deep: list[str]) -> None:
    Path("landing").mkdir()
    Path("landing/day.ndjson").write_text(ROW)
    said = _err(capfd, "clone", "visits", "./landing", *deep)
    assert "landing: contains day.ndjson. Clone to an empty location" in said
    assert sorted(each.name for each in Path("landing").iterdir()) == ["day.ndjson"]
    assert "'visits' is a declared table. Give a new location, such as ./visits" in _err(
        capfd, "clone", "visits", "visits"
    )
    assert main(["clone", "visits", "./fresh", *deep]) == 0
    assert main(["clone", "visits", "./fresh", *deep]) == 0


def test_declared_tables_do_not_lie_in_each_other(capfd: pytest.CaptureFixture[str]) -> None:
    Path("tables/inner.yaml").write_text(DECLARED.format(name="inner", uri="warehouse/visits/e"))
    said = _err(capfd, "tables")
    assert "tables/visits.yaml:2: field `uri`: 'warehouse/visits' contains the folder of the table 'inner'" in said
    Path("tables/inner.yaml").rename("tables/zinner.yaml")
    said = _err(capfd, "tables")
    assert "tables/zinner.yaml:2: field `uri`: 'warehouse/visits/e' is in the folder of the table 'visits'" in said
    assert "Choose a location outside of this folder" in said


def test_a_refresh_reports_an_invalid_declaration(capfd: pytest.CaptureFixture[str]) -> None:
    Path("tables/broken.yaml").write_text("name: broken\nnope: 1\n")
    said = _err(capfd, "catalog", "refresh", "--url", "sqlite:///c.db")
    assert "tables/broken.yaml" in said
    capfd.readouterr()
    assert main(["catalog", "refresh", "visits", "--url", "sqlite:///c.db", "--json"]) == 0
    assert json.loads(capfd.readouterr().out.splitlines()[0])["name"] == "visits"


def test_an_audit_begins_after_a_version_that_exists(capfd: pytest.CaptureFixture[str]) -> None:
    assert "99 is not a version of the table. The newest is 1. Give a version from 0 to 1" in _err(
        capfd, "audit", "visits", "--since", "99"
    )
    assert "-1 is not a version of the table" in _err(capfd, "audit", "visits", "--since=-1")
    assert main(["audit", "visits", "--since", "0"]) == 0


def test_a_table_whose_log_is_lost_is_not_made_again(capfd: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree("warehouse/visits/_transaction_log")
    said = _err(capfd, "init", "visits")
    assert "of a table whose log is lost. Put the folder _transaction_log/ back from a backup, or choose" in said
    assert not Path("warehouse/visits/_transaction_log").exists()


def test_a_table_with_rows_is_not_created_again() -> None:
    with pytest.raises(InvalidInput, match=r"a table is here already\. Open the table, or choose another location"):
        Table.create("warehouse/visits", SCHEMA)


@pytest.mark.parametrize("place", ["./warehouse/visits", "./rows.ndjson", "visits", "nolog"])
def test_rows_for_a_raw_log_are_not_written_to_another_place(place: str, capfd: pytest.CaptureFixture[str]) -> None:
    said = _err(capfd, "append", place, "rows.ndjson", "--table", "visits")
    faults = {
        "./warehouse/visits": "./warehouse/visits is a table, but --table needs a raw log. Leave --table out",
        "./rows.ndjson": "rows.ndjson is not a folder. Give the location of a folder",
    }
    assert (
        faults.get(place, f"{place!r} is neither a raw log declared in raw_logs/*.yaml (declared: none) nor a") in said
    )
    assert not Path("warehouse/visits/live").exists()


def test_a_distribution_without_records_notes_where_it_looked(capfd: pytest.CaptureFixture[str]) -> None:
    Path("raw_logs").mkdir()
    Path("raw_logs/events.yaml").write_text("name: events\nstores: [raw/events]\ntables: [visits]\n")
    for more in ([], ["--dry-run"]):
        capfd.readouterr()
        assert main(["distribute", "events", *more]) == 0
        assert "note: no record is in raw/events. If a producer has written" in capfd.readouterr().out
    assert "(declared: events). Did you mean 'events'?" in _err(capfd, "distribute", "event")
    assert "Declare the raw log in raw_logs/other.yaml, or give another name" in _err(capfd, "distribute", "other")


def test_an_import_of_a_missing_folder_says_that_it_is_missing(capfd: pytest.CaptureFixture[str]) -> None:
    assert "nowhere: there is no such file or folder. Correct the location" in _err(
        capfd, "import", "./warehouse/new", "./nowhere"
    )


def test_options_of_a_new_table_need_a_schema(capfd: pytest.CaptureFixture[str]) -> None:
    assert "--time-column, --index cannot be given without --schema" in _err(
        capfd, "init", "visits", "--time-column", "time", "--index", "words:fulltext:page"
    )


def test_a_word_within_more_than_two_changes_is_refused() -> None:
    words = {"name": "words", "kind": "fulltext", "columns": ["page"]}
    table = Table.create(f"memory://{uuid4()}", SCHEMA, indexes=[words])
    for query in ("red~9", "red~0"):
        with pytest.raises(tm.errors.InvalidInput, match="Write ~1 or ~2"):
            table.search(query, index="words", syntax="strict")
        assert table.search(query, index="words").to_arrow().num_rows == 0
    assert table.search("red~2", index="words", syntax="strict").to_arrow().num_rows == 0


def test_a_declared_raw_log_takes_only_the_rows_of_its_tables(capfd: pytest.CaptureFixture[str]) -> None:
    Path("raw_logs").mkdir()
    Path("raw_logs/clicks.yaml").write_text("name: clicks\nstores: [warehouse/raw]\ntables: [visits]\n")
    wrong = "the raw log 'clicks' has no table 'visit'. It has visits. Did you mean 'visits'?"
    for place in ("clicks", "warehouse/raw"):
        assert wrong in _err(capfd, "append", place, "rows.ndjson", "--table", "visit")
        assert main(["append", place, "rows.ndjson", "--table", "visits"]) == 0
    assert main(["raw", "warehouse/raw", "--verify"]) == 0
