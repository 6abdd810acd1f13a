"""If any part of a vector index segment is damaged, the answer is still correct, or a typed error names the segment."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from storage_core.base.errors import Corrupt
from storage_core.data.formats import bundle
from storage_core.data.rows.vectors import Floats, column_of, vector_type
from storage_core.data.settings.index import IndexDefinition
from storage_core.data.settings.table import TableConfig
from storage_core.index import segments
from storage_core.index.vector import layout, segment
from storage_core.log.actions import IndexSegment
from storage_core.read.search import base, sources
from storage_core.store.contract import Overwrite
from storage_core.store.memory import MemoryStore
from tests.support.indexed_table import IndexedTable
from tests.support.searching import search

DIMENSIONS, ROWS = 32, 3_000
SCHEMA = pa.schema([("id", pa.int64()), ("v", vector_type(DIMENSIONS))])
INDEX = IndexDefinition("near", "vector", ("v",))
QUERY = np.random.default_rng(7).standard_normal(DIMENSIONS).astype(np.float32)
PARTS = (layout.HEAD, layout.CLUSTERS, layout.ROWS, layout.CODEBOOK, layout.BLOCKS, layout.SECOND)


@pytest.fixture(params=["by ranges", "whole"])
def table(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> IndexedTable:
    """Make a table with a segment of 55 clusters, all of which a search reads."""
    for defaults in (segment.train.__kwdefaults__, segment.build.__kwdefaults__):
        assert defaults
        monkeypatch.setitem(defaults, "flat_bytes", 2**12)
    if request.param == "by ranges":
        monkeypatch.setattr(sources, "WHOLE_SEGMENT_BYTES", 2**12)
        monkeypatch.setattr("storage_core.split.read.SMALL_SPLIT_BYTES", 2**12)
        monkeypatch.setattr(base, "WHOLE_SPLIT_BYTES", 2**12)
    table = IndexedTable(MemoryStore("damaged"), TableConfig(indexes=(INDEX,)), schema=SCHEMA)
    vectors: Floats = np.random.default_rng(1).standard_normal((ROWS, DIMENSIONS)).astype(np.float32)
    table.add(pa.table([pa.array(range(ROWS)), column_of(vectors)], schema=SCHEMA))
    return table


def found(table: IndexedTable) -> list[dict[str, object]]:
    rows = search(table.store, table.snapshot, vector=QUERY, limit=5, nprobe=60, columns=["id"])
    answer: list[dict[str, object]] = rows.to_pylist()
    return answer


def stored(table: IndexedTable) -> tuple[IndexSegment, bytes, bundle.Directory]:
    (action,) = table.snapshot.segments.values()
    data = table.store.get(action.path).data
    return action, data, bundle.read_directory(data[action.footerOffset :], segments.expected_of(action))


@pytest.mark.parametrize("where", ["first", "middle", "last"])
@pytest.mark.parametrize("name", [*PARTS, "directory"])
def test_a_flipped_bit_costs_no_answer(
    table: IndexedTable, name: str, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    table.catch_up("near")
    expected = found(table)
    action, data, directory = stored(table)
    begin, end = action.footerOffset, action.size
    if name != "directory":
        part = directory.part(name)
        begin, end = part.offset, part.offset + part.length
    place = {"first": begin, "middle": (begin + end) // 2, "last": end - 1}[where]
    damaged = bytearray(data)
    damaged[place] ^= 1
    table.store.put(action.path, bytes(damaged), Overwrite())
    with caplog.at_level(logging.WARNING):
        assert found(table) == expected
    is_read = action.path in caplog.text
    assert is_read or name in (layout.BLOCKS, layout.SECOND), "what a search reads of these it verifies"


@pytest.mark.parametrize("length", [0, 100, -1])
def test_a_segment_that_is_cut_costs_no_answer(table: IndexedTable, length: int) -> None:
    table.catch_up("near")
    expected = found(table)
    action, data, _ = stored(table)
    table.store.put(action.path, data[:length], Overwrite())
    assert found(table) == expected
    table.store.delete([action.path])
    assert found(table) == expected


def forged(files: Mapping[str, bytes], name: str) -> dict[str, bytes]:
    """Replace the content of one file and make all checksums match."""
    changed = dict(files)
    match name:
        case layout.HEAD:
            changed[name] = changed[name].replace(b'"rows":3000', b'"rows":2999')
        case layout.ROWS:
            changed[name] = (np.frombuffer(changed[name], "<u4") + np.uint32(1)).tobytes()
        case layout.CLUSTERS:
            changed[name] = changed[name][: -layout.BLOCK.itemsize]
        case _:
            changed[name] = changed[name][:-4]
    return changed


@pytest.mark.parametrize("name", PARTS)
def test_a_forged_part_gives_the_right_answer_or_a_typed_error(table: IndexedTable, name: str) -> None:
    expected, snapshot = found(table), table.snapshot
    (add,) = snapshot.splits.values()
    files = segments.build(table.store, add, INDEX, SCHEMA)
    sound = segments.write(table.store, files, definition=INDEX, covers=add.path, rows=ROWS, ids=table.ids)
    said = {"index": INDEX.name, segments.DEFINITION: segments.fingerprint_of(INDEX), "split": add.path}
    packed = bundle.pack_bundle(forged(files, name), identity=segments.segment_id(sound), properties=said)
    table.store.put(sound.path, packed.data, Overwrite())
    action = replace(sound, size=len(packed.data), xxh3=packed.xxh3, footerOffset=packed.footer_offset)
    table.log.commit(snapshot, [action], operation="INDEX")
    assert table.snapshot.segments
    try:
        answer, where = found(table), action.path
    except Corrupt as error:
        answer, where = expected, str(error)
    assert answer == expected
    assert action.path in where or add.path in where
