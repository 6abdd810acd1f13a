from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.tables import load_tables, read_tables, tables_folder
from storage_core.base.errors import InvalidInput, NotFound
from storage_core.change import declaration
from storage_core.change.declaration_parts import UpkeepDeclaration
from storage_core.data.settings.table import LateData
from storage_core.store import resolve
from storage_core.table import Table

ROOT = Path(__file__).parents[2]

GOOD = """\
name: events
uri: warehouse/events
columns:
  at: timestamp
  on: boolean
  level: {type: int, nullable: false}
  price: decimal(10,2)
  text: string
time_column: at
sort_schema: level|timestamp/V2
window: 15m
indexes:
  - name: words
    kind: fulltext
    columns: [text]
    options: {tokenizer: whitespace}
landing:
  uri: landing/events
  format: ndjson
partitions: {start: 2024-01-01T00:00, end: 2024-01-02T00:00}
schedule:
  compact: "7 * * * *"
gc:
  horizon: 2d
late_data: {policy: drop, acceptance_window: 2h}
"""

KEYED = """\
name: planes
uri: warehouse/planes
columns:
  tailnum: string
  at: timestamp
primary_key: tailnum
idle_after: 30m
"""


def write(folder: Path, text: str, name: str = "events.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refusal(folder: Path, text: str) -> str:
    path = write(folder, text)
    with pytest.raises(InvalidInput) as refused:
        declaration.load(path)
    return str(refused.value).replace(str(folder), "tables")


def test_places_of_raw_logs_are_relative_to_the_project_and_durations_are_text(tmp_path: Path) -> None:
    text = "raw_logs:\n- {name: raw, table: clicks, stores: [raw/here, s3://there/raw], closed_after: 5m}\n"
    [raw_log] = declaration.load(write(tmp_path, KEYED + text)).below(tmp_path).config().raw_logs
    assert raw_log.stores == (str(tmp_path / "raw/here"), "s3://there/raw")
    assert raw_log.closed_after_ms == 300_000


def test_a_declaration_gives_schema_settings_and_landing_place(tmp_path: Path) -> None:
    table = declaration.load(write(tmp_path, GOOD))
    expected = pa.schema(
        [
            pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
            pa.field("on", pa.bool_()),
            pa.field("level", pa.int32(), nullable=False),
            pa.field("price", pa.decimal128(10, 2)),
            pa.field("text", pa.string()),
        ]
    )
    assert table.schema() == expected
    config = table.config()
    assert (config.kind, config.time_column, config.window_seconds) == ("append", "at", 900)
    assert config.sort_schema == "level|timestamp/V2"
    assert config.gc_horizon_ms == 2 * 86_400_000
    assert config.late_data == LateData(policy="drop", acceptance_ms=7_200_000)
    assert config.indexes[0].options == {"tokenizer": "whitespace"}
    landing = table.landing_spec()
    assert landing is not None
    assert (landing.uri, landing.format) == ("landing/events", "ndjson")
    assert table.partitions is not None
    assert table.partitions.start == datetime(2024, 1, 1, tzinfo=UTC)
    assert (table.schedule.cron_of("compact"), table.schedule.cron_of("collect")) == ("7 * * * *", "30 3 * * *")


def test_key_columns_are_required(tmp_path: Path) -> None:
    table = declaration.load(write(tmp_path, KEYED))
    assert table.config().primary_key == ("tailnum",)
    assert table.config().idle_after_ms == 1_800_000
    assert table.config().late_data is None
    assert not table.schema().field("tailnum").nullable
    assert table.schema().field("at").nullable


def test_owners_and_tags_are_those_that_dagster_takes(tmp_path: Path) -> None:
    good = "owners: [ann@example.com, team:data]\ntags: {domain: web, acme.com/tier: '1', empty: ''}\n"
    loaded = declaration.load(write(tmp_path, GOOD + good))
    assert loaded.owners == ("ann@example.com", "team:data")
    assert loaded.tags == {"domain": "web", "acme.com/tier": "1", "empty": ""}
    for wrong, found in (
        (
            "owners: [ann]",
            "field `owners.0`: 'ann' is not an owner. Write an address such as ann@example.com, or team:data",
        ),
        ("tags: {a b: c}", "'a b' is not a key or a value of a tag"),
        ("tags: {a: b/c}", "field `tags.a`: 'b/c' is not a key or a value of a tag"),
    ):
        with pytest.raises(InvalidInput) as raised:
            declaration.load(write(tmp_path, f"{GOOD}{wrong}\n"))
        assert found in str(raised.value)


def test_budgets_of_upkeep_are_sizes_and_hours(tmp_path: Path) -> None:
    given = "upkeep: {priority: 7, bytes_per_hour: 50GB, quiet_hours: '22:30-24:00'}\n"
    upkeep = declaration.load(write(tmp_path, GOOD + given)).upkeep
    assert (upkeep.priority, upkeep.bytes_per_hour, upkeep.quiet_hours) == (7, 50_000_000_000, "22:30-24:00")
    evening_ms = int((22.5 * 3600 + 86_400) * 1000)
    assert [upkeep.is_quiet(evening_ms + each) for each in (-1, 0, 5_400_000 - 1, 5_400_000)] == [
        False,
        True,
        True,
        False,
    ]
    past_midnight = UpkeepDeclaration(quiet_hours="22:00-06:00")
    assert [past_midnight.is_quiet(hour * 3_600_000) for hour in (21, 22, 0, 5, 6)] == [False, True, True, True, False]
    unbounded = declaration.load(write(tmp_path, GOOD)).upkeep
    assert (unbounded.priority, unbounded.bytes_per_hour, unbounded.is_quiet(0)) == (5, None, False)
    for wrong, found in (
        ("{priority: 11}", "field `upkeep.priority` is '11'. Give 10 or less"),
        ("{bytes_per_hour: 0}", "field `upkeep.bytes_per_hour` is '0'. Give 1 or more"),
        ("{bytes_per_hour: some}", "field `upkeep.bytes_per_hour`: 'some' is not a size"),
        ("{bytes_per_hour: -5GB}", "such as 50GB or 256MiB. The units are KB, MB, GB, TB, KiB, MiB, GiB and TiB"),
        (
            "{quiet_hours: 8-18}",
            "field `upkeep.quiet_hours`: '8-18' is not a valid range of hours. Write the range as 08:00-18:00",
        ),
        ("{quiet_hours: '00:00-24:00'}", "covers the whole day. Leave some hours of the day for maintenance"),
        ("{runs_at_once: 3}", "unknown field `upkeep.runs_at_once`"),
    ):
        with pytest.raises(InvalidInput) as raised:
            declaration.load(write(tmp_path, f"{GOOD}upkeep: {wrong}\n"))
        assert re.search(rf"events.yaml:\d+: .*{re.escape(found)}", str(raised.value))


def test_the_declared_tables_of_the_repository_load() -> None:
    declared = load_tables(ROOT / "tables")
    tables = {table.declaration.name: table.declaration for table in declared.tables}
    assert tables["access_log"].config().window_seconds == 3600
    assert tables["planes"].config().kind == "keyed"
    assert declared.problems == ()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "window: 15m",
            "window: 7m",
            "tables/events.yaml:11: field `window` is 7m. Give 1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30 or 60",
        ),
        ("window: 15m", "window: 2h", "tables/events.yaml:11: field `window` is 2h, which is longer than an hour. Set"),
        ("window: 15m", "window: soon", "tables/events.yaml:11: field `window`: 'soon' is not a duration"),
        ("window: 15m", "windw: 15m", "tables/events.yaml:11: unknown field `windw`. Did you mean 'window'?"),
        ("name: events\n", "", "tables/events.yaml:1: field `name` is missing. Add it"),
        ("name: events", "name: ../events", "tables/events.yaml:1: field `name`:"),
        ("name: events", "name: ev..ents", "tables/events.yaml:1: field `name`:"),
        ("uri: warehouse/events", "uri: ../events", "tables/events.yaml:2: field `uri`: '../events' leaves its folder"),
        ("on: boolean", "on: bool", "tables/events.yaml:5: field `columns.on.type`: 'bool' is not a column type"),
        ("on: boolean", "TEXT: string", "tables/events.yaml:3: field `columns`: the columns 'TEXT' and 'text' differ"),
        ("price: decimal(10,2)", "price: decimal(50,2)", "tables/events.yaml:7: field `columns.price.type`:"),
        (
            "time_column: at",
            "time_column: when",
            "tables/events.yaml:9: field `time_column`: unknown column 'when'",
        ),
        (
            "time_column: at",
            "time_column: text",
            "tables/events.yaml:9: field `time_column` is 'text', which has the type string. Name a column",
        ),
        ("time_column: at\n", "", "tables/events.yaml:10: field `window`: window needs a time_column"),
        ("level|timestamp/V2", "level|", "tables/events.yaml:10: field `sort_schema`:"),
        (
            "columns: [text]",
            "columns: [txt]",
            "tables/events.yaml:12: field `indexes`: index 'words': unknown column 'txt'",
        ),
        ("kind: fulltext", "kind: graph", "tables/events.yaml:14: field `indexes.0.kind`:"),
        (
            "kind: fulltext",
            "kind: primary_key",
            "tables/events.yaml:12: field `indexes`: index 'words': kind primary_key needs",
        ),
        (
            "columns: [text]",
            "columns: [level]",
            "tables/events.yaml:12: field `indexes`: index 'words': ",
        ),
        (
            "tokenizer: whitespace",
            "tokenizer: english",
            "tables/events.yaml:12: field `indexes`: index 'words': tokenizer is 'english'. Give one of",
        ),
        (
            "format: ndjson",
            "format: ndjson\n  time_format: '%Y-%Q'",
            "tables/events.yaml:17: field `landing`: time_format '%Y-%Q' is not usable",
        ),
        (
            "format: ndjson",
            "format: ndjson\n  time_format: '%b %d %H:%M:%S'",
            "tables/events.yaml:17: field `landing`: time_format '%b %d %H:%M:%S' has no year",
        ),
        ("gc:", "bloom_filters: [price, nope]\ngc:", "tables/events.yaml:23: field `bloom_filters`: "),
        ("gc:", "bloom_filters: [on]\ngc:", "tables/events.yaml:23: field `bloom_filters`: "),
        (
            "format: ndjson",
            "format: xml",
            "tables/events.yaml:19: field `landing.format` is 'xml'. Give ndjson, json, csv, parquet, avro, arrow",
        ),
        (
            "format: ndjson",
            "format: pattern",
            "tables/events.yaml:17: field `landing`: format is 'pattern', but pattern",
        ),
        ("2024-01-02T00:00", "2024-01-02T00:07", "tables/events.yaml:20: field `partitions`: start or end is not"),
        ("2024-01-02T00:00", "2023-01-02T00:00", "tables/events.yaml:20: field `partitions`: end must come after"),
        ("2024-01-02T00:00", "tomorrow", "tables/events.yaml:20: field `partitions.end`: 'tomorrow' is not a time"),
        ("7 * * * *", "hourly", "tables/events.yaml:22: field `schedule.compact`: 'hourly' is not a cron line"),
        ("7 * * * *", "61 * * * *", "tables/events.yaml:22: field `schedule.compact`: '61' is not a valid minute of a"),
        ("7 * * * *", "0 0 31 2 *", "tables/events.yaml:22: field `schedule.compact`: '0 0 31 2 *' is a cron line"),
        ('"7 * * * *"', "7", "tables/events.yaml:22: field `schedule.compact`: '7' is not a cron line"),
        ("horizon: 2d", "horizon: -1", "tables/events.yaml:24: field `gc.horizon`:"),
        (
            "policy: drop",
            "policy: hold",
            "tables/events.yaml:25: field `late_data.policy` is 'hold'. Give accept, quarantine or drop",
        ),
        (
            "acceptance_window: 2h",
            "acceptance_window: soon",
            "tables/events.yaml:25: field `late_data.acceptance_window`:",
        ),
        (
            "acceptance_window: 2h",
            "acceptance_window: 1000000000h",
            "tables/events.yaml:25: field `late_data.acceptance_window`: '1000000000h' is not a duration",
        ),
        (
            "time_column: at\nsort_schema: level|timestamp/V2\nwindow: 15m\n",
            "",
            "tables/events.yaml:22: field `late_data`: late_data needs",
        ),
        ("gc:", "window: 5m\ngc:", "tables/events.yaml:23: field `window`: given twice, first on line 11"),
        (
            "window: 15m",
            "window: [15m",
            "tables/events.yaml:12: not valid YAML: a list begins with [ and has no end. Write ]",
        ),
    ],
)
def test_a_bad_field_is_refused_with_file_line_and_field(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in GOOD
    message = refusal(tmp_path, GOOD.replace(old, new))
    assert any(line.startswith(expected) for line in message.splitlines()), message


@pytest.mark.parametrize(
    ("text", "line", "fault"),
    [
        ("a:\n\t- b\n", 2, "a tab is used for indentation. Use spaces"),
        ("a: [1\n", 2, "a list begins with [ and has no end. Write ] after the last value of the list"),
        ("a: {b: 1\n", 2, "a mapping begins with { and has no end. Write } after the last value of the mapping"),
        ("a: b: c\n", 1, "a : is not allowed here. Quote a value that contains a :, and check the indentation"),
        ("a: 'x\n", 2, "a quote is not closed. Close it"),
        (
            "a:\n  b: 1\n c: 2\n",
            3,
            "the indentation differs from the lines before. Give all fields of a mapping the same indentation",
        ),
        ("---\na: 1\n---\nb: 2\n", 3, "the file has several documents. Keep one document, and remove the lines ---"),
        ("a: *x\n", 1, "a value begins with *, so it is an alias of an unknown anchor. Quote the value"),
        ("a: @x\n", 1, "a value begins with a character that needs quotes. Quote the value"),
        ('a: "\\d"\n', 1, "a text in double quotes has a \\ that is not an escape. Use single quotes"),
        (
            "a: ]\n",
            1,
            "the line does not follow the rules of YAML. Check the quotes, brackets and indentation of the line",
        ),
        ("a: \x01\n", 1, "the file has characters that UTF-8 or YAML does not have. Correct the file"),
    ],
)
def test_a_fault_of_yaml_is_stated_without_the_text_of_the_parser(
    tmp_path: Path, text: str, line: int, fault: str
) -> None:
    assert refusal(tmp_path, text) == f"tables/events.yaml:{line}: not valid YAML: {fault}"


@pytest.mark.parametrize(
    ("addition", "expected"),
    [
        (
            "time_column: at\nwindow: 1h\n",
            "field `window`: a keyed table has windows only if its time column is part of the key. Add 'at'",
        ),
        ("partitions: {start: 2024-01-01T00:00}\n", "field `partitions`: partitions need a table with a window"),
    ],
)
def test_a_keyed_table_refuses_what_only_append_tables_have(tmp_path: Path, addition: str, expected: str) -> None:
    assert expected in refusal(tmp_path, KEYED + addition)


@pytest.mark.parametrize(
    ("addition", "expected"),
    [
        ("op: _op", None),
        ("order_by: lns", "field `landing`: order_by: unknown column 'lns'"),
        (
            "envelope: debezium",
            "field `landing`: format 'csv' cannot contain envelopes, which are JSON objects. Use ndjson or json",
        ),
        ("op: kind, header: false, columns: [tailnum, kind, at]", None),
    ],
)
def test_a_keyed_table_checks_its_landed_changes(tmp_path: Path, addition: str, expected: str | None) -> None:
    text = KEYED + f"landing: {{uri: landing/planes, format: csv, {addition}}}\n"
    if expected is None:
        assert declaration.load(write(tmp_path, text)).landing_spec() is not None
    else:
        assert expected in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("addition", "expected"),
    [
        ("gc: 5", "field `gc` is '5'. Write a mapping"),
        ("landing: landing/bad", "field `landing` is 'landing/bad'. Write a mapping"),
        ("columns: [a]", "field `columns` is ['a']. Write a mapping"),
        ("automation: maybe", "field `automation` is 'maybe'. Give on or off"),
        ("gc: {retntion: 3d}", "unknown field `gc.retntion`. Did you mean 'retention'?"),
        ("landing: {urii: x, format: csv}", "unknown field `landing.urii`. Did you mean 'uri'?"),
        ("nope: 1", "unknown field `nope`. The fields here are name, uri, "),
        ("coarse_window: maybe", "field `coarse_window`: 'maybe' is neither true nor false. Write true or false"),
        ("raw_logs: [{name: raw}]", "the raw log lacks table and stores. Give name, table and stores"),
        ("raw_logs: [5]", "a raw log is '5'. Write a mapping with name, table and stores"),
    ],
)
def test_a_wrong_value_is_explained_without_the_words_of_a_library(
    tmp_path: Path, addition: str, expected: str
) -> None:
    text = KEYED.replace("columns:\n  tailnum: string\n  at: timestamp\n", "") if "columns" in addition else KEYED
    message = refusal(tmp_path, f"{text}{addition}\n")
    assert expected in message
    assert "Input should" not in message


def test_maintained_indexes_are_a_list_of_indexes_of_a_keyed_table(tmp_path: Path) -> None:
    words = "indexes: [{name: words, kind: fulltext, columns: [text]}]\n"
    keyed = f"{KEYED.replace('  at: timestamp', '  text: string')}{words}"
    declared = declaration.load(write(tmp_path, f"{keyed}maintained_indexes: [words]\n"))
    assert declared.config().maintained_indexes == ("words",)
    assert "field `maintained_indexes`:" in refusal(tmp_path, f"{keyed}maintained_indexes: words\n")
    for_none = refusal(tmp_path, f"{GOOD}maintained_indexes: [words]\n")
    assert (
        "field `maintained_indexes`: maintained_indexes contains 'words', but the setting works only for keyed tables"
        in for_none
    )


def test_all_problems_of_a_file_are_reported_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("window: 15m", "window: 7m").replace("name: events", "name: a/b")
    message = refusal(tmp_path, text)
    assert [line.split(": field ")[0] for line in message.splitlines()] == [
        "tables/events.yaml:1",
        "tables/events.yaml:11",
    ]


@pytest.mark.parametrize("text", ["", "# nothing\n", "- a list\n", "\x00", "\xff: 1", "a: &a [*a]\n"])
def test_a_file_that_is_no_declaration_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "events.yaml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidInput, match=r"events\.yaml:1: "):
        declaration.load(path)


@pytest.mark.parametrize("text", ["- 1\n", "5\n", "null\n"])
def test_a_declaration_that_is_no_mapping_is_told_what_it_must_be(tmp_path: Path, text: str) -> None:
    message = refusal(tmp_path, text)
    assert message.startswith("tables/events.yaml:1: the file is ")
    assert "empty" not in message


def test_a_coarse_window_needs_its_mark(tmp_path: Path) -> None:
    text = GOOD.replace("window: 15m", "coarse_window: true\nwindow: 2h")
    assert declaration.load(write(tmp_path, text)).config().window_seconds == 7200


def test_a_pattern_must_capture_declared_columns_and_all_required_ones(tmp_path: Path) -> None:
    def with_pattern(pattern: str) -> str:
        return GOOD.replace("format: ndjson", f"format: pattern\n  pattern: '{pattern}'")

    assert "the required columns level" in refusal(tmp_path, with_pattern(r"^(?P<at>\S+)$"))
    assert "unknown column 'other'. The table has" in refusal(
        tmp_path, with_pattern(r"^(?P<at>\S+) (?P<level>\d) (?P<other>.)$")
    )
    assert "is not a valid RE2 expression: a group is not closed" in refusal(tmp_path, with_pattern(r"^(?P<at>\S+"))
    assert "name each of its groups" in refusal(tmp_path, with_pattern(r"^no groups$"))


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        (("warehouse/events", "warehouse/other"), "b.yaml:1: field `name`: the value 'events' conflicts with "),
        (("name: events", "name: other"), "b.yaml:2: field `uri`: "),
        (("name: events\nuri: warehouse/", "name: other\nuri: ./warehouse//"), "b.yaml:2: field `uri`: "),
    ],
    ids=["name", "place", "same-place"],
)
def test_a_name_or_place_belongs_to_the_first_file(tmp_path: Path, other: tuple[str, str], problem: str) -> None:
    write(tmp_path, GOOD, "a.yaml")
    write(tmp_path, GOOD.replace(*other), "b.yaml")
    declared = read_tables(tmp_path)
    assert (declared.names(), [each.file.name for each in declared.problems]) == ("events", ["b.yaml"])
    with pytest.raises(InvalidInput, match=problem):
        declared.require_valid()


@pytest.mark.parametrize(
    ("uri", "landing"),
    [
        ("data/p", "data"),
        ("data/p", "data/p"),
        ("data", "data/landing"),
        ("data/p", "{root}/data"),
        ("{root}/data/p", "data/"),
        ("data/p", "file://{root}/data"),
        ("data/p", "data/p/../../data"),
        ("data/p", "{root}/link"),
        ("s3://bucket/data/p", "s3://bucket/data"),
        ("s3://bucket/data/p/", "s3://bucket/data/p"),
        ("s3://bucket/p", "s3://bucket"),
        ("memory://data/p", "memory://data"),
    ],
)
def test_a_table_and_its_landing_place_lie_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str, landing: str
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    (tmp_path / "tables").mkdir()
    text = GOOD.replace("warehouse/events", uri).replace("landing/events", landing)
    write(tmp_path / "tables", text.replace("{root}", str(tmp_path)))
    for folder in (tmp_path, ROOT):
        monkeypatch.chdir(folder)
        [problem] = read_tables(tmp_path / "tables").problems
        assert "events.yaml:17: field `landing`: the landing location and the table overlap" in problem.message


@pytest.mark.parametrize(
    ("uri", "landing"),
    [
        ("data/p", "data/p2"),
        ("data", "landing/data"),
        ("s3://bucket/data/p", "s3://bucket/data/p-landing/"),
        ("s3://bucket/data", "s3://other"),
        ("data/p", "s3://bucket"),
        ("memory://data", "memory://data2"),
    ],
)
def test_a_landing_place_may_lie_beside_its_table(tmp_path: Path, uri: str, landing: str) -> None:
    write(tmp_path, GOOD.replace("warehouse/events", uri).replace("landing/events", landing))
    assert read_tables(tmp_path).problems == ()


def test_no_table_lies_in_the_landing_place_of_another_and_two_may_share_one(tmp_path: Path) -> None:
    def declare(name: str, uri: str, landing: str) -> None:
        text = GOOD.replace("name: events", f"name: {name}").replace("warehouse/events", uri)
        write(tmp_path, text.replace("landing/events", landing), f"{name}.yaml")

    declare("a", "warehouse/a", "landing/shared")
    declare("b", "landing/shared/b", "landing/b")
    declare("c", "warehouse/c", "warehouse/a/quarantine")
    declare("d", "warehouse/d", "landing/shared")
    declare("e", "warehouse/e", "warehouse")
    problems = {each.file.name: each.message for each in read_tables(tmp_path).problems}
    assert list(problems) == ["b.yaml", "c.yaml", "e.yaml"]
    assert "b.yaml:2: field `uri`: the landing location of 'a' and the table overlap" in problems["b.yaml"]
    assert "c.yaml:17: field `landing`: the landing location and the table 'a' overlap" in problems["c.yaml"]


def test_each_location_is_completed_once_however_many_tables_are_declared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(300):
        text = GOOD.replace("name: events", f"name: t{number}").replace("warehouse/events", f"warehouse/t{number}")
        write(tmp_path, text.replace("landing/events", f"landing/t{number}"), f"t{number}.yaml")
    completed: list[str] = []
    complete = resolve._completed

    def counted(uri: str) -> str:
        completed.append(uri)
        return complete(uri)

    monkeypatch.setattr(resolve, "_completed", counted)
    assert len(read_tables(tmp_path).tables) == 300
    # The check of a declaration compares the two locations of this declaration with each other. The two locations are
    # also compared with the locations of other tables.
    assert len(completed) == 4 * 300


def test_a_raw_log_of_a_table_lies_apart_from_its_landing_place(tmp_path: Path) -> None:
    raw = "raw_logs:\n- {name: raw, table: clicks, stores: [landing/raw]}\n"
    message = refusal(tmp_path, GOOD.replace("landing/events", "landing") + raw)
    assert "field `landing`: the landing location and the raw log 'raw' overlap" in message


def test_names_that_differ_in_a_dash_only_are_one_name(tmp_path: Path) -> None:
    write(tmp_path, GOOD.replace("name: events", "name: web-events"), "a.yaml")
    write(tmp_path, GOOD.replace("name: events", "name: web_events").replace("uri: w", "uri: other/w", 1), "b.yaml")
    declared = read_tables(tmp_path)
    assert declared.names() == "web-events"
    assert "the value 'web_events' conflicts with" in declared.problems[0].message


def test_the_folder_of_the_declarations_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert tables_folder({}) == ROOT / "tables"
    (tmp_path / "tables").mkdir()
    assert tables_folder({}) == tmp_path / "tables"
    assert tables_folder({"TIDEMARK_TABLES": str(ROOT / "tables")}) == ROOT / "tables"
    with pytest.raises(NotFound, match="TIDEMARK_TABLES is 'nowhere'"):
        tables_folder({"TIDEMARK_TABLES": "nowhere"})


def test_opening_a_declared_name_as_a_location_names_the_location(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIDEMARK_TABLES", raising=False)
    (tmp_path / "tables").mkdir()
    write(tmp_path / "tables", GOOD.replace("name: events", "name: clicks").replace("uri: w", "uri: warehouse/w", 1))
    (tmp_path / "tables" / "broken.yaml").write_text("name: [")
    with pytest.raises(NotFound) as found:
        Table.open("clicks")
    uri = declaration.load(tmp_path / "tables" / "events.yaml").uri
    said = "'clicks' is the name of a table declared in"
    assert str(found.value).startswith(
        f"{said} tables/events.yaml, and not the location of a table. Table.open takes a "
    )
    assert str(found.value).endswith(f"location. Open {uri!r}")
    for name in ("people", "./clicks", "warehouse/clicks"):
        with pytest.raises(NotFound, match="there is no table here"):
            Table.open(name)
    monkeypatch.setenv("TIDEMARK_TABLES", str(tmp_path / "tables"))
    monkeypatch.chdir(tmp_path.parent)
    with pytest.raises(NotFound, match=rf"Open '{tmp_path / uri}'"):
        Table.open("clicks")


def test_places_are_relative_to_the_folder_that_holds_the_declarations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tables").mkdir()
    write(tmp_path / "tables", GOOD)
    monkeypatch.chdir(tmp_path)
    here = read_tables(tmp_path / "tables").tables[0]
    assert (here.declaration.uri, here.file) == ("warehouse/events", Path("tables/events.yaml"))
    monkeypatch.chdir(ROOT)
    there = read_tables(tmp_path / "tables").tables[0]
    assert (there.declaration.uri, there.file) == (str(tmp_path / "warehouse/events"), tmp_path / "tables/events.yaml")


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"none\.yaml"):
        declaration.load(tmp_path / "none.yaml")


def test_map_columns_say_what_patches_do_to_them(tmp_path: Path) -> None:
    text = KEYED.replace("  at: timestamp\n", "  attrs: map<string,int>\n  tags: map< string , decimal(10, 2) >\n")
    declared = declaration.load(write(tmp_path, text + "map_columns: {attrs: merge}\n")).below(tmp_path)
    assert declared.schema().field("attrs").type == pa.map_(pa.string(), pa.int32())
    assert declared.schema().field("tags").type == pa.map_(pa.string(), pa.decimal128(10, 2))
    Table.declare(declared)
    table = Table.declare(declared)
    assert table.config.merged_maps == ("attrs",)
    with table.writer() as writer:
        writer.patch({"tailnum": "a", "attrs": {"x": 1}, "tags": {"x": 1}})
        writer.patch({"tailnum": "a", "attrs": {"y": 2}, "tags": {"y": 2}})
    found = table.get("a") or {}
    assert (found["attrs"], found["tags"]) == ({"x": 1, "y": 2}, {"y": Decimal("2.00")})
    without = declaration.load(write(tmp_path, text)).below(tmp_path)
    with pytest.raises(InvalidInput, match="differs from the existing table in map_columns"):
        Table.declare(without)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("map_columns: {at: merge}\n", "events.yaml:7: field `map_columns`: the column 'at' is not a map"),
        ("map_columns: {nobody: merge}\n", "field `map_columns`: unknown column 'nobody'"),
        (
            "map_columns: {m: add}\n",
            "events.yaml:7: field `map_columns.m`: map column 'm' is 'add'. Give replace or merge",
        ),
    ],
)
def test_modes_of_maps_are_checked_with_file_and_line(tmp_path: Path, change: str, message: str) -> None:
    columns = KEYED.replace("  at: timestamp\n", "  at: timestamp\n  m: map<string,long>\n")
    assert message in refusal(tmp_path, columns.replace("primary_key: tailnum\n", change))


def test_a_map_is_no_key_and_has_no_text_form(tmp_path: Path) -> None:
    assert "'tailnum' of type map<int32, int32>, which has no order" in refusal(
        tmp_path, KEYED.replace("tailnum: string", "tailnum: map<int,int>")
    )
    maps = GOOD.replace("decimal(10,2)", "map<string,int>")
    assert "'price' is a map, which has no text form" in refusal(tmp_path, maps.replace("ndjson", "csv"))
    assert "'price' is a map with keys of type int" in refusal(tmp_path, maps.replace("map<string", "map<int"))
    assert declaration.load(write(tmp_path, maps)).landing is not None
    assert "is not a column type" in refusal(tmp_path, GOOD.replace("decimal(10,2)", '"map<string,map<int,int>>"'))
