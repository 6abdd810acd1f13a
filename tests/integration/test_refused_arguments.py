"""Tidemark refuses unusable arguments with one of its own errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidemark as tm
from storage_core.base.errors import InvalidInput
from storage_core.data.settings.layout import Mode

SCHEMA = pa.schema([("x", pa.int64())])


@pytest.mark.parametrize("mode", ["x", "", "FINALIZE", 1, [1]])
def test_an_unknown_mode_of_debt_is_refused(mode: Any, tmp_path: Path) -> None:
    table = tm.Table.create(tmp_path / "t", SCHEMA)
    with pytest.raises(InvalidInput, match=r"mode is .* Give policy, finalize, rewindow or resort"):
        table.debt(mode=mode)
    for each in Mode:
        assert table.debt(each) == table.debt(each.value)  # type: ignore[arg-type]  # as text


@pytest.mark.parametrize("statement", ["select '\ud800'", "\ud800", 'select 1 as "\udfff"'])
def test_a_statement_of_a_catalog_with_half_a_character_is_refused(statement: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="a character that UTF-8 cannot encode"):
        tm.open_catalog(f"sqlite:///{tmp_path}/c.db").sql(statement)


@pytest.mark.parametrize(
    "given",
    [lambda rows: rows, lambda rows: rows.to_batches()[0], pa.Table.to_reader],
    ids=["table", "batch", "reader"],
)
def test_rows_of_a_query_whose_text_is_not_utf8_are_refused(given: Callable[[pa.Table], Any], tmp_path: Path) -> None:
    offsets = pa.py_buffer(np.array([0, 1], np.int32))
    text = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff")])
    table = tm.Table.create(tmp_path / "t", SCHEMA)
    for column in (text, pa.StructArray.from_arrays([text], ["a"])):
        with pytest.raises(InvalidInput, match=r"column 'c', row 0: the text is not valid UTF-8"):
            table.sql("select x.c from x", tables={"x": given(pa.table({"c": column}))})
