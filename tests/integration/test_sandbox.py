"""Tests of the query processes.

The tests cover how query processes end, how much memory they use, and which files they leave. The tests also cover a
call that never ends.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from storage_core.base.errors import InvalidInput, Unavailable
from storage_core.engine.sandbox import process, result
from storage_core.engine.sandbox.process import Query, Relation, Sandbox
from storage_core.engine.sandbox.worker import Sessions
from tidemark import QueryLimits, Scan, Table, col

SCHEMA = pa.schema([("a", pa.int64()), ("s", pa.string()), ("l", pa.list_(pa.int64()))])
HOURS = "levenshtein(repeat('ab', 200000), repeat('ba', 200000) || a)"
SHORT = QueryLimits(seconds=0.3)
FORMS: dict[str, Callable[[Table], object]] = {
    "sql": lambda table: table.sql(f"select count(*) from t where {HOURS} > 5", limits=SHORT),
    "arrow": lambda table: table.scan(filter=f"{HOURS} > 5", limits=SHORT).to_arrow(),
    "stream": lambda table: table.scan(filter=f"{HOURS} > 5", limits=SHORT).to_reader().read_all(),
}


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    """Make a table of ten rows, and end all earlier query processes."""
    process.end_all()
    made = Table.create(str(tmp_path / "t"), SCHEMA)
    made.append([{"a": each, "s": f"row {each}", "l": [each, 1]} for each in range(10)])
    yield made
    process.end_all()


def children() -> list[int]:
    """Return the current query processes of this process."""
    found = [each for path in Path("/proc/self/task").glob("*/children") for each in path.read_text().split()]
    return [int(each) for each in found if b"sandbox.worker" in Path(f"/proc/{each}/cmdline").read_bytes()]


def answered(table: Table) -> bool:
    return bool(table.sql("select count(*) as n from t").to_pylist() == [{"n": 10}])


@pytest.mark.parametrize("form", FORMS)
def test_a_call_that_takes_hours_ends_with_its_time(table: Table, form: str) -> None:
    before = children()
    with pytest.raises(Unavailable, match=r"longer than 0.3 seconds. Query less data, or raise `seconds`"):
        FORMS[form](table)
    assert children() == before
    assert answered(table)


ASKS_FOR_MUCH = """
import resource, sys
import tidemark as tm
try:
    tm.Table.open(sys.argv[1]).sql(sys.argv[2], limits=tm.QueryLimits(seconds=60, memory_bytes=64 * 2**20))
except tm.errors.Unavailable as error:
    print(repr(str(error)))
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.parametrize(
    "text",
    [
        "select max(length(repeat(s, 500000000))) from t",
        "select list_reduce(range(0, 40), lambda x, y: x || x, 'x') from t",
        "select damerau_levenshtein(repeat('ab', 100000), repeat('ba', 100000)) from t",
        "select json_pretty(repeat('[', 20000) || repeat(']', 20000)) from t",
    ],
)
def test_the_memory_of_one_call_is_bounded(table: Table, text: str) -> None:
    command = [sys.executable, "-c", ASKS_FOR_MUCH, table.uri, text]
    asking = subprocess.run(command, capture_output=True, text=True, check=False)
    error, most = asking.stdout.splitlines()
    assert "memory_bytes` = 67108864" in error, asking.stderr
    assert int(most) * 1024 < 2**30


def test_a_process_is_kept_for_the_next_query(table: Table) -> None:
    assert answered(table)
    (first,) = children()
    assert answered(table)
    assert children() == [first]
    assert table.scan(filter=col("a") > 5).to_arrow().num_rows == 4
    assert children() == [first]


def test_as_many_processes_as_queries_at_a_time_and_few_are_kept(table: Table) -> None:
    count = process.MOST_KEPT + 2
    streams = [table.scan(filter="a > 3").to_reader(2) for _ in range(count)]
    assert [next(each).num_rows for each in streams] == [2] * count
    assert len(children()) == count
    assert [sum(batch.num_rows for batch in each) for each in streams] == [4] * count
    assert len(children()) == process.MOST_KEPT


def test_a_stream_that_is_given_up_ends_its_process(table: Table) -> None:
    begun, unread = table.scan(filter="a > 3").to_reader(2), table.scan(filter="a > 3").to_reader(2)
    next(begun)
    assert len(children()) == 2
    del begun, unread
    assert children() == []


def test_a_kept_process_that_was_killed_is_not_asked(table: Table) -> None:
    assert answered(table)
    (first,) = children()
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert answered(table)
    assert first not in children()


def test_a_process_that_is_killed_at_work_is_no_answer(table: Table) -> None:
    table.append([{"a": 10, "s": "x" * 2**24, "l": []}])  # this row is larger than the buffer of a socket
    stream = table.scan(filter="a > 3").to_reader(2)
    (at_work,) = children()
    os.kill(at_work, signal.SIGKILL)
    with pytest.raises(Unavailable, match=r"the process of the query ended \(signal 9\)"):
        stream.read_all()
    assert table.sql("select max(a) as a from t").to_pylist() == [{"a": 10}]


def test_ctrl_c_ends_a_query_and_its_process(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, receive = threading.Event(), process.receive_in_time

    def noted(source: socket.socket, *, until: float, most: int) -> process.Message:
        message = receive(source, until=until, most=most)
        begun.set()
        return message

    def interrupt() -> None:
        begun.wait()
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(process, "receive_in_time", noted)
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore SIGINT for background processes
    try:
        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            table.sql(f"select max({HOURS}) from t")
    finally:
        signal.signal(signal.SIGINT, ignored)
    assert children() == []


ASKS_FOR_HOURS = f"""
import os, sys
from storage_core.engine.sandbox import process
from tidemark import Table
receive = process.receive_in_time
def told(source, **bounds):
    message = receive(source, **bounds)
    (child,) = open(f"/proc/self/task/{{os.getpid()}}/children").read().split()
    print(child, flush=True)
    return message
process.receive_in_time = told
Table.open(sys.argv[1]).sql("select max({HOURS}) from t")
"""


def test_the_process_of_a_query_ends_with_the_one_that_asked(table: Table) -> None:
    command = [sys.executable, "-c", ASKS_FOR_HOURS, table.uri]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as asking:
        assert asking.stdout is not None
        child = os.pidfd_open(int(asking.stdout.readline()))
        asking.kill()
    assert select.select([child], [], [], 60)[0], "it runs on"
    os.close(child)


def test_a_copy_of_the_process_asks_processes_of_its_own(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert answered(table)
    (ours,) = children()
    stream = table.scan(filter="a > 3").to_reader(2)
    next(stream)
    folders = set(tmp_path.glob("tidemark-spill-*"))
    copy = os.fork()
    if copy == 0:
        sound = answered(table) and ours not in children()
        process.end_all()
        os._exit(0 if sound else 1)
    assert os.waitpid(copy, 0)[1] == 0
    assert len(folders) == 1
    assert folders == set(tmp_path.glob("tidemark-spill-*"))
    assert sum(batch.num_rows for batch in stream) == 4
    assert answered(table)


def test_a_process_of_queries_has_no_environment_and_no_open_file_of_ours(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a secret")
    kept = (tmp_path / "ours").open("w")
    os.set_inheritable(kept.fileno(), True)
    assert answered(table)
    (child,) = children()
    assert b"a secret" not in Path(f"/proc/{child}/environ").read_bytes()
    opened = {str(each.readlink()) for each in Path(f"/proc/{child}/fd").iterdir()}
    assert not [each for each in opened if each.startswith(str(tmp_path)) or "ours" in each]
    kept.close()


BESIDE_OTHERS = """
import sys, tidemark as tm
table = tm.Table.open(sys.argv[1])
sys.path.insert(0, sys.argv[2])
print(table.sql("from t").num_rows)
"""


def test_no_folder_of_a_user_takes_the_place_of_ours(table: Table, tmp_path: Path) -> None:
    (tmp_path / "theirs" / "storage_core").mkdir(parents=True)
    (tmp_path / "theirs" / "storage_core" / "__init__.py").write_text("raise SystemExit('theirs')")
    command = [sys.executable, "-c", BESIDE_OTHERS, table.uri, str(tmp_path / "theirs")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "10", done.stderr


ORDINARY = (
    "select max(levenshtein(s, reverse(s))), max(jaro_similarity(s, upper(s))) from t",
    "select list_transform(l, lambda x: s || x) from t",
    "select replace(s, 'row', s), repeat('*', a::int), lpad(s, a::int + 5, '-') from t",
    "select unnest(range(a)), a from t",
    "select generate_series(timestamp '2024-01-01', timestamp '2024-01-03', interval 1 day) from t",
    "select list_reduce(l, lambda x, y: x + y) from t",
    "select to_json(to_json(to_json(to_json(to_json(to_json(s)))))) from t",
    "select damerau_levenshtein(s, 'rwo 1'), json_pretty(to_json(t)) from t",
    "with recursive r(p, n) as (select s, 1 from t union all select repeat(p, 20), n + 1 from r where n < 3) from r",
)


@pytest.mark.parametrize("text", ORDINARY)
def test_an_ordinary_query_is_answered_however_its_functions_grow(table: Table, text: str) -> None:
    with duckdb.connect() as plain:
        plain.execute("set timezone = 'UTC'")
        plain.register("t", table.scan().to_arrow())
        expected = plain.sql(text).to_arrow_table().to_pylist()
    assert sorted(map(str, table.sql(text).to_pylist())) == sorted(map(str, expected))


def test_limits_hold_for_a_scan_that_has_no_filter(table: Table) -> None:
    scan = replace(table.scan(), limits=QueryLimits(memory_bytes=64 * 2**20))
    assert scan.to_arrow().num_rows == 10
    assert len(children()) == 1


def test_a_query_is_answered_from_its_own_version_limits_and_rows(table: Table, tmp_path: Path) -> None:
    """Sessions are cached. Only queries over the same files use a cached session."""
    other = Table.create(str(tmp_path / "other"), SCHEMA)
    other.append([{"a": 100, "s": "other", "l": []}])
    memory = Table.create("memory://kept-sessions", SCHEMA)
    memory.append([{"a": 7, "s": "memory", "l": []}])
    before = table.version
    count = "select count(*) as n, max(a) as a from t"
    small = QueryLimits(memory_bytes=32 * 2**20)
    for added in range(3):
        assert table.sql(count, at=before).to_pylist() == [{"n": 10, "a": 9}]
        assert table.sql(count).to_pylist() == [{"n": 10 + added, "a": 9 if added == 0 else 199 + added}]
        assert other.sql(count).to_pylist() == [{"n": 1, "a": 100}]
        assert memory.sql(count).to_pylist() == [{"n": 1 + added, "a": 7 if added == 0 else 299 + added}]
        with pytest.raises(Unavailable, match="memory_bytes` = 33554432"):
            table.sql("select list(range) from range(100000000)", limits=small)
        table.append([{"a": 200 + added, "s": "more", "l": []}])
        memory.append([{"a": 300 + added, "s": "more", "l": []}])


def test_the_time_of_an_answer_is_one_for_all_of_its_batches(table: Table) -> None:
    slow = "select x from range(3000000) r(x) where levenshtein(sha256(x::varchar), md5(x::varchar)) > 3"
    with pytest.raises(Unavailable, match="longer than 1 seconds"):
        table.sql(slow, limits=QueryLimits(seconds=1))
    with pytest.raises(Unavailable, match="longer than 1 seconds"):
        slow_scan(table).to_arrow()


def slow_scan(table: Table) -> Scan:
    """Return a scan whose batches arrive quickly, but together take longer than the time limit of the scan."""
    rows = pa.table({"a": range(400_000), "s": ["x"] * 400_000, "l": [[]] * 400_000}, schema=SCHEMA)
    table.append(rows)
    return table.scan(filter="length(sha256(repeat(s, 20000 + a::int % 2))) = 64", limits=QueryLimits(seconds=1))


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_kept_process_that_does_not_wake_is_replaced(
    table: Table, monkeypatch: pytest.MonkeyPatch, signal_number: int
) -> None:
    monkeypatch.setattr(process, "_WAKE_SECONDS", 1.0)
    assert answered(table)
    (first,) = children()
    begin, many = Sandbox.begin, ", ".join(["1"] * 9_000)

    def hit(sandbox: Sandbox, query: Query) -> None:  # the sandbox calls `hit` after its check of readiness
        if first in children():
            os.kill(first, signal_number)
        begin(sandbox, query)

    monkeypatch.setattr(Sandbox, "begin", hit)
    assert table.sql(f"select count(*) as n from t where a >= 0 or a in ({many})").to_pylist() == [{"n": 10}]
    assert first not in children()


def test_a_process_that_cannot_start_says_so(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_PROGRAM", "raise SystemExit(3)")
    with pytest.raises(Unavailable, match=r"process of a query did not start \(exit status 3\): check the limits"):
        answered(table)
    monkeypatch.setattr(sys, "executable", None)
    with pytest.raises(Unavailable, match=r"Set sys\.executable"):
        answered(table)


def test_a_stream_is_not_read_in_a_copy_of_the_process(table: Table) -> None:
    stream = table.scan(filter="a > 3").to_reader(2)
    assert next(stream).num_rows == 2
    copy = os.fork()
    if copy == 0:
        try:
            stream.read_all()
        except BaseException as error:  # noqa: BLE001
            os._exit(0 if "belongs to process" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(copy, 0)[1] == 0
    assert stream.read_all().num_rows == 4


WITHOUT_STANDARD_FILES = """
import os, sys
for each in (0, 1, 2):
    os.close(each)
from tidemark import Table
sys.exit(Table.open(sys.argv[1]).sql("from t").num_rows)
"""
IN_A_FOLDER_THAT_IS_GONE = """
import os, sys
from tidemark import Table
table = Table.open(sys.argv[1])
sys.path.insert(0, "")
os.chdir(sys.argv[2])
os.rmdir(sys.argv[2])
sys.exit(table.sql("from t").num_rows)
"""
WITH_A_STREAM_OPEN = """
import sys
from tidemark import Table
stream = Table.open(sys.argv[1]).scan(filter="a > 3").to_reader(2)
next(stream)
sys.exit(10)
"""


@pytest.mark.parametrize("program", [WITHOUT_STANDARD_FILES, IN_A_FOLDER_THAT_IS_GONE, WITH_A_STREAM_OPEN])
def test_a_process_in_an_odd_state_is_answered_and_leaves_nothing(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    scratch, gone = tmp_path / "scratch", tmp_path / "gone"
    scratch.mkdir()
    gone.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    assert subprocess.run([sys.executable, "-c", program, table.uri, str(gone)], check=False).returncode == 10
    assert list(scratch.glob("tidemark-spill-*")) == []


def test_an_answer_that_arrow_cannot_carry_is_refused(table: Table) -> None:
    with pytest.raises(InvalidInput, match="cannot be run"):
        table.sql(f"select {'[' * 64}1{']' * 64} as x")


def test_what_a_sandbox_says_is_not_done_here(tmp_path: Path) -> None:
    """A compromised process can return the name of a function instead of the name of an error."""
    written = tmp_path / "written.csv"
    error = result._raised({"class": "sql", "text": f"COPY (SELECT 1) TO '{written}'"})
    assert isinstance(error, RuntimeError)
    assert not written.exists()


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (b"+" + (2**62).to_bytes(8, "big"), process.BadMessage),
        (b"x" + bytes(8), process.BadMessage),
        (b"+", EOFError),
    ],
)
def test_what_is_no_message_is_told_from_the_end_of_its_sender(said: bytes, found: type[Exception]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(said)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(found):
            process.receive_in_time(ours, until=time.monotonic() + 60, most=2**20)


@pytest.mark.parametrize(
    ("does", "how"),
    [
        ("os.write(int(sys.argv[1]), bytes(9))", "sent invalid data"),
        ("os.close(int(sys.argv[1]))", "closed its"),
    ],
)
def test_a_process_that_lives_and_answers_nothing_is_ended(
    table: Table, monkeypatch: pytest.MonkeyPatch, does: str, how: str
) -> None:
    monkeypatch.setattr(process, "_PROGRAM", f"import os, signal, sys; {does}; signal.pause()")
    monkeypatch.setattr(process, "_WAKE_SECONDS", 1.0)
    with pytest.raises(Unavailable, match=rf"did not start \(the process {how}"):
        answered(table)


def test_sessions_are_kept_for_files_and_not_for_rows_in_memory(tmp_path: Path) -> None:
    sessions, empty = Sessions(tmp_path), pa.table({"a": pa.array([], pa.int64())})

    def has_views(
        rows: pa.Table, seconds: float = 1, memory_mib: int = 64, name: str = "t", lasting: tuple[str, ...] = ()
    ) -> bool:
        relation = Relation(rows={name: rows}, lasting=lasting)
        limits = {"memory_bytes": memory_mib * 2**20, "spill_bytes": 0}
        query = Query(text="", relation=relation, seconds=seconds, batch_rows=1, **limits)
        with sessions.opened(query) as (connection, found):
            if not found:
                relation.bind(connection)
            assert connection.sql(f"from {name}").fetchall() == [(each,) for each in rows["a"].to_pylist()]
            return found

    assert not has_views(empty)
    assert has_views(empty, seconds=2)
    for each in range(4):
        assert not has_views(pa.table({"a": [each]}))
    assert has_views(empty)
    for name in ("u", "v"):
        assert not has_views(empty, name=name)
        assert has_views(empty)
    assert not has_views(empty, memory_mib=128)
    assert [has_views(empty, name=name) for name in ("v", "u")] == [True, False]
    one, other = (pa.table({"a": [each]}) for each in (1, 2))
    for rows, name, is_kept in (
        (one, "one", False),
        (other, "other", False),
        (one, "one", True),
        (other, "other", True),
    ):
        assert has_views(rows, name=name, lasting=(name,)) == is_kept


def test_a_process_with_limits_of_its_own_is_answered_within_them(table: Table) -> None:
    program = f"import sys; sys.argv[1:] = [{table.uri!r}, 'select count(*) as n from t']\n" + ASKS_FOR_MUCH
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_DATA, (3 * 2**30, 3 * 2**30))\n{program}"
    asking = subprocess.run([sys.executable, "-c", limited], capture_output=True, text=True, check=False)
    assert asking.stdout.strip().isdecimal(), asking
