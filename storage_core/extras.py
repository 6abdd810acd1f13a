"""What `pip install tidemark` alone does not bring, and the extra that does (decision 0095)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from storage_core.errors import Unavailable

PIPELINE = "pipeline"
"""Dagster, PySpark and pandas."""
CONNECT = "connect"
"""PySpark as a client of a Spark Connect server."""
POLARS = "polars"
DELTA = "delta"
"""delta-rs."""
ICEBERG = "iceberg"
"""pyiceberg."""
CATALOG = "catalog"
"""SQLAlchemy, and psycopg for PostgreSQL."""
POSTGRES = "postgres"
"""Dagster's history in PostgreSQL."""


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Raise `Unavailable` that names the extra where a package is imported that is not installed."""
    try:
        yield
    except ImportError as error:
        raise Unavailable(
            f"{what} needs packages: pip install '.[{extra}]' in the folder of Tidemark's source ({error})", extra=extra
        ) from error
