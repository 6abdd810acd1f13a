"""In a search, many rows may have the same score as the last result.

A search with many equal scores costs little more than reading its results.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from storage_core.split import pages
from storage_core.split.encode import ROWS_PER_PAGE
from tests.support.upkeep import catch_up
from tidemark import Table

ROWS, SPLITS = 20_000, 3
WORDS = ("ebb", "tide", "flood")
SCHEMA = pa.schema([("name", pa.string()), ("text", pa.string()), ("more", pa.string())])


def tied(uri: str, step: int = 7919) -> Table:
    """Make a table where each word is in a third of the rows, all with the same score.

    With `step=1` the rows are in ascending order.
    """
    table = Table.create(uri, SCHEMA, indexes=[{"name": "words", "kind": "fulltext", "columns": ["text"]}])
    for split in range(SPLITS):
        numbers = [row * step % ROWS * SPLITS + split for row in range(ROWS)]
        columns = [[f"{each:06}" for each in numbers], [WORDS[each // SPLITS % 3] for each in numbers]]
        table.append(pa.table([*columns, [f"more of {each}" for each in numbers]], schema=SCHEMA))
    catch_up(table)
    return table.refresh()


def names(word: str) -> list[str]:
    return [f"{each:06}" for each in range(ROWS * SPLITS) if WORDS[each // SPLITS % 3] == word]


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, tuple[str, ...]]]:
    """Record the number of rows and the columns of each decoding."""
    noted = list[tuple[int, tuple[str, ...]]]()
    decode = pages._Taking._decoded

    def noting(self: Any, group: int, start: int, stop: int, columns: Sequence[str]) -> pa.Table:
        noted.append((stop - start, tuple(columns)))
        return decode(self, group, start, stop, columns)

    monkeypatch.setattr(pages._Taking, "_decoded", noting)
    return noted


def test_of_tied_rows_the_first_column_is_decoded_once_for_all_queries(
    tmp_path: Path, decoded: list[tuple[int, tuple[str, ...]]]
) -> None:
    table = tied(str(tmp_path / "t"))
    for word in WORDS:
        decoded.clear()
        found = table.search(word, index="words", limit=2, offset=1, cache_dir=tmp_path / "cache")
        assert found.column("name").to_pylist() == names(word)[1:3]
        whole = [each for each in decoded if each == (ROWS, ("name",))]
        assert len(whole) == (SPLITS if word == WORDS[0] else 0)
        # A search decodes single pages only for some candidate rows. These rows may be among the best rows of
        # their split. For each of these rows, a search decodes one page of every column.
        assert sum(len(columns) for rows, columns in decoded if rows <= ROWS_PER_PAGE) <= 3 * SPLITS * len(SCHEMA)
        assert all(rows <= ROWS_PER_PAGE or columns == ("name",) for rows, columns in decoded)
    assert table._kept is not None
    kept = table._kept.values._bytes
    assert kept < 8 * ROWS * SPLITS + 3 * SPLITS * len(WORDS) * ROWS_PER_PAGE * 60


def test_of_tied_rows_those_in_row_groups_behind_the_answer_are_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage_core.split.metadata.ROWS_PER_GROUP", 1_000)
    monkeypatch.setattr("storage_core.split.read.SMALL_SPLIT_BYTES", 1)
    monkeypatch.setattr("storage_core.read.search.base.WHOLE_SPLIT_BYTES", 1)
    table = tied(f"memory://{uuid4()}", step=1)
    table.search("nowhere", index="words")  # opens the searcher
    requests, fetched = table.store.requests["get"], table.store.bytes_read
    found = table.search("tide", index="words", limit=10).column("name").to_pylist()
    assert found == names("tide")[:10]
    assert table.store.requests["get"] - requests <= 2 * SPLITS  # per split: its footer, and the first of 20 row groups
    assert table.store.bytes_read - fetched < sum(each.size for each in table.snapshot.splits.values()) / 5


def test_of_tied_rows_only_those_in_the_first_window_are_decoded(
    tmp_path: Path, decoded: list[tuple[int, tuple[str, ...]]]
) -> None:
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("text", pa.string())])
    words = {"name": "words", "kind": "fulltext", "columns": ["text"]}
    table = Table.create(str(tmp_path / "t"), schema, time_column="at", window="1h", indexes=[words])
    hours = 8
    for hour in range(hours):
        times = [hour * 3_600_000_000 + each for each in range(100)]
        table.append(pa.table([pa.array(times).cast(schema.field("at").type), ["ebb"] * 100], schema=schema))
    catch_up(table)
    table.refresh()
    assert (len(table.snapshot.splits), len(table.snapshot.segments)) == (hours, 1)
    found = table.search("ebb", index="words", limit=3, cache_dir=tmp_path / "cache")
    assert found.column("at").cast(pa.int64()).to_pylist() == [0, 1, 2]
    assert 0 < len(decoded) <= 3  # the first column and the rows of one split are decoded
