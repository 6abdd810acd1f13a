"""The systems that Tidemark's reads are compared with: table formats and indexes that read the same files or rows.

DuckLake and Lance run in their own processes during the same run.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder, convert_to_deltalake

from benchmarks.metrics import Metric, beside, median
from benchmarks.peers import NotMeasuredError, ducklake_python, lance_python, linked, printed


def delta_queries(files: Sequence[Path], folder: Path) -> Callable[[str], pa.Table]:
    """Return a function that answers queries with delta-rs and its DataFusion.

    The table `t` is a Delta table over these files.
    """
    folder.mkdir()
    linked(files, folder)
    convert_to_deltalake(str(folder))
    builder = QueryBuilder().register("t", DeltaTable(str(folder)))
    return lambda text: pa.table(builder.execute(text).read_all())


def ducklake_queries(
    files: Sequence[Path], folder: Path, queries: Sequence[str], runs: int, *, make: bool
) -> list[float]:
    """Return the milliseconds of each query in a DuckLake of these files. Raises `NotMeasuredError`."""
    folder.mkdir()
    python = ducklake_python(make=make)
    found: list[float] = printed(
        python, "ducklake_reads", str(folder), str(runs), json.dumps(queries), *map(str, files)
    )
    return found


def lance_requests(name: str, ours_ms: float, rows: pa.Table, requests: Sequence[int | str], *, make: bool) -> Metric:
    """Return Lance's times for lookups in the first column. A lookup is for one key, or for ten rows with one text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        pq.write_table(rows, path)
        try:
            python = lance_python(make=make)
            taken = printed(python, "lance_reads", folder, str(path), rows.column_names[0], json.dumps(requests))
        except NotMeasuredError as error:
            against = f"Lance (not measured: {error})"
            return Metric(name=f"{name}, Lance", value=ours_ms, unit="ms", against=against, ratio=0)
    return beside(f"{name}, Lance", median(taken), ours_ms)
