"""Publishing by command, by job and by asset, and the setting that selects the format."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from dagster import AssetKey, DagsterInstance
from pyiceberg.table import StaticTable

from assets.launcher import InProcessLauncher
from jobs.command import main as job_main
from jobs.due_runs import TableInputs, due_run
from jobs.spark.spark import Spark
from pipelines.catalog import build_definitions
from pipelines.cli import main
from pipelines.tables import load_tables
from storage_core.base.errors import Corrupt, InvalidInput
from storage_core.change.declaration import load
from storage_core.data.settings.table import Publish, TableConfig
from tidemark import Table

DECLARATION = """\
name: hits
uri: warehouse/hits
columns: {id: long, url: string}
publish: %s
"""


def _declared(tmp_path: Path, how: str) -> Path:
    (tmp_path / "tables").mkdir(exist_ok=True)
    file = tmp_path / "tables" / "hits.yaml"
    file.write_text(DECLARATION % how, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("given", "vectors"),
    [
        ("delta", "inline"),
        ({"delta": None}, "inline"),
        ({"delta": {}}, "inline"),
        ({"delta": {"vectors": "none"}}, "none"),
        (["delta"], "inline"),
        ('{"delta": {"vectors": "none"}}', "none"),
        ({}, None),
    ],
)
def test_how_a_table_is_published_is_said_shortly_or_in_full_and_comes_back(given: object, vectors: str | None) -> None:
    found = Publish.of(given)
    assert found.delta == vectors
    assert Publish.of(found.shown()) == Publish.from_text(found.to_text()) == found
    assert TableConfig.from_configuration(TableConfig(publish=found).to_configuration()).publish == found


def test_a_table_is_published_in_several_formats_and_those_that_it_declares_come_first() -> None:
    for given in (["delta", "iceberg"], {"iceberg": None, "delta": {"vectors": "none"}}, "iceberg"):
        found = Publish.of(given)
        assert Publish.of(found.shown()) == Publish.from_text(found.to_text()) == found
    assert Publish.of(["iceberg", "delta"]).formats == ("delta", "iceberg")
    assert Publish.of("iceberg").published == ("iceberg",)
    assert Publish().published == ("delta",)


@pytest.mark.parametrize(
    "given",
    [
        {"iceberg": {"vectors": "none"}},
        "hudi",
        {"delta": {"vector": "none"}},
        {"delta": {"vectors": "some"}},
        7,
        "[",
        {"a": 1},
    ],
)
def test_another_format_or_option_is_refused_and_named(given: object) -> None:
    with pytest.raises(InvalidInput, match=r"delta|iceberg|not JSON"):
        Publish.of(given)


def test_a_command_publishes_and_says_what_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    _declared(tmp_path, "{delta: {vectors: none}}")
    assert main(["init", "hits"]) == 0
    table = Table.open("warehouse/hits")
    assert table.config.publish.delta == "none"
    assert table.describe()["settings"]["publish"] == {"delta": {"vectors": "none"}}  # type: ignore[index]
    table.append([{"id": 1, "url": "/"}, {"id": 2, "url": "/"}])
    capsys.readouterr()
    assert main(["publish", "hits"]) == 0
    assert capsys.readouterr().out == "delta version 0 contains version 1 of the table (1 new commit)\n"
    table.delete("id = 1")
    assert main(["publish", "hits"]) == 0
    assert "newer versions are not published yet: rows of 1 split are deleted" in capsys.readouterr().out
    _declared(tmp_path, "delta")
    capsys.readouterr()
    assert main(["publish", "hits", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "status": "committed",
        "format": "delta",
        "version": 3,
        "shown_as": 1,
        "location": table.store.uri,
        "commits": 1,
        "waits_for": None,
    }
    assert main(["publish", "hits", "--format", "hudi"]) == 2
    assert job_main("publish", ["--table-uri", "warehouse/hits", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["details"]["mirrors"][0]["shown_as"] == 1
    _declared(tmp_path, "[delta, iceberg]")
    capsys.readouterr()
    assert main(["publish", "hits"]) == 0
    of_delta, of_iceberg, where = capsys.readouterr().out.splitlines()[:3]
    assert of_delta.startswith("delta version 1 contains version ")
    assert of_iceberg == "no version is published as iceberg yet"
    assert where.startswith("newer versions are not published yet: rows of 1 split are deleted")
    table.refresh().update({"url": "/all"}, "true")
    assert main(["publish", "hits", "--format", "iceberg"]) == 0
    shown, where = capsys.readouterr().out.splitlines()
    assert shown == "iceberg snapshot 5 contains version 5 of the table (1 new commit)"
    assert StaticTable.from_metadata(where.removeprefix("newest metadata: ")).scan().count() == 1


@pytest.mark.dagster
def test_only_a_table_that_declares_it_has_the_asset_which_publishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = _declared(tmp_path, "[delta, iceberg]")
    (tmp_path / "tables" / "others.yaml").write_text("name: others\nuri: warehouse/others\ncolumns: {id: long}\n")
    declared = load_tables(tmp_path / "tables")
    declaration = load(file)
    with Spark() as spark, DagsterInstance.ephemeral() as instance:
        launcher = InProcessLauncher(spark)
        assets = list(build_definitions(declared, launcher).resolve_asset_graph().get_all_asset_keys())
        assert AssetKey(["hits", "published"]) in assets
        assert AssetKey(["others", "published"]) not in assets
        table = Table.declare(declaration)
        table.append([{"id": 1, "url": "/"}])
        due = due_run("publish", TableInputs.of(declaration))
        assert due is not None
        assert due.reason == "version 1, nothing is published"
        job = build_definitions(declared, launcher).resolve_job_def("publish")
        assert job.execute_in_process(instance=instance).success
        assert due_run("publish", TableInputs.of(declaration)) is None
    assert pl.read_delta("warehouse/hits").rows() == [(1, "/")]
    assert StaticTable.from_metadata("warehouse/hits/_iceberg").scan().to_arrow().to_pylist() == [{"id": 1, "url": "/"}]


MIRROR = ("00000000000000000011.json", "00000000000000000010.checkpoint.parquet", "_last_checkpoint")


@pytest.mark.parametrize("damage", [b"", b"{", b"PAR1"])
@pytest.mark.parametrize("name", MIRROR)
def test_a_damaged_mirror_never_harms_the_table_and_is_mended_by_the_next_checkpoint_or_refused(
    tmp_path: Path, name: str, damage: bytes
) -> None:
    table = Table.create(str(tmp_path / "t"), pa.schema([("id", pa.int64())]))
    for number in range(12):
        table.append([{"id": number}])
        table.publish("delta")
    (tmp_path / "t" / "_delta_log" / name).write_bytes(damage)
    table.append([{"id": 12}])
    assert sorted(Table.open(table.uri).scan().to_arrow()["id"].to_pylist()) == [*range(13)]
    if name == MIRROR[0]:
        with pytest.raises(Corrupt, match=name):
            Table.open(table.uri).publish("delta")
        return
    for number in range(13, 23):  # until the next checkpoint
        table.refresh().publish("delta")
        table.append([{"id": number}])
    assert sorted(pl.scan_delta(table.uri).collect()["id"]) == [*range(22)]
