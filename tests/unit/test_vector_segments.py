"""Vector index segments are self-contained, and are accepted or refused like segments of other kinds."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap

from storage_core.base.errors import Corrupt
from storage_core.data.rows.vectors import Floats, vector_type
from storage_core.data.settings.index import IndexDefinition, Metric, Quantization
from storage_core.index import segments, vector
from storage_core.index.segments import Part
from storage_core.log.coverage import members
from storage_core.store.memory import MemoryStore
from tests.support.ids import SeededIds

METRICS, QUANTIZATIONS = get_args(Metric), get_args(Quantization)


def definition(metric: str = "l2", quantization: str = "rotated") -> IndexDefinition:
    return IndexDefinition("near", "vector", ("v",), {"metric": metric, "quantization": quantization})


def rows_of(vectors: Floats, nulls: tuple[int, ...] = ()) -> pa.Table:
    values = [None if row in nulls else each.tolist() for row, each in enumerate(vectors)]
    return pa.table({"v": pa.array(values, vector_type(vectors.shape[1]))})


def made(rows: int, dimensions: int = 8) -> Floats:
    return np.random.default_rng(4).standard_normal((rows, dimensions)).astype(np.float32)


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
@pytest.mark.parametrize("metric", METRICS)
def test_a_segment_is_searched_by_its_files_alone_and_the_same_rows_give_the_same(
    metric: str, quantization: str
) -> None:
    vectors, index = made(300), definition(metric, quantization)
    files = segments.build_rows(rows_of(vectors, (7,)), index)
    assert segments.build_rows(rows_of(vectors, (7,)), index) == files
    segments.check(files, "near", segments.fingerprint_of(index), rows=300, where="s")
    reader = vector.Reader(vector.HeldFiles(files), where="s", rows=300)
    found, _ = reader.candidates(vectors[3], 10)
    away = vector.exact(vectors[3], vectors, reader.head.metric)
    away[7] = np.inf
    assert {*np.argsort(away, kind="stable")[:5].tolist()} <= {*found.tolist()}
    assert 7 not in found


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
@pytest.mark.parametrize("metric", METRICS)
def test_rows_without_a_vector_and_no_rows_at_all_make_segments_too(metric: str, quantization: str) -> None:
    index = definition(metric, quantization)
    for rows in (rows_of(made(0)), rows_of(made(3), (0, 1, 2)), rows_of(np.zeros((2, 8), np.float32))):
        files = segments.build_rows(rows, index)
        segments.check(files, "near", segments.fingerprint_of(index), rows=rows.num_rows, where="s")
        found, _ = vector.Reader(vector.HeldFiles(files), where="s").candidates(np.ones(8), 5)
        assert len(found) == (2 if rows.num_rows == 2 and metric != "cosine" else 0)


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
@pytest.mark.parametrize("metric", METRICS)
def test_vectors_near_the_end_of_32_bits_make_a_segment(metric: str, quantization: str) -> None:
    vectors = np.sign(made(40)) * np.float32(3e38)
    index = definition(metric, quantization)
    files = segments.build_rows(rows_of(vectors), index)
    segments.check(files, "near", segments.fingerprint_of(index), rows=40, where="s")
    assert len(vector.Reader(vector.HeldFiles(files), where="s").candidates(vectors[0], 40)[0]) == 40


def test_a_segment_over_a_part_of_a_split_keeps_its_rows_beside_the_files(tmp_path: Path) -> None:
    store, index = MemoryStore(f"part-{tmp_path.name}"), definition()
    part = Part(BitMap([1, 4, 5]), ("a", "b"))
    files = segments.build_rows(rows_of(made(3)), index)
    added = segments.write(store, files, definition=index, covers="s", rows=9, ids=SeededIds(1), part=part)
    loaded = segments.load(store, added)
    assert segments.part_rows(loaded[segments.ROWS], added, *members(added)) == part.rows
    found = {name: bytes(data) for name, data in loaded.items() if name != segments.ROWS}
    assert found == files


def test_a_segment_with_another_codebook_or_none_is_damaged() -> None:
    index = definition()
    fingerprint = segments.fingerprint_of(index)
    files = segments.build_rows(rows_of(made(30)), index)
    other = segments.build_rows(rows_of(made(31)), index)["codebook.bin"]
    without = {name: data for name, data in files.items() if name != "codebook.bin"}
    for broken in (without, {**files, "codebook.bin": other}, {**files, "codebook.bin": b""}):
        with pytest.raises(Corrupt):
            segments.check(broken, "near", fingerprint, rows=30, where="s")
