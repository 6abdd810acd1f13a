"""The compaction benchmarks compare equal work: every side merges the same rows into the same order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import points, sorters
from benchmarks.compaction_sizes import datasets
from benchmarks.page_reads import bytes_read
from benchmarks.points import KEY, Given
from benchmarks.processor import processor_seconds
from benchmarks.sorters import PEERS

SORTERS = sorted(set(PEERS) - {"Arrow copy"})


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Given:
    return points.given(tmp_path_factory.mktemp("given"), 4, 300, 6)


def merged(side: sorters.Side, given: Given, folder: Path) -> pa.Table:
    folder.mkdir()
    side(given, folder)
    return pa.concat_tables(pq.ParquetFile(file).read() for file in sorted(folder.iterdir()))


@pytest.mark.parametrize("peer", SORTERS)
def test_a_peer_merges_the_given_files_into_our_order(peer: str, given: Given, tmp_path: Path) -> None:
    own = merged(sorters.ours, given, tmp_path / "ours")
    other = merged(PEERS[peer], given, tmp_path / "peer")
    assert other.num_rows == own.num_rows == given.rows
    assert other.select(KEY).cast(own.select(KEY).schema).equals(own.select(KEY))


def test_the_copy_keeps_the_rows_of_the_files_as_they_are(given: Given, tmp_path: Path) -> None:
    inputs = pa.concat_tables(pq.ParquetFile(file).read() for file in given.files)
    assert merged(sorters.arrow_copy, given, tmp_path / "copy").equals(inputs)


def test_in_a_merged_file_a_query_for_one_series_reads_a_part_of_the_pages(tmp_path: Path) -> None:
    merged(sorters.ours, points.given(tmp_path / "given", 4, 20_000, 6), tmp_path / "ours")
    (file,) = (tmp_path / "ours").iterdir()
    whole = bytes_read([file], "SELECT metric, value0 FROM rows")
    one = bytes_read([file], f"SELECT metric, value0 FROM rows WHERE metric = '{points.NAMES[0]}'")
    assert 0 < 2 * one < whole


def test_processor_seconds_count_what_a_child_process_takes() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    taken = processor_seconds(lambda: subprocess.run([sys.executable, "-c", burn], check=True))
    assert taken > 0.25, "what the child itself saw that it took, but for the steps in which this is counted"


def test_the_real_data_sets_are_whole_and_in_the_order_of_their_arrival() -> None:
    sizes = {data.name: data.rows.num_rows for data in datasets()}
    assert sizes == {"flights": 336_776, "weather": 26_115, "access log": 10_000}
    for data in datasets(100):
        assert data.rows.column(data.time_column).null_count == 0
        assert data.context(windows=True).window_seconds == data.window_seconds
