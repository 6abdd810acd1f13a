"""Splits: the immutable, sorted, self-describing Parquet files of the base table (docs/architecture/compaction.md)."""
