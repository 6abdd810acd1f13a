"""Known attacks on `sql`, filters and region expressions, each with a harmless control query that succeeds."""

from __future__ import annotations

import functools
import json
import operator
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage_core.base.errors import Corrupt, InvalidInput, SnapshotExpired, TidemarkError, Unavailable
from storage_core.engine.sandbox import process as pool
from storage_core.engine.sandbox.process import Relation
from storage_core.engine.sandbox.result import Result
from storage_core.engine.session import session
from storage_core.log.actions import Add
from storage_core.read import sql
from storage_core.read.duckdb_view import Source, answer
from storage_core.read.fetching import FetchPlan
from storage_core.read.predicate import Filter, Opaque
from storage_core.read.scan import Scan
from storage_core.read.table_read import splits_source
from storage_core.read.verified_files import VerifiedFiles, query_errors
from tidemark import QueryLimits, Table, col

SCHEMA = pa.schema([("a", pa.int64()), ("s", pa.string())])
SMALL = QueryLimits(seconds=60, memory_bytes=64 * 2**20, spill_bytes=2**30)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    """Make a table of one split. The working directory and DuckDB's spill folder contain a marked file."""
    place = tmp_path / "here"
    (place / ".tmp").mkdir(parents=True)
    (place / ".tmp" / "canary.csv").write_text("canary")
    pq.write_table(pa.table({"canary": ["canary"]}), place / "canary.parquet")
    monkeypatch.chdir(place)
    monkeypatch.setenv("CANARY", "canary")
    made = Table.create(str(tmp_path / "t"), SCHEMA)
    made.append([{"a": each, "s": f"row {each}"} for each in range(10)])
    return made


def split_of(table: Table) -> Path:
    (add,) = table.snapshot.splits
    path = table.store.local_path(add)
    assert path is not None
    return path


def copied(options: str, path: object) -> str:
    return f"copy (select 99::bigint as a, 'forged' as s) to '{path}' ({options})"


READS_ELSEWHERE = (
    "select * from read_text('canary.parquet')",
    "select * from read_blob('canary.parquet')",
    "select * from read_csv('.tmp/canary.csv')",
    "select * from read_json('.tmp/canary.csv')",
    "select * from read_parquet('canary.parquet')",
    "select * from parquet_scan('canary.parquet')",
    "select * from parquet_metadata('canary.parquet')",
    "select * from parquet_file_metadata('canary.parquet')",
    "select * from parquet_kv_metadata('canary.parquet')",
    "select * from parquet_schema('canary.parquet')",
    "select * from parquet_bloom_probe('canary.parquet', 'canary', 'canary')",
    "select * from glob('*')",
    "select * from sniff_csv('.tmp/canary.csv')",
    "select * from 'canary.parquet'",
    "select * from '.tmp/canary.csv'",
    'select * from "canary.parquet"',
    "select * from t, 'canary.parquet'",
    "with x as (from 'canary.parquet') from x",
    "select (select canary from 'canary.parquet')",
    "select * from t where s in (select canary from 'canary.parquet')",
    "describe 'canary.parquet'",
    "summarize 'canary.parquet'",
    "select * from query('select 1')",
    "select * from query_table('t')",
    "select * from query_table(['canary.parquet'])",
    "select * from json_execute_serialized_sql(json_serialize_sql('select 1'))",
    "select json_serialize_plan('select * from read_text(''canary.parquet'')')",
    "select * from arrow_scan(0, 0, 0)",
    "select * from arrow_scan_dumb(0, 0, 0)",
    "select * from pandas_scan(0)",
    "select * from python_map_function(0)",
    "select * from seq_scan('t')",
    "select * from monkeypatch",
    "select getenv('CANARY')",
    "select main.getenv('CANARY')",
    "select getvariable('tidemark_paths')",
    "select 'tidemark_paths'.getvariable()",
    "select current_setting('temp_directory')",
    "select current_query()",
    "select nextval('x')",
    "select write_log('x')",
    "select stats(a) from t",
    "select pg_sleep(1)",
    "select sleep_ms(1)",
    "select finalize('x'::blob)",
    "select sum(a) export_state from t",
    "select * from tidemark_splits",
    "select * from tidemark_template",
    "select * from duckdb_settings()",
    "select * from duckdb_settings",
    "select * from duckdb_secrets()",
    "select * from duckdb_variables()",
    "select * from duckdb_views()",
    "select * from duckdb_temporary_files()",
    "select * from which_secret('s3://x', 's3')",
    "select * from pragma_table_info('t')",
    "select * from information_schema.tables",
    "select * from pg_catalog.pg_class",
    "select * from pg_class",
    "select * from sqlite_master",
    "with duckdb_views as (from duckdb_views) from duckdb_views",
    "with a as (from duckdb_settings), duckdb_settings as (select 1) from a",
    "select * from memory.main.t",
    "select * from test_all_types()",
    "select * from enable_logging()",
    "select * from checkpoint()",
    "show tables",
    "with x as (show tables) from x",
    "select $1",
)
STATEMENTS = (
    "attach 'x.db'",
    "install httpfs",
    "load httpfs",
    "pragma database_list",
    "set temp_directory = '/tmp'",
    "reset temp_directory",
    "set variable x = 1",
    "export database 'x'",
    "import database 'x'",
    "create table x as select 1",
    "create macro x() as 1",
    "create secret x (type s3)",
    "insert into t values (1, 'x')",
    "delete from t",
    "drop view t",
    "checkpoint",
    "call enable_logging()",
    "use memory",
    "explain analyze select 1",
    "prepare x as select 1",
    "select 1; select 2",
    "select 1; drop view t",
    "select 1\0; select 2",
    "begin",
    "with x as (insert into t values (1, 'x') returning *) from x",
    "with x as (update t set a = 1 returning *) from x",
    "with x as (delete from t returning *) from x",
)
WRITES = (
    "COPY",
    "with x as (COPY) from x",
    "with x as (with y as (COPY) from y) from x",
    "select * from (with x as (COPY) from x)",
    "select * from t where a in (with x as (COPY) select 1 from x)",
    "select (with x as (COPY) select count(*) from x)",
    "with recursive x as (with y as (COPY) select 1 as i from y union all select 2) from x",
    "select 1 union all (with x as (COPY) select 1 from x)",
    "with x as (COPY), y as (select 1) from y",
)
OPTIONS = ("format parquet, use_tmp_file false", "format csv, use_tmp_file false", "format parquet", "format json")


def everything(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_the_controls_of_the_attacks_are_answered(table: Table) -> None:
    for text, count in (
        ("select * from t", 10),
        ("with x as (select a from t) from x", 10),
        ("with recursive x(i) as (select 1 union all select i + 1 from x where i < 5) from x", 5),
        ("select * from t where a in (select max(a) from t)", 1),
        ("select * from range(3)", 3),
        ("from t, unnest([1, 2])", 20),
        ("describe t", 2),
        ("summarize t", 2),
        ("select s, count(*) from t group by all order by all limit 3", 3),
        ("select * from t using sample 5 rows", 5),
        ("from t pivot (count(*) for a in (1, 2))", 10),
        ("select list_transform([a], lambda x: x + 1), a::decimal(9, 2), s collate nocase from t", 10),
        ("select 'canary.parquet', upper(s), lpad(s, 20, '.'), repeat('-', 10) from t", 10),
        (r"select replace(s, 'row', 'a longer row'), regexp_replace(s, '(o)', '-\1-') from t", 10),
        ("values (1), (2)", 2),
    ):
        assert table.sql(text).num_rows == count, text


@pytest.mark.parametrize("text", READS_ELSEWHERE)
def test_a_query_reads_nothing_but_its_table(table: Table, text: str) -> None:
    with pytest.raises(InvalidInput):
        table.sql(text)
    with pytest.raises(InvalidInput):
        table.explain(text)


@pytest.mark.parametrize("text", STATEMENTS)
def test_a_query_is_one_select_and_nothing_else(table: Table, text: str) -> None:
    with pytest.raises(InvalidInput):
        table.sql(text)
    assert table.sql("select count(*) as n from t").to_pylist() == [{"n": 10}]


@pytest.mark.parametrize("form", WRITES)
@pytest.mark.parametrize("options", OPTIONS)
def test_a_query_writes_nothing(table: Table, tmp_path: Path, form: str, options: str) -> None:
    assert table.sql("select count(*) as n from t").to_pylist() == [{"n": 10}]
    before = everything(tmp_path)
    for path in (split_of(table), "new.file", ".tmp/new.file", tmp_path / "new.file"):
        text = form.replace("COPY", copied(options, path))
        with pytest.raises(InvalidInput):
            table.sql(text)
        with pytest.raises(InvalidInput):
            table.sql(f"select * from json_execute_serialized_sql(json_serialize_sql({_quoted(text)}))")
        with pytest.raises(InvalidInput):
            table.scan(filter=f"a in ({text})")
    assert everything(tmp_path) == before
    assert table.sql("select count(*) as n from t").to_pylist() == [{"n": 10}]


def asked(source: Source, text: str) -> pa.Table:
    """Send a text to a query process without a check, and return the answer."""
    with source.answer(text, SMALL, spill_bytes=SMALL.spill_bytes) as answer:
        return pa.Table.from_batches(answer, answer.schema)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@pytest.mark.parametrize("options", OPTIONS)
def test_the_session_of_a_query_cannot_write_even_what_was_not_checked(
    table: Table, tmp_path: Path, options: str
) -> None:
    splits = list(table.snapshot.splits.values())
    source = splits_source(table.store, splits, FetchPlan(SCHEMA, SCHEMA.names), verified=VerifiedFiles())
    before = everything(tmp_path)
    for form in WRITES:
        text = form.replace("COPY", copied(options, split_of(table)))
        with pytest.raises((duckdb.Error, OSError), match=r"[Pp]ermission|must be at the top level"):
            asked(source, text)
    assert everything(tmp_path) == before
    assert asked(source, "select count(*) as n from t").to_pylist() == [{"n": 10}]
    _requires_the_rights_that_the_process_gives_up(source.relation().files, tmp_path)


def _requires_the_rights_that_the_process_gives_up(files: tuple[Path, ...], folder: Path) -> None:
    """Check the control. A session outside a query process can read a file and overwrite the same file."""
    copy = folder / "control.parquet"
    copy.write_bytes(files[0].read_bytes())
    with session(files=[copy]) as connection:
        connection.sql("with x as (" + copied("format parquet, use_tmp_file false", copy) + ") from x").fetchall()
    assert copy.read_bytes() != files[0].read_bytes()
    copy.unlink()


def test_what_was_verified_is_looked_at_again(table: Table) -> None:
    path = split_of(table)
    sound = path.read_bytes()
    assert table.sql("select sum(a) as n from t").to_pylist() == [{"n": 45}]
    changed = path.stat()
    forged = bytearray(sound)
    forged[len(forged) // 2] ^= 1
    path.write_bytes(forged)
    os.utime(path, ns=(changed.st_atime_ns, changed.st_mtime_ns))
    reads: list[Callable[[], object]] = [lambda: table.sql("select a from t"), lambda: table.scan().to_arrow()]
    for read in reads:
        with pytest.raises(Corrupt, match="expected xxh3-64"):
            read()
    path.write_bytes(sound)
    assert table.sql("select sum(a) as n from t").to_pylist() == [{"n": 45}]
    path.with_name("other").write_bytes(pq_bytes())
    path.with_name("other").rename(path)
    with pytest.raises(Corrupt, match="expected"):
        table.sql("select a from t")


@pytest.mark.parametrize("folder", ["a=9", "s=zzz", "year=2026"])
def test_a_folder_above_a_table_is_no_column_of_it(tmp_path: Path, folder: str) -> None:
    made = Table.create(str(tmp_path / folder / "t"), SCHEMA)
    made.append([{"a": 1, "s": "one"}, {"a": 2, "s": "two"}])
    rows = [{"a": 1, "s": "one"}, {"a": 2, "s": "two"}]
    for found in (made.sql("from t"), made.scan().to_arrow(), made.scan().to_reader().read_all()):
        assert sorted(found.to_pylist(), key=str) == rows
    assert made.scan(filter="s = 'one' and a = 1").to_arrow().to_pylist() == rows[:1]


def pq_bytes() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [99], "s": ["forged"]}), sink)
    return bytes(sink.getvalue())


def test_a_split_that_changes_while_it_is_read_is_no_answer(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    path = split_of(table)

    def replaced(sources: Mapping[str, Source], text: str, limits: QueryLimits, **more: int) -> Result:
        path.write_bytes(pq_bytes())
        return answer(sources, text, limits, **more)

    monkeypatch.setattr(sql, "answer", replaced)
    with pytest.raises(Corrupt, match="expected"):
        table.sql("select a from t").to_arrow()


READS: list[Callable[[Table], object]] = [
    lambda table: table.sql("select a from t"),
    lambda table: table.scan().to_arrow(),
    lambda table: table.scan(filter="a > 1").to_arrow(),
    lambda table: table.scan().to_reader().read_all(),
]


@pytest.mark.parametrize("read", READS)
def test_a_split_that_goes_after_it_was_verified_is_named_as_gone(
    table: Table, monkeypatch: pytest.MonkeyPatch, read: Callable[[Table], object]
) -> None:
    path, relation = split_of(table), Source.relation

    def gone(source: Source, name: str = "t") -> Relation:
        path.unlink()
        return relation(source, name)

    monkeypatch.setattr(Source, "relation", gone)
    with pytest.raises(SnapshotExpired, match=rf"{path.name}: .* Open a newer version"):
        read(table)


def test_a_split_that_goes_before_it_is_read_is_named_as_gone(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    path, opened = split_of(table), Source.opened

    def gone(source: Source) -> duckdb.DuckDBPyConnection:
        connection = opened(source)
        path.unlink()
        return connection

    monkeypatch.setattr(Source, "opened", gone)
    with pytest.raises(SnapshotExpired, match=rf"{path.name}: .* Open a newer version"):
        table.scan().to_arrow()


def test_a_query_spills_to_a_private_folder_that_ends_with_its_process(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spill = tmp_path / "spill"
    spill.mkdir()
    modes: list[int] = []
    make = tempfile.mkdtemp

    def noted(*args: Any, **kwargs: Any) -> str:
        folder: str = make(*args, **kwargs)
        modes.append(stat.S_IMODE(Path(folder).stat().st_mode))
        return folder

    pool.end_all()
    monkeypatch.setattr(tempfile, "tempdir", str(spill))
    monkeypatch.setattr(tempfile, "mkdtemp", noted)
    before = everything(Path.cwd())
    numbered = "select row_number() over (order by hash(range)) as n, * from range(4000000)"
    largest = f"select max(n) as n from ({numbered})"
    with pytest.raises(Unavailable, match="spill_bytes"):  # so the query must spill
        table.sql(largest, limits=replace(SMALL, spill_bytes=2**20))
    assert table.sql(largest, limits=SMALL).to_pylist() == [{"n": 4_000_000}]
    assert set(modes) == {0o700}
    assert [file for folder in spill.iterdir() for file in folder.iterdir()] == []
    pool.end_all()
    assert list(spill.iterdir()) == []
    assert everything(Path.cwd()) == before


@pytest.mark.parametrize("name", ["*.csv", "canary.csv"])
def test_the_folder_that_duckdb_would_spill_to_is_out_of_reach(table: Table, name: str) -> None:
    for text in (f"select * from read_csv('.tmp/{name}')", f"from '.tmp/{name}'"):
        with pytest.raises(InvalidInput):
            table.sql(text)
        for opened in (session(), session(threads=1, files=[split_of(table)])):
            with opened as connection, pytest.raises(duckdb.Error):
                connection.sql(text).fetchall()


JOINED = " and ".join(f"t{n}.a = t{n + 1}.a" for n in range(99))
LONG = (
    ("select count(*) from range(100000000) a, range(1000000) b where a.range + b.range = 7", "seconds"),
    ("with recursive r as (select 1 as i union all select i + 1 from r) select max(i) from r", "seconds"),
    (f"select count(*) from {', '.join(f't t{n}' for n in range(100))} where {JOINED}", "seconds"),  # only planning
)
LARGE = (
    "select list(range) from range(300000000)",
    "select * from range(300000000)",
    "select string_agg('xxxxxxxxxxxxxxxxxxxxxxxx' || range) from range(100000000)",
    "with recursive r(s) as (select 'x' union all select s || s from r) select max(length(s)) from r",
)


@pytest.mark.parametrize(
    "value",
    [
        f"('{'[' * 60_000}{']' * 60_000}')::JSON::VARIANT is null",  # this expression once ended the query process
        f"variant_extract('{'[' * 60_000}', 'a') is null",
        f"{'nullif(' * 40}a{', 7)' * 40} = 3",  # each level doubles the work of DuckDB's binder
        f"{'fmod(' * 9}a{', 7)' * 9} = 3",
        f"{'split_part(' * 40}s{', s, 1)' * 40} = 's'",
    ],
)
def test_what_ends_the_process_or_doubles_with_each_level_is_refused(table: Table, value: str) -> None:
    with pytest.raises(InvalidInput, match="refused"):
        table.sql(f"select {value} from t")
    with pytest.raises(InvalidInput, match="refused"):
        table.scan(filter=value)


@pytest.mark.parametrize(("text", "setting"), LONG)
def test_a_query_that_takes_too_long_ends_with_the_name_of_the_setting(table: Table, text: str, setting: str) -> None:
    with pytest.raises(Unavailable, match=f"longer than 0.1 seconds.*raise `{setting}`"):
        table.sql(text, limits=QueryLimits(seconds=0.1))
    assert table.sql("select 1 as one", limits=QueryLimits(seconds=60)).to_pylist() == [{"one": 1}]


@pytest.mark.parametrize("text", LARGE)
def test_a_query_that_takes_too_much_memory_ends_with_the_name_of_the_setting(table: Table, text: str) -> None:
    with pytest.raises(Unavailable, match="memory_bytes"):
        table.sql(text, limits=QueryLimits(memory_bytes=64 * 2**20, spill_bytes=0)).to_arrow()


@pytest.mark.parametrize(
    "limits",
    [{"seconds": 0}, {"seconds": float("nan")}, {"seconds": True}, {"memory_bytes": 1}, {"spill_bytes": -1}],
)
def test_limits_that_are_none_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(limits))):
        QueryLimits(**limits)


GROWN = (
    "lpad(s, 2000000000, 'x')",
    "rpad(s, 2000000000, 'x')",
    "repeat(s, 2000000000)",
    "repeat(repeat(s, 50000), 50000)",
    "s.repeat(200000000)",
    "t.s.repeat(200000000)",
    "(s).repeat(200000000)",
    "repeat(s, a)",
    "replace(s, 'r', s)",
    "replace(replace(replace(s, 'r', 'KILO'), 'r', 'KILO'), 'r', 'KILO')",
    "regexp_replace(regexp_replace(s, '', 'KILO', 'g'), '', 'KILO', 'g')",
    "regexp_replace(s, 'r', s, 'g')",
    "regexp_replace(regexp_replace(s, '', 'EURO', 'g'), '', 'EURO', 'g')",
    f"{'hex(' * 30}s{')' * 30}",
    "repeat(s, 1000 * 1000 * 1000)",
    "len(range(2000000000))::varchar",
    "len(generate_series(0, a))::varchar",
    "format('{:2000000000}', s)",
    "format('{:{}}', s, 2000000000)",
    "printf('%2000000000d', a)",
    "printf('%*d', 2000000000, 1)",
    "bitstring('1', 2000000000)::varchar",
    "len(list_resize([1], 2000000000))::varchar",
)


@pytest.mark.parametrize("text", GROWN)
def test_what_makes_much_of_little_is_answered_or_ends_within_its_memory(table: Table, text: str) -> None:
    text = text.replace("KILO", "r" * 1_001).replace("EURO", "€" * 400)  # characters of three bytes each
    small = QueryLimits(seconds=5, memory_bytes=64 * 2**20)
    asked: list[Callable[[], object]] = [
        lambda: table.sql(f"select sum(length({text})) from t", limits=small),
        lambda: table.scan(filter=f"length({text}) > 5", limits=small).to_reader().read_all(),
    ]
    for ask in asked:
        try:
            ask()
        except Unavailable:
            pass
        except InvalidInput as error:
            assert "a value is out of range" in str(error)  # noqa: PT017  # or an answer
    assert table.sql("select count(*) as n from t").to_pylist() == [{"n": 10}]


def test_a_statement_of_thousands_of_parts_is_refused_before_it_is_planned(table: Table) -> None:
    assert table.sql(" union all ".join(["select 1 as one"] * 300)).num_rows == 300
    for text in (" union all ".join(["select 1"] * 4_000), f"select {', '.join(['(select 1)'] * 1_100)}"):
        with pytest.raises(InvalidInput, match=r"SELECTs and tables\. The limit is 1000"):
            table.sql(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("select a" + ".a" * 9_000 + " from t", "more than 32 parts with dots"),
        ("select 1 from t " + "natural join t " * 400, "400 joins. The limit is 100"),
    ],
)
def test_a_short_text_does_not_ask_for_minutes_of_planning_or_gigabytes(table: Table, text: str, found: str) -> None:
    with pytest.raises(InvalidInput, match=found):
        table.sql(text)


@pytest.mark.parametrize("name", ["current_user", "current_role", "session_user", "user"])
def test_names_of_users_are_constants_of_the_engine(table: Table, name: str) -> None:
    assert table.sql(f"select {name} as it").to_pylist() == [{"it": "duckdb"}]


def test_names_of_places_are_constants_of_the_engine(table: Table) -> None:
    found = table.sql("select current_catalog as c, current_schema as s").to_pylist()
    assert found == [{"c": "memory", "s": "main"}]
    for name in ("current_database()", "current_schemas(true)", "version()", "pg_backend_pid()", "current_query()"):
        with pytest.raises(InvalidInput):
            table.sql(f"select {name}")


def nested(depth: int) -> Iterator[str]:
    yield "not " * depth + "true"
    yield "(" * depth + "a = 1" + ")" * depth
    yield "(" * depth
    yield "- " * depth + "1 = 1"
    yield "a" + "[1]" * depth + " = 1"
    yield "1 + " * depth + "a = 1"
    yield "case when a = 1 then " * depth + "true" + " end" * depth
    yield "a = 1 and (s = 'x' or " * depth + "true" + ")" * depth
    yield "a = abs(" * 1 + "abs(" * depth + "1" + ")" * (depth + 1)
    yield "exists (select 1 from t where " * depth + "true" + ")" * depth
    yield "a = cast(" + "cast(" * depth + "1 as int)" + " as int)" * depth
    yield "a::" + "struct(x " * depth + "int" + ")" * depth + " is null"


@pytest.mark.parametrize("depth", [900, 9_000])
@pytest.mark.parametrize("kind", range(12))
def test_a_text_that_is_nested_too_deep_is_refused(table: Table, kind: int, depth: int) -> None:
    text = list(nested(depth))[kind]
    for attack in (
        lambda: table.sql(f"select * from t where {text}"),
        lambda: table.scan(filter=text),
        lambda: table.explain(f"select * from t where {text}"),
    ):
        with pytest.raises(InvalidInput, match=r"nested more than 100 deep|The limit is 200000|words and signs"):
            attack()


@pytest.mark.parametrize(
    "text",
    [
        f"a in ({', '.join(map(str, range(300_000)))})",
        f"a in ({'1,' * 90_000}1)",
        " or ".join(["a = 1"] * 20_000),
        f"s = '{'x' * 300_000}'",
    ],
)
def test_a_text_that_is_too_long_is_refused_before_it_is_parsed(table: Table, text: str) -> None:
    for attack in (lambda: table.sql(f"select * from t where {text}"), lambda: table.scan(filter=text)):
        with pytest.raises(InvalidInput, match="The limit is"):
            attack()


def test_a_list_of_many_constants_and_a_long_text_are_answered(table: Table) -> None:
    numbers = ", ".join(map(str, range(5, 5_005)))
    assert table.sql(f"select count(*) as n from t where a in ({numbers})").to_pylist() == [{"n": 5}]
    assert table.scan(filter=f"a in ({numbers})").to_arrow().num_rows == 5
    assert table.scan(filter=col("a").isin(range(5, 5_005))).to_arrow().num_rows == 5
    assert table.scan(filter=f"s <> '{'x' * 100_000}'").to_arrow().num_rows == 10
    assert table.scan(filter="not " * 90 + "a = 1").to_arrow().num_rows == 1
    with pytest.raises(InvalidInput, match="cannot be run"):
        table.sql(f"select count(*) as n from t where a < {'9' * 5_000}")


def refusals(add: Add) -> Iterator[tuple[str, Exception, type[Exception]]]:
    denied = f'IO Error: Cannot open file "/x/{add.path}": Permission denied'
    yield "select a from t", duckdb.IOException(denied), Unavailable
    yield "select a from t", OSError(f"Invalid Error: {denied}"), Unavailable
    outside = f'Permission Error: Cannot access file "/x/{add.path}" - file system operations are disabled'
    yield "select a from t", duckdb.PermissionException(outside), InvalidInput
    yield "select a from t", duckdb.InvalidInputException(f"Invalid Input Error: No magic bytes in {add.path}"), Corrupt


def test_a_permission_that_is_missing_is_no_damage(table: Table) -> None:
    (add,) = table.snapshot.splits.values()
    for text, error, expected in refusals(add):
        with pytest.raises(expected), query_errors(text, [add]):
            raise error
    first, last = add.path[:10], add.path[10:]
    for text in (
        f"select cast('{add.path}' as int)",
        f"select error('{add.path}')",
        f"select error('{first}' || '{last}')",
        f"select strptime('{first}' || '{last}', '%Y')",
    ):
        with pytest.raises(InvalidInput):
            table.sql(text)


READERS: tuple[Callable[[Scan], object], ...] = (
    lambda scan: scan.to_arrow(),
    lambda scan: scan.to_reader().read_all(),
    lambda scan: scan.to_pandas(),
    lambda scan: scan.to_duckdb(),
)


@pytest.mark.parametrize("read", READERS)
def test_a_filter_that_takes_too_long_ends_with_the_name_of_the_setting(
    tmp_path: Path, read: Callable[[Scan], object]
) -> None:
    made = Table.create(str(tmp_path / "many"), SCHEMA)
    made.append(pa.table({"a": range(200_000), "s": [f"row {each}" for each in range(200_000)]}, schema=SCHEMA))
    slow = made.scan(filter="sha256(repeat(s, 2000)) = 'x'", limits=QueryLimits(seconds=0.3))
    with pytest.raises(Unavailable, match=r"longer than 0.3 seconds.*raise `seconds`"):
        read(slow)


@pytest.mark.parametrize("read", READERS[:2])
def test_a_filter_that_takes_too_much_memory_ends_with_the_name_of_the_setting(
    tmp_path: Path, read: Callable[[Scan], object]
) -> None:
    made = Table.create(str(tmp_path / "wide"), SCHEMA)
    made.append(pa.table({"a": range(64), "s": [os.urandom(2**19).hex() for _ in range(64)]}, schema=SCHEMA))
    assert made.scan(filter="s <> ''").to_arrow().num_rows == 64
    with pytest.raises(Unavailable, match="memory_bytes"):
        read(made.scan(filter="s <> ''", limits=QueryLimits(memory_bytes=16 * 2**20)))


@pytest.mark.parametrize("read", READERS)
def test_the_session_of_a_scan_cannot_write_even_what_was_not_checked(
    table: Table, tmp_path: Path, read: Callable[[Scan], object]
) -> None:
    before = everything(tmp_path)
    text = copied("format parquet, use_tmp_file false", split_of(table))
    unchecked = duckdb.SQLExpression(f"a in (with x as ({text}) select 99 from x)")
    scan = replace(table.scan(filter="a > 5"), filter=Filter(Opaque("unchecked"), (unchecked,)))
    with pytest.raises((TidemarkError, OSError, duckdb.Error)):
        read(scan)
    assert everything(tmp_path) == before


def test_no_text_that_a_relation_of_a_scan_is_given_writes_a_split(table: Table, tmp_path: Path) -> None:
    relation = table.scan(filter="a > 5").to_duckdb()
    before = everything(tmp_path)
    attacks: list[Callable[[], object]] = [
        lambda: relation.write_parquet(str(split_of(table))),
        lambda: relation.write_csv(str(tmp_path / "new.csv")),
        lambda: relation.query("rows", copied("format parquet, use_tmp_file false", split_of(table))),
        lambda: relation.query("rows", "from 'canary.parquet'"),
    ]
    for attack in attacks:
        with pytest.raises(duckdb.Error):
            attack()
    assert everything(tmp_path) == before
    assert relation.aggregate("count(*)").fetchall() == relation.aggregate("count(*)").fetchall() == [(4,)]


HOLDS_A_FOLDER = """
import sys
from storage_core.base.process import scratch_folder
with scratch_folder("tidemark-spill-") as folder:
    (folder / "block").write_text("spilled")
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_process_spilled_is_removed_by_the_next_and_nothing_of_one_that_runs(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}

    def started() -> tuple[subprocess.Popen[str], Path]:
        command, pipe = [sys.executable, "-c", HOLDS_A_FOLDER], subprocess.PIPE
        process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)
        return process, Path(cast("IO[str]", process.stdout).readline().strip())

    (killed, left), (running, kept) = started(), started()
    (tmp_path / "tidemark-spill-of-another").mkdir()
    killed.kill()
    killed.communicate()
    assert left.exists()
    following, own = started()
    assert not left.exists()
    assert {path.name for path in tmp_path.iterdir()} == {kept.name, own.name, "tidemark-spill-of-another"}
    for process in (running, following):
        process.communicate()
    assert [path.name for path in tmp_path.iterdir()] == ["tidemark-spill-of-another"]


def nested_filters(depth: int) -> Iterator[Callable[[], Filter]]:
    one, another = col("a") == 1, col("a") < 100
    steps: list[Callable[[Filter, int], Filter]] = [
        lambda made, _: ~made,
        lambda made, at: made | one if at % 2 else made & another,
        lambda made, at: one & made if at % 2 else another | made,
        lambda made, _: ~(made | one),
    ]
    for step in steps:
        yield partial(functools.reduce, step, range(depth), one)


@pytest.mark.parametrize("depth", [201, 5_000])
@pytest.mark.parametrize("kind", range(4))
def test_a_filter_of_columns_that_is_nested_too_deep_is_refused(depth: int, kind: int) -> None:
    with pytest.raises(InvalidInput, match="nested more than 200 deep"):
        list(nested_filters(depth))[kind]()


def test_a_filter_of_columns_may_be_a_long_chain(table: Table) -> None:
    chosen = [col("a") == each for each in range(5, 1_505)]
    for chain in (functools.reduce(operator.or_, chosen), functools.reduce(lambda made, each: each | made, chosen)):
        assert table.scan(filter=chain).to_arrow().num_rows == 5
        assert table.scan(filter=chain & (col("a") != 5)).to_arrow().num_rows == 4
    assert table.scan(filter=functools.reduce(operator.and_, [~each for each in chosen])).to_arrow().num_rows == 5
    for made in list(nested_filters(90)):
        assert table.scan(filter=made()).to_arrow().num_rows <= 10
    with pytest.raises(InvalidInput, match="more than 10000 conditions"):
        functools.reduce(operator.or_, [col("a") == 1] * 10_001)


def test_a_filter_is_held_to_the_same_parts_as_a_query(table: Table) -> None:
    refused: list[Callable[[], object]] = [
        lambda: table.scan(filter="getenv('CANARY') = 'canary'"),
        lambda: table.scan(filter="getvariable('x') is null"),
        lambda: table.scan(filter="current_setting('temp_directory') <> ''"),
        lambda: table.scan(filter="s in (from 'canary.parquet')"),
        lambda: table.scan(filter="true or (select true from read_text('canary.parquet'))"),
        lambda: table.scan(filter="a = 1; select 1"),
        lambda: table.scan(filter="a = 1\0"),
    ]
    for each in refused:
        with pytest.raises(InvalidInput):
            each()
    assert json.dumps(table.scan(filter="a = 1").to_arrow().to_pylist()) == '[{"a": 1, "s": "row 1"}]'
