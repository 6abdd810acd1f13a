"""Regression tests for attacks that failed: links, names, pickles and scratch files.

docs/threat-model.md lists further attacks, and names the test files that test these attacks. Sockets and command lines
are tested in `test_neighbours_of_processes.py`.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage_core.base.clock import SystemClock
from storage_core.base.errors import InvalidInput, TidemarkError
from storage_core.data.formats import arrow_files
from storage_core.data.formats.arrow_files import WalEntry
from storage_core.data.formats.keys import validate_table_name
from storage_core.maintain.collect import collect
from storage_core.split.context import context_of
from storage_core.write.ingest.batch import execute, plan
from storage_core.write.ingest.landing import LandingSpec, discover
from tests.support.ids import SeededIds
from tidemark import RawLog, Table

ROOT = Path(__file__).parents[2]
SCHEMA = pa.schema([("a", pa.int64()), ("text", pa.string())])
KEYED = pa.schema([pa.field("k", pa.string(), nullable=False), ("v", pa.int64())])

# Links: a writer of a table's folder cannot make Tidemark read or write elsewhere.


def _moved_out(path: Path, outside: Path) -> Path:
    """Move a file or folder out of the table and leave a link in its location."""
    target = outside / path.name
    shutil.move(path, target)
    path.symlink_to(target, target_is_directory=target.is_dir())
    return target


def _filled(root: Path) -> Table:
    table = Table.create(str(root), SCHEMA)
    table.append([{"a": 1, "text": "one"}])
    return table.refresh()


@pytest.mark.parametrize("place", ["splits", "splits/all", "splits/all/*.parquet"])
def test_a_split_behind_a_link_is_refused_though_its_bytes_are_right(tmp_path: Path, place: str) -> None:
    _filled(tmp_path / "table")
    (linked,) = (tmp_path / "table").glob(place)
    (tmp_path / "outside").mkdir()
    _moved_out(linked, tmp_path / "outside")
    table = Table.open(str(tmp_path / "table"))
    reads: Sequence[Callable[[], object]] = (lambda: table.scan().to_arrow(), lambda: table.sql("select * from t"))
    for read in reads:
        with pytest.raises(InvalidInput, match="symlink"):
            read()


def test_a_log_behind_a_link_is_neither_read_nor_written(tmp_path: Path) -> None:
    table = _filled(tmp_path / "table")
    (tmp_path / "outside").mkdir()
    target = _moved_out(tmp_path / "table" / "_transaction_log", tmp_path / "outside")
    before = sorted(os.listdir(target))
    for call in (lambda: Table.open(str(tmp_path / "table")), lambda: table.append([{"a": 2, "text": "two"}])):
        with pytest.raises(TidemarkError):
            call()
    assert sorted(os.listdir(target)) == before


def test_a_writer_writes_nothing_through_a_link(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "table"), KEYED, primary_key="k")
    (tmp_path / "outside").mkdir()
    (tmp_path / "table" / "_mem_wal").symlink_to(tmp_path / "outside", target_is_directory=True)
    with pytest.raises(InvalidInput, match="symlink"):
        table.append([{"k": "a", "v": 1}])
    assert os.listdir(tmp_path / "outside") == []


def test_the_collector_deletes_nothing_behind_a_link(tmp_path: Path) -> None:
    table = _filled(tmp_path / "table")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "0198c1b2-0000-4000-8000-000000000001.parquet").write_bytes(b"somebody else's")
    (tmp_path / "table" / "splits" / "3600").symlink_to(outside, target_is_directory=True)
    for _ in range(2):
        collect(table.store, table.log, clock=SystemClock(), horizon_ms=0)
    assert [each.read_bytes() for each in outside.iterdir()] == [b"somebody else's"]


# Names of tables, in declarations and in raw logs.

NAMES = [
    "", ".", "..", "../x", "a/../b", "a/b", "/etc", "a\\b", "%2e%2e", "%2e%2e%2fx", "a%2fb", "%", "a\x00b", "a\nb",
    "a\rb", "a\x1b[2Jb", "a\x7fb", "a\u2028b", "a\u202eb", "\ud800", "~", "~root", "-rf", ".hidden", "a b", "é",
    "x" * 300, "a;b", "$(id)", "`id`", "a'b", 'a"b', "a:b", "s3://b/x", "*", "?",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_more_than_a_word_names_no_table(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput):
        validate_table_name(name)
    with RawLog([str(tmp_path / "raw")]) as raw, pytest.raises(InvalidInput):
        raw.append(name, [{"a": 1}])
    assert not [each for each in (tmp_path / "raw").rglob("*") if each.is_file() and "live" in each.parts]


# Pickles: Tidemark never unpickles stored data.


class _Bomb:
    """An object that creates a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.mkdir, (str(self._mark),)


def _armed(mark: Path) -> pa.Schema:
    """Return a schema with pickled code in every form that Arrow or pandas has ever unpickled."""
    bomb = pickle.dumps(_Bomb(mark))
    extension = {b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": bomb}
    field = pa.field("a", pa.int64(), metadata=extension)
    return pa.schema([field, ("text", pa.string())], metadata={b"pandas": bomb, b"pickle": bomb})


def test_the_bomb_of_these_tests_works(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(_Bomb(tmp_path / "mark")))  # noqa: S301  # our own bytes: that they would do harm
    assert (tmp_path / "mark").is_dir()


def test_a_pickle_in_a_landed_file_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "landing").mkdir()
    rows = pa.table({"a": [1], "text": ["x"]}).cast(_armed(tmp_path / "mark"))
    pq.write_table(rows, tmp_path / "landing" / "a.parquet")
    table = Table.create(str(tmp_path / "table"), SCHEMA)
    spec = LandingSpec(uri=str(tmp_path / "landing"), format="parquet")
    for work in plan(table.snapshot, spec, discover(spec), None):
        done = execute(table.store, work, context=context_of(table.snapshot), ids=SeededIds(1), now_ms=1)
        table.log.commit(table.snapshot, done.actions, operation="INGEST")
    assert table.refresh().scan().to_arrow().to_pylist() == [{"a": 1, "text": "x"}]
    assert not (tmp_path / "mark").exists()


def test_a_pickle_in_rows_and_in_a_wal_entry_is_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    rows = pa.table({"a": [1], "text": ["x"]}).cast(_armed(mark))
    Table.create(str(tmp_path / "table"), SCHEMA).append(rows)
    assert Table.open(str(tmp_path / "table")).scan().to_arrow().num_rows == 1
    data = arrow_files.encode_wal_entry(WalEntry(writer_epoch=1, generation=1, writer_id="w", seq=1, records=rows))
    assert arrow_files.decode_wal_entry(data, "entry").records.num_rows == 1
    assert not mark.exists()


def test_no_module_of_the_product_can_unpickle() -> None:
    reaching = re.compile(
        r"^\s*(?:import|from) (?:c?_?pickle|cloudpickle|dill|joblib|marshal|shelve)\b|read_pickle|allow_pickle",
        re.IGNORECASE | re.MULTILINE,
    )
    parts = [ROOT / part for part in ("storage_core", "jobs", "assets", "pipelines")]
    modules = [path for part in parts for path in part.rglob("*.py")]
    assert len(modules) > 200
    assert [path for path in modules if reaching.search(path.read_text(encoding="utf-8"))] == []


# Scratch files: only their owner can read unpacked, spilled or fetched data, under every umask.

SCRATCH = """
import os, sys
from pathlib import Path
here = Path(sys.argv[1])
os.umask(0)
made = {}
def note(event, arguments):
    if event == "os.mkdir" and str(arguments[0]).startswith(str(here / "scratch")):
        made.setdefault(Path(str(arguments[0])), arguments[1])
sys.addaudithook(note)
import pyarrow as pa
from pipelines.cli import main
from tidemark import IndexDefinition, Table
uri = str(here / "table")
table = Table.create(uri, pa.schema([("text", pa.string())]), indexes=[IndexDefinition("words", "fulltext", ("text",))])
table.append([{"text": "one two"}])
assert table.search("one", index="words").num_rows == 1
assert table.search("one", index="words", cache_dir=here / "scratch" / "own").num_rows == 1
assert main(["search", uri, "one", "--index", "words"]) == 0
(here / "rows.ndjson").write_text('{"text": "three"}')
assert main(["append", uri, str(here / "rows.ndjson")]) == 0
table.refresh().log.checkpoint(table.snapshot)
assert Table.open(uri).sql("select count(*) from t").num_rows == 1
private = {place for place, mode in made.items() if not mode & 0o077}
open_to_others = [str(place) for place in made if private.isdisjoint([place, *place.parents])]
print(len(private), open_to_others, file=sys.stderr)
"""


def test_scratch_and_cache_folders_are_their_owners_alone_under_any_umask(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    (scratch / ".cache").mkdir(parents=True)
    environment = {**os.environ, "TMPDIR": str(scratch), "HOME": str(scratch), "PYTHONPATH": str(ROOT)}
    del environment["TIDEMARK_CACHE_MIB"]
    ended = subprocess.run(
        [sys.executable, "-c", SCRATCH, str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    private, _, open_to_others = ended.stderr.splitlines()[-1].partition(" ")
    assert (open_to_others, int(private) >= 3) == ("[]", True)
    assert stat.S_IMODE((scratch / ".cache" / "tidemark").stat().st_mode) == 0o700
