"""The tables of the catalog in SQLAlchemy (`docs/spec.md`, "SQL catalog").

This module defines the catalog's database tables in their newest version. Changes are additive. For each change, edit
this module and add a step to `catalog.database`.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, PrimaryKeyConstraint, Table, Text

METADATA = MetaData()
TEXT = Text().with_variant(Text(collation="C"), "postgresql")
"""Text that the database sorts by bytes, as Python and SQLite do."""

MARKER = Table(
    "tidemark_catalog",
    METADATA,
    Column("format", TEXT, primary_key=True),
    Column("version", Integer, nullable=False),
)

TABLES = Table(
    "tables",
    METADATA,
    Column("table_id", TEXT, primary_key=True),
    Column("name", TEXT, nullable=False),
    Column("uri", TEXT, nullable=False, unique=True),
    Column("head_version", BigInteger, nullable=False),
    Column("head_commit_id", TEXT, nullable=False),
    Column("head_timestamp_ms", BigInteger, nullable=False),
    Column("first_version", BigInteger, nullable=False),
    Column("protocol", TEXT, nullable=False),
    Column("schema_string", TEXT, nullable=False),
    Column("configuration", TEXT, nullable=False),
    Column("columns", TEXT, nullable=False),
    Column("kind", TEXT, nullable=False),
    Column("time_column", TEXT),
    Column("sort_schema", TEXT),
    Column("window_seconds", BigInteger),
    Column("retention_ms", BigInteger),
    Column("longest_time_us", BigInteger, nullable=False),
    Column("live_splits", BigInteger, nullable=False),
    Column("live_rows", BigInteger, nullable=False),
    Column("live_bytes", BigInteger, nullable=False),
)

SPLITS = Table(
    "splits",
    METADATA,
    Column("table_id", TEXT, nullable=False),
    Column("split_id", TEXT, nullable=False),
    Column("added_version", BigInteger, nullable=False),
    Column("removed_version", BigInteger),
    Column("added_at_ms", BigInteger),
    Column("window_start", BigInteger),
    Column("window_seconds", BigInteger),
    Column("window_end", BigInteger),
    Column("sort_schema", TEXT),
    Column("source_id", TEXT, nullable=False),
    Column("partition_id", TEXT, nullable=False),
    Column("schema_ref", TEXT, nullable=False),
    Column("partition_values", TEXT),
    Column("min_time_us", BigInteger),
    Column("max_time_us", BigInteger),
    Column("rows", BigInteger),
    Column("deleted_rows", BigInteger, nullable=False),
    Column("bytes", BigInteger),
    Column("merge_ops", BigInteger),
    Column("min_values", TEXT),
    Column("max_values", TEXT),
    Column("null_counts", TEXT),
    Column("regexes", TEXT),
    Column("xxh3", TEXT),
    PrimaryKeyConstraint("table_id", "split_id", "added_version"),
)

LIVE = SPLITS.c.removed_version.is_(None)
GONE = SPLITS.c.removed_version.is_not(None)

BY_SCOPE = Index(
    "splits_live_by_scope",
    *(SPLITS.c[name] for name in ("table_id", "sort_schema", "window_start", "split_id")),
    sqlite_where=LIVE,
    postgresql_where=LIVE,
)
BY_TIME = Index(
    "splits_live_by_time",
    *(SPLITS.c[name] for name in ("table_id", "min_time_us", "split_id")),
    sqlite_where=LIVE,
    postgresql_where=LIVE,
)
BY_EXPIRY = Index(
    "splits_live_by_expiry",
    *(SPLITS.c[name] for name in ("table_id", "window_end", "window_start")),
    sqlite_where=LIVE,
    postgresql_where=LIVE,
)
BY_ADDITION = Index("splits_by_addition", *(SPLITS.c[name] for name in ("table_id", "added_version", "split_id")))
BY_REMOVAL = Index(
    "splits_by_removal",
    *(SPLITS.c[name] for name in ("table_id", "removed_version", "split_id")),
    sqlite_where=GONE,
    postgresql_where=GONE,
)

SEGMENTS = Table(
    "segments",
    METADATA,
    Column("table_id", TEXT, nullable=False),
    Column("segment_id", TEXT, nullable=False),
    Column("added_version", BigInteger, nullable=False),
    Column("removed_version", BigInteger),
    Column("index_name", TEXT, nullable=False),
    Column("kind", TEXT, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("covers", TEXT, nullable=False),
    PrimaryKeyConstraint("table_id", "segment_id", "added_version"),
)

COMMITS = Table(
    "commits",
    METADATA,
    Column("table_id", TEXT, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("commit_id", TEXT, nullable=False),
    Column("operation", TEXT, nullable=False),
    Column("committed_at_ms", BigInteger, nullable=False),
    Column("job_run_id", TEXT),
    Column("splits_added", BigInteger, nullable=False),
    Column("splits_removed", BigInteger, nullable=False),
    Column("metrics", TEXT, nullable=False),
    PrimaryKeyConstraint("table_id", "version"),
)

REGIONS = Table(
    "regions",
    METADATA,
    Column("table_id", TEXT, nullable=False),
    Column("region", TEXT, nullable=False),
    Column("merged_generation", BigInteger, nullable=False),
    Column("merged_version", BigInteger, nullable=False),
    PrimaryKeyConstraint("table_id", "region"),
)

OF_A_TABLE = (SPLITS, SEGMENTS, COMMITS, REGIONS, TABLES)
"""The database tables with rows about Tidemark tables. `TABLES` must be the last element."""
