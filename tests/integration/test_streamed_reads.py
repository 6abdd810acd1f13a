"""Reads from a remote store are streams: bounded in memory, stoppable at any moment, and never silently truncated."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from uuid import uuid4

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.base.errors import Corrupt, SnapshotExpired, Unavailable
from storage_core.engine.sandbox import process, result
from storage_core.engine.sandbox.process import Kind, Query, Relation, Rows, receive
from storage_core.engine.sandbox.result import Feeds, Result
from storage_core.store.contract import Overwrite
from storage_core.store.memory import MemoryStore
from tests.support.scale import scaled
from tidemark import QueryLimits, Table

SCHEMA = pa.schema([("a", pa.int64()), ("s", pa.string())])
SPLITS, ROWS = 24, 4_000
MANY = 1 << 30  # rows of an endless stream


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Check that no reading thread, no running query process and no open file is left."""
    process.end_all()
    files = open_files()
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("tidemark-"):
            thread.join(60)
            assert not thread.is_alive(), thread.name
    process.end_all()
    assert open_files() <= files


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    """Make a table of many splits. A query opens only the first splits."""
    monkeypatch.setattr(result, "HELD_BYTES", 1)
    made = Table.create(f"memory://{uuid4()}", SCHEMA)
    for split in range(SPLITS):
        rows = range(split * ROWS, (split + 1) * ROWS)
        made.append(pa.table([pa.array(rows), [f"row {each} ".ljust(200, ".") for each in rows]], schema=SCHEMA))
    return made


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def readings() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "tidemark-rows"]


def endless(batch_rows: int = 1_000) -> Generator[pa.RecordBatch]:
    for first in range(0, MANY, batch_rows):
        yield pa.record_batch([pa.array(range(first, first + batch_rows)), ["x" * 100] * batch_rows], schema=SCHEMA)


def first(batches: int) -> Generator[pa.RecordBatch]:
    yield from islice(endless(), batches)


def asked(read: Callable[[], Generator[pa.RecordBatch]], text: str, seconds: float = 300) -> Result:
    """Run a query over rows from this function."""
    relation = Relation(rows={}, streams={"t": Rows(SCHEMA, read)})
    limits = {"memory_bytes": 2**30, "spill_bytes": 0}
    return Result(Query(text=text, relation=relation, seconds=seconds, batch_rows=1_000, **limits))


QUERIES = (
    "from t order by a, s",
    "select a % 3 as g, count(*) as n, min(s) as low from t group by g order by g",
    "select count(*) as n from t, t as u where t.a = u.a and t.s < u.s",
    "select * from (from t union all from t) order by all",
    "with x as (select a from t where a > 1) select (select count(*) from x) as n, (select max(a) from x) as m",
    "with x as not materialized (from t) select count(*) as n from x join x as y using (a)",
    "with recursive r(n) as (select 0 union all select r.n + 1 from r, (select min(a) as m from t) where n < 3) from r",
    "select a from t where a = (select max(a) from t as u where u.s = t.s) order by a",
    "select a, (select count(*) from t as u where u.a < t.a) as n from t order by all",
    "select count(*) as n from t where exists (select 1 from t as u where u.a = t.a + 1)",
    "select a, row_number() over (partition by s order by a) as n from t order by all",
)
VALUES = st.fixed_dictionaries({"a": st.none() | st.integers(0, 5), "s": st.sampled_from([None, "x", "y"])})


@settings(max_examples=scaled(6), deadline=None)
@given(
    groups=st.lists(st.lists(VALUES, min_size=1, max_size=6), min_size=1, max_size=4), held=st.sampled_from([0, 2**25])
)
def test_a_table_that_is_named_several_times_answers_as_one_in_memory(
    groups: list[list[dict[str, object]]], held: int
) -> None:
    made = Table.create(f"memory://{uuid4()}", SCHEMA)
    rows = [pa.Table.from_pylist(each, schema=SCHEMA) for each in groups]
    for each in rows:
        made.append(each)
    with duckdb.connect() as plain, pytest.MonkeyPatch.context() as patch:
        patch.setattr(result, "HELD_BYTES", held)
        plain.register("t", pa.concat_tables(rows))
        for text in QUERIES:
            assert made.sql(text).to_pylist() == plain.sql(text).to_arrow_table().to_pylist(), text
        assert made.sql("from t").to_pylist() == made.scan().to_arrow().to_pylist()


def test_rows_come_in_the_order_of_their_splits(table: Table) -> None:
    numbers = [row.as_py() for batch in table.scan(["a"]).to_reader() for row in batch.column(0)]
    assert sorted(numbers) == list(range(SPLITS * ROWS))
    assert table.sql("select a from t").column("a").to_pylist() == numbers
    assert table.scan(["a"], filter="length(s) = 200").to_arrow().column("a").to_pylist() == numbers
    even = table.scan(["a"], filter="a % 2 = 0").to_reader().read_all().column("a").to_pylist()
    assert even == [each for each in numbers if each % 2 == 0]


def test_what_is_small_is_fetched_once_however_often_it_is_read(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "select count(*) as n from t, t as u, t as v where t.a = u.a and u.a = v.a"
    fetched = []
    for held in (2**25, 1):
        monkeypatch.setattr(result, "HELD_BYTES", held)
        before = table.store.requests["get"]
        assert table.sql(text).to_pylist() == [{"n": SPLITS * ROWS}]
        fetched.append(table.store.requests["get"] - before)
    assert fetched == [SPLITS, 3 * SPLITS]


def test_of_a_filtered_scan_the_columns_of_filter_and_answer_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage_core.split.read.SMALL_SPLIT_BYTES", 1)
    rows = pa.table({name: [f"{name} {each * 7919 % 1000}" for each in range(1000)] for name in "abcdefgh"})
    table = Table.create(f"memory://{uuid4()}", rows.schema)
    table.append(rows)
    table.sql("select max(a) from t")  # its footer
    one = table.store.bytes_read
    assert table.scan(["a"]).to_arrow().num_rows == 1000
    one = table.store.bytes_read - one
    for filter_, columns in (("b > ''", 2), ("length(a) > 0", 1), ("b || c > ''", 3), ("t::varchar > ''", 8)):
        before = table.store.bytes_read
        assert table.scan(["a"], filter=filter_).to_arrow().column_names == ["a"]
        assert columns - 0.5 < (table.store.bytes_read - before) / one < columns + 0.5, filter_


GIVEN_UP: dict[str, Callable[[Table], object]] = {
    "a limit": lambda table: table.sql("from t limit 10"),
    "a closed answer": lambda table: table.sql("select s, unnest(range(100)) as n from t").close(),
    "a stream that is forgotten": lambda table: next(table.scan(filter="a >= 0").to_reader(10)),
    "a plain stream that is forgotten": lambda table: next(table.scan().to_reader(10)),
    "an error of the query": lambda table: table.sql("select (s || a)::int from t"),
    "too little time": lambda table: table.sql(
        "select max(levenshtein(repeat(s, 1000), repeat(s, 1000) || a)) from t", limits=QueryLimits(seconds=0.5)
    ),
}


@pytest.mark.parametrize("how", GIVEN_UP)
def test_whoever_stops_early_stops_the_reading(table: Table, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    rows = table.scan(filter=f"a < {ROWS}").to_arrow()
    for _ in range(2 * SPLITS):  # a query prefetches about as many rows as the table has
        table.append(rows)
    fetched, given_up = set[str](), threading.Event()
    get = MemoryStore.get

    def held_up(store: MemoryStore, key: str) -> object:
        if key.startswith("splits/"):
            fetched.add(key)
            assert len(fetched) <= 2 * SPLITS or given_up.wait(60)  # independent of the speed of the machine
        return get(store, key)

    monkeypatch.setattr(MemoryStore, "get", held_up)
    monkeypatch.setattr("storage_core.read.fetching.SPLITS_AT_ONCE", 2)
    with suppress(Exception):
        GIVEN_UP[how](table)
    given_up.set()
    for each in readings():
        each.join(60)
    assert readings() == []
    assert len(fetched) < 3 * SPLITS


def test_a_stream_without_end_is_read_as_far_as_it_is_wanted() -> None:
    with asked(endless, "from t limit 2500") as answer:
        assert sum(batch.num_rows for batch in answer) == 2500
    with asked(endless, "from t") as answer:
        assert next(answer).column("a")[0].as_py() == 0
        assert len(readings()) == 1
    with pytest.raises(process.OutOfTime):
        list(asked(endless, "select count(*) from t", seconds=0.5))


@pytest.mark.parametrize(
    "stream",
    [
        "table.scan(filter='a >= 0').to_reader()",
        "table.scan(filter='a >= 0').fetch_batches(10)",
        "table.scan().to_reader(10)",
        "table.sql('select a, repeat(s, 300) as s from t').to_reader()",
    ],
)
@pytest.mark.parametrize("then", ["", "next(stream)"])
def test_a_program_that_ends_in_mid_stream_says_nothing(tmp_path: Path, stream: str, then: str) -> None:
    made = Table.create(str(tmp_path / "t"), SCHEMA)
    made.append(pa.table([pa.array(range(100_000)), ["row"] * 100_000], schema=SCHEMA))
    program = f"import tidemark\ntable = tidemark.Table.open({made.uri!r})\nstream = {stream}\n{then}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_process_that_is_killed_ends_the_reading() -> None:
    with asked(endless, "from t") as answer:
        next(answer)
        assert answer._sandbox is not None
        answer._sandbox._process.kill()
        with pytest.raises(process.SandboxEnded):
            list(answer)


def test_ctrl_c_ends_the_reading() -> None:
    def interrupted() -> Generator[pa.RecordBatch]:
        for number, batch in enumerate(endless()):
            if number == 100:
                os.kill(os.getpid(), signal.SIGINT)
            yield batch

    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(asked(interrupted, "select count(*) from t"))
    finally:
        signal.signal(signal.SIGINT, ignored)


WITH_A_STREAM_OPEN = """
import sys, threading
from storage_core.engine.sandbox import result
from tests.integration.test_streamed_reads import asked, endless
result.HELD_BYTES = 1
stream = asked(endless, "from t")
next(stream)
{then}
sys.exit(10)
"""
THREADS_STAND_STILL = """
held = threading.Event()
def hold():
    with stream._feeds._lock:
        held.set()
        threading.Event().wait()
threading.Thread(target=hold, daemon=True).start()
held.wait()
"""


@pytest.mark.parametrize("then", ["", THREADS_STAND_STILL], ids=["at any time", "while a thread holds the lock"])
def test_a_process_ends_with_a_stream_open(then: str) -> None:
    program = WITH_A_STREAM_OPEN.format(then=then)
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=120).returncode == 10


def test_a_copy_of_the_process_leaves_the_reading_alone() -> None:
    with asked(lambda: first(500), "from t") as answer:
        next(answer)
        copy = os.fork()
        if copy == 0:
            answer.close()
            os._exit(0)
        assert os.waitpid(copy, 0)[1] == 0
        assert sum(batch.num_rows for batch in answer) == 499_000


ERRORS = (Corrupt("x: damaged"), SnapshotExpired("x: gone"), Unavailable("x: away"), OSError(5, "x"))


@pytest.mark.parametrize("held", [1, 2**25])
@pytest.mark.parametrize("text", ["select count(*) from t", "select count(*) from t, t as u where t.a = u.a", "from t"])
def test_an_error_of_the_rows_is_the_error_of_the_query(monkeypatch: pytest.MonkeyPatch, held: int, text: str) -> None:
    monkeypatch.setattr(result, "HELD_BYTES", held)
    for error in ERRORS:

        def failing(error: Exception = error) -> Generator[pa.RecordBatch]:
            yield from islice(endless(), 50)
            raise error

        with pytest.raises(type(error)) as raised:
            list(asked(failing, text))
        assert raised.value is error


@pytest.mark.parametrize(
    "read", [lambda t: t.sql("select max(s) from t"), lambda t: t.scan(filter="a >= 0").to_arrow()]
)
@pytest.mark.parametrize("place", [0, SPLITS // 2, SPLITS - 1])
def test_a_damaged_split_is_named_wherever_it_comes(table: Table, read: Callable[[Table], object], place: int) -> None:
    path = list(table.snapshot.splits)[place]
    data = bytearray(table.store.get(path).data)
    data[len(data) // 2] ^= 1
    table.store.put(path, bytes(data), Overwrite())
    with pytest.raises(Corrupt, match=f"{path}: expected xxh3-64"):
        read(table)
    table.store.delete([path])
    with pytest.raises(SnapshotExpired, match=path):
        read(table)


def test_rows_that_end_without_an_end_are_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """An Arrow stream can stop between two batches. A truncated stream must not look complete."""
    sent = result._sent

    def without_end(to: socket.socket, kind: Kind, content: bytes | pa.Buffer = b"") -> bool:
        return kind is not Kind.END and sent(to, kind, content)

    monkeypatch.setattr(result, "_sent", without_end)
    with pytest.raises(duckdb.Error, match="EOFError"):
        list(asked(lambda: first(5), "select count(*) from t"))


def test_a_reading_takes_nothing_from_the_process_that_reads() -> None:
    with open_feeds() as (opened, theirs):
        theirs.settimeout(60)
        with pytest.raises(BrokenPipeError):
            theirs.sendall(bytes(2**20))
        assert receive(theirs).kind is Kind.ROWS
        opened.close()
        with pytest.raises((EOFError, ConnectionError)):
            taken(theirs)


def taken(rows: socket.socket) -> None:
    while receive(rows).kind is Kind.ROWS:
        pass


@contextmanager
def open_feeds() -> Iterator[tuple[Feeds, socket.socket]]:
    opened = Feeds([Rows(SCHEMA, endless)])
    with opened.opened(0) as theirs:
        yield opened, theirs
    opened.close()


def test_few_readings_are_open_at_a_time() -> None:
    with open_feeds() as (opened, _):
        others = [opened.opened(0) for _ in range(result.MOST_READINGS - 1)]
        with pytest.raises(Unavailable, match=r"places at a time\. Divide it into several queries"):
            opened.opened(0)
        for number in (1, -1, 2**40):
            with pytest.raises(IndexError):
                opened.opened(number)
        for each in others:
            each.close()


HOSTILE = """
import socket, sys, time
sys.path[:] = sys.argv[3:]
from storage_core.engine.sandbox.process import Kind, receive, send
caller = socket.socket(fileno=int(sys.argv[1]))
receive(caller)
send(caller, Kind.BEGUN)
{does}
time.sleep(600)
"""
NONSENSE = {
    "rows that the query does not read": "send(caller, Kind.READ, (7).to_bytes(8, 'big'))",
    "no number": "send(caller, Kind.READ, b'')\nreceive(caller)\nsend(caller, Kind.READ, b'\\xff' * 8)",
    "a query": "send(caller, Kind.QUERY, b'select 1')",
    "a reading": "send(caller, Kind.READING)",
    "begun twice": "send(caller, Kind.BEGUN)",
}


@pytest.mark.parametrize("does", NONSENSE)
def test_a_process_that_asks_for_what_is_not_its_own_is_ended(monkeypatch: pytest.MonkeyPatch, does: str) -> None:
    monkeypatch.setattr(process, "_PROGRAM", HOSTILE.format(does=NONSENSE[does]))
    with pytest.raises(process.SandboxEnded, match="the process sent invalid data"):
        list(asked(endless, "from t"))


def test_a_process_that_asks_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    many = "while True: send(caller, Kind.READ, bytes(8)); receive(caller)"
    monkeypatch.setattr(process, "_PROGRAM", HOSTILE.format(does=many))
    with pytest.raises(Unavailable, match="Divide it into several queries"):
        list(asked(endless, "from t"))


def test_the_session_of_streams_is_kept_and_reads_the_rows_of_each_query() -> None:
    for batches in (1, 3):
        with asked(partial(first, batches), "select count(*) as n from t") as answer:
            assert pa.Table.from_batches(answer).to_pylist() == [{"n": 1_000 * batches}]
