"""The output of `tidemark metrics`, read by an independent parser."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from pipelines.cli import main
from pipelines.last_failures import LastFailure
from pipelines.status import State, StatusTarget, collect_all_statuses, metrics_text
from storage_core.maintain.status import status
from storage_core.table import Table

CANARY = "canary0"
EVENTS = "name: events\nuri: events\ncolumns: {n: long}\nindexes: [{name: text, kind: bitmap, columns: [n]}]\n"
STRANGE = 'odd"\\name\n\x1b\ud800é'

Found = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(text: str) -> Found:
    families = list(text_string_to_metric_families(text))  # type: ignore[no-untyped-call]  # it ships no types of it
    assert len({each.name for each in families}) == len(families)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value for each in families for sample in each.samples
    }


def value(found: Found, name: str, **labels: str) -> float | None:
    return found.get((f"tidemark_{name}", frozenset(labels.items())))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "events.yaml").write_text(EVENTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    assert main(["init", "--json"]) == 0
    Table.open("events").append({"n": 1})
    return tmp_path


def test_the_metrics_are_those_of_the_status(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    assert main(["metrics"]) == 0
    printed = capfd.readouterr().out
    found = parsed(printed)
    table = Table.open("events")
    own = status(table.store, table.snapshot, now_ms=0)
    assert value(found, "table_rows", table="events") == own.rows == 1
    assert value(found, "table_size_bytes", table="events") == own.bytes
    assert value(found, "table_committed_timestamp_seconds", table="events") == own.committed_at / 1000
    assert value(found, "table_state", table="events", tidemark_table_state="ok") == 1
    assert value(found, "pending", table="events", step="catch_up", unit="rows") == 1
    assert value(found, "index_uncovered_rows", table="events", index="text") == 1
    assert value(found, "table_freshness_seconds", table="events") is None
    assert main(["metrics", "--output", "tidemark.prom", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["tables"] == 1
    written = (place / "tidemark.prom").read_text(encoding="utf-8")
    assert parsed(written).keys() == found.keys()
    assert [each.name for each in place.iterdir() if each.name.startswith(".tidemark")] == []
    assert main(["metrics", "--output", "no/where"]) == 5
    assert main(["metrics", "events", "./events"]) == 2


def test_tables_that_fail_and_names_of_any_text_are_parsed(tmp_path: Path) -> None:
    uri = str(tmp_path / "x")
    Table.create(uri, pa.schema([("n", pa.int64())]))
    looked = list(
        collect_all_statuses(
            [StatusTarget(name=STRANGE, uri=uri), StatusTarget(name="gone", uri=f"{uri}-", is_declared=False)]
        )
    )
    failed = LastFailure(at=1500, run_id="r", step='s"', message="m", is_over=False)
    found = parsed(metrics_text(looked, {"gone": failed}))
    assert value(found, "table_rows", table='odd"\\name\\n\\x1b\\ud800é') == 0
    assert value(found, "last_failure_timestamp_seconds", table="gone", step='s"') == 1.5
    states = [value(found, "table_state", table="gone", tidemark_table_state=each.value) for each in State]
    assert states == [float(each is State.FAILED) for each in State]
    again = parsed(metrics_text(collect_all_statuses([StatusTarget(name="x", uri=uri)]), {"x": failed}))
    assert value(again, "table_state", table="x", tidemark_table_state="failing") == 1
    assert value(again, "table_state", table="x", tidemark_table_state="ok") == 0


def test_no_place_and_so_no_secret_of_one_is_written(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    hidden = place / "tables" / "hidden.yaml"
    hidden.write_text(f"name: hidden\nuri: {place}/{CANARY}/x\ncolumns: {{n: long}}\n")
    assert main(["init", "hidden"]) == 0
    capfd.readouterr()
    assert main(["metrics"]) == 0
    assert CANARY not in capfd.readouterr().out
    for command in ("metrics", "status"):
        assert main([command, f"s3://AKIA:{CANARY}@bucket/x"]) == 2
        said = capfd.readouterr()
        assert CANARY not in said.out + said.err
