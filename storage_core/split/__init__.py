"""Splits: the immutable, sorted, self-describing Parquet files of a table's base (docs/architecture/compaction.md)."""
