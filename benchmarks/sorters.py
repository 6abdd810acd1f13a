"""One merge of sorted files by each system that runs in Python. Each system reads all files and writes the result.

All systems write zstd level 3. Tidemark writes a split. A split has pages of 1,024 rows with an index and checksums. A
split also has statistics and row keys. Tidemark also checks MC-1 to MC-4. The copy writes each file unchanged. The copy
has the settings of a split, but Arrow's own encodings. The systems other than Tidemark and the copy use their default
settings. These systems sort by the same key as Tidemark, with nulls last.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import duckdb
import pyarrow.parquet as pq

from benchmarks.peers import linked
from benchmarks.points import KEY, SQL_KEY, Given
from storage_core.base.clock import SystemIds
from storage_core.compact.execute import execute
from storage_core.compact.work import CompactionTask
from storage_core.data.settings.table import ZSTD_LEVEL
from storage_core.split.encode import ROWS_PER_PAGE
from storage_core.split.metadata import ROWS_PER_GROUP
from storage_core.store.local import LocalStore

Side = Callable[[Given, Path], None]
"""A function that merges the input into files in the folder."""

ONE_THREAD = {"POLARS_MAX_THREADS": "1", "TOKIO_WORKER_THREADS": "1"}
"""Environment variables that a measured process has from its start."""


def ours(given: Given, folder: Path) -> None:
    """Merge with the compaction kernel of Tidemark, through a store."""
    operation = CompactionTask.from_json(given.operation)
    for add in execute(LocalStore(given.root), operation, ids=SystemIds(), now_ms=1).adds:
        shutil.move(given.root / add.path, folder)


def arrow_copy(given: Given, folder: Path) -> None:
    """Decode and encode each file unchanged. This is the cost of a rewrite that improves nothing."""
    for index, file in enumerate(given.files):
        pq.write_table(
            pq.ParquetFile(file).read(),
            folder / f"{index}.parquet",
            compression="zstd",
            compression_level=ZSTD_LEVEL,
            write_page_index=True,
            write_page_checksum=True,
            max_rows_per_page=ROWS_PER_PAGE,
            row_group_size=ROWS_PER_GROUP,
            store_schema=False,
        )


def duckdb_sort(given: Given, folder: Path) -> None:
    """Sort all rows with DuckDB."""
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute("SET enable_progress_bar = false")  # otherwise, the progress bar appears among the metrics
        connection.execute(
            f"COPY (SELECT * FROM read_parquet({list(given.files)}) ORDER BY {SQL_KEY}) "  # noqa: S608 -- our own
            f"TO '{folder}/sorted.parquet' (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL {ZSTD_LEVEL})"
        )


def polars_sort(given: Given, folder: Path) -> None:
    """Sort all rows with Polars' streaming engine."""
    import polars as pl  # import Polars only after the number of threads is set

    rows = pl.scan_parquet(list(given.files)).sort(KEY, descending=[False, False, True], nulls_last=True)
    rows.sink_parquet(folder / "sorted.parquet", compression_level=ZSTD_LEVEL, engine="streaming")


def polars_merge(given: Given, folder: Path) -> None:
    """Merge the sorted files with Polars. The keys must be ascending."""
    import polars as pl  # import it after the number of threads is set

    *what, when = KEY
    back = pl.col(when).dt.epoch("us").neg().alias("back")
    merged = pl.merge_sorted([pl.scan_parquet(file).with_columns(back) for file in given.files], key=[*what, "back"])
    merged.drop("back").sink_parquet(folder / "sorted.parquet", compression_level=ZSTD_LEVEL, engine="streaming")


def datafusion_merge(given: Given, folder: Path) -> None:
    """Merge with DataFusion.

    DataFusion knows the order of the files. DataFusion reads each file as a partition and merges all partitions once.

    Raises `RuntimeError` if DataFusion chooses another plan.
    """
    import datafusion  # import it after the number of threads is set

    settings = datafusion.SessionConfig().with_target_partitions(len(given.files))
    session = datafusion.SessionContext(settings)
    inputs = folder.parent / f"{folder.name}-inputs"
    inputs.mkdir(exist_ok=True)
    linked([Path(file) for file in given.files], inputs)
    session.sql(f"CREATE EXTERNAL TABLE points STORED AS PARQUET WITH ORDER ({SQL_KEY}) LOCATION '{inputs}/'").collect()
    query = f"SELECT * FROM points ORDER BY {SQL_KEY}"  # noqa: S608 -- our own
    plan = session.sql(query).execution_plan().display_indent()
    if "SortPreservingMergeExec" not in plan or "SortExec" in plan:
        raise RuntimeError(f"DataFusion does not merge sorted files here but: {plan}")
    codec = f"OPTIONS ('format.compression' 'zstd({ZSTD_LEVEL})')"
    session.sql(f"COPY ({query}) TO '{folder}/sorted.parquet' STORED AS PARQUET {codec}").collect()
    shutil.rmtree(inputs)


PEERS: Mapping[str, Side] = {
    "Arrow copy": arrow_copy,
    "DuckDB ORDER BY": duckdb_sort,
    "Polars sort": polars_sort,
    "Polars merge_sorted": polars_merge,
    "DataFusion's sort-preserving merge": datafusion_merge,
}
