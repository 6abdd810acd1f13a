"""No statement from DuckDB's grammar and functions reads or writes anything except the table.

The test generates statements with every function of the engine, at every position of a query. A canary is a secret text
that no answer may contain. The arguments of the functions refer to a canary file, a canary in the environment, a split
and a listening socket. The test also generates nested queries, common table expressions, and statements that are not
queries. Each of these statements also occurs as serialized text. Most statements are refused before they run. The test
asserts that no answer contains a canary, that all files stay unchanged, and that the socket receives no connection.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.base.errors import InvalidInput, TidemarkError, Unavailable
from storage_core.engine.session import session
from storage_core.engine.statement import check, parse
from tests.support.scale import scaled
from tidemark import QueryLimits, Table

CANARY = "canary-7f3a91"
LIMITS = QueryLimits(seconds=20, memory_bytes=64 * 2**20, spill_bytes=2**20)
PLACES = (
    "select {call} from t",
    "select * from {call}",
    "select * from t, lateral {call}",
    "select * from t where a = 1 and {call} is not null",
    "select count(*) filter ({call} is null) from t",
    "select max({call}) over (order by a) from t",
    "select * from t order by {call}",
    "select * from t limit {call}",
    "with x as (from {call}) from x",
    "with x as (select {call} as y from t) from x",
    "with recursive x as (select 1 as i union all select i + 1 from x, {call} where i < 3) from x",
    "select (select {call})",
    "select * from t where a in (from {call})",
    "select list_transform([1], lambda x: {call})",
    "select * from (values ({call})) v(x)",
    "describe select {call}",
    "summarize from {call}",
    "select * replace ({call} as a) from t",
    "select columns({call}) from t",
    "select cast({call} as varchar) from t union all select s from t",
    "from t pivot (count(*) for {call} in (1))",
)
STATEMENTS = (
    "copy (select '{canary}' as a) to {path} (format csv, use_tmp_file false)",
    "copy (select 99 as a, 'x' as s) to {path} (format parquet, use_tmp_file false)",
    "copy (select 99 as a) to {path} (format json)",
    "copy t to {path}",
    "copy t from {path}",
    "attach {path}",
    "attach {path} as other",
    "install {path}",
    "load {path}",
    "export database {path}",
    "import database {path}",
    "create table other as from {path}",
    "create view other as from {path}",
    "create persistent secret s (type s3)",
    "pragma table_info({path})",
    "set temp_directory = {path}",
    "set log_query_path = {path}",
    "set profiling_output = {path}",
    "insert into t from {path} returning *",
    "from {path}",
    "from t",
    "select * from read_text({path})",
    "explain analyze from {path}",
    "call glob({path})",
)
AROUND = (
    "{it}",
    "with x as ({it}) from x",
    "with x as materialized ({it}) select 1 from x",
    "with x as (with y as ({it}) from y) from x",
    "with recursive x as ({it}) from x",
    "with x as ({it}), y as (select 1) from y",
    "select * from ({it})",
    "select ({it})",
    "select exists ({it})",
    "select * from t where a in ({it})",
    "select 1; {it}",
    "{it}; select 1",
    "select * from t union all ({it})",
    "select * from query({text})",
    "select * from query_table({text})",
    "select * from json_execute_serialized_sql(json_serialize_sql({text}))",
    "select * from json_execute_serialized_sql({serialized})",
    "select json_serialize_plan({text})",
    "select json_deserialize_sql({serialized})",
    "select * from t /* {it} */",
    "select * from t -- {it}",
    "describe {it}",
    "summarize {it}",
    "explain {it}",
    "pivot ({it}) on a using count(*)",
)


@dataclass(frozen=True, slots=True)
class Trap:
    """A table, files and an environment variable that contain a canary, and a socket that records connections."""

    table: Table
    folder: Path
    socket: socket.socket
    names: tuple[str, ...]
    untouched: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    def state(self) -> dict[str, tuple[int, int, int]]:
        """Return the files in the folder, the table and the working directory."""
        seen = {str(path): path.stat() for path in self.folder.rglob("*") if path.is_file()}
        return {name: (each.st_ino, each.st_size, each.st_mtime_ns) for name, each in seen.items()}

    def nobody_connected(self) -> bool:
        try:
            self.socket.accept()[0].close()
        except BlockingIOError:
            return True
        return False


@pytest.fixture(scope="module")
def trap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trap]:
    folder = tmp_path_factory.mktemp("trap")
    here = folder / "here"
    (here / ".tmp").mkdir(parents=True)
    for name in ("canary.csv", "canary.txt", "canary.json", ".tmp/canary.csv"):
        (here / name).write_text(f'{{"{CANARY}": 1}}\n')
    pq.write_table(pa.table({CANARY: [CANARY]}), here / "canary.parquet")
    table = Table.create(str(folder / "t"), pa.schema([("a", pa.int64()), ("s", pa.string())]))
    table.append([{"a": each, "s": "row"} for each in range(3)])
    (split,) = (table.store.local_path(add) for add in table.snapshot.splits)
    with socket.socket() as heard, pytest.MonkeyPatch.context() as patch:
        heard.bind(("127.0.0.1", 0))
        heard.listen()
        heard.setblocking(False)
        patch.chdir(here)
        patch.setenv("CANARY", CANARY)
        url = f"http://127.0.0.1:{heard.getsockname()[1]}/canary.parquet"
        files = (*(str(path) for path in here.rglob("canary*")), "canary.csv", ".tmp/canary.csv", "*", str(split))
        made = Trap(table, folder, heard, (*files, "new.file", str(here / ".tmp" / "new.file"), url, "CANARY"))
        yield replace(made, untouched=made.state())


def functions() -> list[str]:
    with session() as connection:
        found = connection.execute("SELECT DISTINCT function_name FROM duckdb_functions() ORDER BY ALL").fetchall()
    return [name for (name,) in found if name.isidentifier()] + ["getenv", "read_xlsx", "st_read", "http_get"]


FUNCTIONS = functions()
REACHING = [
    each for each in FUNCTIONS if each.startswith(("read_", "parquet", "duckdb_", "query", "json_", "get", "pg_"))
]


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@st.composite
def calls(draw: st.DrawFn, names: tuple[str, ...]) -> str:
    argument = st.sampled_from([*map(quoted, names), "a", "s", "1", "'select 1'", "t", "[1]", "null", "*", "'sum'"])
    given = draw(st.lists(argument, max_size=3))
    name = draw(st.sampled_from(REACHING) | st.sampled_from(REACHING) | st.sampled_from(FUNCTIONS))
    form = draw(st.sampled_from(["{0}({1})", '"{0}"({1})', "main.{0}({1})", "system.main.{0}({1})", "{0}(({1}))"]))
    as_method: bool = draw(st.booleans())
    if given and as_method:
        return f"{given[0]}.{name}({', '.join(given[1:])})"
    return form.format(name, ", ".join(given))


@st.composite
def statements(draw: st.DrawFn, names: tuple[str, ...], depth: int = 2) -> str:
    path = quoted(draw(st.sampled_from(names)))
    it = draw(st.sampled_from(STATEMENTS)).format(path=path, canary=CANARY)
    for _ in range(draw(st.integers(0, depth))):
        serialized = '{"error":false,"statements":[{"node":{"type":"COPY_QUERY_NODE"}}]}'
        it = draw(st.sampled_from(AROUND)).format(it=it, text=quoted(it), serialized=quoted(serialized))
    return it


def must_be_confined(trap: Trap, text: str) -> None:
    try:
        answer = str(trap.table.sql(text, limits=LIMITS).to_pylist())
    except (InvalidInput, Unavailable) as error:
        answer = str(error.__cause__ or "")
    assert CANARY not in answer.replace(text, ""), text
    assert trap.state() == trap.untouched, text
    assert trap.nobody_connected(), text


@settings(max_examples=scaled(750), deadline=None)
@given(data=st.data())
def test_no_function_in_any_place_of_a_query_reaches_out(trap: Trap, data: st.DataObject) -> None:
    call = data.draw(calls(trap.names))
    must_be_confined(trap, data.draw(st.sampled_from(PLACES)).format(call=call))


@settings(max_examples=scaled(1750), deadline=None)
@given(data=st.data())
def test_no_statement_inside_another_reaches_out(trap: Trap, data: st.DataObject) -> None:
    must_be_confined(trap, data.draw(statements(trap.names)).replace(CANARY, "written"))


def test_every_function_of_the_engine_is_tried_with_a_file_and_with_a_canary(trap: Trap) -> None:
    for name in FUNCTIONS:
        for text in (f"select {name}('CANARY')", f"select * from {name}('canary.parquet')"):
            try:
                check(parse(text), text, tables=["t"])
            except InvalidInput:
                continue  # only functions that are not refused are run
            must_be_confined(trap, text)


def test_the_trap_notices(trap: Trap) -> None:
    """As a control, a DuckDB session without confinement reads the secret texts (canaries)."""
    import duckdb  # only used here

    with duckdb.connect() as connection:
        assert CANARY in str(connection.sql("select * from read_text('canary.txt')").fetchall())
        connection.sql("with x as (copy (select 1) to 'noticed.csv') from x").fetchall()
        assert trap.state() != trap.untouched
    Path("noticed.csv").unlink()
    with socket.create_connection(trap.socket.getsockname()):
        assert not trap.nobody_connected()
    with pytest.raises(TidemarkError):
        trap.table.sql("select * from read_text('canary.txt')")
