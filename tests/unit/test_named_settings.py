"""Every interface can change every setting in the log. `describe` shows the change, and the change takes effect."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it has no types

from pipelines.cli import main
from storage_core.base.errors import InvalidInput
from storage_core.change import declaration
from storage_core.change.definition import AUTO
from storage_core.data.settings.setting import Change
from storage_core.data.settings.table import ALTERABLE, FIXED, GROUPS, SETTINGS, TableConfig, changed, shown
from storage_core.log.actions import Metadata
from storage_core.log.checkpoint import read_state
from storage_core.log.log import TransactionLog
from storage_core.log.sharing import _OF_SETTINGS, SOURCE, first_protocol
from storage_core.table import Table
from tests.support.ids import SeededIds

ROOT = Path(__file__).parents[2]
COLUMNS = {"at": "timestamp", "host": "string", "text": "string", "count": "long"}
SCHEMA = pa.schema(
    [
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("host", pa.string()),
        pa.field("text", pa.string()),
        pa.field("count", pa.int64()),
    ]
)
WORDS = {"name": "words", "kind": "fulltext", "columns": ["text"], "options": {}}

OTHER: Mapping[str, object] = {
    "sort_schema": "host|timestamp/V2",
    "window": "30m",
    "coarse_window": True,
    "retention": "30d",
    "idle_after": "500ms",
    "regions_by_hand": True,
    "bloom_filters": ["host"],
    "indexes": [WORDS],
    "maintained_indexes": [],
    "landing.max_rejected": 0.25,
    "splits.target_size": "64MiB",
    "splits.compression": "snappy",
    "splits.compression_level": 9,
    "splits.metadata": "packed",
    "splits.string_cut": 4,
    "checkpoint.interval": 3,
    "checkpoint.format": "json",
    "checkpoint.compression": "snappy",
    "checkpoint.manifest_entries": 7,
    "gc.horizon": "2h",
    "gc.retention": "90d",
    "gc.states": 5,
    "late_data.policy": "drop",
    "late_data.acceptance_window": "3h",
    "raw_logs": [
        {"name": "raw", "table": "t", "stores": ["memory://a", "memory://b"], "closed_after": "5m"},
        {"name": "more", "table": "t", "stores": ["memory://c"], "optional": ["memory://d"], "unique_for": "2h"},
    ],
    "publish": {"delta": {"vectors": "none"}, "iceberg": {}},
    "compaction.factor": 5,
    "compaction.most_inputs": 20,
    "compaction.generations": 3,
    "compaction.most_files": 9,
    "compaction.cold_after": "2h",
    "compaction.mature_after": "5d",
    "compaction.run_rows": 1000,
    "compaction.coarsen_after": "90d",
    "compaction.coarsen_to": "7d",
    "compaction.start": "2020-01-01T00:00",
}
"""A value other than the default for each setting."""

Door = Callable[[Path, str, object], Table]


def create(place: Path, name: str, value: object) -> Table:
    return Table.create(str(place), SCHEMA, time_column="at", window="1h", settings={name: value})


def alter(place: Path, name: str, value: object) -> Table:
    Table.create(str(place), SCHEMA, time_column="at", window="1h").alter({name: value})
    return Table.open(str(place))


def command(place: Path, name: str, value: object) -> Table:
    Table.create(str(place), SCHEMA, time_column="at", window="1h")
    of_names = isinstance(value, list) and name not in ("indexes", "raw_logs")
    given = ",".join(value) if of_names else value if isinstance(value, str) else json.dumps(value)  # type: ignore[arg-type]  # names
    assert main(["alter", str(place), "set", f"{name}={given}"]) == 0
    return Table.open(str(place))


def nested(name: str, value: object) -> dict[str, object]:
    """Return the setting as part of a declaration. A `landing` section must also have `uri` and `format`."""
    above, _, inner = name.partition(".")
    others = {"uri": "landing", "format": "ndjson"} if above == "landing" else {}
    return {above: {**others, inner: value} if inner else value}


def declare(place: Path, name: str, value: object) -> Table:
    def declared(nested: Mapping[str, object]) -> Table:
        body = {"name": "t", "uri": str(place), "columns": COLUMNS, "time_column": "at", "window": "1h", **nested}
        file = place.parent / "t.yaml"
        file.write_text(yaml.safe_dump(body), encoding="utf-8")
        return Table.declare(declaration.load(file))

    declared({})
    declared(nested(name, value))
    return Table.open(str(place))


@pytest.mark.parametrize("door", [create, alter, command, declare], ids=lambda door: door.__name__)
@pytest.mark.parametrize("name", ALTERABLE)
def test_every_setting_is_set_through_every_door_and_described(tmp_path: Path, name: str, door: Door) -> None:
    value = OTHER[name]
    assert shown(TableConfig())[name] != value
    table = door(tmp_path / "t", name, value)
    described = table.describe()["settings"]
    assert isinstance(described, dict)
    assert described[name] == value
    before = table.version
    assert table.alter(described).version == before, "what is described is taken back, and changes nothing"
    if name in ("window", "regions_by_hand"):
        return  # a table with windows keeps windows, and a table with manual regions keeps them
    table.alter({"late_data" if name.startswith("late_data") else name: None})
    assert shown(table.config)[name] == shown(TableConfig())[name], "None is back to the default"


def test_the_names_cover_every_setting_that_may_change() -> None:
    assert {each.record or each.field for each in ALTERABLE.values()} == _fields_of(TableConfig) - {*FIXED}
    assert OTHER.keys() == ALTERABLE.keys()
    for record in ("compaction", "late_data"):
        kind = type(next(iter(_records(record))))
        assert {each.field for each in ALTERABLE.values() if each.record == record} == _fields_of(kind)


def _fields_of(record: Any) -> set[str]:
    return {each.name for each in fields(record)}


def _records(name: str) -> Iterator[Any]:
    yield getattr(changed(TableConfig(), {name: {"policy": "drop"} if name == "late_data" else {}}), name)


def test_create_names_settings_of_the_table_and_every_one_that_cannot_change_later() -> None:
    parameters = dict(inspect.signature(Table.create).parameters)
    usual = {name: each.default for name, each in parameters.items() if name not in ("uri", "schema", "settings")}
    assert usual.keys() <= SETTINGS.keys() | GROUPS.keys()
    fixed = {name for name, each in SETTINGS.items() if each.change in (Change.NEVER, Change.REGIONS)}
    assert fixed <= usual.keys()
    for name in usual.keys() - GROUPS.keys() - {"window", "regions"}:  # other settings determine their defaults
        assert SETTINGS[name].read(usual[name]) == SETTINGS[name].default, name
    assert usual["window"] == AUTO


def test_a_setting_of_the_log_needs_the_feature_that_its_entry_names() -> None:
    for entry in SETTINGS.values():
        metadata = Metadata(id="t", schemaString="{}", partitionColumns=(), configuration={entry.key: "[]"})
        needed = {*(first_protocol(metadata).readerFeatures or ())}
        assert entry.feature is None or entry.feature in needed, entry.name
    assert set(_OF_SETTINGS) - {SOURCE} == {entry.key for entry in SETTINGS.values() if entry.feature}


def test_the_published_schema_takes_every_declaration_of_the_repository_and_refuses_what_is_wrong() -> None:
    judge = Draft202012Validator(json.loads((ROOT / "tables" / "table.schema.json").read_text(encoding="utf-8")))
    files = sorted((ROOT / "tables").glob("*.yaml"))
    assert files
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert text.startswith("# yaml-language-server: $schema=table.schema.json\n")
        judge.validate(yaml.safe_load(text))
    body = {"name": "t", "uri": "t", "columns": COLUMNS, "time_column": "at", "window": "1h"}
    for name, value in OTHER.items():
        judge.validate({**body, **nested(name, value)})
    wrong: list[dict[str, object]] = [
        {"windw": "1h"},
        {"window": "soon"},
        {"gc": {"states": 1}},
        {"splits": {"compression": "lzo"}},
        {"indexes": [{**WORDS, "kind": "graph"}]},
        {"raw_logs": [{"name": "raw"}]},
        {"map_columns": {"m": "add"}},
        {"partitions": {"start": "today"}},
    ]
    assert [each for each in wrong if judge.is_valid({**body, **each})] == []


def test_settings_are_given_as_declarations_nest_them_and_only_these_change() -> None:
    config = changed(
        TableConfig(), {"gc": {"retention": 3600, "states": "4"}, "compaction": {"factor": 20, "most_inputs": 20}}
    )
    assert (config.version_retention_ms, config.retained_states, config.gc_horizon_ms) == (3_600_000, 4, 86_400_000)
    assert (config.compaction.factor, config.compaction.most_inputs) == (20, 20)
    back = changed(config, {"compaction": None, "gc.retention": None})
    assert back.compaction == TableConfig().compaction
    assert back.retained_states == 4


def test_two_who_change_different_settings_at_once_both_have_their_way() -> None:
    first = Table.create("memory://two-settings", SCHEMA, time_column="at")
    second = Table.open("memory://two-settings")
    first.alter({"checkpoint.interval": 3})
    second.alter({"gc.states": 6})
    found = Table.open("memory://two-settings").config
    assert (found.checkpoint_interval, found.retained_states) == (3, 6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"splits.target_size": 0}, "splits.target_size is 0. Give 1 or more"),
        ({"splits.target_size": "64M"}, "splits.target_size: '64M' is not a size"),
        ({"splits.compression": "lzo"}, "splits.compression is 'lzo'. Give zstd, gzip, snappy or none"),
        ({"splits.compression_level": 23}, "zstd has only levels from 1 to 22"),
        ({"splits": {"compression": "gzip", "compression_level": 10}}, "gzip has only levels from 1 to 9"),
        ({"splits": {"compression": "none", "compression_level": 1}}, "none has no levels. Leave the level out"),
        ({"splits.string_cut": 1025}, "splits.string_cut is 1025. Give 1024 or less"),
        ({"checkpoint.interval": -1}, "checkpoint.interval is -1. Give 0 or more"),
        ({"checkpoint.interval": True}, "checkpoint.interval: True is not a whole number"),
        ({"checkpoint.format": "xml"}, "checkpoint.format is 'xml'. Give avro, json or json-multipart"),
        ({"checkpoint.manifest_entries": 50_001}, "checkpoint.manifest_entries is 50001. Give 50000 or less"),
        ({"gc.states": 1}, "gc.states is 1. Give 2 or more"),
        ({"gc.retention": "soon"}, "gc.retention: 'soon' is not a duration"),
        (
            {"retention": "30d", "gc.retentions": 1},
            "unknown setting 'gc.retentions'. Did you mean 'gc.retention'?",
        ),
        ({"compaction.factor": 1}, "compaction.factor is 1. Give 2 or more"),
        ({"compaction.start": "today"}, "compaction.start: 'today' is not a time. Write the time as"),
        ({"compaction": 3}, "compaction is a group of settings. Set compaction.factor"),
        ({"bloom_filters": "hots"}, "bloom_filters: unknown column 'hots'"),
        ({"bloom_filters": [1]}, r"bloom_filters: \[1\] is not a list of names"),
        ({"indexes": "words"}, "is not valid JSON. Give a JSON list of objects with name"),
        (
            {"indexes": [WORDS], "maintained_indexes": ["words"]},
            "maintained_indexes contains 'words', but the setting",
        ),
        ({"sort_schema": "hots|timestamp/V2"}, "hots"),
        ({"late_data.policy": "hold"}, "late_data.policy is 'hold'. Give accept, quarantine or drop"),
        ({"time_column": "at"}, "time_column cannot be changed after the table was created"),
        ({"regions": []}, "Use `Table.set_regions`"),
        ({"landing": "here"}, "Change the landing location in tables/NAME.yaml"),
        ({"landing": None}, "landing cannot be changed this way. Change the landing location in"),
        ({"landing": {"uri": "here"}}, "landing.uri cannot be changed this way. Change the landing location in"),
        ({"landing.max_rejected": "2"}, "landing.max_rejected: '2' is not a number from 0 to 1"),
    ],
)
def test_what_cannot_be_set_is_refused_with_its_name_and_its_bounds(given: dict[str, object], message: str) -> None:
    table = Table.create(f"memory://refused-{abs(hash(message))}", SCHEMA, time_column="at", window="1h")
    with pytest.raises(InvalidInput, match=message):
        table.alter(given)
    assert table.refresh().version == 0


def test_the_command_says_what_it_changed_and_refuses_what_it_cannot(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path / "t")
    Table.create(place, SCHEMA, time_column="at")
    assert main(["alter", place, "set", "gc.retention=90d", "checkpoint.interval=4", "--json"]) == 0
    said = json.loads(capfd.readouterr().out)
    assert said == {"status": "changed", "version": 1, "settings": {"checkpoint.interval": 4, "gc.retention": "90d"}}
    assert main(["alter", place, "set", "gc.retention=90d"]) == 0
    assert capfd.readouterr().out == "unchanged at version 1: gc.retention=90d\n"
    assert main(["describe", place]) == 0
    assert "checkpoint.interval=4, gc.retention=90d" in capfd.readouterr().out
    assert main(["alter", place, "unset", "gc"]) == 0
    assert "gc.retention=30d" in capfd.readouterr().out
    for wrong in (["set", "gc.retention"], ["unset", "gc.states=2"], ["set", "gc.states=1"], ["drop", "x"]):
        assert main(["alter", place, *wrong]) == 2
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tables").mkdir()
    body = {"name": "declared", "uri": place, "columns": COLUMNS, "time_column": "at"}
    (tmp_path / "tables" / "declared.yaml").write_text(yaml.safe_dump(body), encoding="utf-8")
    assert main(["alter", "declared", "set", "gc.states=3"]) == 2
    assert "Change gc.states there, then run: tidemark init declared" in capfd.readouterr().err


def _appended(table: Table, rows: int = 3) -> Mapping[str, Any]:
    times = [1_700_000_000_000_000 + each for each in range(rows)]
    table.append(pa.table([times, ["h" * 40] * rows, ["text"] * rows, range(rows)], SCHEMA))
    return table.files()[-1]


@pytest.mark.parametrize(
    ("settings", "codec"),
    [
        ({"splits.compression": "snappy"}, "SNAPPY"),
        ({"splits.compression": "gzip", "splits.compression_level": 9}, "GZIP"),
        ({"splits.compression": "none"}, "UNCOMPRESSED"),
        ({"splits.compression_level": 19}, "ZSTD"),
    ],
)
def test_new_splits_have_the_codec_and_old_ones_keep_theirs(
    tmp_path: Path, settings: dict[str, object], codec: str
) -> None:
    table = Table.create(str(tmp_path / "t"), SCHEMA, time_column="at", window="1h")
    first = _appended(table)["path"]
    second = next(each["path"] for each in _both(table.alter(settings)) if each["path"] != first)
    found = [
        pq.read_metadata(tmp_path / "t" / str(each)).row_group(0).column(1).compression for each in (first, second)
    ]
    assert found == ["ZSTD", codec]
    assert len(table.scan().to_arrow()) == 6


def _both(table: Table) -> list[dict[str, object]]:
    _appended(table)
    return table.files()


def test_a_level_is_the_one_that_pages_are_compressed_with(tmp_path: Path) -> None:
    sizes = []
    for level in (1, 19):
        table = Table.create(
            str(tmp_path / str(level)), SCHEMA, time_column="at", settings={"splits.compression_level": level}
        )
        rows = 20_000
        times, texts = (
            [1_700_000_000_000_000] * rows,
            [f"{each * 7919 % 10007} text {each % 97}" for each in range(rows)],
        )
        table.append(pa.table([times, texts, texts[::-1], range(rows)], SCHEMA))
        sizes.append(table.snapshot.bytes)
    assert sizes[1] < sizes[0]


def test_strings_are_cut_where_the_table_says_and_an_audit_knows(tmp_path: Path) -> None:
    from storage_core.maintain.audit import audit

    table = Table.create(str(tmp_path / "t"), SCHEMA, time_column="at", window="1h")
    assert _appended(table)["min_values"]["host"] == "h" * 32
    table.alter({"splits.string_cut": 4})
    cut = {each["min_values"]["host"] for each in _both(table)}  # type: ignore[index]  # plain data
    assert cut == {"h" * 32, "h" * 4}
    assert audit(table.store, table.snapshot).violations == ()
    assert len(table.scan(filter=f"host = '{'h' * 40}'").to_arrow()) == 6


def test_a_checkpoint_follows_the_interval_the_form_and_the_size_of_manifests() -> None:
    settings = {"checkpoint": {"interval": 3, "manifest_entries": 2, "compression": "none"}}
    table = Table.create("memory://checkpoint-settings", SCHEMA, time_column="at", settings=settings)
    for _ in range(3):
        _appended(table)
    assert table.snapshot.checkpoint_version == 3
    assert [each.num_entries for each in read_state(table.store, 3).manifests] == [1, 2]
    table.alter({"checkpoint.format": "json", "checkpoint.interval": 1})
    assert table.snapshot.checkpoint is not None
    assert table.snapshot.checkpoint.key.endswith(f"{table.version:020}.checkpoint.json")


@pytest.mark.parametrize("states", [2, 4])
def test_the_collector_keeps_as_many_states_as_the_table_retains(states: int) -> None:
    from storage_core.maintain.collect import mark
    from tests.support.clock import ManualClock

    table = Table.create(
        f"memory://retained-states-{states}",
        SCHEMA,
        time_column="at",
        settings={"checkpoint.interval": 1, "gc.states": states, "gc.retention": 0},
    )
    for _ in range(6):
        _appended(table)
    clock = ManualClock(table.snapshot.timestamp + 10**9)
    log = TransactionLog(table.store, clock=clock, ids=SeededIds(1))
    old = [each.key for each in mark(table.store, log, now_ms=clock.now_ms()).unreachable if "state-v" in each.key]
    assert len(old) == 6 - states
    assert Table.open(table.uri, at=6 - states + 1).version == 6 - states + 1
