"""The demo accepts a raw log only if every row is there exactly once."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from examples import two_stores
from tidemark import Table

TOLD = ["EWR-0000", "EWR-0001", "JFK-0000"]


def verdict(folder: Path, ids: list[str]) -> str:
    table = Table.create(str(folder / "t"), pa.schema([("id", pa.string())]))
    table.append([{"id": each} for each in ids])
    return two_stores.verdict(table, TOLD)


def test_every_row_once_is_what_it_says(tmp_path: Path) -> None:
    assert verdict(tmp_path, TOLD) == "3 acknowledged rows, 3 in the table: none is missing, none is there twice"


def test_a_row_that_is_missing_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="1 acknowledged rows are missing, 0 are in the table more than once"):
        verdict(tmp_path, TOLD[:2])


def test_a_row_that_is_there_twice_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="0 acknowledged rows are missing, 1 are in the table more than once"):
        verdict(tmp_path, [*TOLD, TOLD[0]])
