"""What a merge holds at once: row groups, and a page per column and input, not its inputs or its output (0066)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from storage_core.compaction import execute as executing
from storage_core.compaction import streaming
from storage_core.compaction.execute import execute
from storage_core.compaction.work import CompactionTask
from storage_core.errors import Corrupt
from storage_core.log.actions import Add
from storage_core.objectstore.local import LocalStore
from storage_core.rows.sort_order import bind
from storage_core.settings.table import TableConfig
from storage_core.split import rolling_writer, row_groups
from storage_core.split.context import SplitContext
from storage_core.split.encodings import ROWS_PER_PAGE
from storage_core.split.read import read_split
from storage_core.split.sink import Sink
from storage_core.split.write import sort_and_write, write_split
from tests.support.ids import SeededIds

INPUTS = 6
ROWS = 24_000
GROUP_ROWS = 4096
VALUE_BYTES = 8
PAGE_BYTES = ROWS_PER_PAGE * VALUE_BYTES
DECODER_BYTES = PAGE_BYTES * 3 // 2 + 1024 * VALUE_BYTES
"""A decoder holds a page, buffers for levels and compressed bytes, and a batch of values."""


def _operation(store: LocalStore, width: int) -> CompactionTask:
    names = [f"c{index:02d}" for index in range(width - 1)]
    schema = pa.schema([("at", pa.timestamp("us", tz="UTC")), *((name, pa.int64()) for name in names)])
    order = bind(TableConfig(time_column="at", sort_schema="c00|timestamp/V2"), schema)
    context = SplitContext(table_id="memory", schema=schema, order=order, time_column="at", target_bytes=2**30)
    adds: list[Add] = []
    for number in range(INPUTS):
        chance = np.random.default_rng(number)  # noise, so that the encoded bytes are as many as the others
        columns = [pa.array(np.arange(ROWS, dtype=np.int64)).cast(schema.field("at").type)]
        columns += [pa.array(chance.integers(-(2**62), 2**62, ROWS)) for _ in names]
        rows = pa.table(columns, schema=schema)
        adds += sort_and_write(store, rows, context=context, ids=SeededIds(number), now_ms=number)
    return CompactionTask(None, tuple(adds), context)


def _peak_bytes(folder: Path, width: int) -> int:
    store = LocalStore(folder)
    operation = _operation(store, width)
    whole, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        (add,) = execute(store, operation, ids=SeededIds(99), now_ms=9).adds
        assert add.numRecords == INPUTS * ROWS
        return int(pool.max_memory())
    finally:
        pa.set_memory_pool(whole)


def test_the_memory_of_a_merge_is_a_page_per_column_and_input_and_three_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executing, "_IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(rolling_writer, "IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(row_groups, "ROWS_PER_GROUP", GROUP_ROWS)
    monkeypatch.setattr(streaming, "ROWS_PER_GROUP", GROUP_ROWS)
    monkeypatch.setattr(streaming, "_BATCHES_BYTES", 0)
    column = INPUTS * ROWS * VALUE_BYTES  # while the order is found, one sort column of all inputs, twice
    for width in (8, 60):
        decoders = INPUTS * width * DECODER_BYTES
        groups = 3 * GROUP_ROWS * width * VALUE_BYTES
        held = width * column  # by a merge that reads its inputs, or keeps its output, whole
        peak = _peak_bytes(tmp_path / str(width), width)
        assert peak < 2 * column + decoders + groups, (width, peak)
        assert width == 8 or 2 * column + decoders + groups < held / 2


@pytest.mark.parametrize("on_disk", [False, True])
def test_bytes_on_disk_come_back_as_they_were_or_with_another_end_and_leave_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, on_disk: bool
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sink = Sink(on_disk=on_disk)
    sink.stream.write(b"abc")
    sink.stream.write(b"def")
    assert (sink.size, list(tmp_path.iterdir())) == (6, [])
    written = sink.finish()
    assert written.to_pybytes() == b"abcdef"
    assert sink.with_end(written.slice(0, 4), b"wxyz").to_pybytes() == b"abcdwxyz"
    assert list(tmp_path.iterdir()) == []


def test_a_merge_that_fails_half_way_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    monkeypatch.setattr(executing, "_IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(rolling_writer, "IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(streaming, "ROWS_PER_GROUP", GROUP_ROWS)
    store = LocalStore(tmp_path / "store")
    operation = _operation(store, 3)
    context = operation.context
    rows = read_split(store, operation.inputs[0])
    half = ROWS // 2
    swapped = rows.take(pa.array([*range(half), *range(half + 1, ROWS), half]))
    wrong = write_split(store, swapped, context=context, window=None, num_merge_ops=0, split_id="wrong", now_ms=1)
    with pytest.raises(Corrupt, match="SS-1"):
        execute(store, replace(operation, inputs=(*operation.inputs, wrong)), ids=SeededIds(99), now_ms=9)
    assert list(scratch.iterdir()) == []
