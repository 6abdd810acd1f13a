"""Tests of a log with many versions on a local disk. Opening, committing and publishing list no folder of the log."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core.base.errors import Corrupt
from storage_core.data.formats.keys import version_key
from storage_core.log.listing import MOST_ABSENT_KEYS
from tidemark import Table

FILES = 20_000
SCHEMA = pa.schema([("n", pa.int64())])


@pytest.fixture
def read_names(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of names in each listed folder."""
    found: list[int] = []
    listdir = os.listdir

    def counted(folder: int) -> list[str]:
        names = listdir(folder)
        found.append(len(names))
        return names

    monkeypatch.setattr(os, "listdir", counted)
    return found


def appended(table: Table, *numbers: int) -> Table:
    for number in numbers:
        table.append([{"n": number}])
    return table.refresh()


def test_opening_committing_and_publishing_read_no_folder_of_many_files(tmp_path: Path, read_names: list[int]) -> None:
    uri = str(tmp_path / "t")
    table = appended(Table.create(uri, SCHEMA, settings={"checkpoint.interval": 5}), *range(12))
    log = tmp_path / "t" / "_transaction_log"
    for number in range(FILES):
        (log / f"{number:020d}.json.old").touch()
    read_names.clear()
    table = appended(Table.open(uri), *range(12, 20))
    table.publish("delta")
    appended(table, 20).publish("delta")
    assert table.log.exists()
    assert Table.open(uri, at=12).scan().to_arrow().num_rows == 12
    assert Table.open(uri).scan().to_arrow().num_rows == 21
    assert max(read_names, default=0) < 100
    (log / version_key(0).rpartition("/")[2]).unlink()  # the collector also deletes this object
    assert table.log.exists()
    assert max(read_names, default=0) < 100


@pytest.mark.parametrize("lost", [1, MOST_ABSENT_KEYS - 1])
def test_versions_that_are_missing_before_others_are_noticed(tmp_path: Path, lost: int) -> None:
    uri = str(tmp_path / "t")
    appended(Table.create(uri, SCHEMA, settings={"checkpoint.interval": 2}), *range(3))
    log = tmp_path / "t"
    last = log / version_key(3)
    last.rename(log / version_key(3 + lost))
    with pytest.raises(Corrupt, match="missing"):
        Table.open(uri)
