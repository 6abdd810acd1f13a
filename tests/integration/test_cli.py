from __future__ import annotations

import datetime as dt
import http.client
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipelines.cli import main
from pipelines.commands import maintenance
from storage_core.base.errors import InvalidInput
from storage_core.data.formats import keys
from storage_core.index.catch_up import IndexBacklog
from storage_core.write.ingest.convert import RejectedLine, write_quarantine
from tidemark import Table

ROOT = Path(__file__).resolve().parents[2]
# The entry point of the installed `tidemark`. A test checks that `pyproject.toml` has the same entry point.
TIDEMARK = [sys.executable, "-m", "pipelines.cli"]
COMMANDS = [
    *(
        "init",
        "tables",
        "status",
        "metrics",
        "report",
        "alerts",
        "describe",
        "files",
        "history",
        "debt",
        "ingest",
        "append",
        "sql",
        "search",
        "recall",
        "get",
        "explain",
    ),
    *("compact", "sort", "merge", "expire", "checkpoint", "catch-up", "gc", "backfill", "ui", "serve", "spark"),
    *("delete", "update", "overwrite", "upsert"),
    *("changes", "restore", "tag", "fsck", "repair", "quarantine", "raw", "simulate-policy", "cache", "catalog"),
]

EVENTS = """\
name: events
uri: warehouse/events
columns: {time: timestamp!, status: int, path: string, price: "decimal(10,2)", load: double}
time_column: time
window: 1h
sort_schema: status|path|timestamp/V2
indexes:
  - {name: text, kind: fulltext, columns: [path]}
  - {name: status, kind: bitmap, columns: [status]}
landing: {uri: landing/events, format: ndjson}
partitions: {start: "2015-05-17T00:00", end: "2015-05-18T00:00"}
"""
PEOPLE = """\
name: people
uri: warehouse/people
columns: {id: long!, name: string}
primary_key: id
"""
OURS_FOR_HELP = 54
"""The number of Tidemark modules that the help may load.

The help loads the modules of the commands, of their shared options, and of the list of steps.
"""
ROWS: list[dict[str, object]] = [
    {"time": "2015-05-17T10:05:03Z", "status": 200, "path": "/home page", "price": "1.50", "load": 0.25},
    {"time": "2015-05-17T10:40:00Z", "status": 404, "path": "/missing page", "price": None, "load": "nan"},
    {"time": "2015-05-17T11:00:00.5Z", "status": 200, "path": "/caf\u00e9", "price": "20.00", "load": None},
]
SPARK_SCHEMA = """{"type": "struct", "fields": [
  {"name": "time", "type": "timestamp", "nullable": false, "metadata": {}},
  {"name": "message", "type": "string", "nullable": true, "metadata": {}}
]}"""
REPORT = {
    *("status", "version", "rows_in", "rows_out", "bytes_in", "bytes_out", "splits_in", "splits_out"),
    *("requests", "seconds", "commit_id"),
}


@dataclass(frozen=True, slots=True)
class Ended:
    """The result of a command: exit code, standard output, standard error."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def one(self) -> dict[str, Any]:
        assert self.code == 0, self.err
        (line,) = self.lines
        return line


Run = Callable[..., Ended]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> Ended:
        capfd.readouterr()
        code = main(arguments)
        out, err = capfd.readouterr()
        return Ended(code, out, err)

    return call


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with two declared tables, like the repository root."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for the Spark workers that start from this process
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "events.yaml").write_text(EVENTS, encoding="utf-8")
    (tmp_path / "tables" / "people.yaml").write_text(PEOPLE, encoding="utf-8")
    return tmp_path


@pytest.fixture
def events(place: Path, run: Run) -> str:
    """Make a table of three rows in two windows, appended twice, and return its name."""
    assert run("init").code == 0
    file = ndjson(place / "rows.ndjson", ROWS)
    for _ in range(2):
        assert run("append", "events", str(file)).code == 0
    return "events"


def ndjson(file: Path, rows: Sequence[Mapping[str, object]]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def start(*arguments: str, cwd: Path, stdin: str | None = None) -> Ended:
    """Start the command in its own process."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [*TIDEMARK, *arguments],
        input=stdin,
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


# Help and the entry point.


def test_the_installed_command_is_this_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"] == {"tidemark": "tidemark.__main__:main"}


def test_help_names_every_command_and_each_command_explains_itself(run: Run) -> None:
    listed = run("--help").out
    assert all(f"\n  {name} " in listed for name in COMMANDS)
    assert "..." not in listed.partition("\nData:\n")[2]  # no summary is cut off
    for name in COMMANDS:
        ended = run(name, "--help")
        assert (ended.code, ended.err) == (0, "")
        assert "--json" in ended.out
        assert f"\n\n  Example: tidemark {name} " in ended.out or f"\n\n  Example: tidemark {name}\n" in ended.out


def test_help_lists_each_command_once_under_the_heading_of_its_group(run: Run) -> None:
    sections = [each.splitlines() for each in run("--help").out.partition("\nData:")[2].split("\n\n")]
    headings = ["Tables", "Maintenance", "Indexes and search", "History", "Services", "Development"]
    assert [first for first, *_ in sections] == ["", *(f"{each}:" for each in headings)]
    listed = [line.split()[0] for _, *lines in sections for line in lines]
    assert len(listed) == len({*listed})
    assert {*listed} >= {*COMMANDS, *maintenance.COMMANDS}


def test_help_loads_little_of_ours_and_no_library_but_those_that_print_it() -> None:
    code = "import sys; from pipelines.cli import main; assert main(sys.argv[1:]) == 0; print(*sys.modules)"
    printing = {"typer", "shellingham", "pydantic", "pydantic_core", "annotated_doc", "annotated_types"}
    known = {*sys.stdlib_module_names, *printing, "typing_extensions", "typing_inspection"}
    for arguments in (["--help"], ["compact", "--help"], ["sql", "--help"], ["backfill", "--help"]):
        ended = subprocess.run(
            [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, check=True, timeout=400
        )
        loaded = ended.stdout.splitlines()[-1].split()
        ours = [name for name in loaded if name.split(".")[0] in ("pipelines", "jobs", "storage_core")]
        others = {name.split(".")[0] for name in loaded} - {name.split(".")[0] for name in ours} - known
        assert {name for name in others if not name.startswith("_")} == set(), "but what the start of Python brings in"
        assert len(ours) <= OURS_FOR_HELP, ours


def test_reading_the_declarations_loads_no_dagster(place: Path) -> None:
    code = "import sys; from pipelines.cli import main; assert main(['tables']) == 0; print('dagster' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "False"


# Tables.


def test_init_makes_all_declared_tables_once(place: Path, run: Run) -> None:
    first = run("init", "--json")
    assert [(line["name"], line["status"], line["kind"], line["version"]) for line in first.lines] == [
        ("events", "created", "append", 0),
        ("people", "created", "keyed", 0),
    ]
    assert [line["status"] for line in run("init", "--json").lines] == ["exists", "exists"]
    assert Table.open(str(place / "warehouse" / "events")).version == 0


def test_a_broken_declaration_is_named_with_file_and_line_and_stops_no_other_table(place: Path, run: Run) -> None:
    (place / "tables" / "broken.yaml").write_text("name: broken\nuri: w\ncolumns: {a: int}\nwindow: 7m\n")
    ended = run("init", "--json")
    assert ended.code == 2
    assert [line["status"] for line in ended.lines] == ["created", "created", "failed"]
    assert "tables/broken.yaml:4: field `window`" in ended.err
    assert run("describe", "events", "--json").one["version"] == 0
    assert "tables/broken.yaml:4" in run("describe", "broken").err


LONG = "select count(*) from range(100000000) a, range(1000000) b where a.range + b.range = 7"


def test_what_passes_a_limit_says_which_option_raises_it(events: str, run: Run) -> None:
    limited = ("--seconds", "60", "--memory-mib", "64", "--spill-mib", "0")
    listed = "select list(range) from range(300000000)"
    assert "raise them (--memory-mib, --spill-mib)" in run("sql", events, listed, *limited).err
    assert "(--memory-mib)" in run("sql", events, "from range(100000000)", "--memory-mib", "64").err
    assert "raise `seconds` (--seconds)" in run("sql", events, LONG, "--seconds", "0.1").err


def test_every_command_finds_the_declared_tables_where_the_environment_says(
    events: str, place: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "elsewhere").mkdir()
    monkeypatch.chdir(place / "elsewhere")
    monkeypatch.setenv("TIDEMARK_TABLES", str(place / "tables"))
    assert [line["rows"] for line in run("tables", "--json").lines] == [6, 0]
    assert run("sql", events, "select count(*) n from t", "--json").one == {"n": 6}
    assert run("compact", events, "--dry-run", "--json").one["status"] == "planned"
    assert [(line["status"], line["version"]) for line in run("init", "--json").lines] == [("exists", 2), ("exists", 0)]
    ndjson(place / "landing" / "events" / "1.ndjson", ROWS)
    assert run("ingest", events, "--dry-run", "--json").one["details"] == {"files": 1}
    assert list((place / "elsewhere").iterdir()) == []
    monkeypatch.setenv("TIDEMARK_TABLES", "nowhere")
    assert "TIDEMARK_TABLES is 'nowhere'" in run("describe", events).err


def test_tables_warns_of_a_variable_that_a_receiver_needs_and_nobody_set(
    events: str, place: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert events
    for name in ("HOOK", "TIDEMARK_SMTP_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    email = "{to: [ann@example.com], host: mail.example.com, security: tls, user: ann}"
    receivers = f"receivers: [{{webhook: $HOOK}}, {{webhook: https://example.com/x}}, {{email: {email}}}]\n"
    (place / "alerts.yaml").write_text(receivers)
    ended = run("tables", "--json")
    assert (ended.code, len(ended.lines)) == (0, 2)
    lack = (
        "needs the environment variable {}, which is not set here. Set the variable in the code "
        "server, which sends alerts."
    )
    assert ended.err.splitlines() == [
        f"tidemark: alerts.yaml: receiver 1 (webhook) {lack.format('HOOK')}",
        f"tidemark: alerts.yaml: receiver 3 (email) {lack.format('TIDEMARK_SMTP_PASSWORD')}",
    ]
    monkeypatch.setenv("HOOK", "https://example.com/secret")
    monkeypatch.setenv("TIDEMARK_SMTP_PASSWORD", "secret")
    assert run("tables").err == ""


def test_tables_lists_what_is_declared(events: str, run: Run) -> None:
    shown = {line["name"]: line for line in run("tables", "--json").lines}
    assert shown[events]["rows"] == 6
    assert shown[events]["exists"] is True
    assert (shown["people"]["exists"], shown["people"]["kind"], shown["people"]["version"]) == (True, "keyed", 0)
    assert shown["people"].keys() == {
        *("name", "uri", "file", "kind", "exists", "version", "live_splits", "rows", "bytes"),
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("s.yaml", "time: timestamp!\nmessage: string\n"),
        ("s.json", '{"time": "timestamp!", "message": {"type": "string"}}'),
        ("s.json", SPARK_SCHEMA),
    ],
    ids=["yaml", "json", "spark"],
)
def test_init_makes_a_table_from_a_schema_file(place: Path, run: Run, name: str, text: str) -> None:
    (place / name).write_text(text, encoding="utf-8")
    options = ["--time-column", "time", "--window", "30m", "--index", "text:fulltext:message", "--json"]
    assert run("init", "made/here", "--schema", name, *options).one["status"] == "created"
    made = Table.open("made/here")
    assert made.schema.names == ["time", "message"]
    assert not made.schema.field("time").nullable
    assert made.snapshot.config.window_seconds == 1800
    assert [index.name for index in made.snapshot.config.indexes] == ["text"]


def test_init_drops_no_window_for_want_of_a_time_column(place: Path, run: Run) -> None:
    (place / "s.yaml").write_text("message: string\n")
    for window in ("1h", "15m"):
        refused = run("init", "made", "--schema", "s.yaml", "--window", window)
        assert (refused.code, "--window needs --time-column" in refused.err) == (2, True)
    assert run("init", "made", "--schema", "s.yaml", "--json").one["status"] == "created"
    windows: tuple[str | int, ...] = ("1h", "15m", 900)
    for length in windows:
        with pytest.raises(InvalidInput, match="needs a time_column"):
            Table.create(str(place / "other"), pa.schema([("a", pa.int64())]), window=length)
    with pytest.raises(InvalidInput, match="coarse_window needs a time_column"):
        Table.create(str(place / "other"), pa.schema([("a", pa.int64())]), coarse_window=True)


def test_init_says_when_it_changes_a_table_that_exists(place: Path, run: Run) -> None:
    run("init", "events")
    file = place / "tables" / "events.yaml"
    file.write_text(file.read_text() + "retention: 90d\n")
    changed = run("init", "events", "--json").one
    assert (changed["status"], changed["version"]) == ("changed", 1)
    assert run("init", "events", "--json").one["status"] == "exists"
    file.write_text(file.read_text().replace("90d", "91d"))
    assert "The settings of the table were changed at version 2" in run("init", "events").out


def test_tables_shows_a_table_that_cannot_be_read_as_a_line_with_its_reason_among_the_others(
    events: str, place: Path, run: Run
) -> None:
    (place / "warehouse" / "people").rename(place / "moved")
    (place / "warehouse" / "people").write_text("no folder")
    later = (place / "tables" / "people.yaml").read_text().replace("people", "later")
    (place / "tables" / "later.yaml").write_text(later)
    ended = run("tables", "--json")
    *lines, error = ended.lines
    found = {line["name"]: line for line in lines}
    assert (found[events]["rows"], found["later"]["exists"]) == (6, False)
    reason = found["people"].pop("message")
    assert (ended.code, error["error"]) == (2, found["people"].pop("error")) == (2, "invalid_input")
    assert found["people"].keys() == found[events].keys()
    assert (found["people"]["file"], found["people"]["exists"]) == ("tables/people.yaml", None)
    assert error["message"] == f"people: {reason}"
    (place / "tables" / "broken.yaml").write_text("name: broken\n")
    text = run("tables")
    assert (text.code, f"people: invalid_input: {reason}" in text.out) == (2, True)
    assert "tables/broken.yaml" in text.err


def test_tables_does_not_say_that_none_is_declared_where_one_is_broken(place: Path, run: Run) -> None:
    for file in (place / "tables").glob("*.yaml"):
        file.write_text("name: broken\n")
    ended = run("tables")
    assert (ended.code, "No table is declared" in ended.out) == (2, False)
    assert "no declaration here is valid" in ended.out


def test_init_makes_a_declared_table_at_another_place(place: Path, run: Run) -> None:
    made = run("init", "elsewhere", "--declaration", "tables/people.yaml", "--json").one
    assert (made["status"], made["name"]) == ("created", "people")
    assert Table.open(str(place / "elsewhere")).snapshot.config.primary_key == ("id",)


# Writing of rows.


def test_append_adds_a_file_in_one_commit(place: Path, run: Run) -> None:
    run("init", "events")
    done = run("append", "events", str(ndjson(place / "rows.ndjson", ROWS)), "--json").one
    late = dict.fromkeys(("rows_late_accepted", "rows_late_quarantined", "rows_late_dropped"), 0)
    about = {"status": "committed", "version": 1, "commit_id": done["commit_id"], "rows": 3, "splits": 2}
    assert done == {**about, **late}
    assert done["commit_id"]


def test_append_reads_csv_and_parquet_by_suffix(events: str, place: Path, run: Run) -> None:
    import pyarrow.parquet as pq

    pq.write_table(Table.open("warehouse/events").scan().to_arrow(), place / "rows.parquet")
    (place / "rows.csv").write_text("time,status,path\n2015-05-17T10:00:00Z,500,/x\n", encoding="utf-8")
    assert run("append", events, "rows.parquet", "--json").one["rows"] == 6
    assert run("append", events, "rows.csv", "--json").one["rows"] == 1
    assert run("sql", events, "select count(*) n from t", "--json").one == {"n": 13}


def test_append_takes_standard_input(events: str, place: Path) -> None:
    ended = start("append", events, "-", "--json", cwd=place, stdin='{"time": "2015-05-17T10:00:00Z"}\n')
    assert (ended.one["rows"], ended.err) == (1, "")


class _Interrupting(io.RawIOBase):
    """A standard input that raises the interrupt of Ctrl-C."""

    def readable(self) -> bool:
        return True

    def readinto(self, _: object, /) -> int:
        raise KeyboardInterrupt


def test_a_command_that_ctrl_c_stops_is_a_failure_of_the_kind_interrupted(
    events: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(_Interrupting())))
    ended = run("append", events, "-", "--json")
    assert ended.code == 130
    (failure,) = ended.lines
    assert (failure["status"], failure["error"]) == ("failed", "interrupted")
    assert ended.err == f"tidemark: interrupted: {failure['message']}\n"


def test_append_adds_nothing_when_one_line_does_not_fit(events: str, place: Path, run: Run) -> None:
    bad: list[dict[str, object]] = [*ROWS, {"time": "2015-05-17T10:00:00Z", "status": "x"}, {"status": 1}]
    ended = run("append", events, str(ndjson(place / "bad.ndjson", bad)), "--json")
    assert ended.code == 2
    (failure,) = ended.lines
    assert (failure["status"], failure["error"]) == ("failed", "invalid_input")
    assert [(each["file"], each["line"]) for each in failure["rejected"]] == [("bad.ndjson", 4), ("bad.ndjson", 5)]
    assert all(each["reason"] in ended.err for each in failure["rejected"])
    assert run("describe", events, "--json").one["version"] == 2


def test_append_to_a_keyed_table_is_acknowledged_and_seen_by_get(place: Path, run: Run) -> None:
    run("init", "people")
    file = ndjson(place / "p.ndjson", [{"id": 1, "name": "Ada"}, {"id": 1, "name": "Ada L."}])
    done = run("append", "people", str(file), "--json").one
    assert (done["status"], done["rows"], done["commit_id"]) == ("acknowledged", 2, None)
    assert run("get", "people", "1", "--json").one == {"id": 1, "name": "Ada L."}
    assert run("get", "people", "1", "--consistency", "snapshot", "--json").out == ""
    assert "Ada L." in run("get", "people", "1").out
    (region,) = run("describe", "people", "--json").one["regions"]
    assert region.keys() == {"region_id", "epoch", "current_generation", "merged_generation"}


def test_changes_of_a_keyed_table_are_acknowledged(place: Path, run: Run) -> None:
    run("init", "people")
    file = str(ndjson(place / "p.ndjson", [{"id": 1, "name": "Ada"}, {"id": 2, "name": "Bob"}]))
    assert run("upsert", "people", file, "--on", "id").out == "2 rows acknowledged (version 0)\n"
    done = run("upsert", "people", file, "--on", "id", "--json").one
    assert (done["status"], done["rows"], done["rows_added"], done["commit_id"]) == ("acknowledged", 0, 2, None)
    change = ("update", "people", "--set", "name = 'Eve'", "--where", "id = 2")
    assert run(*change).out == "1 row updated, acknowledged (version 0)\n"
    done = run(*change, "--json").one
    assert (done["status"], done["rows"], done["rows_added"]) == ("acknowledged", 1, 0)
    assert run("get", "people", "2", "--json").one == {"id": 2, "name": "Eve"}
    assert run("delete", "people", "--where", "id = 1").out == "1 row deleted, acknowledged (version 0)\n"
    assert run("delete", "people", "--where", "id = 1").out == "nothing to do (version 0)\n"
    done = run("delete", "people", "--where", "true", "--json").one
    assert (done["status"], done["rows"], done["version"], done["commit_id"]) == ("acknowledged", 1, 0, None)
    assert run("delete", "people", "--where", "true", "--json").one["status"] == "nothing_to_do"
    assert run("sql", "people", "select count(*) n from t", "--json", "--consistency", "latest").one == {"n": 0}


# Queries.


def test_sql_prints_one_object_per_row_with_exact_values(events: str, run: Run) -> None:
    query = "select *, sum(status) over () total, '\\x00\\xff'::blob raw from t order by time limit 4"
    found = run("sql", events, query, "--json").lines
    given = {"time": "2015-05-17T10:05:03Z", "status": 200, "path": "/home page", "price": "1.50", "load": 0.25}
    assert found[0] == given | {"total": 1608, "raw": "AP8="}
    assert found[2]["load"] == "NaN"
    assert found[2]["price"] is None


def test_sql_reads_an_older_version(events: str, run: Run) -> None:
    assert run("sql", events, "select count(*) n from t", "--at", "1", "--json").one == {"n": 3}


def test_sql_for_people_shows_data_and_never_control_codes(events: str, place: Path, run: Run) -> None:
    row = {"time": "2015-05-17T10:00:00Z", "path": "\u001b[31mred [bold]"}
    run("append", events, str(ndjson(place / "e.ndjson", [row])))
    shown = run("sql", events, "select path from t where status is null").out
    assert "\\x1b[31mred [bold]" in shown
    assert "1 row\n" in shown


def test_search_sees_what_is_acknowledged_where_it_is_asked_to(place: Path, run: Run) -> None:
    people = str(place / "people")
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
    index = {"name": "names", "kind": "bitmap", "columns": ["name"]}
    with Table.create(people, schema, primary_key="id", indexes=[index]).writer() as writer:
        writer.put({"id": 1, "name": "ann"})
    search = ("search", people, "ann", "--index", "names", "--json")
    assert run(*search).lines == []
    assert run(*search, "--consistency", "latest").one == {"id": 1, "name": "ann", "score": 1.0}


def test_search_adds_the_score_and_keeps_the_limit(events: str, run: Run) -> None:
    found = run("search", events, "missing", "--index", "text", "--limit", "1", "--json").one
    assert found.keys() == {"time", "status", "path", "price", "load", "score"}
    assert (found["path"], found["score"] > 0) == ("/missing page", True)
    by_status = run("search", events, "404", "--index", "status", "--limit", "5", "--json").lines
    assert [line["score"] for line in by_status] == [1.0, 1.0]


def test_search_gives_the_next_page_of_the_rows_that_meet_a_filter(events: str, run: Run) -> None:
    search = ("search", events, "404,200", "--index", "status", "--json")
    every = [row for row in run(*search, "--limit", "100").lines if row["status"] == 404]
    assert every
    filtered = (*search, "--where", "status = 404")
    assert run(*filtered, "--limit", "100").lines == every
    assert run(*filtered, "--limit", "1", "--offset", "1").lines == every[1:2]
    assert run(*filtered, "--columns", "score").lines == [{"score": 1.0}] * len(every)
    refused = run(*search, "--where", "nope > 1")
    assert (refused.code, "nope" in refused.err) == (2, True)


def test_search_counts_and_orders_and_marks(events: str, run: Run) -> None:
    search = ("search", events, "404,200", "--index", "status", "--json")
    every = run(*search, "--limit", "100").lines
    assert run(*search, "--count").one == {"count": len(every)}
    assert run(*search, "--count", "--filter", "status = 404").one == {"count": 2}
    assert "rows match" in run(*search[:-1], "--count").out
    facets = run(*search, "--facet", "status").lines
    assert sum(each["count"] for each in facets) == len(every)
    assert run(*search, "--facet", "status", "--limit", "1").lines == facets[:1]
    newest = run(*search, "--order-by", "time", "--columns", "time").lines
    assert newest == sorted(({"time": row["time"]} for row in every), key=lambda row: row["time"], reverse=True)
    oldest = run(*search, "--order-by", "time", "--ascending", "--limit", "1", "--columns", "time").one
    assert oldest == newest[-1]
    marked = run("search", events, "missing", "--index", "text", "--snippets", "--columns", "snippets", "--json").lines
    assert marked[0] == {"snippets": {"path": "/<b>missing</b> page"}}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--count", "--facet", "status"), "--facet"),
        (("--count", "--offset", "2"), "--offset"),
        (("--count", "--limit", "10"), "--limit"),
        (("--count", "--nprobe", "0"), "--nprobe"),
        (("--facet", "status", "--snippets"), "--snippets"),
        (("--facet", "path"), "bitmap index"),
        (("--ascending",), "order_by"),
        (("--order-by", "nope"), "nope"),
        (("--order-by", "time", "--columns", "score"), "score"),
    ],
)
def test_search_refuses_options_that_contradict_each_other(
    events: str, run: Run, options: tuple[str, ...], message: str
) -> None:
    refused = run("search", events, "404", "--index", "status", *options)
    assert (refused.code, message in refused.err) == (2, True)


def test_search_takes_a_question_as_it_is_written(events: str, run: Run) -> None:
    found = run("search", events, "what's (missing", "--index", "text", "--json").lines
    assert found == run("search", events, "missing", "--index", "text", "--json").lines != []


def test_a_search_keeps_unpacked_segments_where_nobody_else_can_write(
    events: str, place: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = ("search", events, "missing", "--index", "text", "--json")
    monkeypatch.delenv("TIDEMARK_CACHE_MIB")
    found = run(*search).lines
    cache = place / "home" / ".cache" / "tidemark"
    assert cache.stat().st_mode & 0o777 == 0o700
    assert list(cache.iterdir())
    monkeypatch.setenv("HOME", str(ndjson(place / "file", [])))  # a home where no folder can be created
    assert run(*search).lines == found


def test_explain_shows_what_each_step_leaves_out(events: str, run: Run) -> None:
    query = "select * from t where time < '2015-05-17T11:00:00Z'"
    (plan,) = run("explain", events, query, "--json").one["tables"]
    assert (plan["name"], plan["live_splits"], plan["read_splits"]) == ("t", 4, 2)
    assert [step["name"] for step in plan["steps"]] == ["window", "min/max", "regex", "row groups", "columns"]
    assert all(split.keys() == {"path", "size", "rows", "window_start"} for split in plan["read"])
    assert "window leaves out 2 splits" in run("explain", events, query).out


def test_a_query_is_analyzed_in_place_of_its_rows(events: str, run: Run) -> None:
    query = "select * from t where time < '2015-05-17T11:00:00Z'"
    rows = len(run("sql", events, query, "--json").lines)
    done = run("sql", events, query, "--analyze", "--json").one["analysis"]
    assert done.keys() == {"rows", "seconds", "requests", "bytes", "round_trips", "cache"}
    assert (done["rows"], done["cache"]) == (rows, None)
    assert f"\n{rows} rows in " in run("sql", events, query, "--analyze").out


@pytest.mark.usefixtures("place")
def test_explain_counts_the_newer_records_of_the_wanted_consistency(run: Run) -> None:
    run("init", "people")
    with Table.open("warehouse/people").writer() as writer:
        writer.put({"id": 1, "name": "Ada"})
    query = ("explain", "people", "select name from t")
    for options, newer in (((), 0), (("--consistency", "snapshot"), 0), (("--consistency", "latest"), 1)):
        (plan,) = run(*query, *options, "--json").one["tables"]
        assert plan["newer_records"] == newer


def test_explain_shows_the_sources_of_a_search(events: str, run: Run) -> None:
    plan = run("search", events, "page", "--index", "text", "--explain", "--json").one
    assert (plan["index"], plan["segments"], len(plan["scanned"])) == ("text", {}, 4)


# Listings and descriptions.


def test_describe_keeps_its_contract(events: str, run: Run) -> None:
    about = run("describe", events, "--json").one
    assert about.keys() >= {
        *("uri", "table_id", "kind", "version", "live_splits", "rows", "bytes", "time_column", "sort_schema"),
        *("window_seconds", "checkpoint_version", "columns", "windows", "indexes", "regions"),
        *("progress_transactions", "progress_objects", "progress_bytes"),
    }
    assert (about["kind"], about["version"], about["live_splits"], about["rows"]) == ("append", 2, 4, 6)
    assert [(each["window_start"], each["splits"], each["rows"]) for each in about["windows"]] == [
        (1431856800, 2, 4),
        (1431860400, 2, 2),
    ]
    assert sum(each["bytes"] for each in about["windows"]) == about["bytes"]
    assert about["indexes"][0].keys() == {"name", "kind", "recall", *IndexBacklog.__dataclass_fields__} - {
        "stale_segments"
    }
    assert about["regions"] == []


def test_files_keeps_its_contract(events: str, run: Run) -> None:
    found = run("files", events, "--json").lines
    fields = {"path", "size", "rows", "window_start", "partition_values", "min_values", "max_values"}
    assert [line.keys() for line in found] == [fields] * 4
    assert len(run("files", events, "--json", "--at", "1").lines) == 2


def test_history_keeps_its_contract_and_is_newest_first(events: str, run: Run) -> None:
    found = run("history", events, "--json").lines
    assert [line.keys() for line in found] == [{"version", "timestamp", "operation", "commit_id", "metrics"}] * 3
    assert [(line["version"], line["operation"]) for line in found] == [
        (2, "APPEND"),
        (1, "APPEND"),
        (0, "CREATE TABLE"),
    ]
    assert found[0]["metrics"]["rows_in"] == 3
    assert found[0]["timestamp"] >= found[1]["timestamp"] > 1_000_000_000_000
    assert len(run("history", events, "--limit", "1", "--json").lines) == 1


def test_history_at_a_version_begins_with_that_version(events: str, run: Run) -> None:
    assert [line["version"] for line in run("history", events, "--at", "1", "--json").lines] == [1, 0]


def test_debt_lists_the_windows_that_a_compaction_would_rewrite(events: str, run: Run) -> None:
    found = run("debt", events, "--json").lines
    assert [(line["window_start"], line["splits"], line["rows"]) for line in found] == [
        (1431856800, 2, 4),
        (1431860400, 2, 2),
    ]
    assert all(line["bytes"] > 0 for line in found)


@pytest.mark.parametrize("command", ["describe", "files", "history", "debt", "tables"])
def test_people_get_tables_of_metrics(events: str, run: Run, command: str) -> None:
    ended = run(command, *([] if command == "tables" else [events]))
    assert (ended.code, ended.err) == (0, "")
    assert not ended.out.startswith("{")
    assert len(ended.out.splitlines()) > 3


# Maintenance.


@pytest.mark.usefixtures("place")
def test_a_job_without_work_reports_that_and_starts_no_spark(run: Run) -> None:
    run("init")
    for arguments in (
        ["compact", "events", "--all"],
        ["sort", "people"],
        ["merge", "people"],
        ["catch-up", "events", "--index", "text"],
    ):
        done = run(*arguments, "--json").one
        assert done.keys() >= REPORT
        assert (done["status"], done["commit_id"], done["spark_seconds"]) == ("nothing_to_do", None, 0)


def test_compact_plans_only_the_windows_asked_for(events: str, run: Run) -> None:
    def planned(*options: str) -> tuple[str, int]:
        done = run("compact", events, "--dry-run", "--json", *options).one
        return done["status"], done["splits_in"]

    assert planned("--all") == planned() == ("planned", 4)
    assert planned("--window", "2015-05-17T10:00") == planned("--window", "1431856800") == ("planned", 2)
    assert planned("--from", "2015-05-17T10:00", "--to", "2015-05-17T11:00") == ("planned", 2)
    assert planned("--window", "2015-05-17T12:00") == ("nothing_to_do", 0)


def test_checkpoint_writes_the_state_once(events: str, run: Run) -> None:
    done = run("checkpoint", events, "--json").one
    assert done.keys() >= REPORT
    assert (done["status"], done["bytes_out"] > 0) == ("committed", True)
    assert run("checkpoint", events, "--json").one["status"] == "nothing_to_do"
    assert run("describe", events, "--json").one["checkpoint_version"] == 2


def test_gc_shows_and_then_deletes_what_nothing_needs(events: str, run: Run) -> None:
    table = Table.open("warehouse/events")
    orphan = keys.split_key(1431856800, windowed=True, split_id="00000000-0000-4000-8000-000000000000")
    path = Path("warehouse/events") / orphan
    path.write_bytes(b"left by a task that was killed")
    dry = run("gc", events, "--dry-run", "--json").lines
    assert dry[:-1] == [{"key": orphan, "reason": "orphan_split", "size": 30}]
    assert (dry[-1]["summary"]["status"], dry[-1]["summary"]["candidates"]) == ("planned", 1)
    assert run("gc", events, "--json").lines[-1]["summary"]["deleted"] == 0  # the objects are within the horizon
    assert path.exists()
    deleted = run("gc", events, "--horizon", "0s", "--json").lines
    assert (deleted[0]["deleted"], deleted[-1]["summary"]["deleted"]) == (True, 1)
    assert not path.exists()
    assert table.refresh().sql("select count(*) n from t").to_pylist() == [{"n": 6}]


@pytest.mark.spark
def test_ingest_and_compact_run_as_jobs_and_report(place: Path, run: Run) -> None:
    for number in (1, 2):
        ndjson(place / "landing" / "events" / f"{number}.ndjson", ROWS)
        done = run("ingest", "events", "--json").one  # the first run creates the declared table
        assert done.keys() >= REPORT
        assert (done["status"], done["version"], done["rows_in"], done["splits_out"]) == ("committed", number, 3, 2)
    assert run("ingest", "events", "--json").one["status"] == "nothing_to_do"
    done = run("compact", "events", "--json").one
    assert (done["status"], done["rows_in"], done["rows_out"], done["splits_out"]) == ("committed", 6, 6, 2)
    assert run("debt", "events", "--json").out == ""
    assert run("catch-up", "events", "--json").one["splits_out"] == 4
    assert run("search", "events", "page", "--index", "text", "--explain", "--json").one["scanned"] == []


def test_late_rows_are_counted_and_can_be_looked_at_in_quarantine(place: Path, run: Run) -> None:
    declared = place / "tables" / "events.yaml"
    declared.write_text(f"{EVENTS}late_data: {{policy: quarantine}}\n", encoding="utf-8")
    run("init", "events")
    assert run("quarantine", "events", "--json").out == ""
    assert "nothing is in quarantine" in run("quarantine", "events", "--show").out
    now = dt.datetime.now(dt.UTC).isoformat()
    rows = [*ROWS, {**ROWS[0], "time": now}]
    done = run("append", "events", str(ndjson(place / "rows.ndjson", rows)), "--json").one
    assert (done["status"], done["rows"], done["rows_late_quarantined"]) == ("committed", 1, 3)
    assert "late rows: 3 quarantined" in run("append", "events", str(ndjson(place / "late.ndjson", ROWS))).out
    listed = run("quarantine", "events", "--json").one
    assert [listed[name] for name in ("source", "reason", "count")] == ["append", "late", 6]
    assert [json.loads(each["text"])["status"] for each in listed["samples"]] == [200, 404, 200]
    assert listed["day"] in {now[:10], dt.datetime.now(dt.UTC).date().isoformat()}
    shown = run("quarantine", "events", "--show", "--source", "append", "--json").lines
    assert len(shown) == 6
    assert [each["row"]["price"] for each in shown[:3]] == ["1.50", None, "20.00"]
    assert len({each["key"] for each in shown}) == 2
    assert "/missing page" in run("quarantine", "events", "--show").out
    assert run("quarantine", "events", "--source", "writer", "--json").out == ""


@pytest.mark.usefixtures("place")
def test_rejected_lines_can_be_looked_at_in_quarantine(run: Run) -> None:
    run("init", "events")
    write_quarantine(Table.open("warehouse/events").store, "a.log", 9, [RejectedLine("a.log", 3, "no row", "x\x1b")])
    listed = run("quarantine", "events", "--json").one
    about = {"source": "a.log", "reason": "no row", "day": None, "count": 1}
    assert listed == {**about, "samples": [{"line": 3, "text": r"x\x1b"}]}
    (shown,) = run("quarantine", "events", "--show", "--json").lines
    line = {"line": 3, "reason": "no row", "text": "x\x1b", "encoding": "utf-8"}
    assert shown == {"key": shown["key"], "source": "a.log", **line}
    assert "\x1b" not in run("quarantine", "events", "--show").out
    assert "\x1b" not in run("quarantine", "events").out


@pytest.mark.usefixtures("place")
def test_quarantine_counts_the_reasons_that_it_does_not_list_and_names_the_option_that_does(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("init", "events")
    rejected = [RejectedLine("a.log", number, f"reason {number}", "x") for number in range(3)]
    write_quarantine(Table.open("warehouse/events").store, "a.log", 9, rejected)
    monkeypatch.setattr("pipelines.commands.output.MOST_TEXT_ROWS", 2)
    assert run("quarantine", "events").out.endswith("\n… and 1 more. --all prints all\n")
    assert "reason 2" in run("quarantine", "events", "--all").out


@pytest.fixture
def rejecting(place: Path, run: Run) -> Path:
    """Return a project with a table. Some landed lines of this table have a field that is not a column."""
    (place / "landing" / "events").mkdir(parents=True)
    lines = [json.dumps({"time": f"2015-05-17T10:0{number}:00Z", "status": number}) for number in range(4)]
    more = [json.dumps({"time": f"2015-05-17T11:0{number}:00Z", "city": "x"}) for number in range(5)]
    for name in ("a", "b"):
        (place / "landing" / "events" / f"{name}.ndjson").write_text("\n".join([*lines, *more, "bad"]))
    assert run("ingest", "events", "--json").one["rows_out"] == 8
    return place


@pytest.mark.usefixtures("rejecting")
def test_quarantine_is_a_summary_by_reason_file_and_day_with_three_samples(run: Run) -> None:
    found = run("quarantine", "events", "--json").lines
    assert [(each["source"], each["count"], len(each["samples"])) for each in found] == [
        *(("a.ndjson", 5, 3), ("b.ndjson", 5, 3), ("a.ndjson", 1, 1), ("b.ndjson", 1, 1))
    ]
    assert [each["line"] for each in found[0]["samples"]] == [5, 6, 7]
    assert found[0]["reason"] == "the field city is not a column of the table"
    text = run("quarantine", "events").out
    assert text.startswith(f"5 of a.ndjson, arrived {found[0]['day']}: the field city is not a column of the table\n")
    assert text.count("city") == 2 + 6
    few = run("quarantine", "events", "--source", "b.ndjson", "--reason", "not valid JSON", "--json").one
    assert (few["source"], few["count"]) == ("b.ndjson", 1)


def test_quarantine_is_exported_line_by_line(rejecting: Path, run: Run) -> None:
    assert run("quarantine", "events", "--export", "bad.ndjson", "--json").one == {"exported": 12, "file": "bad.ndjson"}
    lines = [json.loads(text) for text in (rejecting / "bad.ndjson").read_text().splitlines()]
    assert [(each["source"], each["line"]) for each in lines] == [
        (f, n) for f in ("a.ndjson", "b.ndjson") for n in range(5, 11)
    ]
    assert {each["reason"] for each in lines if each["text"] == "bad"} == {"the line is not valid JSON"}
    again = run("quarantine", "events", "--export", "bad.ndjson")
    assert (again.code, "exists already" in again.err) == (2, True)


def test_a_retry_brings_the_lines_once_the_declaration_takes_them(rejecting: Path, run: Run) -> None:
    declared = rejecting / "tables" / "events.yaml"
    declared.write_text(declared.read_text().replace("load: double}", "load: double, city: string}"))
    done = run("quarantine", "events", "--retry", "--json").one
    assert (done["status"], done["rows_in"], done["rows_out"]) == ("committed", 12, 10)
    assert done["details"]["still_rejected"] == 2
    assert done["details"]["rejected_reasons"] == {"the line is not valid JSON": 2}
    assert run("sql", "events", "select count(*) n, count(city) c from t", "--json").one == {"n": 18, "c": 10}
    assert run("quarantine", "events", "--retry", "--json").one["status"] == "nothing_to_do"
    assert [each["count"] for each in run("quarantine", "events", "--json").lines] == [1, 1]
    newest = run("history", "events", "--json").lines[0]
    assert newest["operation"] == "RETRY QUARANTINE"


def test_cleared_lines_are_gone_and_the_collector_deletes_them(rejecting: Path, run: Run) -> None:
    refused = run("quarantine", "events", "--clear")
    assert (refused.code, "Add --yes" in refused.err) == (2, True)
    assert run("quarantine", "events", "--clear", "--reason", "city", "--yes", "--json").one["cleared"] == 10
    assert [each["count"] for each in run("quarantine", "events", "--json").lines] == [1, 1]
    assert run("quarantine", "events", "--clear", "--yes", "--json").one["cleared"] == 2
    assert run("quarantine", "events").out == "nothing is in quarantine\n"
    run("gc", "events", "--horizon", "0s")
    run("gc", "events", "--horizon", "0s")
    assert list((rejecting / "warehouse" / "events" / "quarantine" / "_landed").glob("*.json")) == []
    assert run("ingest", "events", "--json").one["status"] == "nothing_to_do"
    assert run("quarantine", "events").out == "nothing is in quarantine\n"


@pytest.mark.usefixtures("rejecting")
@pytest.mark.parametrize("options", [("--show", "--retry"), ("--accept-late",), ("--retry", "--reason", "x")])
def test_options_of_quarantine_that_exclude_each_other_are_refused(run: Run, options: tuple[str, ...]) -> None:
    assert run("quarantine", "events", *options).code == 2


@pytest.mark.usefixtures("place")
def test_quarantine_shows_the_first_lines_and_rows_cut_and_how_many_more_there_are(run: Run) -> None:
    run("init", "events")
    store = Table.open("warehouse/events").store
    for file in ("a.log", "b.log"):
        lines = [RejectedLine(file, number, "no row, at all", "x" * 5_000) for number in range(1, 16)]
        write_quarantine(store, file, 9, lines)
    output = run("quarantine", "events", "--show").out
    assert output.count("and 4,800 more characters") == 20
    assert output.endswith("\n… and 10 more. --all prints all\n")
    assert run("quarantine", "events", "--show", "--all").out.count("x" * 5_000) == 30
    assert len(run("quarantine", "events", "--show", "--json").lines) == 30


def test_search_cuts_documents_and_prints_the_columns_that_are_wanted(place: Path, run: Run) -> None:
    run("init", "events")
    long = {**ROWS[0], "path": "/needle " + "hay " * 1_000}
    assert run("append", "events", str(ndjson(place / "rows.ndjson", [long]))).out.startswith("1 row committed")
    question = ("search", "events", "needle", "--index", "text")
    assert len(run(*question).out) < 1_500
    assert "hay " * 1_000 in run(*question, "--all").out.replace("\n", "") + " "
    found = run(*question, "--columns", "status,score", "--json").one
    assert list(found) == ["status", "score"]
    refused = run(*question, "--columns", "status,colour")
    assert (refused.code, "unknown column 'colour'. The answer has time" in refused.err) == (2, True)


@pytest.mark.usefixtures("place")
def test_a_map_with_text_keys_is_an_object_and_any_other_a_list_of_pairs(run: Run) -> None:
    named, numbered = pa.map_(pa.string(), pa.int64()), pa.map_(pa.int64(), pa.map_(pa.string(), pa.int64()))
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("named", named), ("deep", pa.list_(numbered))])
    with Table.create("made", schema, primary_key=["id"]).writer() as writer:
        writer.put({"id": 1, "named": {"b": 1, "a": None}, "deep": [{2: {"x": 1}}, {}]})
    row = {"id": 1, "named": {"b": 1, "a": None}, "deep": [[[2, {"x": 1}]], []]}
    query = ("sql", "made", "select * from t", "--consistency", "latest")
    assert run("get", "made", "1", "--json").one == row
    assert run(*query, "--json").one == row
    assert run("tail", "made", "--json").one["fields"] == row
    for command in (("get", "made", "1"), query, ("tail", "made")):
        printed = run(*command).out
        assert all(json.dumps(row[name]) in printed for name in ("named", "deep"))


def test_rows_of_maps_that_are_printed_can_be_appended(place: Path, run: Run) -> None:
    schema = pa.schema([("named", pa.map_(pa.string(), pa.int64()))])
    Table.create("first", schema).append([{"named": {"b": 1, "a": None}}, {"named": {}}, {"named": None}])
    Table.create("second", schema)
    printed = run("sql", "first", "select * from t", "--json").out
    (place / "rows.ndjson").write_text(printed)
    assert run("append", "second", "rows.ndjson").out.startswith("3 rows committed")
    assert run("sql", "second", "select * from t", "--json").out == printed
    changed = run("changes", "second", "--from", "0", "--json").lines
    assert [each["named"] for each in changed] == [{"b": 1, "a": None}, {}, None]


def test_describe_shows_the_newest_windows_and_how_many_more_there_are(place: Path, run: Run) -> None:
    run("init", "events")
    hours = [{"time": f"2015-05-17T{hour:02}:00:00Z"} for hour in range(24)]
    run("append", "events", str(ndjson(place / "rows.ndjson", hours)))
    output = run("describe", "events").out
    assert "2015-05-17T23:00" in output
    assert "2015-05-17T13:00" not in output
    assert "… and 14 more. --all prints all" in output
    assert "2015-05-17T00:00" in run("describe", "events", "--all").out


# Invalid input: an exit code with a meaning, one clear line, and never a traceback.


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["sql", "nowhere", "select 1"], "neither a table declared in tables/*.yaml (declared: events, people)"),
        (["sql", "./nowhere", "select 1"], "there is no table here"),
        (["sql", "people", "select 1"], "Run: tidemark init people"),
        (["sql", "events", "drop table t"], "select"),
        (["sql", "events", "select nothing from t"], "nothing"),
        (["sql", "events", "select * from events"], "unknown table 'events'. A query can read only the table t"),
        (["sql", "events", "select 1 a, 2 a"], "several columns called a"),
        (["sql", "events", "select 1", "--at", "9"], "version 9"),
        (["sql", "events", "select 1", "--at", "soon"], "unknown tag 'soon'"),
        (["sql", "events", "select 1", "--at", "1.5"], "'1.5' is not a version. Give a version number, a time"),
        (["sql", "events"], "SELECT"),
        (["sql", "s3://key:secret@bucket/table", "select 1"], "Credentials come from the environment"),
        (["search", "events", "x", "--index", "nope"], "nope"),
        (["search", "events", "x", "--index", "text", "--limit", "0"], "Give 1 or more"),
        (["search", "events", "can't", "--index", "text", "--syntax", "strict"], "not a valid query"),
        (["search", "events", "x", "--index", "text", "--syntax", "no"], "syntax is 'no'. Give lenient or strict"),
        (["search", "events", "x"], "--index"),
        (["get", "events", "1"], "get needs a primary key, and this table has none"),
        (["explain", "events", "delete from t"], "select"),
        (["explain", "events", "page", "--index", "text"], "--index"),
        (["search", "events", "page", "--text", "page", "--index", "text"], "leave one of them out"),
        (["search", "events", "page", "--index", "text", "--explain", "--order-by", "time"], "--order-by"),
        (["search", "events", "page", "--index", "text", "--count", "--explain"], "--explain"),
        (["search", "events", "--vector", "@tables/events.yaml"], "Give a NumPy file"),
        (["search", "events", "--vector", "@nowhere.npy"], "cannot be read: No such file"),
        (["search", "events", "--vector", "0.1,0.2"], "not a JSON list of numbers"),
        (["describe", "events", "--at", "7"], "version 7"),
        (["files", "events", "--at", "-1"], "-1"),
        (["history", "events", "--limit", "0"], "--limit"),
        (["debt", "../nowhere"], "there is no table here"),
        (["tables", "extra"], "extra"),
        (["init", "nowhere"], "nowhere"),
        (["init", "new/table"], "--schema"),
        (["init", "--schema", "s.yaml"], "needs the URI"),
        (["init", "new", "--schema", "s.yaml"], "cannot be read"),
        (["init", "new", "--schema", "tables/people.yaml"], "tables/people.yaml"),
        (["init", "--declaration", "t.yaml"], "t.yaml"),
        (["alter", "events", "set", "gc.retntion=1d"], "unknown setting 'gc.retntion'. Did you mean 'gc.retention'?"),
        (["alter", "events", "set", "gc.retention=1d"], "takes its settings from"),
        (["append", "events", "none.ndjson"], "no such file"),
        (["append", "events", "tables"], "is a folder"),
        (["append", "events", "tables/events.yaml"], "--format"),
        (["append", "events", "tables/people.yaml", "--format", "parquet"], "Nothing was changed. Correct the file"),
        (["ingest", "events", "--window", "2015-05-17T10:00", "--to", "2015-05-17T11:00"], "not both"),
        (["ingest", "people"], "people.yaml: no landing location is declared. Add landing: {uri: …, format: …}"),
        (["ingest", "./warehouse/people-elsewhere"], "there is no table here"),
        (["compact", "events", "--all", "--window", "2015-05-17T10:00"], "--all cannot be combined with"),
        (["compact", "events", "--from", "2015-05-17T11:00", "--to", "2015-05-17T10:00"], "not after"),
        (["compact", "events", "--window", "noon"], "noon"),
        (
            ["compact", "events", "--window", "2026-01-01T10:07"],
            "Give 2026-01-01T10:00, the window that contains this time",
        ),
        (
            ["ingest", "events", "--window", "2026-01-01T10:07"],
            "Give 2026-01-01T10:00, the window that contains this time",
        ),
        (["merge", "memory://here"], "memory"),
        (["checkpoint", "nowhere"], "nowhere"),
        (["catch-up", "events", "--index", "nope"], "nope"),
        (["catch-up", "events", "--index", "text", "--all"], "--all cannot be combined with"),
        (["gc", "events", "--horizon", "a while"], "a while"),
        (["ui", "--port", "0"], "--port"),
        (["nonsense"], "nonsense"),
        (["describe", "events", "--nonsense"], "--nonsense"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.usefixtures("place")
def test_bad_input_ends_with_2_and_says_why(run: Run, arguments: list[str], complaint: str) -> None:
    run("init", "events")
    ended = run(*arguments, "--json")
    assert ended.code == 2
    assert complaint.lower() in ended.err.lower()
    assert ended.err.startswith(("tidemark: invalid_input: ", "tidemark: not_found: ", "tidemark: unsupported: "))
    assert ended.lines[-1].keys() >= {"status", "error", "message"}
    assert ended.lines[-1]["status"] == "failed"
    assert "Traceback" not in ended.err


def test_a_damaged_table_ends_with_4(events: str, run: Run) -> None:
    log = Path("warehouse/events") / keys.version_key(2)
    log.write_bytes(log.read_bytes()[:-9])
    ended = run("describe", events, "--json")
    assert (ended.code, ended.lines[-1]["error"]) == (4, "corrupt")


@pytest.mark.parametrize("options", [["--json"], []], ids=["json", "text"])
def test_a_failure_without_a_type_ends_with_1_and_keeps_the_contract(
    events: str, run: Run, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    def broken(*_: object, **__: object) -> object:
        raise ZeroDivisionError("a fault in the program")

    monkeypatch.setattr(Table, "describe", broken)
    ended = run("describe", events, *options)
    assert ended.code == 1
    message = "ZeroDivisionError: a fault in the program"
    assert ended.lines == ([{"status": "failed", "error": "error", "message": message}] if options else [])
    assert ended.err.startswith("Traceback (most recent call last):\n")
    assert ended.err.endswith(f"tidemark: error: {message}\n")


# The command as a process.


def test_a_process_exits_with_the_code_and_prints_no_traceback(place: Path) -> None:
    ended = start("describe", "./nowhere", cwd=place)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("tidemark: not_found: ")
    assert len(ended.err.splitlines()) == 1


@pytest.mark.parametrize("options", [["--json"], []], ids=["json", "text"])
def test_a_reader_that_has_seen_enough_is_no_failure(events: str, place: Path, options: list[str]) -> None:
    query = "select t.* from t, range(5000)"
    with subprocess.Popen(
        [*TIDEMARK, "sql", events, query, *options],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait() == 0
    assert errors == b""


# Dagster.


@pytest.mark.dagster
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            ["--table", "nope", "--from", "2015-05-17T10:00", "--to", "2015-05-17T11:00"],
            "'nope' is not a table declared in tables/*.yaml",
        ),
        (["--table", "people", "--from", "2015-05-17T10:00", "--to", "2015-05-17T11:00"], "no windows"),
        (
            ["--table", "events", "--from", "2015-05-17T10:20", "--to", "2015-05-17T11:00"],
            "is not the start of a window",
        ),
        (["--table", "events", "--from", "2014-05-17T10:00", "--to", "2015-05-17T11:00"], "before the partitions of"),
        (["--table", "events", "--from", "2015-05-17T10:00"], "--to"),
    ],
    ids=["unknown", "keyed", "misaligned", "outside", "incomplete"],
)
@pytest.mark.usefixtures("place")
def test_a_backfill_that_makes_no_sense_ends_with_2(run: Run, options: list[str], complaint: str) -> None:
    ended = run("backfill", *options, "--json")
    assert ended.code == 2
    assert complaint in ended.err
    assert ended.lines[-1]["status"] == "failed"


@pytest.mark.dagster
def test_a_backfill_prints_one_line_per_chunk_and_nothing_else(place: Path) -> None:
    options = ["--table", "events", "--from", "2015-05-17T00:00", "--to", "2015-05-17T12:00", "--chunk", "6h", "--json"]
    ended = start("backfill", *options, cwd=place)
    assert ended.code == 0, ended.err
    assert " - dagster - " not in ended.err  # Dagster's events would hide the lines of the chunks
    assert [(line["status"], line["number"], line["of"], line["windows"]) for line in ended.lines] == [
        ("done", 1, 2, 6),
        ("done", 2, 2, 6),
    ]
    assert ended.lines[0].keys() == {
        *("status", "number", "of", "first", "last", "windows", "rows", "windows_failed", "run_id", "error")
    }
    assert (ended.lines[0]["first"], ended.lines[1]["last"]) == ("2015-05-17T00:00", "2015-05-17T11:00")
    assert (place / ".dagster").is_dir()


@pytest.mark.usefixtures("place")
def test_ui_names_a_port_that_is_taken_and_how_to_choose_another(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run("ui", "--port", str(port))
    assert (ended.code, ended.out) == (2, "")
    assert f"port {port} cannot be used" in ended.err
    assert "--port" in ended.err


@pytest.mark.dagster
def test_ui_serves_the_tables_of_any_folder_outlives_its_parts_and_ends_with_its_process(
    place: Path, free_port: int
) -> None:
    port = free_port
    for name in ("assets", "jobs", "dagster"):  # packages of the user, not of Tidemark
        (place / name).mkdir()
        (place / name / "__init__.py").write_text("raise SystemExit('the package of the user was imported')\n")
    with subprocess.Popen(
        [Path(sys.executable).parent / "tidemark", "ui", "--port", str(port)],
        cwd=place,
        env={
            name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "DAGSTER_DISABLE_TELEMETRY")
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            history = (place / ".dagster").resolve()
            assert (
                process.stdout.readline() == f"Dagster starts (its history is in {history}). End Dagster with Ctrl-C.\n"
            )
            while (
                process.stdout.readline() != f"Dagster is open on http://127.0.0.1:{port}\n"
            ):  # Dagster writes messages too
                assert process.poll() is None
            assert _answers(port)
            answer = _requested(port, _WHAT_IT_SERVES)
            assert ["events", "ingested"] in [each["assetKey"]["path"] for each in answer["assetNodes"]]
            assert answer["workspaceOrError"]["locationEntries"] == [{"id": "tidemark"}]
            before = _parts(process.pid)
            assert before.keys() == {"code", "daemon", "webserver"}
            os.kill(before["daemon"], signal.SIGKILL)
            os.kill(before["code"], signal.SIGKILL)
            while _parts(process.pid).keys() != before.keys():
                assert _answers(port)
                time.sleep(0.5)
            while not _requested(port, _WHAT_IT_SERVES)["assetNodes"]:
                time.sleep(0.5)
            after = _parts(process.pid)
            assert {name for name in after if after[name] == before[name]} == {"webserver"}
            for each in after.values():
                environment = Path(f"/proc/{each}/environ")
                assert not environment.exists() or b"DAGSTER_DISABLE_TELEMETRY=1" in environment.read_bytes()
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait() is not None
    assert not _answers(port)


@pytest.mark.dagster
def test_ui_that_is_interrupted_as_it_starts_ends_without_a_traceback(place: Path, free_port: int) -> None:
    with subprocess.Popen(
        [Path(sys.executable).parent / "tidemark", "ui", "--port", str(free_port), "--json"],
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        about = json.loads(process.stdout.readline())
        assert about == {"url": f"http://127.0.0.1:{free_port}", "dagster_home": str((place / ".dagster").resolve())}
        while "code" not in _parts(process.pid):
            assert process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)  # send the signal to the whole group, as a terminal does
        out, err = process.communicate()
    assert process.returncode == 0
    assert "Traceback" not in out + err


def test_ui_without_a_declaration_says_what_is_missing(tmp_path: Path) -> None:
    code = "import pipelines.tables as t; t.tables_folder = lambda: t.Path('tables'); import sys; "
    code += "from pipelines.cli import main; sys.exit(main(['ui']))"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=400
    )
    assert (ended.returncode, "no table is declared here" in ended.stderr) == (2, True)


_WHAT_IT_SERVES = "{assetNodes {assetKey {path}} workspaceOrError {... on Workspace {locationEntries {id}}}}"
_PROGRAMS = {"code": " api grpc ", "daemon": " dagster._daemon ", "webserver": " pipelines.processes.webserver "}


def _parts(root: int) -> dict[str, int]:
    """Return the ids of the running descendants: code server, daemon and webserver."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    lines = [line.split(maxsplit=2) for line in listed.splitlines()]
    parents = {int(process): int(parent) for process, parent, *_ in lines}

    def is_below(process: int) -> bool:
        parent = parents.get(process, 0)
        return parent == root or (parent > 1 and is_below(parent))

    below = {int(process): rest for process, _, *rest in lines if is_below(int(process))}
    return {
        name: process
        for process, arguments in below.items()
        for name, words in _PROGRAMS.items()
        if words in f"{' '.join(arguments)} "
    }


def _requested(port: int, query: str) -> dict[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        connection.request("POST", "/graphql", json.dumps({"query": query}), {"Content-Type": "application/json"})
        answer: dict[str, Any] = json.load(connection.getresponse())["data"]
        return answer
    finally:
        connection.close()


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        connection.request("GET", "/server_info")
        return bool(json.load(connection.getresponse())["dagster_version"])
    except OSError:
        return False
    finally:
        connection.close()


def test_a_day_is_simulated_and_a_metric_out_of_range_is_refused(run: Run) -> None:
    *rounds, last = run("simulate-policy", "--rate", "1", "--every", "720", "--window", "60m", "--json").lines
    assert [each["minute"] for each in rounds][:2] == [720, 1440]
    assert (last["summary"]["converged"], last["summary"]["windows"]) == (True, 24)
    for option, metric in (("--late", "1.5"), ("--rate", "0"), ("--every", "1441")):
        refused = run("simulate-policy", option, metric)
        assert (refused.code, option in refused.err) == (2, True)
