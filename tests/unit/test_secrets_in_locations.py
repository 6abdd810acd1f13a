"""A secret in a location is neither stored nor shown, for every scheme."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.cli import main
from pipelines.tables import read_tables
from storage_core.base.errors import InvalidInput
from storage_core.change import declaration
from storage_core.change.declaration import TableDeclaration, load_raw_log
from storage_core.store.resolve import open_store
from storage_core.table import Table
from storage_core.write.ingest.landing import LandingSpec
from storage_core.write.raw_log.writer import RawLog

CANARY = "canary0"
SCHEMA = pa.schema([("a", pa.int64())])
WRITTEN = (
    f"s3://AKIA:{CANARY}@bucket/x",
    f"s3://{CANARY}@bucket/x",
    f"s3a://AKIA:{CANARY}@bucket/x",
    f"gs://AKIA:{CANARY}@bucket/x",
    f"https://u:{CANARY}@host/x",
    f"https://host/x?sig={CANARY}",
    f"s3://bucket/x?secret={CANARY}",
    f"s3://bucket/x?endpoint=https://u:{CANARY}@host",
    f"file://u:{CANARY}@/x",
    f"file:///x?token={CANARY}",
    f"memory://u:{CANARY}@x",
    f"AKIA:{CANARY}@bucket/x",
    f"//AKIA:{CANARY}@bucket/x",
)
TABLE = "name: events\nuri: {}\ncolumns: {{a: int}}\nlanding: {}\n"
HERE = "HERE"
LANDED = '{uri: "HERE", format: ndjson}'

Call = Callable[[str], object]
CALLS: tuple[Call, ...] = (
    open_store,
    Table.open,
    lambda uri: Table.create(uri, SCHEMA),
    lambda uri: LandingSpec(uri=uri, format="ndjson"),
    lambda uri: RawLog([uri]),
    lambda uri: TableDeclaration.model_validate(
        {"name": "t", "uri": "t", "columns": {"a": "int"}, "landing": {"uri": uri, "format": "ndjson"}}
    ),
)
FILES: tuple[tuple[str, str, Callable[[Path], object]], ...] = (
    ("tables/events.yaml", TABLE.format("t", LANDED), declaration.load),
    ("tables/events.yaml", TABLE.format('"HERE"', "{uri: landing, format: ndjson}"), declaration.load),
    ("tables/events.yaml", TABLE.format("t", '"HERE"'), declaration.load),
    ("tables/events.yaml", TABLE.format("t", '{uri: ["HERE"], format: ndjson}'), declaration.load),
    ("tables/events.yaml", 'name: t\nuri: t\ncolumns: {a: int}\n"HERE": x\n', declaration.load),
    ("tables/events.yaml", 'name: t\nuri: t\n"HERE": 1\n"HERE": 2\n', declaration.load),
    ("tables/events.yaml", 'name: "HERE"\nuri: t\ncolumns: {a: int}\n', declaration.load),
    ("tables/events.yaml", 'name: t\nuri: t\ncolumns: {a: "HERE"}\n', declaration.load),
    ("tables/events.yaml", 'name: t\nuri: t\ncolumns: {"HERE": int, "here": x}\n', declaration.load),
    ("tables/events.yaml", 'name: t\nuri: t\ncolumns: {a: int}\ntime_column: "HERE"\n', declaration.load),
    ("raw_logs/clicks.yaml", 'name: clicks\nstores: ["HERE"]\n', load_raw_log),
    ("raw_logs/clicks.yaml", 'name: clicks\nstores: "HERE"\n', load_raw_log),
    ("raw_logs/clicks.yaml", 'name: clicks\nstores: [{uri: "HERE", mandatory: false}]\n', load_raw_log),
)
COMMANDS = ("describe", "ingest", "raw", "fsck", "probe", "gc", "history", "init")


def everything_about(error: BaseException | None) -> str:
    messages = []
    while error is not None:
        lines = (line for line in traceback.format_exception_only(error))
        messages += [*lines, repr(error.args), repr(vars(error))]
        error = error.__cause__ or error.__context__
    return "\n".join(messages)


def stored_in(folder: Path) -> str:
    return "\n".join(f"{each} {each.read_bytes()!r}" for each in folder.rglob("*") if each.is_file())


@pytest.mark.parametrize("written", WRITTEN)
def test_a_location_with_a_secret_is_refused_everywhere_and_repeated_nowhere(
    written: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.DEBUG)
    messages = []
    for call in CALLS:
        with pytest.raises(ValueError, match=r"\S") as refused:
            call(written)
        messages.append(everything_about(refused.value))
    for name, text, load in FILES:
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text.replace(HERE, written))
        with pytest.raises(InvalidInput, match=name) as refused:
            load(file)
        messages.append(everything_about(refused.value))
        if name.startswith("tables"):
            messages += [each.message for each in read_tables(file.parent).problems]
            for command in ("init", "describe", "ingest"):
                with suppress(SystemExit):
                    assert main([command, "events"]) != 0
        file.unlink()
    for command in COMMANDS:
        with suppress(SystemExit):
            assert main([command, written]) != 0
    shown = capsys.readouterr()
    messages += [shown.out, shown.err, *(f"{each.getMessage()} {each.args}" for each in caplog.records)]
    assert CANARY not in "\n".join(messages)
    assert stored_in(tmp_path) == ""
