"""The memory of a merge: row groups and one page per column and input, not whole inputs or outputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from storage_core.base.errors import Corrupt
from storage_core.compact import execute as executing
from storage_core.compact import kernel
from storage_core.compact.execute import execute
from storage_core.compact.work import CompactionTask
from storage_core.data.rows.sort_order import bind
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Add
from storage_core.split import metadata, writer
from storage_core.split.context import SplitContext
from storage_core.split.encode import ROWS_PER_PAGE, Sink
from storage_core.split.read import read_split
from storage_core.split.writer import sort_and_write, write_split
from storage_core.store.local import LocalStore
from tests.support.ids import SeededIds

INPUTS = 6
ROWS = 24_000
GROUP_ROWS = 4096
VALUE_BYTES = 8
PAGE_BYTES = ROWS_PER_PAGE * VALUE_BYTES
DECODER_BYTES = PAGE_BYTES * 3 // 2 + 1024 * VALUE_BYTES
"""The memory of a decoder: a page, buffers for levels and compressed bytes, and a batch of values."""


def _operation(store: LocalStore, width: int) -> CompactionTask:
    names = [f"c{index:02d}" for index in range(width - 1)]
    schema = pa.schema([("at", pa.timestamp("us", tz="UTC")), *((name, pa.int64()) for name in names)])
    order = bind(TableConfig(time_column="at", sort_schema="c00|timestamp/V2"), schema)
    context = SplitContext(table_id="memory", schema=schema, order=order, time_column="at", target_bytes=2**30)
    adds: list[Add] = []
    for number in range(INPUTS):
        chance = np.random.default_rng(number)  # noise, so that encoded pages are as large as plain ones
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
    monkeypatch.setattr(writer, "IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(metadata, "ROWS_PER_GROUP", GROUP_ROWS)
    monkeypatch.setattr(kernel, "ROWS_PER_GROUP", GROUP_ROWS)
    monkeypatch.setattr(kernel, "_BATCHES_BYTES", 0)
    column = INPUTS * ROWS * VALUE_BYTES  # the sort column of all inputs is in memory twice while the order is computed
    for width in (8, 60):
        decoders = INPUTS * width * DECODER_BYTES
        groups = 3 * GROUP_ROWS * width * VALUE_BYTES
        held = width * column  # the memory of a merge that holds whole inputs or a whole output
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
    monkeypatch.setattr(writer, "IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(kernel, "ROWS_PER_GROUP", GROUP_ROWS)
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
