"""A state that is compacted on request, and the output of `describe --state`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from pipelines.cli import main
from storage_core.log.checkpoint import read_state
from storage_core.store.meter import MeteredStore
from storage_core.table import Table
from tests.support.log_tables import log_on

SCHEMA = pa.schema([pa.field("id", pa.int64())])


@pytest.fixture
def table(request: pytest.FixtureRequest) -> Table:
    """Make a table whose state has five manifests of one entry each."""
    settings = {"checkpoint.interval": 1}
    table = Table.create(f"memory://{request.node.name}", SCHEMA, settings=settings)
    for number in range(5):
        table.append({"id": number})
    return table


def test_the_newest_state_becomes_one_manifest_by_a_version_that_changes_nothing(table: Table) -> None:
    before = table.snapshot
    assert len(read_state(table.store, 5).manifests) == 5
    compacted = table.checkpoint(compact=True)
    assert compacted.version == 6
    assert [each.num_entries for each in read_state(table.store, 6).manifests] == [5]
    assert compacted.history(1)[0].operation == "COMPACT STATE"
    opened = Table.open(table.uri)
    assert (opened.version, opened.snapshot.checkpoint_version) == (6, 6)
    assert dict(opened.snapshot.splits) == dict(before.splits)
    assert opened.changes(5).read_all().num_rows == 0


def test_a_compact_state_is_left_alone(table: Table) -> None:
    table.checkpoint(compact=True)
    written = table.store.meter.requests["put"]
    assert table.checkpoint(compact=True).version == 6
    assert table.store.meter.requests["put"] == written


def test_a_version_without_a_state_gets_a_compact_one_of_its_own(table: Table) -> None:
    table.alter({"checkpoint.interval": 0})
    table.append({"id": 9})
    version = table.version
    assert table.checkpoint(compact=True).version == version
    assert len(read_state(table.store, version).manifests) == 1


def test_two_who_compact_at_once_make_one_version(table: Table) -> None:
    other = Table.open(table.uri)
    assert table.checkpoint(compact=True).version == other.checkpoint(compact=True).version == 6


def test_a_state_is_described_and_the_costs_of_opening_are_those_of_an_opening(table: Table) -> None:
    about: dict[str, Any] = table.describe_state()
    assert about["entries"] == 5
    assert [each["entries"] for each in about["manifests"]] == [1] * 5
    assert sum(each["size"] for each in about["manifests"]) == about["manifest_bytes"]
    assert (about["checkpoint_version"], about["versions_behind"], about["compact"]) == (5, 0, False)
    metered = MeteredStore(table.store)
    log_on(metered).snapshot()
    assert about["opening"] == {
        "requests": metered.meter.requests,
        "bytes": metered.meter.bytes_read,
        "manifest_gets": 5,
    }
    after: dict[str, Any] = table.checkpoint(compact=True).describe_state()
    assert (after["compact"], after["tombstones"], len(after["manifests"])) == (True, 0, 1)


def test_a_table_without_a_state_and_one_with_a_json_checkpoint_are_described() -> None:
    table = Table.create("memory://states-described", SCHEMA)
    about = cast("dict[str, Any]", table.describe_state())
    assert (about["key"], about["age_ms"], about["manifests"], about["compact"]) == (None, None, [], False)
    table.alter({"checkpoint": {"format": "json-multipart", "interval": 1}})
    table.append({"id": 1})
    about = cast("dict[str, Any]", table.describe_state())
    assert about["format"] in ("json", "json-multipart")
    assert about["manifest_bytes"] > 0
    assert table.checkpoint(compact=True).version == table.version


def test_the_commands_compact_and_describe(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    place = str(tmp_path / "t")
    table = Table.create(place, SCHEMA, settings={"checkpoint.interval": 1})
    for number in range(3):
        table.append({"id": number})
    assert main(["checkpoint", place, "--compact", "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert (report["status"], report["version"]) == ("committed", 4)
    assert main(["checkpoint", place, "--compact", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["status"] == "nothing_to_do"
    assert main(["describe", place, "--state", "--json"]) == 0
    about = json.loads(capfd.readouterr().out)
    assert (about["version"], about["compact"], len(about["manifests"])) == (4, True, 1)
    assert main(["describe", place, "--state"]) == 0
    assert "opening" in capfd.readouterr().out
