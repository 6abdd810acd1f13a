"""The state that a table caches between searches changes no answer, even if the table changes between two searches."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core.base.errors import Corrupt, SnapshotExpired
from storage_core.index.text_files import Searcher, open_searcher
from storage_core.read.search import search_cache
from storage_core.read.search.search_cache import SearchCache, Searchers
from storage_core.store.contract import Overwrite
from storage_core.store.pieces import KeptValues
from tests.support import upkeep
from tests.support.deleted_rows import delete_where
from tidemark import Table

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string()), ("head", pa.string())])
INDEXES = [
    {"name": "words", "kind": "fulltext", "columns": ["text"]},
    {"name": "heads", "kind": "fulltext", "columns": ["head"]},
]
WORDS = ("ebb", "tide", "flood", "harbour", "wave")
FOLDERS = "tidemark-searchers-*"


def rows_of(first: int, count: int) -> list[dict[str, object]]:
    return [
        {"id": each, "text": " ".join(WORDS[each % 3 : each % 5 + 1]), "head": WORDS[each % 5]}
        for each in range(first, first + count)
    ]


@pytest.fixture(autouse=True)
def _own_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Make a table of three splits. Only the first split is indexed."""
    made = Table.create(str(tmp_path / "t"), SCHEMA, indexes=INDEXES)
    made.append(rows_of(0, 40))
    upkeep.catch_up(made)
    for first in (40, 80):
        made.append(rows_of(first, 40))
    return Table.open(made.uri)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of parts of each opened searcher."""
    noted = list[int]()

    def noting(directories: Sequence[Path], *rest: Any) -> Searcher:
        noted.append(len(directories))
        return open_searcher(directories, *rest)

    monkeypatch.setattr(search_cache, "open_searcher", noting)
    return noted


def found(table: Table, **wanted: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.search("ebb tide", index="words", limit=500, **wanted).to_pylist()
    return rows


def fresh(table: Table, **wanted: Any) -> list[dict[str, Any]]:
    return found(Table.open(table.uri), **wanted)


def bounded(table: Table, kept_bytes: int) -> Table:
    table._kept = SearchCache(searchers=Searchers(kept_bytes), values=KeptValues(kept_bytes))
    return table


def copies(tmp_path: Path) -> list[str]:
    return sorted(str(each) for each in (tmp_path / "scratch").glob(f"{FOLDERS}/*"))


def test_a_second_search_opens_and_fetches_nothing(table: Table, opened: list[int], tmp_path: Path) -> None:
    first = found(table, cache_dir=tmp_path / "cache")
    requests = dict(table.store.requests)
    assert found(table, cache_dir=tmp_path / "cache") == first
    assert table.search("flood", index="words", limit=3).num_rows == 3
    assert (opened, dict(table.store.requests)) == ([3], requests)


def test_what_is_new_is_added_to_what_is_kept(table: Table, opened: list[int], tmp_path: Path) -> None:
    found(table)
    before = copies(tmp_path)
    table.append(rows_of(120, 40))
    assert found(table) == fresh(table)
    assert len(copies(tmp_path)) == 4
    assert set(before) < set(copies(tmp_path))
    assert opened[:2] == [3, 4]


STEPS: dict[str, Callable[[Table], object]] = {
    "append": lambda table: table.append(rows_of(200, 30)),
    "catch up": upkeep.catch_up,
    "delete": lambda table: delete_where(table.log, lambda row: row["id"] % 7 == 3),
    "compact": upkeep.compact,
    "catch up again": upkeep.catch_up,
    "delete more": lambda table: delete_where(table.log, lambda row: row["id"] % 4 == 1),
}


@pytest.mark.parametrize("kept_bytes", [0, 40_000, 2**30])
def test_answers_are_those_of_a_table_that_was_just_opened(table: Table, kept_bytes: int) -> None:
    bounded(table, kept_bytes)
    old = found(table)
    version = table.version
    for take in STEPS.values():
        take(Table.open(table.uri))
        table.refresh()
        assert found(table) == fresh(table)
        assert found(table, at=version) == old


def test_answers_of_a_keyed_table_are_those_of_every_moment(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "k"), SCHEMA, primary_key="id", indexes=INDEXES)
    with table.writer() as writer:
        for step, take in enumerate([writer.flush, lambda: upkeep.merge(table), writer.flush, lambda: None] * 2):
            for row in rows_of(step * 10, 15):
                writer.put(row)
            writer.patch({"id": step * 10, "text": "ebb ebb tide"})
            writer.delete((step * 10 + 1,))
            take()
            for level in ("latest", "committed", "latest"):
                assert found(table, consistency=level) == fresh(table, consistency=level)


@pytest.mark.parametrize("kept_bytes", [0, 100_000])
def test_copies_are_bounded_and_go_with_the_table(table: Table, tmp_path: Path, kept_bytes: int) -> None:
    other = bounded(Table.open(table.uri), kept_bytes)
    for _ in range(3):
        other.append(rows_of(500, 20))
        for index in ("words", "heads"):
            other.search("ebb", index=index)
            held = sum(each.stat().st_size for each in (tmp_path / "scratch").glob(f"{FOLDERS}/*/*"))
            assert held <= kept_bytes
    del other
    gc.collect()
    assert list((tmp_path / "scratch").iterdir()) == []


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("harm", [cut, flip, Path.unlink])
def test_what_becomes_of_the_cache_does_not_matter_to_what_is_open(
    table: Table, tmp_path: Path, harm: Callable[[Path], object]
) -> None:
    expected = found(table, cache_dir=tmp_path / "cache")
    for path in sorted((tmp_path / "cache").glob("*/*")):
        harm(path)
    for query in ("ebb tide", "flood", '"ebb tide"', "NOT wave"):
        table.search(query, index="words", cache_dir=tmp_path / "cache")
    assert found(table, cache_dir=tmp_path / "cache") == expected
    shutil.rmtree(tmp_path / "cache")
    assert found(table, cache_dir=tmp_path / "cache") == expected


def test_a_split_that_is_damaged_or_gone_is_noticed_by_the_next_search(table: Table) -> None:
    found(table)
    path = min(table.snapshot.splits)
    data = table.store.get(path).data
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    table.store.put(path, bytes(flipped), Overwrite())
    with pytest.raises(Corrupt, match="expected xxh3-64"):
        found(table)
    table.store.put(path, data, Overwrite())
    assert len(found(table)) == len(fresh(table))
    table.store.delete([path])
    with pytest.raises(SnapshotExpired):
        found(table)


def test_threads_share_what_is_kept(table: Table) -> None:
    bounded(table, 60_000)
    queries = [(word, index) for word in WORDS for index in ("words", "heads")]
    expected = {each: table.search(each[0], index=each[1]) for each in queries}
    wrong = list[object]()

    def ask(start: int) -> None:
        for number in range(20):
            word, index = queries[(start + number * 3) % len(queries)]
            answer = table.search(word, index=index)
            if answer != expected[word, index]:
                wrong.append((word, index, answer))

    threads = [threading.Thread(target=ask, args=(start,)) for start in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert wrong == []


def test_a_copy_of_the_process_by_fork_opens_its_own(table: Table, tmp_path: Path) -> None:
    expected, before = found(table), copies(tmp_path)
    assert table._kept is not None
    with table._kept.searchers._opening:
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if found(table) == expected else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert set(before) <= set(copies(tmp_path))
    assert found(table) == expected
